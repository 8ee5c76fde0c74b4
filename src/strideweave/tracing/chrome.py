"""A trace in the Trace Event Format, which chrome://tracing and Perfetto open."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strideweave.tracing.recording import TraceEvent
    from strideweave.tracing.trace import Recorded


def write_chrome_trace(recorded: Recorded, out: IO[str]) -> None:
    """Write it, an event a line, so that its size in memory does not matter."""
    out.write('{"displayTimeUnit": "ms",\n')
    out.write(f'"otherData": {json.dumps({"dropped_events": recorded.dropped_events})},\n"traceEvents": [')
    for k, entry in enumerate(_entries(recorded)):
        out.write(("\n" if k == 0 else ",\n") + json.dumps(entry))
    out.write("\n]}\n")


def _entries(recorded: Recorded) -> Iterator[dict[str, Any]]:
    pid = os.getpid()
    yield _metadata("process_name", pid, "strideweave", pid)
    for thread_id, name in (recorded.threads or {}).items():
        yield _metadata("thread_name", pid, name, thread_id)
    for event in recorded.events:
        begin_ns = max(event.begin_ns, recorded.begin_ns)  # it may have begun before, inside another trace
        yield {
            "ph": "X",
            "cat": event.kind,
            "name": event.title,
            "pid": pid,
            "tid": event.thread_id,
            "ts": (begin_ns - recorded.begin_ns) / 1000,
            "dur": (event.end_ns - begin_ns) / 1000,
            "args": _arguments(event),
        }
    yield from _counters(recorded, pid)


def _metadata(what: str, pid: int, name: str, thread_id: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread_id, "args": {"name": name}}


def _arguments(event: TraceEvent) -> dict[str, Any]:
    told: dict[str, Any] = {"succeeded": event.succeeded}
    if event.name:
        told["for"] = event.name
    if event.subject is not None:
        told["carrier"] = event.subject.name
        if event.ordinal >= 0:
            told["tile"] = list(event.subject.coordinate(event.ordinal))
    if event.nbytes:
        told["nbytes"] = event.nbytes
    return told


def _counters(recorded: Recorded, pid: int) -> Iterator[dict[str, Any]]:
    """The resident bytes of every carrier, at first and after every change."""
    resident = {life.subject.number: len(life.resident_first) for life in recorded.lives}
    for life in recorded.lives:
        yield _counter(
            recorded, pid, max(life.begin_ns, recorded.known_ns), life.subject, resident[life.subject.number]
        )
    for change in recorded.changes:
        number = change.subject.number
        resident[number] += 1 if change.is_resident else -1
        yield _counter(recorded, pid, change.time_ns, change.subject, resident[number])
    for life in recorded.lives:
        yield _counter(recorded, pid, recorded.end_ns, life.subject, resident[life.subject.number])


def _counter(recorded: Recorded, pid: int, time_ns: int, subject: Any, tiles: int) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": f"resident bytes of {subject.name} #{subject.number}",
        "pid": pid,
        "tid": 0,
        "ts": (time_ns - recorded.begin_ns) / 1000,
        "args": {"nbytes": tiles * subject.tile_nbytes},
    }
