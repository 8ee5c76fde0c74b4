"""The algebra by example: the answers of the contract, and what is refused with which words."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from strideweave.layout import (
    Layout,
    Shape,
    Stride,
    append,
    coalesce,
    complement,
    compose,
    concat,
    divide,
    divide_tiler,
    permute,
    zipped_divide,
)


def layout(text: str) -> Layout:
    """The layout that `str` shows like this."""
    shape, stride = text.split(":")
    return Layout(Shape(eval(shape)), Stride(eval(stride)))


def test_compose_leaf_with_two_modes() -> None:
    assert compose(layout("20:2"), layout("(5,4):(4,1)")) == layout("(5,4):(8,2)")


def test_divide_across_modes() -> None:
    divided = divide(layout("(4,2,3):(2,1,8)"), layout("4:2"))
    assert divided == layout("((2,2),(2,3)):((4,1),(2,8))")


def test_complement_fills_both_gaps() -> None:
    assert complement(layout("(2,2):(1,6)"), 24) == layout("(3,2):(2,12)")
    assert complement(layout("4:1"), 4) == layout("1:0")
    assert complement(layout("1:0"), 6) == layout("6:1")


def test_compose_across_a_mode_boundary_splits_the_leaf() -> None:
    assert compose(layout("(6,2):(8,2)"), layout("12:1")) == layout("((6,2),):((8,2),)")
    assert compose(layout("(4,6):(6,1)"), layout("8:1")) == layout("((4,2),):((6,1),)")
    assert compose(layout("(4,6):(6,1)"), layout("(8,3):(1,8)")) == layout("((4,2),3):((6,1),2)")


def test_compose_step_that_does_not_divide_but_stays_within_a_mode_is_exact() -> None:
    assert compose(layout("(6,2):(1,10)"), layout("2:4")) == layout("2:4")
    assert compose(layout("(5,8):(1,100)"), layout("4:3")) == layout("((2,2),):((3,101),)")


def test_compose_by_mode_keeps_the_modes_without_a_tile() -> None:
    a = layout("(8,(2,3),5):(1,(8,16),48)")
    tiles = [layout("4:2"), layout("3:2")]
    assert compose(a, tiles) == compose(a, tuple(tiles)) == layout("(4,3,5):(2,16,48)")
    assert compose(a, []) == a
    split = layout("((4,6),5):((6,1),24)")
    assert compose(split, [layout("8:1"), layout("5:1")]) == layout("((4,2),5):((6,1),24)")
    assert compose(a, Shape(4, 2)) == layout("(4,2,5):(1,8,48)")
    assert compose(a, Shape(4, (2, 3))) == layout("(4,(2,3),5):(1,(8,16),48)")


@pytest.mark.parametrize(
    ("outer", "inner", "nearest"),
    [
        ("(4,6):(6,1)", "6:1", "4:1"),
        ("(4,6):(6,1)", "7:1", "8:1"),
        ("(3,4):(10,1)", "(2,3):(1,2)", "(2,1):(1,2)"),
        ("(10,10):(10,1)", "24:1", "20:1"),
        ("(4,4,4):(100,10,1)", "5:5", "4:5"),
    ],
)
def test_compose_that_is_no_layout_names_a_tile_that_is(outer: str, inner: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"nearest tile that works is {nearest}.")):
        compose(layout(outer), layout(inner))
    a, tile = layout(outer), layout(nearest)
    assert [compose(a, tile)(i) for i in range(tile.size)] == [a(tile(i)) for i in range(tile.size)]


def test_compose_of_wrong_operands_is_refused() -> None:
    a: Any = layout("(4,6):(6,1)")
    with pytest.raises(ValueError, match=r"inner codomain exceeds.*reaches 23 at most"):
        compose(a, layout("25:1"))
    with pytest.raises(ValueError, match="more tiles"):
        compose(a, [layout("1:0")] * 3)
    with pytest.raises(TypeError, match="A must be a Layout"):
        Layout.compose(3, a)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="both B and inner"):
        a.compose(a, inner=a)
    with pytest.raises(TypeError, match="contain only Layout"):
        compose(a, [2, 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="Layout, a Shape or a sequence"):
        compose(a, 4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Layout, a Shape or a sequence"):
        a.compose()


@pytest.mark.parametrize(
    ("tile", "cotarget", "words"),
    [
        ("(2,2):(1,1)", 8, "overlaps with itself"),
        ("3:0", 8, "overlaps with itself"),
        ("(2,2):(2,3)", 12, "incongruent"),
        ("4:1", 10, "incongruent.*use 5:1"),
        ("(3,2):(1,8)", 16, r"incongruent.*use 2:1"),
        ("4:3", 9, "larger than cotarget"),
    ],
)
def test_complement_that_leaves_a_gap_is_refused(tile: str, cotarget: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        complement(layout(tile), cotarget)


def test_complement_of_a_huge_prime_is_refused_at_once() -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match="use 1:1"):
        complement(Layout.leaf(10**8, 1), 2**61 - 1)
    assert time.perf_counter() - start < 0.2


def test_divide_by_tiles_cuts_a_torch_weight_into_whole_experts() -> None:
    weight = Layout.row_major(8, 6, 4)
    parts = zipped_divide(weight, [layout("1:1"), layout("6:1"), layout("4:1")])
    assert parts[0] == layout("(1,6,4):(24,4,1)")
    assert parts[1] == layout("(8,1,1):(24,0,0)")


def test_zipped_divide_with_one_tile_keeps_one_entry_per_tile() -> None:
    parts = zipped_divide(layout("((2,4),5):((4,1),8)"), [layout("4:1")])
    assert parts == layout("(((2,2),),(2,),5):(((4,1),),(2,),8)")
    assert parts[0][0] == layout("(2,2):(4,1)")
    assert zipped_divide(layout("(4,6):(1,4)"), [layout("2:1"), layout("3:2")]) == layout("((2,3),(2,2)):((1,8),(2,4))")
    assert divide_tiler(layout("(4,6):(1,4)"), [layout("2:1")]) == layout("((2,2),6):((1,2),4)")


def test_divide_by_a_tile_that_does_not_fit_is_refused() -> None:
    a: Any = layout("(10,6):(1,10)")
    with pytest.raises(ValueError, match=r"cannot complement 4:1 up to 10.*use 5:1"):
        zipped_divide(a, [layout("4:1")])
    with pytest.raises(ValueError, match="more tiles"):
        zipped_divide(a, [layout("1:0")] * 3)
    with pytest.raises(TypeError, match="sequence of Layouts"):
        zipped_divide(a, layout("2:1"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="contain only Layout"):
        divide_tiler(a, [2])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="must be a Layout"):
        divide(a, 2)  # type: ignore[arg-type]


def test_concat_append_and_permute_move_whole_modes() -> None:
    a, b = layout("(2,(3,4)):(1,(2,6))"), layout("(5,6):(24,120)")
    assert concat(a, b) == a + b == a.concat(b) == layout("(2,(3,4),5,6):(1,(2,6),24,120)")
    assert append(a, b) == Layout.append(a, b) == layout("(2,(3,4),(5,6)):(1,(2,6),(24,120))")
    assert append(a, layout("5:7")) == layout("(2,(3,4),5):(1,(2,6),7)")
    assert permute(a, 1, 0) == a.permute(1, 0) == layout("((3,4),2):((2,6),1)")
    for order in ((0,), (0, 0), (0, 2)):
        with pytest.raises(ValueError, match="must reorder every layout mode"):
            permute(a, *order)
    with pytest.raises(TypeError, match="no int"):
        permute(a, 0, True)
    with pytest.raises(TypeError, match="must be a Layout"):
        concat(a, 3)  # type: ignore[arg-type]


def test_coalesce_merges_what_continues() -> None:
    assert coalesce(layout("(2,(1,6)):(1,(6,2))")) == layout("12:1")
    assert coalesce(layout("(2,3):(3,1)")) == layout("(2,3):(3,1)")
    assert coalesce(layout("(1,1):(7,9)")) == coalesce(Layout.empty()) == layout("1:0")
    assert coalesce(layout("(2,3):(0,0)")) == layout("6:0")


def test_algebra_methods_are_the_functions() -> None:
    a, tile = layout("(8,6):(1,8)"), layout("4:2")
    assert a.compose(tile) == Layout.compose(a, inner=tile) == compose(a, tile)
    assert a.divide(tile) == Layout.divide(a, tile) == divide(a, tile)
    assert tile.complement(48) == complement(tile, 48)
    assert a.divide_tiler([tile]) == divide_tiler(a, [tile])
    assert a.zipped_divide([tile]) == zipped_divide(a, [tile])
    assert a.coalesce() == layout("48:1")


def test_algebra_cost_does_not_grow_with_the_extents() -> None:
    def seconds(n: int) -> float:
        a = Layout.row_major(*(6 * [n]))
        tiles = [Layout.leaf(n // 2, 1)] * 6
        best = 1.0
        for _ in range(20):
            start = time.perf_counter()
            zipped_divide(a, tiles)
            best = min(best, time.perf_counter() - start)
        return best

    small, large = seconds(4), seconds(2**20)
    assert large < 5 * small
    assert large < 2e-3
