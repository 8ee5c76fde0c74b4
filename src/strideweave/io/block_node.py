"""A raw block device that is ours alone while it is open: positioned reads and writes of its bytes."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

from strideweave.io.errors import MissingFileError, StorageError
from strideweave.io.positioned import Span, join_spans, read_run, write_run

# The call that makes writes reach the device, looked up at each call so that tests can make the n-th fail.
_fdatasync = os.fdatasync

# From linux/fs.h; the same on every architecture that has 8-byte size_t.
_BLKROGET, _BLKGETSIZE64, _BLKSSZGET, _BLKPBSZGET = 0x125E, 0x80081272, 0x1268, 0x127B

_WRITABLE = "It must be writable. Make it so with `blockdev --setrw`, or name another one."
_CURE = {
    errno.EBUSY: "It must not be in use: no mounted file system, swap, volume or other opener. Unmount or close that.",
    errno.EACCES: "It must be readable and writable. Ask for its group, or run with more rights.",
    errno.EPERM: "It must be readable and writable. Ask for its group, or run with more rights.",
    errno.EROFS: _WRITABLE,
}


@final
class BlockNode:
    """The bytes of a Linux block device, opened for us alone: nobody else may mount it, or open it so, until `close`.

    A write has reached the device when the call returns. Whole blocks are the kernel's affair: any bytes may be
    read and written, and no other bytes change. Threads may share it, a forked child may not.

    Units: `capacity_nbytes`, `logical_block_size` and `physical_block_size` in bytes.
    Errors: NotImplementedError on another system than Linux; MissingFileError; ValueError for what is no block device,
    or has no bytes; RuntimeError after `close`; StorageError when it cannot be had, and when bytes do not get through.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"cannot open {path!r} as a block device: it is no path. Pass one such as '/dev/loop0'.")
        self._path = os.path.realpath(path)
        _require_linux(self._path)
        _require_block_device(self._path)
        descriptor = _open(self._path)
        try:
            self._capacity_nbytes = _ask(descriptor, _BLKGETSIZE64, "Q", self._path)
            self._logical_block_size = _ask(descriptor, _BLKSSZGET, "i", self._path)
            self._physical_block_size = _ask(descriptor, _BLKPBSZGET, "I", self._path)
            if _ask(
                descriptor, _BLKROGET, "i", self._path
            ):  # it opens for writing all the same, and refuses every write
                raise StorageError(
                    f"cannot open block device {self._path!r}: it is read-only. {_WRITABLE}",
                    path=self._path,
                    errno=errno.EROFS,
                )
            if not self._capacity_nbytes:
                raise ValueError(
                    f"cannot use block device {self._path!r}: it has 0 bytes. A loop device has none until a file is "
                    "attached, nor has a drive without a medium. Attach one."
                )
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._end = weakref.finalize(self, os.close, descriptor)
        self._end.atexit = False  # the process closes everything then
        _living.add(self)

    @property
    def path(self) -> str:
        """The real path of the device."""
        return self._path

    @property
    def capacity_nbytes(self) -> int:
        """How many bytes it has."""
        return self._capacity_nbytes

    @property
    def logical_block_size(self) -> int:
        """The smallest stretch that it can be asked for."""
        return self._logical_block_size

    @property
    def physical_block_size(self) -> int:
        """The smallest stretch that it writes at once."""
        return self._physical_block_size

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or this is a forked child."""
        return not self._end.alive

    def read_into(self, spans: Sequence[Span]) -> int:
        """The memory of every span holds the device's bytes from its offset on; returns the bytes read.

        Errors: StorageError when a byte cannot be had.
        """
        self.require_open("read")
        runs = join_spans(spans, path=self._path, into_memory=True)
        return sum(read_run(self._descriptor, run, self._path) for run in runs)

    def write_from(self, spans: Sequence[Span]) -> int:
        """The device holds the bytes of every span's memory from its offset on; returns the bytes written.

        Errors: StorageError when a byte could not be written, which those spans may show.
        """
        self.require_open("write")
        runs = join_spans(spans, path=self._path, into_memory=False)
        written = sum(write_run(self._descriptor, run, self._path) for run in runs)
        if written:
            self._sync()
        return written

    def require_open(self, what: str) -> None:
        """Nothing, while the device is ours. Errors: RuntimeError when it is closed, or this is a forked child."""
        if not self.is_closed:
            return
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"cannot {what} {self._path!r}: it belongs to process {self._pid}, and this is {os.getpid()}. Two "
                "processes would write over each other. Use another device here."
            )
        raise RuntimeError(
            f"cannot {what} {self._path!r}: the device is closed. It may be somebody else's by now. Open it anew."
        )

    def close(self) -> None:
        """The device is no longer ours. Closing again changes nothing."""
        self._end()

    def __repr__(self) -> str:
        return f"<BlockNode {self._path!r} of {self._capacity_nbytes} bytes{', closed' if self.is_closed else ''}>"

    def _sync(self) -> None:
        # Without this a write that the device refuses later is lost in silence: only a sync is told of it, once.
        try:
            _fdatasync(self._descriptor)
        except OSError as e:
            raise StorageError(
                f"cannot write to {self._path!r}: {e.strerror} when the bytes were to reach the device. A write counts "
                "only when all of it is there. Check the device.",
                path=self._path,
                errno=e.errno,
            ) from e


def _require_linux(path: str) -> None:
    if sys.platform != "linux":
        raise NotImplementedError(
            f"cannot open {path!r}: raw block devices are used on Linux, and this is {sys.platform}. Their sizes are "
            "asked for by Linux's ioctls. Use FileBacked here."
        )


def _require_block_device(path: str) -> None:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - beside the other calls of os
    except FileNotFoundError as e:
        raise MissingFileError(
            f"cannot open {path!r}: there is no such device. Check the path.", path=path, errno=errno.ENOENT
        ) from e
    if not stat.S_ISBLK(mode):
        kinds: dict[str, Callable[[int], bool]] = {
            "a regular file": stat.S_ISREG,
            "a directory": stat.S_ISDIR,
            "a character device": stat.S_ISCHR,
        }
        kind = next((name for name, is_kind in kinds.items() if is_kind(mode)), "a pipe or a socket")
        raise ValueError(
            f"cannot open {path!r} as a block device: it is {kind}. Only a block device has blocks of its own. "
            "Attach a file with losetup and name that device, or use FileBacked."
        )


def _open(path: str) -> int:
    try:
        # Exclusive: the kernel refuses it while a file system, swap or a volume has the device.
        return os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as e:
        cure = _CURE.get(e.errno or 0, "Check the device.")
        raise StorageError(f"cannot open block device {path!r}: {e.strerror}. {cure}", path=path, errno=e.errno) from e


def _ask(descriptor: int, request: int, format: str, path: str) -> int:
    import fcntl  # other systems import this module too, and some have none

    try:
        answer: Any = fcntl.ioctl(descriptor, request, bytes(struct.calcsize(format)))
    except OSError as e:
        raise StorageError(
            f"cannot ask {path!r} for its sizes: {e.strerror}. They decide where extents lie. Check the device.",
            path=path,
            errno=e.errno,
        ) from e
    value: int = struct.unpack(format, answer)[0]
    return value


_living: weakref.WeakSet[BlockNode] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A child does not hold the device: it would stay taken when the parent closes it."""
    for node in list(_living):
        if node._end.detach() is not None:
            with suppress(OSError):
                os.close(node._descriptor)


os.register_at_fork(after_in_child=_let_go_in_child)
