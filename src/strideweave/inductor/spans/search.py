"""The cheapest tiles that fit: the search of the seed, and one over exact windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import Any, Final

import numpy as np
import sympy

from strideweave.inductor.errors import Unsupported
from strideweave.inductor.spans.candidates import (
    candidate_host_dims,
    input_span_candidates,
    output_span_candidates,
    required_split_count,
)
from strideweave.inductor.spans.plans import SpanAnalysis, SpanOverflowCandidate, SpanOverflowTileLevel, describe
from strideweave.inductor.spans.splits import Choice, split_candidates
from strideweave.inductor.spans.symbols import Operand, as_op, output_of
from strideweave.inductor.spans.tile_windows import indirect_bounds
from strideweave.spyre import config
from strideweave.spyre.resize import resize_device_layout
from strideweave.spyre.tensor_layout import SpyreTensorLayout
from strideweave.spyre.windows import address_parts, part_span

_MAX_TILE_DIMS: Final = 3
_MAX_TILE_COMBOS: Final = 512


def combo_cost(counts: Sequence[int]) -> tuple[int, int, int, tuple[int, ...]]:
    """What a combination costs: tiles in all, dims that are tiled, the largest count; then the counts themselves.

    >>> sorted([(4, 1), (2, 2), (1, 2)], key=combo_cost)
    [(1, 2), (4, 1), (2, 2)]
    """
    return math.prod(counts), sum(c > 1 for c in counts), max(counts), tuple(counts)


def iter_split_combos(splits: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """All combinations, the cheapest first, up to the bound of the search."""
    return islice(iter(sorted(product(*splits), key=combo_cost)), _MAX_TILE_COMBOS)


# -- the seed's ------------------------------------------------------------------------------------------------------


def search_by_bounds(op: Any, candidates: list[SpanOverflowCandidate], analysis: SpanAnalysis) -> dict[int, int]:
    """The cheapest splits of the candidates' dims under which no span that the seed looks at is above the limit.

    Errors: Unsupported for more dims than the search takes, or when no combination fits.
    """
    dims = candidate_host_dims(candidates)
    require_few_dims(op, dims)
    choices = []
    for dim in dims:
        legal, rejected = split_candidates(op, dim, required_split_count(candidates, dim))
        for count, reason in rejected:
            analysis.reject(f"dim {dim} by {count}", reason)
        choices.append(legal)
    for counts in iter_split_combos(choices):
        splits = {dim: count for dim, count in zip(dims, counts, strict=True) if count > 1}
        if not splits:
            continue
        remaining = remaining_span_candidates_after_tile(op, splits)
        if not remaining:
            return splits
        worst = max(c.chunking_info.per_core_span for c in remaining)
        analysis.reject(_text(splits), f"{remaining[0].source} still spans {worst} bytes")
    raise no_split(op, dims, analysis)


def require_few_dims(op: Any, dims: Sequence[int]) -> None:
    """Refuse more overflowing dims than the search takes."""
    if len(dims) > _MAX_TILE_DIMS:
        raise Unsupported(
            f"cannot tile {as_op(op).name} automatically: its dims {sorted(dims)} all overflow. The bounded search "
            f"limit is {_MAX_TILE_DIMS} dims. Tile it with nested hints: spyre_hint(num_tiles_per_dim=...)."
        )


def no_split(op: Any, dims: Sequence[int], analysis: SpanAnalysis) -> Unsupported:
    """That nothing fits, with what was tried."""
    analysed, limit = as_op(op), config.max_span_bytes
    sticks = any("stick" in reason for _, reason in analysis.rejected)
    rule = " and preserves Spyre stick alignment" if sticks else ""
    tried = "; ".join(f"{split}: {reason}" for split, reason in analysis.rejected[:4])
    spans = ", ".join(f"{o.name} {o.untiled_nbytes} bytes" for o in analysis.operands)
    return Unsupported(
        f"cannot tile {analysed.name} ({'x'.join(map(str, analysed.iteration.ranges.values()))}) automatically: no "
        f"combined split among host dims {sorted(dims)} makes all spans fit within {limit / 2**20:.4g} MiB ({limit} "
        f"bytes){rule}, after trying at most {_MAX_TILE_COMBOS} combinations. Windows: {spans or 'unknown'}. Tried: "
        f"{tried or 'nothing divides it'}. Pad a dim to a size with more divisors, hint another dim, or use a "
        "narrower dtype."
    )


def remaining_span_candidates_after_tile(op: Any, splits: dict[int, int]) -> list[SpanOverflowCandidate]:
    """The spans that are still above the limit in a tile, its layouts and indices rebuilt."""
    remaining = output_span_candidates(op, post_tile_layout_for_splits(op, splits), splits)
    if as_op(op).is_reduction:
        remaining += input_span_candidates(op, splits)
    return remaining


def post_tile_layout_for_splits(op: Any, splits: dict[int, int]) -> SpyreTensorLayout:
    """The layout that the result of one tile has if it is stored by itself.

    Errors: Unsupported for a split that does not divide its dim, or a layout that cannot be resized.
    """
    written = output_of(op)
    old = [int(n) for n in written.layout.size]
    new = list(old)
    for dim, count in splits.items():
        if new[dim] % count:
            raise Unsupported(
                f"cannot tile {as_op(op).name} along dim {dim} by {count}: its size is {new[dim]}. Counts divide the "
                "size exactly. Choose a divisor."
            )
        new[dim] //= count
    try:
        return resize_device_layout(written.device_layout, old, new)
    except RuntimeError as error:
        raise Unsupported(f"cannot tile {as_op(op).name} by {splits}: {error}") from error


def _text(splits: dict[int, int]) -> str:
    return describe(tuple(SpanOverflowTileLevel(dim, count) for dim, count in sorted(splits.items())))


# -- over exact windows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dim:
    """A dim that may be divided: its symbol, its place among output or reduction dims, and the ways to cut it."""

    symbol: sympy.Symbol
    place: int
    is_reduction: bool
    is_candidate: bool
    choices: tuple[Choice, ...]
    """Without the choice to leave it whole."""

    def level(self, choice: Choice) -> SpanOverflowTileLevel:
        """The loop that cuts it so."""
        return SpanOverflowTileLevel(self.place, choice.count, self.is_reduction, choice.tile_extent)


class WindowTable:
    """What every operand spans, part by part, for every way to cut the dims that the part depends on."""

    def __init__(self, op: Any, operands: Sequence[Operand], dims: Sequence[Dim]) -> None:
        self._ranges = {**as_op(op).iteration.ranges, **indirect_bounds(op)}
        self._dims = dims
        self._parts = dict.fromkeys(
            (o.itemsize, address_parts(o.coordinates, o.device_layout.device_size)) for o in operands
        )
        self._known: dict[tuple[Any, ...], int | None] = {}

    def helps(self, dim: Dim) -> bool:
        """Whether cutting a dim changes what some operand spans."""
        return any(dim.symbol in part.free_symbols for _, parts in self._parts for part in parts)

    def fits(self, subset: Sequence[int], limit: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which combinations of choices for these dims bring every operand to the limit: one axis a dim."""
        shape = tuple(len(self._dims[k].choices) for k in subset)
        good = np.ones(shape, dtype=np.bool_)
        for itemsize, parts in self._parts:
            span = np.zeros(shape, dtype=np.int64)
            for part in parts:
                span = span + self._spans(part, subset)
            good &= (span + 1) * itemsize <= limit
        return good

    def _spans(self, part: sympy.Expr, subset: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        axes = [a for a, k in enumerate(subset) if self._dims[k].symbol in part.free_symbols]
        shape = [len(self._dims[k].choices) if a in axes else 1 for a, k in enumerate(subset)]
        values = []
        for chosen in product(*(self._dims[subset[a]].choices for a in axes)):
            cuts = {self._dims[subset[a]].symbol: choice for a, choice in zip(axes, chosen, strict=True)}
            values.append(self._span(part, cuts))
        return np.array(values, dtype=np.int64).reshape(shape)

    def _span(self, part: sympy.Expr, cuts: dict[sympy.Symbol, Choice]) -> int:
        key = (part, *cuts.items())
        if key not in self._known:
            ranges = dict(self._ranges)
            for symbol, choice in cuts.items():
                ranges[symbol] = choice.tile_extent or ranges[symbol] // choice.count
            self._known[key] = part_span(part, ranges, {s: c.count for s, c in cuts.items()})
        span = self._known[key]
        return _UNKNOWN if span is None else span


_UNKNOWN: Final = 2**60
"""A part whose span cannot be determined does not fit anywhere."""


Levels = tuple[SpanOverflowTileLevel, ...]


def search_by_windows(table: WindowTable, dims: Sequence[Dim], accept: Callable[[Levels], bool]) -> Levels | None:
    """The cheapest way to cut some of the dims with which all windows of the table fit; None where there is none.

    `accept` has the last word on each. Outermost is the first output dim; reduction dims are inside.
    """
    useful = [k for k, dim in enumerate(dims) if dim.choices and table.helps(dim)]
    best: tuple[Any, Levels] | None = None
    for size in range(1, _MAX_TILE_DIMS + 1):
        for subset in combinations(useful, size):
            if best is None or 2**size <= best[0][0]:
                best = _cheapest(table, dims, subset, accept, best)
    return None if best is None else best[1]


def _cheapest(
    table: WindowTable,
    dims: Sequence[Dim],
    subset: tuple[int, ...],
    accept: Callable[[Levels], bool],
    best: tuple[Any, Levels] | None,
) -> tuple[Any, Levels] | None:
    """The cheapest of one subset of dims, if it is cheaper than `best`."""
    good = np.argwhere(table.fits(subset, config.max_span_bytes))
    totals = np.ones(len(good), dtype=np.int64)
    for axis, k in enumerate(subset):
        totals *= np.array([choice.count for choice in dims[k].choices])[good[:, axis]]
    for total in np.unique(totals):
        if best is not None and total > best[0][0]:
            break
        found: list[tuple[Any, Levels]] = []
        for row in good[totals == total]:
            chosen = {k: dims[k].choices[int(i)] for k, i in zip(subset, row, strict=True)}
            loops = sorted((dims[k].level(choice) for k, choice in chosen.items()), key=_outermost_first)
            found.append((_cost(dims, chosen), tuple(loops)))
        for cost, levels in sorted(found, key=lambda pair: pair[0]):
            if best is not None and cost >= best[0]:
                break
            if accept(levels):
                return cost, levels
    return best


def _cost(dims: Sequence[Dim], chosen: Mapping[int, Choice]) -> tuple[Any, ...]:
    """Tiles, dims, the largest count; then rather dims that overflow by themselves; then the counts in their order."""
    total, tiled, largest, _ = combo_cost([choice.count for choice in chosen.values()])
    others = sum(not dims[k].is_candidate for k in chosen)
    counts = tuple(chosen[k].count if k in chosen else 1 for k in range(len(dims)))
    return total, tiled, largest, others, counts


def _outermost_first(level: SpanOverflowTileLevel) -> tuple[bool, int]:
    return level.is_reduction, level.selected_host_dim
