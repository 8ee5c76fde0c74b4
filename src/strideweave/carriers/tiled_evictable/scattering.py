"""Scatter: a compact Tensor put into the selected tiles of a fresh carrier, all of them at once or none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

import torch

from strideweave.carriers.handle import AwaitMove
from strideweave.carriers.tiled_evictable.budget import BudgetExceeded, format_nbytes
from strideweave.carriers.tiled_evictable.engine import Engine, Tile
from strideweave.carriers.tiled_evictable.gradients import Recording, added, record_scatter
from strideweave.carriers.tiled_evictable.projection import Projection, compact_layout
from strideweave.carriers.tiled_evictable.selection import Coordinate, TileSelection
from strideweave.carriers.tiled_evictable.tiles_as_modes import TilesAsModes, in_mode_dims, region_of
from strideweave.io import watching
from strideweave.tensor import Tensor
from strideweave.tensor.copying import values_of

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable


def scatter(
    carrier: TiledEvictable, compact: Tensor, template: Tensor, selection: TileSelection, reduction: str
) -> AwaitMove[Tensor]:
    """See `TiledEvictable.scatter`; the order of the checks is part of the contract."""
    if reduction not in ("replace", "add"):
        raise ValueError(
            f"cannot scatter with reduction {reduction!r}: it is neither 'replace' nor 'add'. These are all there are. "
            "Pass one."
        )
    carrier._require_live("scatter")
    carrier._require_full(template, "scatter")
    carrier._require_selection(selection, "scatter")
    _require_compact(carrier, compact, template, selection)
    selected = carrier._selected(selection)
    _require_capacity(carrier._engine, len(selected))
    is_added = reduction == "add"
    read = [tile for tile, _ in selected] if is_added else []
    with carrier._engine.guard:
        carrier._engine.require_valid(read, "add to")
    plan = carrier._plan(selection.tile_set, "scatter")
    carrier._require_live("scatter")  # a policy may have done anything
    handle: AwaitMove[Tensor] = AwaitMove._pending(f"scatter of {len(selected)} tiles of {carrier._name()}")
    fresh = carrier.allocate_like(carrier.size(), empty=True)
    try:
        target = _Result(
            carrier, fresh, compact, template, selection, record_scatter(compact, template, selection, reduction)
        )
    except BaseException:
        fresh.release()
        raise
    try:
        with carrier._engine.guard:
            carrier._engine.require_unclaimed([tile for tile, _ in selected], "scatter to")
            pin = carrier._pinned(read, plan, "scatter", f"scatter of {len(selected)} tiles")
            request = Projection(
                carrier._engine,
                selected=selected if is_added else (),
                overwritten=() if is_added else selected,
                promoted=carrier._tiles(plan.promote),
                leaving=carrier._tiles(plan.evict),
                pin=pin,
                target=target,
                handle=handle,
            )
            request.start()
    except BaseException:
        target.abandon()
        raise
    request.steps.over(None)
    return handle


def _require_compact(carrier: TiledEvictable, compact: Tensor, template: Tensor, selection: TileSelection) -> None:
    if not isinstance(compact, Tensor):
        raise TypeError(
            f"cannot scatter {type(compact).__name__}: compact must be a Tensor. Pass one; wait() turns a handle into "
            "one."
        )
    source, compute = compact.carrier, type(carrier.primary)
    if source._is_dependent():
        raise TypeError(
            f"cannot scatter a Tensor over {source!r}: compact is ordinary, and that carrier is made of others. "
            "project() it first."
        )
    if type(source) is not compute:
        raise TypeError(
            f"cannot scatter a Tensor over {source!r}: compact must be on exactly a {compute.__name__}, the compute "
            "carrier. move() it there."
        )
    source._require_live("scatter")
    if source.is_owned():
        raise RuntimeError(
            f"cannot scatter a Tensor over {source!r}: it is owned by a larger structure or a pending request. Its "
            "values must not change meanwhile. Wait for the request, or pass a copy."
        )
    if compact.dtype() is not carrier.dtype():
        raise TypeError(
            f"cannot scatter {compact.dtype().name} into tiles of {carrier.dtype().name}: the dtype must match, since "
            "scatter converts nothing. Convert it first."
        )
    shape = compact_layout(template.layout, carrier._geometry.compact(selection.per_axis).shape).shape
    if compact.shape != shape:
        raise ValueError(
            f"cannot scatter {compact.shape} into {selection.compact_grid_shape} tiles of {carrier.tile_shape}: their "
            f"compact shape is {shape}. The shape must match. Reshape it, or select other tiles."
        )


def _require_capacity(engine: Engine, count: int) -> None:
    capacity, nbytes = engine.primary.capacity, engine.tile_nbytes
    if count > capacity:
        raise BudgetExceeded(
            f"cannot scatter {count} tiles of {engine.name}: they need {format_nbytes(count * nbytes)} of primary, and "
            f"the result has {format_nbytes(capacity * nbytes)} for {capacity} tiles. All of them become primary at "
            "once. Select fewer tiles, or raise the budget."
        )


class _Result:
    """The fresh carrier, and how the values of one tile get there. Nobody knows it before `publish`."""

    verb: watching.Kind = "scatter"

    def __init__(
        self,
        carrier: TiledEvictable,
        fresh: TiledEvictable,
        compact: Tensor,
        template: Tensor,
        selection: TileSelection,
        recording: Recording | None,
    ) -> None:
        self._engine = carrier._engine
        self._fresh = fresh
        self._template = template
        self._recording = recording
        self._compact = compact
        self._places = carrier._geometry.compact(selection.per_axis)
        self._values: torch.Tensor | None = None
        self._one_read = threading.Lock()  # guards _values
        self._before = TilesAsModes(carrier._engine, template.offset, template.layout)
        self._after = TilesAsModes(fresh._engine, template.offset, template.layout)
        self._written: list[tuple[Tile, int]] = []  # guarded by the fresh carrier's lock
        self._owner = compact.carrier._claim_ownership()  # last, so that nothing fails with it

    def takes_packed(self, tile: Tile) -> bool:
        """A tile is computed before it has its place."""
        return False

    def run(self, tile: Tile, compact: Coordinate) -> NoReturn:
        """Never asked, since a packed tile is not taken as it is."""
        raise AssertionError("a scatter takes no packed tile")

    def overwrite(self, tile: Tile, compact: Coordinate) -> None:
        """The tile has the compact values, whatever the template has."""
        self._put(tile, self._part(tile, compact))

    def gather_slot(self, tile: Tile, slot: int, compact: Coordinate) -> None:
        """Add the compact values to a primary tile of the template."""
        self._put(tile, added(self._before.of_slot(tile.ordinal, slot), self._part(tile, compact)))

    def gather_packed(self, tile: Tile, packed: torch.Tensor, compact: Coordinate) -> None:
        """Add the compact values to a packed tile of the template."""
        self._put(tile, added(self._before.of_packed(tile.ordinal, packed), self._part(tile, compact)))

    def _part(self, tile: Tile, compact: Coordinate) -> torch.Tensor:
        extents = self._engine.geometry.extents_of(tile.ordinal)
        return region_of(self._whole(), self._places.origin(compact), extents)

    def _whole(self) -> torch.Tensor:
        """The compact values, in memory of the host; read once where no memory shows them."""
        with self._one_read:
            if self._values is None:
                self._values = in_mode_dims(values_of(self._compact).cpu(), self._compact.layout)
            return self._values

    def _put(self, tile: Tile, values: torch.Tensor) -> None:
        engine = self._fresh._engine
        with engine.guard:
            slot = engine.primary.take(tile.ordinal)
            assert slot is not None, "there are as many slots as selected tiles: it was counted"
            self._written.append((engine.tiles[tile.ordinal], slot))
        self._after.put_slot(tile.ordinal, slot, values)

    def publish(self) -> Tensor:
        """The full Tensor, its selected tiles valid and dirty from one moment on."""
        engine = self._fresh._engine
        with engine.guard:
            for written, slot in self._written:
                engine.settle(written, slot)
                written.dirty = True
            self._fresh._version = 1
        result = Tensor(self._fresh, self._template.offset, self._template.layout)
        if self._recording is not None:
            self._recording.attach(result)
        self._compact.carrier._relinquish_ownership(self._owner)
        return result

    def abandon(self) -> None:
        """The fresh carrier ends, and the compact one is nobody's again."""
        self._compact.carrier._relinquish_ownership(self._owner)
        self._fresh.release()
