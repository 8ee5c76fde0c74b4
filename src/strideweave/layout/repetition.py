"""A layout repeated over the places that it leaves free."""

from __future__ import annotations

from strideweave.layout.layout import Layout


def product(A: Layout, B: Layout) -> Layout:
    """Two modes: `A`, and the places where `A` repeats, in the order of `B`; no two copies meet.

    With C the complement of `A`, long enough for `B`, the result at (i, j) is `A(i) + C(B(j))`: a tile `A`
    laid out over a grid `B`. It is injective if both are. Errors: TypeError for other operands; ValueError
    when `A` overlaps with itself or is incongruent, or when C composed with `B` is no layout.

    >>> from strideweave.layout import Layout, product
    >>> print(product(Layout.row_major(2, 2), Layout.row_major(3, 4)))
    ((2,2),(3,4)):((2,1),(16,4))
    """
    for operand in (A, B):
        if not isinstance(operand, Layout):
            raise TypeError(f"cannot repeat {A!r} over {B!r}: {operand!r} must be a Layout. Pass one.")
    end = max((n * d for n, d in A.leaves() if n > 1), default=1)
    # Within `end`, A leaves room for end / A.size copies of itself; whole ends follow until B has its places.
    rounds = -(-B.cosize * A.size // end) if end else 1
    free = A.complement(max(end * rounds, A.cosize))
    places = free.compose(B)
    # A leaf that was split becomes the mode itself, not a mode within one.
    return Layout.make_layout(A, places[0] if B.is_leaf else places)
