"""The algebra of layouts: pure functions from layouts to layouts, each exact or a ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TypeAlias, overload

from strideweave.layout.composed import compose_maps
from strideweave.layout.composition import compose_layouts, merged
from strideweave.layout.index_map import IndexMap
from strideweave.layout.layout import Layout, as_mode
from strideweave.layout.nested import refill
from strideweave.layout.shape import Shape

Tiler: TypeAlias = Sequence[Layout]
"""One tile for each leading mode of a layout."""

_SEARCHED = 10_000
"""How far from an extent a better one is looked for, to name it in a message."""


def concat(a: Layout, b: Layout) -> Layout:
    """The modes of `a`, then the modes of `b`.

    >>> from strideweave.layout import Layout, concat
    >>> print(concat(Layout.leaf(2, 1), Layout.column_major(3, 4)))
    (2,3,4):(1,1,3)
    """
    _require_layouts("concat", a, b)
    return Layout._of(a.shape._items + b.shape._items, a.stride._items + b.stride._items)


def append(a: Layout, b: Layout) -> Layout:
    """The modes of `a`, then `b` as one mode: a leaf stays a leaf.

    >>> from strideweave.layout import Layout, append
    >>> print(append(Layout.leaf(2, 1), Layout.column_major(3, 4)))
    (2,(3,4)):(1,(1,3))
    """
    _require_layouts("append", a, b)
    return Layout._of((*a.shape._items, as_mode(b.shape._items)), (*a.stride._items, as_mode(b.stride._items)))


def permute(layout: Layout, *order: int) -> Layout:
    """The same modes with mode `order[k]` at place k; a nested mode moves whole.

    Errors: TypeError for an order that is not of ints; ValueError when it does not name every mode once.

    >>> from strideweave.layout import Layout, permute
    >>> print(permute(Layout.column_major(2, 3, 4), 2, 0, 1))
    (4,2,3):(6,1,2)
    """
    _require_layouts("permute", layout)
    for k in order:
        if isinstance(k, bool) or not isinstance(k, int):
            raise TypeError(f"cannot permute {layout} by {order!r}: {k!r} is no int. Modes are numbered. Pass ints.")
    if sorted(order) != list(range(len(layout))):
        raise ValueError(
            f"cannot permute {layout} by {order!r}: the order must reorder every layout mode. "
            f"Name 0 to {len(layout) - 1} once each."
        )
    shape, stride = layout.shape._items, layout.stride._items
    return Layout._of(tuple(shape[k] for k in order), tuple(stride[k] for k in order))


def coalesce(layout: Layout) -> Layout:
    """The same function of the ordinal with the fewest leaves, flat: `1:0` when there is one coordinate.

    >>> from strideweave.layout import Layout, Shape, Stride, coalesce
    >>> print(coalesce(Layout(Shape(2, (1, 6)), Stride(1, (6, 2)))))
    12:1
    """
    _require_layouts("coalesce", layout)
    return _from_leaves(merged(layout.leaves()))


@overload
def compose(A: Layout, B: Layout | Shape | Tiler) -> Layout: ...
@overload
def compose(A: Layout, B: IndexMap | Shape | Tiler | None) -> IndexMap: ...
def compose(A: Layout, B: IndexMap | Shape | Tiler | None) -> IndexMap:
    """The layout with `compose(A, B)(i) == A(B(i))` for every coordinate `i` of `B`, whole or by ordinals.

    A leaf of `B` that crosses modes of `A` becomes a nested mode in its place: all keys of `B` stay valid.
    `B` may also be a tiler, one Layout per leading mode of `A` (the others are kept), or a Shape, a
    unit-stride tile per leading mode, or another IndexMap: then the result is one too, evaluated key by key.
    Nothing is listed: the cost is that of the leaves.

    Errors: TypeError for other operands. ValueError when `B` reaches an ordinal that `A` does not have, when
    there are more tiles than modes, or when no layout is proven to be the composition; that one names the
    nearest tile that composes.

    >>> from strideweave.layout import Layout, Shape, Stride, compose
    >>> print(compose(Layout.leaf(20, 2), Layout(Shape(5, 4), Stride(4, 1))))
    (5,4):(8,2)
    >>> compose(Layout(Shape(4, 6), Stride(6, 1)), Layout.leaf(6, 1))
    Traceback (most recent call last):
    ValueError: cannot compose (4,6):(6,1) with 6:1: leaf 6:1 of the tile does not end ...
    """
    if not isinstance(A, Layout):
        raise TypeError(f"cannot compose {A!r}: A must be a Layout. Pass one.")
    if isinstance(B, Layout):
        return compose_layouts(A, B)
    if isinstance(B, IndexMap):
        return compose_maps(A, B)
    if isinstance(B, Shape):
        return _compose_by_mode(A, [_unit(part) for part in B])
    if isinstance(B, Sequence) and not isinstance(B, str | bytes):
        return _compose_by_mode(A, B)
    raise TypeError(
        f"cannot compose {A} with {B!r}: the inner map is an IndexMap such as a Layout, a Shape or a "
        "sequence of Layouts. Pass one of these."
    )


def complement(A: Layout, cotarget: int) -> Layout:
    """The ascending layout that reaches, added to `A`, every index below `cotarget` exactly once.

    Errors: TypeError for a cotarget that is no int. ValueError when `A` overlaps with itself, is larger than
    `cotarget`, or is incongruent: leaves gaps that no layout fills.

    >>> from strideweave.layout import Layout, Shape, Stride, complement
    >>> print(complement(Layout(Shape(2, 2), Stride(1, 6)), 24))
    (3,2):(2,12)
    """
    _require_layouts("complement", A)
    if isinstance(cotarget, bool) or not isinstance(cotarget, int):
        raise TypeError(f"cannot complement {A} up to {cotarget!r}: the cotarget is a count of indices. Pass an int.")
    asked = f"cannot complement {A} up to {cotarget}"
    if A.cosize > cotarget:
        raise ValueError(
            f"{asked}: it reaches {A.cosize} indices and is larger than cotarget. Pass {A.cosize} or more."
        )
    leaves = sorted((d, n) for n, d in A.leaves() if n > 1)
    gaps: list[tuple[int, int]] = []
    covered, last = 1, (1, 1)
    # The cotarget closes the last gap like one more leaf would.
    for d, n in [*leaves, (cotarget, 1)]:
        if d == 0 or d < covered or d % covered:
            if not A.is_injective:
                raise ValueError(
                    f"{asked}: it overlaps with itself. Every index may be reached once. Change its strides."
                )
            raise ValueError(f"{asked}: {_incongruent(d, covered, last)}")
        gaps.append((d // covered, covered))
        covered, last = d * n, (n, d)
    return _from_leaves(merged(gaps))


def divide(A: Layout, B: Layout) -> Layout:
    """Two modes: `A` within the tile `B` of its ordinals, and `A` over the places where that tile repeats.

    It is `A` composed with (`B`, `complement(B, A.size)`): the same indices as `A`, each once.
    Errors: as for `complement` and `compose`.

    >>> from strideweave.layout import Layout, Shape, Stride, divide
    >>> print(divide(Layout(Shape(4, 2, 3), Stride(2, 1, 8)), Layout.leaf(4, 2)))
    ((2,2),(2,3)):((4,1),(2,8))
    """
    _require_layouts("divide", A, B)
    return compose_layouts(A, Layout.make_layout(B, complement(B, A.size)))


def divide_tiler(A: Layout, tiles: Tiler) -> Layout:
    """Every leading mode of `A` divided by its own tile, as (tile, rest); the modes after them are kept.

    Errors: as for `divide`; TypeError for tiles that are no Layouts; ValueError for more tiles than modes.

    >>> from strideweave.layout import Layout, divide_tiler
    >>> print(divide_tiler(Layout.column_major(4, 6), [Layout.leaf(2, 1)]))
    ((2,2),6):((1,2),4)
    """
    _require_layouts("divide", A)
    tiles = _require_tiles("divide", A, tiles)
    return Layout.make_layout(*(divide(A[k], tile) for k, tile in enumerate(tiles))) + A[len(tiles) :]


def zipped_divide(A: Layout, tiles: Tiler) -> Layout:
    """The tile parts of all tiled modes as one mode, their rest parts as the next, then the untiled modes.

    Shapes: `result[0][k]` walks tile `k` of mode k, `result[1][k]` its bases. Errors: as for `divide_tiler`.

    >>> from strideweave.layout import Layout, zipped_divide
    >>> print(zipped_divide(Layout.row_major(4, 6), [Layout.leaf(2, 1), Layout.leaf(3, 1)]))
    ((2,3),(2,2)):((6,1),(12,3))
    """
    _require_layouts("divide", A)
    tiles = _require_tiles("divide", A, tiles)
    parts = [divide(A[k], tile) for k, tile in enumerate(tiles)]
    shapes, strides = [p.shape._items for p in parts], [p.stride._items for p in parts]
    kept = A[len(tiles) :]
    return Layout._of(
        (tuple(s[0] for s in shapes), tuple(s[1] for s in shapes), *kept.shape._items),
        (tuple(s[0] for s in strides), tuple(s[1] for s in strides), *kept.stride._items),
    )


def _compose_by_mode(A: Layout, tiles: Tiler) -> Layout:
    tiles = _require_tiles("compose", A, tiles)
    parts = [compose_layouts(A[k], t) for k, t in enumerate(tiles)]
    # A leaf that was split becomes the mode itself, not a mode within one.
    parts = [part[0] if t.is_leaf else part for part, t in zip(parts, tiles, strict=True)]
    return Layout.make_layout(*parts) + A[len(tiles) :]


def _unit(shape: Shape) -> Layout:
    """The tile of this shape that counts 0, 1, 2, ... in its own order."""
    strides = Layout.column_major(*shape.leaves()).stride.leaves()
    return Layout._of(shape._items, refill(shape._items, iter(strides)))


def _from_leaves(leaves: Sequence[tuple[int, int]]) -> Layout:
    leaves = leaves or [(1, 0)]
    return Layout._of(tuple(n for n, _ in leaves), tuple(d for _, d in leaves))


def _incongruent(d: int, covered: int, last: tuple[int, int]) -> str:
    """Why the gap up to index `d` cannot be filled, and the extent of the leaf below it that could."""
    n, step = last
    facts = (
        f"leaf {n}:{step} covers up to {covered}, and {d} is no multiple of it. "
        "It is incongruent: no layout fills the gap"
    )
    if d % step or d < step:
        return f"{facts}. Change the strides so that each divides the next."
    fits = _near_divisor(d // step, n)
    return f"{facts}. A near extent that divides is {fits}: use {fits}:{step}."


def _near_divisor(number: int, wanted: int) -> int:
    # The nearest one within reach of a short search; a common divisor where even the nearest is far away.
    for distance in range(1, min(wanted, _SEARCHED)):
        for k in (wanted - distance, wanted + distance):
            if number % k == 0:
                return k
    return gcd(number, wanted)


def _require_layouts(verb: str, *operands: object) -> None:
    for operand in operands:
        if not isinstance(operand, Layout):
            raise TypeError(f"cannot {verb} {operand!r}: it must be a Layout. Pass one.")


def _require_tiles(verb: str, A: Layout, tiles: object) -> tuple[Layout, ...]:
    if isinstance(tiles, str | bytes | Layout) or not isinstance(tiles, Sequence):
        raise TypeError(f"cannot {verb} {A} by {tiles!r}: a tiler is a sequence of Layouts. Pass a list.")
    for tile in tiles:
        if not isinstance(tile, Layout):
            raise TypeError(
                f"cannot {verb} {A} by {tiles!r}: a tiler must contain only Layouts, not {tile!r}. Wrap it."
            )
    if len(tiles) > len(A):
        raise ValueError(
            f"cannot {verb} {A} by {len(tiles)} tiles: it has {len(A)} modes, so there are more tiles than "
            f"modes. Pass {len(A)} at most."
        )
    return tuple(tiles)
