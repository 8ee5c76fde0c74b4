"""Tiles used in place, in the caller's thread: one after the other as they land, or a set of them at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import final

import torch

from strideweave.carriers.tiled_evictable import transitions
from strideweave.carriers.tiled_evictable.engine import Engine, Load, Pin, Tile
from strideweave.carriers.tiled_evictable.selection import Coordinate
from strideweave.io import watching

_LOOK_AGAIN_S = 0.5
_PASSING_AHEAD = 4  # tiles of a scan take the places of others: a lane each has one to bring
_KEPT = "Its stored value was kept."
_LOST = "Its value is lost: no other copy was there."


class Use:
    """Tiles that the calling thread looks at where they lie. It holds no bytes of its own, only pins."""

    def __init__(self, engine: Engine, verb: str, what: str) -> None:
        self._engine = engine
        self._doing = f"{verb} {what}"
        self._pin = Pin(engine, f"{verb} of {what}", in_thread=True)
        self._loads: dict[int, Load] = {}  # guarded

    def close(self) -> None:
        """Nothing is needed any more; what is on its way lands, and stays while there is room."""
        with self._engine.guard:
            self._pin.close()

    def want(self, tiles: Sequence[Tile]) -> None:
        """Pin tiles and start those that are absent, all of which must fit at once (guarded)."""
        engine = self._engine
        for tile in tiles:
            if tile.slot is not None or tile.load is not None:
                self._pin.add(tile)
        absent = [tile for tile in tiles if tile.slot is None]
        engine.require_room(sum(tile.load is None for tile in absent), self._doing)
        with engine.together():
            for tile in absent:
                self._start(tile, may_write_back=True)

    def _start(self, tile: Tile, *, may_write_back: bool) -> bool:
        """Pin a tile and see that it comes, if there is a slot for it and nobody moves it (guarded)."""
        engine = self._engine
        if tile.claim is not None:
            return False
        if tile.slot is None:
            if tile.load is None:
                slot = engine.reserve(tile)
                if slot is None and not (may_write_back and engine.has_leaving()):
                    return False
                engine.start_load(tile, slot, commits=True, landed=None)
            self._loads[tile.ordinal] = engine.joined(tile)
        self._pin.add(tile)
        return True

    def view(self, tile: Tile) -> torch.Tensor:
        """The tile as a tensor, once it is there; the caller's wait is counted."""
        engine = self._engine
        with engine.guard:
            self.hold(tile)
            assert tile.slot is not None
            # `.data` has a version counter of its own, by which a write through the view is noticed.
            return engine.view(tile.slot).data

    def hold(self, tile: Tile) -> None:
        """Wait until the tile is there (guarded), and count the time."""
        if not self._holds(tile):
            began = time.perf_counter()
            with watching.event("wait", self._doing, self._engine.subject, tile.ordinal):
                self._wait_for(tile)
            self._engine.stall_s += time.perf_counter() - began
        self._engine.use(tile)

    def _holds(self, tile: Tile) -> bool:
        return tile.slot is not None and tile.ordinal in self._pin.tiles

    def _wait_for(self, tile: Tile) -> None:
        engine = self._engine
        while not self._holds(tile):
            load = self._loads.get(tile.ordinal)
            if load is not None and load.error is not None:
                raise load.error
            is_coming = tile.load is not None and tile.ordinal in self._pin.tiles
            if is_coming or not self._start(tile, may_write_back=True):
                if not is_coming and not engine.can_progress(self._pin):
                    raise engine.no_room(1, self._doing)
                # A stream that was dropped instead of closed tells nobody that its slots are free.
                engine.guard.wait(_LOOK_AGAIN_S)

    def undo_write(self, tile: Tile, view: torch.Tensor) -> RuntimeError | None:
        """The error of a write through a read-only view, if there was one; a stored value is read again."""
        if view._version == 0:
            return None
        engine = self._engine
        with engine.guard:
            restored = tile.has_backing and tile.pins == 1 and tile.claim is None
            self._pin.drop(tile)
            if restored:
                engine.drop(tile)
        return RuntimeError(
            f"cannot write tile {engine.geometry.coordinate(tile.ordinal)} of {engine.name} through a borrowed view: "
            f"it was changed in place. Borrowed views are read-only. {_KEPT if restored else _LOST} Clone a view "
            "before you change it."
        )


