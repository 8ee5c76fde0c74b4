"""The two places of a tile: slots of memory where it is used, and storage where it rests."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

import torch

from strideweave.carriers.carrier import Carrier, Run, Scalar, byte_view
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.tiled_evictable.geometry import Geometry, TileBox
from strideweave.carriers.tiled_evictable.tile_format import StoreHeader
from strideweave.carriers.tiled_evictable.tile_store import TileStore
from strideweave.io import SlabPool


class PrimaryTier(Protocol):
    """Slots of one tile each. `take` and `give` are called under the carrier's lock."""

    capacity: int
    is_in_memory: bool
    """Whether tiles can be seen where they are: only then `view` works. `run_tiers.py` has those that move them."""

    @property
    def free(self) -> int:
        """How many slots hold nothing."""
        ...

    def ordinal_of(self, slot: int) -> int:
        """The tile that a taken slot is for."""
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

    def read(self, slot: int, out: torch.Tensor) -> None:
        """Fill a packed tile from a slot (outside the lock)."""
        ...

    def write(self, slot: int, source: torch.Tensor) -> None:
        """A slot holds a packed tile (outside the lock)."""
        ...

    def get(self, slot: int, place: int) -> Scalar:
        """One value of the tile in a slot, by its place in the packed one."""
        ...

    def set(self, slot: int, place: int, value: Scalar) -> None:
        """One value of the tile in a slot is another one."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...

    def enter_child(self) -> bool:
        """In a forked child: whether the slots are empty now, since what was in them is the parent's."""
        ...


class _Memory(ABC):
    """What can be seen can be copied, and no child shares it."""

    is_in_memory = True
    _geometry: Geometry

    @abstractmethod
    def ordinal_of(self, slot: int) -> int:
        """The tile that a taken slot is for."""

    @abstractmethod
    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the box."""

    def read(self, slot: int, out: torch.Tensor) -> None:
        """Fill a packed tile from a slot."""
        box = self._box(slot)
        out.as_strided(box.extents, box.packed, out.storage_offset()).copy_(self.view(slot, box))

    def write(self, slot: int, source: torch.Tensor) -> None:
        """A slot holds a packed tile."""
        box = self._box(slot)
        self.view(slot, box).copy_(source.as_strided(box.extents, box.packed, source.storage_offset()))

    def get(self, slot: int, place: int) -> Scalar:
        """One value of the tile in a slot, by its place in the packed one."""
        value: Scalar = self._element(slot, place).item()
        return value

    def set(self, slot: int, place: int, value: Scalar) -> None:
        """One value of the tile in a slot is another one."""
        self._element(slot, place).fill_(value)

    def enter_child(self) -> bool:
        """A child has memory of its own."""
        return False

    def _element(self, slot: int, place: int) -> torch.Tensor:
        box = self._box(slot)
        index = tuple(place // step % n if n > 1 else 0 for n, step in zip(box.extents, box.packed, strict=True))
        return self.view(slot, box)[index]

    def _box(self, slot: int) -> TileBox:
        return self._geometry.own_box(self.ordinal_of(slot))


class SlabTier(_Memory):
    """Tiles packed into equal slabs of one mapping: what stays resident is what the budget says, page for page."""

    def __init__(self, geometry: Geometry, dtype: torch.dtype, capacity: int) -> None:
        self.capacity = capacity
        self._geometry = geometry
        self._ordinals = [0] * capacity
        self._pool = SlabPool(geometry.tile_elems * dtype.itemsize, capacity)
        self._step = self._pool.stride_nbytes // dtype.itemsize
        self._flat = torch.frombuffer(self._pool.buffer, dtype=dtype)

    @property
    def free(self) -> int:
        """How many slots hold nothing."""
        return self._pool.free

    def ordinal_of(self, slot: int) -> int:
        """The tile that it was taken for."""
        return self._ordinals[slot]

    def take(self, ordinal: int) -> int | None:
        """Any free slot."""
        slot = self._pool.take()
        if slot is not None:
            self._ordinals[slot] = ordinal
        return slot

    def give(self, slot: int) -> None:
        """Back to the free ones."""
        self._pool.give(slot)

    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the box."""
        return self._flat.as_strided(box.extents, box.packed, slot * self._step)

    def packed(self, slot: int) -> torch.Tensor:
        """The tile in a slot as one run."""
        start = slot * self._step
        return self._flat[start : start + self._geometry.elems_of(self._ordinals[slot])]

    def close(self) -> None:
        """Let go of the memory; it is unmapped when the last view is gone."""
        self._flat = torch.empty(0)
        self._pool.close()


class InPlaceTier(_Memory):
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

    def ordinal_of(self, slot: int) -> int:
        """The tile of that number."""
        return slot

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
        footprint = self._geometry.footprint(slot)
        if not footprint.is_contiguous:
            return None
        base = self._geometry.base(slot)
        return self._flat[base : base + footprint.elems]

    def close(self) -> None:
        """Let go of the memory."""
        self._flat = torch.empty(0)


