"""What a program means: its points one after the other, each as its specs say. Slow, and short enough to be believed.

The executor is compared with this, and so is what the card traps. Nothing here is shared with what cuts windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import floor, isinf, prod
from typing import Any, Final

import sympy
import torch

from strideweave.spyre.specs import OpSpec, Program, Ref, Spec, TensorArg
from strideweave.spyre.steps import STEPS

Value = int | Fraction
Function = Callable[[Mapping[sympy.Symbol, Value]], Value]

_TWO_SIDED: Final[dict[str, Callable[..., Value]]] = {
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "ModularIndexing": lambda a, b, c: (a // b) % c,
    "Max": max,
    "Min": min,
    "floor": lambda a: floor(a),
    "Identity": lambda a: a,
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: prod(factors),
    "Pow": lambda a, b: Fraction(a) ** int(b),
}


def function_of(expression: sympy.Expr) -> Function:
    """An expression as a function of the values of its symbols; exact.

    >>> x = sympy.Symbol("x", integer=True)
    >>> function_of(sympy.floor(x / 3) * 10 + sympy.Mod(x, 3))({x: 7})
    Fraction(21, 1)
    """
    if expression.is_Symbol:
        return lambda values: values[expression]
    if expression.is_Rational:
        number = Fraction(int(expression.p), int(expression.q))
        return lambda values: number
    combine = _TWO_SIDED[type(expression).__name__]
    parts = [function_of(a) for a in expression.args]
    return lambda values: combine(*(part(values) for part in parts))


@dataclass
class Touched:
    """The bytes of one argument of one run of an operation that one core touches, from the buffer's begin."""

    op: OpSpec
    core: int
    number: int
    """Which argument of the operation."""
    low: int
    high: int
    """One past the last byte."""

    @property
    def span(self) -> int:
        """How many bytes lie between the first and the last, both included."""
        return self.high - self.low


@dataclass
class _Run:
    memory: torch.Tensor
    addresses: Sequence[int]
    pool: int
    views: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self.views:
            self.views[dtype] = self.memory.view(dtype)
        return self.views[dtype]

    def begin(self, arg: TensorArg) -> int:
        if arg.arg_index >= 0:
            return self.addresses[arg.arg_index]
        return self.pool + next(iter(arg.allocation.values()))


def interpret(program: Program, addresses: Sequence[int], memory: torch.Tensor, pool: int = 0) -> list[Touched]:
    """Run a program point by point on memory, a flat tensor of bytes; `pool` is where the program's own memory begins.

    Returns what every core touched in every run of an operation, in order. Errors: IndexError for a computed index
    outside its bound.
    """
    run = _Run(memory, addresses, pool)
    found: list[Touched] = []
    for spec in program.specs:
        found += _interpret(spec, (), (), run)
    return found


def _interpret(spec: Spec, counts: tuple[int, ...], iteration: tuple[int, ...], run: _Run) -> list[Touched]:
    if isinstance(spec, OpSpec):
        return _Points(spec, counts, iteration, run).all()
    found: list[Touched] = []
    for k in range(int(spec.count)):
        for inner in spec.body:
            found += _interpret(inner, (*counts, int(spec.count)), (*iteration, k), run)
    return found


