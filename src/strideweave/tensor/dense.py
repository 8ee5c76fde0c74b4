"""Dense layouts of any shape, and the checks of a layout that values are placed by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from strideweave.layout import Layout, Shape, Stride
from strideweave.layout.nested import Level

Extents: TypeAlias = "int | Sequence[Any] | Shape"
"""One extent; or all of them, as one sequence or Shape, which may nest."""


def column_major(*extents: Extents) -> Layout:
    """The dense Layout of these extents, first leaf fastest; they may nest.

    >>> from strideweave.tensor.dense import column_major
    >>> column_major(2, (3, 4))
    Layout(Shape(2, (3, 4)), Stride(1, (2, 6)))
    """
    shape = Shape(*extents)
    return _dense(shape, list(range(len(shape.leaves()))))


def row_major(*extents: Extents) -> Layout:
    """The dense Layout of these extents, last leaf fastest; they may nest.

    >>> from strideweave.tensor.dense import row_major
    >>> row_major(2, (3, 4))
    Layout(Shape(2, (3, 4)), Stride(12, (4, 1)))
    """
    shape = Shape(*extents)
    return _dense(shape, list(reversed(range(len(shape.leaves())))))


def choose_layout(extents: tuple[Extents, ...], layout: Layout | None) -> Layout:
    """The layout itself, or the dense one of these extents.

    Errors: TypeError for neither of them; ValueError for a layout of another shape.
    """
    if layout is None:
        if not extents:
            raise TypeError("cannot make a Tensor of no extents: it has a shape. Pass extents, or a layout.")
        return column_major(*extents)
    if not isinstance(layout, Layout):
        raise TypeError(f"cannot lay values out by {layout!r}: it is no Layout. Pass one.")
    if extents and Shape(*extents) != layout.shape:
        raise ValueError(
            f"cannot make a Tensor of {Shape(*extents)!r} by {layout!r}: the shapes differ. Pass one of the two."
        )
    return layout


def require_injective(layout: Layout) -> Layout:
    """The layout itself, when each coordinate has a slot of its own. Errors: TypeError, ValueError."""
    if not isinstance(layout, Layout):
        raise TypeError(f"cannot place values by {layout!r}: it is no Layout. Pass one.")
    if not layout.is_injective:
        raise ValueError(
            f"cannot place values by {layout!r}: some of its coordinates share a slot. Each value needs its own. Pass "
            "an injective layout."
        )
    return layout


def dense_like(layout: Layout) -> Layout:
    """The dense layout of the same shape whose leaves are fastest in the order of these strides."""
    leaves = layout.leaves()
    return _dense(layout.shape, sorted(range(len(leaves)), key=lambda k: leaves[k][1]))


def _dense(shape: Shape, fastest_first: list[int]) -> Layout:
    extents, strides, step = shape.leaves(), [0] * len(shape.leaves()), 1
    for k in fastest_first:
        strides[k] = step
        step *= extents[k]
    return Layout(shape, Stride._of(_nest(shape._items, iter(strides))))


def _nest(items: Level, strides: Iterator[int]) -> Level:
    return tuple(next(strides) if isinstance(extent, int) else _nest(extent, strides) for extent in items)
