"""Programs on windows, cut into blocks of a few elements, against torch on the host values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.spyre_programs import Case, Placed, cases

from strideweave.spyre import blockwise
from strideweave.spyre.executor import prepare


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way of cutting is taken at sizes that run in no time."""
    monkeypatch.setattr(blockwise, "BLOCK_ELEMS", 7)
    monkeypatch.setattr(blockwise, "FOLDED_ELEMS", 11)
    monkeypatch.setattr(blockwise, "SUMMED_ELEMS", 13)
    monkeypatch.setattr(blockwise, "KEPT_CALLS", 9)


@pytest.mark.usefixtures("small_blocks")
@given(cases(), st.integers(1, 3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_give_what_torch_gives_and_leave_the_rest_alone(case: Case, runs: int) -> None:
    placed = Placed(case)
    try:
        prepared = prepare(case.program)
        for _ in range(runs):
            prepared.run(placed.addresses)
        assert torch.equal(placed.output()[case.written], case.expected[case.written])
        assert placed.is_poison_elsewhere()
    finally:
        placed.free()
