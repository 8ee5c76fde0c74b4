"""Span-overflow hint analysis: which loops an operation needs so that one core's windows fit.

`plan_span_overflow_tile` answers for one operation and changes nothing. The parts are in `spans`; names with an
underscore are those by which seed 002 speaks of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import sympy

from strideweave.inductor.loop_plans import IDENTITIES
from strideweave.inductor.spans.candidates import candidate_host_dims as _candidate_host_dims
from strideweave.inductor.spans.candidates import input_span_candidates as _input_span_candidates
from strideweave.inductor.spans.candidates import input_span_infos as _input_span_infos_controlled_by_output_dims
from strideweave.inductor.spans.candidates import output_span_candidates as _output_span_candidates_from_op
from strideweave.inductor.spans.candidates import required_split_count as _candidate_required_split_count
from strideweave.inductor.spans.cores import fits_by_cores, search_with_cores
from strideweave.inductor.spans.plans import (
    ChunkingInfo,
    InputSpanInfo,
    OperandSpan,
    SpanAnalysis,
    SpanOverflowCandidate,
    SpanOverflowTileLevel,
    SpanOverflowTilePlan,
)
from strideweave.inductor.spans.search import Dim, WindowTable, no_split, require_few_dims, search_by_windows
from strideweave.inductor.spans.search import iter_split_combos as _iter_split_combos
from strideweave.inductor.spans.search import post_tile_layout_for_splits as _post_tile_layout_for_splits
from strideweave.inductor.spans.search import (
    remaining_span_candidates_after_tile as _remaining_span_candidates_after_tile,
)
from strideweave.inductor.spans.search import search_by_bounds as _search_min_cost_tile_plan
from strideweave.inductor.spans.splits import _MAX_AUTO_TILE_SPLIT_COUNT, Choice, cut_sticks, uneven_choices
from strideweave.inductor.spans.splits import input_stick_alignment_error as _input_stick_alignment_error
from strideweave.inductor.spans.splits import post_tile_stick_alignment_error as _post_tile_stick_alignment_error
from strideweave.inductor.spans.splits import split_candidates as _split_candidates_for_host_dim
from strideweave.inductor.spans.splits import within_stick_host_dim as _within_stick_host_dim
from strideweave.inductor.spans.symbols import BATCH_MATMUL_OP, Operand, as_op, ineligible, operands_of
from strideweave.inductor.spans.symbols import bmm_output_symbol_to_dim as _bmm_output_symbol_to_dim
from strideweave.inductor.spans.symbols import has_indirect_reads as _has_indirect_reads
from strideweave.inductor.spans.symbols import is_batch_matmul_reduction as _is_batch_matmul_reduction
from strideweave.inductor.spans.symbols import output_symbol_to_dim as _output_symbol_to_dim
from strideweave.inductor.spans.tile_windows import scratch_nbytes, untiled_window, window_over
from strideweave.spyre import config
from strideweave.spyre.windows import coordinate_span_elems

SEED_RULES: Final[dict[str, Any]] = {
    "span_rule": "seed",
    "span_split_cap": True,
    "span_reduction_tiling": False,
    "span_fusion": False,
    "span_uneven_tiles": False,
    "span_count_cores": False,
    "span_gathers": False,
}
"""The switches under which automatic tiling does what seed 002 states, and no more: `config.patch(SEED_RULES)`."""


def plan_span_overflow_tile(op: Any, max_cores: int | None = None) -> SpanOverflowTilePlan | None:
    """The tiles that an operation needs so that each of its windows fits; None when it needs none, or is not planned.

    `op` is a ComputedBuffer of a lowered graph, before it is tiled. `max_cores` counts only where
    `config.span_count_cores` is on: tiles are safe by themselves otherwise.

    Errors: Unsupported when a span is above the limit and no tiles that can be made bring it down.
    Source: seed 002, "Entry Point".
    """
    return analyse(op, max_cores).plan


def analyse(op: Any, max_cores: int | None = None) -> SpanAnalysis:
    """The same with all that was looked at. Errors: Unsupported, as `plan_span_overflow_tile` says."""
    cores = config.sencores if max_cores is None else max_cores
    why = ineligible(op, may_write_into_others=config.span_rule != "seed")
    if why is not None:
        return SpanAnalysis(op.get_name(), note=why)
    analysis = SpanAnalysis(op.get_name())
    analysed = as_op(op)
    if _has_indirect_reads(op) and not config.span_gathers:
        analysis.note = "it reads at computed indices"
        return analysis
    is_seed = config.span_rule == "seed"
    if is_seed and analysed.is_reduction and not analysed.iteration.output:
        analysis.note = "it is a reduction to one element"
        return analysis
    candidates = _output_span_candidates_from_op(op)
    if analysed.is_reduction or not is_seed:
        candidates += _input_span_candidates(op)
    analysis.candidates = tuple(candidates)
    analysis.operands = tuple(OperandSpan(o.name, o.is_input, untiled_window(op, o), None) for o in operands_of(op))
    if is_seed:
        if not candidates:
            analysis.note = "no span that output dims control is above the limit"
            return analysis
        splits = _search_min_cost_tile_plan(op, candidates, analysis)
        levels = tuple(SpanOverflowTileLevel(dim, count) for dim, count in sorted(splits.items()))
    else:
        found = _by_windows(op, candidates, cores, analysis)
        if found is None:
            return analysis
        levels = found
    reasons = sorted({c.chunking_info.reason for c in candidates}) or ["window above the limit"]
    infos = tuple(c.chunking_info for c in candidates)
    analysis.plan = SpanOverflowTilePlan(levels, infos, "; ".join(reasons))
    analysis.operands = tuple(
        OperandSpan(o.name, o.is_input, untiled_window(op, o), _tiled_window(op, o, levels)) for o in operands_of(op)
    )
    return analysis


def _by_windows(
    op: Any, candidates: list[SpanOverflowCandidate], cores: int, analysis: SpanAnalysis
) -> tuple[SpanOverflowTileLevel, ...] | None:
    """Levels under which every exact window fits; the plainest kind of tiles that can do it."""
    over = [o for o in operands_of(op) if untiled_window(op, o) > config.max_span_bytes]
    if not over:
        analysis.note = "every window fits"
        return None
    if config.span_count_cores and fits_by_cores(op, (), cores):
        analysis.note = "the cores divide it"
        return None
    dims = _candidate_host_dims(candidates)
    require_few_dims(op, dims)
    exact, reductions = _dims(op, candidates, dims, analysis)
    few = [_at_most(dim, _MAX_AUTO_TILE_SPLIT_COUNT) for dim in exact]
    kinds: list[tuple[str, list[Dim]]] = [("", few)]
    if reductions:
        parts = [_at_most(dim, _MAX_AUTO_TILE_SPLIT_COUNT) for dim in reductions]
        kinds.append(("parts of the reduction", few + parts))
    if config.span_uneven_tiles:
        exact = [_with_uneven(op, dim, over) for dim in exact]
        reductions = [_with_uneven(op, dim, over) for dim in reductions]
    if not config.span_split_cap:
        kinds.append(("many tiles, or the last one shorter", exact))
        if reductions:
            kinds.append(("many parts, or the last one shorter", exact + reductions))
    for note, allowed in kinds:
        if config.span_count_cores:
            levels = search_with_cores(op, allowed, cores)
        else:
            levels = search_by_windows(WindowTable(op, over, allowed), allowed, lambda found: _totals_fit(op, found))
        if levels is not None:
            analysis.note = note
            return levels
    if fits_by_cores(op, (), cores):
        analysis.note = f"no tiles fit, and {cores} cores divide it"
        return None
    if not candidates:
        analysis.note = "no output dim controls what overflows"
        return None
    for dim in exact:
        for choice in dim.choices[-3:]:
            analysis.reject(
                f"dim {dim.place} by {choice.count}",
                f"the widest window is still {max(_tiled_window(op, o, (dim.level(choice),)) for o in over)} bytes",
            )
    raise no_split(op, [d.place for d in exact], analysis)


def _dims(
    op: Any, candidates: list[SpanOverflowCandidate], first: Sequence[int], analysis: SpanAnalysis
) -> tuple[list[Dim], list[Dim]]:
    """The output dims with their exact counts, candidates first; and the reduction dims, where parts are allowed."""
    analysed = as_op(op)
    ranges = analysed.iteration.ranges
    others = [k for k, s in enumerate(analysed.iteration.output) if s in ranges and k not in first]
    exact = []
    for k in (*first, *others):
        symbol = analysed.iteration.output[k]
        legal, rejected = _split_candidates_for_host_dim(op, k, _candidate_required_split_count(candidates, k))
        for count, reason in rejected:
            if k in first:
                analysis.reject(f"dim {k} by {count}", reason)
        exact.append(Dim(symbol, k, False, k in first, tuple(Choice(c) for c in legal if c > 1)))
    reductions = []
    if config.span_reduction_tiling and analysed.is_reduction and analysed.reduction_type in IDENTITIES:
        for k, symbol in enumerate(analysed.iteration.reduction):
            if symbol in ranges:
                legal, _ = _split_candidates_for_host_dim(op, k, 1, is_reduction=True)
                choices = tuple(Choice(c) for c in legal if c > 1)
                reductions.append(Dim(symbol, k, True, False, choices))
    return exact, reductions


def _totals_fit(op: Any, levels: Sequence[SpanOverflowTileLevel]) -> bool:
    """Whether what parts of a reduction are added up in fits, too."""
    if not any(level.is_reduction for level in levels):
        return True
    written = operands_of(op)[-1]
    ranges, _ = tile_ranges(op, levels)
    size = [ranges.get(c, n) for c, n in zip(written.touch.host_coordinates, written.layout.size, strict=True)]
    return scratch_nbytes(written, [int(n) for n in size], widened=True) <= config.max_span_bytes


def _at_most(dim: Dim, count: int) -> Dim:
    """The same dim with so many tiles at most."""
    return replace(dim, choices=tuple(choice for choice in dim.choices if choice.count <= count))


def _with_uneven(op: Any, dim: Dim, over: Sequence[Operand]) -> Dim:
    """The same dim with ways to cut it that leave a shorter last tile."""
    required = max(-(-untiled_window(op, o) // config.max_span_bytes) for o in over)
    return replace(dim, choices=(*dim.choices, *uneven_choices(op, dim.symbol, required)))


def _tiled_window(op: Any, operand: Operand, levels: Sequence[SpanOverflowTileLevel]) -> int:
    """The bytes of the largest window into a whole operand in tiles of these levels."""
    ranges, tiles = tile_ranges(op, levels)
    return window_over(op, operand, ranges, tiles)


def tile_ranges(
    op: Any, levels: Sequence[SpanOverflowTileLevel]
) -> tuple[dict[sympy.Symbol, int], dict[sympy.Symbol, int]]:
    """The range of every symbol in a tile, and how many tiles there are along it."""
    iteration = as_op(op).iteration
    ranges: dict[sympy.Symbol, int] = dict(iteration.ranges)
    tiles: dict[sympy.Symbol, int] = {}
    for level in levels:
        symbol = (iteration.reduction if level.is_reduction else iteration.output)[level.selected_host_dim]
        if symbol in ranges:
            ranges[symbol] = level.tile_extent or ranges[symbol] // level.split_count
            tiles[symbol] = level.split_count
    return ranges, tiles


def can_conform_pointwise_tile(op: Any, splits: Mapping[int, int], max_cores: int | None = None) -> bool:
    """Whether an operation can be run in somebody else's tiles: splits by output dim.

    It is Pointwise and static, reads nothing at computed indices, has no hints; every split divides its dim, cuts no
    stick, and leaves every span within the limit. How it reads the other's result is for the adapter to check.

    Source: seed 002, "Adapter and Coarse Tiling", 5.
    """
    from strideweave.inductor.hints import dim_hints_of

    if ineligible(op) is not None or as_op(op).is_reduction or dim_hints_of(op) or _has_indirect_reads(op):
        return False
    analysed = as_op(op)
    for dim, count in splits.items():
        symbols = analysed.iteration.output
        if not 0 <= dim < len(symbols) or symbols[dim] not in analysed.iteration.ranges:
            return False
        if analysed.iteration.ranges[symbols[dim]] % count:
            return False
        if _input_stick_alignment_error(op, dim, count) is not None:
            return False
    if config.span_rule == "seed":
        return not _remaining_span_candidates_after_tile(op, dict(splits))
    levels = [SpanOverflowTileLevel(dim, count) for dim, count in sorted(splits.items())]
    return all(_tiled_window(op, o, levels) <= config.max_span_bytes for o in operands_of(op))


def _coordinate_span_elems(
    coord: sympy.Expr, dep: Any, split_by_symbol: Mapping[sympy.Symbol, int] | None = None
) -> int | None:
    """The seed's bound on the values of one device coordinate; `dep` is a MemoryDep or anything with `ranges`."""
    ranges = getattr(dep, "ranges", dep)
    return coordinate_span_elems(coord, ranges, split_by_symbol or {})


__all__ = [
    "BATCH_MATMUL_OP",
    "SEED_RULES",
    "ChunkingInfo",
    "InputSpanInfo",
    "SpanAnalysis",
    "SpanOverflowCandidate",
    "SpanOverflowTileLevel",
    "SpanOverflowTilePlan",
    "_bmm_output_symbol_to_dim",
    "_coordinate_span_elems",
    "_input_span_infos_controlled_by_output_dims",
    "_is_batch_matmul_reduction",
    "_iter_split_combos",
    "_output_symbol_to_dim",
    "_post_tile_layout_for_splits",
    "_post_tile_stick_alignment_error",
    "_within_stick_host_dim",
    "analyse",
    "can_conform_pointwise_tile",
    "cut_sticks",
    "plan_span_overflow_tile",
    "tile_ranges",
]
