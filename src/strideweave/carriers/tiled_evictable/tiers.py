"""Storage where tiles rest. Where they are used: `memory_tiers.py`, `run_tiers.py`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import torch

from strideweave.carriers.carrier import Carrier, Run, byte_view
from strideweave.carriers.checkpoint_file import CheckpointFile
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.tile_format import StoreHeader
from strideweave.carriers.tiled_evictable.tile_store import TileStore
from strideweave.carriers.whole import allocate_all


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

    @property
    def joins_reads(self) -> bool:
        """Whether one read of several tiles can be less work than one of each."""
        return isinstance(self._carrier, FileBacked | CheckpointFile)

    def read(self, ordinal: int, out: torch.Tensor) -> int:
        """Fill a packed tile; the bytes read."""
        return self.read_all([ordinal], [out])[0]

    def read_all(self, ordinals: Sequence[int], outs: Sequence[torch.Tensor]) -> list[int]:
        """Fill packed tiles; the bytes read for each. Those that touch in storage are read at once."""
        if self.tile_store is not None:
            return self.tile_store.read_all(ordinals, [byte_view(out) for out in outs])
        with self._lock:
            store, written = self._store, {k for k in ordinals if k in self._stored}
        own, overlaid = list[Run](), list[Run]()
        for ordinal, out in zip(ordinals, outs, strict=True):
            if ordinal in written:
                overlaid.append((self._geometry.packed_start(ordinal), out))
            else:
                own += runs_of(self._geometry, ordinal, out)
        if own:
            _whole(self._carrier, "read", self._carrier._read_runs(own), own)
        if overlaid and store is not None:
            _whole(store, "read", store._read_runs(overlaid), overlaid)
        return [out.nbytes for out in outs]

    def write(self, ordinal: int, source: torch.Tensor) -> int:
        """Keep a packed tile; the bytes written. Errors: RuntimeError in a forked child, and for a read-only store."""
        self.require_own_process()
        if self.tile_store is not None:
            self._require_writable()
            return self.tile_store.write(ordinal, byte_view(source))
        if self._writes_in_place:
            runs = runs_of(self._geometry, ordinal, source)
            return _whole(self._carrier, "write", self._carrier._write_runs(runs), runs)
        store = self._open_store()
        run = (self._geometry.packed_start(ordinal), source)
        written = _whole(store, "write", store._write_runs([run]), [run])
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
                    allocate_all(self._carrier, self._geometry.extent)
                    self._store = self._carrier
            return self._store


def runs_of(geometry: Geometry, ordinal: int, packed: torch.Tensor) -> list[Run]:
    """The runs of a packed tile, each with the slot of a full carrier where it lies."""
    footprint = geometry.footprint(ordinal)
    if footprint.is_contiguous:
        return [(geometry.base(ordinal), packed)]
    return list(zip(geometry.run_starts(ordinal), packed.view(-1, footprint.run_elems).unbind(), strict=True))


def _whole(carrier: Carrier, what: str, moved: int, runs: Sequence[Run]) -> int:
    """The bytes that were moved. Errors: OSError when these are not all: the rest of the tile is anything."""
    wanted_nbytes = sum(values.nbytes for _, values in runs)
    if moved != wanted_nbytes:
        raise OSError(
            f"cannot {what} a tile of {carrier!r}: {moved} of {wanted_nbytes} bytes moved. A tile moves whole. Look at "
            "the storage, and try again."
        )
    return moved


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
