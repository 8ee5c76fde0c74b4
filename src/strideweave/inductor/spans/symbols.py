"""Which symbols drive an operation's dims, and where each of its operands lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import sympy
from torch._inductor import ir

from strideweave.inductor.coordinates import device_coordinates
from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.ops import Op, Touch, layout_of, op_of, owner_of
from strideweave.spyre.tensor_layout import SpyreTensorLayout

BATCH_MATMUL_OP: Final = "batchmatmul"
"""The reduction type of matrix products."""


@dataclass(frozen=True)
class Operand:
    """One access of an operation, with the coordinates that it has in device memory."""

    touch: Touch
    is_input: bool
    layout: FixedTiledLayout = field(compare=False)
    coordinates: tuple[sympy.Expr, ...]

    @property
    def name(self) -> str:
        """The buffer."""
        return self.touch.name

    @property
    def device_layout(self) -> SpyreTensorLayout:
        """Where its elements lie."""
        return self.layout.device_layout

    @cached_property
    def itemsize(self) -> int:
        """The bytes of an element on the card."""
        return self.device_layout.device_dtype.itemsize

    @property
    def source(self) -> str:
        """How candidates name it."""
        return f"input:{self.name}" if self.is_input else "output"


def as_op(op: Any) -> Op:
    """The analysis of a ComputedBuffer; one that has been made already as it is."""
    return op if isinstance(op, Op) else op_of(op)


def ineligible(buffer: Any, *, may_write_into_others: bool = False) -> str | None:
    """Why an operation is none of the analysis' business; None when it is.

    One that writes into the memory of another buffer, in place or as part of it, is only where that is allowed, and
    where it reads nothing of that memory but the very elements that it writes.
    """
    if not isinstance(buffer, ir.ComputedBuffer):
        return "it is no ComputedBuffer"
    if not isinstance(buffer.data, ir.Pointwise | ir.Reduction):
        return f"{type(buffer.data).__name__} is neither Pointwise nor Reduction"
    layout = buffer.get_layout()
    if may_write_into_others and isinstance(layout, ir.MutationLayoutSHOULDREMOVE | ir.NonOwningLayout):
        op = op_of(buffer)
        if op.recording.store_mode != "set" or op.is_reduction:
            return "it changes memory that others have written"
        into = owner_of(op.name)
        if any(owner_of(t.name) == into and t.access.index != op.write.access.index for t in op.reads):
            return "it reads elsewhere in the memory that it writes"
        layout = layout_of(op.name)
    if not isinstance(layout, FixedTiledLayout):
        return f"its layout is a {type(layout).__name__}, not a FixedTiledLayout"
    if not _is_static(layout):
        return "its layout has symbolic extents"
    return None


def _is_static(layout: FixedTiledLayout) -> bool:
    numbers = (*layout.size, *layout.stride, *layout.device_layout.device_size, *layout.device_layout.stride_map)
    return all(isinstance(n, int) or sympy.sympify(n).is_Integer for n in numbers)


def has_indirect_reads(op: Any) -> bool:
    """Whether it reads or writes at computed indices: gathers and scatters."""
    return bool(as_op(op).recording.indirect)


def is_batch_matmul_reduction(op: Any) -> bool:
    """Whether it is a matrix product."""
    return as_op(op).reduction_type == BATCH_MATMUL_OP


def output_symbol_to_dim(op: Any) -> dict[sympy.Symbol, int]:
    """The output dim of every symbol that is not combined away."""
    iteration = as_op(op).iteration
    return {s: k for k, s in enumerate(iteration.output) if s in iteration.ranges}


def bmm_output_symbol_to_dim(op: Any) -> dict[sympy.Symbol, int]:
    """The same for a matrix product; nothing unless exactly one symbol, K, is combined away."""
    known = output_symbol_to_dim(op)
    unknown = {s for o in operands_of(op) for c in o.coordinates for s in c.free_symbols if s not in known}
    return known if len(unknown) == 1 else {}


def symbol_to_dim(op: Any) -> dict[sympy.Symbol, int]:
    """By which output dim each symbol can be divided."""
    return bmm_output_symbol_to_dim(op) if is_batch_matmul_reduction(op) else output_symbol_to_dim(op)


def host_dim_target_symbols(op: Any, host_dim: int) -> tuple[sympy.Symbol, ...]:
    """The symbols that an output dim stands for."""
    mapping = symbol_to_dim(op) or output_symbol_to_dim(op)
    return tuple(s for s, dim in mapping.items() if dim == host_dim)


def operands_of(op: Any) -> tuple[Operand, ...]:
    """All accesses, each once: what is read, in order, and what is written, last."""
    analysed = as_op(op)
    found: tuple[Operand, ...] | None = getattr(analysed, "_operands", None)
    if found is None:
        accesses = [(touch, True) for touch in analysed.reads] + [(analysed.write, False)]
        found = tuple(dict.fromkeys(_operand(analysed, touch, is_input) for touch, is_input in accesses))
        analysed._operands = found  # type: ignore[attr-defined]
    return found


def _operand(op: Op, touch: Touch, is_input: bool) -> Operand:
    layout = layout_of(touch.name)
    coordinates = device_coordinates(touch.host_coordinates, layout.device_layout, op.bounds)
    return Operand(touch, is_input, layout, coordinates)


def inputs_of(op: Any) -> tuple[Operand, ...]:
    """What is read."""
    return tuple(o for o in operands_of(op) if o.is_input)


def output_of(op: Any) -> Operand:
    """What is written."""
    return operands_of(op)[-1]


def range_of_dim(op: Any, host_dim: int, *, is_reduction: bool = False) -> Any:
    """The range of an output dim, or of a reduction dim."""
    analysed = as_op(op)
    symbols: Sequence[Any] = analysed.iteration.reduction if is_reduction else analysed.iteration.output
    return analysed.iteration.ranges.get(symbols[host_dim], 1) if 0 <= host_dim < len(symbols) else None


def symbol_of_dim(op: Any, host_dim: int, *, is_reduction: bool = False) -> sympy.Symbol | None:
    """The symbol of an output dim, or of a reduction dim; None where its range is 1."""
    analysed = as_op(op)
    symbol = (analysed.iteration.reduction if is_reduction else analysed.iteration.output)[host_dim]
    return symbol if symbol in analysed.iteration.ranges else None