class _Points:
    """The points of one run of one operation."""

    def __init__(self, spec: OpSpec, counts: tuple[int, ...], iteration: tuple[int, ...], run: _Run) -> None:
        self.spec, self.run = spec, run
        self.ranges = {s: int(extent) for s, (extent, _) in spec.iteration_space.items()}
        self.addresses = [
            function_of(sympy.Add(*(c * s for c, s in zip(a.device_coordinates, a.device_strides, strict=True))))
            for a in spec.args
        ]
        self.starts = [self._starts(counts, iteration, a.per_tile_fixed, a.fixed_loops) for a in spec.args]
        self.tile_starts = self._starts(counts, iteration, False, 0)
        self.touched: dict[tuple[int, int], Touched] = {}
        self.indirect: Mapping[sympy.Symbol, tuple[Ref, int]] = spec.op_info.get("indirect", {})
        self.indices = {k: function_of(s[1]) for k, s in enumerate(spec.op_info["body"]) if s[0] == "index"}

    def _starts(
        self, counts: tuple[int, ...], iteration: tuple[int, ...], fixed: bool, fixed_loops: int
    ) -> dict[sympy.Symbol, int]:
        """What the loops add to every symbol."""
        starts = dict.fromkeys(self.ranges, 0)
        advance = dict(self.ranges)
        depth = len(counts)
        for level, symbols in enumerate(self.spec.tiled_symbols):  # innermost first
            loop = depth - 1 - level
            for symbol in symbols:
                if not fixed and loop >= fixed_loops:
                    starts[symbol] += iteration[loop] * advance[symbol]
                advance[symbol] *= counts[loop]
        return starts

    def all(self) -> list[Touched]:
        """Run every point; what was touched."""
        if self.spec.is_reduction:
            self._reduce()
        else:
            for point in self._points(list(self.ranges)):
                values, place = self._at(point)
                self._store(place, values[-1])
        return list(self.touched.values())

    def _points(self, symbols: Sequence[sympy.Symbol]) -> Iterator[dict[sympy.Symbol, int]]:
        for numbers in product(*(range(self.ranges[s]) for s in symbols)):
            yield dict(zip(symbols, numbers, strict=True))

    def _core(self, point: Mapping[sympy.Symbol, int]) -> int:
        core, step = 0, 1
        for symbol, (extent, cores) in self.spec.iteration_space.items():
            core += point[symbol] // -(-int(extent) // cores) * step
            step *= cores
        return core

    def _place(self, number: int, point: Mapping[sympy.Symbol, Value]) -> int:
        """The device element of an argument at a point, from its begin, noted as touched."""
        arg = self.spec.args[number]
        starts = self.starts[number]
        place = self.addresses[number]({s: v + starts.get(s, 0) for s, v in point.items()})
        assert place == int(place), "a place is a whole number"
        core = self._core({s: int(point[s]) for s in self.ranges})
        low = int(place) * arg.device_dtype.itemsize
        high = low + arg.device_dtype.itemsize
        seen = self.touched.setdefault((core, number), Touched(self.spec, core, number, low, high))
        seen.low, seen.high = min(seen.low, low), max(seen.high, high)
        return int(place)

    def _element(self, number: int, place: int) -> torch.Tensor:
        """One element in memory, as a tensor without dims that shares it."""
        arg = self.spec.args[number]
        dtype = getattr(torch, arg.dtype)
        byte = self.run.begin(arg) + place * arg.device_dtype.itemsize
        return self.run.view(dtype)[byte // dtype.itemsize]

    def _at(self, point: dict[sympy.Symbol, int]) -> tuple[list[Any], int]:
        """The values of the body's steps at a point, and the place of the result."""
        known: dict[sympy.Symbol, Value] = dict(point)
        values: list[Any] = []
        for k, (name, *operands) in enumerate(self.spec.op_info["body"]):
            given = [values[o.step] if isinstance(o, Ref) else o for o in operands]
            values.append(self._step(k, name, given, known))
            for symbol, (ref, _) in self.indirect.items():
                if ref.step == k:
                    known[symbol] = int(values[k])
        number = len(self.spec.args) - 1
        self._require_inside(number, known)
        return values, self._place(number, known)

    def _step(self, k: int, name: str, given: list[Any], known: dict[sympy.Symbol, Value]) -> Any:
        if name == "load":
            number = given[0]
            if len(given) > 1 and not bool(given[1]):
                return torch.zeros((), dtype=getattr(torch, self.spec.args[number].dtype))
            self._require_inside(number, known)
            return self._element(number, self._place(number, known)).clone()
        if name == "constant":
            return _constant(*given)
        if name == "index":
            value = self.indices[k]({s: v + self.tile_starts.get(s, 0) for s, v in known.items()})
            return torch.tensor(int(value)).to(getattr(torch, given[1]))
        return torch.as_tensor(STEPS[name](*given))

    def _require_inside(self, number: int, known: Mapping[sympy.Symbol, Value]) -> None:
        arg = self.spec.args[number]
        used = {s for c in arg.device_coordinates for s in c.free_symbols}
        for symbol, (_, extent) in self.indirect.items():
            if symbol in used and not 0 <= known[symbol] < extent:
                raise IndexError(
                    f"cannot run {self.spec.op} on {arg.name}: index {known[symbol]} is out of bounds for a dim of "
                    f"{extent}. Correct the index."
                )

    def _store(self, place: int, value: torch.Tensor) -> None:
        element = self._element(len(self.spec.args) - 1, place)
        if self.spec.op_info.get("store", "set") == "atomic_add":
            element += value.to(element.dtype)
        else:
            element.copy_(value)

    # -- reductions --------------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        gone = list(self.spec.op_info["reduction_symbols"])
        kept = [s for s in self.ranges if s not in gone]
        for outer in self._points(kept):
            found: list[torch.Tensor] = []
            place = 0
            for inner in self._points(gone):
                values, place = self._at({**outer, **inner})
                found.append(torch.as_tensor(values[-1]))
            self._store(place, self._combined(torch.stack(found)))

    def _combined(self, values: torch.Tensor) -> torch.Tensor:
        """All values of one result, in order; floats are added in double precision and rounded once."""
        kind = self.spec.op_info["reduction"]
        if kind in ("argmax", "argmin"):
            place: torch.Tensor = getattr(torch, kind)(values.to(torch.uint8) if values.dtype == torch.bool else values)
            return place
        if kind in ("max", "min"):
            return values.amax() if kind == "max" else values.amin()
        if kind == "any":
            return (values != 0).any()
        if kind == "xor_sum":
            total = values[0]
            for value in values[1:]:
                total = total ^ value
            return total
        dtype = getattr(torch, self.spec.op_info.get("accumulates_in", str(values.dtype).removeprefix("torch.")))
        wide = torch.float64 if dtype.is_floating_point else dtype
        return (values.to(wide).sum() if kind == "sum" else values.to(wide).prod()).to(dtype)


def _constant(value: Any, name: str) -> torch.Tensor:
    """A number in a dtype; an infinity in a whole dtype is that dtype's end."""
    dtype = getattr(torch, name)
    if isinstance(value, float) and isinf(value) and not dtype.is_floating_point and dtype != torch.bool:
        return torch.tensor(torch.iinfo(dtype).max if value > 0 else torch.iinfo(dtype).min, dtype=dtype)
    return torch.tensor(value, dtype=dtype)
