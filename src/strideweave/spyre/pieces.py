"""Ranges of a symbol cut into digits, so that every address is affine in them.

Along one symbol an address is any function of integers. Where it is regular (steps of a stick, steps between sticks) a
range falls into a few pieces, and within a piece into digits with constant strides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.int64]

MOST_PIECES = 12
"""A symbol that falls into more is no case for windows."""

MOST_TURNS: Final = 4
"""So many runs of different lengths may take turns."""


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
    # A run begins at each break. Runs come in turns: one long, or a few that differ, over and over.
    period, turns = _period(breaks, count)
    for begin in (head,) if turns == 1 and head != period else (0, head):
        whole = (count - begin) // period if period else 0
        end = begin + whole * period
        rows = addresses[:, begin:end].reshape(len(addresses), whole, period)
        within = rows - rows[:, :, :1] if whole else rows
        if whole and (turns == 1 or whole > 1) and (within == within[:, :1]).all():
            break
    else:
        return _halves(addresses, start, step, breaks)
    parts = [
        _cut(addresses[:, :begin], start, step) if begin else [],
        _cut(within[:, 0], 0, step),
        _cut(rows[:, :, 0], start + begin * step, step * period),
        _cut(addresses[:, end:], start + end * step, step) if end < count else [],
    ]
    before, inner, outer, tail = parts
    if before is None or inner is None or outer is None or tail is None:
        return None
    pieces = list(before)
    for far in outer:
        for near in inner:
            offsets = tuple(a + b for a, b in zip(far.offsets, near.offsets, strict=True))
            pieces.append(Piece(far.start + near.start, offsets, (*far.digits, *near.digits)))
    pieces += tail
    return pieces if len(pieces) <= MOST_PIECES else None


def _period(breaks: npt.NDArray[np.int64], count: int) -> tuple[int, int]:
    """After how many values the breaks come again, and how many come by then; zeros where they do not.

    >>> _period(np.array([61, 64, 125, 128]), 150)
    (64, 2)
    """
    if len(breaks) == 1:
        return int(count - breaks[0]), 1
    for turns in range(1, min(MOST_TURNS, len(breaks) - 1) + 1):
        steps = breaks[turns:] - breaks[:-turns]
        if (steps == steps[0]).all():
            return int(steps[0]), turns
    return 0, 0


def _halves(addresses: Addresses, start: int, step: int, breaks: npt.NDArray[np.int64]) -> list[Piece] | None:
    """Two parts at the first break, each cut on its own; only where that ends soon."""
    if len(breaks) > 4 * MOST_PIECES:
        return None
    head = int(breaks[0])
    first, rest = _cut(addresses[:, :head], start, step), _cut(addresses[:, head:], start + head * step, step)
    if first is None or rest is None or len(first) + len(rest) > MOST_PIECES:
        return None
    return [*first, *rest]
