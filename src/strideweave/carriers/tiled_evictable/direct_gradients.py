"""Gradients of direct operations: tile by tile into tiled gradients, dense for ordinary operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from strideweave.carriers.tiled_evictable.blocks import Computed, Source, Symbols, Tiled, Whole, contract
from strideweave.carriers.tiled_evictable.direct import (
    NAMES,
    Result,
    Streams,
    carriers_of,
    dense_copy,
    extents_of,
    is_tiled,
    plans_for,
    streaming,
    symbols_of,
)
from strideweave.carriers.tiled_evictable.tiles_as_modes import in_mode_dims, region_of
from strideweave.carriers.tiled_evictable.writing import gradient_like
from strideweave.operation.alignment import dense_like
from strideweave.operation.call import BoundOperationCall, VJPContext, with_call
from strideweave.operation.gradients import conform
from strideweave.tensor import Tensor
from strideweave.tensor.copying import values_of

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable


def gradient(context: VJPContext, *cotangents: Tensor | None) -> Sequence[Tensor | None] | None:
    """One entry for every operand: a Tensor over a fresh tiled carrier for a tiled one; None where none is wanted.

    The saved values that it reads stream from wherever they are; the policy of each of their carriers is asked once.
    """
    (g,) = cotangents
    invocation = context.invocation
    assert g is not None
    if invocation.name not in NAMES:  # projection and scatter, whose own gradients are in tiles already
        return None
    # Which raises when a value that the gradient needs is not as it was.
    read = [context.operand(k) for k in _read(context)]
    carriers = carriers_of(read)
    label = f"backward of {invocation.name}"
    plans = plans_for(carriers, label, "backward")
    with streaming(carriers, plans, label) as streams:
        symbols = symbols_of(invocation)
        if symbols is None:
            return _on_dense(context, g, streams)
        return _Entries(context, g, streams, symbols).all()


def _read(context: VJPContext) -> list[int]:
    """The operands whose values the gradients that are wanted need."""
    invocation = context.invocation
    if invocation.name not in ("mul", "elementwise_mul", "matmul"):
        return []
    return [1 - k for k in (1, 0) if context.needs[k] and isinstance(invocation.operands[1 - k], Tensor)]


class _Entries:
    """The gradients of one operation, by symbols."""

    def __init__(self, context: VJPContext, g: Tensor, streams: Streams, symbols: Sequence[Symbols]) -> None:
        self._context = context
        self._streams = streams
        self._symbols = symbols
        self._operands: Sequence[Any] = context.invocation.operands
        self._extents = extents_of(context.invocation, symbols)
        self._g = Whole(in_mode_dims(values_of(g), g.layout), symbols[-1])

    def all(self) -> list[Tensor | None]:
        """One for every operand."""
        return [self._entry(k) if needed else None for k, needed in enumerate(self._context.needs)]

    def _entry(self, k: int) -> Tensor:
        name = self._context.invocation.name
        if name == "reduce_sum":
            return self._spread(k)
        if name == "relu":
            (output,) = self._context.outputs
            shown = Whole(in_mode_dims(values_of(output), output.layout), self._symbols[-1])
            return self._summed(k, [Computed(_where_passed, self._g, shown)])
        if name == "add":
            return self._summed(k, [self._g])
        other = self._operands[1 - k]
        if isinstance(other, Tensor):
            return self._summed(k, [self._g, self._streams.source(other, self._symbols[1 - k])])
        return self._summed(k, [Computed(partial(_scaled, by=other), self._g)])

    def _summed(self, k: int, sources: Sequence[Source]) -> Tensor:
        """The product of the sources, summed to the operand's shape."""
        operand: Tensor = self._operands[k]
        own = self._symbols[k]
        wide = _accumulator(operand, sources)
        if is_tiled(operand):
            made, writer = gradient_like(operand)
            geometry = _carrier(operand)._geometry
            room = torch.empty(geometry.tile_elems, dtype=wide, device=self._g.values.device)
            for ordinal, region in Tiled(geometry, own).tiles_in(self._extents):
                total = room[: geometry.elems_of(ordinal)].view(geometry.extents_of(ordinal)).zero_()
                contract(total, own, geometry.origin_of(ordinal), region, sources)
                writer.put(geometry.coordinate(ordinal), total.cpu(), operand.layout, operand.offset)
            return made
        result = Result(operand.carrier, operand.dtype(), dense_like(operand.shape, [operand.layout]))
        same = result.modes.dtype == wide
        total = result.modes.zero_() if same else torch.zeros_like(result.modes, dtype=wide)
        contract(total, own, [0] * len(own), self._extents, sources)
        if not same:
            result.modes.copy_(total)
        return result.tensor()

    def _spread(self, k: int) -> Tensor:
        """The cotangent of a sum, repeated over what was summed."""
        operand: Tensor = self._operands[k]
        kept = [s for s in self._symbols[-1] if s is not None]
        sizes = [n for n, s in zip(self._g.values.shape, self._symbols[-1], strict=True) if s is not None]
        values = self._g.values.reshape(sizes)
        for symbol in range(len(operand.layout)):
            if symbol not in kept:
                values = values.unsqueeze(symbol)
        values = values.expand([mode.size for mode in operand.layout])
        made, writer = gradient_like(operand)
        geometry = _carrier(operand)._geometry
        for ordinal in range(geometry.tiles):
            part = region_of(values, geometry.origin_of(ordinal), geometry.extents_of(ordinal))
            writer.put(geometry.coordinate(ordinal), part.cpu(), operand.layout, operand.offset)
        return made


