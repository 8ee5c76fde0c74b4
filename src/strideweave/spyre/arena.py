"""The bytes behind the card's memory: a mapping of the process that is resident where something was written."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Final

_NO_RESERVE: Final = 0x4000 if os.uname().sysname == "Linux" else 0


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """What device memory holds at one moment. Units: bytes."""

    allocated_nbytes: int
    """In live tensors and pools."""
    peak_nbytes: int
    """The most that was allocated at once since the last `reset_peak()`."""
    reserved_nbytes: int
    """Allocated, or freed and kept for reuse."""
    capacity_nbytes: int
    """All of device memory."""
    allocation_count: int
    """How many blocks are live."""
    allocations_ever: int
    """How many blocks were allocated since the start."""


def reserve(segments: int, segment_nbytes: int) -> tuple[mmap.mmap, int]:
    """An arena of that many segments, or of as much as the system gives."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    nbytes = segments * segment_nbytes
    while True:
        try:
            arena = mmap.mmap(-1, nbytes, flags=flags)
            break
        except (OSError, ValueError, OverflowError):
            nbytes = (segments := segments - 1) * segment_nbytes if segments > 1 else nbytes // 2 // 4096 * 4096
            if nbytes < 2**24:
                raise
    for advice in ("MADV_HUGEPAGE", "MADV_DONTDUMP"):
        if hasattr(mmap, advice):
            try:
                arena.madvise(getattr(mmap, advice))
            except OSError:
                continue  # a kernel without it: slower, or larger core files
    return arena, nbytes


def in_words(nbytes: int) -> str:
    """A number of bytes for a message.

    >>> from strideweave.spyre.arena import in_words
    >>> in_words(3 * 2**20), in_words(100)
    ('3.0 MiB', '100 bytes')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
