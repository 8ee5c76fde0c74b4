"""Promotion and eviction of a set of tiles: all of them commit, or none does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from strideweave.carriers.tiled_evictable.engine import Engine, Load, Pin, Tile
from strideweave.carriers.tiled_evictable.handles import AwaitResidency
from strideweave.carriers.tiled_evictable.steps import Steps
from strideweave.io import Priority

_log = logging.getLogger("strideweave")


def promote(engine: Engine, tiles: Sequence[Tile]) -> AwaitResidency:
    """Start to make every tile primary; nothing has changed when it raises."""
    what = f"promote {len(tiles)} tiles"
    with engine.guard:
        engine.require_unclaimed(tiles, "promote")
        engine.require_valid(tiles, "promote")
        handle = AwaitResidency._pending(f"{what} of {engine.name}")
        pin = Pin(engine, f"promotion of {len(tiles)} tiles")
        # Pinned before any slot is taken: a requested tile must not make room for another one.
        for tile in tiles:
            if tile.slot is not None or tile.load is not None:
                pin.add(tile)
        absent = [tile for tile in tiles if tile.slot is None]
        try:
            engine.require_room(sum(tile.load is None for tile in absent), what)
        except BaseException:
            pin.close()
            raise
        promotion = _Promotion(engine, handle, pin)
        for tile in tiles:
            engine.deferred.pop(tile.ordinal, None)  # a policy's older wish
            if tile.slot is not None:
                engine.order.arrive(tile.ordinal)
        with engine.together():
            for tile in absent:
                promotion.add(tile)
    promotion.steps.over(None)
    return handle


class _Promotion:
    """The loads of one promotion; the last one to land commits or gives up all of them."""

    def __init__(self, engine: Engine, handle: AwaitResidency, pin: Pin) -> None:
        self._engine = engine
        self._handle = handle
        self._pin = pin
        self._tiles: list[Tile] = []
        self._loads: list[Load] = []
        self._has_room = True
        self.steps = Steps(engine, self._commit)

    def add(self, tile: Tile) -> None:
        """Bring one more tile (guarded)."""
        self.steps.add()
        self._pin.add(tile)
        self._tiles.append(tile)
        tile.claim = self._handle
        if tile.load is not None:
            self._engine.joined(tile).landed.append(self.steps.over)
            return
        # No tile is let go while the first ones are added under one lock: once there is no slot, there is none.
        slot = self._engine.reserve(tile) if self._has_room else None
        self._has_room = slot is not None
        self._loads.append(self._engine.start_load(tile, slot, commits=False, landed=self.steps.over))

    def _commit(self, error: BaseException | None) -> None:
        with self._engine.guard:
            for load in self._loads:
                if load.tile.load is load:
                    self._engine.finish_load(load, settle=error is None)
            for tile in self._tiles:
                tile.claim = None
            self._pin.close()
            self.steps.done()
        self._handle._finish(None, error)


def evict(engine: Engine, tiles: Sequence[Tile]) -> AwaitResidency:
    """Start to make every tile leave primary, its value kept; nothing has changed when it raises."""
    with engine.guard:
        engine.collect_abandoned()
        engine.await_write_back(tiles)
        engine.require_unclaimed(tiles, "evict")
        for tile in tiles:
            if tile.pins:
                raise RuntimeError(
                    f"cannot evict tile {engine.geometry.coordinate(tile.ordinal)} of {engine.name}: it is pinned by "
                    f"{', '.join(sorted(p.label for p in engine.pins if tile.ordinal in p.tiles))}. Running work and "
                    "borrowed views keep their tiles. Wait for that work, or leave the borrow block."
                )
        eviction = _Eviction(engine, tiles)
    eviction.steps.over(None)
    return eviction.handle


def evict_for_policy(engine: Engine, tiles: Sequence[Tile], then: Callable[[], None] | None = None) -> None:
    """Evict what a policy wanted gone, each tile when nobody needs it any more.

    `then` is called when those have left that nobody needs now. A failure is counted and logged, and takes no result
    away. A tile that somebody else promotes or evicts at the moment is left to that request.
    """

    def over(error: BaseException | None) -> None:
        if error is not None:
            with engine.guard:
                engine.failed_policy_evictions += 1
            _log.error("an eviction that the policy of %s asked for failed: %s", engine.name, error)
        if then is not None:
            then()

    eviction: _Eviction | None = None
    with engine.guard:
        unclaimed = [tile for tile in tiles if tile.claim is None and not engine.closed]
        leaving = [t for t in unclaimed if not t.pins and (t.slot is not None or t.load is not None)]
        for tile in unclaimed:
            if tile.pins:
                engine.deferred[tile.ordinal] = partial(evict_for_policy, engine, [tile])
        if leaving:
            eviction = _Eviction(engine, leaving, over)
            engine.policy_claims.add(eviction.handle)
    if eviction is None:
        over(None)
    else:
        eviction.steps.over(None)


class _Eviction:
    """The writes of one eviction; the last one commits all of them or leaves every tile where it was."""

    def __init__(
        self, engine: Engine, tiles: Sequence[Tile], then: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """Claim the tiles, none of them pinned or claimed, and start (guarded).

        `then` hears the outcome before the handle is done.
        """
        self._engine = engine
        self.handle = AwaitResidency._pending(f"evict {len(tiles)} tiles of {engine.name}")
        leaving = [tile for tile in tiles if tile.slot is not None]
        self._writes = [tile for tile in leaving if not tile.has_backing]
        # On its way for nobody (a stream was closed): it would be primary just after the eviction.
        arriving = [tile for tile in tiles if tile.load is not None and not engine.give_up_guess(tile)]
        self._leaving = [*leaving, *arriving]
        self._then = then
        self.steps = Steps(engine, self._commit)
        for tile in self._leaving:
            tile.claim = self.handle
        for tile in arriving:
            self.outlast(tile)
        for tile in self._writes:
            self.write(tile)

    def write(self, tile: Tile) -> None:
        """Preserve one tile (guarded)."""
        self.steps.add()
        self._engine.lanes.submit(lambda: self.steps.run(lambda: self._engine.write_back(tile)), Priority.WRITE_BACK)

    def outlast(self, tile: Tile) -> None:
        """Wait for a tile that is on its way (guarded): whether it lands or fails, it can be absent then."""
        assert tile.load is not None
        self.steps.add()
        tile.load.landed.append(lambda error: self.steps.over(None))

    def _commit(self, error: BaseException | None) -> None:
        engine = self._engine
        with engine.guard:
            if error is None:
                for tile in self._writes:
                    engine.stored(tile)
            for tile in self._leaving:
                tile.claim = None
                if error is None and tile.slot is not None:
                    engine.drop(tile)
            engine.policy_claims.discard(self.handle)
            self.steps.done()
        if self._then is not None:
            self._then(error)
        self.handle._finish(None, error)
