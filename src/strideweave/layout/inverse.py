"""From an index back to the ordinal that reaches it."""

from __future__ import annotations

from strideweave.layout.composition import merged
from strideweave.layout.layout import Layout


def right_inverse(layout: Layout) -> Layout:
    """The flat layout with `layout(right_inverse(layout)(i)) == i` for every one of its ordinals.

    For an injective layout it is as long as can be: it ends at the first index that is not reached. It is
    `1:0` where index 1 is not reached. Errors: TypeError for no Layout.

    >>> from strideweave.layout import Layout, right_inverse
    >>> print(right_inverse(Layout.row_major(3, 4)))
    (4,3):(3,1)
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"cannot invert {layout!r}: it must be a Layout. Pass one.")
    # stride -> the longest leaf of it and the step of its ordinals
    longest: dict[int, tuple[int, int]] = {}
    step = 1
    for n, d in layout.leaves():
        if n > 1 and n > longest.get(d, (1, 0))[0]:
            longest[d] = (n, step)
        step *= n
    leaves: list[tuple[int, int]] = []
    covered = 1
    while covered in longest:
        leaves.append(longest[covered])
        covered *= longest[covered][0]
    leaves = merged(leaves) or [(1, 0)]
    return Layout._of(tuple(n for n, _ in leaves), tuple(d for _, d in leaves))
