"""Least recently used: what a carrier does when nobody says otherwise."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import final

from strideweave.carriers.tiled_evictable.policy import EvictionOrder
from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSet


@final
class LRU:
    """Keeps what was used last: the default policy.

    It asks for nothing in advance; when the budget is full, the least recently used tile that no running work needs
    makes room.

    >>> from strideweave import TileSet
    >>> from strideweave.carriers.tiled_evictable import LRU, ResidencyPolicy
    >>> isinstance(LRU(), ResidencyPolicy), LRU().plan(TileSet([(0,)]), "projection").evict
    (True, TileSet(coordinates=()))
    """

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        """An empty plan."""
        return ResidencyPlan()

    def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> EvictionOrder:
        """A fresh order for one carrier."""
        return LRUOrder()

    def __repr__(self) -> str:
        return "LRU()"


@final
class LRUOrder:
    """Gives up the tile whose last use, or arrival, is longest ago; O(1) a use."""

    def __init__(self) -> None:
        self._tiles: OrderedDict[int, None] = OrderedDict()

    def use(self, tile: int) -> None:
        """Last in line, if it is there."""
        if tile in self._tiles:
            self._tiles.move_to_end(tile)

    def arrive(self, tile: int) -> None:
        """Last in line."""
        self._tiles[tile] = None
        self._tiles.move_to_end(tile)

    def forget(self, tile: int) -> None:
        """Out of the line."""
        self._tiles.pop(tile, None)

    def victims(self) -> Iterator[int]:
        """The primary tiles, least recently used first."""
        return iter(self._tiles)
