"""Index maps and their compositions, compared with plain Python functions over the whole domain."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from hypothesis import assume, event, given
from hypothesis import strategies as st

from strideweave.layout import (
    Composed,
    IndexMap,
    Layout,
    Permutation,
    Product,
    Shape,
    Stride,
    Swizzle,
    SwizzleStage,
)
from strideweave.layout.nested import refill

_MOST = 2048


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    leaf = st.integers(1, 6)
    tree = st.recursive(leaf, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4)
    shape = Shape(tuple(draw(st.lists(tree, max_size=3))))
    assume(shape.size <= 200)
    return Layout(shape, Stride(refill(shape._items, iter([draw(st.integers(0, 9)) for _ in shape.leaves()]))))


@st.composite
def dense(draw: st.DrawFn) -> Layout:
    """Layouts that count their own ordinals: identities in any nesting."""
    shape = draw(layouts()).shape
    return Layout(shape, Stride(refill(shape._items, iter(Layout.column_major(*shape.leaves()).stride.leaves()))))


@st.composite
def permutations(draw: st.DrawFn, most: int = 40) -> Permutation:
    codomain = draw(st.integers(1, most))
    return Permutation(draw(st.permutations(range(codomain)))[: draw(st.integers(1, codomain))], codomain)


@st.composite
def stages(draw: st.DrawFn, width: int) -> SwizzleStage:
    bits = draw(st.integers(1, width // 2))
    shift = draw(st.integers(bits, width - bits))
    base = draw(st.integers(0, width - bits - shift))
    return SwizzleStage(bits, base, draw(st.sampled_from([shift, -shift])))


@st.composite
def swizzles(draw: st.DrawFn, width: int | None = None) -> Swizzle:
    width = draw(st.integers(0, 7)) if width is None else width
    low = draw(st.integers(0, width))
    high = width - low
    shape = draw(st.sampled_from([Shape(2**width), Shape(2**low, 2**high), Shape((2**low, 1), 2**high)]))
    return Swizzle(shape, *(draw(st.lists(stages(width), max_size=3)) if width >= 2 else ()))


@st.composite
def maps(draw: st.DrawFn) -> IndexMap:
    simple: st.SearchStrategy[IndexMap] = st.one_of(layouts(), dense(), permutations(), swizzles())
    made = draw(st.one_of(simple, st.lists(simple, min_size=2, max_size=3).map(lambda children: Product(*children))))
    assume(made.size <= _MOST)
    return made


def indices(a: IndexMap) -> list[int]:
    return [a(i) for i in range(a.size)]


def check(a: IndexMap) -> None:
    """What is true of every index map."""
    reached = indices(a)
    assert max(reached) < a.codomain_size
    assert min(reached) >= 0
    assert a.size == a.shape.size
    assert a.is_injective in (None, len(set(reached)) == a.size)
    assert [a(a.shape.decode(i)) for i in range(a.size)] == reached
    if a.is_identity:
        assert reached == list(range(a.codomain_size))
    assert eval(repr(a)) == copy.deepcopy(a) == pickle.loads(pickle.dumps(a)) == a
    assert hash(eval(repr(a))) == hash(a)


@given(maps())
def test_index_map_of_any_kind_keeps_the_promises_of_all(a: IndexMap) -> None:
    check(a)
    assert not isinstance(a, Permutation | Swizzle) or a.is_injective


@given(maps(), maps(), maps())
def test_composition_of_any_maps_is_the_composition_of_functions(a: IndexMap, b: IndexMap, c: IndexMap) -> None:
    chains: dict[IndexMap, Any] = {}
    for outer, inner in ((a, b), (b, c)):
        fits = inner.codomain_size <= outer.size
        try:
            composed = outer.compose(inner)
        except ValueError as error:
            refused = str(error)
            if fits:
                assert isinstance(outer, Layout)
                assert isinstance(inner, Layout)
                assert "nearest tile that works" in refused
            else:
                assert "inner codomain exceeds" in refused
            continue
        assert fits
        event(type(composed).__name__)
        check(composed)
        if isinstance(outer, Layout) and isinstance(inner, Layout):
            # A mode that the outer layout splits is a nested one in the result; its size is what counts.
            assert isinstance(composed, Layout)
            assert [mode.size for mode in composed] == [mode.size for mode in inner]
        else:
            assert composed.shape == inner.shape
        assert indices(composed) == [outer(inner(i)) for i in range(inner.size)]
        if outer.is_identity and not isinstance(outer, Layout):
            assert composed is inner
        chains.setdefault(outer, composed)
    if a != b and isinstance(chains.get(a), Composed) and c.codomain_size <= b.size:
        longer = chains[a].compose(c)
        assert indices(longer) == [a(b(c(i))) for i in range(c.size)]
        check(longer)


@given(permutations(20), permutations(20), permutations(20))
def test_composed_chain_is_flat_and_follows_the_injectivity_of_its_last_child(
    p: Permutation, q: Permutation, r: Permutation
) -> None:
    assume(p.codomain_size > 1)
    a = Layout(Shape(p.codomain_size), Stride(2))
    b = Layout(Shape(2, p.size), Stride(0, 1))
    injective = Composed(a, p)
    assert injective.is_injective is True
    assert Composed(injective, b).children == Composed(a, Composed(p, b)).children == (a, p, b)
    assert Composed(injective, b).is_injective is False
    assert Composed(Layout(Shape(p.codomain_size), Stride(0)), p).is_injective is None
    if r.codomain_size <= q.size:
        both = q.compose(r)
        assert isinstance(both, Permutation)
        assert both.values == tuple(q.values[v] for v in r.values)


@given(st.integers(2, 8), st.data())
def test_swizzle_stage_is_the_exclusive_or_of_two_fields_and_its_own_inverse(width: int, data: st.DataObject) -> None:
    stage = data.draw(stages(width))
    low, high = stage.base, stage.base + abs(stage.shift)
    source, target = (high, low) if stage.shift > 0 else (low, high)
    for index in range(2**width):
        bits = [index >> k & 1 for k in range(width)]
        for k in range(stage.bits):
            bits[target + k] ^= index >> (source + k) & 1
        assert stage(index) == sum(bit << k for k, bit in enumerate(bits))
        assert stage(stage(index)) == index


@given(st.integers(2, 6), st.data())
def test_swizzle_of_a_swizzle_is_a_swizzle_without_equal_neighbours(width: int, data: st.DataObject) -> None:
    a, b = data.draw(swizzles(width)), data.draw(swizzles(width))
    both = a.compose(b)
    assert isinstance(both, Swizzle)
    assert indices(both) == [a(b(i)) for i in range(b.size)]
    assert sorted(indices(both)) == list(range(2**width))
    undone = Swizzle(a.shape, *reversed(a.stages)).compose(a)
    assert undone.is_identity
    if not a.is_identity:
        assert a.compose(undone) is a


@given(st.lists(st.one_of(permutations(6), swizzles(2), layouts()), min_size=2, max_size=3), st.data())
def test_product_of_products_composes_child_by_child_where_radices_match(
    outer: list[IndexMap], data: st.DataObject
) -> None:
    a = Product(*outer)
    assume(a.size <= _MOST)
    inner = [Permutation(data.draw(st.permutations(range(child.size))), child.size) for child in outer]
    b = Product(*inner)
    composed = a.compose(b)
    assert indices(composed) == [a(b(i)) for i in range(b.size)]
    if not (a.is_identity or b.is_identity):
        assert isinstance(composed, Product) == (b.target_shape == a.shape)
    event(type(composed).__name__)
