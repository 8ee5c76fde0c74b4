"""The promotion table against torch's, over every pair of dtypes, every pair of ranks, and scalars; and its page."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import strideweave as sw
from strideweave import DType
from strideweave.operation import Arithmetic, OperandPlan, OperandRole, definitions, promote, promote_pair
from strideweave.operation.promotion import computed_in, floating

PAGE = Path(__file__).parents[3] / "docs" / "dtypes.md"
EIGHT_BIT = (DType.E4M3, DType.E5M2)
ALL = DType.registered()
KNOWN = [dtype for dtype in ALL if dtype not in EIGHT_BIT]


def of(dtype: torch.dtype) -> sw.DType:
    return DType.from_torch(dtype)


# -- against torch ---------------------------------------------------------------------------------------------------


def test_promote_pair_is_that_of_torch() -> None:
    for a, b in itertools.product(KNOWN, repeat=2):
        assert promote_pair(a, b) is of(torch.promote_types(a.torch_dtype, b.torch_dtype)), (a, b)


def test_promote_of_two_tensors_of_any_ranks_is_that_of_torch() -> None:
    for (a, b), ranks in itertools.product(
        itertools.product(KNOWN, repeat=2), itertools.product((True, False), repeat=2)
    ):
        plain = [
            torch.ones([1] if ranked else [], dtype=d.torch_dtype) for d, ranked in zip((a, b), ranks, strict=True)
        ]
        assert promote(list(zip((a, b), ranks, strict=True))) is of(torch.result_type(*plain)), (a, b, ranks)


@pytest.mark.parametrize("scalar", [True, 1, 1.0])
def test_promote_with_a_scalar_is_that_of_torch(scalar: float) -> None:
    for dtype, ranked in itertools.product(KNOWN, (True, False)):
        plain = torch.ones([1] if ranked else [], dtype=dtype.torch_dtype)
        assert promote([(dtype, ranked)], [type(scalar)]) is of(torch.result_type(plain, scalar)), (dtype, ranked)


def test_promote_of_a_tensor_a_rank_0_tensor_and_a_scalar_is_that_of_torch() -> None:
    condition = torch.ones(1, dtype=torch.bool)
    for (a, b), scalar in itertools.product(itertools.product(KNOWN, repeat=2), (True, 1, 1.0)):
        x, y = torch.ones(1, dtype=a.torch_dtype), torch.ones((), dtype=b.torch_dtype)
        # torch promotes three at once nowhere; each rank of its own meets the next.
        expected = torch.result_type(torch.where(condition, x, y), scalar)
        assert promote([(a, True), (b, False)], [type(scalar)]) is of(expected), (a, b, scalar)


def test_promote_counts_the_order_of_operands_nowhere() -> None:
    for a, b, c in itertools.product(
        (DType.BFloat16, DType.Float16, DType.E4M3, DType.Int8, DType.UInt8, DType.Bool), repeat=3
    ):
        for ranks in itertools.product((True, False), repeat=3):
            operands = list(zip((a, b, c), ranks, strict=True))
            assert len({promote(order, [int]) for order in itertools.permutations(operands)}) == 1


# -- what torch leaves out -------------------------------------------------------------------------------------------


def test_eight_bit_floats_give_way_to_every_other_float_and_meet_in_float16() -> None:
    for small in EIGHT_BIT:
        for other in ALL:
            expected = other if other.is_floating and other not in EIGHT_BIT else small
            if other in EIGHT_BIT and other is not small:
                expected = DType.Float16
            assert promote_pair(small, other) is promote_pair(other, small) is expected
        assert promote([(small, True)], [float]) is small
        assert promote([(small, True), (DType.Float64, False)]) is small


def test_float16_holds_every_eight_bit_float() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for small in EIGHT_BIT:
        exact = codes.view(small.torch_dtype).double()
        kept = exact.to(torch.float16).double()
        assert torch.equal(kept.nan_to_num(1e9), exact.nan_to_num(1e9))


def test_floating_and_computed_in_are_closed() -> None:
    for dtype in ALL:
        assert floating(dtype) is (dtype if dtype.is_floating else DType.Float32)
        assert computed_in(dtype) is (DType.Float32 if dtype in EIGHT_BIT else dtype)


# -- plans -----------------------------------------------------------------------------------------------------------


def test_plan_tells_roles_conversions_arithmetic_and_output() -> None:
    plan = definitions()["add"].resolve_call(sw.ones(2, dtype=DType.E4M3), 1.5).plan
    assert plan.operands == (
        OperandPlan(OperandRole.TENSOR, DType.E4M3, DType.Float32),
        OperandPlan(OperandRole.WEAK_SCALAR, None),
    )
    assert (plan.operation, plan.compute, plan.output) == ("add", Arithmetic.BINARY32, DType.E4M3)
    whole = sw.ones(2, dtype=DType.Int32)
    assert definitions()["div"].resolve_call(whole, whole).plan.output is DType.Float32
    assert definitions()["div"].resolve_call(whole, whole).plan.compute is Arithmetic.BINARY32
    assert definitions()["gt"].resolve_call(whole, whole).plan.output is DType.Bool
    assert definitions()["gt"].resolve_call(whole, whole).plan.compute is Arithmetic.INTEGER
    double = sw.ones(2, dtype=DType.Float64)
    assert definitions()["mul"].resolve_call(whole, double).plan.compute is Arithmetic.BINARY64
    truth = sw.ones(2, dtype=DType.Bool)
    assert definitions()["logical_and"].resolve_call(truth, truth).plan.compute is Arithmetic.LOGICAL


def test_plans_of_equal_calls_are_equal() -> None:
    x, y = sw.ones(2), sw.zeros(2)
    add = definitions()["add"]
    assert add.resolve_call(x, x).plan == add.resolve_call(y, y).plan
    assert add.resolve_call(x, 1).plan == add.resolve_call(x, 2.5).plan
    assert add.resolve_call(x, 1).plan != add.resolve_call(1, x).plan


# -- the page --------------------------------------------------------------------------------------------------------


def table() -> str:
    """The table of the page: rows meet columns, both with modes; then what a scalar makes of a row."""
    names = [dtype.name for dtype in ALL]
    scalars = {"bool": bool, "int": int, "float": float}
    lines = [
        "| | " + " | ".join([*names, *scalars]) + " |",
        "|---" * (len(names) + len(scalars) + 1) + "|",
    ]
    for row in ALL:
        met = [promote_pair(row, column).name for column in ALL]
        met += [promote([(row, True)], [kind]).name for kind in scalars.values()]
        lines.append(f"| **{row.name}** | " + " | ".join(met) + " |")
    return "\n".join(lines)


def test_table_of_the_page_is_what_the_code_says() -> None:
    text = PAGE.read_text()
    begin, end = "<!-- begin table -->\n", "\n<!-- end table -->"
    assert text[text.index(begin) + len(begin) : text.index(end)] == table()


def test_page_names_every_dtype_and_its_bytes() -> None:
    text = PAGE.read_text()
    for dtype in ALL:
        assert f"| `{dtype.name}` | {dtype.itemsize} | `{str(dtype.torch_dtype).removeprefix('torch.')}` |" in text
