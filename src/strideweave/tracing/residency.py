"""Where tiles were over time, in columns of equal length: what the page draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strideweave.io.watching import Subject
from strideweave.tracing.recording import Life
from strideweave.tracing.trace import Recorded

COLUMNS: Final = 600
_ROWS: Final = 1200
_GROUPS: Final = 128

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is drawn. Units: nanoseconds of `time.perf_counter_ns`.

    >>> Window(1000, 3000, 4).at(2000)
    2.0
    """

    begin_ns: int
    end_ns: int
    columns: int = COLUMNS

    @classmethod
    def of(cls, recorded: Recorded) -> Window:
        """From the first thing that is kept to the last."""
        begins = [e.begin_ns for e in recorded.events[:1]] + [c.time_ns for c in recorded.changes[:1]]
        ends = [e.end_ns for e in recorded.events] + [c.time_ns for c in recorded.changes[-1:]]
        begin = max(recorded.begin_ns, min(begins, default=recorded.begin_ns))
        return cls(begin, max(begin + 1, min(recorded.end_ns, max(ends, default=recorded.end_ns))))

    @property
    def duration_s(self) -> float:
        """How long it is."""
        return (self.end_ns - self.begin_ns) / 1e9

    def at(self, time_ns: float) -> float:
        """The column of a moment, with its fraction."""
        place = (time_ns - self.begin_ns) / (self.end_ns - self.begin_ns) * self.columns
        return min(max(place, 0.0), float(self.columns))


@dataclass(slots=True)
class Strip:
    """One group of tiles over time: a row for each tile, or for several where there are too many."""

    subject: Subject
    group: int
    label: str
    tiles: int
    shares: Shares
    """(rows, columns): the share of a column's time, and of a row's tiles, in primary."""
    arrivals: list[tuple[int, float]] = field(default_factory=list)
    """Rows and columns at which tiles came."""
    departures: list[tuple[int, float]] = field(default_factory=list)
    """Rows and columns at which tiles went."""
    reads: list[tuple[int, float, float]] = field(default_factory=list)
    """Rows that were read, from column to column, whether or not the tile stayed."""
    waits: list[tuple[int, float, float]] = field(default_factory=list)
    """Rows for which a caller waited, from column to column."""


def coverage(begins: Sequence[float], ends: Sequence[float], amounts: Sequence[float], columns: int) -> Shares:
    """How much of the amounts, each spread evenly from its begin to its end, lies in every column.

    Shapes: (columns,). What lies outside 0 .. columns is left out.

    >>> coverage([0.5], [2.5], [4.0], 3).tolist()
    [1.0, 2.0, 1.0]
    """
    if not len(begins):
        return np.zeros(columns)
    begin = np.asarray(begins, dtype=np.float64)
    length = np.maximum(np.asarray(ends, dtype=np.float64) - begin, 1e-9)
    slope = np.asarray(amounts, dtype=np.float64) / length
    edges = np.arange(columns + 1, dtype=np.float64)
    share: Shares = np.diff(_ramps(edges, begin, slope) - _ramps(edges, begin + length, slope))
    return np.maximum(share, 0.0)


def _ramps(x: Shares, begin: Shares, slope: Shares) -> Shares:
    """The sum of slope * max(0, x - begin)."""
    order = np.argsort(begin)
    slopes = np.concatenate([[0.0], np.cumsum(slope[order])])
    moments = np.concatenate([[0.0], np.cumsum(slope[order] * begin[order])])
    k = np.searchsorted(begin[order], x)
    found: Shares = slopes[k] * x - moments[k]
    return found


def strips_of(recorded: Recorded, life: Life, window: Window) -> list[Strip]:
    """One strip for each group of a carrier's tiles, in order."""
    places = _Places(life.subject)
    strips = places.strips(window.columns)
    known = window.at(recorded.known_ns)
    begins: dict[int, float] = dict.fromkeys(life.resident_first, known)
    stays: dict[tuple[int, int], list[tuple[float, float]]] = {}
    changes = [change for change in recorded.changes if change.subject is life.subject]
    for change in changes:
        group, row = places.of(change.ordinal)
        now = window.at(change.time_ns)
        if change.is_resident:
            begins[change.ordinal] = now
            strips[group].arrivals.append((row, now))
        else:
            stays.setdefault((group, row), []).append((begins.pop(change.ordinal, known), now))
            strips[group].departures.append((row, now))
    for ordinal, begin in begins.items():
        stays.setdefault(places.of(ordinal), []).append((begin, float(window.columns)))
    for (group, row), intervals in stays.items():
        first, last = zip(*intervals, strict=True)
        lengths = [end - begin for begin, end in intervals]
        strips[group].shares[row] = coverage(first, last, lengths, window.columns) / places.tiles_in(group, row)
    for event in recorded.events:
        if event.subject is life.subject and event.kind in ("read", "wait") and event.ordinal >= 0:
            group, row = places.of(event.ordinal)
            found = strips[group].reads if event.kind == "read" else strips[group].waits
            found.append((row, window.at(event.begin_ns), window.at(event.end_ns)))
    return strips


class _Places:
    """Which strip and which row of it a tile has."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._tiles = int(np.prod(subject.grid_shape))
        self._groups = subject.group_of(self._tiles - 1) + 1
        if self._groups > _GROUPS:
            self._groups = 1
        self._each = self._tiles // self._groups
        self._fold = -(-self._tiles // _ROWS)
        self._rows = -(-self._each // self._fold)

    def of(self, ordinal: int) -> tuple[int, int]:
        """The group and the row."""
        within, group = divmod(ordinal, self._groups)
        return group, within // self._fold

    def tiles_in(self, group: int, row: int) -> int:
        """How many tiles share a row."""
        return min(self._fold, self._each - row * self._fold)

    def strips(self, columns: int) -> list[Strip]:
        """Empty ones."""
        subject = self._subject
        whole = f"{subject.noun}s" if self._groups == 1 else ""
        return [
            Strip(subject, k, whole or subject.group_label(k), self._each, np.zeros((self._rows, columns)))
            for k in range(self._groups)
        ]
