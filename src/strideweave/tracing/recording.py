"""What a trace keeps while it runs: events, arrivals and departures of tiles, and counts, bounded in memory."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from strideweave.io.watching import Event, Kind, Subject


class TraceEvent(NamedTuple):
    """Something that took time, as it was recorded. Units: nanoseconds of `time.perf_counter_ns`, bytes.

    >>> TraceEvent("read", "", None, -1, 4096, 10, 30, 1, True).duration_ns
    20
    """

    kind: Kind
    """What it is."""
    name: str
    """The operation, or what is waited for; empty where the tile says it."""
    subject: Subject | None
    """The tiled carrier that it belongs to."""
    ordinal: int
    """The tile, by its number; -1 where it is of no single one."""
    nbytes: int
    """The bytes that moved."""
    begin_ns: int
    """When it began."""
    end_ns: int
    """When it was over."""
    thread_id: int
    """The system's number of the thread."""
    succeeded: bool
    """Whether it ended without an exception."""

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.begin_ns

    @property
    def title(self) -> str:
        """The event in words."""
        if self.subject is None or self.ordinal < 0:
            return f"{self.kind} {self.name}"
        return f"{self.kind} {self.subject.label(self.ordinal)}"


class Change(NamedTuple):
    """A tile that came to primary or left it."""

    time_ns: int
    subject: Subject
    ordinal: int
    is_resident: bool


@dataclass(slots=True)
class Tally:
    """Counts of one tile, exact however many events were let go."""

    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    stall_ns: int = 0


@dataclass(slots=True)
class Life:
    """One tiled carrier in a trace."""

    subject: Subject
    resident_first: set[int]
    """The tiles that were in primary before the first change that is kept."""
    initial: tuple[int, ...]
    """The tiles that were in primary when the trace began."""
    begin_ns: int
    """When it was first heard of."""
    tallies: dict[int, Tally]
    asked: array[int]
    """Tiles in the order in which requests wanted them."""
    was_cut: bool = False
    """Whether `asked` ends before the trace does."""

    @property
    def optimal_hits(self) -> int | None:
        """The most hits that any policy could have had, given what was resident at first; None where it is unknown."""
        if self.was_cut:
            return None
        return optimal_hits([*self.initial, *self.asked], self.subject.slots)


class Recorder:
    """A watcher, and an observer of operations and moves, that keeps the last `max_events` of everything."""

    def __init__(self, max_events: int) -> None:
        self.max_events = max_events
        self._lock = threading.RLock()  # guards all that follows; reentrant: the collector may end a carrier inside it
        self.events: deque[TraceEvent] = deque(maxlen=max_events)
        self.changes: deque[Change] = deque()
        self.lives: dict[int, Life] = {}
        self.threads: dict[int, str] = {}
        self.dropped_events = self.dropped_changes = 0

    # -- the watcher -------------------------------------------------------------------------------------------------

    def see(self, subject: Subject, resident: Iterable[int]) -> None:
        """A carrier is there; said again, it is known already."""
        with self._lock:
            if subject.number not in self.lives:
                first = tuple(resident)
                now = time.perf_counter_ns()
                self.lives[subject.number] = Life(subject, set(first), first, now, {}, array("q"))

    def event(self, event: Event, end_ns: int, *, succeeded: bool) -> None:
        """Something is over."""
        thread_id = threading.get_native_id()
        kept = TraceEvent(
            event.kind,
            event.name,
            event.subject,
            event.ordinal,
            event.nbytes,
            event.begin_ns,
            end_ns,
            thread_id,
            succeeded,
        )
        self._keep(kept)
        if event.subject is None or event.ordinal < 0 or event.kind not in ("read", "write", "wait"):
            return
        with self._lock:
            tally = self._tally(event.subject, event.ordinal)
            if tally is None:
                return
            if event.kind == "read":
                tally.bytes_read += kept.nbytes
            elif event.kind == "write":
                tally.bytes_written += kept.nbytes
            else:
                tally.stall_ns += kept.duration_ns

    def changed(self, subject: Subject, ordinal: int, *, is_resident: bool) -> None:
        """A tile has come or gone."""
        with self._lock:
            if subject.number not in self.lives:
                return
            self.changes.append(Change(time.perf_counter_ns(), subject, ordinal, is_resident))
            if len(self.changes) > self.max_events:
                self._forget(self.changes.popleft())
                self.dropped_changes += 1

    def _forget(self, change: Change) -> None:
        first = self.lives[change.subject.number].resident_first
        if change.is_resident:
            first.add(change.ordinal)
        else:
            first.discard(change.ordinal)

    def asked(self, subject: Subject, ordinal: int, *, is_hit: bool) -> None:
        """A request wants a tile."""
        with self._lock:
            tally = self._tally(subject, ordinal)
            if tally is None:
                return
            tally.hits += is_hit
            tally.misses += not is_hit
            life = self.lives[subject.number]
            if len(life.asked) < self.max_events:
                life.asked.append(ordinal)
            else:
                life.was_cut = True

    def _tally(self, subject: Subject, ordinal: int) -> Tally | None:
        life = self.lives.get(subject.number)
        return None if life is None else life.tallies.setdefault(ordinal, Tally())

    def _keep(self, event: TraceEvent) -> None:
        with self._lock:
            if event.thread_id not in self.threads:
                self.threads[event.thread_id] = threading.current_thread().name
            self.dropped_events += len(self.events) == self.max_events
            self.events.append(event)

    # -- the observer of operations and moves ------------------------------------------------------------------------

    def begin(self, name: str, carrier_class: type, implementation: type, operands: Iterable[Any]) -> tuple[str, int]:
        """An operation or the submission of a move begins."""
        return name, time.perf_counter_ns()

    def end(self, token: tuple[str, int], *, succeeded: bool) -> None:
        """It is over."""
        name, begin_ns = token
        kind: Kind = "move" if name.startswith("move.") else "operation"
        end_ns, thread_id = time.perf_counter_ns(), threading.get_native_id()
        self._keep(TraceEvent(kind, name, None, -1, 0, begin_ns, end_ns, thread_id, succeeded))

    def completion(self, submitted: tuple[str, int]) -> tuple[str, int]:
        """The end of a move begins."""
        return "move.complete", time.perf_counter_ns()

    def complete(self, token: tuple[str, int], *, succeeded: bool) -> None:
        """The end of a move is over."""
        self.end(token, succeeded=succeeded)

    # -- afterwards --------------------------------------------------------------------------------------------------

    def frozen(self) -> tuple[Sequence[TraceEvent], Sequence[Change], Sequence[Life], dict[int, str]]:
        """Copies of what is kept: events in the order in which they began, changes, carriers, names of threads."""
        with self._lock:
            lives = [
                Life(
                    life.subject,
                    set(life.resident_first),
                    life.initial,
                    life.begin_ns,
                    {ordinal: replace(tally) for ordinal, tally in life.tallies.items()},
                    life.asked[:],
                    life.was_cut,
                )
                for life in self.lives.values()
            ]
            events = sorted(self.events, key=lambda e: (e.begin_ns, -e.end_ns))
            return events, list(self.changes), lives, dict(self.threads)
