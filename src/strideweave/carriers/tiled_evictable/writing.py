"""Whole tiles written into a fresh carrier that nobody else knows yet: gradients, and the results of scatter."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch

from strideweave.carriers.tiled_evictable.engine import Engine, Tile
from strideweave.carriers.tiled_evictable.tiles_as_modes import TilesAsModes
from strideweave.layout import Layout
from strideweave.tensor import Tensor

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable


class TileWriter:
    """Writes the tiles of a fresh carrier, in any order, from the calling thread; more of them than its budget holds.

    A written tile is primary, valid and dirty. When primary is full, the tile that should go first is written to
    secondary to make room. An implicit tile that is given zeros stays as it is, without memory.
    """

    def __init__(self, carrier: TiledEvictable) -> None:
        self._engine: Engine = carrier._engine
        self._views: dict[tuple[Layout, int], TilesAsModes] = {}

    def put(self, coordinate: Sequence[int], values: torch.Tensor, layout: Layout, offset: int = 0) -> None:
        """The tile holds `values`, whose place in it `layout` at `offset` decides.

        Shapes: `values` has the tile's extents, one dim per top-level mode. Errors: BudgetExceeded when every slot is
        pinned; those of the secondary tier, after which the tile is as it was.
        """
        engine = self._engine
        tile = engine.tiles[engine.geometry.ordinal(tuple(coordinate))]
        if tile.implicit and not bool(values.any()):
            return
        views = self._views.get((layout, offset))
        if views is None:
            views = self._views[layout, offset] = TilesAsModes(engine, offset, layout)
        if tile.slot is not None:
            views.put_slot(tile.ordinal, tile.slot, values)
            self._written(tile, tile.slot)
            return
        slot = self._take_slot(tile)
        try:
            views.put_slot(tile.ordinal, slot, values)
        except BaseException:
            with engine.guard:
                engine.primary.give(slot)
            raise
        self._written(tile, slot)

    def _written(self, tile: Tile, slot: int) -> None:
        with self._engine.guard:
            self._engine.settle(tile, slot)
            tile.dirty = True
            tile.implicit = False

    def _take_slot(self, tile: Tile) -> int:
        """A free slot, or one from which a tile has gone to secondary."""
        engine = self._engine
        while True:
            with engine.guard:
                slot = engine.reserve(tile)
                if slot is not None:
                    return slot
                # An order may hold tiles back for good; what is written must find room all the same.
                leaving = (engine.tiles[k] for k in chain(engine.order.victims(), range(len(engine.tiles))))
                victim = next((t for t in leaving if t.slot is not None and not t.pins), None)
                if victim is None:
                    raise engine.no_room(1, "write a tile")
            # Outside the lock and without a pin: nobody else knows the carrier.
            engine.write_back(victim)
            with engine.guard:
                engine.stored(victim)
                engine.drop(victim)


def gradient_like(tensor: Tensor) -> tuple[Tensor, TileWriter]:
    """A Tensor of zeros over a fresh carrier like that of `tensor`, and the writer of its tiles.

    Every tile is implicit zero until it is written. The Tensor has the Layout of `tensor`, and its carrier the grid,
    the kinds of tiers, the budget and the policy. This very Tensor may become a `grad` without a copy.

    Errors: RuntimeError for a released carrier.
    """
    carrier: TiledEvictable = tensor.carrier  # type: ignore[assignment]  # the caller has a tiled operand
    carrier._require_live("make a gradient of")
    fresh = carrier.allocate_like(carrier.size())
    gradient = Tensor._make(fresh, tensor.offset, tensor.layout)
    fresh._gradient = weakref.ref(gradient)
    return gradient, TileWriter(fresh)
