"""`TiledEvictable`: one flat extent cut into tiles, each in memory or on disk on its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NoReturn, SupportsIndex, final

import torch

from strideweave.carriers.carrier import Carrier, Run, Scalar, slot_value
from strideweave.carriers.extension import DependentCarrier
from strideweave.carriers.handle import AwaitMove
from strideweave.carriers.tiled_evictable import construction, durability, forking, transitions
from strideweave.carriers.tiled_evictable.budget import format_nbytes
from strideweave.carriers.tiled_evictable.direct import NAMES as DIRECT_NAMES
from strideweave.carriers.tiled_evictable.engine import Engine, Pin, Tile
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.gradients import as_gradient, record_project, summed
from strideweave.carriers.tiled_evictable.handles import AwaitProjection, AwaitResidency
from strideweave.carriers.tiled_evictable.observe import Statistics, TileState
from strideweave.carriers.tiled_evictable.picture import Look, draw_grid, residency_counts
from strideweave.carriers.tiled_evictable.policies import eviction_order_of
from strideweave.carriers.tiled_evictable.policy import Purpose, ResidencyPolicy
from strideweave.carriers.tiled_evictable.projection import Projection, Target, compact_layout
from strideweave.carriers.tiled_evictable.run_tiers import primary_tier
from strideweave.carriers.tiled_evictable.scattering import scatter
from strideweave.carriers.tiled_evictable.selection import Coordinate, ResidencyPlan, TileSelection, TileSet
from strideweave.carriers.tiled_evictable.streaming import TileStream, Use
from strideweave.carriers.tiled_evictable.tiers import SecondaryTier
from strideweave.dtype import StorageDType
from strideweave.io import default_lanes, watching
from strideweave.layout import Layout
from strideweave.tensor import Tensor


@final
class TiledEvictable(DependentCarrier):
    """A carrier of `grid_shape` tiles of `tile_shape` each; every tile is in primary, in secondary, or in both.

    `primary` and `secondary` say of which kind the tiers are. A full one is a tier as it stands: a full secondary is
    read where it lies (a checkpoint is never copied), a full primary starts with every tile in memory. An empty one is
    allocated as tiles need it. The Tensor over this carrier keeps its shape, Layout and values whatever moves.

    Where the values of `primary` are not in memory (a class with a definition, a device), tiles are moved there and
    back; all works but `borrow` and `stream`, which need memory.

    Shapes: logical extent per axis = grid x tile, or `shape` where that is less: then the last tile along the axis has
    the coordinates that are left. `layout` is the slot Layout of that shape, first mode fastest unless given;
    `Layout.row_major(...)` is PyTorch's order.
    Units: `budget` in bytes (or "4GiB"): what primary tiles may take, those on their way included; None means room for
    every tile.
    Errors: TypeError, ValueError, RuntimeError before anything is taken over.
    Source: seed 000.

    >>> import torch
    >>> from strideweave import CPU, DType, FileBacked, Layout, Tensor, TiledEvictable, TileSelection, TileSet
    >>> experts = torch.arange(24.0).reshape(4, 2, 3)  # (expert, out, in)
    >>> weights = TiledEvictable(
    ...     CPU.wrap(experts.reshape(-1)), FileBacked(dtype=DType.Float32), (4, 1, 1), (1, 2, 3),
    ...     layout=Layout.row_major(4, 2, 3),
    ... )
    >>> w = Tensor(weights, 0, Layout.row_major(4, 2, 3))
    >>> weights.evict(TileSet([(0, 0, 0), (3, 0, 0)]))
    >>> weights.tile_state((3, 0, 0))
    TileState(location='secondary', valid=True, dirty=False)
    >>> picked = weights.project(w, TileSelection([[3, 1], [0], [0]])).wait()
    >>> torch.equal(picked.torch(), experts[[3, 1]])
    True
    >>> weights.release()
    """

    _gradient: weakref.ref[Tensor] | None = None
    """The Tensor that a backward made over this carrier, while nothing else knows it."""

    def __init__(
        self,
        primary: Carrier,
        secondary: Carrier,
        grid_shape: Iterable[int],
        tile_shape: Iterable[int],
        *,
        shape: Iterable[int] | None = None,
        layout: Layout | None = None,
        budget: int | str | None = None,
        residency_policy: ResidencyPolicy | None = None,
    ) -> None:
        construction.require_tiers(primary, secondary)
        geometry = Geometry.make(grid_shape, tile_shape, layout, shape)
        dtype = primary.dtype()
        construction.require_extents(primary, secondary, geometry)
        capacity = construction.capacity_of(budget, primary, geometry)
        construction.require_policy(residency_policy)
        order = eviction_order_of(residency_policy, geometry.grid_shape, capacity)
        super().__init__(dtype=dtype, mutable=primary.is_mutable())
        self._primary = primary
        self._secondary = secondary
        self._geometry = geometry
        self._policy = residency_policy
        secondary_tier = SecondaryTier(geometry, secondary, writable=secondary.is_mutable())
        self._engine = Engine(
            geometry,
            primary_tier(geometry, primary, capacity),
            secondary_tier,
            order,
            default_lanes(),
            dtype.torch_dtype,
            self._name(),
        )
        self._tokens = (primary._claim_ownership(), secondary._claim_ownership())
        self._start(in_primary=bool(primary.size()), secondary=secondary_tier)
        forking.watch(self)
        self._finalize_dependent_capabilities()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        primary: Carrier | None = None,
        *,
        budget: int | str | None = None,
        residency_policy: ResidencyPolicy | None = None,
        mutable: bool = True,
    ) -> TiledEvictable:
        """The carrier over the tiles that an earlier one kept in the file at `path`: those with a value are clean.

        Such a file is made by a carrier whose secondary is an empty `FileBacked(path)`. Grid, tile shape, layout and
        dtype are read from it. `primary` is an empty carrier of that dtype, CPU unless given.

        Units: `budget` in bytes. Errors: FileNotFoundError; ValueError for a file that is no tile store, is damaged, is
        cut or has another version, and for a primary with slots; TypeError for a primary of another dtype.

        >>> import pathlib, tempfile, torch
        >>> from strideweave import CPU, DType, FileBacked, TiledEvictable
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name, "weights.tiles")
        >>> c = TiledEvictable(CPU.wrap(torch.arange(4.0)), FileBacked(path, dtype=DType.Float32), (2,), (2,))
        >>> c.flush()
        >>> c.release()
        >>> again = TiledEvictable.open(path)
        >>> [again[k] for k in range(4)], again.tile_state((0,))
        ([0.0, 1.0, 2.0, 3.0], TileState(location='secondary', valid=True, dirty=False))
        >>> again.release()
        >>> folder.cleanup()
        """
        tier, secondary, shapes = durability.reopen(path, primary, mutable=mutable)
        try:
            carrier = cls(tier, secondary, **shapes, budget=budget, residency_policy=residency_policy)
        except BaseException:
            secondary.release()
            raise
        carrier._mutable = carrier._mutable and mutable
        return carrier

    def _start(self, *, in_primary: bool, secondary: SecondaryTier) -> None:
        engine = self._engine
        with engine.guard:
            for tile in engine.tiles:
                if in_primary:
                    slot = engine.primary.take(tile.ordinal)
                    assert slot is not None
                    engine.settle(tile, slot)
                elif secondary.tile_store is not None and secondary.tile_store.is_zero(tile.ordinal):
                    tile.implicit = True
                else:
                    tile.stored = secondary.holds(tile.ordinal)

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> Carrier:
        """The carrier that says of which kind primary tiles are."""
        return self._primary

    @property
    def secondary(self) -> Carrier:
        """The carrier that says of which kind secondary tiles are."""
        return self._secondary

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """How many tiles there are along each axis."""
        return self._geometry.grid_shape

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """The extent of a whole tile along each axis."""
        return self._geometry.tile_shape

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """Grid times tile, per axis, or the `shape` that was given."""
        return self._geometry.logical_shape

    @property
    def layout(self) -> Layout:
        """The canonical slot Layout of the full logical shape."""
        return self._geometry.layout

    @property
    def residency_policy(self) -> ResidencyPolicy | None:
        """The policy that was given at construction."""
        return self._policy

    @property
    def tile_nbytes(self) -> int:
        """The bytes of one whole tile: the room that every tile has in primary."""
        return self._engine.tile_nbytes

    def size(self) -> int:
        """The number of slots; 0 after release."""
        return 0 if self._released else self._geometry.extent

    def _supports_storage_dtype(self, dtype: StorageDType) -> bool:
        return self._primary.supports_storage_dtype(dtype) and self._secondary.supports_storage_dtype(dtype)

    # -- observation -------------------------------------------------------------------------------------------------

    def tile_state(self, coordinate: Sequence[int]) -> TileState:
        """Where one tile's value is, and whether it is valid and dirty. Errors: as for a TileSet of that tile."""
        wanted = TileSet([coordinate])
        (tile,) = self._tiles(wanted)
        with self._engine.guard:
            return TileState(tile.location, tile.valid, tile.dirty)

    @property
    def primary_tiles(self) -> TileSet:
        """The tiles whose value is in primary."""
        return self._where(lambda tile: tile.slot is not None)

    @property
    def secondary_tiles(self) -> TileSet:
        """The tiles whose value is in secondary only."""
        return self._where(lambda tile: tile.location == "secondary")

    @property
    def valid_tiles(self) -> TileSet:
        """The tiles that have a value."""
        return self._where(lambda tile: tile.valid)

    @property
    def dirty_tiles(self) -> TileSet:
        """The tiles whose only good copy is in primary."""
        return self._where(lambda tile: tile.dirty)

    def statistics(self) -> Statistics:
        """A frozen snapshot of what is resident, what was found, and what was read and written."""
        return self._engine.statistics()

    def _where(self, holds) -> TileSet:  # type: ignore[no-untyped-def]
        with self._engine.guard:
            return TileSet(self._geometry.coordinate(t.ordinal) for t in self._engine.tiles if holds(t))

    # -- residency ---------------------------------------------------------------------------------------------------

    def promote_async(self, tiles: TileSet | TileSelection) -> AwaitResidency:
        """Start to make every tile valid in primary, all or none; returns without waiting.

        Errors: RuntimeError when released, when a pending request covers a tile or a tile is invalid; TypeError,
        ValueError for what is no set of tiles of this grid; BudgetExceeded when they cannot all fit.
        Source: seed 000, "Residency transitions have asynchronous and blocking forms".
        """
        return transitions.promote(self._engine, self._bound(tiles, "promote"))

    def prefetch(self, tiles: TileSet | TileSelection) -> int:
        """Begin to bring tiles that may be wanted soon; how many are on their way because of it. Never waits.

        A guess conflicts with nothing: requests take the tile as it comes, and hurry it when they want it. It runs
        behind all that somebody waits for, takes a free slot or that of a clean tile that nothing needs, and is given
        up for any request that needs its slot, unless it is being read. Tiles that are there, move, or have no stored
        value are passed over. A tile that cannot be read is an error of the request that wants it, not of this.
        `statistics()` tells which share of the guesses was of use.

        Errors: RuntimeError when released; TypeError, ValueError for what is no set of tiles of this grid.

        >>> import torch
        >>> import strideweave as sw
        >>> c = sw.TiledEvictable(sw.CPU(0), sw.CPU.wrap(torch.arange(8.0)), (4,), (2,), budget=16)
        >>> c.prefetch(sw.TileSet([(3,)]))
        1
        >>> with c.borrow(sw.TileSet([(3,)])) as views:
        ...     _ = views
        >>> c.statistics().prefetched_used
        1
        >>> c.release()
        """
        self._require_live("prefetch tiles of")
        wanted = self._bound(tiles, "prefetch")
        with self._engine.guard:
            self._engine.collect_abandoned()
            return sum(self._engine.guess(tile) for tile in wanted)

    def evict_async(self, tiles: TileSet | TileSelection) -> AwaitResidency:
        """Start to make every tile leave primary, all or none; dirty values reach secondary first.

        Errors: as for `promote_async`; RuntimeError also while running work or a borrowed view pins a tile.
        Source: seed 000, "Residency transitions have asynchronous and blocking forms".
        """
        return transitions.evict(self._engine, self._bound(tiles, "evict"))

    def promote(self, tiles: TileSet | TileSelection) -> None:
        """`promote_async(tiles).wait()`."""
        self.promote_async(tiles).wait()

    def evict(self, tiles: TileSet | TileSelection) -> None:
        """`evict_async(tiles).wait()`."""
        self.evict_async(tiles).wait()

    def flush_async(self, tiles: TileSet | TileSelection | None = None) -> AwaitResidency:
        """Start to make tiles (all, unless given) clean and durable where they are; nothing is evicted.

        Values that only primary holds are written to secondary, and what secondary has is brought to the disk when its
        file outlives the process. Tiles are pinned meanwhile. A failure leaves dirty tiles dirty, and in primary.

        Errors: RuntimeError when released, or when a pending eviction covers a tile that must be written; TypeError,
        ValueError for what is no set of tiles of this grid.
        """
        self._require_live("flush")
        wanted = self._engine.tiles if tiles is None else self._bound(tiles, "flush")
        return durability.flush(self._engine, wanted)

    def flush(self, tiles: TileSet | TileSelection | None = None) -> None:
        """`flush_async(tiles).wait()`: then the values outlast a crash, and `TiledEvictable.open` finds them."""
        self.flush_async(tiles).wait()

    # -- use ---------------------------------------------------------------------------------------------------------

    def project(self, tensor: Tensor, selection: TileSelection, destination: Carrier | None = None) -> AwaitProjection:
        """Start to gather the selected tiles, in order, into a compact Tensor; returns without waiting for bytes.

        Missing tiles become primary as far as the budget has room, and pass straight through to the result beyond that.

        Shapes: along each axis the extents of the selected tiles one after the other, dense, the modes ordered as in
        `tensor`.
        Errors: RuntimeError when released, for a pending conflict or an invalid tile; TypeError for another carrier's
        Tensor, for no TileSelection, or a destination of another class or dtype; ValueError for a selection outside the
        grid, a Tensor that is not tile-footprint compatible, or a destination that is too small. A failure that comes
        later is raised by `wait()`, and leaves the destination as it was.
        Source: seed 000, "Project eagerly returns a completion handle for a compact Tensor".
        """
        self._require_live("project")
        self._require_full(tensor, "project")
        self._require_selection(selection, "project")
        places = self._geometry.compact(selection.per_axis)
        layout = compact_layout(tensor.layout, places.shape)
        self._require_destination(destination, layout)
        plan = self._plan(selection.tile_set, "projection")
        selected = self._selected(selection)
        handle = AwaitProjection._pending(f"project {len(selected)} tiles of {self._name()}")
        with self._engine.guard:
            pin = self._pinned([tile for tile, _ in selected], plan, "project", f"projection of {len(selected)} tiles")
            try:
                recording = record_project(tensor, selection, places.shape)
                to = destination or self._primary.allocate_like(0)
                target = Target(self._engine, tensor, to, layout, places, recording)
            except BaseException:
                pin.close()
                raise
            projection = Projection(
                self._engine,
                selected=selected,
                promoted=self._tiles(plan.promote),
                leaving=self._tiles(plan.evict),
                pin=pin,
                target=target,
                handle=handle,
            )
            projection.start()
        projection.steps.over(None)
        return handle

    def scatter(
        self, compact: Tensor, template: Tensor, selection: TileSelection, reduction: str = "replace"
    ) -> AwaitMove[Tensor]:
        """Start to put a compact Tensor into the selected tiles of a fresh carrier; returns without waiting for bytes.

        The result has the shape, Layout and dtype of `template`, and its carrier the grid, the kinds of tiers, the
        budget and the policy of this one. With "replace" its selected tiles hold the values of `compact`, with "add"
        their sum with those of `template`. They are valid and dirty and the version is 1; all other tiles are invalid,
        whatever `template` has there. `compact` and `template` stay as they are; until the end nobody else can write
        or release `compact`.

        Gradients: `compact` gets the selected part of the cotangent. `template` gets the same with "add", and zero with
        "replace". Tiles that were not selected pass none: the result retains no value of `template` there.

        Shapes: `compact` as the projection of `selection`, in any layout.
        Errors: ValueError for another `reduction`, a selection outside the grid, a `template` that is not
        tile-footprint compatible, or another shape; TypeError for no Tensor or TileSelection, another carrier's
        `template`, or a `compact` of another class or dtype; RuntimeError for a released carrier, an owned `compact`, a
        pending conflict, or an invalid tile to "add" to; BudgetExceeded when the result cannot hold the selected tiles
        in primary. A failure that comes later is raised by `wait()`; there is no result then.
        Source: seed 000, "Scatter is the asynchronous projection counterpart".

        >>> import torch
        >>> from strideweave import CPU, DType, FileBacked, Layout, Tensor, TiledEvictable, TileSelection, from_torch
        >>> c = TiledEvictable(CPU.wrap(torch.arange(6.0)), FileBacked(dtype=DType.Float32), (3,), (2,))
        >>> t, picked = Tensor(c, 0, Layout.column_major(6)), TileSelection([[2, 0]])
        >>> result = c.scatter(from_torch(torch.tensor([10.0, 20.0, 30.0, 40.0])), t, picked, "add").wait()
        >>> result.carrier.project(result, picked).wait().torch(), result.carrier.tile_state((1,)).location
        (tensor([14., 25., 30., 41.]), 'invalid')
        """
        return scatter(self, compact, template, selection, reduction)

    @contextmanager
    def borrow(self, tiles: TileSet | TileSelection) -> Iterator[Mapping[Coordinate, torch.Tensor]]:
        """Zero-copy views of tiles, pinned in primary until the block ends; absent tiles are brought first.

        Shapes: the tile's extents each (one dim per leaf where the layout nests). Views are read-only: a write through
        one is noticed when the block ends and raised.
        Errors: as for `promote`; BudgetExceeded when the tiles cannot all be in primary at once; BufferError when
        primary is a carrier whose values are not in memory.

        >>> import torch
        >>> from strideweave import CPU, DType, FileBacked, TiledEvictable, TileSet
        >>> c = TiledEvictable(CPU.wrap(torch.arange(4.0)), FileBacked(dtype=DType.Float32), (2,), (2,))
        >>> with c.borrow(TileSet([(1,)])) as views:
        ...     views[(1,)]
        tensor([2., 3.])
        >>> c.release()
        """
        wanted = self._bound(tiles, "borrow")
        self._require_views("borrow")
        plan = self._plan(_as_set(tiles), "operation")
        engine = self._engine
        with engine.guard:
            self._require_admissible(wanted, plan, "borrow")
            use = Use(engine, "borrow", f"{len(wanted)} tiles")
            try:
                present = [tile for tile in wanted if tile.slot is not None]
                absent = [tile for tile in wanted if tile.slot is None]
                use.want([*wanted, *self._kept(plan)])
            except BaseException:
                use._pin.close()
                raise
            engine.hits += len(present)
            engine.misses += len(absent)
            watching.asked(engine.subject, present, is_hit=True)
            watching.asked(engine.subject, absent, is_hit=False)
        try:
            with closing(use):
                views = {self._geometry.coordinate(tile.ordinal): use.view(tile) for tile in wanted}
                try:
                    yield views
                finally:
                    written = [use.undo_write(tile, view) for tile, view in zip(wanted, views.values(), strict=True)]
                if error := next(filter(None, written), None):
                    raise error
        finally:
            transitions.evict_for_policy(engine, self._tiles(plan.evict))

    def stream(self, tiles: TileSet | TileSelection, *, passing: bool = False) -> TileStream:
        """Each tile once as a zero-copy view, valid until the next: tiles in primary first, the others as they land.

        Any number of tiles goes through any budget of at least one: loads run ahead while slots are free. When they are
        `passing`, as in a scan of nearly everything, those that had to be brought are the first to go again, and only
        a few of them take the places of others: what was there before stays.

        Shapes: the tile's extents each (one dim per leaf where the layout nests). Errors: as for `borrow`.

        >>> import torch
        >>> from strideweave import CPU, DType, FileBacked, TiledEvictable, TileSet
        >>> c = TiledEvictable(CPU.wrap(torch.arange(4.0)), FileBacked(dtype=DType.Float32), (2,), (2,))
        >>> with c.stream(TileSet([(0,), (1,)])) as stream:
        ...     [(coordinate, view.sum().item()) for coordinate, view in stream]
        [((0,), 1.0), ((1,), 5.0)]
        >>> c.release()
        """
        wanted = self._bound(tiles, "stream")
        self._require_views("stream")
        plan = self._plan(_as_set(tiles), "operation")
        with self._engine.guard:
            self._require_admissible(wanted, plan, "stream")
            return TileStream(
                self._engine,
                f"{len(wanted)} tiles",
                wanted,
                kept=self._kept(plan),
                leaving=self._tiles(plan.evict),
                passing=passing,
            )

    def _materialize(self, tensor: Tensor) -> Tensor:
        every = TileSelection([range(n) for n in self.grid_shape])
        copy = self.project(tensor.detach(), every).wait()
        return copy if copy.carrier._is_in_memory() else copy.materialize()

    def _selected(self, selection: TileSelection) -> list[tuple[Tile, Coordinate]]:
        """Every selected tile, with its place in the compact grid."""
        return [(self._engine.tiles[self._geometry.ordinal(c)], place) for c, place in selection._placed]

    def _pinned(self, tiles: Sequence[Tile], plan: ResidencyPlan, what: str, label: str) -> Pin:
        """All that a request needs, pinned: `tiles`, which it reads, and what the plan keeps (guarded).

        Errors: RuntimeError for what conflicts or has no value; BudgetExceeded when the plan promotes too much. Nothing
        is pinned then.
        """
        self._require_admissible(tiles, plan, what)
        pin = Pin(self._engine, label)
        promoted = self._tiles(plan.promote)
        try:
            # Pinned before room is counted: what the request needs must not make room for what the policy wants.
            for tile in (*tiles, *promoted, *(t for t in self._tiles(plan.retain) if t.slot is not None)):
                pin.add(tile)
            coming = sum(tile.slot is None and tile.load is None for tile in promoted)
            self._engine.require_room(coming, f"promote {coming} tiles for a {label.split()[0]}")
        except BaseException:
            pin.close()
            raise
        return pin

    def _require_admissible(self, tiles: Sequence[Tile], plan: ResidencyPlan, what: str) -> None:
        """Refuse what conflicts or has no value, before anything moves (guarded)."""
        promoted = self._tiles(plan.promote)
        self._engine.require_unclaimed((*tiles, *promoted, *self._tiles(plan.retain)), what)
        self._engine.require_valid((*tiles, *promoted), what)

    def _kept(self, plan: ResidencyPlan) -> list[Tile]:
        """The tiles that a policy wants in primary until the request ends: promoted, or retained and there."""
        return [*self._tiles(plan.promote), *(t for t in self._tiles(plan.retain) if t.slot is not None)]

    def _plan(self, required: TileSet, purpose: Purpose) -> ResidencyPlan:
        if self._policy is None:
            return ResidencyPlan()
        plan = self._policy.plan(required, purpose)
        if not isinstance(plan, ResidencyPlan):
            raise TypeError(
                f"cannot follow {type(self._policy).__name__}.plan: it returned {type(plan).__name__}. A policy "
                "returns a ResidencyPlan. Return ResidencyPlan() to ask for nothing."
            )
        for tiles in (plan.promote, plan.retain, plan.evict):
            tiles._validate_grid_shape(self.grid_shape)
        return plan

    # -- values ------------------------------------------------------------------------------------------------------

    def get_value(self, index: int) -> Scalar:
        """The value of one slot, wherever its tile is. Errors: RuntimeError for an invalid tile."""
        self._require_live("read")
        ordinal, place = self._geometry.locate(self._slot(index))
        engine = self._engine
        tile = engine.tiles[ordinal]
        with engine.guard:
            engine.require_valid([tile], "read")
            if tile.slot is not None and engine.primary.is_in_memory:
                return engine.primary.get(tile.slot, place)
            # Pinned, so that nobody rewrites its stored copy, or takes its slot, while it is read outside the lock.
            pin = Pin(engine, "read of an element", in_thread=True)
            pin.add(tile)
            slot = tile.slot
        try:
            if slot is not None:
                return engine.primary.get(slot, place)
            with engine.bounce(ordinal) as scratch:
                nbytes = engine.fetch_packed(tile, scratch)
                value: Scalar = scratch[place].item()
        finally:
            with engine.guard:
                pin.close()
        with engine.guard:
            engine.bytes_read += nbytes
        return value

    def set_value(self, index: int, value: Scalar) -> None:
        """Write one slot: its tile becomes primary and dirty, and the version advances once.

        Errors: RuntimeError for an invalid or pinned tile, and while a pending request covers it.
        """
        self._require_writable("write")
        ordinal, place = self._geometry.locate(self._slot(index))
        engine = self._engine
        tile = engine.tiles[ordinal]
        number = slot_value(value, self._dtype)
        engine.secondary.require_own_process()
        coordinate = self._geometry.coordinate(ordinal)
        with engine.guard:
            engine.await_write_back([tile])
            engine.require_unclaimed([tile], "write")
            engine.require_valid([tile], "write")
            self._require_unpinned(tile)
        use = Use(engine, "write", f"tile {coordinate}")
        with closing(use), engine.guard:
            use.want([tile])
            use.hold(tile)
            assert tile.slot is not None
            # A flush, or a projection, may have begun to read it meanwhile; none begins under the lock.
            self._require_unpinned(tile, own=1)
            engine.primary.set(tile.slot, place, number)
            tile.dirty = True
            tile.implicit = False
            self._version += 1

    def _require_unpinned(self, tile: Tile, *, own: int = 0) -> None:
        if tile.pins > own:
            raise RuntimeError(
                f"cannot write tile {self._geometry.coordinate(tile.ordinal)} of {self._name()}: it is pinned by "
                "running work or a borrowed view. Wait for that work, or leave the borrow block."
            )

    def _read_runs(self, runs: Sequence[Run]) -> NoReturn:
        raise NotImplementedError(
            f"cannot read runs of {self._name()}: a tiled carrier has tiles, not runs. `project`, `stream` and "
            "`borrow` read tiles."
        )

    def _write_runs(self, runs: Sequence[Run]) -> NoReturn:
        raise NotImplementedError(
            f"cannot write runs of {self._name()}: a tiled carrier has tiles, not runs. Assign elements, which makes "
            "their tile dirty."
        )

    def _allocate(self, size: int) -> NoReturn:
        raise NotImplementedError(
            f"cannot allocate {self._name()}: its extent is fixed by its grid at construction. Construct another one."
        )

    def _flat(self) -> NoReturn:
        raise BufferError(
            f"cannot see {self._name()} as memory: its tiles are in {self.statistics().resident_tiles} slots of "
            "memory and on disk. A tiled tensor is never materialised silently. Use project() for the tiles you "
            "need, or materialize() for a full copy."
        )

    def _summed(self, a: Tensor, b: Tensor) -> Tensor:
        return summed(a, b)

    def _as_gradient(self, cotangent: Tensor) -> Tensor:
        return as_gradient(cotangent)

    def _takes_beside(self, other: Carrier) -> bool:
        return type(other) is type(self._primary)

    def unsupported_plan_reason(self, plan: Any) -> str | None:
        """Why a tiled operand cannot run the plan; None when it can. Errors: TypeError for no plan."""
        reason = super().unsupported_plan_reason(plan)
        if reason is None:
            return None
        if plan.operation in DIRECT_NAMES and (theirs := self._primary.unsupported_plan_reason(plan)):
            return f"its tiles are computed on {type(self._primary).__name__}, which does not: {theirs}"
        return (
            f"{reason}. Tiled operands run {', '.join(DIRECT_NAMES)}; project() the tiles that you need, or "
            "materialize() all, for every other operation"
        )

    def _allows_views(self) -> bool:
        return False

    # -- making others -----------------------------------------------------------------------------------------------

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> TiledEvictable:
        """A fresh carrier of the same tiles: every one implicit zero, or invalid when `empty`.

        Errors: TypeError, ValueError unless `size` is exactly the extent.
        """
        self._require_extent(size)
        fresh = TiledEvictable(
            self._primary.allocate_like(0, dtype=dtype, mutable=mutable),
            self._secondary.allocate_like(0, dtype=dtype),
            self.grid_shape,
            self.tile_shape,
            shape=self.logical_shape,
            layout=self.layout,
            budget=None if self._primary.size() else self._engine.primary.capacity * self.tile_nbytes,
            residency_policy=self._policy,
        )
        with fresh._engine.guard:
            for tile in fresh._engine.tiles:
                tile.implicit = not empty
        return fresh

    def new_like(
        self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType | None = None
    ) -> TiledEvictable:
        """A fresh carrier of the same tiles, all of them primary, that holds one value per slot; None becomes zero."""
        full = self._primary.new_like(values, mutable=mutable, dtype=dtype)
        self._require_extent(full.size())
        return TiledEvictable(
            full,
            self._secondary.allocate_like(0, dtype=dtype),
            self.grid_shape,
            self.tile_shape,
            shape=self.logical_shape,
            layout=self.layout,
            residency_policy=self._policy,
        )

    def _require_extent(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"cannot make {self._name()} of size {size!r}: a size must be an integer. Pass an int.")
        if size != self._geometry.extent:
            raise ValueError(
                f"cannot make {self._name()} of {size} slots: its grid has {self._geometry.extent}. A tiled carrier "
                "has the full extent. Pass exactly that many."
            )

    # -- the end -----------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Let go of all tiles in both tiers and of the carriers that were given; again is harmless.

        Errors: RuntimeError while a request is pending or a borrowed view is out; nothing is released then.
        Source: seed 000, "Tiled release ends all owned residency".
        """
        if self._released:
            return
        engine = self._engine
        with engine.guard:
            engine.collect_abandoned()
            # Tiles that a closed stream had asked for belong to no request: nobody else could wait for them.
            # So do evictions of the policy that are all the work there is.
            while engine.give_up_guess():
                pass
            while (engine.loads or engine.work) and engine.work == len(engine.policy_claims) and not engine.pins:
                engine.guard.wait()
            if engine.work or engine.pins:
                holders = ", ".join(sorted(pin.label for pin in engine.pins)) or "a request"
                raise RuntimeError(
                    f"cannot release {self._name()}: work is pending ({holders}). A carrier is released after its "
                    "work. Call wait() on the handles, leave borrow blocks and close streams first."
                )
            engine.closed = True
        super().release()

    def _free(self) -> None:
        engine = self._engine
        with engine.guard:
            for tile in engine.tiles:
                if watching.watchers and tile.slot is not None:
                    watching.changed(engine.subject, tile.ordinal, is_resident=False)
                tile.slot, tile.stored, tile.implicit, tile.dirty = None, False, False, False
            engine.primary.close()
            engine.secondary.close()
        for carrier, token in zip((self._primary, self._secondary), self._tokens, strict=True):
            carrier._relinquish_ownership(token)
            carrier.release()

    def __reduce_ex__(self, protocol: SupportsIndex) -> durability.Reduced:
        return durability.reduce_tiled(self)

    # -- guards ------------------------------------------------------------------------------------------------------

    def _bound(self, tiles: TileSet | TileSelection, what: str) -> list[Tile]:
        self._require_live(what)
        if not isinstance(tiles, TileSet | TileSelection):
            raise TypeError(
                f"cannot {what} {tiles!r}: tiles must be a TileSet or a TileSelection. Pass TileSet([(...), ...])."
            )
        tiles._validate_grid_shape(self.grid_shape)
        return self._tiles(_as_set(tiles))

    def _require_views(self, what: str) -> None:
        if not self._engine.primary.is_in_memory:
            raise BufferError(
                f"cannot {what} tiles of {self._name()}: primary is {self._primary!r}, whose values are not in "
                "addressable memory. A view needs memory. Use project(), which copies."
            )

    def _tiles(self, tiles: TileSet) -> list[Tile]:
        tiles._validate_grid_shape(self.grid_shape)
        return [self._engine.tiles[self._geometry.ordinal(c)] for c in tiles.coordinates]

    def _require_full(self, tensor: Tensor, what: str) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"cannot {what} {type(tensor).__name__}: it takes a Tensor. Pass the full Tensor.")
        if tensor.carrier is not self:
            raise TypeError(
                f"cannot {what} a Tensor over {tensor.carrier!r}: it must be backed by this very carrier. "
                "Call the method of the Tensor's own carrier."
            )
        self._geometry.require_compatible(tensor.offset, tensor.layout)

    def _require_selection(self, selection: TileSelection, what: str) -> None:
        if not isinstance(selection, TileSelection):
            raise TypeError(
                f"cannot {what} {selection!r}: selection must be a TileSelection. Pass TileSelection([...])."
            )
        selection._validate_grid_shape(self.grid_shape)

    def _require_destination(self, destination: Carrier | None, layout: Layout) -> None:
        if destination is None:
            return
        if not isinstance(destination, Carrier):
            raise TypeError(
                f"cannot project into {type(destination).__name__}: destination must be a Carrier. Pass one, or "
                "leave it out."
            )
        if type(destination) is not type(self._primary):
            raise TypeError(
                f"cannot project into {destination!r}: destination must be exactly a {type(self._primary).__name__}, "
                "the compute carrier. Pass one, or leave it out."
            )
        destination._require_writable("project into")
        if destination.dtype() is not self._dtype:
            raise TypeError(
                f"cannot project {self._dtype.name} into {destination.dtype().name}: the dtype must match. Pass a "
                f"{self._dtype.name} carrier."
            )
        if destination.size() not in (0,) and destination.size() < layout.size:
            raise ValueError(
                f"cannot project {layout.size} values into {destination!r}: it is too small. Pass one of at least "
                "that size, or an empty one."
            )

    def _name(self) -> str:
        return f"TiledEvictable{self._geometry.logical_shape}"

    def _looks(self) -> list[Look]:
        with self._engine.guard:
            return [Look(tile.location, tile.dirty) for tile in self._engine.tiles]

    def _html_of_values(self) -> str | None:
        return None if self._released else draw_grid(self.grid_shape, self._looks())

    def __repr__(self) -> str:
        if self._released:
            return f"<{self._name()}: released>"
        looks = self._looks()
        size, budget = self.tile_nbytes, self._engine.primary.capacity * self.tile_nbytes
        resident = sum(look.location == "primary" for look in looks)
        return (
            f"<{self._name()} of {self._dtype.name}: {resident} of {len(looks)} tiles ({format_nbytes(size)} each) in "
            f"{type(self._primary).__name__}, over {type(self._secondary).__name__} ({residency_counts(looks)}); "
            f"budget {format_nbytes(budget)}>"
        )


def _as_set(tiles: TileSet | TileSelection) -> TileSet:
    return tiles.tile_set if isinstance(tiles, TileSelection) else tiles
