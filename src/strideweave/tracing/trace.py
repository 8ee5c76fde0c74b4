"""`trace`: a block whose transfers, waits and computations are recorded, to be looked at as a timeline or a page."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import final

from strideweave.io import publish, watching
from strideweave.operation import observing
from strideweave.tracing.chrome import write_chrome_trace
from strideweave.tracing.recording import Change, Life, Recorder, Tally, TraceEvent


@dataclass(frozen=True, slots=True)
class TraceRow:
    """What a trace counted for one layer, or for one whole carrier. Units: tiles, bytes, seconds.

    >>> TraceRow("experts", "layer 0", hits=3, misses=1, bytes_read=4096, bytes_written=0, stall_s=0.5).hit_rate
    0.75
    """

    carrier: str
    """The name of the carrier."""
    group: str
    """The place along the first axis of its grid, in words."""
    hits: int
    """Tiles that a request found in primary."""
    misses: int
    """Tiles that a request had to bring."""
    bytes_read: int
    """Bytes that came from secondary."""
    bytes_written: int
    """Bytes that went to secondary."""
    stall_s: float
    """How long callers waited for its tiles."""

    @property
    def hit_rate(self) -> float:
        """Hits among all tiles asked for; 0 before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that a trace kept, at one moment. Units: nanoseconds of `time.perf_counter_ns`.

    >>> Recorded(begin_ns=1_000, end_ns=3_000).duration_s
    2e-06
    """

    begin_ns: int
    """When the block began."""
    end_ns: int
    """When it ended, or now."""
    events: Sequence[TraceEvent] = ()
    """Events in the order in which they began."""
    changes: Sequence[Change] = ()
    """Tiles that came and went, in order."""
    lives: Sequence[Life] = ()
    """The tiled carriers."""
    threads: dict[int, str] | None = None
    """The names of threads by number."""
    dropped_events: int = 0
    """Events that were let go to make room for later ones."""
    dropped_changes: int = 0
    """Arrivals and departures that were."""

    @property
    def known_ns(self) -> int:
        """From when on it is known which tiles were where."""
        return self.changes[0].time_ns if self.dropped_changes else self.begin_ns

    @property
    def duration_s(self) -> float:
        """How long the block took."""
        return (self.end_ns - self.begin_ns) / 1e9


@final
class trace:
    """A block in which every transfer, wait and computation of tiles is recorded, on all threads; entered once.

    At the end of the block it is written to `path`, if there is one, as a Chrome trace: Perfetto and chrome://tracing
    open it. `save_html` writes a page instead. Of events the last `max_events` are kept; counts stay exact.

    Errors: RuntimeError for a second entry; ValueError for `max_events` below 1; FileNotFoundError, when the block
    begins, for a `path` in a folder that is not there; StorageError when the file cannot be written.
    Source: the Trace Event Format, as Chrome and Perfetto read it.

    >>> import torch
    >>> import strideweave as sw
    >>> c = sw.TiledEvictable(sw.CPU(0), sw.CPU.wrap(torch.arange(4.0)), (2,), (2,), budget=8)
    >>> with sw.trace() as t, c.stream(sw.TileSet([(0,), (1,)])) as stream:
    ...     for _ in stream:
    ...         pass
    >>> t.rows()[0].misses, t.rows()[0].bytes_read
    (2, 16)
    >>> {event.title for event in t.events() if event.kind == "read"} == {"read tile (0)", "read tile (1)"}
    True
    >>> c.release()
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, max_events: int = 250_000) -> None:
        if max_events < 1:
            raise ValueError(f"cannot keep {max_events} events: a trace keeps 1 or more. Pass max_events of 1 or more.")
        self._path = None if path is None else Path(os.path.abspath(path))
        self._recorder = Recorder(max_events)
        self._pid: int | None = None
        self._begin_ns = 0
        self._end_ns: int | None = None

    def __enter__(self) -> trace:
        if self._pid is not None:
            raise RuntimeError("cannot enter this trace again: a trace is single-use, of one block. Make another.")
        if self._path is not None:
            require_folder(self._path)
        self._pid = os.getpid()
        self._begin_ns = time.perf_counter_ns()
        observing.active.append(self._recorder)
        watching.watch(self._recorder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_ns = time.perf_counter_ns()
        if self._recorder in observing.active:
            observing.active.remove(self._recorder)
        if self._recorder in watching.watchers:
            watching.watchers.remove(self._recorder)
        if self._path is None or self._pid != os.getpid():  # a forked child that leaves the block too writes nothing
            return
        try:
            self.save(self._path)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"writing the trace failed too: {failure}")

    # -- looking -----------------------------------------------------------------------------------------------------

    def recorded(self) -> Recorded:
        """All that was kept so far."""
        events, changes, lives, threads = self._recorder.frozen()
        end_ns = time.perf_counter_ns() if self._end_ns is None else self._end_ns
        recorder = self._recorder
        return Recorded(
            self._begin_ns,
            end_ns,
            events,
            changes,
            lives,
            threads,
            recorder.dropped_events,
            recorder.dropped_changes,
        )

    def events(self) -> list[TraceEvent]:
        """The events that are kept, in the order in which they began."""
        return list(self.recorded().events)

    def rows(self) -> list[TraceRow]:
        """Counts for every tiled carrier that was used, by the places along the first axis of its grid."""
        return rows_of(self.recorded().lives)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Chrome trace: a track for every thread, and the resident bytes of every carrier.

        Errors: StorageError when it cannot be written; what was at `path` is there still.
        """
        recorded = self.recorded()
        with publish(path) as temporary, temporary.open("w", encoding="utf-8") as out:
            write_chrome_trace(recorded, out)

    def save_html(self, path: str | os.PathLike[str], title: str = "Where tiles were") -> None:
        """Write a page that needs nothing else: a picture of residency over time, with loads, evictions and waits.

        Errors: StorageError when it cannot be written; what was at `path` is there still.
        """
        from strideweave.tracing.page import page_of  # which knows what a trace is

        page = page_of(self.recorded(), title)
        with publish(path) as temporary:
            temporary.write_text(page, encoding="utf-8")

    def __repr__(self) -> str:
        return f"<trace of {len(self._recorder.events)} events>"


def require_folder(path: Path) -> None:
    """Nothing, when a file can be made at `path`. Errors: FileNotFoundError when its folder is not there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"cannot write a trace to {str(path)!r}: there is no folder {str(path.parent)!r}. A trace makes no "
            "folders. Make it, or name another path."
        )


def rows_of(lives: Sequence[Life]) -> list[TraceRow]:
    """One row for each group of each carrier that was asked for tiles, or that moved some."""
    rows = []
    for life in lives:
        groups: dict[int, list[Tally]] = {}
        for ordinal, tally in life.tallies.items():
            groups.setdefault(life.subject.group_of(ordinal), []).append(tally)
        rows += [
            TraceRow(
                life.subject.name,
                life.subject.group_label(group),
                hits=sum(tally.hits for tally in tallies),
                misses=sum(tally.misses for tally in tallies),
                bytes_read=sum(tally.bytes_read for tally in tallies),
                bytes_written=sum(tally.bytes_written for tally in tallies),
                stall_s=sum(tally.stall_ns for tally in tallies) / 1e9,
            )
            for group, tallies in sorted(groups.items())
        ]
    return rows