def _where_passed(g: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Where `relu` gave 0 nothing passes; where it gave a NaN the cotangent does, as on the compute carrier."""
    shown = output.float() if output.itemsize == 1 else output  # torch does not compare floats of 8 bits
    return torch.where(shown <= 0, torch.zeros((), dtype=g.dtype, device=g.device), g)


def _scaled(g: torch.Tensor, *, by: float) -> torch.Tensor:
    return (g.float() * by).to(g.dtype) if g.itemsize == 1 else g * by


def _accumulator(operand: Tensor, sources: Sequence[Source]) -> torch.dtype:
    """The dtype in which a gradient is added up: Float32 at least."""
    wide = _at_least_float32(operand.dtype().torch_dtype)
    for source in sources:
        if not isinstance(source, Tiled):
            own = source.values.dtype if isinstance(source, Whole) else source.dtype
            wide = torch.promote_types(wide, _at_least_float32(own))
    return wide


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize >= 4 else torch.float32


def _carrier(tensor: Tensor) -> TiledEvictable:
    carrier: TiledEvictable = tensor.carrier  # type: ignore[assignment]  # who calls this has a tiled Tensor
    return carrier


def _on_dense(context: VJPContext, g: Tensor, streams: Streams) -> list[Tensor | None]:
    """The definition's own gradients on dense copies, those of tiled operands cut into tiles."""
    invocation = context.invocation
    read = set(_read(context))
    operands = [dense_copy(o, streams) if is_tiled(o) and k in read else o for k, o in enumerate(invocation.operands)]
    call = BoundOperationCall(
        invocation.call.definition, tuple(operands), invocation.options, invocation.call.operand_kinds
    )
    inner = VJPContext(with_call(invocation, call), context.outputs, context.needs)
    vjp = invocation.call.definition.vjp
    assert callable(vjp)
    entries: list[Tensor | None] = []
    for operand, entry, needed in zip(invocation.operands, vjp(inner, g), context.needs, strict=True):
        if entry is None or not needed or not is_tiled(operand):
            entries.append(entry)
            continue
        made, writer = gradient_like(operand)
        fitted = conform(entry, operand, name=invocation.name)
        values = in_mode_dims(values_of(fitted), fitted.layout)
        geometry = _carrier(operand)._geometry
        for ordinal in range(geometry.tiles):
            part = region_of(values, geometry.origin_of(ordinal), geometry.extents_of(ordinal))
            writer.put(geometry.coordinate(ordinal), part.cpu(), operand.layout, operand.offset)
        entries.append(made)
    return entries
