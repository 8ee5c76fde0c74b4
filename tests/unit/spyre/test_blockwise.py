"""Operations on windows in blocks: reductions over whole and partial sticks, masks, memory read and written at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import sympy
import torch
from tests.support.spyre_programs import Access, Case, Placed

from strideweave.spyre import blockwise, reductions
from strideweave.spyre.executor import prepare
from strideweave.spyre.memory import memory
from strideweave.spyre.specs import OpSpec, Program, Ref
from strideweave.spyre.steps import EXACT_WHEN_NARROW, STEPS

X, Y = sympy.symbols("x y", integer=True, nonnegative=True)


@pytest.fixture(params=[None, 64])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as they are, and small ones."""
    if request.param:
        for name in ("BLOCK_ELEMS", "FOLDED_ELEMS", "SUMMED_ELEMS"):
            monkeypatch.setattr(blockwise, name, request.param)


@pytest.fixture
def placed() -> Iterator[list[Placed]]:
    found: list[Placed] = []
    yield found
    for one in found:
        one.free()


def run(
    placed: list[Placed], value: torch.Tensor, info: dict[str, Any], out: Access, order: tuple[int, ...] = (0, 1)
) -> torch.Tensor:
    name = str(value.dtype).removeprefix("torch.")
    access = Access((X, Y), tuple(value.shape), name, order)
    gone = info.get("reduction_symbols", ())
    space = {X: (sympy.Integer(value.shape[0]), 1), Y: (sympy.Integer(value.shape[1]), 1)}
    args = (access.arg(0, is_input=True), out.arg(1, is_input=False))
    spec = OpSpec("test", bool(gone), space, args, info)
    nothing = torch.empty(0)
    case = Case(Program("test", (spec,), 2), [access, out], [value], nothing, torch.ones(out.size, dtype=torch.bool))
    placed.append(Placed(case))
    prepared = prepare(case.program)
    prepared.run(placed[-1].addresses)
    prepared.run(placed[-1].addresses)
    assert placed[-1].is_poison_elsewhere()
    return placed[-1].output()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("columns", [1, 2, 63, 64, 130])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("gone", [(X,), (Y,), (X, Y)])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_reduction_over_whole_and_partial_sticks_is_torchs(
    placed: list[Placed], columns: int, order: tuple[int, ...], gone: Any, kind: str, dtype: str
) -> None:
    value = torch.randint(-9, 9, (5, columns), generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    wide = "float32" if dtype == "float16" else dtype
    info = {"body": (("load", 0), ("to_dtype", Ref(0), wide)), "reduction": kind, "reduction_symbols": gone}
    kept = [(s, n) for s, n in ((X, 5), (Y, columns)) if s not in gone]
    out = Access(tuple(s for s, _ in kept), tuple(n for _, n in kept), dtype, tuple(range(len(kept))))
    found = run(placed, value, {**info, "accumulates_in": wide}, out, order)
    dims = [{X: 0, Y: 1}[s] for s in gone]
    expected = value.sum(dims) if kind == "sum" else getattr(value, f"a{kind}")(dims)
    assert torch.equal(found, expected.to(found.dtype))


@pytest.mark.parametrize("columns", [2, 64, 130])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("gone", [(X,), (Y,), (X, Y), (Y, X)])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("chunk", [10, 2**17])
def test_place_of_an_extreme_is_the_first_in_the_order_of_symbols(
    placed: list[Placed],
    columns: int,
    order: tuple[int, ...],
    gone: Any,
    kind: str,
    dtype: str,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reductions, "_CHUNK_ELEMS", chunk)
    value = torch.randint(-2, 3, (5, columns), generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    if dtype.startswith("float"):
        value[3, 1] = float("nan")
    info = {"body": (("load", 0),), "reduction": kind, "reduction_symbols": gone, "accumulates_in": dtype}
    kept = [(s, n) for s, n in ((X, 5), (Y, columns)) if s not in gone]
    out = Access(tuple(s for s, _ in kept), tuple(n for _, n in kept), "int64", tuple(range(len(kept))))
    found = run(placed, value, info, out, order)
    rows = value.numpy() if gone in ((Y,), (X, Y)) else value.numpy().T
    rows = rows.reshape(-1) if len(gone) == 2 else rows
    assert found.tolist() == getattr(rows, kind)(-1).tolist()


@pytest.mark.usefixtures("blocks")
def test_nan_and_infinities_come_through_reductions(placed: list[Placed]) -> None:
    value = torch.ones(4, 70)
    value[0, 69], value[1, 3], value[2, 0] = float("nan"), float("inf"), float("-inf")
    for kind in ("sum", "max", "min"):
        info = {"body": (("load", 0),), "reduction": kind, "reduction_symbols": (Y,), "accumulates_in": "float32"}
        found = run(placed, value, info, Access((X,), (4,), "float32", (0,)))
        expected = value.sum(1) if kind == "sum" else getattr(value, f"a{kind}")(1)
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.usefixtures("blocks")
def test_sums_of_16_bits_are_made_in_32(placed: list[Placed]) -> None:
    value = torch.full((2, 2400 * 64), 0.25, dtype=torch.float16)  # 512 + 0.25 == 512 in 16 bits
    body = (("load", 0), ("to_dtype", Ref(0), "float32"))
    info = {"body": body, "reduction": "sum", "reduction_symbols": (Y,), "accumulates_in": "float32"}
    found = run(placed, value, info, Access((X,), (2,), "float16", (0,)))
    assert torch.equal(found, value.double().sum(1).half())


@pytest.mark.usefixtures("blocks")
def test_masked_load_of_a_padded_tensor_reads_only_what_is_there(placed: list[Placed]) -> None:
    value = torch.arange(3 * 70.0).reshape(3, 70)
    inside: tuple[Any, ...] = (("index", Y - 3, "int64"), ("constant", 0, "int64"), ("ge", Ref(0), Ref(1)))
    inside += (("constant", 70, "int64"), ("lt", Ref(0), Ref(3)), ("and_", Ref(2), Ref(4)))
    body = (*inside, ("load", 0, Ref(5)), ("masked", Ref(5), Ref(6), -1.0))
    read = Access((X, Y - 3), (3, 70), "float32", (0, 1))
    out = Access((X, Y), (3, 75), "float32", (0, 1))
    space = {X: (sympy.Integer(3), 1), Y: (sympy.Integer(75), 1)}
    args = (read.arg(0, is_input=True), out.arg(1, is_input=False))
    program = Program("pad", (OpSpec("pad", False, space, args, {"body": body}),), 2)
    written = torch.ones(3, 75, dtype=torch.bool)
    placed.append(Placed(Case(program, [read, out], [value], value, written)))
    prepare(program).run(placed[-1].addresses)
    assert torch.equal(placed[-1].output(), torch.nn.functional.pad(value, (3, 2), value=-1.0))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("seed", range(40))
def test_body_of_many_steps_over_repeated_operands_is_torchs(placed: list[Placed], seed: int) -> None:
    rng = random.Random(seed)
    sizes, coordinates = [(3, 70), (70,), (3, 1), (1,)], [(X, Y), (Y,), (X, sympy.S.Zero), (sympy.S.Zero,)]
    chosen = [0, *rng.sample(range(1, 4), 2)]
    inputs = [torch.randint(-4, 5, sizes[k], generator=torch.Generator().manual_seed(seed)).float() for k in chosen]
    accesses = [Access(coordinates[k], sizes[k], "float32", tuple(range(len(sizes[k])))) for k in chosen]
    body: list[tuple[Any, ...]] = [("load", k) for k in range(3)]
    values: list[Any] = list(inputs)
    for _ in range(12):
        name = rng.choice(["add", "sub", "maximum", "minimum", "neg", "abs", "where", "relu"])
        if name == "where":
            a, b, c, d = (rng.randrange(max(0, len(body) - 5), len(body)) for _ in range(4))
            if any(values[k].dtype == torch.bool for k in (a, b, c, d)):
                continue
            body.append(("lt", Ref(a), Ref(b)))
            values.append(values[a] < values[b])
            given = [len(body) - 1, c, d]
        else:
            floats = [k for k in range(len(body)) if values[k].dtype == torch.float32]
            given = [rng.choice(floats[-4:]) for _ in range(1 if name in ("neg", "abs", "relu") else 2)]
        body.append((name, *map(Ref, given)))
        values.append(STEPS[name](*(values[k] for k in given)))
    body.append(("add", Ref(0), Ref(len(body) - 1)))  # over all of the output
    values.append(values[0] + values[-1])
    out = Access((X, Y), (3, 70), "float32", (0, 1))
    space = {X: (sympy.Integer(3), 1), Y: (sympy.Integer(70), 1)}
    args = (*(a.arg(k, is_input=True) for k, a in enumerate(accesses)), out.arg(3, is_input=False))
    program = Program("many", (OpSpec("many", False, space, args, {"body": tuple(body)}),), 4)
    written = torch.ones(3, 70, dtype=torch.bool)
    placed.append(Placed(Case(program, [*accesses, out], inputs, values[-1], written)))
    prepare(program).run(placed[-1].addresses)
    assert torch.equal(placed[-1].output(), values[-1].expand(3, 70))


def test_memory_that_is_read_and_written_elsewhere_is_read_first() -> None:
    address = memory().allocate(4096)
    view = memory().view(torch.float32)[address // 4 : address // 4 + 1024]
    view.copy_(torch.arange(1024.0))
    read = Access((X,), (1024,), "float32", (0,))
    write = Access((X + 1,), (1024,), "float32", (0,))
    args = (read.arg(0, is_input=True), write.arg(0, is_input=False))
    for body, step in (((("load", 0),), 0), ((("load", 0), ("neg", Ref(0)), ("abs", Ref(1))), 0)):
        view.copy_(torch.arange(1024.0))
        spec = OpSpec("shift", False, {X: (sympy.Integer(1023), 1)}, args, {"body": body})
        prepare(Program("shift", (spec,), 1)).run([address])
        assert view.tolist() == [0.0, *map(float, range(1023))], step
    memory().free(address)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(EXACT_WHEN_NARROW - {"copy", "identity"}))
def test_function_in_16_bits_is_the_one_in_32_rounded_once(name: str, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    if name in ("add", "sub", "mul", "truediv", "maximum", "minimum"):
        operands = [
            every.repeat(40),
            every[torch.randperm(2**16, generator=torch.Generator().manual_seed(1))].repeat(40),
        ]
        operands[1] = operands[1].roll(7 * 2**16 // 3)
    else:
        operands = [every]
    narrow = STEPS[name](*operands)
    wide = STEPS[name](*(o.float() for o in operands)).to(dtype)
    assert narrow.dtype == dtype
    assert torch.equal(narrow.isnan(), wide.isnan())
    assert torch.equal(narrow[~narrow.isnan()], wide[~wide.isnan()])
