"""How modes nest, and which one stands where: the trees that take a layout apart and put it together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One marker of a tree read in order: a leaf, with or without a number, or the start or end of a level.

    >>> from strideweave.layout import Layout, Node
    >>> Layout.make_layout(Layout.leaf(2, 1), Layout.column_major(3, 4)).profile
    [Node.Leaf, Node.Push, Node.Leaf, Node.Leaf, Node.Pop]
    >>> Node.id(3)
    Node.id(3)
    """

    kind: str
    """`Leaf`, `Push` or `Pop`."""
    number: int | None = None
    """The number of a leaf that has one."""

    Leaf: ClassVar[Node]
    """A leaf without a number."""
    Push: ClassVar[Node]
    """The start of a nested level."""
    Pop: ClassVar[Node]
    """The end of a nested level."""

    @staticmethod
    def id(number: int) -> Node:
        """The leaf with this number. Errors: TypeError for no int; ValueError for a negative one."""
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"cannot number a leaf {number!r}: a number is an int. Pass one.")
        if number < 0:
            raise ValueError(f"cannot number a leaf {number}: it is negative. Leaves count from 0. Pass 0 or more.")
        return Node("Leaf", number)

    def __repr__(self) -> str:
        return f"Node.{self.kind}" if self.number is None else f"Node.id({self.number})"


Node.Leaf = Node("Leaf")
Node.Push = Node("Push")
Node.Pop = Node("Pop")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Tree:
    """Modes by name: every item is a leaf (`Node.Leaf`, `Node.id(n)` or n itself) or a nested Tree.

    Errors: TypeError for any other item, ValueError for a negative number.

    >>> from strideweave.layout import Node, Tree
    >>> Tree(1, Tree(0, Node.Leaf))
    Tree(1, Tree(0, Node.Leaf))
    >>> Tree(1, Tree(0, Node.Leaf)).recipe
    (Node.id(1), Node.Push, Node.id(0), Node.Leaf, Node.Pop)
    """

    items: tuple[Node | Tree, ...]
    """The modes of the top level, first mode first."""

    def __init__(self, *items: int | Node | Tree) -> None:
        object.__setattr__(self, "items", tuple(_parse(item) for item in items))

    @staticmethod
    def of(recipe: Iterable[Node]) -> Tree:
        """The tree that reads like this: the inverse of `recipe`, and the whole tree of a `Layout.profile`.

        Errors: ValueError for a level that is not started or not ended.

        >>> from strideweave.layout import Layout, Tree
        >>> Tree.of(Layout.column_major(2, 3).profile)
        Tree(Node.Leaf, Node.Leaf)
        """
        nodes = tuple(recipe)
        levels: list[list[Node | Tree]] = [[]]
        for node in nodes:
            if node == Node.Push:
                levels.append([])
                continue
            if node != Node.Pop:
                levels[-1].append(node)
                continue
            if len(levels) == 1:
                raise ValueError(f"cannot read a Tree from {nodes!r}: a level ends unstarted. Pair Push and Pop.")
            inner = Tree(*levels.pop())
            levels[-1].append(inner)
        if len(levels) > 1:
            raise ValueError(f"cannot read a Tree from {nodes!r}: {len(levels) - 1} not ended. Pair Push and Pop.")
        return Tree(*levels[0])

    @property
    def recipe(self) -> tuple[Node, ...]:
        """The markers of the tree read in order, without those around the top level."""
        out: list[Node] = []
        for item in self.items:
            out += [item] if isinstance(item, Node) else [Node.Push, *item.recipe, Node.Pop]
        return tuple(out)

    @property
    def size(self) -> int:
        """How many leaves there are."""
        return len(self.leaves())

    def leaves(self) -> tuple[Node, ...]:
        """Every leaf, first mode first."""
        return tuple(node for node in self.recipe if node.kind == "Leaf")

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        shown = (str(i.number) if isinstance(i, Node) and i.number is not None else repr(i) for i in self.items)
        return f"Tree({', '.join(shown)})"


def _parse(item: object) -> Node | Tree:
    if isinstance(item, Tree) or (isinstance(item, Node) and item.kind == "Leaf"):
        return item
    if isinstance(item, int) and not isinstance(item, bool):
        return Node.id(item)
    raise TypeError(
        f"cannot make a Tree with {item!r}: an item is an int, Node.Leaf, Node.id(n) or a Tree. Pass one of "
        "these; levels come from Trees within Trees."
    )
