"""Every operation of the layout algebra, its post-condition stated over the whole domain."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from math import prod
from typing import Any

from hypothesis import assume, event, given
from hypothesis import strategies as st

from strideweave.layout import (
    Layout,
    Node,
    Shape,
    Stride,
    Tree,
    broadcast_to,
    choose,
    coalesce,
    coalesce_by_mode,
    complement,
    compose,
    divide,
    divide_tiler,
    extract_profile,
    flatten_layout,
    modout,
    product,
    rearrange,
    reverse_rearrange,
    right_inverse,
    uniform_preimage_extent,
    zipped_divide,
)
from strideweave.layout.nested import flat, refill
from strideweave.testing.strategies import MOST, layouts, shapes
from strideweave.testing.strategies import dense_layouts as dense


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


@given(st.integers(1, MOST), st.data())
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


@given(layouts())
def test_flatten_layout_keeps_every_leaf_and_every_index(a: Layout) -> None:
    flattened = flatten_layout(a)
    assert flattened.depth <= 1
    assert flattened.leaves() == a.leaves()
    assert indices(flattened) == indices(a)
    assert Tree.of(a.profile).recipe == tuple(a.profile)
    assert extract_profile(a) == list(flattened)


@st.composite
def trees_of(draw: st.DrawFn, shape: Shape) -> Tree:
    """Trees that match a shape: a nested mode is taken whole or entered."""
    return Tree(*(Node.Leaf if mode.is_int or draw(st.booleans()) else draw(trees_of(mode)) for mode in shape))


def numbered(tree: Tree, numbers: list[int]) -> Tree:
    rest = iter(numbers)
    return Tree.of(Node.id(next(rest)) if node == Node.Leaf else node for node in tree.recipe)


def parts_at(tree: Tree, coordinate: Any) -> list[Any]:
    """What a coordinate has at every leaf of a tree."""
    out: list[Any] = []
    for item, part in zip(tree.items, coordinate, strict=True):
        out += [part] if isinstance(item, Node) else parts_at(item, part)
    return out


def assembled(tree: Tree, parts: dict[int, Any]) -> tuple[Any, ...]:
    """The coordinate nested like a tree, made of parts by number; 0 where there is no number."""
    return tuple(
        assembled(item, parts) if isinstance(item, Tree) else 0 if item.number is None else parts[item.number]
        for item in tree.items
    )


@given(layouts(), st.data())
def test_extract_profile_and_coalesce_by_mode_split_every_index_along_the_tree(a: Layout, data: st.DataObject) -> None:
    tree = data.draw(trees_of(a.shape))
    numbers = data.draw(st.permutations(range(tree.size)))
    parts = extract_profile(a, numbered(tree, numbers))
    merged = coalesce_by_mode(a, tree)
    for i in range(a.size):
        at = [c if isinstance(c, tuple) else (c,) for c in parts_at(tree, a.shape.decode(i))]
        assert sum(parts[k](c) for k, c in zip(numbers, at, strict=True)) == a(i) == merged(i)
    assert [m.size for m in merged] == [m.size for m in a]
    assert extract_profile(merged, tree) == [
        coalesce(part) if part.size > 1 else Layout.leaf(1, 0) for part in extract_profile(a, tree)
    ]


@given(layouts(), st.data())
def test_rearrange_moves_every_coordinate_and_is_undone(a: Layout, data: st.DataObject) -> None:
    tree = data.draw(trees_of(a.shape))
    numbers = data.draw(st.permutations(range(tree.size)))
    selection = numbered(tree, numbers)
    new = data.draw(st.integers(0, 2))
    leaves = data.draw(st.permutations([*range(tree.size), *[Node.Leaf] * new]))
    cut = data.draw(st.integers(0, len(leaves)))
    output = Tree(*leaves[:cut], Tree(*leaves[cut:]))
    moved = rearrange(a, output, selection)
    assert moved.size == a.size
    for i in range(a.size):
        coordinate = a.shape.decode(i)
        parts = dict(zip(numbers, parts_at(tree, coordinate), strict=True))
        assert moved(assembled(output, parts)) == a(coordinate)
    assert rearrange(moved, *reverse_rearrange(output, selection)) == a


@given(layouts(), st.data())
def test_choose_and_modout_take_the_ordinals_they_say_or_are_refused(a: Layout, data: st.DataObject) -> None:
    d = data.draw(st.sampled_from(divisors(a.size)))
    for section, wanted in (
        (choose, [a(i * d) for i in range(a.size // d)]),
        (modout, [a(i) for i in range(d)]),
    ):
        try:
            taken = section(a, d)
        except ValueError as error:
            refused = str(error)
            assert "nearest tile that works" in refused
            event("refused")
            continue
        assert indices(taken) == wanted
        assert taken.depth <= 1


@given(layouts(400), st.data())
def test_broadcast_to_repeats_every_index_over_the_widened_leaves(a: Layout, data: st.DataObject) -> None:
    extents = [n if n > 1 else data.draw(st.integers(1, 5)) for n in a.shape.leaves()]
    target = Shape(refill(a.shape._items, iter(extents)))
    assume(target.size <= MOST)
    wide = broadcast_to(a, target)
    assert wide.shape == target
    for i in range(wide.size):
        digits = flat(target.decode(i))  # type: ignore[arg-type]  # a coordinate is a level of ints
        narrow = [c if n > 1 else 0 for c, n in zip(digits, a.shape.leaves(), strict=True)]
        assert wide(i) == flatten_layout(a)(tuple(narrow))


@given(st.one_of(dense(), layouts()), st.data())
def test_uniform_preimage_extent_is_the_count_of_every_index(a: Layout, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        repeats = Layout.leaf(data.draw(st.integers(1, 4)), 0)
        a = data.draw(st.sampled_from([a + repeats, Layout.make_layout(repeats, a)]))
    target = data.draw(st.sampled_from([a.cosize, a.cosize + 1, a.size]))
    counts = Counter(indices(a))
    times = {counts[i] for i in range(target)}
    uniform = times.pop() if len(times) == 1 and a.cosize <= target else None
    assert uniform_preimage_extent(a, Shape(target)) == uniform
    event(f"uniform: {uniform is not None}")


@given(st.one_of(dense(), layouts()))
def test_right_inverse_returns_to_the_index_and_is_longest_for_an_injective_layout(a: Layout) -> None:
    back = right_inverse(a)
    assert [a(back(i)) for i in range(back.size)] == list(range(back.size))
    if a.is_injective:
        reached = set(indices(a))
        assert back.size == next(i for i in range(a.cosize + 1) if i not in reached)


def translates(a: list[int]) -> Any:
    """The bases of the copies of `a` that cover every index once, ascending: the first free index, over and over."""
    covered: set[int] = set()
    base = 0
    while True:
        while base in covered:
            base += 1
        assert not covered & {base + x for x in a}
        covered |= {base + x for x in a}
        yield base


@given(st.integers(1, 200), layouts(60), st.data())
def test_product_puts_copies_of_a_where_a_leaves_room_in_the_order_of_b(
    cotarget: int, b: Layout, data: st.DataObject
) -> None:
    a = data.draw(tiles_of(cotarget))
    try:
        repeated = product(a, b)
    except ValueError as error:
        refused = str(error)
        assert "nearest tile that works" in refused
        event("refused")
        return
    event("repeated")
    bases = list(islice(translates(indices(a)), b.cosize))
    assert len(repeated) == 2
    assert repeated[0].leaves() == a.leaves()
    for j in range(b.size):
        for i in range(a.size):
            assert repeated((i, j)) == a(i) + bases[b(j)]
    assert repeated.is_injective == b.is_injective


@given(shapes(), shapes())
def test_shape_concat_and_append_put_modes_behind_modes(a: Shape, b: Shape) -> None:
    assert list(a.concat(b)) == [*a, *b]
    joined = a.append(b)
    assert len(joined) == len(a) + 1
    assert joined[: len(a)] == a
    assert joined[len(a)] == b
    assert Layout.append(Layout(a, _zeros(a)), Layout(b, _zeros(b))).shape == joined


def _zeros(shape: Shape) -> Stride:
    return Stride(refill(shape._items, iter([0] * len(shape.leaves()))))
