"""Pointwise operations over drawn shapes, strides, dtypes and scalars: torch is the oracle, and so is the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import strideweave as sw
from strideweave import DType
from strideweave.operation.alignment import strides_dense, with_strides
from support.operations import dense, gradients, on_generic, place

OPERATIONS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.true_divide,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "gt": torch.gt,
    "le": torch.le,
    "eq": torch.eq,
}
DTYPES = [d for d in DType.registered() if d not in (DType.E4M3, DType.E5M2)]

names = st.sampled_from(sorted(OPERATIONS))
dtypes = st.sampled_from(DTYPES)
common = st.lists(st.integers(1, 4), max_size=3)


@st.composite
def operands(draw: st.DrawFn, shape: list[int], dtype: sw.DType) -> sw.Tensor:
    """A Tensor that broadcasts to `shape`: modes left out or narrowed, strides in any order, with gaps or 0."""
    kept = draw(st.integers(0, len(shape)))
    extents = [1 if draw(st.booleans()) else n for n in shape[len(shape) - kept :]]
    strides, step = [0] * len(extents), draw(st.integers(1, 2))
    for k in draw(st.permutations(range(len(extents)))):
        if draw(st.integers(0, 4)):  # one in five repeats
            strides[k] = step
            step *= extents[k] + draw(st.integers(0, 1))
    layout = with_strides(sw.Shape(*extents), strides)
    offset = draw(st.integers(0, 2))
    values = draw(st.lists(st.integers(0, 5), min_size=layout.cosize + offset, max_size=layout.cosize + offset))
    carrier = sw.CPU.wrap(torch.tensor(values).sub(0 if dtype is DType.UInt8 else 2).to(dtype.torch_dtype))
    return sw.Tensor(carrier, offset, layout)


@given(st.data(), names, common, dtypes, dtypes)
def test_binary_of_drawn_tensors_is_that_of_torch(
    data: st.DataObject, name: str, shape: list[int], a: sw.DType, b: sw.DType
) -> None:
    x, y = data.draw(operands(shape, a)), data.draw(operands(shape, b))
    if name == "sub" and DType.Bool in (a, b):
        with pytest.raises(TypeError, match="sub on Bool"):
            sw.sub(x, y)
        return
    found = getattr(sw, name)(x, y)
    expected = OPERATIONS[name](x.torch(), y.torch())
    assert dense(found).dtype == expected.dtype
    torch.testing.assert_close(dense(found), expected, rtol=0, atol=0, equal_nan=True)
    assert found.layout.cosize == found.size()


@given(st.data(), names, common, st.sampled_from([DType.Float64, DType.Float32, DType.Int16, DType.UInt8]))
def test_reference_of_drawn_tensors_is_the_kernel(
    data: st.DataObject, name: str, shape: list[int], dtype: sw.DType
) -> None:
    x, y = data.draw(operands(shape, dtype)), data.draw(operands(shape, dtype))
    fast, slow = getattr(sw, name)(x, y), getattr(sw, name)(on_generic(x), on_generic(y))
    assert (slow.layout, slow.dtype()) == (fast.layout, fast.dtype())
    torch.testing.assert_close(dense(slow), dense(fast), equal_nan=True)


@given(st.data(), st.sampled_from(["add", "sub", "mul", "div", "maximum", "minimum"]), common)
def test_gradient_of_drawn_tensors_is_that_of_torch(data: st.DataObject, name: str, shape: list[int]) -> None:
    x, y = data.draw(operands(shape, DType.Float64)), data.draw(operands(shape, DType.Float64))
    leaves = [dense(t).requires_grad_() for t in (x, y)]
    result = OPERATIONS[name](*leaves)
    result.backward(torch.ones_like(result))
    cotangent = getattr(sw, name)(x, y)
    found = gradients(getattr(sw, name), x, y, cotangent=place(torch.ones_like(result).detach(), cotangent.layout))
    for mine, theirs in zip(found, leaves, strict=True):
        torch.testing.assert_close(mine, theirs.grad, equal_nan=True)


@given(st.data(), common, dtypes, dtypes, st.sampled_from([None, 2, 0.5, True]))
def test_select_of_drawn_tensors_is_where_of_torch(
    data: st.DataObject, shape: list[int], a: sw.DType, b: sw.DType, scalar: float | None
) -> None:
    condition = data.draw(operands(shape, DType.Bool))
    x, y = data.draw(operands(shape, a)), data.draw(operands(shape, b))
    chosen, plain = (y, y.torch()) if scalar is None else (scalar, scalar)
    expected = torch.where(condition.torch(), x.torch(), plain)
    found = dense(sw.select(condition, x, chosen))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@given(st.data(), common, st.permutations(["square", "neg", "sigmoid", "floor"]))
def test_unary_of_a_drawn_tensor_depends_on_values_alone(
    data: st.DataObject, shape: list[int], order: list[str]
) -> None:
    x = data.draw(operands(shape, DType.Float32))
    moved = place(dense(x), strides_dense(x.shape))
    for name in order:
        a, b = getattr(sw, name)(x), getattr(sw, name)(moved)
        torch.testing.assert_close(dense(a), dense(b))
