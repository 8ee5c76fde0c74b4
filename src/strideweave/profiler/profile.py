"""`profile`: a block whose operations and moves are recorded."""

from __future__ import annotations

import io
import itertools
import json
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, final

from rich.console import Console
from rich.table import Table

from strideweave.carriers.carrier import Carrier
from strideweave.layout import Shape
from strideweave.operation import observing
from strideweave.profiler.events import ProfilerAggregate, ProfilerEvent, averages
from strideweave.tensor.tensor import Tensor

SortBy = Literal["total_time_ns", "self_total_time_ns", "mean_time_ns", "min_time_ns", "max_time_ns", "count", "name"]


@dataclass(slots=True)
class _Running:
    """An event that has begun."""

    id: int
    parent_id: int | None
    name: str
    carrier_type: type
    implementation_type: type
    shapes: tuple[Shape, ...] | None
    start_ns: int
    thread_id: int
    inside_ns: int = 0


@final
class profile:
    """A block in which every operation and move of this thread is an event; it can be entered once.

    `carriers` keeps only events of exactly these carrier classes. A move that completes after the block shows up in
    later `events()`.

    Errors: RuntimeError for a second entry; TypeError for what is no carrier class.

    >>> import strideweave as sw
    >>> x = sw.tensor([1.0, 2.0])
    >>> with sw.profile(record_shapes=True) as p:
    ...     y = sw.relu(x) + 1
    >>> [event.name for event in p.events()], p.events()[0].input_shapes
    (['relu', 'add'], (Shape(2),))
    """

    def __init__(self, carriers: Iterable[type[Carrier]] | None = None, record_shapes: bool = False) -> None:
        self._carriers = None if carriers is None else frozenset(carriers)
        for cls in self._carriers or ():
            if not (isinstance(cls, type) and issubclass(cls, Carrier)):
                raise TypeError(f"cannot profile {cls!r}: carriers are Carrier classes. Pass classes such as CPU.")
        self._record_shapes = bool(record_shapes)
        self._lock = threading.Lock()  # guards _events: moves complete on other threads
        self._events: list[ProfilerEvent] = []
        self._ids = itertools.count(1)
        self._stack: list[_Running] = []
        self._thread: int | None = None

    def __enter__(self) -> profile:
        if self._thread is not None:
            raise RuntimeError(
                "cannot enter this profile again: a profile is single-use, so that its events are of one block. Make "
                "another."
            )
        self._thread = threading.get_ident()
        observing.active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        observing.active.remove(self)

    # -- the observer ------------------------------------------------------------------------------------------------

    def begin(self, name: str, carrier_class: type, implementation: type, operands: Iterable[Any]) -> _Running | None:
        """The event that begins; None for another thread's, or one of a class that is not looked at."""
        if threading.get_ident() != self._thread or not self._looks_at(carrier_class):
            return None
        shapes = tuple(o.shape for o in operands if isinstance(o, Tensor)) if self._record_shapes else None
        parent = self._stack[-1].id if self._stack else None
        running = _Running(
            next(self._ids), parent, name, carrier_class, implementation, shapes, time.perf_counter_ns(), self._thread
        )
        self._stack.append(running)
        return running

    def end(self, running: _Running, *, succeeded: bool) -> None:
        """The event is over."""
        duration_ns = time.perf_counter_ns() - running.start_ns
        self._stack.remove(running)
        if self._stack:
            self._stack[-1].inside_ns += duration_ns
        self._add(running, duration_ns, succeeded)

    def completion(self, submitted: _Running) -> _Running:
        """The end of a move begins, on whatever thread; its parent is the submission."""
        return _Running(
            next(self._ids),
            submitted.id,
            "move.complete",
            submitted.carrier_type,
            submitted.implementation_type,
            submitted.shapes,
            time.perf_counter_ns(),
            threading.get_ident(),
        )

    def complete(self, running: _Running, *, succeeded: bool) -> None:
        """The end of a move is over."""
        self._add(running, time.perf_counter_ns() - running.start_ns, succeeded)

    def _looks_at(self, carrier_class: type) -> bool:
        return self._carriers is None or carrier_class in self._carriers

    def _add(self, running: _Running, duration_ns: int, succeeded: bool) -> None:
        event = ProfilerEvent(
            running.id,
            running.parent_id,
            running.name,
            running.carrier_type,
            running.implementation_type,
            running.shapes,
            running.start_ns,
            duration_ns,
            duration_ns - running.inside_ns,
            running.thread_id,
            succeeded,
        )
        with self._lock:
            self._events.append(event)

    # -- looking -----------------------------------------------------------------------------------------------------

    def events(self) -> list[ProfilerEvent]:
        """Every event that is over, in the order in which they started."""
        with self._lock:
            return sorted(self._events, key=lambda event: event.id)

    def key_averages(self, group_by_input_shape: bool = False) -> list[ProfilerAggregate]:
        """The events of every name and carrier class together.

        Errors: ValueError for grouping by shapes that were not recorded.
        """
        if group_by_input_shape and not self._record_shapes:
            raise ValueError(
                "cannot group by input shapes: this profile does not record them. Make it with record_shapes=True."
            )
        return averages(self.events(), by_shape=group_by_input_shape)

    def table(
        self,
        sort_by: SortBy = "self_total_time_ns",
        *,
        descending: bool = True,
        group_by_input_shape: bool = False,
        row_limit: int | None = 100,
    ) -> str:
        """The averages as text, one row each; times in microseconds.

        Errors: ValueError for an unknown `sort_by` or a negative `row_limit`.
        """
        keys = ("total_time_ns", "self_total_time_ns", "mean_time_ns", "min_time_ns", "max_time_ns", "count", "name")
        if sort_by not in keys:
            raise ValueError(f"cannot sort by {sort_by!r}: a table has {', '.join(keys)}. Choose one.")
        if row_limit is not None and row_limit < 0:
            raise ValueError(f"cannot show {row_limit} rows: a limit is 0 or more, or None. Pass one of these.")
        rows = sorted(
            self.key_averages(group_by_input_shape), key=lambda row: getattr(row, sort_by), reverse=descending
        )
        table = Table("name", "carrier", box=None, pad_edge=False)
        if group_by_input_shape:
            table.add_column("shapes")
        for heading in ("count", "self µs", "total µs", "mean µs", "min µs", "max µs"):
            table.add_column(heading, justify="right")
        for row in rows[:row_limit]:
            shapes = [" ".join(str(shape) for shape in row.input_shapes or ())] if group_by_input_shape else []
            times = (row.self_total_time_ns, row.total_time_ns, row.mean_time_ns, row.min_time_ns, row.max_time_ns)
            table.add_row(
                row.name, row.carrier_type.__name__, *shapes, str(row.count), *(f"{t / 1000:.1f}" for t in times)
            )
        out = io.StringIO()
        Console(file=out, width=140, color_system=None).print(table)
        return out.getvalue()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events as a Chrome trace, which Perfetto, chrome://tracing and torch's tools open."""
        pid = os.getpid()
        spans = [
            {
                "ph": "X",
                "cat": "strideweave",
                "name": event.name,
                "pid": pid,
                "tid": event.thread_id,
                "ts": event.start_time_ns / 1000,
                "dur": event.duration_ns / 1000,
                "args": {
                    "id": event.id,
                    "parent": event.parent_id,
                    "carrier": event.carrier_type.__name__,
                    "implementation": event.implementation_type.__name__,
                    "shapes": None if event.input_shapes is None else [str(shape) for shape in event.input_shapes],
                    "succeeded": event.succeeded,
                },
            }
            for event in self.events()
        ]
        Path(path).write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": spans}), encoding="utf-8")

    def __repr__(self) -> str:
        return f"<profile of {len(self._events)} events>"