class SecondaryTier:
    """Storage where tiles rest: a full carrier read where it lies, and a store of packed tiles for what is written.

    An empty FileBacked at a path becomes a tile store (`tile_store.py`), whose tiles survive a crash and the process.
    A full mutable carrier is written in place. An immutable one (a checkpoint) never is: its changed tiles go to an
    overlay of its `allocate_like` class, made when the first one is written.
    """

    def __init__(self, geometry: Geometry, carrier: Carrier, *, writable: bool) -> None:
        self._geometry = geometry
        self._carrier = carrier
        self.holds_all = carrier.size() == geometry.extent
        """Whether every tile had a value there from the start."""
        self._writable = writable
        self._writes_in_place = self.holds_all and writable
        self.tile_store = store_at_path(geometry, carrier)
        """The tile store, when there is one."""
        self._is_forked = False
        self._store: Carrier | None = None
        self._stored: set[int] = set()
        self._lock = threading.Lock()  # guards _store and _stored

    @property
    def has_overlay(self) -> bool:
        """Whether some tile was written to storage that goes with this carrier."""
        with self._lock:
            return self._store is not None and (self._store is not self._carrier or is_anonymous(self._carrier))

    def holds(self, ordinal: int) -> bool:
        """Whether the tile has a value there at the start."""
        return self.holds_all or (self.tile_store is not None and self.tile_store.holds(ordinal))

    def read(self, ordinal: int, out: torch.Tensor) -> int:
        """Fill a packed tile; the bytes read."""
        if self.tile_store is not None:
            return self.tile_store.read(ordinal, byte_view(out))
        with self._lock:
            store = self._store if ordinal in self._stored else None
        if store is not None:
            return store._read_runs([(self._geometry.packed_start(ordinal), out)])
        return self._carrier._read_runs(runs_of(self._geometry, ordinal, out))

    def write(self, ordinal: int, source: torch.Tensor) -> int:
        """Keep a packed tile; the bytes written. Errors: RuntimeError in a forked child, and for a read-only store."""
        self.require_own_process()
        if self.tile_store is not None:
            self._require_writable()
            return self.tile_store.write(ordinal, byte_view(source))
        if self._writes_in_place:
            return self._carrier._write_runs(runs_of(self._geometry, ordinal, source))
        written = self._open_store()._write_runs([(self._geometry.packed_start(ordinal), source)])
        with self._lock:
            self._stored.add(ordinal)
        return written

    def sync(self, zeros: Iterable[int] = ()) -> None:
        """What was written outlasts a power cut, where it outlasts the process; so do tiles that are zero by name."""
        self.require_own_process()
        if self.tile_store is not None:
            if self._writable:
                for ordinal in zeros:
                    if not self.tile_store.is_zero(ordinal):
                        self.tile_store.write_zero(ordinal)
                self.tile_store.sync()
        elif self._writes_in_place and isinstance(self._carrier, FileBacked) and not is_anonymous(self._carrier):
            self._carrier._file.sync()

    def close(self) -> None:
        """Let go of the overlay, or of the lock on the store."""
        if self.tile_store is not None:
            self.tile_store.close()
        if self._store is not None and self._store is not self._carrier:
            self._store.release()

    def enter_child(self) -> None:
        """In a forked child: nothing is written any more to what the parent uses."""
        self._lock = threading.Lock()
        self._is_forked = True
        if self.tile_store is not None:
            self.tile_store.enter_child()

    def require_own_process(self) -> None:
        """Nothing, unless this is a forked child. Errors: RuntimeError there."""
        if self._is_forked:
            raise RuntimeError(
                f"cannot write tiles to {self._carrier!r} in a child after fork: the parent goes on with the same "
                "storage. A forked child only reads tiles. Make the change in the parent, or pickle the carrier "
                "and open it in a process of its own."
            )

    def _require_writable(self) -> None:
        if not self._writable:
            raise RuntimeError(
                f"cannot write tiles to {self._carrier!r}: it is not mutable. An immutable store is only read. Open "
                "it with mutable=True."
            )

    def _open_store(self) -> Carrier:
        with self._lock:
            if self._store is None:
                if self.holds_all:
                    self._store = self._carrier.allocate_like(self._geometry.extent, empty=True)
                else:
                    self._carrier._allocate(self._geometry.extent)
                    self._store = self._carrier
            return self._store


def runs_of(geometry: Geometry, ordinal: int, packed: torch.Tensor) -> list[Run]:
    """The runs of a packed tile, each with the slot of a full carrier where it lies."""
    footprint = geometry.footprint(ordinal)
    if footprint.is_contiguous:
        return [(geometry.base(ordinal), packed)]
    return list(zip(geometry.run_starts(ordinal), packed.view(-1, footprint.run_elems).unbind(), strict=True))


def is_anonymous(carrier: Carrier) -> bool:
    """Whether it is a FileBacked whose file goes with it."""
    return isinstance(carrier, FileBacked) and carrier._file.is_anonymous


def store_at_path(geometry: Geometry, carrier: Carrier) -> TileStore | None:
    """The tile store that an empty FileBacked at a path is, found there or still to be made; None for other carriers.

    Errors: ValueError for a file that holds something else, a store of other tiles, or an offset.
    """
    if not isinstance(carrier, FileBacked) or is_anonymous(carrier) or carrier.size():
        return None
    if carrier.offset_nbytes:
        raise ValueError(
            f"cannot keep tiles in {carrier!r} from byte {carrier.offset_nbytes} on: a tile store is a file of its "
            "own. It begins at byte 0. Leave the offset out."
        )
    header = StoreHeader(carrier.dtype(), geometry)
    if not carrier._file.size_nbytes:
        return TileStore(carrier._file, header)
    store = TileStore.open(carrier._file)
    if store.header != header:
        there = store.header.geometry
        raise ValueError(
            f"cannot keep {carrier.dtype().name} tiles of grid {geometry.grid_shape}, tile {geometry.tile_shape}, "
            f"shape {geometry.logical_shape} and {geometry.layout!r} in {carrier.path!r}: it holds "
            f"{store.header.dtype.name} tiles of grid {there.grid_shape}, tile {there.tile_shape}, "
            f"shape {there.logical_shape} and {there.layout!r}. A store holds one kind of tiles. Use "
            "TiledEvictable.open, or name another file."
        )
    return store
