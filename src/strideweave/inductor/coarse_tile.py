"""Coarse tiling: hinted operations run tile after tile in counted loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor import ir
from torch._inductor.virtualized import V

from strideweave.inductor.hints import Group
from strideweave.inductor.loop_plans import CoarseTileInfo, plan_loops, tile_size
from strideweave.inductor.ops import Op
from strideweave.inductor.spans.groups import span_overflow_groups


def coarse_tile(graph: Any, groups: Sequence[Group]) -> None:
    """Stamp every group: loops for its operations, their ranges divided, scratch where nothing else reads a result.

    Errors: Unsupported for a count that does not divide its range, operations that are not consecutive, a level that
    tiles an output and a reduction dim at once, or a reduction that cannot be done in parts. Nothing is changed then.
    """
    for op, info in plan_loops(graph, groups):
        _stamp(op, info)


def _stamp(op: Op, info: CoarseTileInfo) -> None:
    """Divide the ranges of the operation, and shrink its layout where its result belongs to one iteration."""
    buffer = op.buffer
    buffer.loop_info = info  # type: ignore[attr-defined]
    data = buffer.data
    object.__setattr__(data, "ranges", _divided(op.iteration.output, data.ranges, info))
    if isinstance(data, ir.Reduction):
        object.__setattr__(data, "reduction_ranges", _divided(op.iteration.reduction, data.reduction_ranges, info))
    assert info.storage is not None
    if info.storage.fixed:
        whole = buffer.layout.whole  # type: ignore[attr-defined]
        size = tile_size(op, info, whole, below=info.storage.fixed)
        buffer.layout = whole.tile(size, per_tile_fixed=info.storage.fixed == info.depth)
        V.graph.removed_buffers.add(op.name)
    for name in ("get_default_sizes_body", "get_read_writes"):
        clear = getattr(getattr(buffer, name), "clear_cache", None)
        if clear is not None:
            clear(buffer)


def _divided(symbols: Sequence[sympy.Expr], extents: Sequence[Any], info: CoarseTileInfo) -> list[Any]:
    return [info.tile_of(symbol, extent) for symbol, extent in zip(symbols, extents, strict=True)]


__all__ = ["CoarseTileInfo", "coarse_tile", "span_overflow_groups"]
