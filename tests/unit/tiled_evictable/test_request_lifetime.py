"""What a request holds goes when its last holder lets go, not when the collector comes by."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest
import torch

import strideweave as sw


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_gone(ref: weakref.ref[sw.CPU] | weakref.ref[sw.TiledEvictable]) -> bool:
    """A lane may be leaving the job that made it for a moment more."""
    limit = time.monotonic() + 2
    while ref() is not None and time.monotonic() < limit:
        time.sleep(0.001)
    return ref() is None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("budget", [None, 32], ids=["every tile fits", "tiles pass through"])
def test_result_of_a_projection_goes_with_its_last_holder(budget: int | None) -> None:
    carrier = sw.TiledEvictable(sw.CPU(0), sw.CPU.wrap(torch.arange(40.0)), (10,), (4,), budget=budget)
    tensor = sw.Tensor(carrier, 0, carrier.layout, requires_grad=True)
    for _ in range(2):
        picked = carrier.project(tensor, sw.TileSelection([range(6)])).wait()
        sw.reduce_sum(picked).backward()
        ref = weakref.ref(picked.carrier)
        del picked
        assert is_gone(ref)


@pytest.mark.usefixtures("no_collector")
def test_result_of_a_scatter_goes_with_its_last_holder() -> None:
    carrier = sw.TiledEvictable(sw.CPU(0), sw.CPU.wrap(torch.arange(40.0)), (10,), (4,))
    tensor, compact = sw.Tensor(carrier, 0, carrier.layout), sw.from_torch(torch.ones(8))
    for reduction in ("replace", "add"):
        result = carrier.scatter(compact, tensor, sw.TileSelection([[0, 1]]), reduction).wait()
        ref = weakref.ref(result.carrier)
        del result
        assert is_gone(ref)
