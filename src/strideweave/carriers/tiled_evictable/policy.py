"""What to keep: the protocol of a residency policy, and the order in which tiles leave under a budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal, Protocol, TypeAlias, final, runtime_checkable

from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSet

Purpose: TypeAlias = Literal["operation", "projection", "scatter", "backward"]


@runtime_checkable
class ResidencyPolicy(Protocol):
    """A scheduler: asked once per request, before anything moves, what to promote, retain and evict.

    It can make things faster and never decides what is correct: required tiles are made available whatever it says.

    Source: seed 000, "Residency policy can optimize but cannot define correctness".

    >>> import torch
    >>> import strideweave as sw
    >>> class DropAll:
    ...     def plan(self, required, purpose):
    ...         return sw.ResidencyPlan(evict=required)
    >>> c = sw.TiledEvictable(sw.CPU.wrap(torch.arange(4.0)), sw.FileBacked(), (2,), (2,), residency_policy=DropAll())
    >>> _ = c.project(sw.Tensor(c, 0, c.layout), sw.TileSelection([[1]])).wait()
    >>> c.tile_state((1,)).location
    'secondary'
    >>> c.release()
    """

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        """The plan for a request that must read or write `required`."""
        ...


class EvictionOrder(Protocol):
    """Which primary tile should go first when a budget is full; fed and asked under the carrier's lock.

    >>> from strideweave.carriers.tiled_evictable import LRU
    >>> order = LRU().eviction_order()
    >>> for tile in (3, 5, 3):
    ...     order.use(tile)
    >>> list(order.victims())
    [5, 3]
    """

    def use(self, tile: int) -> None:
        """The tile was used just now."""
        ...

    def forget(self, tile: int) -> None:
        """The tile has left primary."""
        ...

    def victims(self) -> Iterator[int]:
        """The primary tiles, the best one to give up first."""
        ...


@final
class LRUOrder:
    """Gives up the tile whose last use is longest ago; O(1) a use."""

    def __init__(self) -> None:
        self._tiles: OrderedDict[int, None] = OrderedDict()

    def use(self, tile: int) -> None:
        """The tile was used just now."""
        self._tiles[tile] = None
        self._tiles.move_to_end(tile)

    def forget(self, tile: int) -> None:
        """The tile has left primary."""
        self._tiles.pop(tile, None)

    def victims(self) -> Iterator[int]:
        """The primary tiles, least recently used first."""
        return iter(self._tiles)


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

    def eviction_order(self) -> EvictionOrder:
        """A fresh order for one carrier."""
        return LRUOrder()

    def __repr__(self) -> str:
        return "LRU()"
