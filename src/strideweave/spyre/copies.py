"""Copies between host and card, and within the card: what a view touches is tiled or untiled, and no more."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch

from strideweave.spyre.boxes import Box, boxes
from strideweave.spyre.kernels import DEVICE_NAME, KernelTable, implement
from strideweave.spyre.storage import (
    StorageRecord,
    StoredAs,
    card,
    contiguous_strides,
    is_dense,
    record_of,
)

kernels = KernelTable()


@lru_cache(maxsize=8192)
def host_strides_of(size: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Dense strides in the order of the given ones: what a fresh tensor like that view has.

    >>> from strideweave.spyre.copies import host_strides_of
    >>> host_strides_of((2, 3), (1, 10))
    (1, 2)
    """
    if is_dense(size, strides):
        return strides
    found, step = [0] * len(size), 1
    for k in sorted(range(len(size)), key=lambda k: (strides[k], -k)):
        found[k] = step
        step *= max(size[k], 1)
    return tuple(found)


def boxes_of(tensor: torch.Tensor, record: StorageRecord, host_strides: tuple[int, ...]) -> tuple[Box, ...] | None:
    """The boxes of a tensor of the card whose values the host has with `host_strides`."""
    return boxes(
        record.stored, tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), host_strides
    )


def window(record: StorageRecord, dtype: torch.dtype, box: Box) -> torch.Tensor:
    """The box in device memory, as a CPU tensor that shares the bytes."""
    return torch.as_strided(
        card().view(dtype), box.size, box.device_strides, record.address // dtype.itemsize + box.device_offset
    )


