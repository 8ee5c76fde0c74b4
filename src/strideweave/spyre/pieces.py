"""Ranges of a symbol cut into digits, so that every address is affine in them.

Along one symbol an address is any function of integers. Where it is regular (steps of a stick, steps between sticks) a
range falls into a few pieces, and within a piece into digits with constant strides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.int64]

MOST_PIECES = 12
"""A symbol that falls into more is no case for windows."""


@dataclass(frozen=True)
class Digit:
    """A loop of `extent` steps; each moves the symbol by `step`, and the address of argument k by `strides[k]`."""

    extent: int
    step: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """Part of a range: values start + sum of digit x step, all of them together once."""

    start: int
    offsets: tuple[int, ...]
    """The addresses at the start, one per argument."""
    digits: tuple[Digit, ...]
    """Outermost first."""

    @property
    def extent(self) -> int:
        """How many values there are."""
        count = 1
        for digit in self.digits:
            count *= digit.extent
        return count


def cut(addresses: Addresses) -> list[Piece] | None:
    """The pieces of a range, of which column v of `addresses` has every argument's address; None where it has too many.

    Shapes: (arguments, range).

    >>> import numpy as np
    >>> v = np.arange(70)
    >>> [(p.start, [d.extent for d in p.digits]) for p in cut(np.stack([v // 32 * 128 + v % 32]))]
    [(0, [2, 32]), (64, [6])]
    """
    found = _cut(addresses, 0, 1)
    return None if found is None or len(found) > MOST_PIECES else found


def _cut(addresses: Addresses, start: int, step: int) -> list[Piece] | None:
    count = addresses.shape[1]
    first = tuple(int(a) for a in addresses[:, 0])
    if count == 1:
        return [Piece(start, first, ())]
    steps = np.diff(addresses, axis=1)
    regular = (steps == steps[:, :1]).all(axis=0)
    if regular.all():
        return [Piece(start, first, (Digit(count, step, tuple(int(d) for d in steps[:, 0])),))]
    breaks = np.flatnonzero(~regular) + 1
    head = int(breaks[0])
    if head == 1:  # the very first step is unlike the others: it is a piece of its own
        rest = _cut(addresses[:, 1:], start + step, step)
        return None if rest is None else [Piece(start, first, ()), *rest]
    # A run begins at each break; runs within have one length, the first and the last may be shorter.
    lengths = np.diff(breaks)
    length = int(lengths[0]) if len(lengths) else count - head
    if len(lengths) and not (lengths == length).all():
        return _halves(addresses, start, step, breaks)
    pieces: list[Piece] = []
    begin = 0
    if head != length or not len(lengths):
        pieces += _cut(addresses[:, :head], start, step) or []
        begin = head
    whole = (count - begin) // length
    end = begin + whole * length
    rows = addresses[:, begin:end].reshape(len(addresses), whole, length)
    within = rows - rows[:, :, :1]
    if not (within == within[:, :1]).all():
        return _halves(addresses, start, step, breaks)
    inner = _cut(within[:, 0], 0, step)
    outer = _cut(rows[:, :, 0], start + begin * step, step * length)
    if inner is None or outer is None:
        return None
    for far in outer:
        for near in inner:
            offsets = tuple(a + b for a, b in zip(far.offsets, near.offsets, strict=True))
            pieces.append(Piece(far.start + near.start, offsets, (*far.digits, *near.digits)))
    if end < count:
        tail = _cut(addresses[:, end:], start + end * step, step)
        if tail is None:
            return None
        pieces += tail
    return pieces if len(pieces) <= MOST_PIECES else None


def _halves(addresses: Addresses, start: int, step: int, breaks: npt.NDArray[np.int64]) -> list[Piece] | None:
    """Two parts at the first break, each cut on its own; only where that ends soon."""
    if len(breaks) > 4 * MOST_PIECES:
        return None
    head = int(breaks[0])
    first, rest = _cut(addresses[:, :head], start, step), _cut(addresses[:, head:], start + head * step, step)
    if first is None or rest is None or len(first) + len(rest) > MOST_PIECES:
        return None
    return [*first, *rest]
