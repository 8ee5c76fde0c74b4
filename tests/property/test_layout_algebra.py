"""Every operation of the layout algebra, its post-condition stated over the whole domain."""

from __future__ import annotations

from itertools import pairwise
from math import prod

from hypothesis import assume, event, given
from hypothesis import strategies as st

from strideweave.layout import (
    Layout,
    Shape,
    Stride,
    coalesce,
    complement,
    compose,
    divide,
    divide_tiler,
    zipped_divide,
)
from strideweave.layout.nested import flat, refill

_MOST = 3000


@st.composite
def shapes(draw: st.DrawFn, most: int = _MOST, least_rank: int = 0) -> Shape:
    """Hierarchical shapes of rank up to 4."""
    leaf = st.integers(1, 8)
    tree = st.recursive(leaf, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4)
    shape = Shape(tuple(draw(st.lists(tree, min_size=least_rank, max_size=4))))
    assume(shape.size <= most)
    return shape


@st.composite
def layouts(draw: st.DrawFn, most: int = _MOST) -> Layout:
    """Layouts of any strides, overlapping ones too."""
    shape = draw(shapes(most))
    strides = [draw(st.integers(0, 40)) for _ in shape.leaves()]
    return Layout(shape, Stride(refill(shape._items, iter(strides))))


@st.composite
def dense(draw: st.DrawFn, least_rank: int = 0) -> Layout:
    """Bijections onto 0 .. size - 1: the leaves in any order of strides."""
    shape = draw(shapes(least_rank=least_rank))
    extents = shape.leaves()
    strides, step = [0] * len(extents), 1
    for k in draw(st.permutations(range(len(extents)))):
        strides[k] = step
        step *= extents[k]
    return Layout(shape, Stride(refill(shape._items, iter(strides))))


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


