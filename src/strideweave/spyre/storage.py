"""Storages of the device `spyre`: which block of device memory, in which layout, for which host elements."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from strideweave.spyre import default_layout
from strideweave.spyre.kernels import CPU_KEYS, DEVICE_NAME, untraced
from strideweave.spyre.memory import BASE, DeviceMemory, memory
from strideweave.spyre.sticks import host_step
from strideweave.spyre.tensor_layout import MAX_RANK, SpyreTensorLayout


class StoredAs:
    """How the elements of a storage sit on the card: made once for every size, strides and dtype, compared by identity.

    A storage that has gaps, overlaps or more than six dims is kept as one flat dim.
    """

    __slots__ = ("device_strides", "dtype", "has_padding", "host_nbytes", "layout", "nbytes", "size", "step", "strides")

    def __init__(
        self,
        size: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        layout: SpyreTensorLayout | None = None,
    ) -> None:
        self.size, self.strides, self.dtype = size, strides, dtype
        self.layout = default_layout.layout_for(size, strides, dtype) if layout is None else layout
        self.step = host_step(dtype)
        self.device_strides = tuple(s * self.step for s in self.layout.device_strides)
        self.nbytes = self.layout.nbytes
        elements = math.prod(size)
        self.host_nbytes = elements * dtype.itemsize
        self.has_padding = elements != self.layout.elems


class StorageRecord:
    """A live storage: its block and how its elements sit there."""

    __slots__ = ("address", "is_raw", "reference", "replacement", "stored")

    def __init__(self, address: int, stored: StoredAs) -> None:
        self.address = address
        self.stored = stored
        self.is_raw = False
        """Whether it is bytes that were loaded, and no tensor yet."""
        self.replacement: Any = None
        self.reference: weakref.ref[Any] | None = None


_records: Final[dict[int, StorageRecord]] = {}
_card: DeviceMemory | None = None
_device: Final[dict[int, torch.device]] = {}


@lru_cache(maxsize=4096)
def stored_as(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> StoredAs:
    """How a tensor of this size, strides and dtype is stored when it is made.

    >>> import torch
    >>> from strideweave.spyre.storage import stored_as
    >>> stored_as((4, 100), (100, 1), torch.float16).layout.device_size
    (2, 4, 64)
    """
    if 0 in size:
        return _shared((0,), (1,), dtype)
    if len(size) > MAX_RANK or not is_dense(size, strides):
        return _shared((default_layout.host_extent(size, strides),), (1,), dtype)
    return _shared(size, normal_strides(size, strides), dtype)


@lru_cache(maxsize=4096)
def _shared(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> StoredAs:
    return StoredAs(size, strides, dtype)


@lru_cache(maxsize=8192)
def is_dense(size: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """As `default_layout.is_dense`, cached: every copy asks.

    >>> from strideweave.spyre.storage import is_dense
    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (4, 1))
    (True, False)
    """
    return default_layout.is_dense(size, strides)


def normal_strides(size: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, where those of extent 1 follow from the dims inside of them."""
    found = list(strides)
    for k in range(len(size) - 1, -1, -1):
        if size[k] == 1:
            found[k] = size[k + 1] * found[k + 1] if k + 1 < len(size) else 1
    return tuple(found)


def contiguous_strides(size: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides as torch gives them.

    >>> from strideweave.spyre.storage import contiguous_strides
    >>> contiguous_strides((2, 0, 3))
    (3, 3, 1)
    """
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


# -- making ----------------------------------------------------------------------------------------------------------


def card() -> DeviceMemory:
    """The device memory that storages live in."""
    global _card
    if _card is None:
        _card = memory()
        _device[0] = torch.device(DEVICE_NAME, 0)
    return _card


@untraced
def _release(reference: _Reference) -> None:
    record = _records.pop(reference.pointer, None)
    if record is not None and _card is not None:
        _card.free(record.address)


class _Reference(weakref.ref[Any]):
    """A storage that may die; `pointer` says where it lived."""

    __slots__ = ("pointer",)
    pointer: int


def new_storage(stored: StoredAs, host_nbytes: int | None = None) -> Any:
    """A storage of the card for elements that are `stored` so; its memory is free again when it dies."""
    device_memory = _card or card()
    address = device_memory.allocate(stored.nbytes, stored.layout)
    if stored.has_padding and stored.nbytes > 2**20:
        poison_padding(address, stored)
    pointer = BASE + address
    record = StorageRecord(address, stored)
    storage: Any = torch._C._construct_storage_from_data_pointer(
        pointer, _device[0], stored.host_nbytes if host_nbytes is None else host_nbytes
    )
    reference = record.reference = _Reference(storage, _release)
    reference.pointer = pointer
    _records[pointer] = record
    return storage


def new_tensor(size: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the card whose elements are not written yet."""
    storage = new_storage(stored_as(tuple(size), tuple(strides), dtype))
    return tensor_of(storage, 0, size, strides, dtype)


def tensor_of(
    storage: Any, offset: int, size: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The tensor of that size, strides and dtype within a storage of the card."""
    empty = _create_empty((0,), dtype)
    _set(CPU_KEYS, empty, storage, offset, size, strides)
    return empty


_create_empty: Final = torch._C._acc.create_empty_tensor
_set: Final = torch.ops.aten.set_.source_Storage_storage_offset.redispatch


def poison_padding(address: int, stored: StoredAs) -> None:
    """The lanes that hold no element are poison, where config asks for it.

    Only the last stick along the stick dim has such lanes.
    """
    from strideweave.spyre import config

    if not config.poison or not stored.has_padding:
        return
    layout, device_memory = stored.layout, _card or card()
    dims = layout.dim_map or (-1,)
    itemsize = layout.device_dtype.itemsize
    if dims[-1] < 0:  # one element, in a stick of its own
        device_memory.poison(address + itemsize, stored.nbytes - itemsize)
        return
    lanes, poison = _LANES[itemsize]
    tiles = max(k for k in range(len(dims) - 1) if dims[k] == dims[-1])
    last, eps = layout.device_size[tiles] - 1, layout.elems_per_stick
    used = stored.size[dims[-1]] - last * eps
    every = torch.as_strided(device_memory.view(lanes), layout.device_size, layout.device_strides, address // itemsize)
    every.narrow(tiles, last, 1).narrow(-1, used, eps - used).fill_(poison)


_LANES: Final[dict[int, tuple[torch.dtype, Any]]] = {
    1: (torch.uint8, 255),
    2: (torch.int16, -1),
    4: (torch.int32, -1),
    8: (torch.int64, -1),
    16: (torch.complex128, complex("nan+nanj")),
}


def record_of(tensor: torch.Tensor) -> StorageRecord:
    """What is known of the storage of a tensor on the card.

    Errors: RuntimeError for a storage that the device did not make.
    """
    found = _records.get(tensor.untyped_storage().data_ptr())
    if found is None:
        raise RuntimeError(
            f"cannot read a {tuple(tensor.shape)} tensor on {tensor.device}: its storage is not in the card's memory. "
            "Make tensors with torch.empty(..., device='spyre') or .to('spyre')."
        )
    return found


def record_at(pointer: int) -> StorageRecord | None:
    """What is known of the storage with that data pointer; None where there is none."""
    return _records.get(pointer)
