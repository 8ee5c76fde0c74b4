"""From a buffer of Inductor to the OpSpec that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import sympy
from torch._inductor import ir
from torch._inductor.virtualized import V

from strideweave.inductor.coordinates import device_coordinates
from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.recording import NARROW, Access, Recording, record
from strideweave.spyre.specs import NO_ARGUMENT, OpSpec, TensorArg

ArgumentOf = Callable[[str], int]

_NAMELESS: Final = frozenset({"load", "constant", "to_dtype", "index", "copy", "masked", "wrap_index"})


@dataclass(frozen=True)
class Iteration:
    """The symbols of one operation: `c0`, `c1`, ... over dims that are not 1, outputs first."""

    output: tuple[sympy.Expr, ...]
    """One per output dim; 0 where it is 1."""
    reduction: tuple[sympy.Expr, ...]
    ranges: dict[sympy.Symbol, sympy.Expr]
    """The extents of the symbols."""

    @property
    def reduction_symbols(self) -> tuple[sympy.Symbol, ...]:
        """Those that are combined away."""
        return tuple(symbol for symbol in self.reduction if symbol in self.ranges)


def iteration_of(data: ir.Loops) -> Iteration:
    """The iteration space of what a buffer computes."""
    ranges: dict[sympy.Symbol, sympy.Expr] = {}

    def symbols(extents: Any) -> tuple[sympy.Expr, ...]:
        made: list[sympy.Expr] = []
        for extent in extents:
            if extent == 1:
                made.append(sympy.S.Zero)
                continue
            symbol = sympy.Symbol(f"c{len(ranges)}", integer=True, nonnegative=True)
            ranges[symbol] = sympy.sympify(extent)
            made.append(symbol)
        return tuple(made)

    output = symbols(data.get_pointwise_size())
    return Iteration(output, symbols(data.get_reduction_size()), ranges)


def recording_of(buffer: ir.ComputedBuffer) -> tuple[Iteration, Recording]:
    """What a buffer computes at a point, and over which points."""
    iteration = iteration_of(buffer.data)
    index = (iteration.output, iteration.reduction) if buffer.data.get_reduction_type() else (iteration.output,)
    with patch.object(ir.FlexibleLayout, "allow_indexing", True):
        return iteration, record(buffer.get_store_function(), V.graph.get_dtype, *index)


def op_spec(
    buffer: ir.ComputedBuffer,
    argument_of: ArgumentOf,
    splits: Mapping[sympy.Symbol, int] | None = None,
    tiled_symbols: tuple[tuple[sympy.Symbol, ...], ...] = (),
) -> OpSpec:
    """The operation of a buffer; `argument_of` numbers the buffers that the program is called with."""
    iteration, recording = recording_of(buffer)
    assert recording.store is not None
    bounds = {**iteration.ranges, **{symbol: extent for symbol, (_, extent) in recording.indirect.items()}}
    accesses = [(access, True) for access in recording.loads] + [(recording.store, False)]
    args = tuple(_argument(access, is_input, bounds, argument_of) for access, is_input in accesses)
    reduced = recording.reduction
    if isinstance(buffer.data, ir.Reduction):
        reduced = buffer.data.reduction_type
    info: dict[str, Any] = {"body": recording.body}
    if reduced is not None:
        info["reduction"] = "sum" if reduced in ("batchmatmul", "dot") else reduced
        info["reduction_symbols"] = iteration.reduction_symbols
        info["accumulates_in"] = _accumulator(recording.reduction_dtype)
    if recording.indirect:
        info["indirect"] = dict(recording.indirect)
    if recording.store_mode != "set":
        info["store"] = recording.store_mode
    splits = splits or {}
    space = {symbol: (extent, splits.get(symbol, 1)) for symbol, extent in iteration.ranges.items()}
    return OpSpec(_name_of(recording, reduced), reduced is not None, space, args, info, tiled_symbols)


def _argument(
    access: Access, is_input: bool, ranges: Mapping[sympy.Symbol, sympy.Expr], argument_of: ArgumentOf
) -> TensorArg:
    layout = layout_of(access.name)
    number = argument_of(access.name)
    coordinates = device_coordinates(access.index, layout.device_layout, layout.size, layout.stride, ranges)
    return TensorArg(
        is_input=is_input,
        arg_index=number,
        device_dtype=layout.device_layout.device_dtype,
        device_size=layout.device_layout.device_size,
        device_coordinates=coordinates,
        allocation={"hbm": 0} if number != NO_ARGUMENT else dict(layout.allocation),
        dtype=str(layout.dtype).removeprefix("torch."),
        per_tile_fixed=layout.per_tile_fixed,
        name=access.name,
    )


def layout_of(name: str) -> FixedTiledLayout:
    """The layout of a buffer on the card; of one that writes into another's memory, the other's."""
    layout = V.graph.get_buffer(name).get_layout() if V.graph.try_get_buffer(name) is not None else None
    while isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        layout = layout.real_layout()
    if isinstance(layout, ir.NonOwningLayout):
        layout = layout.view.get_layout()
    assert isinstance(layout, FixedTiledLayout), f"{name} has {layout!r}"
    return layout


def _accumulator(dtype: torch.dtype | None) -> str:
    """The name of the dtype in which values of `dtype` are added up: narrow floats in Float32."""
    return str(torch.float32 if dtype in NARROW else dtype).removeprefix("torch.")


def _name_of(recording: Recording, reduced: str | None) -> str:
    """What the operation is called: its reduction, or its last step that does something."""
    if reduced is not None:
        return reduced
    for step in reversed(recording.steps):
        if step[0] not in _NAMELESS:
            return str(step[0])
    return "identity"
