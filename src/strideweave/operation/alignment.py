"""How operands meet: one common shape, every operand's layout widened to it, and the layout of a fresh result."""

from __future__ import annotations

from collections.abc import Sequence

from strideweave.layout import Layout, Shape, Stride
from strideweave.layout.nested import Level


def align(layouts: Sequence[Layout], *, name: str) -> tuple[Shape, tuple[Layout, ...]]:
    """The common shape, and every layout widened to it with stride 0.

    Modes are aligned from the last, as in PyTorch; then every leaf must be equal or 1, and a mode that is a single 1
    widens to any mode. Errors: ValueError ("broadcast-compatible") with both shapes.
    """
    first = layouts[0]
    if all(layout.shape is first.shape or layout.shape == first.shape for layout in layouts):
        return first.shape, tuple(layouts)
    rank = max(len(layout) for layout in layouts)
    modes: list[Level | int] = []
    for back in range(rank, 0, -1):
        here = [layout.shape._items[-back] for layout in layouts if len(layout) >= back]
        common = here[0]
        for other in here[1:]:
            common = _common(common, other, layouts, name)
        modes.append(common)
    shape = Shape._of(tuple(modes))
    return shape, tuple(_widened(layout, shape) for layout in layouts)


def _common(a: Level | int, b: Level | int, layouts: Sequence[Layout], name: str) -> Level | int:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_common(x, y, layouts, name) for x, y in zip(a, b, strict=True))
    shapes = " and ".join(str(layout.shape) for layout in layouts)
    raise ValueError(
        f"cannot {name} shapes {shapes}: {a} meets {b}, so they are not broadcast-compatible. Modes are aligned from "
        "the last; every leaf must be equal or 1. Reshape or broadcast one of them."
    )


def _widened(layout: Layout, shape: Shape) -> Layout:
    missing = len(shape) - len(layout)
    strides: list[Level | int] = [_zeros(mode) for mode in shape._items[:missing]]
    for mode, target, stride in zip(layout.shape._items, shape._items[missing:], layout.stride._items, strict=True):
        strides.append(_stride(mode, target, stride))
    return Layout(shape, Stride._of(tuple(strides)))


def _stride(mode: Level | int, target: Level | int, stride: Level | int) -> Level | int:
    if mode == target:
        return stride
    if mode == 1:
        return _zeros(target)
    assert isinstance(mode, tuple)
    assert isinstance(target, tuple)
    assert isinstance(stride, tuple)
    return tuple(_stride(m, t, s) for m, t, s in zip(mode, target, stride, strict=True))


def _zeros(mode: Level | int) -> Level | int:
    return 0 if isinstance(mode, int) else tuple(_zeros(m) for m in mode)


def dense_like(shape: Shape, operands: Sequence[Layout]) -> Layout:
    """The dense layout of `shape` whose leaves follow the strides of the first operand that orders them all.

    `operands` have this shape. A dense one is the result itself; first mode fastest when none of them has an order.
    """
    extents = shape.leaves()
    order: Sequence[int] = range(len(extents))
    for operand in operands:
        strides = [d for _, d in operand.leaves()]
        if all(d > 0 for d in strides) and operand.cosize == shape.size and operand.is_injective:
            return operand
        if all(d > 0 for n, d in zip(extents, strides, strict=True) if n > 1):
            order = sorted(order, key=lambda k: _rank(extents, strides, k))
            break
    return dense_in_order(shape, order)


def _rank(extents: Sequence[int], strides: Sequence[int], k: int) -> tuple[int, bool]:
    """A leaf of extent 1 has no order of its own: it comes behind the leaf after it, as in a row-major tensor."""
    for j in range(k, len(extents)):
        if extents[j] > 1:
            return strides[j], j > k
    return 0, False


def dense_in_order(shape: Shape, order: Sequence[int]) -> Layout:
    """The dense layout of `shape` in which leaf `order[0]` is the fastest, then `order[1]`, and so on."""
    extents = shape.leaves()
    strides, step = [0] * len(extents), 1
    for k in order:
        strides[k] = step
        step *= extents[k]
    return with_strides(shape, strides)


def with_strides(shape: Shape, strides: Sequence[int]) -> Layout:
    """The layout of `shape` with these strides, one for every leaf in order."""
    left = iter(strides)

    def nest(level: Level) -> Level:
        return tuple(next(left) if isinstance(mode, int) else nest(mode) for mode in level)

    return Layout(shape, Stride._of(nest(shape._items)))


def strides_dense(shape: Shape) -> Layout:
    """The dense layout of any shape, first leaf fastest."""
    return dense_in_order(shape, range(len(shape.leaves())))
