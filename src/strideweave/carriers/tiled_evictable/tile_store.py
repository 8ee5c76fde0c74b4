"""Tiles in a file that outlive the process: after a crash each is wholly old or wholly new."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from pathlib import Path

from strideweave.carriers.tiled_evictable.tile_format import (
    MARK_NBYTES,
    NO_SLOT,
    PLACES,
    RECORD_NBYTES,
    ROW_NBYTES,
    Mark,
    Record,
    StoreHeader,
)
from strideweave.io import ChangedFileError, StorageError, WritableFile
from strideweave.io.positioned import Span

_ATTEMPTS = 8


@dataclass(eq=False, slots=True)
class _Versions:
    """The records of one tile that must stay readable, and the places that must be wiped before they count."""

    ordinal: int
    current: Record | None = None
    """What a reader gets."""
    settled: Record | None = None
    """What is on the disk since the last `sync`."""
    settling: Record | None = None
    """What a running `sync` puts there."""
    spoiled: list[tuple[int, int]] = field(default_factory=list)
    """Places where something is that was not written to its end, each with the slot that it may name."""

    def free_place(self) -> int:
        """A place that holds nothing that counts."""
        taken = {r.place for r in (self.current, self.settled, self.settling) if r is not None}
        return next(place for place in range(PLACES) if place not in taken)

    def names(self, record: Record) -> bool:
        """Whether one of the records that count is this one."""
        return record in (self.current, self.settled, self.settling)


class TileStore:
    """A file of tiles by number: `write` replaces one, `sync` makes all that was written outlast a power cut.

    A tile is written to a slot that no record names, and then named by a record at a place that holds none that counts.
    So whatever ends the process between two writes, or within one, leaves the old version or the new one. What `sync`
    has put on the disk is neither overwritten nor given up before the next `sync` is over.

    The first write takes a lock on the file, which goes with `close` or with the process. One that never writes is a
    reader, and notices when another writer replaced a tile.

    Threads may share it, each with its own tile. A forked child reads and does not write.

    Units: bytes. Errors: StorageError for what the system refuses; RuntimeError in a forked child and while another
    carrier writes; ChangedFileError when another one has written meanwhile.

    >>> from strideweave import DType
    >>> from strideweave.carriers.tiled_evictable.geometry import Geometry
    >>> store = TileStore(WritableFile(), StoreHeader(DType.Int8, Geometry.make((2,), (3,))))
    >>> out = bytearray(3)
    >>> store.write(1, memoryview(b"abc")), store.read(1, memoryview(out)), bytes(out), store.holds(0)
    (3, 3, b'abc', False)
    >>> store.close()
    """

    def __init__(self, file: WritableFile, header: StoreHeader) -> None:
        self._file = file
        self.header = header
        """What the store holds."""
        self._start_afresh()
        self._is_forked = False
        self._is_made = False
        self._versions = [_Versions(ordinal) for ordinal in range(header.geometry.tiles)]
        self._free: list[int] = []  # a heap
        self._slots = 0
        self._generation = 0
        self._epoch = 1
        self._mark = Mark()
        self._mark_copy = 0
        self._is_mark_spoiled = False
        self._settling: list[_Versions] = []
        self._must_rewrite = False
        self._image = b""
        self._writer: int | None = None
        self._end: weakref.finalize[[int, int], TileStore] | None = None

    def _start_afresh(self) -> None:
        # Guards every field; reentrant, since writing tiles again is a part of `sync`.
        self._lock = threading.RLock()
        self._one_sync = threading.Lock()  # held for the whole of a `sync`

    @staticmethod
    def open_header(file: WritableFile) -> StoreHeader:
        """What the store in the file holds. Errors: ValueError when there is none, or it is damaged or cut."""

        def read(offset: int, nbytes: int) -> bytes:
            out = bytearray(nbytes)
            file.read_into([(offset, memoryview(out))])
            return bytes(out)

        return StoreHeader.decode(read, file.size_nbytes, file.path)

    @classmethod
    def open(cls, file: WritableFile) -> TileStore:
        """The store that is in the file. Errors: as for `open_header`."""
        store = cls(file, cls.open_header(file))
        store._is_made = True
        store._load()
        return store

    # -- tiles -------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._file.path

    @property
    def is_made(self) -> bool:
        """Whether the file holds a store that `open` finds."""
        return self._is_made

    @property
    def slots_in_use(self) -> int:
        """How many slots are not free."""
        with self._lock:
            return self._slots - len(self._free)

    def holds(self, ordinal: int) -> bool:
        """Whether the tile has a value here."""
        return self._versions[ordinal].current is not None

    def is_zero(self, ordinal: int) -> bool:
        """Whether that value is zeros that take no room."""
        current = self._versions[ordinal].current
        return current is not None and current.is_zero

    def read(self, ordinal: int, out: memoryview) -> int:
        """Fill `out` with the tile; the bytes read. Nobody may write the same tile meanwhile."""
        return self.read_all([ordinal], [out])[0]

    def read_all(self, ordinals: Sequence[int], outs: Sequence[memoryview]) -> list[int]:
        """Fill every memory with its tile; the bytes read for each. Nobody may write one of them meanwhile."""
        found, spans, moved = list[Record](), list[Span](), list[int]()
        for ordinal, out in zip(ordinals, outs, strict=True):
            current = self._versions[ordinal].current
            assert current is not None, f"tile {ordinal} is not in the store"
            if current.is_zero:
                out[:] = bytes(len(out))
                moved.append(0)
            else:
                found.append(current)
                spans.append((self.header.slot_offset(current.slot), out))
                moved.append(out.nbytes)
        self._file.read_into(spans)
        if self._writer is None:
            for record in found:
                self._require_newest(record)
        return moved

    def write(self, ordinal: int, source: memoryview) -> int:
        """The tile is `source` from now on; the bytes of it. When it raises, the tile is as it was."""
        assert source.nbytes == self.header.data_nbytes(ordinal), "a tile is written whole"
        with self._lock:
            self._begin_writing()
            self._wipe(self._versions[ordinal])
            slot = self._take_slot()
        try:
            nbytes = self._file.write_from([(self.header.slot_offset(slot), source)])
        except BaseException:
            with self._lock:
                heappush(self._free, slot)
            raise
        self._name(ordinal, slot, zlib.crc32(source))
        return nbytes

    def write_zero(self, ordinal: int) -> None:
        """The tile is zeros from now on. When it raises, the tile is as it was."""
        with self._lock:
            self._begin_writing()
            self._wipe(self._versions[ordinal])
            self._name(ordinal, NO_SLOT, 0)

    def sync(self) -> None:
        """Every tile written before is on the disk, and `open` finds it after a power cut.

        Errors: StorageError; what the last good `sync` put there is still there then, and another one may be tried.
        """
        with self._one_sync:
            with self._lock:
                if self._mark.epoch and not self._must_rewrite and not self._changed():
                    return
                self._begin_writing()
                self._wipe_all()
                if self._must_rewrite:
                    self._rewrite()
                changed = self._changed()
                mark = self._next_mark(changed)
                self._epoch += 1
                self._settling = changed
                for versions in changed:
                    versions.settling = versions.current
            self._settle(mark)

    def close(self) -> None:
        """The lock is gone. The file stays with whoever gave it."""
        if self._end is not None:
            self._end()
        self._writer = self._end = None

    # -- writing -----------------------------------------------------------------------------------------------------

    def _begin_writing(self) -> None:
        """Be the one writer of a file that is as it was read."""
        if self._is_forked:
            raise RuntimeError(
                f"cannot write tiles to {self.path!r} in a forked child: the store belongs to the process that forked. "
                "A child only reads. Open the store again after the parent has released it."
            )
        if self._writer is None:
            self._lock_file()
        if not self._is_made:
            self._file.reserve(self.header.slot_offset(0))
            self._file.write_from([(0, memoryview(self.header.encode()))])
            self._is_made = True

    def _lock_file(self) -> None:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise StorageError(
                f"cannot lock {self.path!r}: {e.strerror}. A tile store that is written is locked. Check the path.",
                path=self.path,
                errno=e.errno,
            ) from e
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise RuntimeError(
                    f"cannot write tiles to {self.path!r}: another carrier writes to it. A tile store has one writer. "
                    "Release that one first."
                ) from e
            except OSError:  # a file system without locks
                pass
            if self._is_made and self._read(*self._table()) != self._image:
                raise self._change("it was written by another carrier since it was opened")
        except BaseException:
            os.close(descriptor)
            raise
        self._image = b""
        self._writer = descriptor
        self._end = weakref.finalize(self, _close, descriptor, os.getpid())

    def _take_slot(self) -> int:
        if self._free:
            return heappop(self._free)
        self._slots += 1
        return self._slots - 1

    def _name(self, ordinal: int, slot: int, data_checksum: int) -> None:
        """The data in a slot is the tile."""
        with self._lock:
            versions = self._versions[ordinal]
            self._generation += 1
            record = Record(ordinal, slot, self._generation, self._epoch, data_checksum, versions.free_place())
            try:
                self._put(self.header.record_offset(ordinal, record.place), record.encode())
            except BaseException:
                # A part of it may be in the file, or with bad luck all of it: the slot stays what it says.
                versions.spoiled.append((record.place, slot))
                raise
            before, versions.current = versions.current, record
            self._let_go(versions, before)

    def _let_go(self, versions: _Versions, record: Record | None) -> None:
        if record is not None and not record.is_zero and not versions.names(record):
            heappush(self._free, record.slot)

    def _wipe(self, versions: _Versions) -> None:
        """Nothing is left of a record that was not written to its end."""
        while versions.spoiled:
            place, slot = versions.spoiled[-1]
            self._put(self.header.record_offset(versions.ordinal, place), bytes(RECORD_NBYTES))
            versions.spoiled.pop()
            if slot != NO_SLOT:
                heappush(self._free, slot)

    def _put(self, offset: int, data: bytes) -> None:
        self._file.write_from([(offset, memoryview(data))])

    # -- reaching the disk -------------------------------------------------------------------------------------------

    def _changed(self) -> list[_Versions]:
        """The tiles that were written since the last good `sync` began."""
        return [v for v in self._versions if v.current is not None and v.current != v.settled]

    def _next_mark(self, changed: list[_Versions]) -> Mark:
        count, digest = self._mark.count, self._mark.digest
        for versions in changed:
            if versions.settled is None:
                count += 1
            else:
                digest ^= versions.settled.checksum
            assert versions.current is not None
            digest ^= versions.current.checksum
        return Mark(self._epoch, count, digest)

    def _settle(self, mark: Mark) -> None:
        """Data and records first, and then the mark that says so."""
        is_marking = False
        try:
            self._file.sync()
            is_marking = True
            self._put(self.header.mark_offset(1 - self._mark_copy), mark.encode())
            self._file.sync()
            if not self._mark.epoch:
                _sync_directory(self.path)
        except BaseException:
            with self._lock:
                # The kernel may have dropped what it could not write: it is written again before the next try.
                self._must_rewrite = True
                self._is_mark_spoiled = is_marking
                if not is_marking:
                    self._unsettle()
            raise
        with self._lock:
            self._mark, self._mark_copy = mark, 1 - self._mark_copy
            for versions in self._settling:
                before, versions.settled, versions.settling = versions.settled, versions.settling, None
                self._let_go(versions, before)
            self._settling = []

    def _unsettle(self) -> None:
        for versions in self._settling:
            before, versions.settling = versions.settling, None
            self._let_go(versions, before)
        self._settling = []

    def _wipe_all(self) -> None:
        if self._is_mark_spoiled:
            self._put(self.header.mark_offset(1 - self._mark_copy), bytes(MARK_NBYTES))
            self._is_mark_spoiled = False
            self._unsettle()
        for versions in self._versions:
            self._wipe(versions)

    def _rewrite(self) -> None:
        """Write again what a failed `sync` may have lost."""
        room = memoryview(bytearray(self.header.tile_nbytes))
        for current in [v.current for v in self._changed() if v.current is not None]:
            if current.is_zero:
                self.write_zero(current.ordinal)
                continue
            data = room[: self.header.data_nbytes(current.ordinal)]
            if not self._has_data(current, data):
                raise StorageError(
                    f"cannot sync tile {current.ordinal} at byte {self.header.slot_offset(current.slot)} of "
                    f"{self.path!r}: the disk refused it before, and its {len(data)} bytes are not what was written. "
                    "A value that is lost is never told to be there. Check the disk; the last value that reached it "
                    "is found by opening the store again.",
                    path=self.path,
                    offset_nbytes=self.header.slot_offset(current.slot),
                    length_nbytes=len(data),
                )
            self.write(current.ordinal, data)
        self._must_rewrite = False

    # -- reading what is there ---------------------------------------------------------------------------------------

    def _table(self) -> tuple[int, int]:
        """Where marks and records are."""
        return self.header.nbytes, self.header.slot_offset(0) - self.header.nbytes

    def _read(self, offset: int, nbytes: int) -> bytes:
        out = bytearray(nbytes)
        self._file.read_into([(offset, memoryview(out))])
        return bytes(out)

    def _load(self) -> None:
        for _ in range(_ATTEMPTS):
            self._image = self._read(*self._table())
            marks = [self._mark_in(self._image, copy) for copy in (0, 1)]
            self._mark_copy = max((0, 1), key=lambda copy: marks[copy].epoch)
            self._mark = marks[self._mark_copy]
            count, digest, reason = self._load_records()
            if (count, digest) == (self._mark.count, self._mark.digest) and reason is None:
                return
            if self._read(*self._table()) == self._image:  # and no writer is at work
                break
        raise ValueError(
            f"cannot open {self.path!r} as a tile store: {reason or f'{count} tiles with digest {digest:#010x}'} in "
            f"the records from byte {self.header.records_offset} on, where its mark says {self._mark.count} tiles with "
            f"digest {self._mark.digest:#010x}. All that was flushed must be there: it is damaged or cut. Restore the "
            "file."
        )

    def _mark_in(self, image: bytes, copy: int) -> Mark:
        begin = self.header.mark_offset(copy) - self.header.nbytes
        return Mark.decode(image[begin : begin + MARK_NBYTES]) or Mark()

    def _load_records(self) -> tuple[int, int, str | None]:
        """Take over the records; how many are on the disk, their digest, and what is wrong with one."""
        header, first = self.header, self.header.records_offset - self.header.nbytes
        file_nbytes = self._file.size_nbytes
        room = memoryview(bytearray(header.tile_nbytes))
        taken: set[int] = set()
        count = digest = 0
        reason = None
        self._epoch, self._generation = self._mark.epoch + 1, 0
        for ordinal, versions in enumerate(self._versions):
            begin = first + ordinal * ROW_NBYTES
            records = Record.decode_row(self._image[begin : begin + ROW_NBYTES], ordinal)
            settled = next((r for r in records if r.epoch <= self._mark.epoch), None)
            current = None
            versions.spoiled.clear()
            for record in records:
                self._epoch = max(self._epoch, record.epoch + 1)
                self._generation = max(self._generation, record.generation)
                data = room[: header.data_nbytes(ordinal)]
                if current is None and (record is settled or self._has_data(record, data, file_nbytes)):
                    current = record
                elif current is None:
                    versions.spoiled.append((record.place, NO_SLOT))  # its data did not reach the disk
            versions.current, versions.settled = current, settled
            if settled is not None:
                count, digest = count + 1, digest ^ settled.checksum
                end = header.slot_offset(settled.slot) + header.data_nbytes(ordinal)
                if not settled.is_zero and end > file_nbytes:
                    reason = f"the file ends at byte {file_nbytes}, before tile {ordinal} does"
            taken |= {r.slot for r in (current, settled) if r is not None and not r.is_zero}
        self._slots = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._slots) if slot not in taken]
        heapify(self._free)
        return count, digest, reason

    def _has_data(self, record: Record, data: memoryview, file_nbytes: int | None = None) -> bool:
        if record.is_zero:
            return True
        offset = self.header.slot_offset(record.slot)
        if file_nbytes is not None and offset + len(data) > file_nbytes:
            return False
        self._file.read_into([(offset, data)])
        return zlib.crc32(data) == record.data_checksum

    def _require_newest(self, record: Record) -> None:
        """The slot that was just read was not reused: nobody has written the tile since the store was opened."""
        row = self._read(self.header.record_offset(record.ordinal, 0), ROW_NBYTES)
        if any(r.generation > self._generation for r in Record.decode_row(row, record.ordinal)):
            raise self._change(f"tile {record.ordinal} was written by another carrier since it was opened")

    def _change(self, reason: str) -> ChangedFileError:
        return ChangedFileError(
            f"cannot go on with the tile store {self.path!r}: {reason}. What was read must still hold. Open it again.",
            path=self.path,
        )

    # -- fork --------------------------------------------------------------------------------------------------------

    def enter_child(self) -> None:
        """In a forked child: a reader from now on, whatever other threads of the parent were doing."""
        self._start_afresh()
        self._is_forked = True
        if self._end is not None:
            self._end.detach()
        if self._writer is not None:
            with contextlib.suppress(OSError):
                os.close(self._writer)  # else the lock would outlive the parent
            self._writer = self._end = None


def _close(descriptor: int, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that has just been forked still has a copy
        os.close(descriptor)


def _sync_directory(path: str) -> None:
    """The name of the file is on the disk."""
    descriptor = os.open(Path(path).parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as e:
        raise StorageError(
            f"cannot sync the directory of {path!r}: {e.strerror}. A new file outlasts a power cut only with its name. "
            "Check the disk and try again.",
            path=path,
            errno=e.errno,
        ) from e
    finally:
        os.close(descriptor)
