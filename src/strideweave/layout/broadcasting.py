"""A layout widened without new indices."""

from __future__ import annotations

from strideweave.layout.layout import Layout
from strideweave.layout.nested import refill, same_tree
from strideweave.layout.shape import Shape


def broadcast_to(layout: Layout, shape: Shape) -> Layout:
    """The layout of this shape in which every widened leaf repeats: it had extent 1 and gets stride 0.

    Leaves match by place, never from the right. Errors: TypeError for no Shape; ValueError when the shape
    nests otherwise, or widens a leaf of another extent than 1.

    >>> from strideweave.layout import Layout, Shape, Stride, broadcast_to
    >>> print(broadcast_to(Layout(Shape(2, (1, 3)), Stride(3, (7, 1))), Shape(2, (5, 3))))
    (2,(5,3)):(3,(0,1))
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"cannot broadcast {layout!r}: it must be a Layout. Pass one.")
    if not isinstance(shape, Shape):
        raise TypeError(f"cannot broadcast {layout} to {shape!r}: the target must be a Shape. Pass one.")
    asked = f"cannot broadcast {layout} to {shape}"
    if not same_tree(layout.shape._items, shape._items):
        raise ValueError(f"{asked}: they nest otherwise. It takes the same shape profile. Nest the target alike.")
    strides: list[int] = []
    for (n, d), wanted in zip(layout.leaves(), shape.leaves(), strict=True):
        if n not in (1, wanted):
            raise ValueError(
                f"{asked}: a leaf of extent {n} would become {wanted}. It can only widen an extent-1 leaf. "
                f"Pass {n} there."
            )
        strides.append(d if n == wanted else 0)
    return Layout._of(shape._items, refill(shape._items, iter(strides)))
