"""Every view, compared with its meaning over the whole domain: which slot each coordinate of the view reaches."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import assume, event, given
from hypothesis import strategies as st

from strideweave.layout import Layout, Node, Shape, Stride, Tree
from strideweave.layout.nested import flat, refill
from strideweave.tensor import views

_MOST = 600


@st.composite
def shapes(draw: st.DrawFn, least_rank: int = 0, most: int = _MOST) -> Shape:
    tree = st.recursive(
        st.integers(1, 6), lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4
    )
    shape = Shape(tuple(draw(st.lists(tree, min_size=least_rank, max_size=4))))
    assume(shape.size <= most)
    return shape


@st.composite
def layouts(draw: st.DrawFn, least_rank: int = 0) -> Layout:
    """Layouts of any strides, and as often dense ones, whose leaves continue each other."""
    shape = draw(shapes(least_rank))
    extents = shape.leaves()
    strides, step = [0] * len(extents), 1
    if draw(st.booleans()):
        for k in draw(st.permutations(range(len(extents)))):
            strides[k] = step
            step *= extents[k]
    else:
        strides = [draw(st.integers(0, 30)) for _ in extents]
    return Layout(shape, Stride(refill(shape._items, iter(strides))))


def reached(view: tuple[int, Layout]) -> list[int]:
    """The slot of every ordinal of a view."""
    delta, layout = view
    return [delta + layout(i) for i in range(layout.size)]


def slots(layout: Layout) -> np.ndarray:  # type: ignore[type-arg]
    """The slot of every coordinate, one dim per top-level mode."""
    return np.array(reached((0, layout))).reshape([mode.size for mode in layout], order="F")


def in_order(array: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    """The entries in the order of ordinals."""
    out: list[int] = array.ravel(order="F").tolist()
    return out


@given(layouts(least_rank=1), st.data())
def test_slice_view_takes_what_numpy_takes(layout: Layout, data: st.DataObject) -> None:
    keys: list[int | slice] = []
    for mode in layout:
        n = mode.size
        if data.draw(st.booleans()):
            keys.append(data.draw(st.integers(0, n - 1)))
        elif mode.is_leaf and data.draw(st.booleans()):
            start = data.draw(st.integers(0, n - 1))
            step = data.draw(st.integers(1, n - start))
            stop = start + step * data.draw(st.integers(1, (n - start) // step))
            keys.append(slice(start if data.draw(st.booleans()) else start - n, stop, step))
        else:
            keys.append(slice(None))
    view = views.slice_view(layout, tuple(keys))
    assert reached(view) == in_order(slots(layout)[tuple(keys)])
    assert len(view[1]) == sum(isinstance(key, slice) for key in keys)


@given(layouts(), st.data())
def test_permute_and_transpose_move_modes_like_numpy(layout: Layout, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(layout))))
    signed = [k - len(layout) if data.draw(st.booleans()) else k for k in order]
    view = views.permute(layout, *signed)
    assert reached(view) == in_order(slots(layout).transpose(order))
    assert list(view[1]) == [layout[k] for k in order]
    if len(layout):
        i, j = (data.draw(st.integers(-len(layout), len(layout) - 1)) for _ in range(2))
        assert reached(views.transpose(layout, i, j)) == in_order(slots(layout).swapaxes(i, j))


def is_view(shape: Shape, wanted: list[int]) -> bool:
    """Whether some strides of this shape reach these slots in this order."""
    strides = []
    step = 1
    for n in shape.leaves():
        strides.append(wanted[step] - wanted[0] if n > 1 else 0)
        step *= n
    coordinates = [flat(shape.decode(i)) for i in range(shape.size)]  # type: ignore[arg-type]  # levels of ints
    return min(strides, default=0) >= 0 and all(
        wanted[0] + sum(c * d for c, d in zip(at, strides, strict=True)) == slot
        for at, slot in zip(coordinates, wanted, strict=True)
    )


@st.composite
def reshaped(draw: st.DrawFn, size: int) -> Shape:
    """Shapes of this size."""
    extents = []
    while size > 1 and len(extents) < 4:
        extents.append(draw(st.sampled_from([k for k in range(1, size + 1) if size % k == 0])))
        size //= extents[-1]
    extents.append(size)
    cut = draw(st.integers(0, len(extents)))
    nested = (*extents[:cut], tuple(extents[cut:])) if draw(st.booleans()) and cut < len(extents) else tuple(extents)
    return Shape(nested)


@given(layouts(), st.data())
def test_reshape_keeps_every_ordinal_and_refuses_only_what_no_strides_can_say(
    layout: Layout, data: st.DataObject
) -> None:
    shape = data.draw(reshaped(layout.size))
    wanted = reached((0, layout))
    try:
        view = views.reshape(layout, shape)
    except ValueError as error:
        refused = str(error)
        assert "no constant stride" in refused
        assert not is_view(shape, wanted)
        event("refused")
        return
    event("reshaped")
    assert view[1].shape == shape
    assert reached(view) == wanted


@given(layouts(), st.data())
def test_reshape_infers_one_extent(layout: Layout, data: st.DataObject) -> None:
    shape = data.draw(reshaped(layout.size))
    leaves = list(shape.leaves())
    leaves[data.draw(st.integers(0, len(leaves) - 1))] = -1
    try:
        plain = views.reshape(layout, shape)
    except ValueError:
        return
    assert views.reshape(layout, refill(shape._items, iter(leaves))) == plain  # type: ignore[arg-type]  # -1 is a leaf


@given(layouts(), st.data())
def test_as_strided_selects_ordinals_of_the_source(layout: Layout, data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(1, 4), max_size=3))
    strides = [data.draw(st.integers(0, 12)) for _ in extents]
    offset = data.draw(st.integers(0, 8))
    selector = Layout(Shape(tuple(extents)), Stride(tuple(strides)))
    assume(offset + selector.cosize <= layout.size)
    wanted = [layout(offset + selector(i)) for i in range(selector.size)]
    try:
        view = views.as_strided(layout, extents, strides, offset)
    except ValueError as error:
        refused = str(error)
        event("refused")
        if "injective" in refused:
            assert not selector.is_injective
        else:
            assert "no constant stride" in refused
            # One run from one mode always has a view; what is refused crosses the end of a mode.
            assert len(layout.coalesce()) > 1
        return
    event("selected")
    assert selector.is_injective
    assert view[1].shape == selector.shape
    assert reached(view) == wanted


@given(layouts(), st.data())
def test_broadcast_to_repeats_like_numpy(layout: Layout, data: st.DataObject) -> None:
    wide = [n if n > 1 else data.draw(st.integers(1, 3)) for n in layout.shape.leaves()]
    assume(prod(wide) <= _MOST)
    target = Shape(refill(layout.shape._items, iter(wide)))
    view = views.broadcast_to(layout, target)
    by_leaf = np.array(reached((0, layout))).reshape(layout.shape.leaves(), order="F")
    assert view[1].shape == target
    assert reached(view) == in_order(np.broadcast_to(by_leaf, wide))


@given(layouts(), st.data())
def test_broadcast_in_dim_repeats_over_the_other_places(layout: Layout, data: st.DataObject) -> None:
    rank = len(layout) + data.draw(st.integers(0, 2))
    places = sorted(data.draw(st.permutations(range(rank)))[: len(layout)])
    modes = [data.draw(st.sampled_from([Shape(1), Shape(3), Shape(2, (1, 2))])) for _ in range(rank)]
    for k, place in enumerate(places):
        wide = [n if n > 1 else data.draw(st.integers(1, 3)) for n in layout[k].shape.leaves()]
        modes[place] = Shape._of(refill(layout[k].shape._items, iter(wide)))
    target = Shape()
    for mode in modes:
        target = target.append(mode)
    delta, view = views.broadcast_in_dim(layout, target, places)
    assert (delta, view.shape) == (0, target)
    for k in range(rank):
        # A mode in a place is widened alone, any other repeats index 0.
        widened = views.broadcast_to(layout[places.index(k)], view[k].shape) if k in places else None
        assert reached((0, view[k])) == (reached(widened) if widened else [0] * view[k].size)


@given(layouts(), st.data())
def test_unsqueeze_adds_a_mode_that_squeeze_takes_away(layout: Layout, data: st.DataObject) -> None:
    dim = data.draw(st.integers(-len(layout) - 1, len(layout)))
    view = views.unsqueeze(layout, dim)
    assert reached(view) == reached((0, layout))
    assert [m.size for m in view[1]] == list(np.expand_dims(slots(layout), dim).shape)
    assert views.squeeze(view[1], dim) == (0, layout)


@given(layouts(least_rank=1), st.data())
def test_flatten_modes_groups_without_moving(layout: Layout, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(layout) - 1))
    stop = data.draw(st.integers(start + 1, len(layout)))
    view = views.flatten_modes(layout, start, stop)
    assert reached(view) == reached((0, layout))
    assert view[1].leaves() == layout.leaves()
    assert len(view[1]) == len(layout) - (stop - start) + 1
    assert view[1][start].size == layout[start:stop].size


@given(layouts(), st.data())
def test_rearrange_takes_whole_modes_in_the_order_of_the_tree(layout: Layout, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(layout))))
    selection = Tree(*[Node.Leaf] * len(layout))
    view = views.rearrange(layout, Tree(*order, Node.Leaf), selection)
    assert reached(view) == in_order(slots(layout).transpose(order))
    assert list(view[1]) == [*(layout[k] for k in order), Layout.leaf(1, 0)]
