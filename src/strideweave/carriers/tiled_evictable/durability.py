"""Tiles that outlast the process: writing them back without letting them go, finding them again, pickling them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.checkpoint_file import CheckpointFile
from strideweave.carriers.cpu import CPU
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.tiled_evictable.engine import Engine, Pin, Tile
from strideweave.carriers.tiled_evictable.handles import AwaitResidency
from strideweave.carriers.tiled_evictable.steps import Steps
from strideweave.carriers.tiled_evictable.tiers import is_anonymous
from strideweave.carriers.tiled_evictable.tile_store import TileStore
from strideweave.io import ChangedFileError, FileIdentity, Priority, WritableFile

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable

Found: TypeAlias = "tuple[Carrier, FileBacked, dict[str, Any]]"
Reduced: TypeAlias = "tuple[Callable[..., TiledEvictable], tuple[Any, ...]]"


def flush(engine: Engine, tiles: Sequence[Tile]) -> AwaitResidency:
    """Start to write back every tile that has no good copy in secondary, and to make all of that durable.

    Tiles stay where they are, pinned while they are written; all become clean, or none does.
    """
    with engine.guard:
        engine.collect_abandoned()
        writes = [tile for tile in tiles if tile.slot is not None and not tile.has_backing]
        engine.await_write_back(writes)
        writes = [tile for tile in writes if tile.slot is not None and not tile.has_backing]
        engine.require_unclaimed(writes, "flush")
        zeros = [tile for tile in tiles if tile.implicit and not tile.stored and not tile.dirty]
        handle = AwaitResidency._pending(f"flush {len(writes)} tiles of {engine.name}")
        flushing = _Flush(engine, handle, writes, zeros)
        for tile in writes:
            flushing.write(tile)
    flushing.steps.over(None)
    return handle


class _Flush:
    """The writes of one flush, and then the step that makes them last."""

    def __init__(self, engine: Engine, handle: AwaitResidency, writes: list[Tile], zeros: list[Tile]) -> None:
        self._engine = engine
        self._handle = handle
        self._writes = writes
        self._zeros = zeros
        self._pin = Pin(engine, f"flush of {len(writes)} tiles")
        for tile in (*writes, *zeros):
            self._pin.add(tile)
        self.steps = Steps(engine, self._written)

    def write(self, tile: Tile) -> None:
        """Write one tile back (guarded)."""
        self.steps.add()
        self._engine.lanes.submit(lambda: self.steps.run(lambda: self._engine.write_back(tile)), Priority.WRITE_BACK)

    def _written(self, error: BaseException | None) -> None:
        if error is not None:
            self._commit(error)
            return
        self._engine.lanes.submit(self._sync, Priority.WRITE_BACK)

    def _sync(self) -> None:
        error: BaseException | None = None
        try:
            self._engine.secondary.sync([tile.ordinal for tile in self._zeros])
        except BaseException as e:
            error = e
        self._commit(error)

    def _commit(self, error: BaseException | None) -> None:
        engine = self._engine
        with engine.guard:
            if error is None:
                for tile in self._writes:
                    engine.stored(tile)
            self._pin.close()
            self.steps.done()
        self._handle._finish(None, error)


def reopen(path: str | os.PathLike[str], primary: Carrier | None, *, mutable: bool) -> Found:
    """The tiers of the tile store at a path, and the rest of what a TiledEvictable over it is made with.

    Errors: FileNotFoundError; ValueError for what is no tile store, or is damaged, and for a primary with slots.
    """
    where = os.fspath(path)
    if not Path(where).is_file():
        raise FileNotFoundError(
            f"cannot open {where!r} as a tile store: there is no such file. A tile store is the file of an empty "
            "FileBacked that was given as secondary. Check the path."
        )
    if primary is not None and isinstance(primary, Carrier) and primary.size():
        raise ValueError(
            f"cannot open {where!r} with primary {primary!r}: it has {primary.size()} slots. The tiles come from the "
            "store, so primary must be empty. Pass CPU(0, dtype=...), or leave it out."
        )
    with WritableFile(where) as file:
        header = TileStore.open_header(file)
    geometry = header.geometry
    secondary = FileBacked.open(where, dtype=header.dtype, size=0, mutable=mutable)
    options = {
        "grid_shape": geometry.grid_shape,
        "tile_shape": geometry.tile_shape,
        "shape": geometry.logical_shape,
        "layout": geometry.layout,
    }
    return primary or CPU(0, dtype=header.dtype, mutable=mutable), secondary, options


def reduce_tiled(carrier: TiledEvictable) -> Reduced:
    """How pickle makes a tiled carrier again: its file opened once more, every tile clean.

    A tile store is opened by path and identity. A full FileBacked at a path and a CheckpointFile are pickled as they
    are. Nothing that is only in memory travels.

    Errors: TypeError for tiers that have no pickled form; RuntimeError for tiles whose value is in memory only, and for
    a released carrier.
    """
    carrier._require_live("pickle")
    secondary, tier = carrier.secondary, carrier._engine.secondary
    if not isinstance(secondary, FileBacked | CheckpointFile) or is_anonymous(secondary) or tier.has_overlay:
        raise TypeError(
            f"cannot pickle {carrier!r}: TiledEvictable has a pickled form only when all its tiles rest in a "
            "FileBacked at a path or in a CheckpointFile. Tiles elsewhere go with the process. Call "
            "materialize() on the tensor and pickle the result."
        )
    store = tier.tile_store
    engine = carrier._engine
    with engine.guard:
        kept = [
            t for t in engine.tiles if t.implicit and not t.dirty and (store is None or not store.is_zero(t.ordinal))
        ]
        unwritten = [t for t in engine.tiles if t.slot is not None and not t.has_backing]
    if unwritten or kept or (store is not None and not store.is_made):
        raise RuntimeError(
            f"cannot pickle {carrier!r}: {len(unwritten) + len(kept)} tiles have values that are in no file. A pickle "
            "names the file, and takes no dirty tile along. Call flush() first."
        )
    primary = carrier.primary.allocate_like(0, mutable=carrier.primary.is_mutable() or carrier._mutable)
    budget = None if carrier.primary.size() else engine.primary.capacity * engine.tile_nbytes
    facts: dict[str, Any] = {"budget": budget, "residency_policy": carrier.residency_policy}
    if store is not None:
        return _open_again, (store.path, FileIdentity.of(store.path), primary, carrier._mutable, facts)
    facts |= {
        "grid_shape": carrier.grid_shape,
        "tile_shape": carrier.tile_shape,
        "shape": carrier.logical_shape,
        "layout": carrier.layout,
    }
    return _compose_again, (primary, secondary, facts)


def _open_again(
    path: str, identity: FileIdentity, primary: Carrier, mutable: bool, facts: dict[str, Any]
) -> TiledEvictable:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable  # it imports this module

    found = FileIdentity.of(path)
    # Whoever may write the store may have written it since; whose records it then has is for the store to say.
    is_same = (found.device, found.inode) == (identity.device, identity.inode) if mutable else found == identity
    if not is_same:
        raise ChangedFileError(
            f"cannot unpickle a TiledEvictable over {path!r}: the file was {identity}, it is {found}. It must be the "
            "file that was pickled, and unchanged if the carrier is immutable. Put the old file back, or use "
            "TiledEvictable.open.",
            path=path,
        )
    return TiledEvictable.open(path, primary, mutable=mutable, **facts)


def _compose_again(primary: Carrier, secondary: Carrier, facts: dict[str, Any]) -> TiledEvictable:
    from strideweave.carriers.tiled_evictable.carrier import TiledEvictable  # it imports this module

    return TiledEvictable(primary, secondary, **facts)
