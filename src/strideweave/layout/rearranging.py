"""The parts of a layout in another order and nesting, and the way back."""

from __future__ import annotations

from math import prod

from strideweave.layout.layout import Layout
from strideweave.layout.modes import Part, filled, leaf_numbers, numbered_parts, require_numbers
from strideweave.layout.nested import flat
from strideweave.layout.tree import Node, Tree


def rearrange(layout: Layout, output: Tree, selection: Tree | None = None) -> Layout:
    """The layout nested like `output`, with part k of `extract_profile(layout, selection)` at its leaf `k`.

    A leaf of `output` without a number is a new mode of extent 1 and stride 0. Errors: TypeError for other
    operands; ValueError for a selection that does not match the layout, for a number that no part has or that
    stands twice, and for a part of more than one coordinate that is left out.

    >>> from strideweave.layout import Layout, Node, Tree, rearrange
    >>> print(rearrange(Layout.row_major(2, 3, 4), Tree(2, Tree(0, 1), Node.Leaf)))
    (4,(2,3),1):(1,(12,4),0)
    """
    parts = numbered_parts(layout, selection)
    if not isinstance(output, Tree):
        raise TypeError(f"cannot rearrange {layout} into {output!r}: the output is a Tree. Pass one.")
    asked = f"cannot rearrange {layout} into {output!r}"
    numbers = _numbers(output)
    require_numbers(asked, numbers, len(parts))
    for k, (n, _) in enumerate(parts):
        if k not in numbers and prod((n,) if isinstance(n, int) else flat(n)) > 1:
            raise ValueError(
                f"{asked}: part {k} of extent {n} is left out. The output must include every extracted layout "
                f"of more than one coordinate. Add {k} to it."
            )
    new: Part = (1, 0)
    shape, stride = filled(output, [new if node.number is None else parts[node.number] for node in output.leaves()])
    return Layout._of(shape, stride)


def reverse_rearrange(output: Tree, selection: Tree) -> tuple[Tree, Tree]:
    """The output and the selection that undo `rearrange(layout, output, selection)`.

    A part that was left out comes back as extent 1, stride 0. `Tree.of(layout.profile)` is the selection that
    `rearrange` uses when it is given none. Errors: as for `rearrange`.

    >>> from strideweave.layout import Layout, Tree, rearrange, reverse_rearrange
    >>> a, output = Layout.row_major(2, 3, 4), Tree(2, Tree(0, 1))
    >>> back = reverse_rearrange(output, Tree.of(a.profile))
    >>> rearrange(rearrange(a, output), *back) == a
    True
    """
    for tree in (output, selection):
        if not isinstance(tree, Tree):
            raise TypeError(f"cannot reverse a rearrangement by {tree!r}: it is no Tree. Pass two Trees.")
    numbers = leaf_numbers(selection)
    require_numbers(f"cannot reverse {output!r}", _numbers(output), len(numbers))
    place = {node.number: k for k, node in enumerate(output.leaves()) if node.number is not None}
    came_from = [Node.id(place[k]) if k in place else Node.Leaf for k in numbers]
    return _renumbered(selection, came_from), _renumbered(output, [Node.Leaf] * output.size)


def _numbers(output: Tree) -> list[int]:
    return [node.number for node in output.leaves() if node.number is not None]


def _renumbered(tree: Tree, leaves: list[Node]) -> Tree:
    """The same tree with its leaves replaced in order."""
    rest = iter(leaves)
    return Tree.of(next(rest) if node.kind == "Leaf" else node for node in tree.recipe)
