"""What a profile records: one event for each operation or end of a move, and their averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strideweave.layout import Shape


@dataclass(frozen=True, slots=True)
class ProfilerEvent:
    """One thing that ran. Units: times in nanoseconds, on the clock of `time.perf_counter_ns`.

    >>> import strideweave as sw
    >>> with sw.profile() as p:
    ...     _ = sw.neg(sw.ones(1))
    >>> p.events()[0].name, p.events()[0].succeeded
    ('neg', True)
    """

    id: int
    """Ascends in the order in which events started."""
    parent_id: int | None
    """The event inside which this one ran, or the submission that this completion belongs to."""
    name: str
    """The name of the operation; `move.submit` and `move.complete` for moves."""
    carrier_type: type
    """The exact carrier class of the operands; for moves that of the source."""
    implementation_type: type
    """Who ran it."""
    input_shapes: tuple[Shape, ...] | None
    """The shapes of the tensor operands; None unless they are recorded."""
    start_time_ns: int
    """When it started."""
    duration_ns: int
    """How long it took."""
    self_time_ns: int
    """How long it took without the events inside it."""
    thread_id: int
    """The thread that ran it."""
    succeeded: bool
    """Whether it ended without an exception."""


@dataclass(frozen=True, slots=True)
class ProfilerAggregate:
    """All events of one name and carrier class (and shapes, when grouped by them) together.

    >>> import strideweave as sw
    >>> with sw.profile() as p:
    ...     _ = sw.neg(sw.neg(sw.ones(1)))
    >>> p.key_averages()[0].count
    2
    """

    name: str
    """The name that they share."""
    carrier_type: type
    """The carrier class that they share."""
    input_shapes: tuple[Shape, ...] | None
    """The shapes that they share; None unless grouped by them."""
    count: int
    """How many there were."""
    total_time_ns: int
    """Their durations together."""
    self_total_time_ns: int
    """Their times without the events inside them, together."""
    mean_time_ns: float
    """The mean duration."""
    min_time_ns: int
    """The shortest duration."""
    max_time_ns: int
    """The longest duration."""


def averages(events: Sequence[ProfilerEvent], *, by_shape: bool) -> list[ProfilerAggregate]:
    """One aggregate for each group of events, in the order in which the groups first occur."""
    groups: dict[Any, list[ProfilerEvent]] = {}
    for event in events:
        groups.setdefault((event.name, event.carrier_type, event.input_shapes if by_shape else None), []).append(event)
    return [
        ProfilerAggregate(
            name,
            carrier_type,
            shapes,
            count=len(group),
            total_time_ns=sum(event.duration_ns for event in group),
            self_total_time_ns=sum(event.self_time_ns for event in group),
            mean_time_ns=sum(event.duration_ns for event in group) / len(group),
            min_time_ns=min(event.duration_ns for event in group),
            max_time_ns=max(event.duration_ns for event in group),
        )
        for (name, carrier_type, shapes), group in groups.items()
    ]
