"""How operands meet: `align` against numpy's broadcasting, and the layout of a fresh result against numpy's order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strideweave as sw
from strideweave import Layout, Shape
from strideweave.operation.alignment import align, dense_in_order, dense_like, strides_dense, with_strides
from strideweave.operation.gradients import sum_to

SHAPES = [(), (1,), (3,), (2, 3), (2, 1), (1, 3), (4, 2, 3), (4, 1, 3), (1, 1, 1), (4, 1, 1), (2,), (5, 3)]


def plain(*extents: int) -> Layout:
    return Layout.row_major(*extents) if extents else Layout.empty()


@pytest.mark.parametrize("shapes", list(itertools.product(SHAPES, repeat=2)))
def test_align_plain_shapes_is_numpy_broadcasting(shapes: tuple[tuple[int, ...], ...]) -> None:
    layouts = [plain(*shape) for shape in shapes]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ValueError, match="broadcast-compatible"):
            align(layouts, name="add")
        return
    shape, aligned = align(layouts, name="add")
    assert shape == Shape(*expected)
    for layout, widened, extents in zip(layouts, aligned, shapes, strict=True):
        indices = np.arange(max(layout.cosize, 1)).reshape(extents)
        seen = np.broadcast_to(indices, expected)
        assert widened.shape == shape
        for coordinate in itertools.product(*map(range, expected)):
            assert widened.index(coordinate) == seen[coordinate]


def test_align_three_operands_is_numpy_broadcasting() -> None:
    for shapes in itertools.product(SHAPES, repeat=3):
        try:
            expected = np.broadcast_shapes(*shapes)
        except ValueError:
            with pytest.raises(ValueError, match="broadcast-compatible"):
                align([plain(*s) for s in shapes], name="clamp")
        else:
            assert align([plain(*s) for s in shapes], name="clamp")[0] == Shape(*expected)


def test_align_equal_shapes_gives_the_layouts_themselves() -> None:
    a, b = Layout.row_major(2, 3), Layout.column_major(2, 3)
    shape, aligned = align([a, b], name="add")
    assert shape == a.shape
    assert aligned[0] is a
    assert aligned[1] is b


def test_align_nested_modes_widens_leaves_and_single_ones() -> None:
    nested = Layout(Shape((2, 3), 4), sw.Stride((1, 2), 6))
    narrow = Layout(Shape((1, 3), 4), sw.Stride((0, 1), 3))
    shape, (a, b, c, d) = align([nested, narrow, plain(4), plain(1, 4)], name="add")
    assert shape == Shape((2, 3), 4)
    assert (a, b.stride, c.stride) == (nested, sw.Stride((0, 1), 3), sw.Stride((0, 0), 1))
    assert d.stride == sw.Stride((0, 0), 1)


def test_align_modes_nested_in_different_ways_is_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"cannot add shapes .*\(\(2,3\),4\).* and .*\(6,4\).*broadcast-compatible"):
        align([Layout(Shape((2, 3), 4), sw.Stride((1, 2), 6)), plain(6, 4)], name="add")
    with pytest.raises(ValueError, match="broadcast-compatible"):
        align([Layout.row_major(2, 3), Layout.row_major(3, 3)], name="add")


# -- properties over nested shapes -----------------------------------------------------------------------------------

levels = st.recursive(st.integers(1, 3), lambda inner: st.lists(inner, min_size=2, max_size=3).map(tuple), max_leaves=4)
shapes = st.lists(levels, min_size=1, max_size=3).map(Shape).filter(lambda shape: shape.size <= 64)


@st.composite
def narrowed(draw: st.DrawFn, shape: Shape) -> Shape:
    """The shape with some leaves and modes set to 1, and some leading modes left out."""

    def narrow(level: object) -> object:
        if draw(st.booleans()):
            return 1
        return level if isinstance(level, int) else tuple(narrow(part) for part in level)  # type: ignore[attr-defined]

    kept = draw(st.integers(0, len(shape)))
    modes = [narrow(mode) for mode in shape._items[len(shape) - kept :]]
    return Shape(modes)  # type: ignore[arg-type]


@given(st.data())
def test_align_of_a_shape_and_a_narrower_one_reads_every_coordinate_of_the_narrower(data: st.DataObject) -> None:
    whole = data.draw(shapes)
    narrow = data.draw(narrowed(whole))
    layout = strides_dense(narrow)
    shape, (kept, widened) = align([strides_dense(whole), layout], name="add")
    assert shape == whole == kept.shape == widened.shape
    # Every leaf has its stride, or 0 where it was widened: so every slot of the narrow one is read equally often.
    counts = np.bincount([widened.index(k) for k in range(widened.size)], minlength=layout.cosize)
    assert set(counts) == {whole.size // narrow.size}


@given(st.data())
def test_sum_to_is_the_adjoint_of_align(data: st.DataObject) -> None:
    whole = data.draw(shapes)
    narrow = data.draw(narrowed(whole))
    _, (_, widened) = align([strides_dense(whole), strides_dense(narrow)], name="add")
    drawn = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-9, 9, whole.size)
    entry = sw.Tensor(sw.CPU(whole.size, dtype=sw.DType.Float64), 0, strides_dense(whole))
    expected = np.zeros(narrow.size)
    for k, value in enumerate(drawn):
        entry.carrier[k] = float(value)
        expected[widened.index(k)] += value
    summed = sum_to(entry, narrow, name="add")
    assert summed.shape == narrow
    assert [summed.carrier[summed.offset + summed.layout.index(k)] for k in range(narrow.size)] == expected.tolist()


@given(shapes, st.randoms())
def test_dense_in_order_is_dense_and_has_that_order(shape: Shape, random: object) -> None:
    extents = shape.leaves()
    order = list(range(len(extents)))
    random.shuffle(order)  # type: ignore[attr-defined]
    layout = dense_in_order(shape, order)
    assert layout.shape == shape
    assert layout.is_injective
    assert layout.cosize == shape.size
    strides = [d for _, d in layout.leaves()]
    assert [strides[k] for k in order] == sorted(strides)


@given(shapes, st.randoms())
def test_dense_like_a_dense_layout_is_that_layout(shape: Shape, random: object) -> None:
    extents = shape.leaves()
    wide = [k for k, n in enumerate(extents) if n > 1]
    random.shuffle(wide)  # type: ignore[attr-defined]
    strides, step = [0] * len(extents), 1
    for k in wide:
        strides[k] = step
        step *= extents[k]
    found = dense_like(shape, [with_strides(shape, strides)])
    assert [found.leaves()[k][1] for k in wide] == [strides[k] for k in wide]
    assert found.is_injective


# -- the layout of a result ------------------------------------------------------------------------------------------


def test_dense_like_keeps_the_order_of_a_layout_with_gaps() -> None:
    gaps = with_strides(Shape(2, 3, 4), [50, 2, 10])
    assert dense_like(gaps.shape, [gaps]) == with_strides(Shape(2, 3, 4), [12, 1, 3])


def test_dense_like_of_numpy_arrays_is_the_order_that_numpy_keeps() -> None:
    for order in itertools.permutations(range(3)):
        array = np.empty([(2, 3, 4)[k] for k in order]).transpose(np.argsort(order))
        kept = np.add(array, array)
        layout = sw.from_numpy(array).layout
        assert dense_like(layout.shape, [layout]) == sw.from_numpy(kept).layout


def test_dense_like_passes_over_operands_without_an_order() -> None:
    shape = Shape(2, 3)
    repeated, rows = with_strides(shape, [0, 1]), Layout.row_major(2, 3)
    assert dense_like(shape, [repeated, rows]) == rows
    assert dense_like(shape, [repeated]) == dense_like(shape, []) == Layout.column_major(2, 3)


def test_dense_like_puts_a_leaf_of_extent_one_behind_the_leaf_after_it() -> None:
    for extents in ((1, 2, 3), (2, 1, 3), (2, 3, 1), (1, 1, 2)):
        for dense in (Layout.row_major(*extents), Layout.column_major(*extents)):
            assert dense_like(dense.shape, [dense]) == dense
    # A mode that was widened from nothing has no stride to go by.
    seen = with_strides(Shape(1, 2, 3), [0, 3, 1])
    assert dense_like(seen.shape, [seen]) == Layout.row_major(1, 2, 3)


def test_dense_layouts_of_rank_0_have_one_slot() -> None:
    empty = Layout.empty()
    assert dense_like(empty.shape, [empty]) == strides_dense(empty.shape) == empty
    assert empty.cosize == 1