@st.composite
def tiles_of(draw: st.DrawFn, size: int) -> Layout:
    """Tiles that repeat over `size` ordinals: every other factor of a random factorisation, in any order."""
    leaves, step = [], 1
    for _ in range(draw(st.integers(1, 3))):
        step *= draw(st.sampled_from(divisors(size // step)))
        extent = draw(st.sampled_from(divisors(size // step)))
        leaves.append((extent, step))
        step *= extent
    leaves = draw(st.permutations(leaves))
    return Layout(Shape(n for n, _ in leaves), Stride(d for _, d in leaves))


def indices(a: Layout) -> list[int]:
    return [a(i) for i in range(a.size)]


@given(layouts())
def test_layout_index_of_every_coordinate_is_the_sum_of_entry_times_stride(a: Layout) -> None:
    reached = indices(a)
    for i in range(a.size):
        coordinate = a.shape.decode(i)
        assert a.shape.encode(coordinate) == i
        entries = flat(coordinate)  # type: ignore[arg-type]  # a coordinate is a level of ints
        assert a(coordinate) == reached[i] == sum(c * d for c, (_, d) in zip(entries, a.leaves(), strict=True))
    assert a.cosize == 1 + max(reached)
    assert a.is_injective == (len(set(reached)) == a.size)
    assert eval(repr(a)) == a


@given(layouts())
def test_coalesce_keeps_every_index_and_leaves_nothing_to_merge(a: Layout) -> None:
    merged = coalesce(a)
    assert indices(merged) == indices(a)
    assert merged.depth <= 1
    pairs = merged.leaves()
    assert all(n * d != after for (n, d), (_, after) in pairwise(pairs))


def composes_exactly(a: Layout, b: Layout) -> bool:
    try:
        c = compose(a, b)
    except ValueError as error:
        if "inner codomain exceeds" in str(error):
            assert b.cosize > a.size
            return False
        named = str(error).rsplit("The nearest tile that works is ", 1)[1].rstrip(".")
        shape, stride = named.split(":")
        tile = Layout(Shape(eval(shape)), Stride(eval(stride)))
        assert tile != b
        assert indices(compose(a, tile)) == [a(tile(i)) for i in range(tile.size)]
        return False
    assert c.size == b.size
    assert len(c) == len(b)
    for i in range(b.size):
        # The result takes every form of coordinate that b takes.
        assert c(i) == c(b.shape.decode(i)) == a(b(i))
    return True


@given(layouts(), layouts(400))
def test_compose_of_any_two_layouts_is_exact_or_names_a_tile_that_is(a: Layout, b: Layout) -> None:
    event(f"composed: {composes_exactly(a, b)}")


@given(dense(), st.data())
def test_compose_with_a_tile_of_the_domain_is_exact_or_names_a_tile_that_is(a: Layout, data: st.DataObject) -> None:
    event(f"composed: {composes_exactly(a, data.draw(tiles_of(a.size)))}")


@given(shapes(400), st.data())
def test_compose_refuses_only_what_is_no_layout(shape: Shape, data: st.DataObject) -> None:
    # With strides of increasing powers of a large base no two overflows cancel, so additivity decides.
    extents = shape.leaves()
    a = Layout(shape, Stride(refill(shape._items, iter(1000**k for k in range(len(extents))))))
    n, d = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    assume((n - 1) * d < a.size)
    reached = [a(c * d) for c in range(n)]
    try:
        compose(a, Layout.leaf(n, d))
        composed = True
    except ValueError:
        composed = False
    assert composed == is_some_layout(reached)


def is_some_layout(reached: list[int]) -> bool:
    """Whether some layout reaches these indices in this order, by trying every first extent."""
    if reached[0] != 0:
        return False
    if len(reached) == 1:
        return True
    for first in divisors(len(reached))[1:]:
        rest = reached[::first]
        if all(r == (i % first) * reached[1] + rest[i // first] for i, r in enumerate(reached)) and is_some_layout(
            rest
        ):
            return True
    return False


@given(st.integers(1, _MOST), st.data())
def test_complement_covers_every_index_once_in_ascending_order(cotarget: int, data: st.DataObject) -> None:
    a = data.draw(tiles_of(cotarget))
    rest = complement(a, cotarget)
    assert a.size * rest.size == cotarget
    assert sorted(x + y for x in indices(a) for y in indices(rest)) == list(range(cotarget))
    assert indices(rest) == sorted(set(indices(rest)))
    assert set(indices(a)) & set(indices(rest)) == {0}


@given(layouts(400), st.integers(1, 600))
def test_complement_of_any_layout_covers_or_is_refused(a: Layout, cotarget: int) -> None:
    try:
        rest = complement(a, cotarget)
    except ValueError as error:
        refused = str(error)
        if "overlaps with itself" in refused:
            assert len(set(indices(a))) < a.size
        elif "larger than cotarget" in refused:
            assert max(indices(a)) >= cotarget
        else:
            assert "incongruent" in refused
            assert len(set(indices(a))) == a.size
        return
    assert sorted(x + y for x in indices(a) for y in indices(rest)) == list(range(cotarget))


@given(dense(), st.data())
def test_divide_walks_the_tile_and_then_its_bases(a: Layout, data: st.DataObject) -> None:
    tile = data.draw(tiles_of(a.size))
    try:
        divided = divide(a, tile)
    except ValueError as error:
        refused = str(error)
        assert "nearest tile that works" in refused
        event("refused")
        return
    event("divided")
    rest = complement(tile, a.size)
    assert len(divided) == 2
    for j in range(rest.size):
        for i in range(tile.size):
            assert divided((i, j)) == a(tile(i) + rest(j))
    assert sorted(indices(divided)) == sorted(indices(a))


@given(dense(least_rank=1), st.data())
def test_zipped_divide_groups_tiles_then_bases_then_untouched_modes(a: Layout, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(a)))
    tiles = [data.draw(tiles_of(a[k].size)) for k in range(count)]
    try:
        zipped, tiled = zipped_divide(a, tiles), divide_tiler(a, tiles)
    except ValueError as error:
        refused = str(error)
        assert "nearest tile that works" in refused
        event("refused")
        return
    event("divided")
    rests = [complement(t, a[k].size) for k, t in enumerate(tiles)]
    assert [m.size for m in zipped] == [
        prod(t.size for t in tiles),
        prod(r.size for r in rests),
        *(m.size for m in a[count:]),
    ]
    assert zipped[2:] == tiled[count:] == a[count:]
    for k in range(count):
        assert indices(zipped[0][k]) == [a[k](tiles[k](i)) for i in range(tiles[k].size)]
        assert indices(zipped[1][k]) == [a[k](rests[k](j)) for j in range(rests[k].size)]
        assert tiled[k] == divide(a[k], tiles[k])
        assert (zipped[0][k], zipped[1][k]) == (tiled[k][0], tiled[k][1])
    assert sorted(indices(zipped)) == sorted(indices(a))
