"""What the card's engine takes for programs on 64 MiB operands, beside torch on the CPU doing the same in the same run.

`torch` is an eager call that makes its result, `out=` the same into memory that is there already. Everything takes
turns and the best turn counts, since other work on a machine only adds. The last table is what a small operation costs
in a program that has run before.

    python benchmarks/spyre_engine.py            # about half a minute, 1 GB
    python benchmarks/spyre_engine.py --quick    # 1 MiB operands, a few seconds
    python benchmarks/spyre_engine.py --json | python -m json.tool
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from strideweave.spyre.executor import prepare
from strideweave.spyre.memory import memory
from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Ref, TensorArg
from strideweave.spyre.tensor_layout import SpyreTensorLayout

Work = Callable[[], object]
LIMITS = {"add": 1.5, "broadcast": 1.5, "sum": 1.5, "matmul": 1.3, "chain": 2.0}
OVERHEAD_LIMIT_US = 20.0
X, Y, K = sympy.symbols("x y k", integer=True, nonnegative=True)


@dataclass
class Tensor:
    """A tensor in device memory, in the layout that it gets there by itself."""

    value: torch.Tensor

    def __post_init__(self) -> None:
        self.layout = SpyreTensorLayout(tuple(self.value.shape), self.value.dtype)
        self.address = memory().allocate(self.layout.nbytes)
        self.write(self.value)

    def window(self) -> torch.Tensor:
        """The elements that the host tensor has too, in its order."""
        dims, eps = self.layout.dim_map or (), self.layout.elems_per_stick
        begin = self.address // self.value.element_size()
        view = memory().view(self.value.dtype)
        whole = torch.as_strided(view, self.layout.device_size, self.layout.device_strides, begin)
        order = [k for k, d in enumerate(dims) if d != dims[-1]]
        tiles = max(k for k in range(len(dims) - 1) if dims[k] == dims[-1])
        whole = whole.permute([*order, tiles, len(dims) - 1])
        shape = [*whole.shape[:-2], whole.shape[-2] * eps]
        return whole.reshape(shape) if not whole.is_contiguous() else whole.view(shape)

    def write(self, value: torch.Tensor) -> None:
        """Bring host values in."""
        dims, eps = self.layout.dim_map or (), self.layout.elems_per_stick
        padded = torch.nn.functional.pad(value, (0, -value.shape[-1] % eps))
        rows = padded.reshape(*value.shape[:-1], -1, eps)
        tiles = max(k for k in range(len(dims) - 1) if dims[k] == dims[-1])
        order = {tiles: value.dim() - 1, len(dims) - 1: value.dim()}
        order |= {k: d for k, d in enumerate(dims) if k not in order}
        begin = self.address // value.element_size()
        view = memory().view(value.dtype)
        torch.as_strided(view, self.layout.device_size, self.layout.device_strides, begin).copy_(
            rows.permute([order[k] for k in range(len(dims))])
        )

    def read(self) -> torch.Tensor:
        """The values."""
        return self.window()[..., : self.value.shape[-1]]

    def arg(self, number: int, *coordinates: Any, is_input: bool = True) -> TensorArg:
        """The tensor as an argument, at these host coordinates."""
        dims, eps = self.layout.dim_map or (), self.layout.elems_per_stick
        tiles = max(k for k in range(len(dims) - 1) if dims[k] == dims[-1])
        found = [sympy.sympify(coordinates[d]) for d in dims]
        found[tiles] = sympy.floor(found[-1] / eps)
        found[-1] = sympy.Mod(found[-1], eps)
        name = str(self.value.dtype).removeprefix("torch.")
        layout = self.layout
        return TensorArg(
            is_input, number, layout.device_dtype, layout.device_size, tuple(found), {"hbm": 0}, name, name=f"t{number}"
        )


@dataclass
class Case:
    """A program beside what torch does."""

    name: str
    program: Program
    tensors: Sequence[Tensor]
    theirs: Work
    theirs_into: Work
    expected: Callable[[], torch.Tensor]

    def ours(self) -> Work:
        """The program, ready to run."""
        prepared = prepare(self.program)
        addresses = [t.address for t in self.tensors]
        return lambda: prepared.run(addresses)

    def require_right(self, ours: Work) -> None:
        """Run it once, and compare."""
        ours()
        torch.testing.assert_close(self.tensors[-1].read(), self.expected(), rtol=1e-2, atol=1e-2)


def body_of(names: Sequence[str], count: int, dtype: torch.dtype, *, is_reduction: bool = False) -> tuple[Any, ...]:
    """Load everything, then one function after the other; narrow floats by way of Float32, as compiled programs do."""
    is_narrow = dtype.itemsize == 2
    steps: list[tuple[Any, ...]] = []
    loaded = []
    for k in range(count):
        steps.append(("load", k))
        if is_narrow:
            steps.append(("to_dtype", Ref(len(steps) - 1), "float32"))
        loaded.append(Ref(len(steps) - 1))
    for name in names:
        steps.append((name, *loaded))
        loaded = [Ref(len(steps) - 1)]
    if is_narrow and not is_reduction:
        steps.append(("to_dtype", Ref(len(steps) - 1), str(dtype).removeprefix("torch.")))
    return tuple(steps)


def op(
    name: str, space: dict[sympy.Symbol, int], args: Sequence[TensorArg], body: Any, *, gone: Sequence[Any] = ()
) -> OpSpec:
    """An operation over a space, reduced over `gone` by a sum."""
    info: dict[str, Any] = {"body": body}
    if gone:
        info |= {"reduction": "sum", "reduction_symbols": tuple(gone), "accumulates_in": "float32"}
    iterated = {s: (sympy.Integer(n), 1) for s, n in space.items()}
    return OpSpec(name, bool(gone), iterated, tuple(args), info)


def large_cases(nbytes: int, side: int) -> list[Case]:
    """The programs that are compared with torch."""
    rows = int((nbytes / 4) ** 0.5)
    cases = []
    for dtype, columns in ((torch.float32, rows), (torch.float16, 2 * rows)):
        cases += cases_of(dtype, rows, columns)
        cases.append(matmul_case(side, dtype))
    return cases


def cases_of(dtype: torch.dtype, rows: int, columns: int) -> list[Case]:
    """The programs on matrices of one dtype."""
    kind = "fp32" if dtype == torch.float32 else "fp16"
    a, b, out = (torch.randn(rows, columns).to(dtype) for _ in range(3))
    row, column = torch.randn(columns).to(dtype), torch.randn(rows, 1).to(dtype)
    x, y, r, c, o = map(Tensor, (a, b, row, column, out))
    space, full, put, two = {X: rows, Y: columns}, x.arg(0, X, Y), o.arg(2, X, Y, is_input=False), ["add"]
    turned, turned_out = Tensor(torch.empty(columns, rows, dtype=dtype)), torch.empty(columns, rows, dtype=dtype)
    found: list[Case] = []

    def case(name: str, spec: OpSpec, tensors: Sequence[Tensor], theirs: Any, theirs_into: Work) -> None:
        found.append(Case(f"{name} {kind}", Program(name, (spec,), len(tensors)), tensors, theirs, theirs_into, theirs))

    def summed(dim: int, gone: sympy.Symbol, kept: sympy.Symbol) -> None:
        total = torch.empty(space[kept], dtype=dtype)
        t = Tensor(total)
        body = body_of([], 1, dtype, is_reduction=True)
        spec = op("sum", space, [full, t.arg(1, kept, is_input=False)], body, gone=[gone])
        case(f"sum({dim})", spec, [x, t], lambda: a.sum(dim), lambda: torch.sum(a, dim, out=total))

    def pair(name: str, other: Tensor, *coordinates: Any) -> None:
        value = other.value
        spec = op("add", space, [full, other.arg(1, *coordinates), put], body_of(two, 2, dtype))
        case(name, spec, [x, other, o], lambda: a + value, lambda: torch.add(a, value, out=out))

    def single(name: str, names: Sequence[str], theirs: Any, theirs_into: Work) -> None:
        args = [full, o.arg(1, X, Y, is_input=False)]
        case(name, op(name, space, args, body_of(names, 1, dtype)), [x, o], theirs, theirs_into)

    pair("add", y, X, Y)
    pair("row broadcast", r, Y)
    pair("column broadcast", c, X, 0)
    single("exp", ["exp"], lambda: a.exp(), lambda: torch.exp(a, out=out))
    single(
        "chain of 5",
        ["exp", "neg", "tanh", "abs", "sqrt"],
        lambda: a.exp().neg().tanh().abs().sqrt(),
        lambda: torch.exp(a, out=out).neg_().tanh_().abs_().sqrt_(),
    )
    summed(-1, Y, X)
    summed(0, X, Y)
    spec = op("copy", {Y: columns, X: rows}, [full, turned.arg(1, Y, X, is_input=False)], (("load", 0),))
    case("transpose", spec, [x, turned], lambda: a.T.contiguous(), lambda: turned_out.copy_(a.T))
    return found


def matmul_case(side: int, dtype: torch.dtype) -> Case:
    """A square product. In 16 bits torch is asked in Float32 too, with both conversions: its own takes seconds."""
    a, b = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
    out = torch.empty(side, side, dtype=dtype)
    x, y, o = map(Tensor, (a, b, out))
    steps = body_of(["mul"], 2, dtype, is_reduction=True)
    args = [x.arg(0, X, K), y.arg(1, K, Y), o.arg(2, X, Y, is_input=False)]
    spec = op("batchmatmul", {X: side, Y: side, K: side}, args, steps, gone=[K])

    def theirs() -> torch.Tensor:
        return (a.float() @ b.float()).to(dtype)

    def theirs_into() -> torch.Tensor:
        if dtype == torch.float32:
            return torch.mm(a, b, out=out)
        return out.copy_(a.float() @ b.float())

    program = Program("matmul", (spec,), 3)
    kind = "fp32" if dtype == torch.float32 else "fp16"
    return Case(f"matmul {side} {kind}", program, [x, y, o], theirs, theirs_into, theirs)


def measure(cases: Sequence[Case], turns: int) -> list[dict[str, Any]]:
    """One row for every program. Units: milliseconds, the best turn."""
    rows = []
    for case in cases:
        works = (case.ours(), case.theirs, case.theirs_into)
        case.require_right(works[0])
        best = [float("inf")] * 3
        for _ in range(turns):
            for k, work in enumerate(works):
                begin = time.perf_counter()
                work()
                best[k] = min(best[k], (time.perf_counter() - begin) * 1e3)
        limit = next((v for k, v in LIMITS.items() if k in case.name), None)
        rows.append(
            {
                "program": case.name,
                "spyre_ms": best[0],
                "torch_ms": best[1],
                "torch_into_ms": best[2],
                "ratio": best[0] / best[1],
                "ratio_into": best[0] / best[2],
                "limit": limit,
            }
        )
    return rows


def overhead(rounds: int) -> list[dict[str, Any]]:
    """What each of many small operations costs. Units: microseconds per operation run, the best round."""
    tensors = [Tensor(torch.randn(4, 32)) for _ in range(2)]
    half = [Tensor(torch.randn(4, 64).half()) for _ in range(2)]
    space, count = {X: 4, Y: 32}, 50
    args = [tensors[0].arg(0, X, Y), tensors[0].arg(0, X, Y), tensors[1].arg(1, X, Y, is_input=False)]
    one = op("add", space, args, body_of(["add"], 2, torch.float32))
    five = body_of(["exp", "neg", "tanh", "abs", "sqrt"], 1, torch.float32)
    chain = op("chain", space, [args[0], args[2]], five)
    total = op("sum", {X: 4, Y: 32}, [args[0], tensors[1].arg(1, 0, Y, is_input=False)], (("load", 0),), gone=[X])
    narrow = [half[0].arg(0, X, Y), half[0].arg(0, X, Y), half[1].arg(1, X, Y, is_input=False)]
    small = op("add", {X: 4, Y: 64}, narrow, body_of(["add"], 2, torch.float16))
    found = []
    for name, spec, used in (
        ("add", one, tensors),
        ("add fp16", small, half),
        ("chain of 5", chain, tensors),
        ("sum", total, tensors),
    ):
        moved = OpSpec(spec.op, spec.is_reduction, {**spec.iteration_space, X: (sympy.Integer(1), 1)}, spec.args,
                       spec.op_info, ((X,),))  # fmt: skip
        for kind, specs, runs in (
            ("straight", tuple(spec for _ in range(count)), count),
            ("in a loop", (LoopSpec(sympy.Integer(4), tuple(moved for _ in range(count))),), 4 * count),
        ):
            prepared = prepare(Program(name, specs, 2))
            addresses = [t.address for t in used]
            prepared.run(addresses)
            best = float("inf")
            for _ in range(rounds):
                begin = time.perf_counter()
                prepared.run(addresses)
                best = min(best, time.perf_counter() - begin)
            found.append({"operation": f"{name}, {kind}", "us": best / runs * 1e6})
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 also when a limit is exceeded, since a busy machine says little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 MiB operands, few turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    asked = parser.parse_args(arguments)
    nbytes, side = (2**20, 128) if asked.quick else (64 * 2**20, 1024)
    rows = measure(large_cases(nbytes, side), 3 if asked.quick else 7)
    small = overhead(5 if asked.quick else 100)
    if asked.json:
        print(json.dumps({"nbytes": nbytes, "ratios": rows, "overhead": small}))
        return 0
    print(f"operands of {nbytes // 2**20} MiB, {torch.get_num_threads()} threads\n")
    print(f"{'program':<24}{'spyre ms':>10}{'torch ms':>10}{'out= ms':>10}{'ratio':>8}{'to out=':>9}{'limit':>7}")
    for row in rows:
        limit = "" if row["limit"] is None else f"{row['limit']:.1f}"
        print(
            f"{row['program']:<24}{row['spyre_ms']:>10.2f}{row['torch_ms']:>10.2f}{row['torch_into_ms']:>10.2f}"
            f"{row['ratio']:>8.2f}{row['ratio_into']:>9.2f}{limit:>7}"
        )
    print(f"\nsmall operations in a warm program; at most {OVERHEAD_LIMIT_US:.0f} us each\n")
    for row in small:
        print(f"{row['operation']:<24}{row['us']:>10.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
