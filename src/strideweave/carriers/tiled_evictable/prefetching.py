"""Guesses that keep an eye on themselves: what is wrong too often is left alone for a while."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

from strideweave.carriers.tiled_evictable.selection import Coordinate, TileSet

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable

_JUDGED_GUESSES: Final = 16
_FIRST_PAUSE: Final = 32
_LONGEST_PAUSE: Final = 1024


@final
class Prefetcher:
    """Brings tiles ahead of time for a carrier, as long as its guesses are right often enough.

    `suggest` takes tiles, the likeliest first, and has at most `max_in_flight` of all suggested ones on their way.
    After every 16 guesses that were used, or left unused, it looks at the share that was used: below `precision_floor`
    it lets the next 32 calls pass, then twice as many, up to 1024, and tries again. A right spell makes pauses short.

    A wrong guess costs the reading of a tile and the place of another one; it pays while the reading hides behind
    computation, so that the floor depends on what the disk has to spare.

    Errors: ValueError for a limit below 1 or a floor outside 0 to 1; what `TiledEvictable.prefetch` raises.

    >>> import torch
    >>> import strideweave as sw
    >>> c = sw.TiledEvictable(sw.CPU(0), sw.CPU.wrap(torch.arange(8.0)), (4,), (2,), budget=16)
    >>> p = Prefetcher(c)
    >>> p.suggest([(2,), (3,)])
    2
    >>> p
    <Prefetcher of 2 guesses, 0 of 0 known ones used, at work>
    >>> c.release()
    """

    def __init__(self, carrier: TiledEvictable, *, max_in_flight: int = 2, precision_floor: float = 0.85) -> None:
        if max_in_flight < 1 or not 0 <= precision_floor <= 1:
            raise ValueError(
                f"cannot prefetch with max_in_flight={max_in_flight} and precision_floor={precision_floor}: at least "
                "one tile is on its way, and a share is between 0 and 1. Name others."
            )
        self._carrier = carrier
        self._max_in_flight = max_in_flight
        self._floor = precision_floor
        self._judged = (0, 0)
        self._pause = _FIRST_PAUSE
        self._passes_left = 0

    @property
    def is_pausing(self) -> bool:
        """Whether the next suggestion is let pass."""
        return self._passes_left > 0

    def suggest(self, tiles: Iterable[Coordinate]) -> int:
        """Begin to bring the first of these that may be; how many."""
        if self._passes_left:
            self._passes_left -= 1
            return 0
        engine = self._carrier._engine
        self._judge(engine.prefetched_used, engine.prefetched_unused)
        if self._passes_left:
            return 0
        begun = 0
        for tile in tiles:
            if len(engine.guesses) >= self._max_in_flight:
                break
            begun += self._carrier.prefetch(TileSet([tile]))
        return begun

    def _judge(self, used: int, unused: int) -> None:
        was_used, was_unused = self._judged
        known = used - was_used + unused - was_unused
        if known < _JUDGED_GUESSES:
            return
        self._judged = used, unused
        if used - was_used >= self._floor * known:
            self._pause = _FIRST_PAUSE
            return
        self._passes_left = self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def __repr__(self) -> str:
        engine = self._carrier._engine
        known = engine.prefetched_used + engine.prefetched_unused
        state = f"pausing for {self._passes_left} more calls" if self._passes_left else "at work"
        return (
            f"<Prefetcher of {engine.prefetched} guesses, {engine.prefetched_used} of {known} known ones used, {state}>"
        )
