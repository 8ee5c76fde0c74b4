"""The two halves of a composition with one leaf: every d-th ordinal, and the first s ordinals."""

from __future__ import annotations

from strideweave.layout.composition import compose_layouts
from strideweave.layout.layout import Layout


def choose(A: Layout, d: int) -> Layout:
    """Every `d`-th ordinal of `A`, flat: `choose(A, d)(i) == A(i * d)` for the `A.size // d` of them.

    Errors: TypeError for other operands. ValueError when `d` does not divide the size, or when no layout is
    proven to be the answer.

    >>> from strideweave.layout import Layout, choose
    >>> print(choose(Layout.row_major(6, 2), 2))
    (3,2):(4,1)
    """
    _require("choose", A, d)
    return compose_layouts(A, Layout.leaf(A.size // d, d if d < A.size else 0))[0]


def modout(A: Layout, s: int) -> Layout:
    """The first `s` ordinals of `A`, flat: `modout(A, s)(i) == A(i)`, and s coordinates in all.

    `modout(choose(A, d), s)` is `A` composed with the leaf `s:d`. Errors: as for `choose`.

    >>> from strideweave.layout import Layout, modout
    >>> print(modout(Layout.row_major(6, 2), 3))
    3:2
    """
    _require("modout", A, s)
    return compose_layouts(A, Layout.leaf(s, 1))[0]


def _require(verb: str, A: object, part: object) -> None:
    if not isinstance(A, Layout):
        raise TypeError(f"cannot {verb} {A!r}: it must be a Layout. Pass one.")
    if isinstance(part, bool) or not isinstance(part, int):
        raise TypeError(f"cannot {verb} {part!r} of {A}: it takes a count of ordinals. Pass an int.")
    if part < 1 or A.size % part:
        raise ValueError(
            f"cannot {verb} {part} of {A}: it has {A.size} coordinates. Only a divisor of the size leaves whole "
            "sections. Pass one."
        )
