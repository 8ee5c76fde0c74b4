"""Into how many tiles a dim may be cut: exactly, and in whole sticks of everything that it runs through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sympy

from strideweave.inductor.errors import Unsupported
from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.spans.symbols import Operand, as_op, operands_of, range_of_dim, symbol_of_dim
from strideweave.inductor.work_division import divisors
from strideweave.spyre import config
from strideweave.spyre.expressions import evaluate

_MAX_SPLITS_PER_DIM: Final = 16
_MAX_AUTO_TILE_SPLIT_COUNT: Final = 64
"""Automatic splits go so far where `config.span_split_cap` is on."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to cut a dim: how many tiles, and their range where the last one is shorter."""

    count: int
    tile_extent: int | None = None


_LARGEST_STICK: Final = 128


def within_stick_host_dim(layout: FixedTiledLayout) -> int | None:
    """The host dim that runs along the sticks; None where that cannot be known."""
    dims = layout.device_layout.dim_map
    if dims is not None:
        return dims[-1] if dims[-1] >= 0 else None
    last = layout.device_layout.stride_map[-1]
    strides = [int(stride) for stride in layout.stride]
    return strides.index(last) if last in strides else None


def post_tile_stick_alignment_error(layout: FixedTiledLayout, host_dim: int, split: int) -> str | None:
    """Why cutting a host dim of a tensor would cut sticks, or may; None where it does not."""
    if split == 1:
        return None
    dims = layout.device_layout.dim_map
    if dims is not None and dims[-1] < 0:
        return None  # no dim runs along the sticks: there is one element in each
    stick = within_stick_host_dim(layout)
    if stick is None:
        return f"the dim that runs along the sticks of {layout.device_layout!r} is not known"
    if stick != host_dim:
        return None
    eps = layout.device_layout.elems_per_stick
    extent = int(layout.size[host_dim])
    if extent % split or extent // split % eps:
        return f"host dim {host_dim} of {extent} in {split} tiles cuts sticks of {eps} elements"
    return None


def input_stick_alignment_error(op: Any, host_dim: int, split: int, *, is_reduction: bool = False) -> str | None:
    """Why cutting a dim of the operation would cut sticks of something that it touches; None where it does not.

    Every dim of every operand counts in whose coordinate the dim's symbol stands, alone or with others.
    """
    symbol = symbol_of_dim(op, host_dim, is_reduction=is_reduction)
    if symbol is None or split == 1:
        return None
    extent = as_op(op).iteration.ranges[symbol]
    if extent % split:
        return f"{split} does not divide {extent}"
    return cut_sticks(op, symbol, extent // split)


def cut_sticks(op: Any, symbol: sympy.Symbol, tile: int) -> str | None:
    """Why tiles of this range along a symbol would cut the sticks of some operand; None where they do not."""
    for operand in operands_of(op):
        error = _cut_of(operand, symbol, tile)
        if error is not None:
            return error
    return None


def _cut_of(operand: Operand, symbol: sympy.Symbol, tile: int) -> str | None:
    layout = operand.layout
    eps = layout.device_layout.elems_per_stick
    dims = layout.device_layout.dim_map
    stick = within_stick_host_dim(layout)
    if stick is None:
        if dims is not None:
            return None
        return f"the stick dim of {operand.name} is not known"
    coordinates = operand.touch.host_coordinates
    if stick >= len(coordinates) or symbol not in coordinates[stick].free_symbols:
        return None
    others = dict.fromkeys(coordinates[stick].free_symbols, 0)
    step = evaluate(coordinates[stick], {**others, symbol: tile}) - evaluate(coordinates[stick], others)
    if int(step) % eps:
        return f"tiles of {tile} along {symbol} cut sticks of {eps} elements of {operand.name}, host dim {stick}"
    return None


def split_candidates(
    op: Any, host_dim: int, required: int = 1, *, is_reduction: bool = False
) -> tuple[list[int], list[tuple[int, str]]]:
    """The legal counts of a dim, ascending, with 1 first; and those that are not, each with why.

    Errors: Unsupported for a dim that the operation does not have, or one of range 1.
    """
    extent = range_of_dim(op, host_dim, is_reduction=is_reduction)
    analysed = as_op(op)
    if not isinstance(extent, int) or extent <= 1:
        raise Unsupported(
            f"cannot tile {analysed.name} along {'reduction ' if is_reduction else ''}dim {host_dim}: its range is "
            f"{extent}. A tiled range is a whole number above 1. Tile another dim with a hint."
        )
    legal: list[int] = [1]
    rejected: list[tuple[int, str]] = []
    for count in divisors(extent)[1:]:
        reason = _illegal(op, host_dim, extent, count, is_reduction=is_reduction)
        if reason is None:
            legal.append(count)
        else:
            rejected.append((count, reason))
    return _capped(legal, required), rejected


def _illegal(op: Any, host_dim: int, extent: int, count: int, *, is_reduction: bool) -> str | None:
    if config.span_split_cap and count > _MAX_AUTO_TILE_SPLIT_COUNT:
        return f"more than {_MAX_AUTO_TILE_SPLIT_COUNT} tiles"
    analysed = as_op(op)
    if config.span_rule == "seed" and analysed.is_reduction and count == extent:
        return "tiles of a reduction's dim hold more than one element"
    if not is_reduction:
        layout = operands_of(op)[-1].layout
        if len(layout.size) == len(analysed.iteration.output):
            error = post_tile_stick_alignment_error(layout, host_dim, count)
            if error is not None:
                return error
    return input_stick_alignment_error(op, host_dim, count, is_reduction=is_reduction)


def _capped(legal: Sequence[int], required: int) -> list[int]:
    """At most so many counts: the smallest, those around what is required, and the largest."""
    if len(legal) <= _MAX_SPLITS_PER_DIM:
        return list(legal)
    kept = dict.fromkeys(legal[:5])
    around = next((k for k, count in enumerate(legal) if count >= required), len(legal) - 1)
    for k in range(max(0, around - 2), min(len(legal), around + 4)):
        kept[legal[k]] = None
    for count in reversed(legal):
        if len(kept) >= _MAX_SPLITS_PER_DIM:
            break
        kept[count] = None
    return sorted(kept)


def uneven_choices(op: Any, symbol: sympy.Symbol, required: int) -> list[Choice]:
    """Ways to cut a range so that the last tile is shorter: few tiles, or about `required`; in whole sticks."""
    extent = as_op(op).iteration.ranges[symbol]
    unit = 1
    while unit <= _LARGEST_STICK and cut_sticks(op, symbol, unit) is not None:
        unit *= 2
    if unit > _LARGEST_STICK:
        return []
    found: dict[int, Choice] = {}
    for count in (*range(2, _MAX_SPLITS_PER_DIM), *range(max(2, required), max(2, required) + _MAX_SPLITS_PER_DIM)):
        tile = -(-math.ceil(extent / count) // unit) * unit
        tiles = -(-extent // tile)
        if extent % tile and tiles > 1:
            found.setdefault(tiles, Choice(tiles, tile))
    return [found[tiles] for tiles in sorted(found)]
