"""The exact windows of an operation's operands in a tile: what decides whether a tile is small enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.virtualized import V

from strideweave.inductor.coordinates import device_coordinates
from strideweave.inductor.loop_plans import CoarseTileInfo, tile_size
from strideweave.inductor.ops import Op, op_of, owner_of
from strideweave.inductor.recording import NARROW
from strideweave.inductor.spans.symbols import Operand, as_op, operands_of
from strideweave.spyre import config
from strideweave.spyre.tensor_layout import SpyreTensorLayout
from strideweave.spyre.windows import address_parts, part_span


def indirect_bounds(op: Any) -> dict[sympy.Symbol, int]:
    """The extents of symbols that stand for computed indices: all of them may be touched."""
    return {s: int(extent) for s, (_, extent) in as_op(op).recording.indirect.items()}


def untiled_window(op: Any, operand: Operand) -> int:
    """The bytes of the window of an operand over the whole iteration; all of its memory where that is not known."""
    known: dict[Any, int] = as_op(op).__dict__.setdefault("_untiled_windows", {})
    key = (operand.coordinates, operand.device_layout.device_size, operand.itemsize)
    if key not in known:
        known[key] = window_over(op, operand, as_op(op).iteration.ranges, {})
    return known[key]


def window_over(
    op: Any, operand: Operand, ranges: Mapping[sympy.Symbol, int], tiles: Mapping[sympy.Symbol, int]
) -> int:
    """The bytes of the largest window into a whole operand over tiles of these ranges."""
    total = 1
    whole = math.prod(operand.device_layout.device_size)
    bounds = {**ranges, **indirect_bounds(op)}
    for part in address_parts(operand.coordinates, operand.device_layout.device_size):
        span = part_span(part, bounds, tiles)
        if span is None:
            return whole * operand.itemsize
        total += span
    return min(total, whole) * operand.itemsize  # a masked load touches nothing outside


def windows_in_loops(op: Op, infos: Mapping[str, CoarseTileInfo]) -> list[tuple[str, bool, int]]:
    """The window of every operand in the loops of `infos`: name, whether it is read, bytes.

    What is kept whole has its full strides; what belongs to some iteration has those of its tile. The parts, totals
    and tiles that the loops themselves need count too.
    """
    info = infos[op.name]
    ranges = {s: int(info.tile_of(s, n)) for s, n in op.iteration.ranges.items()}
    found = [(o.name, o.is_input, _window_of(op, o, infos, ranges)) for o in operands_of(op)]
    written = operands_of(op)[-1]
    storage = info.storage
    assert storage is not None
    level = info.first_reduction_level
    if level is not None:
        for name, below in ((f"{op.name}_part", None), (f"{op.name}_total", level)):
            found.append((name, False, _scratch_nbytes(op, info, written, below)))
    elif storage.copies:
        found.append((f"{op.name}_tile", False, _scratch_nbytes(op, info, written, None)))
    return found


def _window_of(
    op: Op, operand: Operand, infos: Mapping[str, CoarseTileInfo], ranges: Mapping[sympy.Symbol, int]
) -> int:
    info = infos[op.name]
    maker = infos.get(owner_of(operand.name))
    tiles = {s: info.count_of(s) for s in ranges}
    if maker is None or maker.storage is None or not maker.storage.fixed:
        return window_over(op, operand, ranges, tiles)
    fixed = maker.storage.fixed

    made_by = op_of(V.graph.get_buffer(owner_of(operand.name)))  # type: ignore[arg-type]
    whole = operand.layout.whole
    layout = whole.tile(tile_size(made_by, maker, whole, below=fixed), per_tile_fixed=True).device_layout
    outside = {s: int(info.tile_of(s, n, below=fixed)) for s, n in op.iteration.ranges.items()}
    coordinates = device_coordinates(tuple(c for c in operand.touch.host_coordinates), layout, {**op.bounds, **outside})
    inside = {s: tiles[s] // max(1, info.count_of(s, below=fixed)) for s in ranges}
    total = 1
    for part in address_parts(coordinates, layout.device_size):
        span = part_span(part, {**ranges, **indirect_bounds(op)}, inside)
        if span is None:
            return layout.nbytes
        total += span
    return total * layout.device_dtype.itemsize


def _scratch_nbytes(op: Op, info: CoarseTileInfo, written: Operand, below: int | None) -> int:
    """All of the scratch that one iteration needs for results; widened where parts are added up."""
    whole = written.layout.whole
    size = tile_size(op, info, whole, below=below)
    return scratch_nbytes(written, size, widened=info.first_reduction_level is not None)


def scratch_nbytes(written: Operand, size: Sequence[int], *, widened: bool) -> int:
    """The bytes of a tile of this host size of what is written; of narrow floats in Float32 where it is widened."""
    layout = written.layout.whole.tile(size, per_tile_fixed=True)
    if widened and layout.dtype in NARROW:
        order = sorted(range(len(size)), key=lambda k: -int(layout.stride[k]))
        return SpyreTensorLayout(size, [int(d) for d in layout.stride], torch.float32, order).nbytes
    return layout.device_layout.nbytes


def over_limit(windows: list[tuple[str, bool, int]]) -> list[tuple[str, bool, int]]:
    """Those above the limit."""
    return [window for window in windows if window[2] > config.max_span_bytes]
