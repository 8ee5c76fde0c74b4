"""Tiles that count on the cores: what work division can do with them is tried, not guessed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import Any, Final

import sympy

from strideweave.inductor.errors import Unsupported
from strideweave.inductor.spans.plans import SpanOverflowTileLevel
from strideweave.inductor.spans.search import Dim, combo_cost
from strideweave.inductor.spans.symbols import as_op, operands_of
from strideweave.inductor.work_division import per_core_span, span_reduction
from strideweave.spyre import config
from strideweave.spyre.specs import NO_ARGUMENT, OpSpec, TensorArg

_MOST_COMBOS: Final = 512


def fits_by_cores(op: Any, levels: Sequence[SpanOverflowTileLevel], cores: int) -> bool:
    """Whether work division brings every window of a tile, and of a shorter last one, to the limit."""
    return all(_fits(spec, cores) for spec in _specs_of(op, levels))


def _fits(spec: OpSpec, cores: int) -> bool:
    try:
        splits = span_reduction(spec, cores, is_trial=True)
    except Unsupported:
        return False
    return all(per_core_span(spec, arg, splits) <= config.max_span_bytes for arg in spec.args)


def search_with_cores(op: Any, dims: Sequence[Dim], cores: int) -> tuple[SpanOverflowTileLevel, ...] | None:
    """The cheapest tiles that the cores then divide so that every window fits; None where there are none."""
    options = [[None, *dim.choices] for dim in dims]
    combos = sorted(
        product(*options), key=lambda combo: combo_cost([1 if choice is None else choice.count for choice in combo])
    )
    for combo in islice(combos, _MOST_COMBOS):
        levels = [dim.level(choice) for dim, choice in zip(dims, combo, strict=True) if choice is not None]
        if levels and fits_by_cores(op, levels, cores):
            return tuple(sorted(levels, key=lambda level: (level.is_reduction, level.selected_host_dim)))
    return None


def _specs_of(op: Any, levels: Sequence[SpanOverflowTileLevel]) -> list[OpSpec]:
    """The tiles of the operation, as far as they differ in size, as work division sees them."""
    analysed = as_op(op)
    iteration = analysed.iteration
    sizes: list[dict[Any, int]] = [dict(iteration.ranges)]
    for level in levels:
        symbol = (iteration.reduction if level.is_reduction else iteration.output)[level.selected_host_dim]
        extent, tile = iteration.ranges[symbol], level.tile_extent
        full = [{**ranges, symbol: tile or extent // level.split_count} for ranges in sizes]
        rest = [] if tile is None else [{**ranges, symbol: extent - (level.split_count - 1) * tile} for ranges in sizes]
        sizes = full + rest
    args = tuple(
        TensorArg(
            is_input=o.is_input,
            arg_index=NO_ARGUMENT,
            device_dtype=o.device_layout.device_dtype,
            device_size=o.device_layout.device_size,
            device_coordinates=o.coordinates,
            allocation={"hbm": 0},
            dtype=str(o.layout.dtype).removeprefix("torch."),
            name=o.name,
        )
        for o in operands_of(op)
    )
    details = {"reduction_symbols": iteration.reduction_symbols, "indirect": dict(analysed.recording.indirect)}
    name = analysed.reduction_type or "pointwise"
    spaces = [{symbol: (sympy.Integer(extent), 1) for symbol, extent in ranges.items()} for ranges in sizes]
    return [OpSpec(name, analysed.is_reduction, space, args, details, ()) for space in spaces]
