"""Layouts: the index of every coordinate, and what is known without listing them."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import numpy as np
import pytest

from strideweave.layout import IndexMap, Layout, Shape, Stride
from strideweave.layout.injectivity import collides_by_arithmetic, collides_by_enumeration


def test_layout_index_is_numpys_address() -> None:
    array = np.zeros((3, 4, 5), dtype=np.int8)[:, ::2, ::-1][:, :, ::-1]
    a = Layout(Shape(*array.shape), Stride(*array.strides))
    base = array.__array_interface__["data"][0]
    for ordinal in range(a.size):
        coordinate = tuple(int(k) for k in np.unravel_index(ordinal, array.shape, order="F"))
        address = array[tuple(slice(k, k + 1) for k in coordinate)].__array_interface__["data"][0] - base
        assert a.index(coordinate) == a(ordinal) == Layout.get_index(a, coordinate) == address


def test_layout_size_and_cosize_with_a_gap() -> None:
    a = Layout(Shape([2, 3]), Stride([1, 4]))
    assert (a.size, a.cosize, a.codomain_size) == (6, 10, 10)
    assert [a(i) for i in range(6)] == [0, 1, 4, 5, 8, 9]


def test_layout_facts_of_a_nested_one() -> None:
    a = Layout(Shape(2, (3, 4)), Stride(12, (4, 1)))
    assert (len(a), a.depth, a.is_leaf, a[0].is_leaf) == (2, 2, False, True)
    assert a.leaves() == ((2, 12), (3, 4), (4, 1))
    assert a.infix() == [(2, 12), (3, 4), (4, 1)]
    assert a[1] == a[-1] == Layout(Shape(3, 4), Stride(4, 1))
    assert list(a) == [Layout.leaf(2, 12), Layout(Shape(3, 4), Stride(4, 1))]
    assert a[:1] + a[1:] == a
    assert Layout.make_layout(*a) == a
    assert (str(a), repr(a)) == ("(2,(3,4)):(12,(4,1))", "Layout(Shape(2, (3, 4)), Stride(12, (4, 1)))")
    assert isinstance(a, IndexMap)


@pytest.mark.parametrize(
    "a",
    [Layout.empty(), Layout.leaf(3, 2), Layout.row_major(2, 3), Layout(Shape(((2, 3),)), Stride(((1, 2),)))],
)
def test_layout_is_a_value(a: Layout) -> None:
    for same in (eval(repr(a)), copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert same == a
        assert hash(same) == hash(a)
    assert a != Layout.leaf(99, 1)
    with pytest.raises(AttributeError, match="immutable"):
        a.shape = Shape(2)  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        del a._shape


def test_layout_dense_orders_are_numpys() -> None:
    sample = np.zeros((2, 3, 4), dtype=np.int8)
    assert Layout.row_major(2, 3, 4).stride.leaves() == sample.strides
    assert Layout.column_major(2, 3, 4).stride.leaves() == np.asfortranarray(sample).strides
    assert Layout.row_major() == Layout.column_major() == Layout.empty()
    assert (Layout.empty().size, Layout.empty().cosize, Layout.empty()(())) == (1, 1, 0)


@pytest.mark.parametrize("key", [6, -1, (0,), (2, 0), (0, (1, 0)), "a", 1.0, True, None])
def test_layout_key_outside_is_refused(key: object) -> None:
    with pytest.raises(ValueError, match="Key is not in domain of shape"):
        Layout.column_major(2, 3).index(key)


def test_layout_of_unlike_trees_is_refused() -> None:
    with pytest.raises(ValueError, match="do not match in Structure"):
        Layout(Shape(2, (3, 4)), Stride(1, 2, 6))
    with pytest.raises(ValueError, match="do not match in Structure"):
        Layout(Shape(2, 3), Stride(1))
    bad: Any = (2, 3)
    with pytest.raises(ValueError, match="Shape and a Stride"):
        Layout(bad, Stride(1, 2))
    with pytest.raises(ValueError, match="not a Layout"):
        Layout.get_index(bad, 0)
    with pytest.raises(TypeError, match="mode is a Layout"):
        Layout.make_layout(bad)
    with pytest.raises(ValueError, match="nests"):
        Layout.row_major(*bad, bad)


def test_layout_grid_is_the_table_of_indices() -> None:
    a = Layout(Shape(3, (2, 2)), Stride(4, (1, 20)))
    table = np.array([line.split() for line in a.grid().splitlines()], dtype=int)
    assert table.shape == (3, 4)
    assert all(table[i, j] == a((i, j)) for i in range(3) for j in range(4))
    assert len({len(line) for line in a.grid().splitlines()}) == 1
    with pytest.raises(ValueError, match="3 modes"):
        Layout.row_major(2, 2, 2).grid()


@pytest.mark.parametrize(
    ("leaves", "injective"),
    [
        ([(10**9, 1), (10**9, 10**9)], True),  # nested
        ([(10**9, 1), (10**9, 10**9 - 1)], False),  # (10^9 - 1, 0) meets (0, 1)
        ([(10**9, 0)], False),
        ([(10**6, 7), (10**6, 11)], False),
        ([(11, 7 * 10**6), (7, 11 * 10**6)], True),  # meets only at 11 and 7 steps
        ([(12, 7 * 10**6), (8, 11 * 10**6)], False),
        ([(1000, 1001), (1000, 1000), (10**6, 10**9)], True),
        ([(1002, 1001), (1002, 1000), (10**6, 10**9)], False),
        ([(1, 0), (5, 1), (1, 3)], True),
    ],
)
def test_layout_injective_of_a_huge_domain_is_exact_at_once(leaves: list[tuple[int, int]], injective: bool) -> None:
    start = time.perf_counter()
    a = Layout(Shape(n for n, _ in leaves), Stride(d for _, d in leaves))
    assert a.is_injective is injective
    assert time.perf_counter() - start < 0.5


def test_layout_collision_by_arithmetic_agrees_with_enumeration() -> None:
    random = np.random.default_rng(3)
    seen = set()
    for _ in range(3000):
        rank = int(random.integers(1, 5))
        modes = [
            (int(n), int(d)) for n, d in zip(random.integers(2, 6, rank), random.integers(1, 60, rank), strict=True)
        ]
        modes.sort(key=lambda mode: (mode[1], mode[0]))
        expected = collides_by_enumeration(modes)
        seen.add(expected)
        assert collides_by_arithmetic(modes) == expected, modes
    assert seen == {True, False}
