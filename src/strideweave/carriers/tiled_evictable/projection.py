"""Projection: the selected tiles gathered, in order, into one compact Tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import mul
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.handle import AwaitResult
from strideweave.carriers.tiled_evictable import transitions
from strideweave.carriers.tiled_evictable.engine import Engine, Pin, Tile
from strideweave.carriers.tiled_evictable.selection import Coordinate
from strideweave.carriers.tiled_evictable.steps import Steps
from strideweave.carriers.whole import allocate_all, read_all, write_all
from strideweave.io import Priority, watching
from strideweave.layout import Layout, Shape, Stride
from strideweave.tensor import Tensor

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.boxes import TileBox
    from strideweave.carriers.tiled_evictable.geometry import Compact
    from strideweave.carriers.tiled_evictable.gradients import Recording

_GATHER_NBYTES = 8 * 2**20  # tiles that are there already are copied in jobs of about this size
_GATHER_TILES = 16


def compact_layout(source: Layout, shape: Sequence[int]) -> Layout:
    """The dense layout of a compact result, its modes in the order of the source's strides."""
    strides, step = [0] * len(shape), 1
    for k in sorted(range(len(shape)), key=lambda k: _first_stride(source[k])):
        strides[k] = step
        step *= shape[k]
    return Layout(Shape(*shape), Stride(*strides))


def _first_stride(mode: Layout) -> int:
    return min((d for n, d in mode.leaves() if n > 1), default=0)


class Taker(Protocol):
    """Where the tiles of a request go, each with its place in the compact grid."""

    verb: watching.Kind
    """What taking a tile is."""

    def takes_packed(self, tile: Tile) -> bool:
        """Whether a packed tile can be read straight into its place."""
        ...

    def run(self, tile: Tile, compact: Coordinate) -> torch.Tensor:
        """A tile's place as one run, where `takes_packed`."""
        ...

    def gather_slot(self, tile: Tile, slot: int, compact: Coordinate) -> None:
        """Take a primary tile (on a lane)."""
        ...

    def gather_packed(self, tile: Tile, packed: torch.Tensor, compact: Coordinate) -> None:
        """Take a packed tile (on a lane)."""
        ...

    def overwrite(self, tile: Tile, compact: Coordinate) -> None:
        """Take what needs no value of the tile (on a lane)."""
        ...

    def publish(self) -> Tensor:
        """The result, once every tile is taken."""
        ...

    def abandon(self) -> None:
        """There is no result, and everything is as it was before the request."""
        ...


