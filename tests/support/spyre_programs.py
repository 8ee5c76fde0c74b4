"""Programs of the card made by hypothesis, with what they mean on host values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy
import torch
from hypothesis import strategies as st

from strideweave.spyre.expressions import evaluate
from strideweave.spyre.memory import memory
from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Ref, TensorArg
from strideweave.spyre.tensor_layout import SpyreTensorLayout

SYMBOLS = sympy.symbols("s0 s1 s2", integer=True, nonnegative=True)
DTYPES = ("int64", "float32", "float16", "bool", "int8")
MOST_POINTS = 400


@dataclass
class Access:
    """A tensor as the host sees it: one expression of the full symbols per host dim, and its layout."""

    expressions: tuple[sympy.Expr, ...]
    size: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    layout: SpyreTensorLayout = field(init=False)

    def __post_init__(self) -> None:
        strides = [math.prod(self.size[k + 1 :]) for k in range(len(self.size))]
        self.layout = SpyreTensorLayout(self.size, strides, getattr(torch, self.dtype), self.order)

    @property
    def coordinates(self) -> tuple[sympy.Expr, ...]:
        """The device coordinates: the stick's host dim falls into whole sticks and the place within one."""
        found = []
        eps = self.layout.elems_per_stick
        dims = self.layout.dim_map
        assert dims is not None
        last = dims[-1]
        tiles = max((k for k in range(len(dims) - 1) if dims[k] == last), default=-1)
        for k, dim in enumerate(dims):
            if dim == -1:
                found.append(sympy.S.Zero)
            elif k == len(dims) - 1:
                found.append(sympy.Mod(self.expressions[dim], eps))
            elif k == tiles:
                found.append(sympy.floor(self.expressions[dim] / eps))
            else:
                found.append(self.expressions[dim])
        return tuple(found)

    def places(self) -> np.ndarray:
        """The device element of every host element."""
        grid = np.indices(self.size)
        eps = self.layout.elems_per_stick
        dims = self.layout.dim_map
        assert dims is not None
        total = np.zeros(self.size, dtype=np.int64)
        tiles = max((k for k in range(len(dims) - 1) if dims[k] == dims[-1]), default=-1)
        for k, (dim, stride) in enumerate(zip(dims, self.layout.device_strides, strict=True)):
            if dim == -1:
                continue
            index = grid[dim]
            if k == len(dims) - 1:
                index = index % eps
            elif k == tiles:
                index = index // eps
            total += index * stride
        return total

    def arg(self, number: int, *, is_input: bool, **more: Any) -> TensorArg:
        """The access as an argument of a program."""
        return TensorArg(
            is_input,
            number,
            self.layout.device_dtype,
            self.layout.device_size,
            self.coordinates,
            more.pop("allocation", {"hbm": 0}),
            self.dtype,
            **more,
        )


@dataclass
class Case:
    """A program, its host accesses, the host values, and what the output must be."""

    program: Program
    accesses: list[Access]
    inputs: list[torch.Tensor]
    expected: torch.Tensor
    written: torch.Tensor
    """Which elements of the output are written."""


