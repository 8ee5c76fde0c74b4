"""Carriers on a raw block device: extents of it, given out by the device and given back when a carrier ends."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import final

from strideweave.carriers.carrier import Carrier, Run, Scalar, byte_view, require_size, validate_storage_dtype
from strideweave.carriers.extents import Extent, FreeExtents
from strideweave.dtype import DType, StorageDType
from strideweave.io.block_node import BlockNode
from strideweave.io.positioned import Span

_ZEROS_NBYTES = 2**20


@final
class BlockDevice:
    """A Linux block device whose bytes are given out as carriers; everything that was on it may be lost.

    Extents begin and end at multiples of `allocation_alignment`; the lowest that fits is taken. One transfer runs at a
    time. An error of the device is final: it faults, and every later use is refused. What lies where is known only to
    this object, so nothing outlives it.

    Units: sizes in bytes. Errors: NotImplementedError on another system than Linux; ValueError for what is no block
    device; FileNotFoundError; OSError when it cannot be had, as when it is mounted.

    >>> from strideweave.carriers.block_device import BlockDevice
    >>> try:
    ...     BlockDevice("/etc/hostname")
    ... except (ValueError, NotImplementedError, FileNotFoundError) as error:
    ...     assert "block device" in str(error) or "no such device" in str(error)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._node = BlockNode(path)
        self._free = FreeExtents(self.capacity_bytes, alignment=self.allocation_alignment)
        self._lock = threading.Lock()  # guards _free, _faulted, and lets one transfer run at a time
        self._returned: deque[Extent] = deque()  # appended to without the lock: a finaliser may run inside it
        self._faulted = False
        self._carriers: weakref.WeakSet[BlockDeviceCarrier] = weakref.WeakSet()

    @property
    def path(self) -> str:
        """The real path of the device."""
        return self._node.path

    @property
    def capacity_bytes(self) -> int:
        """How many bytes it has, given out or not."""
        return self._node.capacity_nbytes

    @property
    def logical_block_size(self) -> int:
        """The smallest stretch that it can be asked for."""
        return self._node.logical_block_size

    @property
    def physical_block_size(self) -> int:
        """The smallest stretch that it writes at once."""
        return self._node.physical_block_size

    @property
    def allocation_alignment(self) -> int:
        """What offsets and lengths of extents are multiples of: the larger of the two block sizes."""
        return max(self.logical_block_size, self.physical_block_size)

    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._node.is_closed

    def is_faulted(self) -> bool:
        """Whether the device failed once; it is not used after that."""
        return self._faulted

    def allocate(
        self,
        size: int,
        *,
        mutable: bool = True,
        dtype: StorageDType = DType.Float32,
        empty: bool = False,
    ) -> BlockDeviceCarrier:
        """A fresh carrier of `size` slots in one extent, zero unless `empty`; one of size 0 has no extent yet.

        Errors: RuntimeError when the device is closed or faulted; TypeError, ValueError for a bad size, flag or dtype;
        MemoryError when no extent is long enough; StorageError when it cannot be filled with zeros.
        """
        self._require_usable("allocate on")
        require_size(size, what="a BlockDeviceCarrier")
        for name, flag in (("mutable", mutable), ("empty", empty)):
            if not isinstance(flag, bool):
                raise TypeError(
                    f"cannot make a BlockDeviceCarrier with {name}={flag!r}: {name} must be a bool. Pass True or False."
                )
        validate_storage_dtype(dtype, carrier=BlockDeviceCarrier.__name__, accepted=BlockDeviceCarrier.accepted_dtypes)
        # Made last: a carrier in the frames of an error would keep the device from being closed.
        extent = self._take(size * dtype.itemsize)
        try:
            if not empty:
                self._fill_with_zeros(extent)
            with self._lock:
                self._require_usable("allocate on")
                return BlockDeviceCarrier._on(self, extent, size, dtype=dtype, mutable=mutable)
        except BaseException:
            self._give(extent)
            raise

    def close(self) -> None:
        """The device is let go of; again is harmless.

        Errors: RuntimeError while the object of any carrier on it exists, released or not: it still makes others.
        """
        if self.is_closed():
            return
        if self._carriers:
            gc.collect()  # one that only a dead cycle holds, as a dropped TiledEvictable does, is nobody's
        with self._lock:
            alive = len(self._carriers)
            if alive:
                raise RuntimeError(
                    f"cannot close {self!r}: a Carrier object exists on it, {alive} in all. Their values end with the "
                    "device. Drop every reference to them first."
                )
            self._node.close()

    def __enter__(self) -> BlockDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error on its way keeps carriers alive in its frames: that refusal must not take its place.
        if error is None or not self._carriers:
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed() else ", faulted" if self._faulted else ""
        return f"<BlockDevice {self.path!r} of {self.capacity_bytes} bytes{state}>"

    # -- for its carriers ------------------------------------------------------------------------------------------

    def _take(self, nbytes: int) -> Extent:
        self._require_usable("allocate on")
        with self._lock:
            self._reap()
            extent = self._free.take(nbytes)
            if extent is None:
                free = self._free
                raise MemoryError(
                    f"cannot allocate {nbytes} bytes on {self.path!r}: no aligned extent of {free.rounded(nbytes)} "
                    f"bytes is free (alignment {free.alignment}); {free.free_nbytes} of {self.capacity_bytes} bytes "
                    f"are, at most {free.largest_nbytes} in one extent. A carrier lies in one extent. Release others "
                    "on this device, or use a bigger one."
                )
            return extent

    def _give(self, extent: Extent) -> None:
        """The extent is free from the next allocation on. A finaliser may call it, so it takes no lock."""
        self._returned.append(extent)

    def _reap(self) -> None:
        while self._returned:
            self._free.give(self._returned.popleft())

    def _fill_with_zeros(self, extent: Extent) -> None:
        zeros = memoryview(bytes(min(_ZEROS_NBYTES, extent.nbytes)))
        for offset in range(extent.offset_nbytes, extent.end_nbytes, _ZEROS_NBYTES):
            self._write([(offset, zeros[: extent.end_nbytes - offset])])

    def _read(self, spans: Sequence[Span]) -> int:
        return self._transfer("read", self._node.read_into, spans)

    def _write(self, spans: Sequence[Span]) -> int:
        return self._transfer("write", self._node.write_from, spans)

    def _transfer(self, what: str, move: Callable[[Sequence[Span]], int], spans: Sequence[Span]) -> int:
        self._require_usable(what)  # before the lock too: a forked child may find it taken for ever
        with self._lock:
            self._require_usable(what)
            try:
                return move(spans)
            except OSError:
                self._faulted = True
                raise

    def _require_usable(self, what: str) -> None:
        self._node.require_open(what)
        if self._faulted:
            raise RuntimeError(
                f"cannot {what} {self.path!r}: the device is faulted. After an I/O error nothing on it is relied on. "
                "Check the device, drop its carriers, close it, and open it anew."
            )


