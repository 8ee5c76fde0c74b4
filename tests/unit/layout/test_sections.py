"""Sections, repetition, inverse, broadcasting and coverage: by example, and what is refused with which words."""

from __future__ import annotations

import time
from typing import Any

import pytest

from strideweave.layout import (
    Layout,
    Shape,
    Stride,
    broadcast_to,
    choose,
    compose,
    modout,
    product,
    right_inverse,
    uniform_preimage_extent,
)


def layout(text: str) -> Layout:
    """The layout that `str` shows like this."""
    shape, stride = text.split(":")
    return Layout(Shape(eval(shape)), Stride(eval(stride)))


def test_choose_and_modout_are_the_halves_of_composing_with_a_leaf() -> None:
    a = layout("(6,2):(2,1)")
    assert choose(a, 2) == layout("(3,2):(4,1)")
    assert a.choose(12) == layout("1:0")
    assert a.choose(1) == a.modout(12) == a
    assert modout(a, 3) == layout("3:2")
    assert modout(choose(a, 2), 3) == compose(a, layout("3:2"))
    assert choose(Layout.empty(), 1) == layout("1:0")


def test_choose_and_modout_of_no_whole_section_are_refused() -> None:
    a = layout("(4,6):(6,1)")
    for section in (choose, modout):
        for part in (0, -1, 5, 48):
            with pytest.raises(ValueError, match="Only a divisor of the size"):
                section(a, part)
        for wrong in (2.0, True, "2", None):
            with pytest.raises(TypeError, match="count of ordinals"):
                section(a, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be a Layout"):
            section(Shape(4), 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nearest tile that works is 4:1"):
        modout(a, 6)
    with pytest.raises(ValueError, match="nearest tile that works"):
        choose(a, 3)


def test_product_fills_the_holes_of_a_tile_first() -> None:
    assert product(layout("(2,2):(1,6)"), layout("3:1")) == layout("((2,2),3):((1,6),2)")
    assert product(layout("(2,2):(1,6)"), layout("6:1")) == layout("((2,2),(3,2)):((1,6),(2,12))")
    assert layout("(2,2):(2,1)").product(layout("(3,4):(4,1)")) == layout("((2,2),(3,4)):((2,1),(16,4))")
    assert product(layout("4:2"), layout("1:0")) == layout("(4,1):(2,0)")


def test_product_of_what_cannot_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match="overlaps with itself"):
        product(layout("(2,2):(1,1)"), layout("2:1"))
    with pytest.raises(ValueError, match="overlaps with itself"):
        product(layout("2:0"), layout("2:1"))
    with pytest.raises(ValueError, match="incongruent"):
        product(layout("(2,2):(1,3)"), layout("2:1"))
    with pytest.raises(ValueError, match="nearest tile that works"):
        product(layout("(2,2):(1,6)"), layout("4:1"))
    with pytest.raises(TypeError, match="must be a Layout"):
        product(layout("2:1"), Shape(2))  # type: ignore[arg-type]


def test_right_inverse_ends_at_the_first_index_that_is_not_reached() -> None:
    assert right_inverse(layout("(3,4):(4,1)")) == layout("(4,3):(3,1)")
    assert layout("(2,(3,4)):(12,(4,1))").right_inverse() == layout("(4,3,2):(6,2,1)")
    assert right_inverse(layout("(2,3):(1,4)")) == layout("2:1")
    assert right_inverse(layout("(3,2):(2,0)")) == right_inverse(Layout.empty()) == layout("1:0")
    assert right_inverse(layout("(2,8):(1,1)")) == layout("8:2")
    with pytest.raises(TypeError, match="must be a Layout"):
        right_inverse(Shape(2))  # type: ignore[arg-type]


def test_broadcast_to_widens_leaves_of_extent_one_only() -> None:
    a = layout("(2,(1,3)):(3,(7,1))")
    assert broadcast_to(a, Shape(2, (5, 3))) == layout("(2,(5,3)):(3,(0,1))")
    assert a.broadcast_to(a.shape) == a
    with pytest.raises(ValueError, match="can only widen an extent-1 leaf"):
        broadcast_to(a, Shape(4, (1, 3)))
    with pytest.raises(ValueError, match="can only widen an extent-1 leaf"):
        broadcast_to(a, Shape(1, (1, 3)))
    for other in (Shape(2, 5, 3), Shape(2, 3), Shape(4, 2, (5, 3)), Shape(2, (5, (3,)))):
        with pytest.raises(ValueError, match="same shape profile"):
            broadcast_to(a, other)
    with pytest.raises(TypeError, match="must be a Shape"):
        broadcast_to(a, (2, (5, 3)))  # type: ignore[arg-type]


def test_uniform_preimage_extent_counts_repeats_of_a_dense_layout() -> None:
    assert uniform_preimage_extent(layout("(2,(3,5)):(3,(1,0))"), Shape(2, 3)) == 5
    assert layout("(2,3):(3,1)").uniform_preimage_extent(Shape(6)) == 1
    assert Layout.empty().uniform_preimage_extent(Shape()) == 1
    assert uniform_preimage_extent(layout("(2,3):(3,1)"), Shape(7)) is None
    assert uniform_preimage_extent(layout("(2,3):(3,1)"), Shape(3)) is None
    assert uniform_preimage_extent(layout("(2,2):(1,1)"), Shape(3)) is None
    assert uniform_preimage_extent(layout("(2,2):(1,1)"), Shape(4)) is None
    assert uniform_preimage_extent(layout("(4,2):(1,2)"), Shape(8)) is None
    assert uniform_preimage_extent(layout("3:2"), Shape(5)) is None
    target: Any = 6
    with pytest.raises(TypeError, match="target_shape must be a Shape"):
        layout("6:1").uniform_preimage_extent(target)


def test_structural_answers_never_list_a_huge_domain() -> None:
    start = time.perf_counter()
    huge = Layout.row_major(*[10**6] * 8)
    assert huge.uniform_preimage_extent(Shape(10**48)) == 1
    assert huge.right_inverse().size == 10**48
    assert huge.choose(10**40).size == 10**8
    assert huge.product(huge).size == 10**96
    assert time.perf_counter() - start < 0.5


def test_shape_concat_and_append() -> None:
    assert Shape.concat(Shape(2, 3), Shape(4)) == Shape(2, 3, 4)
    assert Shape.append(Shape(2), Shape(3)) == Shape(2, 3)
    assert Shape.append(Shape(2), Shape((3, 4))) == Shape(2, (3, 4))
    for join in (Shape.concat, Shape.append):
        with pytest.raises(TypeError, match="it is no Shape"):
            join(Shape(2), Stride(3))  # type: ignore[arg-type]
