"""Exact positioned reads and writes: every byte asked for, or an error that says which are missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from strideweave.io.errors import StorageError

Span: TypeAlias = tuple[int, memoryview]
"""A byte offset in a file, and the memory that its bytes go to or come from."""

_IOV_MAX = os.sysconf("SC_IOV_MAX")

# The two calls that move bytes, looked up at each call so that tests can inject the failure of the n-th.
_preadv = os.preadv
_pwritev = os.pwritev


@dataclass(slots=True)
class Run:
    """Spans that touch on disk, laid end to end: one call moves them."""

    offset_nbytes: int
    length_nbytes: int
    views: list[memoryview]


def join_spans(spans: Iterable[Span], *, path: str, into_memory: bool) -> list[Run]:
    """The spans as runs in the order of the file; those that touch on disk are one run, empty ones are none.

    Spans that overlap keep the order in which they were given, so that the last one written wins.
    Errors: ValueError for a negative offset, and for memory that is not one run, or cannot be read into.

    >>> one, two = bytearray(4), bytearray(2)
    >>> [(r.offset_nbytes, r.length_nbytes, len(r.views)) for r in
    ...  join_spans([(14, memoryview(two)), (10, memoryview(one))], path="f", into_memory=True)]
    [(10, 6, 2)]
    """
    given = [(offset, _as_bytes(view, offset, path, into_memory)) for offset, view in spans if view.nbytes]
    if len(given) > 1:
        ordered = sorted(given, key=lambda span: span[0])
        is_disjoint = all(a[0] + len(a[1]) <= b[0] for a, b in pairwise(ordered))
        given = ordered if is_disjoint or into_memory else given
    runs: list[Run] = []
    end = -1
    for offset, view in given:
        if offset == end:
            runs[-1].views.append(view)
            runs[-1].length_nbytes += len(view)
        else:
            runs.append(Run(offset, len(view), [view]))
        end = offset + len(view)
    return runs


def read_run(descriptor: int, run: Run, path: str) -> int:
    """The memory of the run holds the file's bytes; returns how many. Short and interrupted reads go on."""
    done = first = 0
    while done < run.length_nbytes:
        try:
            moved = _preadv(descriptor, run.views[first : first + _IOV_MAX], run.offset_nbytes + done)
        except InterruptedError:
            continue
        except OSError as e:
            reason = f"{os.strerror(e.errno or 0)} after {done} of them"
            raise read_failure(run, path, reason, "Check the disk and try again.", e.errno) from e
        if not moved:
            reason = f"the file ends after {done} of them"
            advice = "Every byte that is asked for must be there. Restore or re-download the file."
            raise read_failure(run, path, reason, advice, None)
        done += moved
        first = advance(run.views, first, moved)
    return done


def write_run(descriptor: int, run: Run, path: str) -> int:
    """The file holds the bytes of the run's memory; returns how many. Short and interrupted writes go on."""
    done = first = 0
    while done < run.length_nbytes:
        try:
            moved = _pwritev(descriptor, run.views[first : first + _IOV_MAX], run.offset_nbytes + done)
        except InterruptedError:
            continue
        except OSError as e:
            raise write_failure(run.offset_nbytes, run.length_nbytes, done, path, e.errno or 0) from e
        if not moved:  # no progress and no reason given: going on would never end
            raise write_failure(run.offset_nbytes, run.length_nbytes, done, path, errno.EIO)
        done += moved
        first = advance(run.views, first, moved)
    return done


def write_failure(offset_nbytes: int, length_nbytes: int, done_nbytes: int, path: str, number: int) -> StorageError:
    """The error for a write or a reservation that stopped, with the bytes that are missing."""
    missing = length_nbytes - done_nbytes
    advice = {
        errno.ENOSPC: f"Free {missing} bytes on that disk, or point STRIDEWEAVE_CACHE_DIR at another one.",
        errno.EDQUOT: f"Free {missing} bytes of your quota, or point STRIDEWEAVE_CACHE_DIR elsewhere.",
        errno.EFBIG: "Raise the limit of file sizes (ulimit -f), or use a file system without it.",
    }.get(number, "Check the disk and try again.")
    return StorageError(
        f"cannot write {length_nbytes} bytes at byte {offset_nbytes} of {path!r}: {os.strerror(number)}, "
        f"{missing} bytes are missing. A write counts only when all of it is in the file. {advice}",
        path=path,
        offset_nbytes=offset_nbytes,
        length_nbytes=length_nbytes,
        errno=number,
    )


def read_failure(run: Run, path: str, reason: str, advice: str, number: int | None) -> StorageError:
    """The error for a read that stopped, with why and what to do."""
    what = f"{run.length_nbytes} bytes at byte {run.offset_nbytes} of {path!r}"
    return StorageError(
        f"cannot read {what}: {reason}. {advice}",
        path=path,
        offset_nbytes=run.offset_nbytes,
        length_nbytes=run.length_nbytes,
        errno=number,
    )


def advance(views: list[memoryview], first: int, moved: int) -> int:
    """The first view that is not done after `moved` more bytes; a view done in part becomes what is left of it."""
    while first < len(views) and moved >= len(views[first]):
        moved -= len(views[first])
        first += 1
    if moved:
        views[first] = views[first][moved:]
    return first


def _as_bytes(view: memoryview, offset: int, path: str, into_memory: bool) -> memoryview:
    if offset < 0 or not view.c_contiguous or (into_memory and view.readonly):
        verb = "read into" if into_memory else "write from"
        facts = f"contiguous={view.c_contiguous}, readonly={view.readonly}"
        raise ValueError(
            f"cannot {verb} {view.nbytes} bytes of memory at byte {offset} of {path!r}: {facts}. The "
            "offset must not be negative, and the memory must be one run, writable when it is read into. "
            "Pass another offset, or a packed buffer."
        )
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
