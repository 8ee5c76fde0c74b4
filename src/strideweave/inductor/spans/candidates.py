"""Which device coordinates overflow, by the bound of the seed: what starts the search, and what the search reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import sympy

from strideweave.inductor.coordinates import device_coordinates
from strideweave.inductor.spans.plans import ChunkingInfo, InputSpanInfo, SpanOverflowCandidate
from strideweave.inductor.spans.symbols import Operand, as_op, inputs_of, output_of, output_symbol_to_dim, symbol_to_dim
from strideweave.spyre import config
from strideweave.spyre.tensor_layout import SpyreTensorLayout
from strideweave.spyre.windows import coordinate_span_elems

_name = attrgetter("name")
Splits = Mapping[int, int]
"""How many tiles, by output dim."""


def output_span_candidates(
    op: Any, tile_layout: SpyreTensorLayout | None = None, splits: Splits | None = None
) -> list[SpanOverflowCandidate]:
    """The overflowing coordinates of what is written, one candidate for every symbol in each.

    With `tile_layout`, those of a tile in its own layout: its index is rebuilt with it, over the ranges of the tile.
    A range that its split does not divide has no answer, and overflows.
    """
    analysed, written = as_op(op), output_of(op)
    mapping = output_symbol_to_dim(op)
    ranges = analysed.iteration.ranges
    layout, coordinates = written.device_layout, written.coordinates
    if tile_layout is not None:
        layout = tile_layout
        ranges = {s: n // (splits or {}).get(mapping.get(s, -1), 1) for s, n in ranges.items()}
        bounds = {**analysed.bounds, **ranges}
        coordinates = device_coordinates(written.touch.host_coordinates, layout, bounds)
    found: list[SpanOverflowCandidate] = []
    for k, coordinate in enumerate(coordinates[:-1]):
        symbols = _symbols(coordinate)
        if not symbols or any(s not in mapping for s in symbols):
            continue
        elems = coordinate_span_elems(coordinate, ranges, {})
        if elems is None:
            continue
        inside = math.prod(layout.device_size[k + 1 :])
        span = elems * inside * written.itemsize
        if span > config.max_span_bytes:
            found += [
                SpanOverflowCandidate(
                    _info(layout, written.itemsize, span, elems, inside, mapping[s], "output span overflow"), "output"
                )
                for s in symbols
            ]
    return found


def input_span_infos(op: Any, splits: Splits | None = None) -> list[InputSpanInfo]:
    """The overflowing coordinates of what is read that output dims alone control, one for every symbol in each.

    A coordinate that something combined away takes part in is left out, and the scan goes on inside it.
    """
    mapping = symbol_to_dim(op)
    by_symbol = {s: (splits or {}).get(dim, 1) for s, dim in mapping.items()}
    return [info for operand in inputs_of(op) for info in _infos_of(op, operand, mapping, by_symbol)]


def _infos_of(
    op: Any, operand: Operand, mapping: Mapping[sympy.Symbol, int], splits: Mapping[sympy.Symbol, int]
) -> list[InputSpanInfo]:
    layout, ranges = operand.device_layout, as_op(op).iteration.ranges
    found = []
    for k, coordinate in enumerate(operand.coordinates[:-1]):
        symbols = _symbols(coordinate)
        if not symbols or any(s not in mapping for s in symbols):
            continue
        elems = coordinate_span_elems(coordinate, ranges, splits)
        inside = _inside(operand, k, ranges, splits)
        if elems is None or inside is None:
            continue
        span = elems * inside * operand.itemsize
        if span > config.max_span_bytes:
            reason = f"input span overflow for {operand.name}"
            found += [
                InputSpanInfo(_info(layout, operand.itemsize, span, elems, inside, mapping[s], reason), operand.name, s)
                for s in symbols
            ]
    return found


def _inside(
    operand: Operand, place: int, ranges: Mapping[sympy.Symbol, int], splits: Mapping[sympy.Symbol, int]
) -> int | None:
    """The elements inside one step of a coordinate, as far as a tile reaches into them."""
    inside = 1
    for coordinate, extent in zip(
        operand.coordinates[place + 1 :], operand.device_layout.device_size[place + 1 :], strict=True
    ):
        reached: int | None = extent
        if coordinate.free_symbols:
            reached = coordinate_span_elems(coordinate, ranges, splits)
        if reached is None:
            return None
        inside *= min(reached, extent)
    return inside


def input_span_candidates(op: Any, splits: Splits | None = None) -> list[SpanOverflowCandidate]:
    """The same as candidates."""
    return [SpanOverflowCandidate(i.chunking_info, f"input:{i.dep_name}") for i in input_span_infos(op, splits)]


def candidate_host_dims(candidates: list[SpanOverflowCandidate]) -> list[int]:
    """The dims to divide, the widest span first."""
    widest: dict[int, int] = {}
    for candidate in candidates:
        info = candidate.chunking_info
        widest[info.selected_host_dim] = max(widest.get(info.selected_host_dim, 0), info.per_core_span)
    return sorted(widest, key=lambda dim: -widest[dim])


def required_split_count(candidates: list[SpanOverflowCandidate], host_dim: int) -> int:
    """Into how many tiles a dim would have to be cut if it alone had to bring every span of its own to the limit."""
    spans = [c.chunking_info.per_core_span for c in candidates if c.chunking_info.selected_host_dim == host_dim]
    return max([1, *(-(-span // config.max_span_bytes) for span in spans)])


def _symbols(coordinate: sympy.Expr) -> list[sympy.Symbol]:
    return sorted(coordinate.free_symbols, key=_name)


def _info(
    layout: SpyreTensorLayout, itemsize: int, span: int, elems: int, inside: int, host_dim: int, reason: str
) -> ChunkingInfo:
    return ChunkingInfo(
        total_bytes=math.prod(layout.device_size) * itemsize,
        per_core_span=span,
        core_split_estimate=1,
        selected_device_dim_size=elems,
        selected_device_span_stride_elems=inside,
        selected_host_dim=host_dim,
        stick_elems=layout.elems_per_stick,
        reason=reason,
    )
