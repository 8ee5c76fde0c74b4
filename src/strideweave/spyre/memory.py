"""The memory of the card: one flat arena of bytes, an allocator of sticks, and what lives where.

A device address is an index into the arena. Nothing is resident before it is written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import torch

from strideweave.spyre.arena import MemoryStatistics, in_words, reserve
from strideweave.spyre.ranges import FreeRanges
from strideweave.spyre.sticks import STICK_NBYTES

if TYPE_CHECKING:
    from strideweave.spyre.tensor_layout import SpyreTensorLayout


SEGMENT_NBYTES: Final = 16 * 2**30
SEGMENTS: Final = 7
BASE: Final = 0x1_0000_0000
"""A torch storage on the card has `data_ptr() == BASE + address`; nobody may follow that pointer."""

POISON: Final = 0xFF
"""The byte of poison: every float made of it is NaN."""

_SMALL_NBYTES: Final = 2**20
"""Blocks up to this size are kept by size when they are freed."""
_KEPT_SMALL_NBYTES: Final = 64 * 2**20
_KEPT_LARGE_NBYTES: Final = 512 * 2**20
"""How many freed bytes stay resident, for the next tensor that wants them; more go back to the system."""
_SLAB_NBYTES: Final = 2 * 2**20


class DeviceMemory:
    """Device memory: `segments` segments, backed by host memory where something was written.

    `bytes` is the arena as a flat tensor of uint8, `view(dtype)` the same as another dtype. Blocks are whole sticks and
    never cross a segment. Freed and padding bytes are poison while `config.poison` is on; a block that goes back to the
    system (freed beyond 512 MiB of kept memory) reads as zeros.

    Threads may allocate and free at the same time; a forked process has a copy of its own.

    >>> from strideweave.spyre.memory import DeviceMemory
    >>> memory = DeviceMemory(segments=1, segment_nbytes=2**24)
    >>> address = memory.allocate(100)
    >>> address % 128, memory.nbytes_at(address), memory.allocated_bytes
    (0, 128, 128)
    >>> memory.free(address)
    >>> memory.bytes[address].item(), memory.allocated_bytes, memory.peak
    (255, 0, 128)
    """

    def __init__(self, *, segments: int = SEGMENTS, segment_nbytes: int = SEGMENT_NBYTES) -> None:
        self.segment_nbytes = segment_nbytes
        self._map, self.capacity = reserve(segments, segment_nbytes)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._origin = self.bytes.data_ptr()
        self._views: dict[torch.dtype, torch.Tensor] = {torch.uint8: self.bytes}
        self._live: dict[int, int] = {}
        self._layouts: dict[int, SpyreTensorLayout] = {}
        # Freed blocks wait here until whoever has the lock takes them: a finalizer may run while this thread holds it.
        self._freed: deque[tuple[int, int]] = deque()
        # Guards everything below, and nothing above: those are single steps of dicts and a deque.
        self._lock = Lock()
        self._small: dict[int, list[int]] = {}
        self._small_nbytes = 0
        self._used = FreeRanges(segment_nbytes)
        self._untouched = FreeRanges(segment_nbytes)
        for start in range(0, self.capacity, segment_nbytes):
            self._untouched.add(start, min(segment_nbytes, self.capacity - start))
        self._allocated = 0
        self._peak = 0
        self._ever = 0

    # -- blocks ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, layout: SpyreTensorLayout | None = None) -> int:
        """The address of a new block of at least `nbytes` (and at least a stick), a multiple of 128.

        `layout`, of that many bytes, is what it holds (see `describe`). Blocks of up to 1 MiB are poison. Errors:
        torch.OutOfMemoryError; ValueError for a negative size.
        """
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes on the card: a size is 0 or more. Pass one.")
        wanted = max(-(-nbytes // STICK_NBYTES), 1) * STICK_NBYTES
        with self._lock:
            self._settle()
            address = self._small_block(wanted) if wanted <= _SMALL_NBYTES else self._large_block(wanted)
            if address is None:
                raise torch.OutOfMemoryError(self._refusal(nbytes))
            self._live[address] = wanted
            if layout is not None:
                self._layouts[address] = layout
            self._allocated += wanted
            self._ever += 1
            if self._allocated > self._peak:
                self._peak = self._allocated
        return address

    def free(self, address: int) -> None:
        """The block at `address` is free again, and poison.

        Errors: ValueError when no block that is live starts there.
        """
        nbytes = self._live.pop(address, None)
        if nbytes is None:
            raise ValueError(
                f"cannot free device address {address:#x}: no live block starts there. Free each block once, by the "
                "address that allocate() gave."
            )
        self._layouts.pop(address, None)
        self._freed.append((address, nbytes))
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def describe(self, address: int, layout: SpyreTensorLayout) -> None:
        """The block at `address` holds a tensor in `layout`.

        Errors: ValueError when no live block starts there, or it is smaller than the layout.
        """
        nbytes = self._live.get(address)
        if nbytes is None or layout.nbytes > nbytes:
            raise ValueError(
                f"cannot describe device address {address:#x} by {layout!r}: it takes {layout.nbytes} bytes and "
                f"{'no live block starts there' if nbytes is None else f'the block has {nbytes}'}. Allocate enough."
            )
        self._layouts[address] = layout

    def layout_at(self, address: int) -> SpyreTensorLayout | None:
        """The layout of the block that starts at `address`; None where none was described."""
        return self._layouts.get(address)

    def nbytes_at(self, address: int) -> int | None:
        """The bytes of the live block that starts at `address`; None where none does."""
        return self._live.get(address)

    def live_ranges(self) -> list[tuple[int, int]]:
        """Start and size of every live block, by address."""
        return sorted(self._live.copy().items())

    def block_around(self, address: int) -> tuple[int, int] | None:
        """Start and size of the live block that `address` lies in; None where it lies in none."""
        for start, nbytes in self._live.copy().items():
            if start <= address < start + nbytes:
                return start, nbytes
        return None

    # -- bytes -------------------------------------------------------------------------------------------------------

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole arena as a flat tensor of `dtype`: element k is at byte k x itemsize."""
        found = self._views.get(dtype)
        if found is None:
            found = self._views[dtype] = self.bytes.view(dtype)
        return found

    def poison(self, address: int, nbytes: int) -> None:
        """`nbytes` bytes from `address` on are poison."""
        if not 0 <= address <= address + nbytes <= self.capacity:
            raise ValueError(
                f"cannot poison {nbytes} bytes at device address {address:#x}: memory ends at {self.capacity:#x}. "
                "Stay within it."
            )
        ctypes.memset(self._origin + address, POISON, nbytes)

    # -- statistics --------------------------------------------------------------------------------------------------

    @property
    def allocated_bytes(self) -> int:
        """Bytes of live blocks."""
        with self._lock:
            self._settle()
            return self._allocated

    @property
    def peak(self) -> int:
        """The most bytes that were live at once since the last `reset_peak()`."""
        return self._peak

    @property
    def reserved(self) -> int:
        """Bytes that are allocated, or freed and kept resident for the next block."""
        with self._lock:
            self._settle()
            return self._allocated + self._small_nbytes + self._used.total_nbytes

    def statistics(self) -> MemoryStatistics:
        """What device memory holds now."""
        reserved = self.reserved
        return MemoryStatistics(self._allocated, self._peak, reserved, self.capacity, len(self._live), self._ever)

    def reset_peak(self) -> None:
        """The peak is what is allocated now."""
        with self._lock:
            self._settle()
            self._peak = self._allocated

    def trim(self) -> None:
        """Freed memory goes back to the system."""
        with self._lock:
            self._settle()
            self._trim()

    # -- inside the lock ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Takes in the blocks that were freed since."""
        freed = self._freed
        while freed:
            address, nbytes = freed.popleft()
            self._allocated -= nbytes
            if nbytes > _SMALL_NBYTES and self._used.total_nbytes + nbytes > _KEPT_LARGE_NBYTES:
                self._return(address, nbytes)
                continue
            if _is_poison_on():
                ctypes.memset(self._origin + address, POISON, nbytes)
            elif nbytes <= _SMALL_NBYTES:
                self._used.add(address, nbytes)  # poisoned when it is taken, if poison is on again by then
                continue
            if nbytes > _SMALL_NBYTES:
                self._used.add(address, nbytes)
                continue
            self._small.setdefault(nbytes, []).append(address)
            self._small_nbytes += nbytes
            if self._small_nbytes > _KEPT_SMALL_NBYTES:
                self._join_small()

    def _small_block(self, nbytes: int) -> int | None:
        kept = self._small.get(nbytes)
        if kept:
            self._small_nbytes -= nbytes
            return kept.pop()
        address = self._used.take(nbytes)
        if address is None:
            slab = self._untouched.take(_SLAB_NBYTES)
            if slab is not None:
                self._used.add(slab, _SLAB_NBYTES)
            elif self._untouched.total_nbytes:
                for start, size in self._untouched.clear():
                    self._used.add(start, size)
            address = self._used.take(nbytes)
        if address is None and self._small:
            self._join_small()
            address = self._used.take(nbytes)
        if address is not None and _is_poison_on():
            ctypes.memset(self._origin + address, POISON, nbytes)
        return address

    def _large_block(self, nbytes: int) -> int | None:
        address = self._used.take(nbytes)
        if address is None:
            address = self._untouched.take(nbytes)
        if address is None:
            self._trim()
            address = self._untouched.take(nbytes)
        return address

    def _join_small(self) -> None:
        """Small blocks that are free become ranges again."""
        for nbytes, addresses in self._small.items():
            for address in addresses:
                self._used.add(address, nbytes)
        self._small.clear()
        self._small_nbytes = 0

    def _trim(self) -> None:
        self._join_small()
        for start, nbytes in self._used.clear():
            self._return(start, nbytes)

    def _return(self, start: int, nbytes: int) -> None:
        """The whole pages of the range go back to the system; they read as zeros from now on."""
        page = mmap.PAGESIZE
        first, end = -(-start // page) * page, (start + nbytes) // page * page
        if first < end:
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)
        self._untouched.add(start, nbytes)

    def _refusal(self, nbytes: int) -> str:
        free = self.capacity - self._allocated
        largest = max(self._used.largest(), self._untouched.largest())
        return (
            f"cannot allocate {nbytes} bytes ({in_words(nbytes)}) on the card: {in_words(self._allocated)} of "
            f"{in_words(self.capacity)} are allocated and {in_words(free)} are free, the largest free range has "
            f"{in_words(largest)}. A block lies within one segment of {in_words(self.segment_nbytes)}. Free tensors, "
            "or make smaller ones."
        )


def memory() -> DeviceMemory:
    """The device memory of this process, made when it is first asked for.

    >>> from strideweave.spyre.memory import memory
    >>> memory() is memory()
    True
    """
    return _memory or _make_memory()


def _make_memory() -> DeviceMemory:
    global _memory
    with _making:
        if _memory is None:
            made = DeviceMemory()
            # A fork copies the table as it is between two operations.
            os.register_at_fork(
                before=made._lock.acquire, after_in_parent=made._lock.release, after_in_child=made._lock.release
            )
            _memory = made
        return _memory


def _is_poison_on() -> bool:
    """`config.poison`, in a tenth of the time that a config module takes: every allocation asks."""
    global _poison
    if _poison is None:
        from strideweave.spyre import config

        _poison = config._config["poison"]  # type: ignore[attr-defined]
    override = _poison.user_override.get()
    found: bool = override if isinstance(override, bool) else _poison.default
    return found


_poison: Any = None
_making: Final = Lock()
_memory: DeviceMemory | None = None
