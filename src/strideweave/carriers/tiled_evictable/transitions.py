"""Promotion and eviction of a set of tiles: all of them commit, or none does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from strideweave.carriers.tiled_evictable.engine import Engine, Load, Pin, Tile
from strideweave.carriers.tiled_evictable.handles import AwaitResidency
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
        promotion = _Promotion(engine, handle, pin, len(absent))
        for tile in tiles:
            if tile.slot is not None:
                engine.order.use(tile.ordinal)
        for tile in absent:
            pin.add(tile)
            tile.claim = handle
            promotion.tiles.append(tile)
            if tile.load is not None:
                tile.load.landed.append(promotion.landed)
            else:
                slot = engine.reserve(tile)
                promotion.loads.append(engine.start_load(tile, slot, commits=False, landed=promotion.landed))
    if not absent:
        promotion.commit(None)
    return handle


class _Promotion:
    """The loads of one promotion; the last one to land commits or gives up all of them."""

    def __init__(self, engine: Engine, handle: AwaitResidency, pin: Pin, absent: int) -> None:
        self._engine = engine
        self._handle = handle
        self._pin = pin
        self._left = absent
        self._error: BaseException | None = None
        self.tiles: list[Tile] = []
        self.loads: list[Load] = []
        engine.work += 1

    def landed(self, error: BaseException | None) -> None:
        """One load is over."""
        with self._engine.guard:
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        self.commit(self._error)

    def commit(self, error: BaseException | None) -> None:
        """Publish the outcome; the handle is done only after every trace of the request is gone."""
        engine = self._engine
        with engine.guard:
            for load in self.loads:
                if load.tile.load is load:
                    engine.finish_load(load, settle=error is None)
            for tile in self.tiles:
                tile.claim = None
            self._pin.close()
            engine.work -= 1
        if error is None:
            self._handle._succeed(None)
        else:
            self._handle._fail(error)


def evict(
    engine: Engine, tiles: Sequence[Tile], *, then: Callable[[BaseException | None], None] | None = None
) -> AwaitResidency:
    """Start to make every tile leave primary, its value kept; nothing has changed when it raises.

    `then` hears the outcome before the handle is done.
    """
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
        handle = AwaitResidency._pending(f"evict {len(tiles)} tiles of {engine.name}")
        leaving = [tile for tile in tiles if tile.slot is not None]
        writes = [tile for tile in leaving if not tile.has_backing]
        # On its way for nobody (a stream was closed): it would be primary just after the eviction.
        arriving = [tile for tile in tiles if tile.load is not None]
        eviction = _Eviction(engine, handle, leaving, writes, arriving, then)
        for tile in (*leaving, *arriving):
            tile.claim = handle
        for tile in arriving:
            assert tile.load is not None
            tile.load.landed.append(eviction.arrived)
        for tile in writes:
            engine.lanes.submit(eviction.job(tile), Priority.WRITE_BACK)
    if not writes and not arriving:
        eviction.commit(None)
    return handle


def evict_for_policy(engine: Engine, tiles: Sequence[Tile], then: Callable[[], None] | None = None) -> None:
    """Evict what a policy wanted gone and nobody needs; a failure is counted and logged, and takes no result away."""

    def over(error: BaseException | None) -> None:
        if error is not None:
            with engine.guard:
                engine.failed_policy_evictions += 1
            _log.error("an eviction that the policy of %s asked for failed: %s", engine.name, error)
        if then is not None:
            then()

    with engine.guard:
        leaving = [t for t in tiles if t.slot is not None and not t.pins and t.claim is None]
    if not leaving:
        over(None)
        return
    try:
        evict(engine, leaving, then=over)
    except RuntimeError as conflict:  # somebody took one of them between the two looks
        over(conflict)


class _Eviction:
    """The writes of one eviction; the last one commits all of them or leaves every tile where it was."""

    def __init__(
        self,
        engine: Engine,
        handle: AwaitResidency,
        leaving: list[Tile],
        writes: list[Tile],
        arriving: list[Tile],
        then: Callable[[BaseException | None], None] | None,
    ) -> None:
        self._engine = engine
        self._handle = handle
        self._leaving = leaving
        self._writes = writes
        self._arriving = arriving
        self._then = then
        self._left = len(writes) + len(arriving)
        self._error: BaseException | None = None
        engine.work += 1

    def job(self, tile: Tile) -> Callable[[], None]:
        """The write of one tile."""

        def write() -> None:
            error: BaseException | None = None
            try:
                self._engine.write_back(tile)
            except BaseException as e:
                error = e
            self._step_over(error)

        return write

    def arrived(self, error: BaseException | None) -> None:
        """A tile that was on its way is there, or is not: either way it can be absent now."""
        self._step_over(None)

    def _step_over(self, error: BaseException | None) -> None:
        with self._engine.guard:
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        self.commit(self._error)

    def commit(self, error: BaseException | None) -> None:
        """Publish the outcome; the handle is done only after every trace of the request is gone."""
        engine = self._engine
        with engine.guard:
            if error is None:
                for tile in self._writes:
                    engine.stored(tile)
            for tile in (*self._leaving, *self._arriving):
                tile.claim = None
                if error is None and tile.slot is not None:
                    engine.drop(tile)
            engine.work -= 1
            engine.guard.notify_all()
        if self._then is not None:
            self._then(error)
        if error is None:
            self._handle._succeed(None)
        else:
            self._handle._fail(error)