def read(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor of its own with the values of a tensor of the card; strides have the same order, and 0 stays 0."""
    record = record_of(tensor)
    size, strides, dtype = tuple(tensor.size()), tensor.stride(), tensor.dtype
    whole = size
    if 0 in strides and 0 not in size:
        size = tuple(1 if stride == 0 else extent for extent, stride in zip(size, strides, strict=True))
    host_strides = host_strides_of(size, strides)
    found = boxes(record.stored, dtype, size, strides, tensor.storage_offset(), host_strides)
    if found is None:
        return image(record).view(dtype).as_strided(whole, strides, tensor.storage_offset())
    host = torch.empty_strided(size, host_strides, dtype=dtype)
    arena, start = card().view(dtype), record.address // dtype.itemsize
    for box in found:
        _as_strided(host, box.size, box.host_strides, box.host_offset).copy_(
            _as_strided(arena, box.size, box.device_strides, start + box.device_offset)
        )
    return host if size is whole else host.expand(whole)


_as_strided: Final = torch.Tensor.as_strided


def read_into(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """A CPU tensor of the same size has the values of a tensor of the card, converted to its dtype."""
    record = record_of(tensor)
    found = None if _may_overlap(host) else boxes_of(tensor, record, host.stride())
    if found is None:
        host.copy_(read(tensor))
        return
    for box in found:
        part = host.as_strided(box.size, box.host_strides, host.storage_offset() + box.host_offset)
        part.copy_(window(record, tensor.dtype, box))


def _may_overlap(host: torch.Tensor) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(host.size(), host.stride(), strict=True))


def write(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """The tensor of the card has the values of a CPU tensor of the same size, converted to its dtype."""
    record = record_of(tensor)
    found = boxes_of(tensor, record, host.stride())
    if found is None:
        whole = image(record)
        whole.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(host)
        write_image(record, whole)
        return
    for box in found:
        part = host.as_strided(box.size, box.host_strides, host.storage_offset() + box.host_offset)
        window(record, tensor.dtype, box).copy_(part)


def image(record: StorageRecord) -> torch.Tensor:
    """The elements of a storage in the order in which the host would have them, flat."""
    stored = record.stored
    host = torch.empty(stored.host_nbytes // stored.dtype.itemsize, dtype=stored.dtype)
    for box in whole_boxes(stored):
        host.as_strided(box.size, box.host_strides, box.host_offset).copy_(window(record, stored.dtype, box))
    return host


def write_image(record: StorageRecord, host: torch.Tensor) -> None:
    """The storage has the elements of `image(record)`."""
    for box in whole_boxes(record.stored):
        window(record, record.stored.dtype, box).copy_(host.as_strided(box.size, box.host_strides, box.host_offset))


def whole_boxes(stored: StoredAs) -> tuple[Box, ...]:
    """The boxes of everything that a storage holds."""
    found = boxes(stored, stored.dtype, stored.size, stored.strides, 0, stored.strides)
    if found is None:
        raise RuntimeError(f"cannot cut {stored.layout!r} of size {stored.size} into boxes. Report this, please.")
    return found


def duplicate(source: StorageRecord, target: StorageRecord) -> None:
    """The target has the bytes of the source, both stored alike."""
    nbytes = source.stored.nbytes
    arena = card().bytes
    arena[target.address : target.address + nbytes] = arena[source.address : source.address + nbytes]


def is_whole(tensor: torch.Tensor, stored: StoredAs) -> bool:
    """Whether a tensor is all of its storage, in the dtype and the order in which that is stored."""
    return (
        tensor.dtype is stored.dtype
        and tuple(tensor.size()) == stored.size
        and tensor.stride() == stored.strides
        and tensor.storage_offset() == 0
    )


def copy_within(source: torch.Tensor, target: torch.Tensor) -> None:
    """The target has the values of the source; both are on the card."""
    a, b = record_of(source), record_of(target)
    if a is b:
        write(target, read(source))
        return
    if a.stored is b.stored and is_whole(source, a.stored) and is_whole(target, b.stored):
        duplicate(a, b)
        return
    order = host_strides_of(tuple(target.size()), target.stride())
    from_boxes, to_boxes = boxes_of(source, a, order), boxes_of(target, b, order)
    if from_boxes is None or to_boxes is None or len(from_boxes) != len(to_boxes):
        write(target, read(source))
        return
    pairs = list(zip(from_boxes, to_boxes, strict=True))
    if any((p.size, p.host_strides, p.host_offset) != (q.size, q.host_strides, q.host_offset) for p, q in pairs):
        write(target, read(source))
        return
    for p, q in pairs:
        window(b, target.dtype, q).copy_(window(a, source.dtype, p))


def _is_here(tensor: torch.Tensor) -> bool:
    return tensor.device.type == DEVICE_NAME


@kernels("_copy_from")
def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`target.copy_(source)` where one of them is on the card."""
    for tensor in (source, target):
        if not _is_here(tensor) and tensor.device.type != "cpu":
            raise RuntimeError(
                f"cannot copy between {source.device} and {target.device}: the card copies to and from the CPU only. "
                "Go through .cpu()."
            )
    if source.layout is not torch.strided or target.layout is not torch.strided:
        raise RuntimeError(
            f"cannot copy a {source.layout} tensor to a {target.layout} one: the card holds strided tensors only. "
            "Call .to_dense() first."
        )
    if source.size() != target.size():
        source = source.expand(target.size())
    if source.is_conj() or source.is_neg() or target.is_conj() or target.is_neg():
        _copy_resolved(source, target)
        return target
    if not _is_here(source):
        write(target, source)
    elif not _is_here(target):
        read_into(source, target)
    else:
        copy_within(source, target)
    return target


def _copy_resolved(source: torch.Tensor, target: torch.Tensor) -> None:
    """As `copy_from`, of tensors whose bits say that their memory holds the conjugate or the negative."""
    if _is_here(source):
        values = _with_bits(read(source), source)
    else:
        values = source.resolve_conj().resolve_neg()
    if _is_here(target):
        write(target, _with_bits(values.to(target.dtype), target))
    else:
        target.copy_(values)


def _with_bits(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_conj():
        values = values.conj_physical()
    return values.neg() if tensor.is_neg() else values


def register(library: torch.library.Library, key: str) -> None:
    """The dispatcher calls these kernels for `key`, also for tensors with bits, which they understand."""
    kernels.register(library, key)
    for bit in ("Conjugate", "Negative"):
        implement(library, "_copy_from", torch.library.fallthrough_kernel, bit)


@kernels("_copy_from_and_resize")
def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """`target` has the size and the values of `source`."""
    if source.size() != target.size():
        target.resize_(source.size())
    return copy_from(source, target)


def to_card(host: torch.Tensor) -> torch.Tensor:
    """A new tensor of the card with the values of a CPU tensor, and its strides where they are dense."""
    from strideweave.spyre.storage import new_tensor

    size, strides = tuple(host.size()), host.stride()
    if not is_dense(size, strides):
        strides = contiguous_strides(size)
    made = new_tensor(size, strides, host.dtype)
    write(made, host)
    return made
