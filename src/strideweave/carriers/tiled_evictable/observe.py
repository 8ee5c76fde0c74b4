"""What a tiled carrier lets people see: the state of a tile, and a snapshot of its counters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from strideweave.carriers.tiled_evictable.budget import format_nbytes

Location: TypeAlias = Literal["primary", "secondary", "implicit", "invalid"]


@dataclass(frozen=True, slots=True)
class TileState:
    """Where the value of one tile is, whether it can be read, and whether primary holds its only good copy.

    Source: seed 000, "Residency state is independent of executable selection shape".

    >>> from strideweave import TileState
    >>> TileState("primary", valid=True, dirty=False)
    TileState(location='primary', valid=True, dirty=False)
    """

    location: Location
    valid: bool
    dirty: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counters of one carrier at one moment; `after.since(before)` is what happened between.

    Units: bytes, seconds, tiles.

    >>> import torch
    >>> import strideweave as sw
    >>> c = sw.TiledEvictable(sw.CPU.wrap(torch.arange(4.0)), sw.FileBacked(), (2,), (2,))
    >>> s = c.statistics()
    >>> s.resident_tiles, s.bytes_read
    (2, 0)
    >>> c.release()
    """

    tile_nbytes: int
    """The bytes of one whole tile, which every tile has room for, a ragged one too."""
    budget_nbytes: int
    """The bytes that primary tiles may take, those on their way included."""
    slots: int
    """How many tiles the budget holds."""
    resident_tiles: int
    """Tiles whose value is in primary."""
    in_flight_tiles: int
    """Tiles on their way into a slot of primary."""
    pinned_tiles: int
    """Tiles that running work, or a borrowed view, needs."""
    hits: int
    """Tiles that a request found in primary."""
    misses: int
    """Tiles that a request had to bring."""
    evictions: int
    """Tiles that left primary."""
    bytes_read: int
    """Bytes that came from the secondary tier."""
    bytes_written: int
    """Bytes that went to the secondary tier."""
    stall_s: float
    """Seconds that callers of `stream` and `borrow` waited for tiles."""
    failed_policy_evictions: int
    """Evictions that a policy asked for and that failed; the results were delivered all the same."""
    prefetched: int = 0
    """Tiles that `prefetch` has sent on their way."""
    prefetched_used: int = 0
    """Those of them that somebody wanted while they were there or coming."""
    prefetched_unused: int = 0
    """Those of them that left, or were given up, before anybody did."""

    @property
    def resident_nbytes(self) -> int:
        """The bytes of the slots that the resident tiles take."""
        return self.resident_tiles * self.tile_nbytes

    @property
    def prefetch_precision(self) -> float:
        """The share of the guesses known to be right or wrong that was right; 1 before the first."""
        known = self.prefetched_used + self.prefetched_unused
        return self.prefetched_used / known if known else 1.0

    @property
    def hit_rate(self) -> float:
        """Hits among all tiles asked for; 0 before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def since(self, earlier: Statistics) -> Statistics:
        """The same snapshot with the running counters counted from `earlier` on."""
        running = {
            "hits",
            "misses",
            "evictions",
            "bytes_read",
            "bytes_written",
            "stall_s",
            "failed_policy_evictions",
            "prefetched",
            "prefetched_used",
            "prefetched_unused",
        }
        return Statistics(
            **{
                f.name: getattr(self, f.name) - (getattr(earlier, f.name) if f.name in running else 0)
                for f in fields(self)
            }
        )

    def __str__(self) -> str:
        return (
            f"{self.resident_tiles} of {self.slots} tiles resident ({format_nbytes(self.resident_nbytes)} of "
            f"{format_nbytes(self.budget_nbytes)}), {self.hits} hits, {self.misses} misses ({self.hit_rate:.1%}), "
            f"{format_nbytes(self.bytes_read)} read, {format_nbytes(self.bytes_written)} written, {self.stall_s:.2f} "
            "s waited"
        )
