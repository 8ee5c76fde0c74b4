"""The file of a tile store: its layout in bytes, one writer, readers beside it, and every way it can be damaged."""

from __future__ import annotations

import errno
import os
import signal
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from strideweave import DType, Layout, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.tile_format import (
    MARK_NBYTES,
    PAGE_NBYTES,
    RECORD_NBYTES,
    Mark,
    Record,
    StoreHeader,
)
from strideweave.carriers.tiled_evictable.tile_store import TileStore
from strideweave.io import ChangedFileError, StorageError, WritableFile, positioned, writable_file
from strideweave.layout import Shape, Stride

HEADER = StoreHeader(DType.Int16, Geometry.make((2, 2), (3, 5)))
ONE, TWO, THREE = (bytes([k]) * 30 for k in (1, 2, 3))


def tile_of(store: TileStore, ordinal: int) -> bytes:
    out = bytearray(store.header.tile_nbytes)
    store.read(ordinal, memoryview(out))
    return bytes(out)


def put(store: TileStore, ordinal: int, value: bytes) -> None:
    assert store.write(ordinal, memoryview(value)) == 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with tiles 0 and 3, flushed, and tile 0 written once more."""
    where = tmp_path / "weights.tiles"
    store = TileStore(WritableFile(where), HEADER)
    put(store, 0, ONE)
    put(store, 3, THREE)
    store.sync()
    put(store, 0, TWO)
    store.close()
    return where


def test_store_reopened_holds_what_was_written(path: Path) -> None:
    store = TileStore.open(WritableFile(path))
    assert store.header == HEADER
    assert [store.holds(k) for k in range(4)] == [True, False, False, True]
    assert (tile_of(store, 0), tile_of(store, 3)) == (TWO, THREE)


@pytest.mark.parametrize(
    ("dtype", "geometry"),
    [
        (DType.Bool, Geometry.make((3,), (1,))),
        (DType.BFloat16, Geometry.make((2, 3), (4, 5), Layout.row_major(8, 15))),
        (DType.E4M3, Geometry.make((3, 2), (4, 2), Layout(Shape((4, 3), 4), Stride((1, 16), 4)))),
        (DType.Float64, Geometry.make((1,) * 12, (2,) * 12)),
        (DType.Int8, Geometry.make((1,) * 400, (1,) * 400)),
    ],
)
def test_header_read_back_is_the_header(dtype: object, geometry: Geometry) -> None:
    header = StoreHeader(dtype, geometry)  # type: ignore[arg-type]
    data = header.encode()
    assert len(data) == header.nbytes
    assert header.nbytes % PAGE_NBYTES == header.slot_offset(1) % PAGE_NBYTES == 0
    nbytes = header.slot_offset(0)
    assert StoreHeader.decode(lambda offset, n: data[offset : offset + n], nbytes, "f") == header


def test_places_in_the_file_never_overlap() -> None:
    taken = [(0, HEADER.nbytes), *((HEADER.mark_offset(c), MARK_NBYTES) for c in (0, 1))]
    taken += [(HEADER.record_offset(k, p), RECORD_NBYTES) for k in range(4) for p in range(4)]
    taken += [(HEADER.slot_offset(s), HEADER.tile_nbytes) for s in range(9)]
    taken.sort()
    assert all(a + n <= b for (a, n), (b, _) in pairwise(taken))
    assert HEADER.mark_offset(1) - HEADER.mark_offset(0) >= 512, "one sector never holds both"


@pytest.mark.parametrize("length", range(RECORD_NBYTES))
def test_record_written_in_part_is_none(length: int) -> None:
    whole = Record(2, 7, 2**40 + 1, 9, 0xDEADBEEF, 0).encode()
    assert Record.decode_row(whole + bytes(96), 2) == [Record(2, 7, 2**40 + 1, 9, 0xDEADBEEF, 0)]
    assert Record.decode_row(whole[:length] + bytes(128 - length), 2) == []
    assert Mark.decode(Mark(3, 4, 5).encode()[: min(length, MARK_NBYTES - 1)].ljust(MARK_NBYTES, b"\0")) is None


def test_ragged_header_is_found_again_under_a_version_of_its_own() -> None:
    ragged = StoreHeader(DType.Int16, Geometry.make((2, 2), (3, 5), shape=(5, 7)))
    data = ragged.encode()
    found = StoreHeader.decode(lambda offset, nbytes: data[offset : offset + nbytes], 2**20, "x")
    assert found == ragged
    assert found != HEADER
    assert found.geometry.logical_shape == (5, 7)
    assert [found.data_nbytes(k) for k in range(4)] == [30, 20, 12, 8]
    assert (found.tile_nbytes, found.slot_offset(1) - found.slot_offset(0)) == (30, PAGE_NBYTES)
    assert [struct.unpack_from("<I", header.encode(), 8)[0] for header in (HEADER, ragged)] == [1, 2]


def test_ragged_tile_is_stored_in_its_own_length(tmp_path: Path) -> None:
    where = tmp_path / "weights.tiles"
    store = TileStore(WritableFile(where), StoreHeader(DType.Int8, Geometry.make((2,), (5,), shape=(8,))))
    store.write(1, memoryview(b"end"))
    with pytest.raises(AssertionError, match="written whole"):
        store.write(1, memoryview(b"ended"))
    store.sync()
    store.close()
    again, out = TileStore.open(WritableFile(where)), bytearray(3)
    assert (again.read(1, memoryview(out)), bytes(out), again.holds(0)) == (3, b"end", False)


def test_record_of_another_tile_is_none() -> None:
    assert Record.decode_row(Record(2, 7, 1, 1, 0, 0).encode() + bytes(96), 3) == []


# -- damage -----------------------------------------------------------------------------------------------------------


def patched(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        f.write(data)


def reversioned(version: int) -> bytes:
    data = bytearray(HEADER.encode())
    magic, _, nbytes, text_nbytes, _ = struct.unpack_from("<8sIIII", data)
    text = bytes(data[24 : 24 + text_nbytes])
    checksum = zlib.crc32(struct.pack("<8sIIII", magic, version, nbytes, text_nbytes, 0) + text)
    return struct.pack("<8sIIII", magic, version, nbytes, text_nbytes, checksum)


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (0, b"\x93NUMPY", r"at byte 0 it begins with b'.x93NUMPYS.x00'.*begins with the magic b'SWTILES"),
        (0, reversioned(3), "at byte 8 its version is 3. This program reads version 1 and 2"),
        (12, b"\x01", r"at byte 12 the header has 4097 bytes with \d+ of text, and the file \d+"),
        (30, b"?", "at byte 20 the header's checksum is 0x.* and its bytes have 0x.*damaged"),
    ],
)
def test_open_of_a_damaged_header_is_refused(path: Path, offset: int, data: bytes, words: str) -> None:
    patched(path, offset, data)
    with pytest.raises(ValueError, match=f"cannot open '{path}' as a tile store: {words}"):
        TiledEvictable.open(path)


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "at byte 0 it has 0 bytes of the 24"),
        (23, "at byte 0 it has 23 bytes of the 24"),
        (24, "at byte 12 the header has 4096 bytes"),
        (4096, "at byte 4096 the file ends, and its 4 tiles have records up to byte 12288"),
        (12288, "the file ends at byte 12288, before tile [03] does.*records from byte 8192.*cut"),
    ],
)
def test_open_of_a_cut_file_is_refused(path: Path, nbytes: int, words: str) -> None:
    os.truncate(path, nbytes)
    with pytest.raises(ValueError, match=words):
        TiledEvictable.open(path)


def test_open_without_a_flushed_record_is_refused(path: Path) -> None:
    """What was flushed cannot be gone by a crash, so it is damage, and no tile silently becomes invalid."""
    patched(path, HEADER.record_offset(3, 0), bytes(4 * RECORD_NBYTES))
    with pytest.raises(ValueError, match=r"1 tiles with digest 0x.*mark says 2 tiles.*damaged or cut"):
        TiledEvictable.open(path)


def test_open_after_data_that_never_reached_the_disk_finds_the_flushed_version(path: Path) -> None:
    (slot,) = (v.current.slot for v in TileStore.open(WritableFile(path))._versions[:1] if v.current)
    patched(path, HEADER.slot_offset(slot) + 7, b"\xff")
    store = TileStore.open(WritableFile(path))
    assert (tile_of(store, 0), tile_of(store, 3)) == (ONE, THREE)
    put(store, 1, TWO)
    store.sync()
    store.close()
    again = TileStore.open(WritableFile(path))
    assert (tile_of(again, 0), tile_of(again, 1), again.slots_in_use) == (ONE, TWO, 3)


def test_open_of_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError, match="as a tile store: there is no such file"):
            TiledEvictable.open(where)
    assert list(tmp_path.iterdir()) == []


# -- one writer, and readers ------------------------------------------------------------------------------------------


def test_second_writer_is_refused_until_the_first_closes(path: Path) -> None:
    first, second = TileStore.open(WritableFile(path)), TileStore.open(WritableFile(path))
    put(first, 1, ONE)
    with pytest.raises(RuntimeError, match=r"another carrier writes to it. A tile store has one writer"):
        put(second, 2, ONE)
    first.close()
    with pytest.raises(ChangedFileError, match="written by another carrier since it was opened"):
        put(second, 2, ONE)
    third = TileStore.open(WritableFile(path))
    put(third, 2, ONE)
    third.close()


def test_reader_notices_only_the_tiles_that_a_writer_replaced(path: Path) -> None:
    reader, writer = TileStore.open(WritableFile(path)), TileStore.open(WritableFile(path))
    put(writer, 0, ONE)
    put(writer, 0, THREE)
    assert tile_of(reader, 3) == THREE
    with pytest.raises(ChangedFileError, match=r"tile 0 was written by another carrier.*Open it again"):
        tile_of(reader, 0)
    assert tile_of(TileStore.open(WritableFile(path)), 0) == THREE
    writer.close()


def test_store_that_is_closed_or_dropped_leaves_no_descriptor(path: Path) -> None:
    def held() -> int:
        return sum(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))

    with WritableFile(path) as file:
        before = held()
        store = TileStore.open(file)
        put(store, 1, ONE)
        assert held() == before + 1
        del store
        assert held() == before
        store = TileStore.open(file)
        put(store, 1, ONE)
        store.close()
        assert held() == before
    assert held() == 0


def test_sync_of_what_is_synced_writes_nothing(path: Path) -> None:
    store = TileStore.open(WritableFile(path))
    store.sync()
    before = path.stat().st_mtime_ns
    store.sync()
    assert path.stat().st_mtime_ns == before
    store.close()


def test_closed_writer_gives_the_lock_back_although_a_forked_child_has_just_begun(path: Path) -> None:
    store = TileStore.open(WritableFile(path))
    put(store, 1, ONE)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        signal.pause()  # it has a copy of the descriptor: nobody told it of this store
    store.close()
    second = TileStore.open(WritableFile(path))
    put(second, 2, TWO)
    second.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_forked_child_that_outlives_the_writer_keeps_no_lock(path: Path) -> None:
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        carrier = TiledEvictable.open(path)
        carrier.promote(TileSet([(0, 0)]))
        carrier[0] = 1
        carrier.flush()
        if os.fork() == 0:
            os.write(writer, b"%d" % os.getpid())
            signal.alarm(5)  # should the test fail, nothing is left behind
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    grandchild = int(os.read(reader, 20))
    os.waitpid(parent, 0)
    store = TileStore.open(WritableFile(path))
    put(store, 2, TWO)
    store.close()
    os.kill(grandchild, signal.SIGKILL)
    os.close(reader)
    os.close(writer)


# -- failures that only matter later ----------------------------------------------------------------------------------


def test_record_that_failed_after_all_its_bytes_moved_keeps_its_slot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = TileStore.open(WritableFile(path)), positioned._pwritev
    calls = {"left": 2}

    def moves_and_fails(descriptor: int, views: list[memoryview], offset: int) -> int:
        moved = real(descriptor, views, offset)
        calls["left"] -= 1
        if calls["left"] == 0:
            raise OSError(errno.EIO, "Input/output error")
        return moved

    monkeypatch.setattr(positioned, "_pwritev", moves_and_fails)
    with pytest.raises(StorageError):
        put(store, 3, ONE)
    assert tile_of(store, 3) == THREE
    put(store, 1, TWO)
    assert tile_of(TileStore.open(WritableFile(path)), 3) == ONE, "the new version, whole: nothing else is in its slot"
    store.sync()
    assert tile_of(TileStore.open(WritableFile(path)), 3) == THREE
    store.close()


def test_sync_after_a_failed_one_writes_again_what_the_kernel_may_have_dropped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TileStore.open(WritableFile(path))
    put(store, 3, ONE)
    monkeypatch.setattr(writable_file, "_fsync", failing_sync(1))
    with pytest.raises(StorageError, match="cannot sync"):
        store.sync()
    written: list[int] = []
    real = positioned._pwritev

    def pwritev(descriptor: int, views: list[memoryview], offset: int) -> int:
        written.append(offset)
        return real(descriptor, views, offset)

    monkeypatch.setattr(positioned, "_pwritev", pwritev)
    store.sync()
    assert sum(offset >= HEADER.slot_offset(0) for offset in written) == 2, "the data of tiles 0 and 3"
    assert (tile_of(store, 0), tile_of(store, 3)) == (TWO, ONE)
    store.close()


def test_sync_after_a_failed_one_tells_what_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TileStore.open(WritableFile(path))
    put(store, 3, ONE)
    monkeypatch.setattr(writable_file, "_fsync", failing_sync(1))
    with pytest.raises(StorageError, match="cannot sync"):
        store.sync()
    current = store._versions[3].current
    assert current is not None
    patched(path, HEADER.slot_offset(current.slot), bytes(30))
    for _ in range(2):
        with pytest.raises(StorageError, match=f"cannot sync tile 3 at byte .* of '{path}'.*not what was written"):
            store.sync()
    store.close()
    again = TileStore.open(WritableFile(path))
    assert (tile_of(again, 0), tile_of(again, 3)) == (TWO, THREE)


def test_store_whose_mark_was_not_synced_is_found_whatever_is_written_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TileStore.open(WritableFile(path))
    monkeypatch.setattr(writable_file, "_fsync", failing_sync(2))
    with pytest.raises(StorageError, match="cannot sync"):
        store.sync()
    for value in (ONE, TWO, THREE, ONE, TWO):
        put(store, 0, value)
        assert tile_of(TileStore.open(WritableFile(path)), 0) == value
    monkeypatch.setattr(writable_file, "_fsync", failing_sync(1))
    with pytest.raises(StorageError, match="cannot sync"):
        store.sync()
    for value in (ONE, TWO, THREE, ONE, TWO):
        put(store, 0, value)
        assert tile_of(TileStore.open(WritableFile(path)), 0) == value
    store.close()


def failing_sync(nth: int) -> Callable[[int], None]:
    calls = {"left": nth}

    def fsync(descriptor: int) -> None:
        calls["left"] -= 1
        if calls["left"] == 0:
            raise OSError(errno.EIO, "Input/output error")

    return fsync
