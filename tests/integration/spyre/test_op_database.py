"""PyTorch's own database of operations: every entry equals the CPU on the card, or is refused and in the table."""

from __future__ import annotations

import random

import pytest
import torch

from support.op_database import Outcome, entries, is_plain, name_of, run, run_backward

pytest.importorskip("expecttest", reason="torch's database of operations needs it")

REFUSED = {
    "tensor_split": "torch wants its indices on the CPU, whatever the device",
    "to_sparse": "the card holds strided tensors only",
    "sparse.mm.reduce": "the card holds strided tensors only",
    "sparse.sampled_addmm": "the card holds strided tensors only",
}
"""Entries that the card does not run, and why."""

UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_permuted", "empty_strided", "new_empty_strided")
"""Entries whose results are not written: nothing to compare."""

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float64, torch.int32, torch.int8,
    torch.uint8, torch.complex64,
)  # fmt: skip


def wrong(outcomes: list[Outcome]) -> list[Outcome]:
    return [
        outcome
        for outcome in outcomes
        if outcome.kind == "different" or (outcome.kind == "refused" and outcome.name not in REFUSED)
    ]


def of_dtype(dtype: torch.dtype) -> list[object]:
    return [entry for entry in entries() if dtype in entry.dtypes and entry.name not in UNWRITTEN]


def test_a_sample_of_80_entries_equals_the_cpu_in_float32() -> None:
    plain = [entry for entry in of_dtype(torch.float32) if is_plain(entry)]
    outcomes = [run(entry, torch.float32) for entry in random.Random(5).sample(plain, 80)]
    assert not wrong(outcomes)
    assert sum(outcome.kind == "equal" for outcome in outcomes) >= 78


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_entry_equals_the_cpu_or_is_refused(dtype: torch.dtype) -> None:
    outcomes = [run(entry, dtype) for entry in of_dtype(dtype)]
    assert not wrong(outcomes)
    assert len(outcomes) > 300


@pytest.mark.slow
def test_of_the_plain_entries_at_least_527_are_equal_in_float32() -> None:
    plain = [entry for entry in of_dtype(torch.float32) if is_plain(entry)]
    equal = [name_of(entry) for entry in plain if run(entry, torch.float32).kind == "equal"]
    assert len(plain) >= 532
    assert len(equal) >= 527


@pytest.mark.slow
def test_every_gradient_equals_the_cpu_or_is_refused() -> None:
    outcomes = [run_backward(entry) for entry in of_dtype(torch.float32) if entry.supports_autograd]
    assert not wrong(outcomes)
    assert sum(outcome.kind == "equal" for outcome in outcomes) >= 500


def test_refusals_name_the_operation_and_the_reason() -> None:
    for entry in of_dtype(torch.float32):
        if name_of(entry) in REFUSED and entry.name != "tensor_split":
            outcome = run(entry, torch.float32)
            assert outcome.kind == "refused"
            assert "aten" in outcome.detail
            assert "parse" in outcome.detail or "strided" in outcome.detail
