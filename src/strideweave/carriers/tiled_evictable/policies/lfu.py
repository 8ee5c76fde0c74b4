"""Least frequently used, with uses that fade."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import final

from strideweave.carriers.tiled_evictable.policies.ranking import Ranking
from strideweave.carriers.tiled_evictable.policy import EvictionOrder
from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSet

_HALF_LIFE_SLOTS = 8  # of independent draws it gives up one hit in fifty, and follows new favourites


@final
class LFU:
    """Keeps what is used most often: for tiles of unequal and rather stable popularity.

    Where work comes back soon to what it has just used, LRU hits more; a short `half_life` comes close to it.

    A tile weighs the sum of its uses, and a use counts half as much after `half_life` further uses of any tile: an old
    favourite fades, where a plain count would keep it for good. Of tiles that are used equally often the recent ones
    weigh more, and so stay. A tile keeps its weight while it is away. One that is brought ahead of its use weighs at
    least as much as one that is used now, so that it is not the first to go again.

    Every weight fades by the same factor, which leaves their order alone; only a used tile changes place.

    Units: `half_life` in uses; 8 for each slot of the budget unless given. Errors: TypeError for no int, ValueError
    below 1.
    Source: D. Lee et al., "LRFU: A spectrum of policies that subsumes the least recently used and least frequently used
    policies", IEEE Transactions on Computers 50(12), 2001.

    >>> from strideweave.carriers.tiled_evictable import LFU
    >>> order = LFU().eviction_order((8,), 4)
    >>> for tile in (3, 3, 5, 5, 6):
    ...     order.use(tile)
    ...     order.arrive(tile)
    >>> list(order.victims())
    [6, 3, 5]
    """

    def __init__(self, half_life: int | None = None) -> None:
        if half_life is not None:
            if isinstance(half_life, bool) or not isinstance(half_life, int):
                raise TypeError(
                    f"cannot halve what uses count after {half_life!r} uses: half_life must be an integer number of "
                    "uses. Pass an int, or leave it out."
                )
            if half_life < 1:
                raise ValueError(
                    f"cannot halve what uses count after {half_life} uses: half_life must be at least 1. Pass a "
                    "larger one."
                )
        self.half_life = half_life

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        """An empty plan."""
        return ResidencyPlan()

    def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> EvictionOrder:
        """A fresh order for one carrier."""
        return LFUOrder(self.half_life or _HALF_LIFE_SLOTS * max(1, slots))

    def __repr__(self) -> str:
        return f"LFU({self.half_life})" if self.half_life is not None else "LFU()"


@final
class LFUOrder:
    """Gives up the tile of the least weight; O(log n) a use.

    A weight is kept as its binary logarithm, counted from the first use on, so that it neither fades nor overflows.
    """

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        self._uses = 0
        self._weights: dict[int, float] = {}
        self._last: dict[int, int] = {}
        self._ranking = Ranking()

    def use(self, tile: int) -> None:
        """It weighs one use more."""
        self._uses += 1
        now = self._uses / self._half_life
        before = self._weights.get(tile)
        self._weights[tile] = now if before is None else now + math.log2(1.0 + 2.0 ** (before - now))
        self._last[tile] = self._uses
        if tile in self._ranking:
            self._ranking.put(tile, (self._weights[tile], self._uses))

    def arrive(self, tile: int) -> None:
        """It weighs at least as much as one use now."""
        weight = max(self._weights.get(tile, -math.inf), self._uses / self._half_life)
        self._ranking.put(tile, (weight, self._last.get(tile, 0)))

    def forget(self, tile: int) -> None:
        """It is no candidate; its weight is remembered."""
        self._ranking.drop(tile)

    def victims(self) -> Iterator[int]:
        """The primary tiles, the lightest first, and of equal ones the least recently used."""
        return iter(self._ranking)
