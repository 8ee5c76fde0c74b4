"""What one buffer computes, recorded step by step from Inductor's inner functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsValue, V

from strideweave.spyre.specs import Body, Ref

NARROW: Final = frozenset({torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})
"""Dtypes that are computed in Float32 and rounded when they are stored."""


@dataclass(frozen=True, slots=True)
class Access:
    """A read or a write: which buffer, and the host offset of the element of every point."""

    name: str
    index: sympy.Expr


@dataclass(slots=True)
class Recording:
    """A body with its accesses: `loads` in the order in which ("load", k) names them, and one store."""

    loads: list[Access] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    store: Access | None = None
    store_mode: str = "set"
    indirect: dict[sympy.Symbol, tuple[Ref, sympy.Expr]] = field(default_factory=dict)
    """For every symbol that stands for a computed index, the step that gives it and its bound."""
    reduction: str | None = None
    reduction_dtype: torch.dtype | None = None

    @property
    def body(self) -> Body:
        """The steps; the last one gives the value that is stored or reduced."""
        return tuple(self.steps)


class UnsupportedStep(NotImplementedError):
    """An inner function did what the card has no step for."""


class Recorder(DefaultHandler):
    """Records every call of Inductor's `ops` as a step. Narrow floats are widened when loaded, rounded when stored."""

    def __init__(self, dtype_of: Callable[[str], torch.dtype]) -> None:
        self.recording = Recording()
        self._dtype_of = dtype_of
        self._steps = self.recording.steps
        self._seen: dict[tuple[Any, ...], Ref] = {}
        self._mask: Ref | None = None
        """Where the part that is being recorded counts; everywhere when there is none."""

    def _step(self, *step: Any) -> Ref:
        key = tuple(_hashable(part) for part in step)
        found = self._seen.get(key)
        if found is None:
            self._steps.append(step)
            found = self._seen[key] = Ref(len(self._steps) - 1)
        return found

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in _REFUSED:
            raise UnsupportedStep(f"the card has no step for {name}: its operation runs elsewhere")
        return self._step(name, *(_plain(a) for a in args), *(_plain(v) for v in kwargs.values()))

    def load(self, name: str, index: sympy.Expr) -> Ref:
        """Read a buffer."""
        dtype = self._dtype_of(name)
        access = Access(name, sympy.sympify(index))
        loads = self.recording.loads
        if access in loads:
            number = loads.index(access)
        else:
            number = len(loads)
            loads.append(access)
        value = self._step("load", number) if self._mask is None else self._step("load", number, self._mask)
        return self._step("to_dtype", value, "float32") if dtype in NARROW else value

    def store(self, name: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        """Write a buffer, once."""
        self._store(name, index, value, mode)

    def _store(self, name: str, index: sympy.Expr, value: Any, mode: str | None) -> None:
        recording = self.recording
        if recording.store is not None:
            raise UnsupportedStep("an operation of the card writes one buffer")
        recording.store = Access(name, sympy.sympify(index))
        recording.store_mode = "set" if mode is None else mode
        if recording.reduction is None:
            dtype = self._dtype_of(name)
            last = self._step("to_dtype", _plain(value), _name(dtype))
            if last.step != len(self._steps) - 1:  # the same value as an earlier step: say it again, last
                self._steps.append(("copy", last))

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        """Combine over the reduction symbols."""
        if isinstance(value, tuple) or reduction_type in ("welford_reduce", "welford_combine", "online_softmax_reduce"):
            raise UnsupportedStep(f"the card has no reduction {reduction_type}: its operation is decomposed")
        self.recording.reduction = reduction_type
        self.recording.reduction_dtype = dtype
        self._steps.append(("copy", _plain(value)))
        return Ref(len(self._steps) - 1)

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        """Write what a reduction gives."""
        self._store(name, index, value, None)

    def constant(self, value: Any, dtype: torch.dtype) -> Ref:
        """A number."""
        return self._step("constant", value, _name(torch.float32 if dtype in NARROW else dtype))

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Ref:
        """The value of an expression of the iteration symbols."""
        return self._step("index", sympy.sympify(expr), _name(dtype))

    def value_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Ref:
        """The same."""
        return self.index_expr(expr, dtype)

    def to_dtype(
        self,
        x: Any,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> Ref:
        """Convert; a narrow float is rounded to, and goes on in Float32."""
        rounded = self._step("to_dtype", _plain(x), _name(dtype))
        return self._step("to_dtype", rounded, "float32") if dtype in NARROW else rounded

    def to_dtype_bitcast(self, x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> Ref:
        """The same bits as another dtype."""
        narrow = self._step("to_dtype", _plain(x), _name(src_dtype)) if src_dtype in NARROW else _plain(x)
        cast = self._step("to_dtype_bitcast", narrow, _name(dtype), _name(src_dtype))
        return self._step("to_dtype", cast, "float32") if dtype in NARROW else cast

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Ref:
        """What `body` gives where the mask holds, and `other` elsewhere; its loads read nothing there."""
        own = _plain(mask)
        outer = self._mask
        self._mask = own if outer is None else self._step("logical_and", outer, own)
        try:
            value = _plain(body())
        finally:
            self._mask = outer
        return self._step("masked", own, value, other)

    def indirect_indexing(self, x: Any, size: sympy.Expr, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        """A symbol for a computed index, which wraps when it is negative."""
        value = _plain(x)
        extent = sympy.sympify(size)
        if wrap_neg:
            value = self._step("wrap_index", value, extent)
        for symbol, known in self.recording.indirect.items():
            if known == (value, extent):
                return symbol
        symbol = sympy.Symbol(f"indirect{len(self.recording.indirect)}", integer=True, nonnegative=True)
        self.recording.indirect[symbol] = (value, extent)
        return symbol

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        """Nothing: the card checks every indirect access when it runs."""

    def device_assert_async(self, cond: Any, msg: str) -> None:
        """Nothing is asserted on the card."""


_REFUSED: Final = frozenset(
    {"scan", "sort", "bucketize", "load_seed", "rand", "randn", "randint64", "inline_asm_elementwise"}
)


def record(
    store: Callable[..., Any], dtype_of: Callable[[str], torch.dtype], *index: Sequence[sympy.Expr]
) -> Recording:
    """What a store function does at the point of the index variables."""
    recorder = Recorder(dtype_of)
    with V.set_ops_handler(recorder):
        store(*index)
    return recorder.recording


def _plain(value: Any) -> Any:
    """An operand of a step: a dtype by its name, all else as it is."""
    if isinstance(value, torch.dtype):
        return _name(value)
    # Inductor wraps what a handler returns, and unwraps it in calls, but not in what a nested body returns.
    return value.value if isinstance(value, OpsValue) else value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _hashable(part: Any) -> Any:
    # 0.0 and -0.0, 1 and True and 1.0 are equal, and are not the same value.
    return (type(part), repr(part)) if isinstance(part, float | int | bool) else part
