"""Gradients of tiled Tensors as values: how they add up, what becomes a grad, and what projection and scatter pass on.

A gradient of a tiled Tensor is a Tensor over a carrier of its own, of the same grid and tiers. Tiles that nothing
reached are implicit zero, so only touched tiles cost memory or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from strideweave.carriers.tiled_evictable.projection import compact_layout
from strideweave.carriers.tiled_evictable.reading import TileReader
from strideweave.carriers.tiled_evictable.selection import TileSelection
from strideweave.carriers.tiled_evictable.tiles_as_modes import in_mode_dims, region_of
from strideweave.carriers.tiled_evictable.writing import gradient_like
from strideweave.carriers.whole import write_all
from strideweave.layout import Layout
from strideweave.operation.alignment import dense_like
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.node import Operation
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.pointwise import ADD
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor import Tensor, from_torch
from strideweave.tensor.copying import strided, values_of
from strideweave.tensor.grad_mode import mode, no_grad

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable


# -- sums ------------------------------------------------------------------------------------------------------------


def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum of two tiles of one dtype, by the central addition: rounded once, whole numbers wrapping."""
    with no_grad():
        result: Tensor = ADD(from_torch(a), from_torch(b))
    return result.torch()


def summed(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two cotangents of a tiled Tensor, in a fresh carrier like that of `a`.

    Only tiles that are not implicit zero in both are touched. `b` may be ordinary, or tiled in any other way.
    """
    geometry = _carrier_of(a)._geometry
    total, writer = gradient_like(a)
    first, second = (TileReader(tensor, geometry, "add up tiles of gradients") for tensor in (a, b))
    in_first, in_second = first.written(), second.written()
    for ordinal in sorted(in_first | in_second):
        coordinate = geometry.coordinate(ordinal)
        if ordinal in in_first and ordinal in in_second:
            with first.tile(ordinal) as x, second.tile(ordinal) as y:
                writer.put(coordinate, added(x, y), a.layout, a.offset)
        else:
            with (first if ordinal in in_first else second).tile(ordinal) as x:
                writer.put(coordinate, x, a.layout, a.offset)
    return total


def as_gradient(cotangent: Tensor) -> Tensor:
    """`cotangent` itself when a backward made it and nothing else knows it, else a copy of the tiles that it has."""
    carrier = _carrier_of(cotangent)
    if carrier._gradient is not None and carrier._gradient() is cotangent:
        carrier._gradient = None
        return cotangent
    copy, writer = gradient_like(cotangent)
    reader = TileReader(cotangent, carrier._geometry, "copy tiles of a gradient")
    for ordinal in sorted(reader.written()):
        with reader.tile(ordinal) as values:
            writer.put(carrier._geometry.coordinate(ordinal), values, cotangent.layout, cotangent.offset)
    _carrier_of(copy)._gradient = None
    return copy


def _carrier_of(tensor: Tensor) -> TiledEvictable:
    carrier: TiledEvictable = tensor.carrier  # type: ignore[assignment]  # who calls this has a tiled Tensor
    return carrier


# -- nodes -----------------------------------------------------------------------------------------------------------


def _project_vjp(context: VJPContext, g: Tensor) -> Sequence[Tensor | None]:
    """The compact cotangent added into zeros, tile by tile: the adjoint of the gather."""
    source: Tensor = context.operand(0)  # which raises when the source is not as it was at initiation
    geometry = _carrier_of(source)._geometry
    gradient, writer = gradient_like(source)
    values = in_mode_dims(values_of(g).cpu(), g.layout)
    selection = context.options["selection"]
    compact = geometry.compact(selection.per_axis)
    for coordinate, place in selection._placed:
        region = region_of(values, compact.origin(place), geometry.extents_of(geometry.ordinal(coordinate)))
        writer.put(coordinate, region, source.layout, source.offset)
    return (gradient,)


def _scatter_vjp(context: VJPContext, g: Tensor) -> Sequence[Tensor | None]:
    """The selected cotangent, for the compact operand gathered, and for the template, of "add" only, where it was.

    The result holds no value of a template tile that was not selected (such a tile is invalid), and with "replace" none
    of a selected one: no gradient goes there.
    """
    compact, template = context.invocation.operands
    geometry = _carrier_of(template)._geometry
    wants_compact, wants_template = context.needs
    reader = TileReader(g, geometry, "run the backward of scatter with")
    gathered = _Gathered(compact) if wants_compact else None
    template_gradient, writer = gradient_like(template) if wants_template else (None, None)
    is_added = context.options["reduction"] == "add"
    touched = reader.written() if wants_compact or is_added else set()
    selection = context.options["selection"]
    places = geometry.compact(selection.per_axis)
    for coordinate, place in selection._placed:
        ordinal = geometry.ordinal(coordinate)
        if ordinal not in touched:
            continue
        with reader.tile(ordinal) as values:
            if gathered is not None:
                region_of(gathered.values, places.origin(place), geometry.extents_of(ordinal)).copy_(values)
            if writer is not None and is_added:
                writer.put(coordinate, values, template.layout, template.offset)
    return None if gathered is None else gathered.tensor(), template_gradient


class _Gathered:
    """Zeros in fresh storage of the same class, dense, to be filled; written there at the end where no memory shows it.

    A compact Tensor nests no modes, so that leaves are modes.
    """

    def __init__(self, compact: Tensor) -> None:
        self._layout = dense_like(compact.shape, [compact.layout])
        self._carrier = compact.carrier.allocate_like(self._layout.cosize)
        self._is_staged = not self._carrier._is_in_memory()
        size, dtype = self._layout.cosize, self._carrier.dtype().torch_dtype
        self._flat = torch.zeros(size, dtype=dtype) if self._is_staged else self._carrier._flat()
        self.values = strided(self._flat, self._layout, 0)
        """One dim per mode."""

    def tensor(self) -> Tensor:
        """What it has become."""
        if self._is_staged:
            write_all(self._carrier, 0, self._flat)
        return Tensor._make(self._carrier, 0, self._layout)


def _moved(call: BoundOperationCall) -> OperationPlan:
    own = call.operands[0].dtype()
    operands = tuple(OperandPlan(OperandRole.TENSOR, own) for _ in call.operands)
    return OperationPlan(call.definition.name, operands, Arithmetic.NONE, Accumulation.NONE, None, own)


def _resolve_project(call: BoundOperationCall) -> ResolvedInvocation:
    (source,) = call.operands
    layout: Layout = compact_layout(source.layout, call.options["compact_shape"])
    spec = ResultSpec(source.dtype(), layout.shape, layout)
    return ResolvedInvocation(call, _moved(call), (spec,), saved_operands=(0,))


def _resolve_scatter(call: BoundOperationCall) -> ResolvedInvocation:
    _, template = call.operands
    return ResolvedInvocation(call, _moved(call), (ResultSpec(template.dtype(), template.shape, template.layout),))


# Not registered: they are the nodes of methods, and no operations that a carrier dispatches by name.
PROJECT = OperationDefinition(
    "project",
    OperationSchema(
        [OperandSpec("source", OperandKind.TENSOR, differentiable=True)],
        [OptionSpec("selection"), OptionSpec("compact_shape")],
    ),
    _resolve_project,
    None,
    _project_vjp,
)
SCATTER = OperationDefinition(
    "scatter",
    OperationSchema(
        [
            OperandSpec("compact", OperandKind.TENSOR, differentiable=True),
            OperandSpec("template", OperandKind.TENSOR, differentiable=True),
        ],
        [OptionSpec("selection"), OptionSpec("reduction")],
    ),
    _resolve_scatter,
    None,
    _scatter_vjp,
)


class Recording:
    """A node on its way: its operands with the versions that they have now. Only a result that succeeds gets it."""

    def __init__(self, carrier_class: type[TiledEvictable], invocation: ResolvedInvocation) -> None:
        operands = invocation.operands
        self._invocation = invocation
        self._carrier_class = carrier_class
        self._needs = tuple(operand.requires_grad for operand in operands)
        self._versions = tuple(operands[k].carrier._content_token() for k in invocation.saved_operands)

    def attach(self, result: Tensor) -> None:
        """The request has succeeded, and gave `result`."""
        operation = Operation(self._invocation.definition, self._carrier_class)
        operation._record(self._invocation, (result,), self._needs)
        operation._versions = self._versions  # of when the request began, which is when its values were fixed
        result.autograd_ctx = operation


def record_project(source: Tensor, selection: TileSelection, compact_shape: tuple[int, ...]) -> Recording | None:
    """The node of a projection that begins now; None when nobody wants its gradient."""
    if not (source.requires_grad and mode.enabled):
        return None
    call = PROJECT.bind(source, selection=selection, compact_shape=compact_shape)
    return Recording(type(_carrier_of(source)), _resolve_project(call))


def record_scatter(compact: Tensor, template: Tensor, selection: TileSelection, reduction: str) -> Recording | None:
    """The node of a scatter that begins now; None when nobody wants its gradient."""
    if not ((compact.requires_grad or template.requires_grad) and mode.enabled):
        return None
    call = SCATTER.bind(compact, template, selection=selection, reduction=reduction)
    return Recording(type(_carrier_of(template)), _resolve_scatter(call))
