"""Composition of two layouts: proven exact from their leaves, or refused with the nearest tile that works.

An ordinal of the outer layout is a number in mixed radix: one digit per coalesced mode (n : d), the index
being the sum of digit * d. A leaf (s : e) of the inner layout adds c * e, c < s, to that number. As long as
no digit overflows, adding numbers is adding digits, and the index is linear in c: one leaf of the result.
Where a digit would overflow, the leaf is split into (t : e) and (s/t : t * e) with the largest t that does
not overflow. The result is exact when t divides s at every split and all leaves together, each at its
largest, overflow no digit. Conversely an overflow changes the index, because neighbouring modes of a
coalesced layout do not continue each other: what is refused is no layout, save where overflows cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from strideweave.layout.nested import Level, refill

if TYPE_CHECKING:
    from strideweave.layout.layout import Layout

Leaf = tuple[int, int]
Piece = tuple[int, int, list[int]]
"""Extent and stride of a leaf of the result, and what one step of it adds to every digit."""


def merged(leaves: Iterable[Leaf]) -> list[Leaf]:
    """The fewest leaves with the same indices in the same order: no extent 1, no two that make one."""
    out: list[Leaf] = []
    for n, d in leaves:
        if n == 1:
            continue
        if out and out[-1][0] * out[-1][1] == d:
            out[-1] = (out[-1][0] * n, out[-1][1])
        else:
            out.append((n, d))
    return out


def compose_layouts(outer: Layout, inner: Layout, origin: int = 0) -> Layout:
    """The layout over `inner`'s coordinates that reaches what `outer` reaches at the ordinals of `inner`.

    With an `origin` it is what `outer` reaches at `origin` plus those ordinals, less what it reaches at `origin`.
    """
    if origin + inner.cosize > outer.size:
        raise ValueError(
            f"cannot compose {outer} with {inner}: it reaches ordinal {origin + inner.cosize - 1}, and {outer} has "
            f"{outer.size}. The inner codomain exceeds the outer domain. Use a tile that reaches "
            f"{outer.size - 1} at most."
        )
    modes = merged(outer.leaves())
    room = _room(modes, origin)
    extents: list[int | Level] = []
    strides: list[int | Level] = []
    for place, (s, e) in enumerate(inner.leaves()):
        pieces = _pieces(modes, s, e)
        if pieces is None or not _take(room, pieces):
            raise ValueError(_refusal(outer, inner, place, origin))
        if len(pieces) == 1:
            extents.append(pieces[0][0])
            strides.append(pieces[0][1])
        else:
            extents.append(tuple(n for n, _, _ in pieces))
            strides.append(tuple(d for _, d, _ in pieces))
    made = type(outer)._of
    return made(refill(inner.shape._items, iter(extents)), refill(inner.shape._items, iter(strides)))


def _room(modes: Sequence[Leaf], origin: int) -> list[int]:
    """How far every digit of `origin` can still grow."""
    room: list[int] = []
    for n, _ in modes:
        origin, digit = divmod(origin, n)
        room.append(n - 1 - digit)
    return room


def _pieces(modes: Sequence[Leaf], s: int, e: int) -> list[Piece] | None:
    """The leaves of the result for one inner leaf; None when some split is not whole."""
    pieces: list[Piece] = []
    while True:
        run, stride, digits = _run(modes, s, e)
        if s % run:
            return None
        pieces.append((run, stride, digits))
        if s == run:
            return pieces
        s //= run
        e *= run


def _run(modes: Sequence[Leaf], s: int, e: int) -> Piece:
    """The most steps of `e`, at most `s`, during which no digit overflows on its own."""
    digits: list[int] = []
    stride, top = 0, len(modes) - 1
    for k, (n, d) in enumerate(modes):
        if k == top:
            digit = e  # the last digit never overflows: the inner layout stays within the outer domain
        else:
            e, digit = divmod(e, n)
            if digit and (n - 1) // digit + 1 < s:
                s = (n - 1) // digit + 1
        digits.append(digit)
        if digit:
            stride += digit * d
    return s, stride, digits


def _take(room: list[int], pieces: Iterable[Piece]) -> bool:
    """Takes what the pieces need out of the room of every digit; False, and nothing taken, if it is short."""
    left = list(room)
    for run, _, digits in pieces:
        for k, digit in enumerate(digits):
            if digit:
                left[k] -= (run - 1) * digit
    if left and min(left) < 0:
        return False
    room[:] = left
    return True


def _refusal(outer: Layout, inner: Layout, place: int, origin: int) -> str:
    s, e = inner.leaves()[place]
    tile = _nearest_tile(outer, inner, origin)
    return (
        f"cannot compose {outer} with {inner}: leaf {s}:{e} of the tile does not end where a mode of "
        f"{outer} does. Only a tile of whole modes, or of equal parts of one, is a layout. The nearest "
        f"tile that works is {tile}."
    )


def _nearest_tile(outer: Layout, inner: Layout, origin: int) -> Layout:
    """The tile of the same tree and strides that composes, each leaf as near as those before it allow."""
    modes = merged(outer.leaves())
    room = _room(modes, origin)
    extents: list[int] = []
    for s, e in inner.leaves():
        # A single run that fits always composes; it is extent 1 where there is no room at all.
        fits = [
            min(
                (free // digit for free, digit in zip(room, _run(modes, 1, e)[2], strict=True) if digit),
                default=s - 1,
            )
            + 1
        ]
        fits += _whole_splits(modes, s, e)
        for extent in sorted(fits, key=lambda n: (abs(n - s), n)):
            pieces = _pieces(modes, extent, e)
            if pieces is not None and _take(room, pieces):
                extents.append(extent)
                break
    return type(outer)._of(refill(inner.shape._items, iter(extents)), inner.stride._items)


def _whole_splits(modes: Sequence[Leaf], s: int, e: int) -> Iterator[int]:
    """Extents next to `s` whose first splits are whole."""
    run, _, _ = _run(modes, s, e)
    if s <= run:
        yield s
        return
    for count in {s // run, -(-s // run)}:
        for extent in _whole_splits(modes, count, e * run):
            yield extent * run
