"""The tiles of one full Tensor, seen one by one in the calling thread, while the next ones are on their way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import torch

from strideweave.carriers.tiled_evictable.engine import Engine, Load, Tile
from strideweave.carriers.tiled_evictable.tiles_as_modes import TilesAsModes
from strideweave.io import Priority, watching
from strideweave.tensor import Tensor

SCRATCH_TILES = 3
"""How many tiles a walk holds beside the budget: the one that is looked at, and two on their way."""


class _Fetch:
    """A tile on its way into scratch, or there."""

    __slots__ = ("error", "is_over", "packed", "room", "tile")

    def __init__(self, tile: Tile, room: torch.Tensor, elems: int) -> None:
        self.tile = tile
        self.room = room
        self.packed = room[:elems]
        self.is_over = False
        self.error: BaseException | None = None


class Walk:
    """Looks at tiles in mode dims. The caller has pinned all of them, and keeps them pinned until `close`.

    A tile in primary is seen where it lies. An absent one takes a primary slot if one is free, and stays; otherwise it
    passes through scratch. What a tile's values are, and in which order they lie, is the same either way.
    """

    def __init__(self, engine: Engine, tensor: Tensor) -> None:
        self._engine = engine
        self._views = TilesAsModes(engine, tensor.offset, tensor.layout)
        self._fetches: dict[int, _Fetch] = {}  # by tile, in the order in which they were asked for
        self._spare: list[torch.Tensor] = []
        self._loads: dict[int, Load] = {}
        self._made = 0
        self._current: int | None = None

    @property
    def subject(self) -> watching.Subject:
        """The carrier, as a trace knows it."""
        return self._engine.subject

    def expect(self, ordinals: Sequence[int]) -> None:
        """Send the next tiles on their way, as far as there is scratch for them; `ordinals` are in order."""
        for ordinal in ordinals:
            if ordinal not in self._fetches and not self._start(self._engine.tiles[ordinal], keeps=ordinals):
                return

    def view(self, ordinal: int) -> torch.Tensor:
        """The values of a tile, to be read only; they stay until another tile is looked at.

        Errors: those of the secondary tier.
        """
        engine, tile = self._engine, self._engine.tiles[ordinal]
        self._current = ordinal
        slot: int | None = None
        while slot is None:
            if ordinal not in self._fetches and not self._start(tile, keeps=(ordinal,)):
                self._wait_for(next(f for f in self._fetches.values() if not f.is_over))  # then there is scratch
                continue
            fetch = self._fetches.get(ordinal)
            if fetch is not None:
                self._wait_for(fetch)
                if fetch.error is not None:
                    raise fetch.error
                return self._views.of_packed(ordinal, fetch.packed)
            slot = self._slot_of(tile)
        if engine.primary.packed(slot) is None:
            # Gathered, so that a sum runs over it in the order in which it would come from secondary.
            room = self._room()
            packed = room[: engine.geometry.elems_of(ordinal)]
            engine.primary.read(slot, packed)
            self._spare.append(room)
            return self._views.of_packed(ordinal, packed)
        return self._views.of_slot(ordinal, slot)

    def _slot_of(self, tile: Tile) -> int | None:
        """Where a tile is in primary, once it is; None when another request was to bring it, and has failed."""
        engine = self._engine
        with engine.guard:
            if tile.slot is None and tile.load is not None:
                began = time.perf_counter()
                with watching.event("wait", "a tile on its way", engine.subject, tile.ordinal):
                    while tile.slot is None and tile.load is not None:
                        engine.joined(tile)
                        engine.guard.wait()
                engine.stall_s += time.perf_counter() - began
            if tile.slot is not None:
                engine.use(tile)
                return tile.slot
            own = self._loads.get(tile.ordinal)
            if own is not None and own.error is not None:
                raise own.error
            return None

    def close(self) -> None:
        """Nothing is on its way any more."""
        with self._engine.guard:
            while any(not fetch.is_over for fetch in self._fetches.values()) or any(
                load.tile.load is load for load in self._loads.values()
            ):
                self._engine.guard.wait()
        self._fetches.clear()

    def _start(self, tile: Tile, *, keeps: Sequence[int]) -> bool:
        """See that a tile comes; False when there is nowhere to put it yet."""
        engine = self._engine
        with engine.guard:
            if tile.slot is not None or tile.load is not None or tile.ordinal in self._loads:
                return True  # or it has failed, which is told when it is looked at
            if engine.primary.free > engine.unslotted:
                slot = engine.primary.take(tile.ordinal)
                if slot is not None:
                    self._loads[tile.ordinal] = engine.start_load(tile, slot, commits=True, landed=None)
                    return True
        if self._made >= SCRATCH_TILES and not self._spare and not self._give_up(keeps):
            return False
        fetch = _Fetch(tile, self._room(), engine.geometry.elems_of(tile.ordinal))
        self._fetches[tile.ordinal] = fetch
        engine.lanes.submit(partial(self._perform, fetch), Priority.DEMAND)
        return True

    def _give_up(self, keeps: Sequence[int]) -> bool:
        """Let go of the tile in scratch that was asked for longest ago, but of none that is looked at or expected."""
        for ordinal, fetch in self._fetches.items():
            if ordinal != self._current and ordinal not in keeps and fetch.is_over:
                del self._fetches[ordinal]
                self._spare.append(fetch.room)
                return True
        return False

    def _room(self) -> torch.Tensor:
        """Room for any packed tile."""
        if self._spare:
            return self._spare.pop()
        self._made += 1
        return torch.empty(self._engine.geometry.tile_elems, dtype=self._engine.dtype)

    def _perform(self, fetch: _Fetch) -> None:
        nbytes = 0
        try:
            nbytes = self._engine.fetch_packed(fetch.tile, fetch.packed)
        except BaseException as error:
            fetch.error = error
        with self._engine.guard:
            self._engine.bytes_read += nbytes
            fetch.is_over = True
            self._engine.guard.notify_all()

    def _wait_for(self, fetch: _Fetch) -> None:
        engine = self._engine
        with engine.guard:
            if fetch.is_over:
                return
            began = time.perf_counter()
            with watching.event("wait", "a tile on its way to scratch", engine.subject, fetch.tile.ordinal):
                while not fetch.is_over:
                    engine.guard.wait()
            engine.stall_s += time.perf_counter() - began
