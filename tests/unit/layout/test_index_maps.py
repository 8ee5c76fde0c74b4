"""Index maps by example, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

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
    compose,
)


def layout(text: str) -> Layout:
    """The layout that `str` shows like this."""
    shape, stride = text.split(":")
    return Layout(Shape(eval(shape)), Stride(eval(stride)))


def indices(a: IndexMap) -> list[int]:
    return [a(i) for i in range(a.size)]


def test_index_map_itself_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        IndexMap()  # type: ignore[abstract]
    for kind in (Layout, Permutation, Swizzle, Product, Composed):
        assert issubclass(kind, IndexMap)


def test_permutation_is_a_lookup_into_a_larger_codomain() -> None:
    p = Permutation([4, 0, 2], 5)
    assert (p.values, p.shape, p.size, p.codomain_size, p.is_injective) == ((4, 0, 2), Shape(3), 3, 5, True)
    assert [p(0), p.index(1), p((2,))] == [4, 0, 2]
    assert p == Permutation((4, 0, 2), 5) != Permutation((4, 0, 2), 6)
    for key in (3, -1, (0, 0)):
        with pytest.raises(ValueError, match="Pass"):
            p(key)
    with pytest.raises(AttributeError):
        p.values = (1,)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "codomain", "error", "words"),
    [
        ([], 1, ValueError, "no values"),
        ([0, 0], 2, ValueError, "duplicate"),
        ([-1], 2, ValueError, "out of range"),
        ([2], 2, ValueError, "out of range"),
        ([0], 0, ValueError, "codomain is positive"),
        ([0], -3, ValueError, "codomain is positive"),
        ([0.0], 1, TypeError, "ints"),
        ([True], 2, TypeError, "ints"),
        ("0", 1, TypeError, "iterable of ints"),
        (0, 1, TypeError, "iterable of ints"),
        ([0], 1.0, TypeError, "ints"),
        ([0], True, TypeError, "ints"),
    ],
)
def test_permutation_of_bad_values_is_refused(values: Any, codomain: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Permutation(values, codomain)


def test_permutation_of_a_permutation_is_a_permutation() -> None:
    outer, inner = Permutation([5, 3, 1], 6), Permutation([2, 0], 3)
    assert outer.compose(inner) == Permutation([1, 5], 6)
    assert outer.compose(Permutation(range(3), 3)) is outer
    assert Permutation(range(3), 3).compose(inner) is inner
    # It widens the codomain or drops values: it is no identity.
    assert Permutation(range(2), 3).compose(Permutation([1, 0], 2)) == Permutation([1, 0], 3)


def test_swizzle_stage_sign_of_the_shift_says_which_field_changes() -> None:
    assert [SwizzleStage(1, 0, 1)(i) for i in range(4)] == [0, 1, 3, 2]
    assert [SwizzleStage(1, 0, -1)(i) for i in range(4)] == [0, 3, 2, 1]
    assert SwizzleStage(2, 1, 3)(0b110000) == 0b110110
    assert SwizzleStage(2, 1, -3)(0b000110) == 0b110110


@pytest.mark.parametrize(
    ("stage", "error", "words"),
    [
        ((0, 0, 1), ValueError, "change nothing"),
        ((1, -1, 1), ValueError, "no bit -1"),
        ((1, 0, 0), ValueError, "share bits"),
        ((2, 0, 1), ValueError, "share bits"),
        ((2, 0, -1), ValueError, "share bits"),
        ((1.0, 0, 1), TypeError, "bits 1.0"),
        ((1, "0", 1), TypeError, "base '0'"),
        ((1, 0, True), TypeError, "shift True"),
    ],
)
def test_swizzle_stage_of_bad_fields_is_refused(stage: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        SwizzleStage(*stage)


def test_swizzle_spreads_the_columns_of_a_tile_over_all_banks() -> None:
    s = Swizzle(Shape(8, 8), SwizzleStage(3, 0, 3))
    for row in range(8):
        assert sorted(s((row, column)) % 8 for column in range(8)) == list(range(8))
    assert sorted(indices(s)) == list(range(64))


def test_swizzle_of_a_bad_shape_or_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        Swizzle(Shape(6))
    with pytest.raises(ValueError, match="inside the ordinal's bits"):
        Swizzle(Shape(8), SwizzleStage(2, 0, 2))
    with pytest.raises(ValueError, match="inside the ordinal's bits"):
        Swizzle(Shape(8), SwizzleStage(1, 1, -2))
    wrong: Any = (8, (1, 0, 1))
    with pytest.raises(TypeError, match="is a Shape"):
        Swizzle(wrong[0])
    with pytest.raises(TypeError, match="is a SwizzleStage"):
        Swizzle(Shape(8), wrong[1])


def test_swizzle_of_a_swizzle_cancels_equal_neighbours() -> None:
    s, t = SwizzleStage(1, 0, 1), SwizzleStage(1, 1, 1)
    a = Swizzle(Shape(8), s, t)
    assert a.compose(Swizzle(Shape(2, 4), t)) == Swizzle(Shape(2, 4), t, s, t)
    assert Swizzle(Shape(8), t, s).compose(Swizzle(Shape(2, 4), s, t)) == Swizzle(Shape(2, 4))
    assert Swizzle(Shape(8)).compose(a) is a
    # Another size is another function: the chain is kept.
    assert a.compose(Swizzle(Shape(4), s)) == Composed(a, Swizzle(Shape(4), s))


def test_product_packs_the_results_of_its_children() -> None:
    a = Product(layout("(2,3):(1,2)"), Permutation([2, 0], 4))
    assert a.shape == Shape((2, 3), 2)
    assert a.target_shape == Shape(6, 4)
    assert (a.size, a.codomain_size, a.is_injective) == (12, 24, True)
    assert a(((1, 2), 1)) == a((5, 1)) == a(11) == 5
    assert a((4, 0)) == 4 + 6 * 2
    assert Product(a, Swizzle(Shape(2))).target_shape == Shape((6, 4), 2)
    assert Product(layout("2:0"), a).is_injective is False
    assert Product(a, Composed(layout("4:0"), Permutation([2, 0], 4))).is_injective is None
    with pytest.raises(ValueError, match="two or more"):
        Product(a)
    with pytest.raises(TypeError, match="no IndexMap"):
        Product(a, 3)  # type: ignore[arg-type]


def test_product_of_a_product_composes_child_by_child_only_where_radices_match() -> None:
    p, q = Permutation([1, 2, 0], 3), Permutation([1, 0], 2)
    a = Product(p, q)
    assert a.compose(a) == Product(p.compose(p), Permutation(range(2), 2))
    swapped = Product(q, p)
    assert a.compose(swapped) == Composed(a, swapped)
    # The same sizes, but other leaves.
    grouped = Product(layout("(3,1):(1,0)"), q)
    assert grouped.compose(a) == Composed(grouped, a)


def test_product_of_products_of_layouts_stays_layouts() -> None:
    q = Permutation([1, 0], 2)
    outer, inner = layout("8:2"), layout("(2,3):(3,2)")
    assert Product(outer, q).compose(Product(inner, q)) == Product(layout("(2,3):(6,4)"), Permutation(range(2), 2))


def test_layout_of_another_map_is_a_chain_and_of_a_layout_never() -> None:
    a, p = layout("(4,6):(6,1)"), Permutation([3, 23, 0], 24)
    chain = compose(a, p)
    assert chain == a.compose(p) == a.compose(inner=p) == Composed(a, p)
    assert indices(chain) == [18, 23, 0]
    assert (chain.shape, chain.codomain_size, chain.is_injective) == (Shape(3), 24, True)
    assert compose(layout("24:1"), p) is p
    assert a.compose(Swizzle(Shape(4))) == Composed(a, Swizzle(Shape(4)))
    with pytest.raises(ValueError, match="nearest tile that works is 4:1"):
        a.compose(layout("6:1"))


def test_composition_of_wrong_operands_is_refused() -> None:
    every: list[Any] = [
        Permutation([1, 0], 2),
        Swizzle(Shape(2)),
        Product(layout("2:1"), layout("1:0")),
        Composed(layout("2:2"), Permutation([1, 0], 2)),
    ]
    for a in every:
        with pytest.raises(TypeError, match="no IndexMap"):
            a.compose(3)
        with pytest.raises(TypeError, match="argument"):
            a.compose()
        with pytest.raises(TypeError, match="argument"):
            a.compose(a, a)
        with pytest.raises(ValueError, match="inner codomain exceeds"):
            a.compose(layout("3:1"))
    with pytest.raises(ValueError, match="inner codomain exceeds"):
        Permutation([1, 0], 2).compose(Permutation([1, 2, 0], 3))
    with pytest.raises(ValueError, match="inner codomain exceeds"):
        layout("2:1").compose(Permutation([1, 2, 0], 3))


def test_composed_of_fewer_than_two_maps_or_other_things_is_refused() -> None:
    p: Any = Permutation([1, 0], 2)
    with pytest.raises(ValueError, match="two or more"):
        Composed(p)
    for children in ((3, p), (p, 3)):
        with pytest.raises(TypeError, match="no IndexMap"):
            Composed(*children)
    with pytest.raises(ValueError, match="inner codomain exceeds"):
        Composed(p, Permutation([1, 0], 3))
    with pytest.raises(AttributeError):
        Composed(p, p).children = ()  # type: ignore[misc]


def test_composed_key_outside_of_the_last_child_is_refused() -> None:
    chain = Composed(layout("4:2"), Swizzle(Shape(2, 2)))
    assert chain((1, 1)) == 6
    for key in (4, (2, 0), (0,)):
        with pytest.raises(ValueError, match=r"domain of shape|shape hierarchy"):
            chain(key)
