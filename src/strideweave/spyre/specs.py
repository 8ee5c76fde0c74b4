"""Programs of the card as plain data: operations, counted loops and the tensors that they touch.

The `repr` of every value here is Python that makes it again, given `sympify` of sympy: that text is kept in generated
modules and in golden files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import sympy

from strideweave.spyre.sticks import DataFormat

Body: TypeAlias = tuple[tuple[Any, ...], ...]
"""What one point computes: (name, *operands) per step, an operand that is a `Ref` means the step of that number."""

NO_ARGUMENT: Final = -1


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of an earlier step of a body."""

    step: int

    def __repr__(self) -> str:
        return f"Ref({self.step})"


@dataclass(frozen=True, slots=True)
class TensorArg:
    """One access of an operation to a tensor in device memory.

    The element of a point of the iteration space is at `device_coordinates`, whose symbols are those of the iteration
    space and, for indirect reads, `indirect0`, `indirect1`, ...: values of the body (see `OpSpec.op_info`).
    """

    is_input: bool
    """Whether it is read; written otherwise."""
    arg_index: int
    """Which argument of the program it is; -1 for memory of the program's own pool."""
    device_dtype: DataFormat
    """The number format."""
    device_size: tuple[int, ...]
    """The device extents of the whole stored buffer."""
    device_coordinates: tuple[sympy.Expr, ...]
    """One expression per device dim."""
    allocation: Mapping[str, int]
    """Where the buffer is: {"hbm": 0} for an argument, {"pool": byte} or {"lx": byte} for the program's own memory."""
    dtype: str = "float16"
    """The torch dtype of its elements, which says what the bits of the format mean."""
    per_tile_fixed: bool = False
    """Whether its address stays while loops advance: scratch that belongs to one tile."""
    fixed_loops: int = 0
    """How many of the outermost loops around it leave its address where it is; all when it is `per_tile_fixed`."""
    name: str = ""
    """The buffer's name in the graph, for messages."""

    @property
    def device_strides(self) -> tuple[int, ...]:
        """How many elements one step along a device dim moves."""
        strides, step = [], 1
        for extent in reversed(self.device_size):
            strides.append(step)
            step *= extent
        return tuple(reversed(strides))

    def __repr__(self) -> str:
        more = ", per_tile_fixed=True" if self.per_tile_fixed else ""
        more += f", fixed_loops={self.fixed_loops}" if self.fixed_loops and not self.per_tile_fixed else ""
        more += f", name={self.name!r}" if self.name else ""
        return (
            f"TensorArg(is_input={self.is_input}, arg_index={self.arg_index}, device_dtype={self.device_dtype!r}, "
            f"device_size={self.device_size!r}, device_coordinates={_expressions(self.device_coordinates)}, "
            f"allocation={dict(self.allocation)!r}, dtype={self.dtype!r}{more})"
        )


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation over an iteration space: at every point the body computes a value, which the last argument takes.

    A reduction combines the values over its reduction symbols (`op_info["reduction_symbols"]`) by
    `op_info["reduction"]`: sum, prod, max, min, any, xor_sum, argmax, argmin; accumulation is in
    `op_info["accumulates_in"]` when given, a torch dtype name.
    """

    op: str
    """The name of what it does, such as "add" or "batchmatmul"."""
    is_reduction: bool
    """Whether it has reduction symbols."""
    iteration_space: Mapping[sympy.Symbol, tuple[sympy.Expr, int]]
    """For every symbol its range (within a tile) and over how many cores it is divided; outermost first."""
    args: tuple[TensorArg, ...]
    """Inputs in the order in which the body loads them, then the one output."""
    op_info: Mapping[str, Any] = field(default_factory=dict)
    """`body`: a `Body`, in which ("load", k) reads argument k and ("index", expr) gives the value of an expression;
    `reduction`, `reduction_symbols` for reductions; `indirect`: for every indirect symbol the `Ref` that gives it;
    `store`: "set" or "atomic_add"."""
    tiled_symbols: tuple[tuple[sympy.Symbol, ...], ...] = ()
    """For every loop around it, innermost first, the symbols that the loop advances by their range."""

    def __repr__(self) -> str:
        space = ", ".join(
            f"sympify({str(symbol)!r}): (sympify({str(extent)!r}), {cores})"
            for symbol, (extent, cores) in self.iteration_space.items()
        )
        tiled = ""
        if any(self.tiled_symbols):
            levels = ", ".join(f"[{', '.join(f'sympify({str(s)!r})' for s in level)}]" for level in self.tiled_symbols)
            tiled = f", tiled_symbols=[{levels}]"
        args = ", ".join(map(repr, self.args))
        return (
            f"OpSpec(op={self.op!r}, is_reduction={self.is_reduction}, iteration_space={{{space}}}, args=[{args}], "
            f"op_info={_info(self.op_info)}{tiled})"
        )


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """A body that runs `count` times; the symbols that it tiles advance by their range each time."""

    count: sympy.Expr
    """How many times."""
    body: tuple[OpSpec | LoopSpec, ...]
    """What runs, in order: one copy, whatever the count."""

    def __repr__(self) -> str:
        return f"LoopSpec(count=sympify({str(self.count)!r}), body=[{', '.join(map(repr, self.body))}])"


Spec: TypeAlias = OpSpec | LoopSpec


@dataclass(frozen=True, slots=True)
class Program:
    """Specs that run one after the other on the same arguments, and how much memory of its own they need."""

    name: str
    specs: tuple[Spec, ...]
    argument_count: int
    """How many tensors it is called with."""
    pool_nbytes: int = 0
    """Bytes of its own pool, scratch included."""

    def ops(self) -> Iterator[OpSpec]:
        """Every operation, in order, those within loops once."""
        yield from _ops(self.specs)

    def __repr__(self) -> str:
        specs = ", ".join(map(repr, self.specs))
        return f"Program({self.name!r}, [{specs}], {self.argument_count}, {self.pool_nbytes})"


def _ops(specs: tuple[Spec, ...]) -> Iterator[OpSpec]:
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from _ops(spec.body)
        else:
            yield spec


def _expressions(expressions: tuple[sympy.Expr, ...]) -> str:
    return f"[{', '.join(f'sympify({str(e)!r})' for e in expressions)}]"


def _info(value: Any) -> str:
    """The text of what an `op_info` holds: containers, numbers, names, `Ref` and expressions."""
    if isinstance(value, sympy.Basic):
        return f"sympify({str(value)!r})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_info(k)}: {_info(v)}' for k, v in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_info, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_info, value))}]"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})"
    return repr(value)
