"""The operations of a lowered graph as the passes see them: symbols, accesses and where these lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import sympy
from torch._inductor import ir
from torch._inductor.virtualized import V

from strideweave.inductor.coordinates import host_coordinates
from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.recording import Access, Recording, record
from strideweave.inductor.spans.plans import SpanAnalysis


@dataclass(frozen=True)
class Iteration:
    """The symbols of one operation: `c0`, `c1`, ... over dims that are not 1, outputs first."""

    output: tuple[sympy.Expr, ...]
    """One per output dim; 0 where it is 1."""
    reduction: tuple[sympy.Expr, ...]
    ranges: dict[sympy.Symbol, int]
    """The extents of the symbols, before anything is tiled."""

    @property
    def reduction_symbols(self) -> tuple[sympy.Symbol, ...]:
        """Those that are combined away."""
        return tuple(symbol for symbol in self.reduction if symbol in self.ranges)


def iteration_of(data: ir.Loops) -> Iteration:
    """The iteration space of what a buffer computes."""
    ranges: dict[sympy.Symbol, int] = {}

    def symbols(extents: Any) -> tuple[sympy.Expr, ...]:
        made: list[sympy.Expr] = []
        for extent in extents:
            if extent == 1:
                made.append(sympy.S.Zero)
                continue
            symbol = sympy.Symbol(f"c{len(ranges)}", integer=True, nonnegative=True)
            ranges[symbol] = int(extent)
            made.append(symbol)
        return tuple(made)

    output = symbols(data.get_pointwise_size())
    return Iteration(output, symbols(data.get_reduction_size()), ranges)


@dataclass(frozen=True)
class Touch:
    """One access of an operation with its host coordinates, one per dim of the buffer that it touches."""

    access: Access
    host_coordinates: tuple[sympy.Expr, ...]

    @property
    def name(self) -> str:
        """The buffer."""
        return self.access.name


class Op:
    """A ComputedBuffer on the card, analysed once, before anything is tiled."""

    def __init__(self, buffer: ir.ComputedBuffer) -> None:
        self.buffer = buffer
        self.name: str = buffer.get_name()
        self.iteration = iteration_of(buffer.data)
        self.named_symbols: dict[sympy.Symbol, str] = {}
        self.work_div: dict[sympy.Symbol, int] = {}
        self.span_analysis: SpanAnalysis | None = None
        iteration = self.iteration
        index = (iteration.output, iteration.reduction) if buffer.data.get_reduction_type() else (iteration.output,)
        with patch.object(ir.FlexibleLayout, "allow_indexing", True):
            self.recording: Recording = record(buffer.get_store_function(), V.graph.get_dtype, *index)
        self.bounds: Mapping[sympy.Symbol, sympy.Expr] = {
            **iteration.ranges,
            **{symbol: extent for symbol, (_, extent) in self.recording.indirect.items()},
        }
        assert self.recording.store is not None
        self.reads = tuple(self._touch(access) for access in self.recording.loads)
        self.write = self._touch(self.recording.store)

    def _touch(self, access: Access) -> Touch:
        index = access.index + _dropped_offset(access.name)
        return Touch(access, tuple(host_coordinates(index, *layout_of(access.name).space, self.bounds)))

    @property
    def is_reduction(self) -> bool:
        """Whether values are combined."""
        return self.recording.reduction is not None

    @property
    def reduction_type(self) -> str | None:
        """How, in Inductor's name or "batchmatmul"."""
        return self.buffer.data.reduction_type if isinstance(self.buffer.data, ir.Reduction) else None

    def __repr__(self) -> str:
        return f"<Op {self.name}: {self.iteration.ranges}>"


def computed_ops(graph: Any) -> list[Op]:
    """The operations on the card that are computed in loops, in the order in which they run; analysed once each."""
    found = []
    for operation in graph.operations:
        if isinstance(operation, ir.ComputedBuffer) and is_on_card(operation):
            op = getattr(operation, "_spyre_op", None)
            if op is None:
                op = operation._spyre_op = Op(operation)  # type: ignore[attr-defined]
            found.append(op)
    return found


def op_of(buffer: ir.ComputedBuffer) -> Op:
    """The analysis of one buffer."""
    op: Op | None = getattr(buffer, "_spyre_op", None)
    if op is None:
        op = buffer._spyre_op = Op(buffer)  # type: ignore[attr-defined]
    return op


def layout_of(name: str) -> FixedTiledLayout:
    """The whole layout of a buffer on the card; of one that writes into another's memory, the other's."""
    layout = _declared_layout(name)
    while isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        layout = layout.get_buffer().get_layout()
    if isinstance(layout, ir.NonOwningLayout):
        return layout_of(layout.view.get_name())
    assert isinstance(layout, FixedTiledLayout), f"{name} has {layout!r}"
    return layout.whole


def _dropped_offset(name: str) -> sympy.Expr:
    """Where in its owner a part begins that Inductor's own indexer takes to begin at 0."""
    layout = _declared_layout(name)
    return layout.view.get_layout().offset if isinstance(layout, ir.NonOwningLayout) else sympy.S.Zero


def _declared_layout(name: str) -> Any:
    """The layout that Inductor has for a buffer; None for what has no memory of its own."""
    buffer = V.graph.try_get_buffer(name)
    while isinstance(buffer, ir.MutableBox):
        buffer = buffer.data  # type: ignore[assignment]
    return getattr(buffer, "layout", None)


def owner_of(name: str) -> str:
    """The buffer whose memory `name` is in."""
    layout = _declared_layout(name)
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return owner_of(layout.get_buffer().get_name())
    if isinstance(layout, ir.NonOwningLayout):
        return owner_of(layout.view.get_name())
    return name


SCRATCH_SUFFIXES: Final = ("_tile", "_part", "_total")
"""What stands behind the name of a buffer in the names of the scratch that its loops need."""


def computed_by(name: str) -> tuple[str, SpanAnalysis | None]:
    """The buffer that memory of this name is for, and what the planner of tiles found for it."""
    for suffix in SCRATCH_SUFFIXES:
        if V.graph.try_get_buffer(name) is None:
            name = name.removesuffix(suffix)
    op = getattr(V.graph.try_get_buffer(name), "_spyre_op", None)
    return name, getattr(op, "span_analysis", None)


def is_on_card(operation: Any) -> bool:
    """Whether an operation runs on the card."""
    device = operation.get_device()
    return device is not None and device.type == "spyre"
