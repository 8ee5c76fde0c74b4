"""Views, empty tensors and resizing on the card: torch's own kernels for sizes and strides, our own memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from strideweave.spyre.copies import copy_from, read, write
from strideweave.spyre.kernels import CPU_KEYS, DEVICE_NAME, KernelTable, aten, implement, untraced
from strideweave.spyre.storage import contiguous_strides, is_dense, new_storage, new_tensor, record_at, stored_as

kernels = KernelTable()

METADATA_ONLY = (
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
)
"""Operations that change sizes and strides only: the CPU's kernels for them never follow the data pointer."""


def require_plain(*, layout: Any, device: Any, pin_memory: Any, what: str) -> None:
    """A tensor that the card can hold is asked for.

    Errors: RuntimeError for a sparse layout, pinned memory or a card that does not exist.
    """
    if layout is not None and layout is not torch.strided:
        raise RuntimeError(
            f"cannot make {what} of layout {layout} on {DEVICE_NAME}: the card holds strided tensors only. Make it on "
            "the CPU."
        )
    if pin_memory:
        raise RuntimeError(
            f"cannot pin the memory of {what} on {DEVICE_NAME}: only memory of the host is pinned, and the simulated "
            "card needs none. Leave pin_memory out."
        )
    if device is not None and device.index not in (None, 0):
        raise RuntimeError(f"cannot make {what} on {device}: there is one card, number 0. Use device='{DEVICE_NAME}'.")


@kernels("empty.memory_format")
def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    """`torch.empty(..., device="spyre")`."""
    require_plain(layout=layout, device=device, pin_memory=pin_memory, what=f"a tensor of size {tuple(size)}")
    if memory_format is None or memory_format is torch.contiguous_format:
        strides: Sequence[int] = contiguous_strides(size)
    else:
        strides = torch.empty(size, memory_format=memory_format, device="meta").stride()
    return new_tensor(size, strides, dtype or torch.get_default_dtype())


@kernels("empty_strided")
def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> torch.Tensor:
    """`torch.empty_strided(..., device="spyre")`."""
    require_plain(layout=layout, device=device, pin_memory=pin_memory, what=f"a tensor of size {tuple(size)}")
    return new_tensor(size, stride, dtype or torch.get_default_dtype())


@kernels("resize_")
def resize_(tensor: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
    """`tensor.resize_(size)`: a storage that is too small is replaced, and other views keep the old one."""
    size = tuple(size)
    if size == tuple(tensor.size()) and memory_format is None:
        return tensor
    if memory_format in (None, torch.contiguous_format):
        strides: tuple[int, ...] = contiguous_strides(size)
    else:
        strides = torch.empty(size, memory_format=memory_format, device="meta").stride()
    offset, itemsize = int(tensor.storage_offset()), tensor.dtype.itemsize
    storage = tensor.untyped_storage()
    extent = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    if (offset + extent) * itemsize <= storage.nbytes():
        _set(tensor, storage, offset, size, strides)
        return tensor
    kept = storage.nbytes() // itemsize - offset
    stored = stored_as(size, strides, tensor.dtype) if not offset else stored_as((offset + extent,), (1,), tensor.dtype)
    made = new_storage(stored)
    if kept > 0 and record_at(storage.data_ptr()) is not None:
        flat = tensor.detach().as_strided((kept,), (1,), offset)
        values = read(flat)
        _set(tensor, made, offset, size, strides)
        write(tensor.detach().as_strided((kept,), (1,), offset), values)
    else:
        _set(tensor, made, offset, size, strides)
    return tensor


def _set(tensor: torch.Tensor, storage: Any, offset: int, size: Sequence[int], strides: Sequence[int]) -> None:
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(CPU_KEYS, tensor, storage, offset, size, strides)


@kernels("set_.source_Storage")
def set_storage(tensor: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    """`tensor.set_(storage)`: all of it, as one flat dim."""
    elements = source.nbytes() // tensor.dtype.itemsize
    _set(tensor, source, 0, (elements,), (1,))
    return tensor


@kernels("set_")
def set_empty(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor.set_()`: no elements."""
    _set(tensor, new_storage(stored_as((0,), (1,), tensor.dtype)), 0, (0,), (1,))
    return tensor


@kernels("set_.source_Storage_storage_offset")
def set_storage_view(
    tensor: torch.Tensor, source: torch.UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """`tensor.set_(storage, offset, size, stride)`; bytes that were loaded get the layout of the first whole tensor."""
    size, stride = tuple(size), tuple(stride) or contiguous_strides(size)
    record = record_at(source.data_ptr())
    if record is not None and (record.is_raw or record.replacement is not None):
        source = _described(record, source, offset, size, stride, tensor.dtype)
    _set(tensor, source, offset, size, stride)
    return tensor


def _described(
    record: Any, source: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> Any:
    """The storage that stands for loaded bytes: one in the layout of the tensor that fills them."""
    if record.replacement is not None:
        return record.replacement
    stored = stored_as(size, stride, dtype)
    if offset or not is_dense(size, stride) or stored.host_nbytes != source.nbytes():
        return source
    record.is_raw = False
    record.replacement = new_storage(stored)
    whole = torch.empty(0, dtype=dtype, device=DEVICE_NAME)
    _set(whole, record.replacement, 0, size, stride)
    raw = torch.empty(0, dtype=torch.uint8, device=DEVICE_NAME)
    _set(raw, source, 0, (source.nbytes(),), (1,))
    copy_from(read(raw).view(dtype).as_strided(size, stride), whole)
    return record.replacement


def register(library: torch.library.Library, key: str) -> None:
    """The dispatcher calls these kernels for `key`, and the CPU's for what changes sizes and strides only."""
    kernels.register(library, key)
    for name in METADATA_ONLY:
        if name in kernels.kernels:
            continue

        def kernel(*arguments: Any, _name: str = name, **named: Any) -> Any:
            return aten(_name).redispatch(CPU_KEYS, *arguments, **named)

        implement(library, name, untraced(kernel), key)