@final
class BlockDeviceCarrier(Carrier):
    """The slots in one extent of a block device; made by `BlockDevice.allocate`, and fixed in size.

    Shapes: flat. Errors: TypeError when it is constructed directly; RuntimeError when its device is closed or faulted;
    StorageError when the device fails, which faults it. A write that fails keeps the version that it advanced.

    >>> from strideweave.carriers.block_device import BlockDeviceCarrier
    >>> BlockDeviceCarrier(4)
    Traceback (most recent call last):
    TypeError: ...use BlockDevice.allocate...
    """

    _device: BlockDevice
    _extent: Extent
    _size: int

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(
            "cannot make a BlockDeviceCarrier: its extent comes from a device. Do not construct one; use "
            "BlockDevice.allocate."
        )

    @classmethod
    def _on(
        cls, device: BlockDevice, extent: Extent, size: int, *, dtype: StorageDType, mutable: bool
    ) -> BlockDeviceCarrier:
        carrier = cls.__new__(cls)
        Carrier.__init__(carrier, dtype=dtype, mutable=mutable)
        carrier._device = device
        carrier._hold(extent, size)
        device._carriers.add(carrier)
        return carrier

    @property
    def device(self) -> BlockDevice:
        """The device that it is on."""
        return self._device

    @property
    def device_offset_bytes(self) -> int:
        """The byte of the device at which slot 0 begins; 0 without an extent."""
        return self._extent.offset_nbytes

    @property
    def extent_bytes(self) -> int:
        """How long the extent is, the bytes after the last slot too."""
        return self._extent.nbytes

    def size(self) -> int:
        """The number of slots."""
        return self._size

    def set_value(self, index: int, value: Scalar) -> None:
        """Write one slot and advance the version once, which a failing device does not take back."""
        before = self._version
        try:
            super().set_value(index, value)
        except OSError:
            self._version = before + 1  # the device may have taken the bytes
            raise

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> BlockDeviceCarrier:
        """A fresh carrier of `size` slots on the same device, zero unless `empty`."""
        return self._device.allocate(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)

    def _spans(self, runs: Sequence[Run]) -> list[tuple[int, memoryview]]:
        for start, values in runs:
            if start < 0 or start + values.numel() > self._size:
                raise IndexError(
                    f"cannot use slots {start} to {start + values.numel()} of {self!r}: it has {self._size}. Beyond "
                    "them lie the values of others. Carrier index out of range. Stay below the size."
                )
        begin, itemsize = self._extent.offset_nbytes, self._dtype.itemsize
        return [(begin + start * itemsize, byte_view(values)) for start, values in runs]

    def _read_runs(self, runs: Sequence[Run]) -> int:
        return self._device._read(self._spans(runs))

    def _write_runs(self, runs: Sequence[Run]) -> int:
        return self._device._write(self._spans(runs))

    def _allocate(self, size: int) -> None:
        assert self._size == 0, "only an empty carrier is allocated"
        self._hold(self._device._take(size * self._dtype.itemsize), size)

    def _hold(self, extent: Extent, size: int) -> None:
        self._extent = extent
        self._size = size
        # Given back at release, or when nobody has the carrier any more.
        self._end = weakref.finalize(self, self._device._give, extent)
        self._end.atexit = False

    def _free(self) -> None:
        self._end()
        self._hold(Extent(0, 0), 0)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} at byte {self.device_offset_bytes} of {self._device.path!r}>"
