"""How often a layout reaches every index, where that is the same number for all."""

from __future__ import annotations

from strideweave.layout.layout import Layout
from strideweave.layout.shape import Shape


def uniform_preimage_extent(layout: Layout, target_shape: Shape) -> int | None:
    """How many coordinates reach each index below `target_shape.size`; None when that is not one number.

    Exact, and the cost is that of the leaves. Leaves of stride 0 repeat everything. The others reach every
    index below N once if and only if they make one dense chain: 0 is reached once, 1 takes a leaf of stride
    1, and where the indices below c are reached by the leaves so far, c itself takes a leaf of stride c.
    Errors: TypeError for a target that is no Shape.

    >>> from strideweave.layout import Layout, Shape, Stride, uniform_preimage_extent
    >>> a = Layout(Shape(2, (3, 5)), Stride(3, (1, 0)))
    >>> uniform_preimage_extent(a, Shape(6)), uniform_preimage_extent(a, Shape(7))
    (5, None)
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"cannot count how {layout!r} covers {target_shape!r}: it must be a Layout. Pass one.")
    if not isinstance(target_shape, Shape):
        raise TypeError(f"cannot count how {layout} covers {target_shape!r}: target_shape must be a Shape. Pass one.")
    repeats, covered = 1, 1
    for d, n in sorted((d, n) for n, d in layout.leaves() if n > 1):
        if d == 0:
            repeats *= n
        elif d == covered:
            covered *= n
        else:
            return None
    return repeats if covered == target_shape.size else None
