"""Projections that are asked for under inference mode: their bytes move on lanes, which do not inherit it."""

from __future__ import annotations

import pytest
import torch

import strideweave as sw


@pytest.mark.parametrize("destination", ["fresh", "made under inference mode", "made before"])
@pytest.mark.parametrize("is_resident", [True, False])
def test_projection_under_inference_mode_gathers(destination: str, is_resident: bool) -> None:
    values = torch.arange(12.0).reshape(4, 3)
    carrier = sw.TiledEvictable(
        sw.CPU(0), sw.CPU.wrap(values.reshape(-1)), (4, 1), (1, 3), layout=sw.Layout.row_major(4, 3)
    )
    if is_resident:
        carrier.promote(sw.TileSet([(3, 0), (1, 0)]))
    before = sw.CPU(6) if destination == "made before" else None
    with torch.inference_mode():
        into = sw.CPU(6) if destination == "made under inference mode" else before
        picked = carrier.project(sw.Tensor(carrier, 0, carrier.layout), sw.TileSelection([[3, 1], [0]]), into).wait()
        assert torch.equal(picked.torch(), values[[3, 1]])
    carrier.release()
