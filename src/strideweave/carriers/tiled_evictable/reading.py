"""The tiles of a full Tensor, one after the other in the calling thread, wherever its values lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from strideweave.carriers.tiled_evictable.engine import Engine, Pin
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.tiles_as_modes import TilesAsModes, in_mode_dims, region_of
from strideweave.tensor import Tensor
from strideweave.tensor.copying import values_of


class TileReader:
    """Reads a full Tensor tile by tile, in the tiles of a geometry, and changes nothing: no tile moves for it.

    A Tensor over a carrier of the same grid is read as it is tiled, each tile where it lies; an ordinary one by its
    regions; one of another grid from a dense copy.
    """

    def __init__(self, tensor: Tensor, geometry: Geometry, what: str) -> None:
        self._what = what
        self._geometry = geometry
        self._engine = _engine_of(tensor, geometry)
        self._dense: torch.Tensor | None = None
        if self._engine is not None:
            self._views = TilesAsModes(self._engine, tensor.offset, tensor.layout)
        else:
            source = tensor.detach()
            if source.carrier._is_dependent():
                source = source.materialize()
            self._dense = in_mode_dims(values_of(source).cpu(), source.layout)

    def written(self) -> set[int]:
        """The ordinals of the tiles that are not zero by declaration, so that they must be read."""
        engine = self._engine
        if engine is None:
            return set(range(self._geometry.tiles))
        with engine.guard:
            return {tile.ordinal for tile in engine.tiles if not tile.implicit}

    @contextmanager
    def tile(self, ordinal: int) -> Iterator[torch.Tensor]:
        """The values of a tile, in mode dims, which stay until the block ends; to be read only.

        Errors: RuntimeError for an invalid tile, and while somebody else's promotion or eviction covers it.
        """
        engine = self._engine
        if engine is None:
            assert self._dense is not None
            yield region_of(self._dense, self._geometry.origin_of(ordinal), self._geometry.extents_of(ordinal))
            return
        tile = engine.tiles[ordinal]
        with engine.guard:
            engine.require_unclaimed([tile], self._what)
            engine.require_valid([tile], self._what)
            # Pinned: nobody rewrites its stored copy, or takes its slot, while it is looked at outside the lock.
            pin = Pin(engine, self._what, in_thread=True)
            pin.add(tile)
            slot = tile.slot
        try:
            if slot is not None:
                yield self._views.of_slot(ordinal, slot)
            else:
                packed = torch.empty(engine.geometry.elems_of(ordinal), dtype=engine.dtype)
                nbytes = engine.fetch_packed(tile, packed)
                with engine.guard:
                    engine.bytes_read += nbytes
                yield self._views.of_packed(ordinal, packed)
        finally:
            with engine.guard:
                pin.close()


def _engine_of(tensor: Tensor, geometry: Geometry) -> Engine | None:
    """The engine of a tiled carrier with the same grid, where the Tensor keeps to its tiles; None for all else."""
    engine = getattr(tensor.carrier, "_engine", None)
    if not isinstance(engine, Engine):
        return None
    theirs = engine.geometry
    if (theirs.tile_shape, theirs.logical_shape) != (geometry.tile_shape, geometry.logical_shape):
        return None
    engine.geometry.require_compatible(tensor.offset, tensor.layout)
    return engine
