"""Shapes and strides: immutable nested integers, counted with the first mode fastest."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest

from strideweave.layout import Shape, Stride


def test_shape_from_one_iterable_equals_shape_from_its_items() -> None:
    assert Shape([2, [3, 4]]) == Shape(2, [3, 4]) == Shape((2, (3, 4))) == Shape(Shape(2, (3, 4)))
    assert Shape(2, Shape(3, 4)) == Shape(2, (3, 4))
    assert Shape(2, Shape(3)) == Shape(2, 3)
    assert Shape(np.int64(2), 3) == Shape(2, 3)


def test_shape_modes_are_shapes() -> None:
    s = Shape(2, (3, 4), 5)
    assert (len(s), s.size, s.logical_size, s.depth) == (3, 120, 120, 2)
    assert (s[0], s[1], s[-1], s[1:]) == (Shape(2), Shape(3, 4), Shape(5), Shape((3, 4), 5))
    assert list(s) == [Shape(2), Shape(3, 4), Shape(5)]
    assert s.top_level == (2, Shape(3, 4), 5)
    assert s.leaves() == (2, 3, 4, 5)
    assert (Shape(7).is_int, int(Shape(7)), Shape(7).depth, Shape(7, 1).depth, Shape().depth) == (
        True,
        7,
        0,
        1,
        0,
    )
    with pytest.raises(IndexError, match="mode 3"):
        s[3]
    with pytest.raises(TypeError, match="int or a slice"):
        s["0"]  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="single leaf"):
        int(s)


@pytest.mark.parametrize(
    "shape",
    [Shape(), Shape(7), Shape(2, 3), Shape(2, (3, (4, 5))), Shape(((2, 3),)), Shape([[5]]), Shape((), 2)],
)
def test_shape_repr_pastes_back_and_copies_are_equal(shape: Shape) -> None:
    assert eval(repr(shape)) == shape
    assert copy.deepcopy(shape) == copy.copy(shape) == pickle.loads(pickle.dumps(shape)) == shape
    assert hash(pickle.loads(pickle.dumps(shape))) == hash(shape)


def test_shape_is_immutable_and_no_stride() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Shape(2).size = 3  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        del Shape(2)._items
    assert Shape(2, 3) != Stride(2, 3)
    assert Shape(((2, 3),)) != Shape(2, 3)


@pytest.mark.parametrize(
    ("items", "error", "words"),
    [
        ((0,), ValueError, "must be positive"),
        ((2, (3, -1)), ValueError, "must be positive"),
        ((True,), TypeError, "bool"),
        ((2, 1.5), TypeError, "int or an iterable"),
        (("23",), TypeError, "int or an iterable"),
        ((Stride(2), 3), TypeError, "Shapes"),
    ],
)
def test_shape_of_bad_items_is_refused(items: tuple[Any, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Shape(*items)


def test_stride_negative_is_refused_and_zero_is_not() -> None:
    assert Stride(0, (1, 2)).leaves() == (0, 1, 2)
    with pytest.raises(ValueError, match="Stride value must not be negative"):
        Stride(1, (-1, 2))


def test_shape_ordinals_are_numpys_fortran_order() -> None:
    s = Shape(2, 3, 4)
    for coordinate in itertools.product(range(2), range(3), range(4)):
        ordinal = int(np.ravel_multi_index(coordinate, (2, 3, 4), order="F"))
        assert s.encode(coordinate) == s.encode(list(coordinate)) == ordinal
        assert s.decode(ordinal) == coordinate


def test_shape_nested_ordinals_invert_and_take_partial_coordinates() -> None:
    s = Shape(2, (3, (2, 2)))
    assert [s.encode(s.decode(i)) for i in range(s.size)] == list(range(s.size))
    assert s.decode(23) == (1, (2, (1, 1)))
    assert s.encode((1, 11)) == s.encode((1, (2, 3))) == s.encode(23) == 23
    assert (Shape().encode(0), Shape().encode(()), Shape().encode([]), Shape().decode(0)) == (0, 0, 0, ())
    assert Shape(5).encode((3,)) == Shape(5).encode(3) == 3


@pytest.mark.parametrize(
    ("coordinate", "error", "words"),
    [
        (24, ValueError, "Coordinate is not in domain of shape"),
        (-1, ValueError, "Coordinate is not in domain of shape"),
        ((2, 0), ValueError, "Coordinate is not in domain of shape"),
        ((0, 12), ValueError, "Coordinate is not in domain of shape"),
        ((0, 0, 0), ValueError, "does not match shape hierarchy"),
        ((0, (0, 0, 0)), ValueError, "does not match shape hierarchy"),
        (((0,), 0), ValueError, "does not match shape hierarchy"),
        ((), ValueError, "does not match shape hierarchy"),
        (True, TypeError, "int, a tuple or a list"),
        (1.0, TypeError, "int, a tuple or a list"),
        ((0, "a"), TypeError, "int, a tuple or a list"),
    ],
)
def test_shape_encode_outside_is_refused(coordinate: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Shape(2, (3, 4)).encode(coordinate)


def test_shape_decode_outside_is_refused() -> None:
    for index in (-1, 24):
        with pytest.raises(ValueError, match="Index is not in domain of shape"):
            Shape(2, (3, 4)).decode(index)
    for other in (True, 1.0, (1,)):
        with pytest.raises(TypeError, match="Shape index must be an integer"):
            Shape(2, (3, 4)).decode(other)  # type: ignore[arg-type]