class Placed:
    """The tensors of a case in device memory."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.addresses = [memory().allocate(a.layout.nbytes) for a in case.accesses]
        self.pool = memory().allocate(case.program.pool_nbytes) if case.program.pool_nbytes else 0
        for access, address in zip(case.accesses, self.addresses, strict=True):
            memory().poison(address, access.layout.nbytes)
        for access, address, value in zip(case.accesses, self.addresses, case.inputs, strict=False):
            self._view(access, address)[torch.from_numpy(access.places()).reshape(-1)] = value.reshape(-1)

    @staticmethod
    def _view(access: Access, address: int) -> torch.Tensor:
        dtype = getattr(torch, access.dtype)
        step = access.layout.device_dtype.itemsize // dtype.itemsize
        view = memory().view(dtype)
        return torch.as_strided(view, (access.layout.elems,), (step,), address // dtype.itemsize)

    def output(self) -> torch.Tensor:
        """The output as the host sees it."""
        access = self.case.accesses[-1]
        return self._view(access, self.addresses[-1])[torch.from_numpy(access.places())].clone()

    def is_poison_elsewhere(self) -> bool:
        """Whether every byte of the output that belongs to no written element is as it was."""
        access, begin = self.case.accesses[-1], self.addresses[-1]
        itemsize = access.layout.device_dtype.itemsize
        own = memory().bytes[begin : begin + access.layout.nbytes].clone().reshape(-1, itemsize)
        places = torch.from_numpy(access.places())[self.case.written]
        own[places.reshape(-1), : getattr(torch, access.dtype).itemsize] = 0xFF
        return bool((own == 0xFF).all())

    def free(self) -> None:
        """Give the memory back."""
        for address in self.addresses:
            memory().free(address)
        if self.pool:
            memory().free(self.pool)


def values_of(draw: Any, size: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Small whole numbers, of which sums are exact in every dtype."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    found = np.asarray(rng.integers(-3, 4, size))
    return (
        torch.from_numpy(np.asarray(found > 0))
        if dtype == "bool"
        else torch.from_numpy(found).to(getattr(torch, dtype))
    )


@st.composite
def accesses(draw: Any, full: dict[sympy.Symbol, int], dtype: str, *, is_output: bool) -> Access:
    """A tensor and how it is indexed; every element at most once when it is an output."""
    dims: list[tuple[sympy.Expr, int]] = []
    waiting = list(draw(st.permutations(list(full))))
    while waiting:
        symbol = waiting.pop()
        extent = full[symbol]
        forms = ["plain", "plain", "offset", "steps", "back", "split"]
        if waiting:
            forms.append("merge")
        if not is_output:
            forms += ["drop", "twice"]
        form = draw(st.sampled_from(forms))
        if form == "drop":
            continue
        if form == "offset":
            by = draw(st.integers(1, 20))
            dims.append((symbol + by, extent + by + draw(st.integers(0, 3))))
        elif form == "steps":
            dims.append((2 * symbol + 1, 2 * extent + draw(st.integers(0, 2))))
        elif form == "back":
            dims.append((extent - 1 - symbol, extent))
        elif form == "split":
            part = draw(st.integers(1, extent))
            dims.append((sympy.floor(symbol / part), -(-extent // part)))
            dims.append((sympy.Mod(symbol, part), part))
        elif form == "merge":
            other = waiting.pop()
            dims.append((symbol * full[other] + other, extent * full[other]))
        elif form == "twice" and extent < 12:
            dims += [(symbol, extent), (symbol, extent)]
        else:
            dims.append((symbol, extent))
    if len(dims) < 5 and draw(st.booleans()):
        dims.insert(draw(st.integers(0, len(dims))), (sympy.S.Zero, 1))
    dims = dims[:6]
    order = tuple(draw(st.permutations(range(len(dims)))))
    return Access(tuple(e for e, _ in dims), tuple(n for _, n in dims), dtype, order)


@st.composite
def cases(draw: Any, *, reduction: bool | None = None) -> Case:
    """A program with one to three loops or none around one operation, or two with scratch between them."""
    count = draw(st.integers(1, 3))
    symbols = SYMBOLS[:count]
    loops = draw(st.lists(st.integers(1, 3), max_size=3))
    tiled = [tuple(draw(st.lists(st.sampled_from(symbols), unique=True, max_size=1))) for _ in loops]
    times = {s: math.prod(n for n, level in zip(loops, tiled, strict=True) if s in level) for s in symbols}
    budget = MOST_POINTS // math.prod(loops)
    ranges: dict[sympy.Symbol, int] = {}
    for symbol in symbols:
        ranges[symbol] = draw(st.integers(1, max(1, min(90, budget))))
        budget //= ranges[symbol]
    full = {s: ranges[s] * times[s] for s in symbols}
    cores = {s: draw(st.integers(1, min(4, ranges[s]))) for s in symbols}
    is_reduction = draw(st.booleans()) if reduction is None else reduction
    gone = tuple(s for s in symbols if is_reduction and times[s] == 1 and draw(st.booleans()))
    is_reduction = bool(gone)
    dtype = draw(st.sampled_from(DTYPES))
    ins = [draw(accesses(full, dtype, is_output=False)) for _ in range(draw(st.integers(1, 2)))]
    body, kind, out_dtype = _body(draw, dtype, len(ins), is_reduction)
    out = draw(accesses({s: n for s, n in full.items() if s not in gone}, out_dtype, is_output=True))
    info: dict[str, Any] = {"body": body}
    if is_reduction:
        wide = {"float16": "float32", "int8": "int64", "bool": "int64"}.get(dtype, dtype)
        info |= {"reduction": kind, "reduction_symbols": gone, "accumulates_in": wide}
    inputs = [values_of(draw, a.size, dtype) for a in ins]
    args = [a.arg(k, is_input=True) for k, a in enumerate(ins)] + [out.arg(len(ins), is_input=False)]
    space = {s: (sympy.Integer(ranges[s]), cores[s]) for s in symbols}
    levels = tuple(reversed(tiled))
    ops, pool = [OpSpec("test", is_reduction, space, tuple(args), info, levels)], 0
    if not is_reduction and draw(st.booleans()):
        ops, pool = _through_scratch(draw, ops[0], ranges, dtype)
    specs: tuple[Any, ...] = tuple(ops)
    for n in reversed(loops):
        specs = (LoopSpec(sympy.Integer(n), specs),)
    program = Program("test", specs, len(args), pool)
    expected, written = _expected(full, gone, [*ins, out], inputs, body, kind, is_reduction)
    return Case(program, [*ins, out], inputs, expected, written)


def _through_scratch(draw: Any, op: OpSpec, ranges: Any, dtype: str) -> tuple[list[OpSpec], int]:
    """The same with its first operand copied into scratch of one tile first."""
    scratch = draw(accesses(ranges, dtype, is_output=True))
    where = {"pool": 128 * draw(st.integers(0, 2))}
    write = scratch.arg(-1, is_input=False, allocation=where, per_tile_fixed=True)
    read = scratch.arg(-1, is_input=True, allocation=where, per_tile_fixed=True)
    first = OpSpec("copy", False, op.iteration_space, (op.args[0], write), {"body": (("load", 0),)}, op.tiled_symbols)
    second = OpSpec(op.op, False, op.iteration_space, (read, *op.args[1:]), op.op_info, op.tiled_symbols)
    return [first, second], where["pool"] + scratch.layout.nbytes


def _body(draw: Any, dtype: str, count: int, is_reduction: bool) -> tuple[tuple[Any, ...], str, str]:
    loads: list[tuple[Any, ...]] = [("load", k) for k in range(count)]
    last = Ref(count - 1)
    kind = ""
    out = dtype
    if count == 2:
        name = draw(st.sampled_from(["maximum", "minimum"] if dtype == "bool" else ["add", "mul", "sub", "maximum"]))
        if name == "add" and dtype == "float16":
            loads = [("load", 0), ("to_dtype", Ref(0), "float32"), ("load", 1), ("to_dtype", Ref(2), "float32")]
            loads += [("add", Ref(1), Ref(3)), ("to_dtype", Ref(4), "float16")]
        else:
            loads.append((name, Ref(0), Ref(1)))
    elif draw(st.booleans()) and dtype != "bool":
        loads.append((draw(st.sampled_from(["neg", "abs"])), last))
    if is_reduction:
        kinds = ["any", "max", "min", "argmax", "argmin"]
        kind = draw(st.sampled_from(kinds if dtype == "bool" else [*kinds, "sum", "sum", "prod"]))
        out = {"argmax": "int64", "argmin": "int64", "any": "bool"}.get(kind, dtype)
        if kind in ("sum", "prod") and dtype == "int8":
            out = "int64"
    return tuple(loads), kind, out


def _expected(
    full: Any, gone: Any, found: list[Access], inputs: list[torch.Tensor], body: Any, kind: str, is_reduction: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch makes of the host values."""
    kept = [s for s in full if s not in gone]
    order = [*kept, *gone]
    axes = np.meshgrid(*(np.arange(full[s]) for s in order), indexing="ij")

    def places(access: Access) -> tuple[torch.Tensor, ...]:
        made = []
        for expression in access.expressions:
            index = evaluate(expression, dict(zip(order, axes, strict=True)))
            made.append(torch.from_numpy(np.broadcast_to(index, axes[0].shape).astype(np.int64)))
        return tuple(made)

    values = [
        value[places(a)] if a.size else value.expand(axes[0].shape) for a, value in zip(found, inputs, strict=False)
    ]
    names: dict[str, Any] = {
        "add": torch.add,
        "mul": torch.mul,
        "sub": torch.sub,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "neg": torch.neg,
        "abs": torch.abs,
    }
    own = [step[0] for step in body if step[0] in names]
    result = names[own[0]](*values) if own else values[-1]
    out = found[-1]
    target = torch.zeros(out.size, dtype=getattr(torch, out.dtype))
    written = torch.zeros(out.size, dtype=torch.bool)
    where = places(out)
    if is_reduction:
        result = result.reshape([*(full[s] for s in kept), -1])
        where = tuple(w.reshape([*(full[s] for s in kept), -1])[..., 0] for w in where)
        if kind in ("argmax", "argmin", "max", "min"):
            if result.dtype == torch.bool:
                result = result.to(torch.uint8)
            # Of equal ones the first: torch on the host does not promise that, numpy does.
            if kind.startswith("arg"):
                result = torch.from_numpy(np.asarray(getattr(np, kind)(result.numpy(), axis=-1)))
            else:
                result = result.amax(-1) if kind == "max" else result.amin(-1)
        elif kind == "any":
            result = (result != 0).any(-1)
        else:
            wide = torch.float64 if result.is_floating_point() else torch.int64
            result = result.to(wide).sum(-1) if kind == "sum" else result.to(wide).prod(-1)
    if out.size:
        target[where] = result.to(target.dtype)
        written[where] = True
    else:
        target.copy_(result.reshape(()) if result.numel() == 1 else result)
        written.fill_(True)
    return target, written
