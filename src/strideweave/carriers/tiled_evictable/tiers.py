"""The two places of a tile: slots of memory where it is used, and storage where it rests."""

from __future__ import annotations

import threading
from typing import Protocol

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.tiled_evictable.geometry import Geometry, TileBox
from strideweave.io import SlabPool


class PrimaryTier(Protocol):
    """Memory in slots of one tile each. `take` and `give` are called under the carrier's lock."""

    capacity: int

    @property
    def free(self) -> int:
        """How many slots hold nothing."""
        ...

    def take(self, ordinal: int) -> int | None:
        """A slot for a tile, or None when all are taken."""
        ...

    def give(self, slot: int) -> None:
        """Back to the free ones."""
        ...

    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the box."""
        ...

    def packed(self, slot: int) -> torch.Tensor | None:
        """The tile in a slot as one run; None when it does not lie in one."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...


class SlabTier:
    """Tiles packed into equal slabs of one mapping: what stays resident is what the budget says, page for page."""

    def __init__(self, geometry: Geometry, dtype: torch.dtype, capacity: int) -> None:
        self.capacity = capacity
        self._elems = geometry.tile_elems
        self._pool = SlabPool(geometry.tile_elems * dtype.itemsize, capacity)
        self._step = self._pool.stride_nbytes // dtype.itemsize
        self._flat = torch.frombuffer(self._pool.buffer, dtype=dtype)

    @property
    def free(self) -> int:
        """How many slots hold nothing."""
        return self._pool.free

    def take(self, ordinal: int) -> int | None:
        """Any free slot."""
        return self._pool.take()

    def give(self, slot: int) -> None:
        """Back to the free ones."""
        self._pool.give(slot)

    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the box."""
        return self._flat.as_strided(box.extents, box.packed, slot * self._step)

    def packed(self, slot: int) -> torch.Tensor:
        """The tile in a slot as one run."""
        start = slot * self._step
        return self._flat[start : start + self._elems]

    def close(self) -> None:
        """Let go of the memory; it is unmapped when the last view is gone."""
        self._flat = torch.empty(0)
        self._pool.close()


class InPlaceTier:
    """Tiles that stay where they lie in a full carrier: its slot number is the tile's number."""

    def __init__(self, geometry: Geometry, carrier: Carrier) -> None:
        self.capacity = geometry.tiles
        self._geometry = geometry
        self._flat = carrier._flat()
        self._origin = int(self._flat.storage_offset())
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """How many tiles hold nothing."""
        return self.capacity - len(self._taken)

    def take(self, ordinal: int) -> int | None:
        """The tile's own place."""
        self._taken.add(ordinal)
        return ordinal

    def give(self, slot: int) -> None:
        """The place holds nothing now."""
        self._taken.remove(slot)

    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile where it lies, one dim per leaf of the box."""
        return self._flat.as_strided(box.extents, box.slots, self._origin + self._geometry.base(slot))

    def packed(self, slot: int) -> torch.Tensor | None:
        """The tile as one run, when it is contiguous."""
        if not self._geometry.is_contiguous:
            return None
        base = self._geometry.base(slot)
        return self._flat[base : base + self._geometry.tile_elems]

    def close(self) -> None:
        """Let go of the memory."""
        self._flat = torch.empty(0)


class SecondaryTier:
    """Storage where tiles rest: a full carrier read where it lies, and a store of packed tiles for what is written.

    A full mutable carrier is written in place. An immutable one (a checkpoint) never is: its changed tiles go to an
    overlay of its `allocate_like` class, made when the first one is written.
    """

    def __init__(self, geometry: Geometry, carrier: Carrier, *, writable: bool) -> None:
        self._geometry = geometry
        self._carrier = carrier
        self.holds_all = carrier.size() == geometry.extent
        """Whether every tile had a value there from the start."""
        self._writes_in_place = self.holds_all and writable
        self._store: Carrier | None = None
        self._stored: set[int] = set()
        self._lock = threading.Lock()  # guards _store and _stored

    def read(self, ordinal: int, out: torch.Tensor) -> int:
        """Fill a packed tile; the bytes read."""
        with self._lock:
            store = self._store if ordinal in self._stored else None
        if store is not None:
            return store._read_runs([(ordinal * self._geometry.tile_elems, out)])
        return self._carrier._read_runs(self._runs(ordinal, out))

    def write(self, ordinal: int, source: torch.Tensor) -> int:
        """Keep a packed tile; the bytes written."""
        if self._writes_in_place:
            return self._carrier._write_runs(self._runs(ordinal, source))
        written = self._open_store()._write_runs([(ordinal * self._geometry.tile_elems, source)])
        with self._lock:
            self._stored.add(ordinal)
        return written

    def close(self) -> None:
        """Let go of the overlay."""
        if self._store is not None and self._store is not self._carrier:
            self._store.release()

    def _open_store(self) -> Carrier:
        with self._lock:
            if self._store is None:
                if self.holds_all:
                    self._store = self._carrier.allocate_like(self._geometry.extent, empty=True)
                else:
                    self._carrier._allocate(self._geometry.extent)
                    self._store = self._carrier
            return self._store

    def _runs(self, ordinal: int, packed: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        geometry = self._geometry
        if geometry.is_contiguous:
            return [(geometry.base(ordinal), packed)]
        return list(zip(geometry.run_starts(ordinal), packed.view(-1, geometry.run_elems).unbind(), strict=True))
