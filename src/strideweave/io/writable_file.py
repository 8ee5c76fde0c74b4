"""A file of ours that is written and read at any offset."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import final

from strideweave.io.descriptors import DEFAULT_DESCRIPTORS, Descriptors
from strideweave.io.direct import PastCache
from strideweave.io.errors import ChangedFileError, StorageError
from strideweave.io.owned_directory import session_directory
from strideweave.io.positioned import Run, Span, join_spans, read_run, write_failure, write_run

# The calls that make space and make it last, looked up at each call so that tests can make one fail.
_posix_fallocate = os.posix_fallocate
_fsync = os.fsync

_NOT_ON_THIS_FILE_SYSTEM = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY}


@final
class WritableFile:
    """A file that holds what was last written at each offset; made when it is not there, never cut.

    Without a `path` it is anonymous: it lives in the owned directory and goes with `close`, with the last
    reference or with the process. A file that is there and may only be read is opened for reading
    (`is_writable` is False).

    Threads may share it. A forked child shares the bytes, and never removes the file of its parent.

    Errors: StorageError; ChangedFileError when another file has taken its place; ValueError after `close`.

    >>> with WritableFile() as f:
    ...     f.reserve(8)
    ...     written = f.write_from([(2, memoryview(b"abc"))])
    ...     out = bytearray(8)
    ...     written, f.read_into([(0, memoryview(out))]), bytes(out)
    (3, 8, b'\\x00\\x00abc\\x00\\x00\\x00')
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, descriptors: Descriptors | None = None) -> None:
        self.is_anonymous = path is None
        if path is None:
            self._path = str(session_directory() / f"{token_hex(8)}.tiles")
        else:
            self._path = os.path.realpath(path)
        self.is_writable = True
        self._node: tuple[int, int] | None = None  # device and inode, known once it has been opened
        self._descriptors = DEFAULT_DESCRIPTORS if descriptors is None else descriptors
        self._key = self._descriptors.new_key()
        self._past_cache = PastCache(self._path, self._descriptors)
        with self._descriptors.borrow(self._key, self._open):
            pass
        self._end = weakref.finalize(
            self,
            _let_go,
            self._descriptors,
            (self._key, self._past_cache.key),
            self._path if path is None else None,
            os.getpid(),
        )
        self._end.atexit = False  # the whole session directory goes then

    @property
    def path(self) -> str:
        """The real path of the file."""
        return self._path

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._end.alive

    @property
    def size_nbytes(self) -> int:
        """How long the file is now."""
        self._require_open("look at")
        with self._descriptors.borrow(self._key, self._open) as descriptor:
            return os.fstat(descriptor).st_size

    def read_into(self, spans: Sequence[Span]) -> int:
        """The memory of every span holds the file's bytes from its offset on; returns the bytes read.

        Errors: ValueError for memory that cannot be filled; StorageError when a byte cannot be had.
        """
        self._require_open("read")
        runs = join_spans(spans, path=self._path, into_memory=True)
        with self._descriptors.borrow(self._key, self._open) as descriptor:
            return sum(self._read(descriptor, run) for run in runs)

    def _read(self, descriptor: int, run: Run) -> int:
        nbytes = self._past_cache.read(descriptor, run, self._open_direct)
        return read_run(descriptor, run, self._path) if nbytes is None else nbytes

    def _open_direct(self, flag: int) -> int:
        way = os.O_RDWR if self.is_writable else os.O_RDONLY
        descriptor = os.open(self._path, way | os.O_CLOEXEC | flag)
        try:
            self._require_same(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def write_from(self, spans: Sequence[Span]) -> int:
        """The file holds the bytes of every span's memory from its offset on; returns the bytes written.

        Where spans overlap the last one counts. The file grows as needed; what is skipped reads as zero.
        Errors: StorageError when a byte could not be written: those spans hold old and new bytes then.
        """
        self._require_open("write")
        self._require_writable()
        runs = join_spans(spans, path=self._path, into_memory=False)
        with self._descriptors.borrow(self._key, self._open) as descriptor:
            return sum(self._write(descriptor, run) for run in runs)

    def _write(self, descriptor: int, run: Run) -> int:
        nbytes = self._past_cache.write(descriptor, run, self._open_direct)
        return write_run(descriptor, run, self._path) if nbytes is None else nbytes

    def reserve(self, nbytes: int) -> None:
        """The file has at least `nbytes` bytes, and the disk has room for them; new ones read as zero.

        Where the file system cannot promise room, the file only gets its length. What is there stays.
        Errors: StorageError when there is no room, and the file keeps its length.
        """
        self._require_open("reserve room in")
        self._require_writable()
        if nbytes < 0:
            raise ValueError(
                f"cannot reserve {nbytes} bytes in {self._path!r}: a size is 0 or more. Pass the length that is needed."
            )
        if nbytes == 0:
            return
        with self._descriptors.borrow(self._key, self._open) as descriptor:
            before = os.fstat(descriptor).st_size
            try:
                _posix_fallocate(descriptor, 0, nbytes)
            except OSError as e:
                if e.errno not in _NOT_ON_THIS_FILE_SYSTEM:
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, before)  # what was had in part goes back
                    raise self._no_room(nbytes, before, e) from e
                self._lengthen(descriptor, nbytes, before)

    def sync(self) -> None:
        """What was written is on the disk and outlives a power cut.

        Errors: StorageError when the disk refused some of it; then none of it may be relied on.
        """
        self._require_open("sync")
        with self._descriptors.borrow(self._key, self._open) as descriptor:
            try:
                _fsync(descriptor)
            except OSError as e:
                raise StorageError(
                    f"cannot sync {self._path!r}: {e.strerror}. Bytes written before may be lost. Write them "
                    "again elsewhere and check the disk.",
                    path=self._path,
                    errno=e.errno,
                ) from e

    def drop_page_cache(self) -> None:
        """The kernel keeps no page of the file, as far as it follows advice; all of it is on the disk."""
        self.sync()
        with self._descriptors.borrow(self._key, self._open) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """The descriptor is closed and an anonymous file is gone. Closing again changes nothing."""
        self._end()

    def __enter__(self) -> WritableFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "anonymous " if self.is_anonymous else ""
        return f"<WritableFile {kind}{self._path!r}{', closed' if self.is_closed else ''}>"

    def _open(self) -> int:
        is_new = self._node is None
        create = (os.O_CREAT | (os.O_EXCL if self.is_anonymous else 0)) if is_new else 0
        try:
            descriptor = self._open_as_allowed(create, 0o600 if self.is_anonymous else 0o666)
        except OSError as e:
            raise StorageError(
                f"cannot open {self._path!r}: {e.strerror}. A file in use must stay, and its directory must "
                "be there. Check the path, its permissions and the limits.",
                path=self._path,
                errno=e.errno,
            ) from e
        try:
            facts = os.fstat(descriptor)
            self._require_same(facts)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        except BaseException:
            os.close(descriptor)
            raise
        self._node = facts.st_dev, facts.st_ino
        return descriptor

    def _open_as_allowed(self, create: int, mode: int) -> int:
        if self.is_writable:
            try:
                return os.open(self._path, os.O_RDWR | os.O_CLOEXEC | create, mode)
            except OSError as e:
                is_there = self._node is None and Path(self._path).is_file()
                if e.errno not in _READ_ONLY or not is_there:
                    raise
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self.is_writable = False
        return descriptor

    def _require_same(self, facts: os.stat_result) -> None:
        if not stat.S_ISREG(facts.st_mode):
            raise StorageError(
                f"cannot open {self._path!r}: it is no regular file. Only files have bytes at offsets. Name a file.",
                path=self._path,
            )
        if self._node not in (None, (facts.st_dev, facts.st_ino)):
            raise ChangedFileError(
                f"cannot go on with {self._path!r}: its device and inode were {self._node}, they are "
                f"{(facts.st_dev, facts.st_ino)}. A file in use must not be replaced. Put the old one back.",
                path=self._path,
            )

    def _require_open(self, verb: str) -> None:
        if self.is_closed:
            raise ValueError(f"cannot {verb} {self._path!r}: it is closed. Use it before close().")

    def _require_writable(self) -> None:
        if not self.is_writable:
            raise StorageError(
                f"cannot write {self._path!r}: it is open for reading only. Its permissions or its file "
                "system allow no more. Make it writable and open it again.",
                path=self._path,
                errno=errno.EROFS,
            )

    def _no_room(self, nbytes: int, before: int, error: OSError) -> StorageError:
        return write_failure(before, max(nbytes - before, 0), 0, self._path, error.errno or 0)

    def _lengthen(self, descriptor: int, nbytes: int, before: int) -> None:
        if nbytes <= before:
            return
        try:
            os.ftruncate(descriptor, nbytes)
        except OSError as e:
            raise self._no_room(nbytes, before, e) from e


def _let_go(descriptors: Descriptors, keys: tuple[int, ...], anonymous_path: str | None, owner_pid: int) -> None:
    """The end of a file: its descriptors are closed, and the process that made it removes an anonymous one."""
    for key in keys:
        descriptors.forget(key)
    if anonymous_path is not None and os.getpid() == owner_pid:
        with contextlib.suppress(OSError):
            os.unlink(anonymous_path)  # noqa: PTH108 - at interpreter shutdown less can go wrong