@final
class TileStream(Use):
    """Every tile once, as (coordinate, view): those in primary first, the others as they land.

    Loads run ahead while slots are free. A view is valid until the next tile is asked for. The stream is an iterator
    and a context manager; exhausting it, closing it or leaving the block gives back its pins.

    >>> import torch
    >>> import strideweave as sw
    >>> c = sw.TiledEvictable(sw.CPU.wrap(torch.arange(4.0)), sw.FileBacked(), (2,), (2,))
    >>> with c.stream(sw.TileSet([(0,), (1,)])) as stream:
    ...     sorted((coordinate, view.sum().item()) for coordinate, view in stream)
    [((0,), 1.0), ((1,), 5.0)]
    >>> c.release()
    """

    def __init__(
        self,
        engine: Engine,
        what: str,
        tiles: Sequence[Tile],
        *,
        kept: Sequence[Tile],
        leaving: Sequence[Tile],
        passing: bool,
    ) -> None:
        """Pin what is there, start what is not (guarded); `kept` stay until the end, `leaving` go after it."""
        super().__init__(engine, "stream", what)
        self._leaving = leaving
        self._absent = [tile for tile in tiles if tile.slot is None]
        present = [tile for tile in tiles if tile.slot is not None]
        self._left = deque((*present, *self._absent))
        self._current: tuple[Tile, torch.Tensor] | None = None
        self._started = 0
        self._finished = 0
        """Tiles that are done with since loads ran ahead last."""
        self._is_passing = passing
        self._closed = False
        try:
            for tile in present:
                self._pin.add(tile)
            self.want(kept)
        except BaseException:
            self._pin.close()
            raise
        engine.hits += len(present)
        engine.misses += len(self._absent)
        watching.asked(engine.subject, present, is_hit=True)
        watching.asked(engine.subject, self._absent, is_hit=False)
        self._run_ahead()

    def __iter__(self) -> TileStream:
        return self

    def __next__(self) -> tuple[Coordinate, torch.Tensor]:
        try:
            if self._current is not None:
                self._finish_current()
            if not self._left:
                self.close()
                raise StopIteration
            tile = self._left.popleft()
            # What is taken by hand is never run ahead to again: that would pin it once more, for good.
            self._started = max(self._started, len(self._absent) - len(self._left))
            view = self.view(tile)
        except BaseException:
            self.close()  # as with a generator, what has raised is over
            raise
        self._current = (tile, view)
        return self._engine.geometry.coordinate(tile.ordinal), view

    def _finish_current(self) -> None:
        assert self._current is not None
        (tile, view), self._current = self._current, None
        if (written := self.undo_write(tile, view)) is not None:
            raise written
        with self._engine.guard:
            self._pin.drop(tile)
            self._finished += 1
            if self._is_passing and tile.ordinal in self._loads:
                self._engine.let_pass(tile)
            self._run_ahead()

    def close(self) -> None:
        """Give back every pin, and let go what the policy wanted gone; again is harmless.

        Errors: RuntimeError when the last view was written to; the pins are given back all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._left.clear()
        try:
            if self._current is not None:
                self._finish_current()
        finally:
            super().close()
            transitions.evict_for_policy(self._engine, self._leaving)

    def __enter__(self) -> TileStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            # The collector may run in a thread that holds the carrier's lock, so a lane closes the stream.
            self._engine.lanes.submit(self.close)

    def _ahead(self) -> int:
        """How many absent tiles are there, or on their way, before their turn."""
        return self._started - max(0, len(self._absent) - len(self._left))

    def _run_ahead(self) -> None:
        # Small tiles are asked for by the batch, so that one read brings several; a few batches fit the slots.
        batch = min(self._engine.batch_tiles, max(1, self._engine.primary.capacity // 4))
        if self._ahead() > 0 and self._engine.primary.free + self._finished < batch:
            return
        self._finished = 0
        with self._engine.together():
            self._start_ahead()

    def _start_ahead(self) -> None:
        while self._started < len(self._absent) and not self._closed:
            if self._is_passing and self._ahead() >= _PASSING_AHEAD and not self._engine.primary.free:
                return
            # A dirty tile is only written back for a tile that is wanted now, not for one that runs ahead.
            if not self._start(self._absent[self._started], may_write_back=False):
                return
            self._started += 1
