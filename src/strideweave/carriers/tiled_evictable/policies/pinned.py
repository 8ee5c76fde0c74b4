"""Some tiles that stay, whatever else comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from strideweave.carriers.tiled_evictable.policies.default import eviction_order_of
from strideweave.carriers.tiled_evictable.policies.lru import LRU
from strideweave.carriers.tiled_evictable.policies.numbering import numbers_of
from strideweave.carriers.tiled_evictable.policy import EvictionOrder, ResidencyPolicy
from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSelection, TileSet


@final
class Pinned:
    """Keeps `tiles` from the first time they are in primary; `rest` decides about all others.

    A tile is brought by its first use, or by `promote`, which costs nothing here: a plan that promoted it would make
    every request wait for it, and fail with it. From then on it makes no room for a cached tile. It still leaves when
    it is told to by `evict`, and when a request cannot be met otherwise (tiles borrowed at once that need its slot):
    a policy cannot make a request fail that fits the budget. Plans of `rest` do not evict pinned tiles.

    Errors: TypeError for no TileSet or no policy. A carrier refuses, with ValueError, tiles outside its grid and more
    of them than its budget holds.

    >>> from strideweave import TileSet
    >>> from strideweave.carriers.tiled_evictable import LFU, Pinned
    >>> policy = Pinned(TileSet([(0,), (1,)]), rest=LFU())
    >>> order = policy.eviction_order((8,), 4)
    >>> for tile in (0, 1, 5, 5, 6):
    ...     order.use(tile)
    ...     order.arrive(tile)
    >>> list(order.victims())
    [6, 5]
    """

    def __init__(self, tiles: TileSet | TileSelection, rest: ResidencyPolicy | None = None) -> None:
        if not isinstance(tiles, TileSet | TileSelection):
            raise TypeError(
                f"cannot pin {tiles!r}: tiles must be a TileSet or a TileSelection. Pass TileSet([(...), ...])."
            )
        if rest is not None and not (isinstance(rest, ResidencyPolicy) and callable(rest.plan)):
            raise TypeError(
                f"cannot leave the rest to {rest!r}: it has no method plan(required, purpose). Pass a ResidencyPolicy."
            )
        self.tiles = tiles.tile_set if isinstance(tiles, TileSelection) else tiles
        self.rest: ResidencyPolicy = LRU() if rest is None else rest

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        """The plan of `rest`, without evictions of pinned tiles."""
        plan = self.rest.plan(required, purpose)
        # What is no plan is for the carrier to refuse.
        if not isinstance(plan, ResidencyPlan) or self.tiles._members.isdisjoint(plan.evict.coordinates):
            return plan
        leaving = TileSet(c for c in plan.evict.coordinates if c not in self.tiles)
        return ResidencyPlan(plan.promote, plan.retain, leaving)

    def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> EvictionOrder:
        """A fresh order for one carrier. Errors: ValueError for tiles outside the grid, or more than `slots`."""
        self.tiles._validate_grid_shape(grid_shape)
        if len(self.tiles) > slots:
            raise ValueError(
                f"cannot pin {len(self.tiles)} tiles in a budget of {slots}: they do not fit. Pinned tiles are in "
                "primary all at once. Pin fewer tiles, or raise the budget."
            )
        pinned = frozenset(numbers_of(self.tiles.coordinates, grid_shape))
        return PinnedOrder(pinned, eviction_order_of(self.rest, grid_shape, slots - len(pinned)))

    def __repr__(self) -> str:
        return f"Pinned({self.tiles!r}, rest={self.rest!r})"


@final
class PinnedOrder:
    """Gives up no pinned tile; another order has the rest."""

    def __init__(self, pinned: frozenset[int], rest: EvictionOrder) -> None:
        self._pinned = pinned
        self._rest = rest

    def use(self, tile: int) -> None:
        """The other order hears of every use: it may count them."""
        self._rest.use(tile)

    def arrive(self, tile: int) -> None:
        """A candidate, unless it is pinned."""
        if tile not in self._pinned:
            self._rest.arrive(tile)

    def forget(self, tile: int) -> None:
        """No candidate any more."""
        if tile not in self._pinned:
            self._rest.forget(tile)

    def victims(self) -> Iterator[int]:
        """The other primary tiles, in the other order."""
        return self._rest.victims()
