"""Plans of descriptions, against numpy's transpose, sum and einsum over the values that they name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strideweave.einops import (
    parse_einsum,
    parse_layout_ref,
    parse_rearrange,
    parse_reduce,
    plan_einsum,
    plan_reduce,
    rearranged,
    split_modes,
)
from strideweave.layout import Layout, Shape, Stride

NESTED = Layout(Shape(2, (3, 4)), Stride(12, (1, 3)))


def values(shape: Shape, seed: int = 0) -> np.ndarray[Any, Any]:
    """Small integers with one dim per leaf."""
    return np.random.default_rng(seed).integers(-5, 5, shape.leaves())


# -- rearrange -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "layout", "sizes", "printed"),
    [
        ("a b -> b a", NESTED, {}, "((3,4),2):((1,3),12)"),
        ("a (b c) -> c b a", NESTED, {}, "(4,3,2):(3,1,12)"),
        ("a (b c) -> (c a) b", NESTED, {}, "((4,2),3):((3,12),1)"),
        ("a b -> 1 (b a) 1", NESTED, {}, "(1,((3,4),2),1):(0,((1,3),12),0)"),
        ("1 a 1 -> a", Layout.row_major(1, 5, 1), {}, "5:1"),
        ("(h d) b -> h d b", Layout.row_major(8, 3), {"h": 4}, "(4,2,3):(3,12,1)"),
        ("(h d) b -> h d b", Layout.row_major(8, 3), {"d": 2}, "(4,2,3):(3,12,1)"),
        ("(h d) b -> h d b", Layout.row_major(8, 3), {"d": 2, "h": 4, "b": 3}, "(4,2,3):(3,12,1)"),
        ("((a b) 1 c) -> c a b", Layout.leaf(24, 5), {"a": 2, "b": 3}, "(4,2,3):(30,5,10)"),
        ("a (b (c d)) -> d c b a", NESTED, {"c": 2}, "(2,2,3,2):(6,3,1,12)"),
        ("->", Layout.empty(), {}, "():()"),
    ],
)
def test_rearranged_layout_is_the_one_worked_out_by_hand(
    text: str, layout: Layout, sizes: dict[str, int], printed: str
) -> None:
    made = rearranged(layout, parse_rearrange(text), **sizes)
    assert str(made) == printed


def test_rearranged_split_takes_the_first_symbol_fastest() -> None:
    layout = Layout.leaf(12, 1)
    made = rearranged(layout, parse_rearrange("(h d) -> h d"), h=3)
    ours = np.array([[made((h, d)) for d in range(4)] for h in range(3)])
    assert np.array_equal(ours, np.arange(12).reshape(3, 4, order="F"))


def test_rearranged_to_the_same_modes_is_the_same_object() -> None:
    assert rearranged(NESTED, parse_rearrange("a (b c) -> a (b c)")) is NESTED


def test_rearranged_symbols_may_have_the_names_of_parameters() -> None:
    made = rearranged(Layout.leaf(6, 1), parse_rearrange("(layout spec) -> spec layout"), layout=2, spec=3)
    assert made == Layout(Shape(3, 2), Stride(2, 1))


def test_split_modes_keeps_every_ordinal_and_the_object_that_needs_no_split() -> None:
    assert split_modes(NESTED, parse_layout_ref("a (b c)")) is NESTED
    split = split_modes(NESTED, parse_layout_ref("a (b (c d))"), d=2)
    assert split.shape == Shape(2, (3, (2, 2)))
    assert [split(i) for i in range(24)] == [NESTED(i) for i in range(24)]


@pytest.mark.parametrize(
    ("text", "sizes", "error", "words"),
    [
        ("a -> a", {}, ValueError, "names 1 modes, and (2,(3,4)) has 2"),
        ("a (b c d) -> a b c d", {}, ValueError, "has 3 items, and the mode (3,4) nests 2"),
        ("a 1 -> a", {}, ValueError, "a literal 1 stands for a mode of 12"),
        ("(a b) c -> a b c", {}, ValueError, "the sizes of a, b are unknown"),
        ("(a b) c -> a b c", {"a": 3}, ValueError, "leaf of 2, and its sizes make 3"),
        ("(a b) c -> a b c", {"a": 1, "b": 1}, ValueError, "leaf of 2, and its sizes make 1"),
        ("a b -> b a", {"a": 3}, ValueError, "the size of 'a' is 3, and its mode has 2"),
        ("a b -> b a", {"c": 3}, ValueError, "a size for 'c', which the input does not name"),
        ("a b -> b a", {"a": 0}, ValueError, "Pass 1 or more"),
        ("a b -> b a", {"a": 2.0}, TypeError, "A size is a count"),
        ("a b -> b a", {"a": True}, TypeError, "A size is a count"),
    ],
)
def test_rearranged_of_what_does_not_fit_is_refused(
    text: str, sizes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as refused:
        rearranged(NESTED, parse_rearrange(text), **sizes)
    assert words in str(refused.value)
    assert str(parse_rearrange(text)) in str(refused.value)


# -- reduce ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shape", "sizes", "subscripts", "made"),
    [
        ("a b -> a", Shape(2, 3), {}, "ab->a", Shape(2)),
        ("a b -> b", Shape(2, (3, 4)), {}, "abx->bx", Shape(((3, 4),))),
        ("a (b c) -> c a", Shape(2, (3, 4)), {}, "abc->ca", Shape(4, 2)),
        ("a (b c) -> (c a) 1", Shape(2, (3, 4)), {}, "abc->ca", Shape((4, 2), 1)),
        ("a (b c) -> a", Shape(2, 12), {"b": 3}, "abc->a", Shape(2)),
        ("a (b c) -> b", Shape(2, 12), {"b": 3}, "abc->b", Shape(3)),
        ("a b ->", Shape(2, 3), {}, "ab->", Shape()),
        ("a b -> b a", Shape(2, 3), {}, "ab->ba", Shape(3, 2)),
        ("1 a 1 -> a", Shape(1, 3, 1), {}, "xay->a", Shape(3)),
        ("->", Shape(), {}, "->", Shape()),
    ],
)
def test_plan_reduce_names_the_leaves_that_numpy_sums(
    text: str, shape: Shape, sizes: dict[str, int], subscripts: str, made: Shape
) -> None:
    plan = plan_reduce(parse_reduce(text), shape, **sizes)
    assert plan.shape == made
    assert (plan.source == shape) == (not sizes)
    array = values(plan.source)
    kept = [leaf for leaf in plan.kept if leaf is not None]
    ours = array.sum(axis=plan.reduced).transpose([sorted(kept).index(leaf) for leaf in kept])
    assert np.array_equal(ours, np.einsum(subscripts, array))
    assert [array.shape[leaf] if leaf is not None else 1 for leaf in plan.kept] == list(made.leaves())


def test_plan_reduce_of_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot reduce \(2,3\) by 'a \(b c\) -> a': group .* are unknown"):
        plan_reduce(parse_reduce("a (b c) -> a"), Shape(2, 3))


# -- einsum ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes", "sizes", "subscripts", "made"),
    [
        ("a b, b c -> a c", [Shape(2, 3), Shape(3, 4)], {}, "ab,bc->ac", Shape(2, 4)),
        ("bhqd,bhkd->bhqk", [Shape(2, 3, 4, 5), Shape(2, 3, 6, 5)], {}, "bhqd,bhkd->bhqk", Shape(2, 3, 4, 6)),
        ("a b -> b a", [Shape(2, 3)], {}, "ab->ba", Shape(3, 2)),
        ("a b, c -> c", [Shape(2, 3), Shape(4)], {}, "ab,c->c", Shape(4)),
        ("a, a ->", [Shape(3), Shape(3)], {}, "a,a->", Shape()),
        ("a b, b c, c d -> a d", [Shape(2, 3), Shape(3, 4), Shape(4, 5)], {}, "ab,bc,cd->ad", Shape(2, 5)),
        ("a b, b c -> (c a) 1", [Shape(2, (3, 4)), Shape((3, 4), 5)], {}, "abx,bxc->ca", Shape((5, 2), 1)),
        ("a (b c), c d -> d b", [Shape(2, (3, 4)), Shape(4, 5)], {}, "abc,cd->db", Shape(5, 3)),
        ("a (b c), c d -> d b", [Shape(2, 12), Shape(4, 5)], {"b": 3}, "abc,cd->db", Shape(5, 3)),
        ("a 1, 1 b -> a b", [Shape(2, 1), Shape(1, 3)], {}, "ax,yb->ab", Shape(2, 3)),
    ],
)
def test_plan_einsum_labels_compute_what_numpy_computes(
    text: str, shapes: list[Shape], sizes: dict[str, int], subscripts: str, made: Shape
) -> None:
    plan = plan_einsum(parse_einsum(text), shapes, **sizes)
    arrays = [values(source, seed) for seed, source in enumerate(plan.sources)]
    arguments = [part for pair in zip(arrays, plan.labels, strict=True) for part in pair]
    ours = np.einsum(*arguments, [label for label in plan.output if label is not None])
    assert np.array_equal(ours, np.einsum(subscripts, *arrays))
    assert plan.shape == made
    assert len(plan.output) == len(made.leaves())
    assert [plan.extents[label] if label is not None else 1 for label in plan.output] == list(made.leaves())
    for source, labels in zip(plan.sources, plan.labels, strict=True):
        assert [plan.extents[label] for label in labels] == list(source.leaves())


def test_plan_einsum_tells_the_leaves_of_every_symbol() -> None:
    plan = plan_einsum(parse_einsum("a (b c), c d -> d b"), [Shape(2, (3, 4)), Shape(4, 5)])
    assert [plan.leaves_of(0, s) for s in "abcd"] == [(0,), (1,), (2,), ()]
    assert [plan.leaves_of(1, s) for s in "abcd"] == [(), (), (0,), (1,)]
    assert (plan.batch, plan.contracted, plan.free, plan.summed) == ((), ("c",), ("b", "d"), ("a",))
    nested = plan_einsum(parse_einsum("a b, b c -> a c"), [Shape(2, (3, 4)), Shape((3, 4), 5)])
    assert (nested.leaves_of(0, "b"), nested.leaves_of(1, "b")) == ((1, 2), (0, 1))


@pytest.mark.parametrize(
    ("text", "shapes", "sizes", "words"),
    [
        ("a b, b c -> a c", [Shape(2, 3), Shape(4, 5)], {}, "symbol 'b' has size 3 in operand 0 and 4 in operand 1"),
        ("a b, b c -> a c", [Shape(2, 3)], {}, "describes 2 operands, and there are 1"),
        ("a b, b c -> a c", [Shape(2, 3), Shape(3)], {}, "names 2 modes, and 3 has 1"),
        (
            "a b, b c -> a c",
            [Shape(2, (3, 4)), Shape(12, 5)],
            {},
            "symbol 'b' has leaves (3, 4) in operand 0 and (12,) in operand 1",
        ),
        ("a b, b c -> a c", [Shape(2, 3), Shape(3, 4)], {"x": 3}, "a size for 'x'"),
        ("a b, b c -> a c", [Shape(2, 3), Shape(3, 4)], {"c": 3}, "the size of 'c' is 3, and its mode has 4"),
    ],
)
def test_plan_einsum_of_what_does_not_agree_is_refused(
    text: str, shapes: list[Shape], sizes: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError) as refused:
        plan_einsum(parse_einsum(text), shapes, **sizes)
    assert words in str(refused.value)


def test_plans_are_cached_by_spec_shape_and_sizes_and_sizes_are_still_checked() -> None:
    spec = parse_reduce("(a b) -> b")
    assert plan_reduce(spec, Shape(6), a=2) is plan_reduce(spec, Shape(6), a=2)
    assert plan_reduce(spec, Shape(6), a=3).shape == Shape(2)
    with pytest.raises(TypeError, match="A size is a count"):
        plan_reduce(spec, Shape(6), a=2.0)  # type: ignore[arg-type]
    outer = parse_einsum("a, b -> a b")
    assert plan_einsum(outer, [Shape(2), Shape(3)]) is plan_einsum(outer, (Shape(2), Shape(3)))
