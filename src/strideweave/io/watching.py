"""The seam through which a trace sees bytes move, callers wait, tiles come and go: free while nobody looks."""

from __future__ import annotations

import itertools
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, TypeAlias

import torch.autograd.profiler as torch_profiler

Kind: TypeAlias = Literal["read", "write", "wait", "gather", "scatter", "compute", "operation", "move"]
"""What an event is: bytes from or to storage, a caller that waits, tiles copied to or from their place, arithmetic."""

Register: TypeAlias = "Callable[[Iterable[int]], None]"

watchers: list[Watcher] = []
"""Who looks at the moment; almost always nobody."""

_subjects: weakref.WeakSet[Subject] = weakref.WeakSet()
_numbers = itertools.count(1)


class Subject:
    """A tiled carrier as a watcher knows it: no part of it keeps the carrier alive.

    `snapshot` calls back with the tiles that are in primary, while none can come or go.

    >>> s = Subject("w", (2, 3), tile_nbytes=8, slots=2, snapshot=lambda register: register(()))
    >>> s.label(5), s.group_of(5)
    ('tile (1, 2)', 1)
    >>> s.groups, s.noun = ("layer 0", "layer 7"), "expert"
    >>> s.label(5)
    'layer 7 expert 2'
    """

    def __init__(
        self,
        name: str,
        grid_shape: Sequence[int],
        *,
        tile_nbytes: int,
        slots: int,
        snapshot: Callable[[Register], None],
    ) -> None:
        self.number = next(_numbers)
        self.name = name
        self.grid_shape = tuple(grid_shape)
        self.tile_nbytes = tile_nbytes
        self.slots = slots
        self.snapshot = snapshot
        self.groups: Sequence[str] = ()
        """Names for the places along the first axis, where somebody gave them."""
        self.noun = "tile"
        """What one tile is."""
        _subjects.add(self)
        for watcher in tuple(watchers):
            watcher.see(self, ())

    def coordinate(self, ordinal: int) -> tuple[int, ...]:
        """Where a tile is in the grid, of which the first axis runs fastest."""
        found = []
        for extent in self.grid_shape:
            ordinal, place = divmod(ordinal, extent)
            found.append(place)
        return tuple(found)

    def group_of(self, ordinal: int) -> int:
        """The place along the first axis, where there are more axes; 0 for all tiles where that is the only one."""
        return ordinal % self.grid_shape[0] if self._is_grouped else 0

    def group_label(self, group: int) -> str:
        """A group in words."""
        if self.groups:
            return self.groups[group]
        others = ", ".join("*" * (len(self.grid_shape) - 1))
        return f"{self.noun}s ({group}, {others})" if self._is_grouped else f"{self.noun}s"

    @property
    def _is_grouped(self) -> bool:
        return bool(self.groups) or math.prod(self.grid_shape[1:]) > 1

    def label(self, ordinal: int) -> str:
        """A tile in words."""
        first, *rest = self.coordinate(ordinal)
        if not self.groups:
            return f"{self.noun} ({', '.join(map(str, (first, *rest)))})"
        shown = [str(place) for place, extent in zip(rest, self.grid_shape[1:], strict=True) if extent > 1]
        return f"{self.groups[first]} {self.noun} {' '.join(shown)}".rstrip()


class Numbered(Protocol):
    """What has a place in the order of a carrier's tiles."""

    ordinal: int


class Watcher(Protocol):
    """Hears what happens, on whatever thread it does, possibly under a carrier's lock: it must take no such lock."""

    def see(self, subject: Subject, resident: Iterable[int]) -> None:
        """A carrier is there, with these tiles in primary; first of all that is said of it."""
        ...

    def event(self, event: Event, end_ns: int, *, succeeded: bool) -> None:
        """Something is over."""
        ...

    def changed(self, subject: Subject, ordinal: int, *, is_resident: bool) -> None:
        """A tile has come to primary or left it."""
        ...

    def asked(self, subject: Subject, ordinal: int, *, is_hit: bool) -> None:
        """A request wants a tile, which is in primary or must be brought."""
        ...


class Event:
    """Something that takes time, from the beginning of a block to its end.

    It is told to every watcher, and is a range of torch's own profiler while that is on.
    """

    __slots__ = ("_range", "begin_ns", "kind", "name", "nbytes", "ordinal", "subject")

    def __init__(self, kind: Kind, name: str, subject: Subject | None, ordinal: int) -> None:
        self.kind = kind
        self.name = name
        self.subject = subject
        self.ordinal = ordinal
        self.nbytes = 0
        """The bytes that moved; set inside the block."""
        self.begin_ns = 0
        self._range: Any = None

    def __enter__(self) -> Event:
        if torch_profiler._is_profiler_enabled:
            self._range = torch_profiler.record_function(f"strideweave.{title(self)}")
            self._range.__enter__()
        self.begin_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = time.perf_counter_ns()
        if self._range is not None:
            self._range.__exit__(None, None, None)
        for watcher in tuple(watchers):
            watcher.event(self, end_ns, succeeded=kind is None)


class Nothing:
    """The event that nobody looks at."""

    nbytes = 0

    def __enter__(self) -> Nothing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_NOTHING: Final = Nothing()


def event(kind: Kind, name: str = "", subject: Subject | None = None, ordinal: int = -1) -> Event | Nothing:
    """A block that is an event, of one tile where `subject` and `ordinal` name one.

    >>> with event("read") as e:
    ...     e.nbytes = 4096
    """
    if watchers or torch_profiler._is_profiler_enabled:
        return Event(kind, name, subject, ordinal)
    return _NOTHING


def title(event: Event) -> str:
    """An event in words.

    >>> title(Event("operation", "relu", None, -1))
    'operation relu'
    """
    if event.subject is None or event.ordinal < 0:
        return f"{event.kind} {event.name}"
    return f"{event.kind} {event.subject.label(event.ordinal)}"


def changed(subject: Subject, ordinal: int, *, is_resident: bool) -> None:
    """Tell that a tile has come or gone (under its carrier's lock)."""
    for watcher in tuple(watchers):
        watcher.changed(subject, ordinal, is_resident=is_resident)


def asked(subject: Subject, tiles: Iterable[Numbered], *, is_hit: bool) -> None:
    """Tell that a request wants tiles (under their carrier's lock)."""
    if watchers:
        for tile in tiles:
            for watcher in tuple(watchers):
                watcher.asked(subject, tile.ordinal, is_hit=is_hit)


def watch(watcher: Watcher) -> None:
    """From now on the watcher hears everything, first of all which tiles are where."""
    watchers.append(watcher)
    for subject in _alive():
        subject.snapshot(partial(watcher.see, subject))


def _alive() -> list[Subject]:
    while True:
        try:
            return list(_subjects)
        except RuntimeError:  # another thread made one meanwhile
            continue


def _watch_nothing_in_child() -> None:
    watchers.clear()  # whose locks threads of the parent may hold


os.register_at_fork(after_in_child=_watch_nothing_in_child)
