"""Private anonymous memory that direct I/O and huge pages can use."""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from contextlib import suppress

PAGE_NBYTES = 4096
HUGE_NBYTES = 2 << 20
# Python names the flag from 3.13 on; its number is the same on these machines.
_HAS_NORESERVE = sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64", "riscv64"}
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if _HAS_NORESERVE else 0)


def map_aligned(nbytes: int) -> memoryview:
    """A fresh mapping of zeros, in memory only where it was touched; it goes with the last view of it.

    It starts at a multiple of 4096, and from 2 MiB on at one of 2 MiB and asks for huge pages.
    Errors: MemoryError when the system refuses.

    >>> memory = map_aligned(10)
    >>> len(memory), bytes(memory[:2])
    (10, b'\\x00\\x00')
    """
    align = HUGE_NBYTES if nbytes >= HUGE_NBYTES else PAGE_NBYTES
    slack = align if align > mmap.PAGESIZE else 0  # untouched, so it costs addresses and no memory
    try:
        mapping = mmap.mmap(
            -1,
            max(nbytes, 1) + slack,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    except (OSError, OverflowError, ValueError) as e:
        raise MemoryError(
            f"cannot map {nbytes} bytes: {e}. The budget must fit the address space "
            "that is allowed. Name a smaller budget, or raise `ulimit -v`."
        ) from e
    first = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % align
    whole_huge_pages = nbytes // HUGE_NBYTES * HUGE_NBYTES  # not beyond: the slack must stay untouched
    if align == HUGE_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE, first, whole_huge_pages)
    return memoryview(mapping)[first : first + nbytes]
