"""Automatic tiles against brute force: all ways to cut, the addresses that are touched, and what is written where."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.planned import Planned, compiled_once, watched
from tests.support.planned import settings as switched

import strideweave.inductor
import strideweave.spyre.device
from strideweave.inductor import Unsupported
from strideweave.inductor.loop_plans import IDENTITIES
from strideweave.inductor.ops import Op, Touch, computed_ops, layout_of
from strideweave.spyre.expressions import evaluate
from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Ref, TensorArg
from strideweave.spyre.sticks import DataFormat

F16, F32, I64 = torch.float16, torch.float32, torch.int64
EXTENTS = [1, 2, 3, 5, 7, 8, 12, 16, 17, 20, 31, 64, 65, 96, 128, 130, 192]
MOST_POINTS = 20000
MOST_TILES = 64


# -- random functions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    text: str
    function: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    limit: int
    cores: int
    switches: dict[str, bool]

    def __repr__(self) -> str:
        sizes = [(tuple(a.shape), a.dtype) for a in self.args]
        return f"<{self.text} of {sizes}, limit {self.limit}, {self.cores} cores, {self.switches}>"


def values(size: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small whole numbers: sums of them are exact, whatever their order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, tuple(size), generator=generator).to(dtype)


@st.composite
def sizes(draw: st.DrawFn, least: int = 1) -> tuple[int, ...]:
    size = tuple(draw(st.lists(st.sampled_from(EXTENTS), min_size=least, max_size=3)))
    while math.prod(size) > MOST_POINTS:
        size = tuple(-(-n // 2) for n in size)
    return size


View = tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor], str]


@st.composite
def views(draw: st.DrawFn, size: tuple[int, ...]) -> View:
    """A tensor's size, and how it becomes an operand that broadcasts to `size`."""
    kind = draw(st.sampled_from(["whole", "whole", "broadcast", "transposed", "sliced", "stepped"]))
    if kind == "broadcast":
        kept = draw(st.lists(st.booleans(), min_size=len(size), max_size=len(size)))
        return tuple(n if keep else 1 for n, keep in zip(size, kept, strict=True)), lambda x: x, "broadcast"
    if kind == "transposed":
        order = draw(st.permutations(range(len(size))))
        base = [0] * len(size)
        for k, dim in enumerate(order):
            base[dim] = size[k]
        return tuple(base), lambda x: x.permute(*order), f"permuted {order}"
    if kind in ("sliced", "stepped"):
        dim = draw(st.integers(0, len(size) - 1))
        step = 2 if kind == "stepped" else 1
        begin = draw(st.integers(0, 3))
        end = begin + size[dim] * step
        base = tuple(end if k == dim else n for k, n in enumerate(size))
        index = tuple(slice(begin, end, step) if k == dim else slice(None) for k in range(len(size)))
        return base, lambda x: x[index], f"[{begin}:{end}:{step}] of dim {dim}"
    return size, lambda x: x, "whole"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from([F16, F16, F32, I64]))
    kind = draw(st.sampled_from(["pointwise", "pointwise", "chain", "reduction", "reduction", "matmul"]))
    if kind == "matmul":
        dtype = draw(st.sampled_from([F16, F32]))
        m, n = draw(st.sampled_from(EXTENTS)), draw(st.sampled_from(EXTENTS))
        k = draw(st.sampled_from([8, 64, 65, 96, 128, 192]))
        transposed = draw(st.booleans())
        shapes = [(m, k), (n, k) if transposed else (k, n)]
        function: Callable[..., Any] = (lambda x, w: x @ w.t()) if transposed else (lambda x, w: x @ w)
        text = "x @ w.t()" if transposed else "x @ w"
    else:
        size = draw(sizes(2 if kind == "reduction" else 1))
        shape_x, view_x, text_x = draw(views(size))
        shape_y, view_y, text_y = draw(views(size))
        shapes = [shape_x, shape_y]
        if kind == "reduction":
            dims = sorted(draw(st.sets(st.integers(0, len(size) - 1), min_size=1)))
            how = draw(st.sampled_from(["sum", "amax", "amin"]))
            shapes = shapes[:1]
            text = f"{how} {dims} of {text_x}"
            function = lambda x: getattr(torch, how)(view_x(x), dims)  # noqa: E731
        elif kind == "chain":
            text = f"({text_x} + {text_y}) * 2 - {text_x}"
            function = lambda x, y: (view_x(x) + view_y(y)) * 2 - view_x(x)  # noqa: E731
        else:
            text = f"{text_x} + {text_y}"
            function = lambda x, y: view_x(x) + view_y(y)  # noqa: E731
    args = tuple(values(shape, dtype, seed) for seed, shape in enumerate(shapes))
    biggest = max(math.prod(shape) * dtype.itemsize for shape in shapes)
    limit = max(256, biggest // draw(st.integers(1, 40)))
    if draw(st.booleans()):
        limit = -(-limit // 128) * 128
    switches = {
        "span_reduction_tiling": draw(st.sampled_from([True, True, False])),
        "span_uneven_tiles": draw(st.sampled_from([True, True, False])),
        "span_fusion": True,
    }
    return Case(text, function, args, limit, draw(st.sampled_from([1, 1, 2, 4])), switches)


# -- brute force over one operation ----------------------------------------------------------------------------------


@dataclass
class Accessed:
    """Where one operand's elements are at every point, by enumeration."""

    addresses: np.ndarray[Any, Any]
    """One axis a symbol."""
    along_sticks: np.ndarray[Any, Any] | None
    """The host coordinate along the sticks at every point; None where there are none along a dim."""
    itemsize: int
    eps: int


@dataclass
class Seen:
    """An operation as it is before tiling."""

    name: str
    extents: list[int]
    is_reduction: list[bool]
    can_be_in_parts: bool
    accessed: list[Accessed]
    total_nbytes: Callable[[Sequence[int]], int]
    """What a tile's total of parts takes, by the tile's range along every symbol."""


def seen(op: Op) -> Seen:
    symbols = list(op.iteration.ranges)
    extents = [op.iteration.ranges[s] for s in symbols]
    grid = dict(zip(symbols, np.meshgrid(*map(np.arange, extents), indexing="ij"), strict=True)) if symbols else {}
    accessed = [_accessed(touch, grid, tuple(extents)) for touch in (*op.reads, op.write)]
    layout = layout_of(op.name)
    size, stride = [int(n) for n in layout.size], [int(n) for n in layout.stride]
    narrow = layout.dtype in (torch.float16, torch.bfloat16)
    dims = layout.device_layout.dim_map
    assert dims is not None
    stick = max(range(len(size)), key=lambda k: (-stride[k], k), default=None) if narrow else dims[-1]
    eps = 32 if narrow else layout.device_layout.elems_per_stick
    output = op.iteration.output

    def total_nbytes(ranges: Sequence[int]) -> int:
        known = dict(zip(symbols, ranges, strict=True))
        tile = [known.get(s, 1) for s in output] if len(output) == len(size) else size
        found = 128
        for k, n in enumerate(tile):
            found *= -(-n // eps) if k == stick else n
        return found

    return Seen(
        op.name, extents, [s in op.iteration.reduction_symbols for s in symbols],
        op.reduction_type in IDENTITIES, accessed, total_nbytes,
    )  # fmt: skip


def _accessed(touch: Touch, grid: dict[Any, Any], shape: tuple[int, ...]) -> Accessed:
    layout = layout_of(touch.name)
    device = layout.device_layout
    offset = np.broadcast_to(np.asarray(evaluate(touch.access.index, grid)), shape)
    size, stride = layout.space
    coordinates: dict[int, Any] = {}
    for k in sorted(range(len(size)), key=lambda k: (-stride[k], k)):
        if size[k] == 1:
            coordinates[k] = np.zeros(shape, dtype=np.int64)
            continue
        coordinates[k], offset = offset // stride[k], offset % stride[k]
    dims, eps = device.dim_map, device.elems_per_stick
    assert dims is not None
    address = np.zeros(shape, dtype=np.int64)
    step = 1
    seen_stick = False
    for k in reversed(range(len(dims))):
        dim = dims[k]
        if dim >= 0:
            if k == len(dims) - 1:
                address = address + coordinates[dim] % eps * step
            elif dim == dims[-1] and not seen_stick:
                seen_stick = True
                address = address + coordinates[dim] // eps * step
            else:
                address = address + coordinates[dim] * step
        step *= device.device_size[k]
    along = coordinates[dims[-1]] if dims[-1] >= 0 else None
    return Accessed(address, along, device.device_dtype.itemsize, eps)


def window(accessed: Accessed, tiles: Sequence[int]) -> int:
    """The bytes of the widest window over all tiles of these ranges, the last ones shorter."""
    low = high = accessed.addresses
    for axis, (extent, tile) in enumerate(zip(low.shape, tiles, strict=True)):
        starts = list(range(0, extent, tile))
        low, high = np.minimum.reduceat(low, starts, axis), np.maximum.reduceat(high, starts, axis)
    return (int((high - low).max()) + 1) * accessed.itemsize


def cuts_sticks(found: Seen, axis: int, tile: int) -> bool:
    for accessed in found.accessed:
        along = accessed.along_sticks
        if along is None:
            continue
        origin = (0,) * along.ndim
        there = tuple(tile if k == axis else 0 for k in range(along.ndim))
        if (int(along[there]) - int(along[origin])) % accessed.eps:
            return True
    return False


Plan = tuple[int, int, int]
"""Tiles in all, dims that are tiled, the largest count."""


def plans(found: Seen, case: Case) -> Iterator[list[dict[int, int]]]:
    """By kind, the plainest first: the ranges of a tile that each dim may have.

    With a shorter last tile there are few tiles, or about as many as one dim alone would need.
    """
    required = max(-(-window(a, found.extents) // case.limit) for a in found.accessed)
    exact: dict[int, list[int]] = {}
    uneven: dict[int, list[int]] = {}
    for axis, extent in enumerate(found.extents):
        if found.is_reduction[axis] and not (found.can_be_in_parts and case.switches["span_reduction_tiling"]):
            continue
        legal = [t for t in range(1, extent) if not cuts_sticks(found, axis, t)]
        exact[axis] = [t for t in legal if extent % t == 0]
        unit = next((u for u in (1, 2, 4, 8, 16, 32, 64, 128) if u in legal), extent)
        counts = {*range(2, 16), *range(max(2, required), max(2, required) + 16)}
        few_tiles = {math.ceil(math.ceil(extent / count) / unit) * unit for count in counts}
        uneven[axis] = [t for t in legal if extent % t and t in few_tiles]
    few = {a: [t for t in ts if found.extents[a] // t <= MOST_TILES] for a, ts in exact.items()}
    every = {a: ts + (uneven[a] if case.switches["span_uneven_tiles"] else []) for a, ts in exact.items()}
    for choices in (few, every):
        outputs = {a: ts for a, ts in choices.items() if not found.is_reduction[a]}
        yield [outputs, choices]  # type: ignore[list-item]


def cheapest(found: Seen, case: Case) -> tuple[str, Plan | None]:
    """What brute force finds: no tiles needed, the cheapest of the first kind that has any, or that there are none."""
    if all(window(a, found.extents) <= case.limit for a in found.accessed):
        return "fits", None
    for kinds in plans(found, case):
        for choices in kinds:
            best = _cheapest(found, case, choices)  # type: ignore[arg-type]
            if best is not None:
                return "tiled", best
    return "none", None


def _cheapest(found: Seen, case: Case, choices: dict[int, list[int]]) -> Plan | None:
    best: Plan | None = None
    axes = [a for a in choices if choices[a]]
    for count in range(1, min(3, len(axes)) + 1):
        for subset in itertools.combinations(axes, count):
            for tiles in itertools.product(*(choices[a] for a in subset)):
                counts = [-(-found.extents[a] // t) for a, t in zip(subset, tiles, strict=True)]
                cost = (math.prod(counts), count, max(counts))
                if best is not None and cost >= best:
                    continue
                ranges = list(found.extents)
                for a, t in zip(subset, tiles, strict=True):
                    ranges[a] = t
                if any(found.is_reduction[a] for a in subset) and found.total_nbytes(ranges) > case.limit:
                    continue
                if all(window(accessed, ranges) <= case.limit for accessed in found.accessed):
                    best = cost
    return best


# -- what is written -------------------------------------------------------------------------------------------------

NAMES = {
    "sympify": lambda text: sympy.sympify(text, locals=SYMBOLS), "LoopSpec": LoopSpec, "OpSpec": OpSpec,
    "Program": Program, "Ref": Ref, "TensorArg": TensorArg, "DataFormat": DataFormat, "float": float,
}  # fmt: skip
SYMBOLS = {name: sympy.Symbol(name, integer=True, nonnegative=True) for name in (f"c{k}" for k in range(8))}


def written(program: Program) -> dict[int, Counter[int]]:
    """For every argument how often each of its elements is written, loop by loop and tile by tile."""
    found: dict[int, Counter[int]] = {}

    def run(specs: Sequence[Any], loops: tuple[tuple[int, int], ...]) -> None:
        for spec in specs:
            if isinstance(spec, LoopSpec):
                for turn in range(int(spec.count)):
                    run(spec.body, (*loops, (int(spec.count), turn)))
            elif spec.args[-1].arg_index >= 0:
                found.setdefault(spec.args[-1].arg_index, Counter()).update(_addresses(spec, loops))

    run(program.specs, ())
    return found


def _addresses(spec: OpSpec, loops: tuple[tuple[int, int], ...]) -> list[int]:
    arg = spec.args[-1]
    reduced = set(spec.op_info.get("reduction_symbols", ()))
    ranges = {s: int(n) for s, (n, _) in spec.iteration_space.items() if s not in reduced}
    begins = dict.fromkeys(ranges, 0)
    advance = dict(ranges)
    for level in reversed(range(len(loops))):
        count, turn = loops[level]
        for symbol in spec.tiled_symbols[len(loops) - 1 - level] if spec.tiled_symbols else ():
            if symbol in ranges:
                begins[symbol] += turn * advance[symbol]
                advance[symbol] *= count
    axes = [np.arange(begins[s], begins[s] + n) for s, n in ranges.items()]
    grid = dict(zip(ranges, np.meshgrid(*axes, indexing="ij"), strict=True)) if axes else {}
    shape = tuple(ranges.values())
    address: Any = np.zeros(shape, dtype=np.int64)
    for coordinate, stride in zip(arg.device_coordinates, arg.device_strides, strict=True):
        address = address + np.broadcast_to(np.asarray(evaluate(coordinate, grid)), shape) * stride
    return list(np.asarray(address).reshape(-1).tolist())


# -- the property ----------------------------------------------------------------------------------------------------


def check(case: Case) -> None:
    assert strideweave.inductor.register is not None
    assert strideweave.spyre.device.is_registered()
    operations: list[Seen] = []

    def inspect(graph: Any) -> None:
        operations.extend(seen(op) for op in computed_ops(graph))

    got, refused = None, None
    watch: Planned
    with switched(case.limit, case.cores, **case.switches), watched(inspect) as watch:
        try:
            got = compiled_once(case.function, [a.to("spyre") for a in case.args])
        except Unsupported as error:
            refused = error
        exceeding = [o.name for row in watch.report.rows for o in row.operands if o.exceeds]
    answers = {found.name: cheapest(found, case) for found in operations}
    for found in operations:
        kind, cost = answers[found.name]
        analysis = watch.analyses.get(found.name)
        if analysis is None:
            continue  # something before it was refused, or it was itself
        plan = analysis.plan
        if kind != "tiled":
            assert plan is None, f"{found.name} is planned {plan}, brute force says it {kind}"
            continue
        assert plan is not None, f"{found.name} has no plan ({analysis.note}), brute force finds {cost}"
        counts = [level.split_count for level in plan.levels]
        assert (math.prod(counts), len(counts), max(counts)) == cost, f"{plan} is not the cheapest: {cost}"
    if refused is not None:
        event("refused")
        assert any(kind == "none" for kind, _ in answers.values()), f"refused for no reason: {refused}"
        return
    event(", ".join(sorted({kind for kind, _ in answers.values()})))
    assert not exceeding
    expected = case.function(*case.args)
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)
    outputs = 0
    for text in watch.report.programs:
        for counts_of in written(eval(text, dict(NAMES))).values():
            assert set(counts_of.values()) == {1}, "an element is written more than once"
            outputs = max(outputs, len(counts_of))
    assert outputs >= expected.numel(), "an element is not written"


@given(cases())
@settings(deadline=None)
def test_plans_are_the_cheapest_that_fit_and_write_everything_once(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(cases())
@settings(max_examples=400, deadline=None)
def test_plans_are_the_cheapest_many_times(case: Case) -> None:
    check(case)