class Target:
    """The compact destination, and how the values of one tile find their place in it."""

    verb: watching.Kind = "gather"

    def __init__(
        self,
        engine: Engine,
        source: Tensor,
        destination: Carrier,
        layout: Layout,
        places: Compact,
        recording: Recording | None,
    ) -> None:
        self._engine = engine
        self._source = source
        self._destination = destination
        self._layout = layout
        self._places = places
        self._recording = recording
        self._owner = destination._claim_ownership()
        self._was_empty = destination.size() == 0
        try:
            if self._was_empty:
                allocate_all(destination, layout.size)
        except BaseException:
            destination._relinquish_ownership(self._owner)
            raise
        # Values that a caller's carrier holds are replaced all at once, when every tile is there; and what no memory
        # shows is written then.
        self._is_staged = not (self._was_empty and destination._is_in_memory())
        self._flat = torch.empty(layout.size, dtype=engine.dtype) if self._is_staged else destination._flat()
        self._boxes = engine.geometry.boxes(source.layout)
        self._axis_strides = [mode.leaves()[0][1] for mode in layout]
        self._strides = [() if box is None else box.strides_in(self._axis_strides) for box in self._boxes]

    def publish(self) -> Tensor:
        """The compact Tensor, its values in place."""
        if self._is_staged:
            self._write_staged()
        if not self._was_empty:
            self._destination._version += 1
        result = Tensor(self._destination, 0, self._layout)
        if self._recording is not None:
            self._recording.attach(result)
        self._destination._relinquish_ownership(self._owner)
        return result

    def _write_staged(self) -> None:
        destination, staged = self._destination, self._flat
        if destination._is_in_memory():
            _copy_into(destination._flat()[: staged.numel()], staged)
        elif self._was_empty:
            write_all(destination, 0, staged)
        else:
            before = torch.empty_like(staged)
            read_all(destination, 0, before)
            try:
                write_all(destination, 0, staged)
            except BaseException as error:
                try:
                    write_all(destination, 0, before)
                except BaseException as e:
                    error.add_note(f"writing back what the destination held failed too: {e!r}")
                raise

    def abandon(self) -> None:
        """The destination is what it was before."""
        if self._was_empty:
            self._destination._free()
        self._destination._relinquish_ownership(self._owner)

    def takes_packed(self, tile: Tile) -> bool:
        """Whether a packed tile can be read straight into its place."""
        kind = self._engine.geometry.kind_of(tile.ordinal)
        box = self._boxes[kind]
        return box is not None and all(
            n == 1 or a == b for n, a, b in zip(box.extents, self._strides[kind], box.packed, strict=True)
        )

    def run(self, tile: Tile, compact: Coordinate) -> torch.Tensor:
        """A tile's place as one run, where `takes_packed`."""
        corner = self._corner(compact)
        return self._flat[corner : corner + self._engine.geometry.elems_of(tile.ordinal)]

    def gather_slot(self, tile: Tile, slot: int, compact: Coordinate) -> None:
        """Copy a primary tile to its place."""
        primary = self._engine.primary
        if (box := self._box_of(tile)) is not None and primary.is_in_memory:
            _copy_into(self._place(tile, box, compact), primary.view(slot, box))
        elif (packed := primary.packed(slot)) is not None:
            self.gather_packed(tile, packed, compact)
        else:
            with self._engine.bounce(tile.ordinal) as scratch:
                primary.read(slot, scratch)
                self.gather_packed(tile, scratch, compact)

    def gather_packed(self, tile: Tile, packed: torch.Tensor, compact: Coordinate) -> None:
        """Copy a packed tile to its place."""
        if (box := self._box_of(tile)) is not None:
            view = packed.as_strided(box.extents, box.packed, packed.storage_offset())
            _copy_into(self._place(tile, box, compact), view)
            return
        geometry = self._engine.geometry
        order = torch.from_numpy(geometry.order(tile.ordinal, self._source.offset, self._source.layout))
        # `order` runs with the first axis fastest, torch's reshape with the last: so the axes are reversed.
        backward = geometry.extents_of(tile.ordinal)[::-1]
        place = self._flat.as_strided(backward, self._axis_strides[::-1], self._corner(compact))
        _copy_into(place, packed[order].reshape(backward))

    def overwrite(self, tile: Tile, compact: Coordinate) -> NoReturn:
        """Never asked: a projection needs every value."""
        raise AssertionError("a projection overwrites no tile")

    def _corner(self, compact: Coordinate) -> int:
        return sum(map(mul, self._places.origin(compact), self._axis_strides))

    def _box_of(self, tile: Tile) -> TileBox | None:
        return self._boxes[self._engine.geometry.kind_of(tile.ordinal)]

    def _place(self, tile: Tile, box: TileBox, compact: Coordinate) -> torch.Tensor:
        strides = self._strides[self._engine.geometry.kind_of(tile.ordinal)]
        return self._flat.as_strided(box.extents, strides, self._corner(compact))


def _copy_into(place: torch.Tensor, values: torch.Tensor) -> None:
    """Copy, whatever mode the memory was made under: a lane does not inherit the caller's inference mode."""
    with torch.inference_mode(place.is_inference()):
        place.copy_(values)


