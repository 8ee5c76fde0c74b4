"""Every pointwise operation against torch, over dtypes, ranks, scalars and layouts; and its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import DType
from strideweave.operation import definitions
from support.operations import check_gradients, dense, gradients, nested, on_generic, place, variants

F = torch.nn.functional

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "square": torch.square,
    "recip": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "logical_not": torch.logical_not,
    "isnan": torch.isnan,
    "isfinite": torch.isfinite,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "elementwise_mul": torch.mul,
    "div": torch.true_divide,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "rem": torch.remainder,
    "floor_div": torch.floor_divide,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}
TRUTHS = {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not", "isnan"}
EIGHT_BIT = (DType.E4M3, DType.E5M2)
KNOWN = [dtype for dtype in DType.registered() if dtype not in EIGHT_BIT]
FLOATS = [dtype for dtype in DType.registered() if dtype.is_floating]

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, 3.0, 7.0, -7.0, 100.0, math.inf, -math.inf, math.nan]


def values_of(dtype: sw.DType, *, other: bool = False) -> torch.Tensor:
    """Sixteen values with every special one; `other` meets them in another order."""
    if dtype.is_floating:
        found = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype.torch_dtype)
    elif dtype is DType.Bool:
        found = torch.tensor([True, False, False, True] * 4)
    else:
        limits = torch.iinfo(dtype.torch_dtype)
        signed = [-1, -2, -7] if limits.min else [9, 8, 6]
        found = torch.tensor(
            [0, 1, 2, 3, *signed, limits.max, limits.min, 5, 1, 2, 0, 4, 7, 3], dtype=dtype.torch_dtype
        )
    return found[torch.arange(18, 2, -1) % 16] if other else found


def widened(values: torch.Tensor) -> torch.Tensor:
    """8-bit floats in Float32: how they are computed."""
    return values.float() if values.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else values


def outcome(function: Callable[..., torch.Tensor], *operands: Any) -> torch.Tensor | None:
    """What torch gives; None where it refuses."""
    try:
        return function(*operands)
    except (RuntimeError, NotImplementedError):
        return None


def assert_same(found: sw.Tensor, expected: torch.Tensor, *, exact: bool = True) -> None:
    mine = dense(found)
    assert mine.dtype == expected.dtype
    both = mine.double(), expected.double()
    torch.testing.assert_close(*both, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6, equal_nan=True)


# -- against torch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY)
def test_unary_every_dtype_gives_what_torch_gives(name: str) -> None:
    operation = getattr(sw, name)
    for dtype in DType.registered():
        values = values_of(dtype)
        expected = outcome(UNARY[name], widened(values))
        if expected is None:
            with pytest.raises(TypeError, match=f"{name} on {dtype.name}"):
                operation(sw.from_torch(values))
            continue
        if dtype in EIGHT_BIT and expected.dtype != torch.bool:
            expected = expected.to(dtype.torch_dtype)
        assert_same(operation(sw.from_torch(values)), expected)


def nonzero(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values == 0, torch.ones_like(values), values)


@pytest.mark.parametrize("name", BINARY)
def test_binary_every_pair_of_dtypes_and_ranks_gives_what_torch_gives(name: str) -> None:
    operation, function = getattr(sw, name), BINARY[name]
    for a, b in itertools.product(DType.registered(), repeat=2):
        x, y = values_of(a), values_of(b, other=True)
        if name in ("rem", "floor_div"):
            y = nonzero(widened(y)).to(y.dtype)
        for left, right in ((x, y), (x, y[5]), (x[7], y)):
            expected = outcome(function, widened(left), widened(right))
            operands = sw.from_torch(left), sw.from_torch(right)
            if expected is None:
                with pytest.raises(TypeError, match=f"{name} on Bool"):
                    operation(*operands)
                continue
            if expected.dtype != torch.bool and {a, b} & set(EIGHT_BIT):
                expected = expected.to(operation(*operands).dtype().torch_dtype)
            assert_same(operation(*operands), expected)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("scalar", [True, 3, 0.1, math.nan])
def test_binary_with_a_scalar_on_either_side_gives_what_torch_gives(name: str, scalar: float) -> None:
    operation, function = getattr(sw, name), BINARY[name]
    for dtype in KNOWN:
        x = values_of(dtype)
        x = nonzero(x) if name in ("rem", "floor_div") else x
        as_tensor = torch.tensor(scalar, dtype=torch.result_type(x, scalar))
        for operands, plain in (((x, scalar), (x, as_tensor)), ((scalar, x), (as_tensor, x))):
            needs_tensors = name in TRUTHS or name in ("maximum", "minimum")
            expected = outcome(function, *(plain if needs_tensors else operands))
            mine = [sw.from_torch(o) if isinstance(o, torch.Tensor) else o for o in operands]
            if expected is None:
                with pytest.raises(TypeError, match=f"{name} on Bool"):
                    operation(*mine)
            else:
                assert_same(operation(*mine), expected)


def test_whole_numbers_out_of_range_wrap_as_in_torch() -> None:
    for dtype in (DType.Int8, DType.UInt8, DType.Int64):
        x = values_of(dtype)
        t = sw.from_torch(x)
        for mine, theirs in (
            (sw.mul(t, t), x * x),
            (sw.add(t, 100), x + 100),
            (sw.sub(0, t), 0 - x),
            (sw.pow(t, 7), x**7),
            (sw.square(t), x.square()),
            (sw.neg(t), -x),
            (sw.abs(t), x.abs()),
        ):
            assert_same(mine, theirs)


def test_eight_bit_floats_are_rounded_once() -> None:
    x = torch.tensor([1.125, 15.0], dtype=torch.float8_e4m3fn)
    y = torch.tensor([0.0703125, 0.05078125], dtype=torch.float8_e4m3fn)
    expected = (x.float() / y.float() * 1.0).to(torch.float8_e4m3fn)
    assert_same(sw.div(sw.from_torch(x), sw.from_torch(y)), expected)
    a, b = torch.tensor([1.75], dtype=torch.float8_e5m2), torch.tensor([1.125], dtype=torch.float8_e4m3fn)
    assert_same(sw.add(sw.from_torch(a), sw.from_torch(b)), torch.tensor([2.875], dtype=torch.float16))


@pytest.mark.parametrize("dtype", KNOWN, ids=lambda dtype: dtype.name)
def test_select_gives_what_torch_where_gives(dtype: sw.DType) -> None:
    condition = torch.tensor([True, False] * 8)
    for other in KNOWN:
        x, y = values_of(dtype), values_of(other, other=True)
        for left, right in ((x, y), (x[3], y), (x, 0.5), (2, y), (1.5, 2), (True, False)):
            mine = [sw.from_torch(o) if isinstance(o, torch.Tensor) else o for o in (condition, left, right)]
            assert_same(sw.select(*mine), torch.where(condition, left, right))


@pytest.mark.parametrize("dtype", [d for d in KNOWN if d is not DType.Bool], ids=lambda dtype: dtype.name)
def test_clamp_gives_what_torch_clamp_gives(dtype: sw.DType) -> None:
    x = values_of(dtype)
    t = sw.from_torch(x)
    for lower, upper in ((1, None), (None, 2), (1, 2), (5, 2), (0.5, 1.5), (None, math.nan)):
        assert_same(sw.clamp(t, lower, upper), torch.clamp(x, lower, upper))
    for other in KNOWN:
        y = values_of(other, other=True)
        bound = sw.from_torch(y)
        for mine, theirs in (
            ((bound, None), (y, None)),
            ((None, bound), (None, y)),
            ((bound, 2), (y, torch.tensor(2))),
        ):
            assert_same(sw.clamp(t, *mine), torch.clamp(x, *theirs))


def test_activations_with_options_give_what_torch_gives() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.linspace(-4, 4, 17).to(dtype)
        t = sw.from_torch(x)
        assert_same(sw.gelu(t, approximate="tanh"), F.gelu(x, approximate="tanh"))
        assert_same(sw.softplus(t, beta=2.0, threshold=3.0), F.softplus(x, 2.0, 3.0))
        assert_same(sw.elu(t, alpha=0.3), F.elu(x, 0.3))
        assert_same(sw.leaky_relu(t, negative_slope=0.2), F.leaky_relu(x, 0.2))


def test_convert_every_pair_gives_what_torch_gives_in_fresh_storage() -> None:
    for a, b in itertools.product(DType.registered(), repeat=2):
        source = torch.tensor([0.0, 1.0, 2.0, 3.0]).to(a.torch_dtype)
        t = sw.from_torch(source)
        made = sw.convert(t, b)
        assert_same(made, source.to(b.torch_dtype))
        assert made.carrier is not t.carrier


# -- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNARY)
def test_unary_every_layout_gives_the_same(name: str) -> None:
    x = torch.linspace(0.1, 2.0, 12, dtype=torch.float64).reshape(2, 6)
    for values in (x, x[:1].expand(2, 6)):
        expected = UNARY[name](values.contiguous())
        for label, t in variants(values):
            assert_same(getattr(sw, name)(t), expected, exact=False), label


@pytest.mark.parametrize("name", BINARY)
def test_binary_every_pair_of_layouts_gives_the_same(name: str) -> None:
    x = torch.linspace(0.1, 2.0, 12, dtype=torch.float64).reshape(2, 6)
    y = torch.linspace(2.0, 0.3, 6, dtype=torch.float64).expand(2, 6)
    expected = BINARY[name](x, y.contiguous())
    operation = getattr(sw, name)
    for (left, a), (right, b) in itertools.product(variants(x), variants(y)):
        if (left == "nested") is (right == "nested"):
            assert_same(operation(a, b), expected, exact=False)


def test_result_layout_follows_the_first_operand_that_has_an_order() -> None:
    rows, columns = sw.zeros(2, 3, layout=sw.Layout.row_major(2, 3)), sw.zeros(2, 3)
    repeated = sw.from_torch(torch.zeros(1, 1).expand(2, 3))
    vector = sw.zeros(3)
    assert sw.exp(rows).layout == sw.Layout.row_major(2, 3)
    assert sw.exp(columns).layout == sw.Layout.column_major(2, 3)
    assert (rows + columns).layout == sw.Layout.row_major(2, 3)
    assert (columns + rows).layout == sw.Layout.column_major(2, 3)
    assert (repeated + rows).layout == sw.Layout.row_major(2, 3)
    assert sw.exp(repeated).layout == sw.Layout.column_major(2, 3)
    assert (vector + rows).layout == sw.Layout.row_major(2, 3)
    assert sw.select(sw.gt(columns, 0), rows, 1.0).layout == sw.Layout.column_major(2, 3)
    assert sw.exp(nested(torch.zeros(4, 6))).layout.shape == sw.Shape((2, 2), (2, 3))


# -- the reference ---------------------------------------------------------------------------------------------------


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(dtype, 0.13)


def assert_reference_agrees(operation: Callable[..., sw.Tensor], *operands: Any) -> None:
    fast = operation(*operands)
    slow = operation(*[on_generic(o) if isinstance(o, sw.Tensor) else o for o in operands])
    assert slow.carrier_type() is sw.Generic
    assert (slow.dtype(), slow.layout) == (fast.dtype(), fast.layout)
    mine, theirs = dense(slow), dense(fast)
    if not mine.is_floating_point():
        assert torch.equal(mine, theirs)
        return
    limit = tolerance(mine.dtype)
    torch.testing.assert_close(mine.double(), theirs.double(), rtol=limit, atol=limit / 2, equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_unary_reference_agrees_with_the_kernel(name: str) -> None:
    for dtype in DType.registered():
        # torch's gelu of infinity is NaN in vectors and infinity in scalars.
        values = values_of(dtype)[: 13 if name == "gelu" else 16]
        if outcome(UNARY[name], widened(values)) is not None:
            assert_reference_agrees(getattr(sw, name), sw.from_torch(values))


@pytest.mark.parametrize("name", BINARY)
def test_binary_reference_agrees_with_the_kernel(name: str) -> None:
    operation = getattr(sw, name)
    for a, b in itertools.product(
        (DType.Float32, DType.BFloat16, DType.E5M2, DType.Int8, DType.Int64, DType.Bool), repeat=2
    ):
        x, y = values_of(a), values_of(b, other=True)
        y = nonzero(widened(y)).to(y.dtype) if name in ("rem", "floor_div") else y
        if outcome(BINARY[name], widened(x), widened(y)) is None:
            continue
        # Whole numbers beyond the precision of a narrow float: a rounding apart, a remainder is another number.
        if name in ("rem", "floor_div", "pow") and {a, b} == {DType.BFloat16, DType.Int64}:
            continue
        assert_reference_agrees(operation, sw.from_torch(x), sw.from_torch(y))
    for scalar in (2, 0.5):
        for dtype in (DType.Float32, DType.Float16, DType.Int8):
            # torch takes the root of -inf for its power 0.5: NaN, where IEEE says infinity.
            x = nonzero(values_of(dtype)[: 13 if name == "pow" else 16])
            assert_reference_agrees(operation, sw.from_torch(x), scalar)
            assert_reference_agrees(operation, scalar, sw.from_torch(x))


def test_compound_references_agree_with_the_kernels() -> None:
    x, y = sw.from_torch(values_of(DType.Float32)), sw.from_torch(values_of(DType.Float32, other=True))
    for operands in ((x, -1, 2), (x, y, 1.0), (x, None, y), (x, y, None)):
        fast = sw.clamp(*operands)
        slow = sw.clamp(*[on_generic(o) if isinstance(o, sw.Tensor) else o for o in operands])
        torch.testing.assert_close(dense(slow), dense(fast), equal_nan=True)
    assert_reference_agrees(sw.select, sw.gt(x, y), x, y)
    assert_reference_agrees(sw.select, sw.gt(x, y), x, 7)
    finite = sw.from_torch(torch.linspace(-5, 5, 21))
    assert_reference_agrees(lambda t: sw.gelu(t, approximate="tanh"), finite)
    assert_reference_agrees(lambda t: sw.softplus(t, beta=3.0, threshold=2.0), finite)
    assert_reference_agrees(lambda t: sw.elu(t, alpha=0.3), finite)
    assert_reference_agrees(lambda t: sw.leaky_relu(t, negative_slope=0.2), finite)


# -- gradients -------------------------------------------------------------------------------------------------------

DIFFERENTIABLE_UNARY = [name for name in UNARY if name not in {"logical_not", "isnan", "isfinite"}]
DIFFERENTIABLE_BINARY = ["add", "sub", "mul", "elementwise_mul", "div", "pow", "maximum", "minimum", "rem"]


@pytest.mark.parametrize("name", DIFFERENTIABLE_UNARY)
def test_unary_gradient_is_that_of_torch_and_of_differences(name: str) -> None:
    values = torch.tensor([[0.3, 1.7, 2.2], [1.1, 0.8, 0.6]], dtype=torch.float64)
    if definitions()[name].resolve_call(sw.zeros(1)).plan.output.is_floating and name not in (
        "sqrt",
        "rsqrt",
        "log",
        "log2",
    ):
        values = values * torch.tensor([1.0, -1.0, 1.0])
    values = values.clamp(min=-0.9) if name == "log1p" else values
    for label, t in [*variants(values), *variants(values[:, :1].expand(2, 3))[-1:]]:
        check_gradients(getattr(sw, name), t, torch_function=UNARY[name], numeric=label == "contiguous")


@pytest.mark.parametrize("name", DIFFERENTIABLE_BINARY)
def test_binary_gradient_is_that_of_torch_and_of_differences(name: str) -> None:
    operation, function = getattr(sw, name), BINARY[name]
    x = torch.tensor([[0.31, 1.7, 2.2, 0.9], [1.1, 0.8, 0.6, 1.4]], dtype=torch.float64)
    y = torch.tensor([[0.7, 0.5, 1.9, 2.3], [1.6, 2.1, 0.41, 0.37]], dtype=torch.float64)
    for (label, a), (_, b) in zip(variants(x), variants(y), strict=True):
        check_gradients(operation, a, b, torch_function=function, numeric=label in ("contiguous", "nested"))
    check_gradients(operation, sw.from_torch(x), sw.from_torch(y[0]), torch_function=function)
    check_gradients(operation, sw.from_torch(x[:, :1]), sw.from_torch(y[0]), torch_function=function)
    check_gradients(operation, sw.from_torch(x[0, 0]), sw.from_torch(y), torch_function=function)
    for scalar in (2, 1.5):
        constant = torch.tensor(scalar, dtype=torch.float64)
        for t in (sw.from_torch(x), nested(x)):
            check_gradients(lambda u, s=scalar: operation(u, s), t, torch_function=lambda u, c=constant: function(u, c))
            check_gradients(lambda u, s=scalar: operation(s, u), t, torch_function=lambda u, c=constant: function(c, u))


@pytest.mark.parametrize("name", [*DIFFERENTIABLE_UNARY, *DIFFERENTIABLE_BINARY])
def test_gradient_at_special_values_is_that_of_torch(name: str) -> None:
    for dtype in (DType.Float64, DType.Float32, DType.BFloat16, DType.Float16):
        x = values_of(dtype)
        operands = [x] if name in UNARY else [x, values_of(dtype, other=True)]
        function = UNARY[name] if name in UNARY else BINARY[name]
        leaves = [o.clone().requires_grad_() for o in operands]
        result = function(*leaves)
        result.backward(torch.ones_like(result))
        found = gradients(
            getattr(sw, name), *map(sw.from_torch, operands), cotangent=sw.from_torch(torch.ones_like(result).detach())
        )
        limit = 0.0 if name in ("relu", "abs", "maximum", "minimum", "sign", "floor") else tolerance(dtype.torch_dtype)
        for mine, theirs in zip(found, leaves, strict=True):
            torch.testing.assert_close(mine, theirs.grad, rtol=limit, atol=limit, equal_nan=True)


@pytest.mark.parametrize("name", [*DIFFERENTIABLE_UNARY, *DIFFERENTIABLE_BINARY])
def test_gradient_on_generic_is_that_of_the_kernels(name: str) -> None:
    x = sw.from_torch(torch.tensor([0.3, -1.7, 2.2, 0.9, 0.25, 4.0]))
    y = sw.from_torch(torch.tensor([0.3, 0.5, -1.9, 2.3, 3.0, 2.0]))
    x = sw.from_torch(dense(x).abs()) if name in ("pow", "sqrt", "rsqrt", "log", "log2", "log1p") else x
    operands = [x] if name in UNARY else [x, y]
    fast = gradients(getattr(sw, name), *operands)
    slow = gradients(getattr(sw, name), *[on_generic(o) for o in operands])
    for mine, theirs in zip(slow, fast, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_gradient_with_options_is_that_of_torch_and_of_differences() -> None:
    x = sw.from_torch(torch.tensor([-2.0, -0.4, 0.3, 1.9], dtype=torch.float64))
    for mine, theirs in (
        (lambda t: sw.gelu(t, approximate="tanh"), lambda t: F.gelu(t, approximate="tanh")),
        (lambda t: sw.softplus(t, beta=2.0, threshold=3.0), lambda t: F.softplus(t, 2.0, 3.0)),
        (lambda t: sw.elu(t, alpha=0.3), lambda t: F.elu(t, 0.3)),
        (lambda t: sw.leaky_relu(t, negative_slope=0.2), lambda t: F.leaky_relu(t, 0.2)),
    ):
        check_gradients(mine, x, torch_function=theirs)
        torch.testing.assert_close(gradients(mine, on_generic(x)), gradients(mine, x))


def test_pow_gradient_at_zero_is_that_of_torch() -> None:
    base = torch.tensor([0.0, 0.0, 0.0, 2.0, -2.0], dtype=torch.float64)
    exponent = torch.tensor([0.0, 1.0, 2.0, 0.0, 3.0], dtype=torch.float64)
    check_gradients(sw.pow, sw.from_torch(base), sw.from_torch(exponent), torch_function=torch.pow, numeric=False)
    for scalar in (0, 1, 2, 3.0):
        check_gradients(
            lambda t, s=scalar: sw.pow(t, s),
            sw.from_torch(base),
            torch_function=lambda t, s=scalar: t**s,
            numeric=False,
        )
    for scalar in (0, 2.0, -1.0):
        check_gradients(
            lambda t, s=scalar: sw.pow(s, t),
            sw.from_torch(exponent),
            torch_function=lambda t, s=scalar: s**t,
            numeric=False,
        )
    whole = sw.from_torch(torch.tensor([2, 0, 1, 3, 2]))
    check_gradients(
        lambda t: sw.pow(t, whole), sw.from_torch(base), torch_function=lambda t: t ** whole.torch(), numeric=False
    )
    truth = sw.from_torch(torch.tensor([True, False, True, True, False]))
    assert gradients(lambda t: sw.pow(t, truth), sw.from_torch(base))[0].isfinite().all()


def test_maximum_where_both_are_equal_has_half_of_the_gradient() -> None:
    x, y = sw.tensor([1.0, 2.0, 3.0]), sw.tensor([1.0, 3.0, 2.0])
    one = sw.tensor([1.0, 1.0, 1.0])
    assert [g.tolist() for g in gradients(sw.maximum, x, y, cotangent=one)] == [[0.5, 0.0, 1.0], [0.5, 1.0, 0.0]]
    assert [g.tolist() for g in gradients(sw.minimum, x, y, cotangent=one)] == [[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]
    assert gradients(lambda t: sw.maximum(t, 1), x, cotangent=one)[0].tolist() == [0.5, 1.0, 1.0]


def test_clamp_gradient_is_that_of_torch() -> None:
    x = torch.tensor([[-1.0, 0.2, 0.5], [0.7, 1.3, 2.0]], dtype=torch.float64)
    lower, upper = torch.tensor([0.0, 0.2, 0.9], dtype=torch.float64), torch.tensor(1.3, dtype=torch.float64)
    a, b, c = map(sw.from_torch, (x, lower, upper))
    check_gradients(sw.clamp, a, b, c, torch_function=torch.clamp, numeric=False)
    check_gradients(lambda t, u: sw.clamp(t, u), a, b, torch_function=lambda t, u: torch.clamp(t, u), numeric=False)
    check_gradients(
        lambda t, u: sw.clamp(t, None, u), a, c, torch_function=lambda t, u: torch.clamp(t, max=u), numeric=False
    )
    for t in (a, nested(x)):
        check_gradients(
            lambda u: sw.clamp(u, 0.2, 1.3), t, torch_function=lambda u: torch.clamp(u, 0.2, 1.3), numeric=False
        )
    crossed = sw.tensor([2.0, 0.0], dtype=DType.Float64)
    check_gradients(
        lambda u: sw.clamp(u, 1.0, -1.0), crossed, torch_function=lambda u: torch.clamp(u, 1.0, -1.0), numeric=False
    )


def test_select_gradient_goes_where_the_value_came_from() -> None:
    x = torch.tensor([[0.3, 1.7, 2.2], [1.1, 0.8, 0.6]], dtype=torch.float64)
    condition = torch.tensor([True, False, True])
    mask = sw.from_torch(condition)
    check_gradients(
        lambda a, b: sw.select(mask, a, b),
        sw.from_torch(x),
        sw.from_torch(x[:, :1] * 2),
        torch_function=lambda a, b: torch.where(condition, a, b),
    )


def test_convert_gradient_comes_back_in_the_dtype_of_the_operand() -> None:
    x = sw.tensor([1.0, 2.0], requires_grad=True)
    (found,) = sw.grad(sw.convert(x, DType.BFloat16), x, sw.tensor([1.0, 3.0], dtype=DType.BFloat16))
    assert found is not None
    assert (found.dtype(), sw.to_list(found)) == (DType.Float32, [1.0, 3.0])
    assert not sw.convert(x, DType.Int32).requires_grad


def test_relu_gradient_of_infinity_below_zero_is_zero() -> None:
    x = sw.tensor([-1.0, 0.0, 1.0])
    found = gradients(sw.relu, x, cotangent=sw.tensor([math.inf, math.inf, 2.0]))
    assert found[0].tolist() == [0.0, 0.0, 2.0]


def test_gradients_of_mixed_dtypes_come_back_in_each_dtype() -> None:
    x, y = sw.tensor([1.5, 2.0], dtype=DType.BFloat16), sw.tensor([3.0, 0.5])
    found = gradients(sw.mul, x, y, cotangent=sw.tensor([1.0, 1.0]))
    assert [g.dtype for g in found] == [torch.bfloat16, torch.float32]
    small = sw.tensor([1.5, 2.0], dtype=DType.E4M3)
    assert gradients(sw.gelu, small, cotangent=sw.tensor([1.0, 1.0], dtype=DType.E4M3))[0].dtype == torch.float8_e4m3fn


# -- what is saved ---------------------------------------------------------------------------------------------------


def saved(name: str, *operands: Any) -> tuple[int, ...]:
    return definitions()[name].resolve_call(*operands).saved_operands


def test_saved_operands_are_those_that_a_possible_gradient_looks_at() -> None:
    x, n = sw.tensor([1.0]), sw.tensor([1])
    assert saved("add", x, x) == saved("sub", x, x) == saved("neg", x) == ()
    assert saved("mul", x, x) == (0, 1)
    assert saved("mul", x, 2) == saved("mul", 2, x) == ()
    assert saved("mul", x, n) == (1,)
    assert saved("mul", n, n) == ()
    assert saved("div", x, n) == saved("div", x, x) == (1,)
    assert saved("div", 1, x) == (1,)
    assert saved("rem", x, 2) == ()
    assert saved("relu", x) == saved("exp", x) == saved("sqrt", x) == saved("sigmoid", x) == saved("tanh", x) == ()
    assert saved("sin", x) == saved("gelu", x) == (0,)
    assert saved("select", sw.gt(x, 0), x, 1.0) == (0,)
    assert saved("select", sw.gt(x, 0), n, 1) == ()


@pytest.mark.parametrize(
    "name", ["gelu", "silu", "softplus", "elu", "leaky_relu", "relu", "sqrt", "tanh", "erf", "sin"]
)
def test_gradient_of_one_operand_is_one_operation(name: str) -> None:
    x = sw.tensor([1.0, 2.0], requires_grad=True)
    y = getattr(sw, name)(x)
    with sw.profile() as profile:
        sw.grad(y, x, sw.tensor([1.0, 1.0]))
    assert [event.name for event in profile.events()] == [f"{name}_backward"]


# -- refusals --------------------------------------------------------------------------------------------------------


def test_pow_of_whole_numbers_to_a_negative_whole_number_is_refused() -> None:
    for dtype in (DType.Int8, DType.Int64, DType.UInt8, DType.Bool):
        for x in (sw.ones(2, dtype=dtype), on_generic(sw.ones(2, dtype=dtype))):
            with pytest.raises(ValueError, match="to the power of -2"):
                sw.pow(x, -2)
            with pytest.raises(ValueError, match="to the power of -1"):
                x**-1
    assert sw.to_list(sw.tensor([2.0]) ** -1) == [0.5]
    assert sw.to_list(sw.tensor([2]) ** -1.0) == [0.5]
    assert sw.to_list(sw.pow(sw.tensor([1, -1, 2]), sw.tensor([-1, -3, -1]))) == [1, -1, 0]


def test_division_of_whole_numbers_by_zero_is_refused() -> None:
    x, zero = sw.tensor([1, 2]), sw.tensor([1, 0])
    for operation in (sw.rem, sw.floor_div):
        for a, b in ((x, zero), (on_generic(x), on_generic(zero)), (x, 0)):
            with pytest.raises(ZeroDivisionError, match="divided by 0"):
                operation(a, b)


def test_select_with_a_condition_that_is_no_truth_is_refused() -> None:
    x = sw.tensor([1.0])
    for condition in (x, sw.tensor([1]), True):
        with pytest.raises(TypeError, match="a condition is a Bool Tensor"):
            sw.select(condition, x, x)


def test_clamp_without_bounds_and_of_truths_is_refused() -> None:
    with pytest.raises(ValueError, match="lower and upper are both None"):
        sw.clamp(sw.tensor([1.0]))
    with pytest.raises(TypeError, match="clamp_min on Bool"):
        sw.clamp(sw.tensor([True]), sw.tensor([True]))


def test_gelu_with_an_unknown_approximation_is_refused() -> None:
    with pytest.raises(ValueError, match="'none' and 'tanh'"):
        sw.gelu(sw.tensor([1.0]), approximate="erf")


def test_convert_to_what_is_no_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match="dtype must be a DType"):
        sw.convert(sw.tensor([1.0]), torch.float32)  # type: ignore[arg-type]


def test_shapes_that_do_not_meet_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="broadcast-compatible"):
        sw.add(sw.zeros(2, 3), sw.zeros(2, 4))


def test_unary_of_a_number_is_refused() -> None:
    for name in UNARY:
        with pytest.raises(TypeError, match="it takes a Tensor"):
            getattr(sw, name)(1.0)


def test_place_and_dense_are_inverse() -> None:
    values = torch.arange(24.0).reshape(4, 6)
    for _, t in variants(values):
        assert torch.equal(dense(place(values, t.layout)), values)
