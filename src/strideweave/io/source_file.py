"""A file that is read and never written, and that must stay the one it was."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from strideweave.io.descriptors import DEFAULT_DESCRIPTORS, Descriptors
from strideweave.io.direct import PastCache
from strideweave.io.errors import ChangedFileError, MissingFileError, StorageError
from strideweave.io.positioned import Run, Span, join_spans, read_run

Fingerprint = Callable[[int], bool]
"""Given an open descriptor, whether the file's header is still the recorded one."""

_CURE = "A file in use must not change. Open it again to use the new content, or put the old file back."


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What tells one state of a file from another without reading it. Units: bytes, nanoseconds.

    >>> FileIdentity(device=1, inode=2, size_nbytes=3, mtime_ns=4)
    FileIdentity(device=1, inode=2, size_nbytes=3, mtime_ns=4)
    """

    device: int
    """The file system's number."""
    inode: int
    """The file's number in it."""
    size_nbytes: int
    """How long the file is."""
    mtime_ns: int
    """When its content was last changed."""

    @staticmethod
    def of(path: str | os.PathLike[str] | int) -> FileIdentity:
        """The identity of the file at a path or behind an open descriptor, symlinks followed."""
        return FileIdentity.from_stat(os.stat(path))  # noqa: PTH116 - also of a descriptor

    @staticmethod
    def from_stat(facts: os.stat_result) -> FileIdentity:
        """The identity that a `stat` result tells."""
        return FileIdentity(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@final
class SourceFile:
    """A read-only file, opened when bytes are first asked for, refused once it is not the file it was.

    `identity` is the state that counts; without one, it is the state at construction. `fingerprint` looks at
    the content where `stat` cannot tell: each time a descriptor is opened, and when only the change time of
    the file has moved. `path` is the real path, links resolved once.

    Threads may share it; it survives fork and pickle. It writes nothing.

    Errors: MissingFileError, also for a link that leads nowhere; ChangedFileError; StorageError.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "weights.bin")
    ...     _ = path.write_bytes(b"0123456789")
    ...     source, out = SourceFile(path), bytearray(4)
    ...     source.read_into([(6, memoryview(out))]), bytes(out)
    (4, b'6789')
    """

    __slots__ = (
        "__weakref__",
        "_ctime_ns",
        "_descriptors",
        "_expected",
        "_fingerprint",
        "_identity",
        "_key",
        "_past_cache",
        "_path",
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        identity: FileIdentity | None = None,
        fingerprint: Fingerprint | None = None,
        *,
        descriptors: Descriptors | None = None,
    ) -> None:
        self._path = resolve(path)
        facts = _look_at(self._path)
        if not stat.S_ISREG(facts.st_mode):
            raise StorageError(
                f"cannot read {self._path!r}: it is no regular file. Only files have bytes at offsets. Name a file.",
                path=self._path,
            )
        self._identity = FileIdentity.from_stat(facts) if identity is None else identity
        self._expected = (
            self._identity.device,
            self._identity.inode,
            self._identity.size_nbytes,
            self._identity.mtime_ns,
        )
        self._fingerprint = fingerprint
        # The change time when the content was last known to be right; a given identity does not tell it.
        self._ctime_ns = facts.st_ctime_ns if identity is None else -1
        self._require_same(facts)
        self._descriptors = DEFAULT_DESCRIPTORS if descriptors is None else descriptors
        self._key = self._descriptors.new_key()
        self._past_cache = PastCache(self._path, self._descriptors)
        for key in (self._key, self._past_cache.key):
            weakref.finalize(self, self._descriptors.forget, key).atexit = False

    @property
    def path(self) -> str:
        """The real path of the file."""
        return self._path

    @property
    def identity(self) -> FileIdentity:
        """The state of the file that counts."""
        return self._identity

    @property
    def size_nbytes(self) -> int:
        """How long the file is."""
        return self._identity.size_nbytes

    def check_unchanged(self) -> None:
        """The file is the one it was, or ChangedFileError says what differs. Costs one `stat`."""
        facts = self._look()
        self._require_same(facts)
        if facts.st_ctime_ns != self._ctime_ns:
            if self._fingerprint is not None:
                with self._descriptors.borrow(self._key, self._open) as descriptor:
                    self._require_fingerprint(descriptor)
            # The time from before the look: a change after it shows as a newer one.
            self._ctime_ns = facts.st_ctime_ns

    def read_into(self, spans: Sequence[Span]) -> int:
        """The memory of every span holds the file's bytes from its offset on; returns the bytes read.

        Spans may come in any order; those that touch on disk are read by one call.
        Errors: ValueError for memory that cannot be filled; StorageError when a byte cannot be had: the
        memory of the spans holds anything then.
        """
        runs = join_spans(spans, path=self._path, into_memory=True)
        for run in runs:
            self._require_inside(run)
        if not runs:
            return 0
        try:
            with self._descriptors.borrow(self._key, self._open) as descriptor:
                return sum(self._read(descriptor, run) for run in runs)
        except ChangedFileError:
            raise
        except StorageError:
            self.check_unchanged()  # a file that changed under the read explains it better
            raise

    def _read(self, descriptor: int, run: Run) -> int:
        nbytes = self._past_cache.read(descriptor, run, self._open_direct)
        return read_run(descriptor, run, self._path) if nbytes is None else nbytes

    def drop_page_cache(self) -> None:
        """The kernel keeps no page of the file, as far as it follows advice: the next read is a cold one."""
        with self._descriptors.borrow(self._key, self._open) as descriptor:
            with suppress(OSError):  # pages just written are dropped only once they are on disk
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """The descriptor is closed; a later read opens the file again."""
        self._descriptors.forget(self._key)
        self._descriptors.forget(self._past_cache.key)

    def _look(self) -> os.stat_result:
        try:
            return _look_at(self._path)
        except MissingFileError:
            raise ChangedFileError(
                f"cannot go on reading {self._path!r}: it is gone, it had {self.size_nbytes} bytes. A file "
                "in use must stay. Put it back and open it again.",
                path=self._path,
            ) from None

    def _open(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            self._look()  # a file that is gone explains it better
            raise StorageError(
                f"cannot open {self._path!r}: {e.strerror}. The file must be readable. "
                "Check its permissions and the limits.",
                path=self._path,
                errno=e.errno,
            ) from e
        try:
            facts = os.fstat(descriptor)
            self._require_same(facts)
            self._require_fingerprint(descriptor)
            self._ctime_ns = facts.st_ctime_ns
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead of what nobody asked for
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open_direct(self, flag: int) -> int:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flag)
        try:
            self._require_same(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _require_same(self, facts: os.stat_result) -> None:
        if (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns) != self._expected:
            raise ChangedFileError(
                f"cannot go on reading {self._path!r}: it was {self._identity}, it is "
                f"{FileIdentity.from_stat(facts)}. {_CURE}",
                path=self._path,
            )

    def _require_fingerprint(self, descriptor: int) -> None:
        if self._fingerprint is not None and not self._fingerprint(descriptor):
            raise ChangedFileError(
                f"cannot go on reading {self._path!r}: its header is not the recorded one, though size, "
                f"inode and modification time are. {_CURE}",
                path=self._path,
            )

    def _require_inside(self, run: Run) -> None:
        end = run.offset_nbytes + run.length_nbytes
        if end > self.size_nbytes:
            raise StorageError(
                f"cannot read {run.length_nbytes} bytes at byte {run.offset_nbytes} of {self._path!r}: the "
                f"file has {self.size_nbytes} bytes, {end - self.size_nbytes} too few. A read must lie "
                "inside the file. Check the offsets, or re-download the file.",
                path=self._path,
                offset_nbytes=run.offset_nbytes,
                length_nbytes=run.length_nbytes,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceFile, (self._path, self._identity, self._fingerprint)

    def __repr__(self) -> str:
        return f"<SourceFile {self._path!r}, {self.size_nbytes} bytes>"


def _look_at(path: str) -> os.stat_result:
    try:
        return os.stat(path)  # noqa: PTH116 - before every batch, and Path.stat costs twice as much
    except OSError as e:
        kind = MissingFileError if isinstance(e, FileNotFoundError | NotADirectoryError) else StorageError
        raise kind(
            f"cannot look at {path!r}: {e.strerror}. A file in use must stay within reach. Check the disk.",
            path=path,
            errno=e.errno,
        ) from e


def resolve(path: str | os.PathLike[str]) -> str:
    """The real path of a file, links followed.

    Errors: MissingFileError that tells a missing file from a link that leads nowhere or in a circle.
    """
    given = os.fspath(path)
    try:
        return os.path.realpath(given, strict=True)
    except OSError as e:
        reason, number = str(e.strerror), e.errno
    advice = "Check the path and its permissions."
    if Path(given).is_symlink():
        reason = f"the link leads to {os.path.realpath(given)!r}: {reason}"
        advice = "Repair the link, or re-download the file."
    kind = StorageError if number in (errno.EACCES, errno.EIO) else MissingFileError
    raise kind(
        f"cannot find {given!r}: {reason}. A file must be there to be read. {advice}",
        path=given,
        errno=number,
    )
