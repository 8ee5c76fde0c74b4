"""A tile store against a dictionary: any sequence of writes, failures, syncs, losses of power and reopenings."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strideweave import DType
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.tile_format import NO_SLOT, PAGE_NBYTES, StoreHeader
from strideweave.carriers.tiled_evictable.tile_store import TileStore
from strideweave.io import StorageError, WritableFile, positioned, writable_file

TILES = 3
HEADER = StoreHeader(DType.Int8, Geometry.make((TILES,), (40,), shape=(105,)))


class Disk:
    """Stands between the store and the system: fails by ordinal, and remembers what a power cut would keep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fails_in: int | None = None
        """How many more calls go well."""
        self.keeps = 0
        """The bytes that a failing write still moves."""
        self.durable = b""
        self.since: list[tuple[int, bytes]] = []
        """The writes since the last good sync."""
        self._pwritev, self._fsync = positioned._pwritev, writable_file._fsync

    def _counts_down(self) -> bool:
        if self.fails_in is None:
            return False
        self.fails_in -= 1
        if self.fails_in >= 0:
            return False
        self.fails_in = None
        return True

    def pwritev(self, descriptor: int, views: list[memoryview], offset: int) -> int:
        data = b"".join(views)
        if self._counts_down():
            torn = data[: self.keeps]  # all of it, with bad luck
            if torn:
                self._pwritev(descriptor, [memoryview(torn)], offset)
                self.since.append((offset, torn))
            raise OSError(errno.ENOSPC, "No space left on device")
        self.since.append((offset, data))
        return self._pwritev(descriptor, views, offset)

    def fsync(self, descriptor: int) -> None:
        if self._counts_down():
            raise OSError(errno.EIO, "Input/output error")
        self.everything_is_durable()

    def cut_power(self, survives: list[float]) -> None:
        """What was synced is there, and of each write since then all, a part or nothing, in whatever order."""
        data = bytearray(self.durable)
        for (offset, written), share in zip(self.since, survives + [0.0] * len(self.since), strict=False):
            stays = written[: round(share * len(written))]
            data.extend(bytes(max(0, offset + len(stays) - len(data))))
            data[offset : offset + len(stays)] = stays
        self.path.write_bytes(bytes(data))
        self.everything_is_durable()

    def everything_is_durable(self) -> None:
        self.durable = self.path.read_bytes()
        self.since = []


def content(store: TileStore) -> dict[int, bytes]:
    out = {}
    for ordinal in range(TILES):
        if store.holds(ordinal):
            tile = bytearray(HEADER.data_nbytes(ordinal))
            store.read(ordinal, memoryview(tile))
            out[ordinal] = bytes(tile)
    return out


def last(ordinal: int) -> bytes:
    """What a tile is in the end."""
    return bytes([200 + ordinal]) * HEADER.data_nbytes(ordinal)


def require_no_leak(store: TileStore) -> None:
    """A slot is out exactly when some record that counts, or may count, names it; and none is named twice."""
    named: list[int] = []
    for v in store._versions:
        records = {r for r in (v.current, v.settled, v.settling) if r is not None and not r.is_zero}
        named += [r.slot for r in records] + [slot for _, slot in v.spoiled if slot != NO_SLOT]
    assert sorted(named) == sorted(set(named))
    assert sorted([*named, *store._free]) == list(range(store._slots))


step = st.one_of(
    st.tuples(st.just("write"), st.integers(0, TILES - 1)),
    st.tuples(st.just("zero"), st.integers(0, TILES - 1)),
    st.tuples(st.just("sync")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("fail"), st.integers(0, 4), st.sampled_from([0, 1, 16, 31, 40])),
    st.tuples(st.just("power"), st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=12)),
)


@given(st.lists(step, max_size=25))
@example([("sync",), ("fail", 0, 40), ("zero", 0), ("sync",), ("reopen",)])
def test_store_under_any_history_keeps_every_tile_whole(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "tiles")
        disk = Disk(path)
        patch.setattr(positioned, "_pwritev", disk.pwritev)
        patch.setattr(writable_file, "_fsync", disk.fsync)
        file = WritableFile(path)
        store = TileStore(file, HEADER)
        model: dict[int, bytes] = {}
        synced: dict[int, bytes] = {}
        is_synced = False
        since: dict[int, list[bytes]] = {k: [] for k in range(TILES)}  # what each tile was after the last good sync
        torn: dict[int, list[bytes]] = {k: [] for k in range(TILES)}  # what was not written, or so it was told
        for number, (name, *rest) in enumerate(steps):
            failed: StorageError | None = None
            try:
                if name in ("write", "zero"):
                    (ordinal,) = rest
                    value = bytes([number + 1] if name == "write" else [0]) * HEADER.data_nbytes(ordinal)
                    since[ordinal].append(value)
                    torn[ordinal].append(value)
                    if name == "write":
                        store.write(ordinal, memoryview(value))
                    else:
                        store.write_zero(ordinal)
                    model[ordinal], torn[ordinal] = value, []
                elif name == "sync":
                    store.sync()
                    synced, is_synced = dict(model), True
                    # A record whose last write failed may be whole all the same, until the tile is written again.
                    since = {k: list(torn[k]) for k in range(TILES)}
                elif name == "fail":
                    disk.fails_in, disk.keeps = rest
                elif store.is_made:
                    store.close()
                    file.close()
                    disk.fails_in = None
                    if name == "power":
                        if not is_synced:  # else the header may be lost with all the rest
                            disk.everything_is_durable()
                        disk.cut_power(*rest)
                    file = WritableFile(path)
                    store = TileStore.open(file)
                    found = content(store)
                    if name == "power":
                        for k in range(TILES):
                            assert found.get(k) in [synced.get(k), *since[k]]
                        model = found
                    # A record whose last write failed may be whole all the same: then it is the new value.
                    for k in range(TILES):
                        assert found.get(k) == model.get(k) or found.get(k) in since[k]
                    model = found
            except StorageError as e:
                failed = e
            assert failed is None or failed.path == str(path)
            disk_fails, disk.fails_in = disk.fails_in, None
            assert content(store) == model
            require_no_leak(store)
            disk.fails_in = disk_fails
        disk.fails_in = None
        for k in range(TILES):
            store.write(k, memoryview(last(k)))
        store.sync()
        require_no_leak(store)
        assert store.slots_in_use == TILES
        assert path.stat().st_size <= HEADER.slot_offset(0) + (2 * TILES + 1) * PAGE_NBYTES
        store.close()
        assert content(TileStore.open(WritableFile(path))) == {k: last(k) for k in range(TILES)}
