"""A layout taken apart along a tree: its leaves, its named parts, each part simplified alone."""

from __future__ import annotations

from typing import TypeAlias

from strideweave.layout.composition import merged
from strideweave.layout.layout import Layout
from strideweave.layout.nested import Level, flat
from strideweave.layout.tree import Node, Tree

Part: TypeAlias = "tuple[int | Level, int | Level]"
"""Extent and stride of one mode: two ints for a leaf, two levels alike for a nested mode."""


def profile(layout: Layout) -> list[Node]:
    """The markers of the layout's tree read in order, without those around the top level."""
    return list(_markers(layout.shape._items))


def flatten_layout(layout: Layout) -> Layout:
    """The same leaves as modes of one flat level: the same index for every ordinal.

    >>> from strideweave.layout import Layout, Shape, Stride, flatten_layout
    >>> print(flatten_layout(Layout(Shape(2, (3, 4)), Stride(12, (4, 1)))))
    (2,3,4):(12,4,1)
    """
    _require_layout("flatten", layout)
    return Layout._of(flat(layout.shape._items), flat(layout.stride._items))


def extract_profile(layout: Layout, tree: Tree | None = None) -> list[Layout]:
    """The parts of a layout that a tree names: item k is the part at leaf k, or at the leaf with number k.

    A leaf of the tree takes the mode in its place whole, however that nests; without a tree there is one part
    per leaf of the layout. Errors: TypeError for other operands; ValueError for a tree that does not match
    the layout, or whose numbers are not 0, 1, 2, ... once each.

    >>> from strideweave.layout import Layout, Shape, Stride, Tree, extract_profile
    >>> a = Layout(Shape(2, (3, 4)), Stride(12, (4, 1)))
    >>> [str(part) for part in extract_profile(a, Tree(1, 0))]
    ['(3,4):(4,1)', '2:12']
    >>> [str(part) for part in extract_profile(a)]
    ['2:12', '3:4', '4:1']
    """
    return [_whole(part) for part in numbered_parts(layout, tree)]


def coalesce_by_mode(layout: Layout, tree: Tree) -> Layout:
    """The layout nested like the tree, every part at one of its leaves coalesced alone: a leaf where it can be.

    Numbers in the tree mean nothing here. Errors: TypeError for other operands; ValueError for a tree that
    does not match the layout.

    >>> from strideweave.layout import Layout, Node, Shape, Stride, Tree, coalesce_by_mode
    >>> a = Layout(Shape((2, 3), (2, 2)), Stride((1, 2), (6, 24)))
    >>> print(coalesce_by_mode(a, Tree(Node.Leaf, Node.Leaf)))
    (6,(2,2)):(1,(6,24))
    """
    _require_layout("coalesce", layout)
    _require_tree("coalesce", layout, tree)
    shape, stride = filled(tree, [_coalesced(part) for part in _parts(layout, tree)])
    return Layout._of(shape, stride)


def numbered_parts(layout: Layout, tree: Tree | None) -> list[Part]:
    """The parts at the leaves of a tree, by number; those of the layout's own leaves when there is no tree."""
    _require_layout("extract", layout)
    if tree is None:
        return list(layout.leaves())
    _require_tree("extract", layout, tree)
    parts = _parts(layout, tree)
    return [part for _, part in sorted(zip(leaf_numbers(tree), parts, strict=True), key=lambda pair: pair[0])]


def leaf_numbers(tree: Tree) -> list[int]:
    """The number of every leaf: its own, or its place where it has none; a reordering of 0, 1, 2, ..."""
    numbers = [k if node.number is None else node.number for k, node in enumerate(tree.leaves())]
    require_numbers(f"cannot extract by {tree!r}", numbers, len(numbers))
    return numbers


def require_numbers(asked: str, numbers: list[int], count: int) -> None:
    """Errors: ValueError unless all numbers are below `count` and differ."""
    for number in numbers:
        if number >= count:
            raise ValueError(
                f"{asked}: number {number} of {count} parts. The rearrange id is out of range. Use 0 to {count - 1}."
            )
        if numbers.count(number) > 1:
            raise ValueError(f"{asked}: number {number} stands twice. The ids must not be duplicated. Use it once.")


def filled(tree: Tree, parts: list[Part]) -> tuple[Level, Level]:
    """Extents and strides nested like the tree, its leaves replaced by these parts in order."""
    return _filled(tree, list(reversed(parts)))


def _filled(tree: Tree, rest: list[Part]) -> tuple[Level, Level]:
    modes = [rest.pop() if isinstance(item, Node) else _filled(item, rest) for item in tree.items]
    return tuple(n for n, _ in modes), tuple(d for _, d in modes)


def _parts(layout: Layout, tree: Tree) -> list[Part]:
    parts: list[Part] = []

    def walk(items: tuple[Node | Tree, ...], shape: int | Level, stride: int | Level) -> None:
        if isinstance(shape, int) or isinstance(stride, int) or len(shape) != len(items):
            raise ValueError(
                f"cannot take {layout} apart by {tree!r}: layout and tree profile do not match. A Tree has one "
                "item per mode, and a nested Tree stands for a nested mode. Nest it like the layout."
            )
        for item, n, d in zip(items, shape, stride, strict=True):
            if isinstance(item, Node):
                parts.append((n, d))
            else:
                walk(item.items, n, d)

    walk(tree.items, layout.shape._items, layout.stride._items)
    return parts


def _whole(part: Part) -> Layout:
    n, d = part
    return Layout._of((n,) if isinstance(n, int) else n, (d,) if isinstance(d, int) else d)


def _coalesced(part: Part) -> Part:
    leaves = merged(_whole(part).leaves()) or [(1, 0)]
    return leaves[0] if len(leaves) == 1 else (tuple(n for n, _ in leaves), tuple(d for _, d in leaves))


def _markers(items: Level) -> list[Node]:
    out: list[Node] = []
    for item in items:
        out += [Node.Leaf] if isinstance(item, int) else [Node.Push, *_markers(item), Node.Pop]
    return out


def _require_layout(verb: str, layout: object) -> None:
    if not isinstance(layout, Layout):
        raise TypeError(f"cannot {verb} {layout!r}: it must be a Layout. Pass one.")


def _require_tree(verb: str, layout: Layout, tree: object) -> None:
    if not isinstance(tree, Tree):
        raise TypeError(f"cannot {verb} {layout} by {tree!r}: its parts are named by a Tree. Pass one.")
