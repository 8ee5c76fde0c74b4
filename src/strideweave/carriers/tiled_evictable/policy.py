"""What to keep: the protocol of a residency policy, and the order in which tiles leave under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, TypeAlias, runtime_checkable

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


@runtime_checkable
class EvictionOrder(Protocol):
    """Which primary tile should go first when a budget is full. It speaks of tiles by number, first axis fastest.

    A policy that has a method `eviction_order(grid_shape, slots)` is asked once by each carrier, when it is made, and
    returns a fresh order: one policy may serve many carriers, an order serves one. Other policies get LRU's. An order
    is fed and asked under the carrier's lock, so it must be quick, and must neither raise nor call the carrier. It may
    leave tiles out of `victims`: these go only when a request cannot be met otherwise.

    >>> from strideweave.carriers.tiled_evictable import LRU, EvictionOrder
    >>> order = LRU().eviction_order((8,), 2)
    >>> for tile in (3, 5, 3):
    ...     order.use(tile)
    ...     order.arrive(tile)
    >>> list(order.victims()), isinstance(order, EvictionOrder)
    ([5, 3], True)
    """

    def use(self, tile: int) -> None:
        """A request uses the tile now, once, wherever it is; if it is not primary it may arrive, or pass through."""
        ...

    def arrive(self, tile: int) -> None:
        """The tile is primary: somebody has brought it, or has asked for it once more."""
        ...

    def forget(self, tile: int) -> None:
        """The tile has left primary."""
        ...

    def victims(self) -> Iterator[int]:
        """The primary tiles, the best one to give up first; not asked for more once the tiles have changed."""
        ...
