"""Tensors from values, extents and random numbers, against torch and numpy."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from strideweave import CPU, DType, FileBacked, Generic, Layout, Shape, Stride, Tensor
from strideweave.dtype import StorageDType
from strideweave.tensor import creation as make
from strideweave.tensor.bridges import from_torch

NESTED = Layout(Shape((2, 3), 4), Stride((1, 8), 2))
REPEATING = Layout(Shape(2, 3), Stride(0, 1))


# -- tensor ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        [[1.5, 2], [3, 4]],
        [True, False],
        [True, 2],
        [[[1], [2]], [[3], [4]]],
        7,
        2.5,
        True,
        (1, (2,))[1],
        [torch.tensor(1), torch.tensor(2)],
        [torch.ones(2), torch.zeros(2)],
        [np.ones(2), np.zeros(2)],
        np.float64(2.5),
        np.int8(3),
    ],
)
def test_tensor_of_values_has_the_dtype_shape_and_values_of_torch(values: Any) -> None:
    expected = torch.stack([torch.as_tensor(v) for v in values]) if is_array_list(values) else torch.tensor(values)
    made = make.tensor(values)
    assert torch.equal(made.torch(), expected)
    assert made.dtype() is DType.from_torch(expected.dtype)
    assert made.layout == Layout.row_major(*expected.shape)
    assert type(made.carrier) is CPU


def is_array_list(values: Any) -> bool:
    return isinstance(values, list) and isinstance(values[0], torch.Tensor | np.ndarray) and values[0].ndim > 0


def test_tensor_of_floats_is_float32_whatever_torch_defaults_to() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert make.tensor([0.1]).dtype() is DType.Float32
        assert make.tensor([0.1], dtype=DType.Float64)[0] == 0.1
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", DType.registered(), ids=repr)
def test_tensor_and_full_hold_values_in_every_dtype(dtype: StorageDType) -> None:
    expected = torch.tensor([[0, 1], [1, 0]]).to(dtype.torch_dtype)
    made = make.tensor([[0, 1], [1, 0]], dtype=dtype)
    assert made.dtype() is dtype
    assert torch.equal(made.torch().float(), expected.float())
    assert make.to_list(made) == expected.tolist()
    assert make.to_list(make.full(2, value=1, dtype=dtype)) == [expected[0, 1].item()] * 2
    assert make.item(make.full(1, value=1, dtype=dtype)) == 1


@pytest.mark.parametrize("kind", ["numpy", "torch", "tensor"])
def test_tensor_of_an_array_is_a_copy_that_keeps_the_order(kind: str) -> None:
    source = torch.arange(6.0).reshape(3, 2).T
    given = {"numpy": source.numpy(), "torch": source, "tensor": from_torch(source)}[kind]
    made = make.tensor(given)
    assert made.layout == Layout.column_major(2, 3)
    assert torch.equal(made.torch(), source)
    made[0, 0] = 9.0
    assert source[0, 0] == 0.0
    assert make.tensor(given, dtype=DType.Int16).dtype() is DType.Int16


def test_tensor_of_awkward_arrays_reads_their_values() -> None:
    assert make.to_list(make.tensor(np.arange(3.0)[::-1])) == [2.0, 1.0, 0.0]
    assert make.to_list(make.tensor(np.arange(3).astype(">i4"))) == [0, 1, 2]
    assert make.to_list(make.tensor([[np.arange(2)], [np.arange(2)]])) == [[[0, 1]], [[0, 1]]]
    lazily_negated = torch.tensor([1 + 2j]).conj().imag
    assert make.to_list(make.tensor(lazily_negated)) == [-2.0]
    generic = Tensor(Generic([1.0, 2.0, 3.0], dtype=DType.Float32), 1, Layout.column_major(2))
    assert make.to_list(make.tensor(generic)) == [2.0, 3.0]


def test_tensor_places_values_by_coordinate_of_any_layout() -> None:
    values = torch.arange(24.0).reshape(2, 3, 4)
    made = make.tensor(values.tolist(), layout=NESTED)
    assert made.layout == NESTED
    for i, j, k in itertools.product(range(2), range(3), range(4)):
        assert made[(i, j), k] == values[i, j, k]
    assert make.tensor([[1, 2, 3], [4, 5, 6]], layout=Layout.column_major(2, 3)).carrier[1] == 4


def test_tensor_places_flat_values_in_the_order_of_the_ordinals() -> None:
    for layout in (NESTED, Layout.row_major(4, 6), Layout.column_major(2, 3, 4)):
        made = make.tensor(list(range(24)), layout=layout)
        assert [made[ordinal] for ordinal in range(24)] == list(range(24))


@pytest.mark.parametrize(
    ("values", "options", "error", "words"),
    [
        ([], {}, ValueError, "at least 1"),
        ([[], []], {}, ValueError, "at least 1"),
        (np.zeros((2, 0)), {}, ValueError, "at least 1"),
        ([[1, 2], [3]], {}, ValueError, "equal lengths"),
        (["a"], {}, TypeError, "real numbers"),
        ([None], {}, TypeError, "real numbers"),
        (object(), {}, TypeError, "real numbers"),
        ([1j], {}, TypeError, "complex"),
        ([2**70], {}, OverflowError, "verflow"),
        ([300], {"dtype": DType.Int8}, OverflowError, "verflow"),
        ([1.0], {"dtype": torch.float32}, TypeError, "must be a DType"),
        ([np.ones(2), np.ones(3)], {}, ValueError, "equal lengths"),
        ([1, 2], {"layout": (2,)}, TypeError, "no Layout"),
        ([[1, 2], [3, 4]], {"layout": Layout.column_major(4)}, ValueError, "one dim per leaf"),
        ([1, 2, 3], {"layout": Layout.column_major(4)}, ValueError, "one dim per leaf"),
        ([1, 2, 3, 4, 5, 6], {"layout": REPEATING}, ValueError, "injective"),
        ([1], {"requires_grad": True}, RuntimeError, "floating"),
    ],
)
def test_tensor_of_what_it_cannot_hold_is_refused(
    values: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make.tensor(values, **options)


# -- full and its kin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extents", [(2, 3), ((2, 3),), ([2, 3],), (Shape(2, 3),)])
def test_creation_takes_extents_or_one_sequence_first_mode_fastest(extents: tuple[Any, ...]) -> None:
    for made in (make.zeros(*extents), make.full(*extents, value=2.0), make.empty(*extents), make.rand(*extents)):
        assert made.layout == Layout.column_major(2, 3)
        assert (made.dtype(), type(made.carrier), made.carrier.size()) == (DType.Float32, CPU, 6)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(True, DType.Bool), (3, DType.Int64), (1.5, DType.Float32), (np.float32(2), DType.Float32), (np.int16(2), None)],
)
def test_full_takes_the_dtype_of_its_value(value: Any, dtype: StorageDType | None) -> None:
    made = make.full(2, value=value)
    assert made.dtype() is (dtype or DType.Int64)
    assert make.to_list(made) == [value, value]


def test_ones_zeros_and_eye_hold_what_torch_holds() -> None:
    assert torch.equal(make.ones(2, 3).torch(), torch.ones(2, 3))
    assert torch.equal(make.zeros(2, 3, dtype=DType.Bool).torch(), torch.zeros(2, 3, dtype=torch.bool))
    for rows, columns in [(3, 3), (2, 4), (4, 2)]:
        assert torch.equal(make.eye(rows, columns).torch(), torch.eye(rows, columns))
        row_major = Layout.row_major(rows, columns)
        assert torch.equal(make.eye(rows, columns, layout=row_major).torch(), torch.eye(rows, columns))
    assert torch.equal(make.eye(2).torch(), torch.eye(2))


def test_full_by_layout_fills_repeating_and_nested_ones() -> None:
    for layout in (NESTED, REPEATING, Layout.empty()):
        made = make.full(value=3, layout=layout)
        assert made.layout == layout
        assert {made[k] for k in range(layout.size)} == {3}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: make.zeros(), TypeError, "no extents"),
        (lambda: make.zeros(2, 0), ValueError, "positive"),
        (lambda: make.zeros(2, layout=Layout.column_major(3)), ValueError, "shapes differ"),
        (lambda: make.zeros(layout=3), TypeError, "no Layout"),
        (lambda: make.zeros(2, dtype="float"), TypeError, "must be a DType"),
        (lambda: make.full(2, value="a"), TypeError, "real number"),
        (lambda: make.full(2, value=300, dtype=DType.Int8), OverflowError, "beyond the dtype"),
        (lambda: make.full(2, value=2**70), OverflowError, "beyond the dtype"),
        (lambda: make.eye(2, layout=Layout(Shape(2, 2), Stride(0, 1))), ValueError, "injective"),
        (lambda: make.arange(0), ValueError, "no numbers"),
        (lambda: make.arange(3, 1), ValueError, "no numbers"),
        (lambda: make.arange(1, 3, 0), ValueError, "no numbers"),
        (lambda: make.arange("3"), TypeError, "real number"),
        (lambda: make.arange(4, layout=Layout.column_major(5)), ValueError, "4 values"),
        (lambda: make.arange(6, layout=REPEATING), ValueError, "injective"),
        (lambda: make.linspace(0, 1, 0), ValueError, "steps"),
        (lambda: make.rand(2, dtype=DType.Int32), ValueError, "floating dtype"),
        (lambda: make.rand(2, rng="seed"), TypeError, "int seed"),
        (lambda: make.rand(layout=REPEATING), ValueError, "injective"),
        (lambda: make.item(make.zeros(2)), ValueError, "has 2 values"),
        (lambda: make.item(2.0), TypeError, "no Tensor"),
        (lambda: make.to_list([2.0]), TypeError, "no Tensor"),
    ],
)
def test_creation_of_what_cannot_be_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Layout.row_major(2, 3), Layout.row_major(2, 3)),
        (Layout(Shape(2, 3, 4), Stride(40, 1, 5)), Layout(Shape(2, 3, 4), Stride(12, 1, 3))),
        (NESTED, Layout(Shape((2, 3), 4), Stride((1, 8), 2))),
        (Layout(Shape(2, 3), Stride(0, 0)), Layout.column_major(2, 3)),
    ],
)
def test_like_is_dense_in_the_order_of_the_strides(layout: Layout, expected: Layout) -> None:
    like = make.zeros(layout=layout, dtype=DType.Int32)
    for made, value in [(make.zeros_like(like), 0), (make.ones_like(like), 1), (make.full_like(like, value=7), 7)]:
        assert (made.layout, made.dtype()) == (expected, DType.Int32)
        assert {made[k] for k in range(made.size())} == {value}


def test_like_of_values_in_a_file_is_in_memory() -> None:
    like = Tensor(FileBacked(size=6), 0, Layout.row_major(2, 3))
    made = make.ones_like(like, dtype=DType.Int8)
    assert (type(made.carrier), made.layout, make.to_list(made)) == (CPU, like.layout, [[1] * 3] * 2)


def test_creation_with_requires_grad_makes_leaves() -> None:
    for made in (make.tensor([1.0], requires_grad=True), make.randn(2, requires_grad=True)):
        assert made.requires_grad
        assert made.is_leaf
    assert not make.zeros(2).requires_grad


# -- counting and drawing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (0.5, 3.0), (0, 1, 0.25), (2.5,)])
def test_arange_holds_what_torch_holds(arguments: tuple[float, ...]) -> None:
    assert torch.equal(make.arange(*arguments).torch(), torch.arange(*arguments))


def test_arange_and_linspace_count_ordinals() -> None:
    made = make.arange(24, layout=NESTED)
    assert [made[k] for k in range(24)] == list(range(24))
    assert torch.allclose(make.linspace(-1, 2, 7).torch(), torch.linspace(-1, 2, 7))
    assert make.to_list(make.linspace(3, 9, 1)) == [3.0]


@pytest.mark.parametrize("draw", [make.rand, make.randn])
def test_random_values_of_one_seed_are_the_same_in_every_layout(draw: Any) -> None:
    drawn = draw(2, 3, 4, rng=7)
    for layout in (Layout.row_major(2, 3, 4), Layout(Shape(2, 3, 4), Stride(1, 30, 3))):
        assert make.to_list(draw(rng=7, layout=layout)) == make.to_list(drawn)
    assert make.to_list(draw(2, 3, 4, rng=torch.Generator().manual_seed(7))) == make.to_list(drawn)
    assert make.to_list(draw(2, 3, 4, rng=8)) != make.to_list(drawn)
    first, second = (make.to_list(draw(3, rng=random.Random(1))) for _ in range(2))
    assert first == second


def test_random_values_follow_their_distributions_and_torchs_own_seed() -> None:
    uniform, normal = make.rand(10_000, rng=0).torch(), make.randn(10_000, rng=0).torch()
    assert 0 <= uniform.min() < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05
    torch.manual_seed(3)
    drawn = make.rand(4)
    torch.manual_seed(3)
    assert torch.equal(drawn.torch(), torch.rand(4))
    assert make.rand(4, dtype=DType.BFloat16).dtype() is DType.BFloat16


# -- layouts and lists -----------------------------------------------------------------------------------------------


def test_dense_layouts_of_flat_and_nested_extents() -> None:
    assert make.column_major(2, 3) == Layout.column_major(2, 3)
    assert make.row_major((2, 3, 4)) == Layout.row_major(2, 3, 4)
    assert make.column_major(Shape((2, 3), 4)) == Layout(Shape((2, 3), 4), Stride((1, 2), 6))
    assert make.row_major(Shape((2, 3), 4)) == Layout(Shape((2, 3), 4), Stride((12, 4), 1))


def test_to_list_and_item_read_any_carrier() -> None:
    generic = Tensor(Generic([5.0, 6.0, 7.0], dtype=DType.Float32), 1, Layout.column_major(2))
    in_file = Tensor(FileBacked(size=3), 1, Layout.column_major(2, 1))
    assert make.to_list(generic) == [6.0, 7.0]
    assert make.to_list(in_file) == [[0.0], [0.0]]
    assert make.to_list(make.full(value=4, layout=Layout.empty())) == 4
    assert make.to_list(make.tensor(list(range(24)), layout=NESTED))[1][2][3] == 23
    assert make.item(Tensor(generic.carrier, 2, Layout(Shape((1, 1)), Stride((3, 5))))) == 7.0
    generic.carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        make.to_list(generic)
