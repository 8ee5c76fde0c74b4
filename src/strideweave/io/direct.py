"""Reads and writes past the page cache, where the file system allows them and the bytes are not in it.

What is cached is copied from there. What is not costs a page and a copy more on its way through the cache, about twice
the time of a direct read; that pays only for bytes that are read again and again and that the cache can keep.

A direct read moves whole blocks of a file to memory that begins at a whole block. Where the file and the memory are
equally far from one, the disk writes into the memory itself; elsewhere blocks land in a small buffer of the thread and
are copied from it, so that a tile lies where arithmetic wants it whatever its place in the file is. No byte beside the
memory that was asked for is touched.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from strideweave.io import positioned
from strideweave.io.available import available_nbytes
from strideweave.io.descriptors import Descriptors
from strideweave.io.errors import StorageError
from strideweave.io.mapping import map_aligned
from strideweave.io.positioned import Run, read_failure, write_failure, write_run

BLOCK_NBYTES: Final = 4096
"""What offsets, lengths and addresses of a direct read are multiples of; every block device takes it."""
LEAST_NBYTES: Final = 128 << 10
"""Shorter reads go through the page cache."""
LEAST_WRITTEN_NBYTES: Final = 256 << 10
"""Shorter writes go there, too: the kernel joins them."""
_LEAST_STRAIGHT_NBYTES: Final = 32 << 10  # less than this is copied: a vector more costs as much
_BOUNCE_NBYTES: Final = 2 << 20  # one huge page: the disk fills ordinary ones at less than half the rate
_MOST_NBYTES: Final = 8 << 20  # of one call
_CACHED: Final = 0.9  # of the pages: then the page cache is the faster place
_PATIENCE: Final = 3  # direct reads of one place before the cache is given a chance: by then it has paid
_LONGEST_PATIENCE: Final = 1 << 20
_MOST_PLACES: Final = 1 << 16
_ROOM: Final = 0.75  # of what is available may be page cache of ours
_LOOK_S: Final = 0.5  # memory is looked at no more often
_REFUSALS: Final = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}
_CACHESTAT: Final = 451  # Linux 6.5
_O_DIRECT: Final = getattr(os, "O_DIRECT", 0)

_thread = threading.local()


class PastCache:
    """How one file is read directly: the key of its second descriptor, and whether the file system takes part."""

    def __init__(self, path: str, descriptors: Descriptors) -> None:
        self._path = path
        self._descriptors = descriptors
        self.key = descriptors.new_key()
        self.is_refused = not _O_DIRECT
        self.nbytes = 0
        """How long the file was when it was read last."""
        self._places = _Places()

    def read(self, descriptor: int, run: Run, opener: Callable[[int], int]) -> int | None:
        """The memory of the run holds the file's bytes; how many, or None when they are to be read as usual.

        `opener` opens the file with the flag that it is given, and refuses a file that is not the one it was.
        Errors: StorageError when a byte cannot be had; what the opener raises but OSError.
        """
        if run.length_nbytes < LEAST_NBYTES or self.is_refused or not self._is_wanted(descriptor, run):
            return None
        try:
            with self._descriptors.borrow(self.key, lambda: opener(_O_DIRECT)) as direct:
                return _read(direct, run, self._path)
        except _RefusedError:
            self.is_refused = True
        except StorageError:
            raise
        except OSError as e:  # it cannot be opened in this way: the open descriptor still can be read
            self.is_refused = e.errno in _REFUSALS
        return None

    def write(self, descriptor: int, run: Run, opener: Callable[[int], int]) -> int | None:
        """The file holds the bytes of the run's memory; how many, or None when they are to be written as usual.

        Whole blocks that lie alike in file and memory go straight to the disk; the rest, through `descriptor`.
        Errors: as for `read`.
        """
        if run.length_nbytes < LEAST_WRITTEN_NBYTES or self.is_refused or direct_io() == "0":
            return None
        parts = list(_written_parts(run))
        if not any(is_straight for _, is_straight in parts):
            return None
        for part, is_straight in parts:
            if not is_straight or not self._wrote(part, opener):
                write_run(descriptor, part, self._path)
        return run.length_nbytes

    def _wrote(self, part: Run, opener: Callable[[int], int]) -> bool:
        if self.is_refused:
            return False
        try:
            with self._descriptors.borrow(self.key, lambda: opener(_O_DIRECT)) as direct:
                _write(direct, part, self._path)
        except _ShortError:
            return False
        except _RefusedError:
            self.is_refused = True
            return False
        except StorageError:
            raise
        except OSError as e:
            self.is_refused = e.errno in _REFUSALS
            return False
        return True

    def _is_wanted(self, descriptor: int, run: Run) -> bool:
        mode = direct_io()
        if mode != "auto":
            return mode == "1"
        if not self.nbytes:
            with _lock:
                _files.add(self)
        self.nbytes = os.fstat(descriptor).st_size
        cached = cached_nbytes(descriptor, run.offset_nbytes, run.length_nbytes)
        if cached is not None and cached >= _CACHED * run.length_nbytes:
            return False
        if not _page_cache.has_room():
            return True
        return cached is not None and not self._places.is_worth_caching(run.offset_nbytes)


class _Places:
    """How often each place of a file was read and not found in the page cache; lanes may share it without a lock.

    A place is worth caching after some direct reads. If it is not there the time after, whatever the reason, the cache
    does not keep this file, and twice as many reads are needed from then on.
    """

    def __init__(self) -> None:
        self._reads: dict[int, int] = {}  # -1 for a place that was read through the cache
        self._patience = _PATIENCE

    def is_worth_caching(self, offset_nbytes: int) -> bool:
        """Whether this read of a place goes through the cache."""
        before = self._reads.get(offset_nbytes, 0)
        if before < 0:
            self._patience = min(2 * self._patience, _LONGEST_PATIENCE)
            before = 0
        if len(self._reads) >= _MOST_PLACES:
            self._reads.clear()
        is_worth = before >= self._patience
        self._reads[offset_nbytes] = -1 if is_worth else before + 1
        return is_worth


class _PageCache:
    """Whether the kernel could keep all files that are read: asked at every read, looked up now and then."""

    def __init__(self) -> None:
        self._looked_s = -1.0
        self._has_room = True

    def has_room(self) -> bool:
        now = time.monotonic()
        if now - self._looked_s > _LOOK_S:
            self._looked_s = now
            with _lock:
                nbytes = sum(file.nbytes for file in _files)
            self._has_room = nbytes <= _ROOM * available_nbytes()
        return self._has_room


_lock = threading.Lock()  # guards _files
_files: weakref.WeakSet[PastCache] = weakref.WeakSet()
_page_cache = _PageCache()


class _RefusedError(Exception):
    """The file system does not do it."""


class _ShortError(Exception):
    """A part of a block was written, as on a disk that is full: the usual way tells how it goes on."""


def direct_io() -> str:
    """What STRIDEWEAVE_DIRECT_IO says: "auto" by default, "0" for never, "1" for whatever is cached, too.

    Errors: ValueError for anything else.

    >>> direct_io()
    'auto'
    """
    text = os.environ.get("STRIDEWEAVE_DIRECT_IO", "").strip().lower() or "auto"
    if text not in ("auto", "0", "1"):
        raise ValueError(
            f"cannot read with STRIDEWEAVE_DIRECT_IO={text!r}: it is 0, 1 or auto. Direct reads go past the page "
            "cache. Set it to one of these, or unset it."
        )
    return text


def cached_nbytes(descriptor: int, offset_nbytes: int, length_nbytes: int) -> int | None:
    """How many bytes of a stretch of a file the page cache holds; None where the kernel does not tell."""
    global _syscall
    if _syscall is None:
        return None
    stretch = (ctypes.c_uint64 * 2)(offset_nbytes, length_nbytes)
    found = (ctypes.c_uint64 * 5)()
    if _syscall(ctypes.c_long(_CACHESTAT), descriptor, stretch, found, 0):
        if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
            _syscall = None
        return None
    return int(found[0]) * mmap.PAGESIZE


def _load_syscall() -> Callable[..., int] | None:
    if sys.platform == "linux" and sys.maxsize > 2**32:
        with suppress(OSError, AttributeError):
            return ctypes.CDLL(None, use_errno=True).syscall
    return None


_syscall = _load_syscall()  # None once it is known that the kernel does not tell


class _Stretch(NamedTuple):
    """Whole blocks of a file, and the memory that they go to; None where they are copied."""

    begin: int
    end: int
    memory: memoryview | None


def _read(descriptor: int, run: Run, path: str) -> int:
    bounce = _bounce()
    batch: list[memoryview] = []
    began = at = run.offset_nbytes // BLOCK_NBYTES * BLOCK_NBYTES
    used = 0
    copies: list[tuple[int, int, int]] = []  # file begin, file end, place in the bounce buffer
    for begin, end, memory in _pieces(run):
        length = end - begin
        if batch and (at - began + length > _MOST_NBYTES or (memory is None and used + length > _BOUNCE_NBYTES)):
            _fill(descriptor, batch, began, run, path)
            _copy_out(run, copies, bounce)
            batch, copies, began, used = [], [], begin, 0
        if memory is None:
            batch.append(bounce[used : used + length])
            copies.append((begin, end, used))
            used += length
        else:
            batch.append(memory)
        at = end
    _fill(descriptor, batch, began, run, path)
    _copy_out(run, copies, bounce)
    return run.length_nbytes


def _pieces(run: Run) -> Iterator[_Stretch]:
    """The blocks of a run in pieces that one call, or the bounce buffer, can take."""
    for begin, end, memory in _stretches(run):
        most = _BOUNCE_NBYTES if memory is None else _MOST_NBYTES
        for low in range(begin, end, most):
            high = min(low + most, end)
            yield _Stretch(low, high, None if memory is None else memory[low - begin : high - begin])


def _stretches(run: Run) -> Iterator[_Stretch]:
    """The blocks of a run, one after the other: straight into memory where both are aligned alike."""
    at = run.offset_nbytes // BLOCK_NBYTES * BLOCK_NBYTES
    place = run.offset_nbytes
    for view in run.views:
        first = -(-place // BLOCK_NBYTES) * BLOCK_NBYTES
        last = (place + len(view)) // BLOCK_NBYTES * BLOCK_NBYTES
        if last - first >= _LEAST_STRAIGHT_NBYTES and (_address(view) - place) % BLOCK_NBYTES == 0:
            if at < first:
                yield _Stretch(at, first, None)
            yield _Stretch(first, last, view[first - place : last - place])
            at = last
        place += len(view)
    end = -(-place // BLOCK_NBYTES) * BLOCK_NBYTES
    if at < end:
        yield _Stretch(at, end, None)


def _fill(descriptor: int, batch: list[memoryview], began: int, run: Run, path: str) -> None:
    """The memory of a batch holds the blocks from `began` on, up to the last byte that the run needs."""
    length = sum(map(len, batch))
    needed = min(began + length, run.offset_nbytes + run.length_nbytes) - began
    done = first = 0
    while done < needed:
        try:
            moved = positioned._preadv(descriptor, batch[first:], began + done)
        except InterruptedError:
            continue
        except OSError as e:
            if e.errno in _REFUSALS:
                raise _RefusedError from e
            reason = f"{os.strerror(e.errno or 0)} at byte {began + done}"
            raise read_failure(run, path, reason, "Check the disk and try again.", e.errno) from e
        done += moved
        if done < needed and (not moved or moved % BLOCK_NBYTES):
            reason = f"the file ends at byte {began + done}"
            advice = "Every byte that is asked for must be there. Restore or re-download the file."
            raise read_failure(run, path, reason, advice, None)
        first = positioned.advance(batch, first, moved)


def _written_parts(run: Run) -> Iterator[tuple[Run, bool]]:
    """A run in parts, each with whether it can go straight; no block is in two of them that go different ways."""
    place = run.offset_nbytes
    for view in run.views:
        first = -(-place // BLOCK_NBYTES) * BLOCK_NBYTES - place
        last = (place + len(view)) // BLOCK_NBYTES * BLOCK_NBYTES - place
        if last - first < LEAST_WRITTEN_NBYTES or (_address(view) + first) % BLOCK_NBYTES:
            first = last = len(view)
        for begin, end, is_straight in ((0, first, False), (first, last, True), (last, len(view), False)):
            if begin < end:
                yield Run(place + begin, end - begin, [view[begin:end]]), is_straight
        place += len(view)


def _write(descriptor: int, run: Run, path: str) -> None:
    """The file holds the blocks of the run, which has one view."""
    (view,) = run.views
    done = 0
    while done < len(view):
        try:
            moved = positioned._pwritev(descriptor, [view[done : done + _MOST_NBYTES]], run.offset_nbytes + done)
        except InterruptedError:
            continue
        except OSError as e:
            if e.errno in _REFUSALS:
                raise _RefusedError from e
            raise write_failure(run.offset_nbytes, run.length_nbytes, done, path, e.errno or 0) from e
        if not moved:
            raise write_failure(run.offset_nbytes, run.length_nbytes, done, path, errno.EIO)
        if moved % BLOCK_NBYTES:
            raise _ShortError
        done += moved


def _copy_out(run: Run, copies: list[tuple[int, int, int]], bounce: memoryview) -> None:
    """What the run wants of the blocks in the bounce buffer is in its memory."""
    if not copies:
        return
    source = np.frombuffer(bounce, np.uint8)
    place = run.offset_nbytes
    for view in run.views:
        for begin, end, used in copies:
            low, high = max(begin, place), min(end, place + len(view))
            if low < high:
                target = np.frombuffer(view[low - place : high - place], np.uint8)
                np.copyto(target, source[used + low - begin : used + high - begin])  # without the interpreter's lock
        place += len(view)


def _bounce() -> memoryview:
    """The buffer of this thread, on pages that exist already."""
    found: memoryview | None = getattr(_thread, "bounce", None)
    if found is None:
        found = _thread.bounce = map_aligned(_BOUNCE_NBYTES)
        found[:: mmap.PAGESIZE] = bytes(len(found) // mmap.PAGESIZE)
    return found


def _address(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def _start_afresh_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh_in_child)
