"""Trees, and taking layouts apart and together along them: by example, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest

from strideweave.layout import (
    Layout,
    Node,
    Shape,
    Stride,
    Tree,
    coalesce_by_mode,
    extract_profile,
    flatten_layout,
    rearrange,
    reverse_rearrange,
)


def layout(text: str) -> Layout:
    """The layout that `str` shows like this."""
    shape, stride = text.split(":")
    return Layout(Shape(eval(shape)), Stride(eval(stride)))


def test_tree_of_ints_nodes_and_trees_is_one_value() -> None:
    tree = Tree(1, Tree(Node.id(0), Node.Leaf), Node.Leaf)
    assert tree == Tree(Node.id(1), Tree(0, Node.Leaf), Node.Leaf) == Tree.of(tree.recipe) == eval(repr(tree))
    assert hash(tree) == hash(eval(repr(tree)))
    assert tree.size == 4
    assert len(tree) == 3
    assert tree.recipe == (Node.id(1), Node.Push, Node.id(0), Node.Leaf, Node.Pop, Node.Leaf)
    assert tree != Tree(1, 0, Node.Leaf, Node.Leaf)
    assert Tree().size == 0
    with pytest.raises(AttributeError):
        tree.items = ()  # type: ignore[misc]


def test_tree_of_anything_else_is_refused() -> None:
    bad: list[Any] = ["0", 1.0, True, None, (1, 2), Node.Push, Node.Pop]
    for item in bad:
        with pytest.raises(TypeError, match="an item is an int"):
            Tree(item)
    for number in ("0", 1.0, True):
        with pytest.raises(TypeError, match="a number is an int"):
            Node.id(number)  # type: ignore[arg-type]
    for make in (Node.id, Tree):
        with pytest.raises(ValueError, match="negative"):
            make(-1)
    with pytest.raises(ValueError, match="unstarted"):
        Tree.of([Node.Leaf, Node.Pop])
    with pytest.raises(ValueError, match="not ended"):
        Tree.of([Node.Push, Node.Leaf])


def test_profile_marks_leaves_and_nested_levels() -> None:
    assert layout("5:1").profile == [Node.Leaf]
    assert Layout.empty().profile == []
    assert layout("((2,3),):((1,2),)").profile == [Node.Push, Node.Leaf, Node.Leaf, Node.Pop]
    assert layout("(2,(3,(4,))):(1,(2,(6,)))").profile == [
        Node.Leaf,
        Node.Push,
        Node.Leaf,
        Node.Push,
        Node.Leaf,
        Node.Pop,
        Node.Pop,
    ]


def test_flatten_layout_keeps_leaves_of_extent_one() -> None:
    assert flatten_layout(layout("(2,(1,(3,4))):(1,(9,(2,6)))")) == layout("(2,1,3,4):(1,9,2,6)")
    assert Layout.flatten_layout(Layout.empty()) == Layout.empty()


def test_extract_profile_takes_modes_whole_or_enters_them() -> None:
    a = layout("((2,3),4):((12,4),1)")
    assert extract_profile(a) == [layout("2:12"), layout("3:4"), layout("4:1")]
    assert a.extract_profile(Tree(Node.Leaf, Node.Leaf)) == [layout("(2,3):(12,4)"), layout("4:1")]
    assert a.extract_profile(Tree(Tree(2, 0), 1)) == [layout("3:4"), layout("4:1"), layout("2:12")]


def test_coalesce_by_mode_merges_within_the_leaves_of_the_tree_only() -> None:
    a = layout("((2,3),(4,1)):((1,2),(6,99))")
    assert coalesce_by_mode(a, Tree(0, 1)) == layout("(6,4):(1,6)")
    assert a.coalesce_by_mode(Tree(Tree(0, 1), 2)) == layout("((2,3),4):((1,2),6)")
    assert coalesce_by_mode(layout("(1,(2,3)):(5,(6,1))"), Tree(0, 1)) == layout("(1,(2,3)):(0,(6,1))")


def test_rearrange_reorders_groups_inserts_and_drops() -> None:
    a = layout("(2,(3,1),4):(12,(4,7),1)")
    assert rearrange(a, Tree(3, Tree(0, 1), Node.Leaf)) == layout("(4,(2,3),1):(1,(12,4),0)")
    whole = Tree(Node.Leaf, Node.Leaf, Node.Leaf)
    assert a.rearrange(Tree(1, Tree(2, 0)), whole) == layout("((3,1),(4,2)):((4,7),(1,12))")
    assert a.rearrange(Tree(0, 1, 2), Tree(2, 0, 1)) == layout("((3,1),4,2):((4,7),1,12)")
    assert rearrange(Layout.empty(), Tree()) == Layout.empty()


def test_rearrange_that_names_no_layout_is_refused() -> None:
    a = layout("(2,(3,1)):(3,(1,0))")
    with pytest.raises(ValueError, match="rearrange id is out of range"):
        rearrange(a, Tree(0, 1, 3))
    with pytest.raises(ValueError, match="ids must not be duplicated"):
        rearrange(a, Tree(0, 1, 1))
    with pytest.raises(ValueError, match="must include every extracted layout"):
        rearrange(a, Tree(0, 2))
    for selection in (Tree(0), Tree(0, 1, 2), Tree(Tree(0), 1), Tree(0, Tree(1))):
        with pytest.raises(ValueError, match="layout and tree profile do not match"):
            rearrange(a, Tree(0, 1), selection)
        with pytest.raises(ValueError, match="layout and tree profile do not match"):
            coalesce_by_mode(a, selection)
    with pytest.raises(ValueError, match="ids must not be duplicated"):
        rearrange(a, Tree(0, 1), Tree(1, Node.Leaf))
    with pytest.raises(ValueError, match="rearrange id is out of range"):
        rearrange(a, Tree(0, 1), Tree(0, 2))


def test_rearrange_of_wrong_operands_is_refused() -> None:
    a: Any = layout("(2,3):(3,1)")
    for wrong in (
        lambda: rearrange(3, Tree(0)),  # type: ignore[arg-type]
        lambda: rearrange(a, (0, 1)),  # type: ignore[arg-type]
        lambda: rearrange(a, Tree(0, 1), [0, 1]),  # type: ignore[arg-type]
        lambda: reverse_rearrange(a, Tree(0, 1)),
        lambda: coalesce_by_mode(a, None),  # type: ignore[arg-type]
        lambda: coalesce_by_mode(None, Tree(0)),  # type: ignore[arg-type]
        lambda: flatten_layout(Shape(2)),  # type: ignore[arg-type]
        lambda: extract_profile(Shape(2)),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="Pass"):
            wrong()


def test_reverse_rearrange_drops_what_was_inserted_and_restores_what_was_dropped() -> None:
    a = layout("(2,1,3):(3,0,1)")
    output, selection = Tree(2, Node.Leaf, Tree(0)), Tree.of(a.profile)
    assert Layout.reverse_rearrange(output, selection) == (
        Tree(2, Node.Leaf, 0),
        Tree(*[Node.Leaf] * 2, Tree(Node.Leaf)),
    )
    assert rearrange(rearrange(a, output), *reverse_rearrange(output, selection)) == a
