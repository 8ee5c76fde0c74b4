"""Sort and topk against torch: values, places, ties, NaN, layouts, gradients, refusals."""

from __future__ import annotations

import math

import pytest
import torch

import strideweave as sw
from strideweave.operation.kernels import ordering as kernels
from support.operations import check_gradients, dense, leaf, nested, on_generic, variants

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
NAN = math.nan


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Few different values, so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2 if dtype is torch.bool else 5, shape, generator=generator).to(dtype)


def distinct(*shape: int, seed: int = 0) -> torch.Tensor:
    count = math.prod(shape)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).double().reshape(shape)


def comparable(x: torch.Tensor) -> torch.Tensor:
    """What torch can order: 8-bit floats as Float32, Bool as a byte."""
    if x.dtype is torch.bool:
        return x.to(torch.uint8)
    return x.float() if x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else x


def same(found: tuple[sw.Tensor, sw.Tensor], values: torch.Tensor, places: torch.Tensor) -> None:
    torch.testing.assert_close(comparable(dense(found[0])), comparable(values), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(dense(found[1]), places)


def best(x: torch.Tensor, k: int, axis: int, *, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle of topk: the beginning of torch's stable sort."""
    values, places = comparable(x).sort(dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k).to(x.dtype), places.narrow(axis, 0, k)


@pytest.fixture(params=[0, kernels.SORTED_WHOLE_ELEMS], ids=["passes", "sort"])
def ties_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to break ties, whatever the size."""
    monkeypatch.setattr(kernels, "SORTED_WHOLE_ELEMS", request.param)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort_of_every_dtype_is_torchs_stable_one(dtype: torch.dtype, descending: bool) -> None:
    x = drawn(3, 20, dtype=dtype)
    found = sw.sort(sw.from_torch(x), descending=descending)
    values, places = comparable(x).sort(dim=-1, descending=descending, stable=True)
    same(found, values.to(dtype), places)
    assert found.values.dtype() is sw.DType.from_torch(dtype)
    assert found.indices.dtype() is sw.DType.Int64


@pytest.mark.usefixtures("ties_by")
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_topk_of_every_dtype_takes_the_lowest_of_equals(dtype: torch.dtype, largest: bool) -> None:
    x = drawn(3, 20, dtype=dtype)
    for k in (1, 7, 19, 20):
        same(sw.topk(sw.from_torch(x), k, largest=largest), *best(x, k, 1, largest=largest))


@pytest.mark.usefixtures("ties_by")
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("make", [drawn, distinct], ids=["equals", "distinct"])
def test_sort_and_topk_on_every_layout_are_torchs_and_the_reference(axis: int, make: object) -> None:
    x = make(4, 6, 4)
    values, places = x.sort(dim=axis, stable=True)
    for _, t in variants(x):
        found, top = sw.sort(t, axis), sw.topk(t, 3, axis)
        same(found, values, places)
        same(top, *best(x, 3, axis % 3, largest=True))
        same(sw.sort(on_generic(t), axis), values, places)
        same(sw.topk(on_generic(t), 3, axis), *best(x, 3, axis % 3, largest=True))
        assert found.values.layout == found.indices.layout
        assert found.values.shape == t.shape
        assert torch.equal(dense(sw.argsort(t, axis)), places)
        for one in (*found, *top):
            assert one.layout.is_injective
            assert one.layout.cosize == one.layout.size
        assert top.values.layout == sw.topk(on_generic(t), 3, axis).values.layout


def test_sort_and_topk_keep_the_order_of_the_operand() -> None:
    row, column = sw.from_torch(drawn(4, 6)), sw.from_torch(drawn(6, 4).t())
    assert sw.sort(row, 0).values.layout == sw.Layout.row_major(4, 6)
    assert sw.sort(column, 0).indices.layout == sw.Layout.column_major(4, 6)
    assert sw.topk(row, 2, 0).values.layout == sw.Layout.row_major(2, 6)
    assert sw.topk(column, 2, 0).indices.layout == sw.Layout.column_major(2, 6)


@pytest.mark.usefixtures("ties_by")
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "row",
    [
        [1.0, NAN, 3.0, NAN, 2.0, 3.0],
        [NAN] * 6,
        [0.0, -0.0, 0.0, -0.0, 1.0, -1.0],
        [math.inf, -math.inf, math.inf, NAN, -math.inf, 0.0],
        [5.0, 4.0, 3.0, 2.0, 1.0, NAN],
    ],
    ids=str,
)
def test_ordering_of_specials_is_torchs_stable_sort(row: list[float], largest: bool) -> None:
    x = torch.tensor([row, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]])
    for t in (sw.from_torch(x), on_generic(sw.from_torch(x))):
        for k in range(1, 7):
            same(sw.topk(t, k, largest=largest), *best(x, k, 1, largest=largest))
        same(sw.sort(t, descending=largest), *x.sort(dim=1, descending=largest, stable=True))


def test_topk_of_many_equals_in_a_long_row_takes_the_lowest() -> None:
    x = torch.randint(0, 50, (3, 5000), generator=torch.Generator().manual_seed(0)).float()
    same(sw.topk(sw.from_torch(x), 200), *best(x, 200, 1, largest=True))
    same(sw.topk(sw.from_torch(x.t()), 200, 0, largest=False), *best(x.t(), 200, 0, largest=False))


def test_gathering_the_places_gives_the_values() -> None:
    for _, t in variants(drawn(4, 6)):
        for found in (sw.sort(t, 0, descending=True), sw.topk(t, 2, 0)):
            assert torch.equal(dense(sw.gather(t, found.indices, 0)), dense(found.values))


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_ordering_are_torchs_and_those_of_differences(axis: int) -> None:
    x = distinct(4, 6)
    for _, t in variants(x):
        check_gradients(lambda t: sw.sort(t, axis).values, t, torch_function=lambda x: x.sort(dim=axis).values)
        check_gradients(
            lambda t: sw.topk(t, 2, axis, largest=False).values,
            t,
            torch_function=lambda x: x.topk(2, axis, largest=False).values,
        )


def test_gradient_on_the_reference_carrier_goes_where_the_values_came_from() -> None:
    x = leaf(on_generic(nested(distinct(4, 6))))
    values, indices = sw.topk(x, 2, 1)
    sw.reduce_sum(values * values).backward()
    theirs = distinct(4, 6).requires_grad_()
    theirs.topk(2, 1).values.square().sum().backward()
    assert torch.equal(dense(x.grad), theirs.grad)
    assert values.requires_grad
    assert not indices.requires_grad


def test_results_are_named() -> None:
    found = sw.sort(sw.tensor([2, 1]))
    assert isinstance(found, sw.SortResult)
    assert isinstance(sw.topk(sw.tensor([2, 1]), 1), sw.TopKResult)
    assert found._fields == sw.TopKResult._fields == ("values", "indices")


def test_ordering_of_wrong_kinds_is_refused() -> None:
    x = sw.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match=r"cannot take the top 3 of \(2,2\) along axis 1: it has 2 values"):
        sw.topk(x, 3)
    with pytest.raises(ValueError, match="k is 1 to 2"):
        sw.topk(x, 0)
    with pytest.raises(TypeError, match="k must be an integer"):
        sw.topk(x, True)
    with pytest.raises(TypeError, match="axis must be an integer"):
        sw.sort(x, None)
    with pytest.raises(ValueError, match=r"no such mode\. Axes are -2 to 1"):
        sw.argsort(x, 2)
    with pytest.raises(ValueError, match="rank 0, and so no axis"):
        sw.sort(sw.reduce_sum(x))
    with pytest.raises(TypeError, match="it takes a Tensor"):
        sw.sort([3, 1])