class Projection:
    """One running projection or scatter: a step per selected tile, done as soon as its value is there."""

    def __init__(
        self,
        engine: Engine,
        *,
        selected: Sequence[tuple[Tile, Coordinate]],
        promoted: Sequence[Tile],
        leaving: Sequence[Tile],
        pin: Pin,
        target: Taker,
        handle: AwaitResult[Tensor],
        overwritten: Sequence[tuple[Tile, Coordinate]] = (),
    ) -> None:
        self._engine = engine
        self._selected = selected
        self._overwritten = overwritten
        self._promoted = promoted
        self._leaving = leaving
        self._pin = pin
        self._target = target
        self._handle = handle
        self.steps = Steps(engine, self._end)

    def start(self) -> None:
        """Send every step on its way (guarded)."""
        engine = self._engine
        present: list[tuple[Tile, int, Coordinate]] = []
        with engine.together():
            # What the policy promotes gets its slots first: selected tiles can pass through without one.
            for tile in self._promoted:
                if tile.slot is None:
                    self.steps.add()
                    if tile.load is not None:
                        engine.joined(tile).landed.append(self.steps.over)
                    else:
                        engine.start_load(tile, engine.reserve(tile), commits=True, landed=self.steps.over)
            has_room = True
            for tile, compact in self._selected:
                self.steps.add()
                engine.use(tile)
                if tile.slot is not None:
                    engine.hits += 1
                    watching.asked(engine.subject, (tile,), is_hit=True)
                    present.append((tile, tile.slot, compact))
                    continue
                engine.misses += 1
                watching.asked(engine.subject, (tile,), is_hit=False)
                landed = partial(self._gather_landed, tile, compact)
                if tile.load is not None:
                    engine.joined(tile).landed.append(landed)
                # No tile is let go while this holds the lock: once there is no slot, there is none for the others.
                elif has_room and (slot := engine.reserve(tile)) is not None:
                    engine.start_load(tile, slot, commits=True, landed=landed)
                else:
                    has_room = False
                    engine.lanes.submit(partial(self._pass_through, tile, compact), Priority.DEMAND)
        batch = max(1, min(_GATHER_TILES, _GATHER_NBYTES // engine.tile_nbytes))
        for k in range(0, len(present), batch):
            engine.lanes.submit(partial(self._gather_present, present[k : k + batch]), Priority.DEMAND)
        for k in range(0, len(self._overwritten), batch):
            part = self._overwritten[k : k + batch]
            for _ in part:
                self.steps.add()
            engine.lanes.submit(partial(self._overwrite, part), Priority.DEMAND)

    def _gather_present(self, batch: Sequence[tuple[Tile, int, Coordinate]]) -> None:
        for tile, slot, compact in batch:
            self.steps.run(partial(self._gather_slot, tile, slot, compact))

    def _gather_slot(self, tile: Tile, slot: int, compact: Coordinate) -> None:
        with self._taking(tile):
            self._target.gather_slot(tile, slot, compact)

    def _taking(self, tile: Tile) -> watching.Event | watching.Nothing:
        return watching.event(self._target.verb, "", self._engine.subject, tile.ordinal)

    def _overwrite(self, batch: Sequence[tuple[Tile, Coordinate]]) -> None:
        for tile, compact in batch:
            self.steps.run(partial(self._overwrite_one, tile, compact))

    def _overwrite_one(self, tile: Tile, compact: Coordinate) -> None:
        with self._taking(tile):
            self._target.overwrite(tile, compact)

    def _gather_landed(self, tile: Tile, compact: Coordinate, error: BaseException | None) -> None:
        slot = tile.slot
        if error is not None or slot is None:
            self.steps.over(error or RuntimeError(f"a tile of {self._engine.name} landed and is gone"))
            return
        self.steps.run(partial(self._gather_slot, tile, slot, compact))

    def _pass_through(self, tile: Tile, compact: Coordinate) -> None:
        """Bring a tile that primary has no room for to its place, without keeping it."""
        self.steps.run(partial(self._read_through, tile, compact))

    def _read_through(self, tile: Tile, compact: Coordinate) -> None:
        engine = self._engine
        if self._target.takes_packed(tile):
            nbytes = engine.fetch_packed(tile, self._target.run(tile, compact))
        else:
            with engine.bounce(tile.ordinal) as scratch:
                nbytes = engine.fetch_packed(tile, scratch)
                with self._taking(tile):
                    self._target.gather_packed(tile, scratch, compact)
        with engine.guard:
            engine.bytes_read += nbytes

    def _end(self, error: BaseException | None) -> None:
        with self._engine.guard:
            self._pin.close()
        transitions.evict_for_policy(self._engine, self._leaving, partial(self._publish, error))

    def _publish(self, error: BaseException | None) -> None:
        result: Tensor | None = None
        if error is None:
            try:
                result = self._target.publish()
            except BaseException as e:
                error = e
        if error is not None:
            try:
                self._target.abandon()
            except BaseException as e:
                error.add_note(f"giving its memory back failed too: {e!r}")
        with self._engine.guard:
            self.steps.done()
        self._handle._finish(result, error)
