"""Pointwise operations in device memory itself: no copy to the host where all operands are whole tensors.

Every operand becomes a strided window over the device dims of the result, with stride 0 where it is broadcast. What
does not fit goes the way of all other operations (`fallback`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from strideweave.spyre.copies import boxes_of, window, write
from strideweave.spyre.fallback import run_on_host
from strideweave.spyre.kernels import DEVICE_NAME, KernelTable, aten, untraced
from strideweave.spyre.memory import BASE
from strideweave.spyre.storage import (
    StorageRecord,
    StoredAs,
    card,
    new_storage,
    poison_padding,
    record_at,
    record_of,
    tensor_of,
)

kernels = KernelTable()

_nn: Final = torch._C._nn


def _relu(values: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.clamp_min(values, 0, out=out)


def _gradient(name: str) -> Callable[..., Any]:
    def compute(*arguments: Any, out: torch.Tensor, **named: Any) -> Any:
        return aten(f"{name}.grad_input")(*arguments, **named, grad_input=out)

    return compute


_ANY_NUMBER: Final[dict[str, Callable[..., Any]]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "relu": _relu,
    "clamp": torch.clamp,
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "add.Tensor": torch.add,
    "add.Scalar": torch.add,
    "sub.Tensor": torch.sub,
    "sub.Scalar": torch.sub,
    "mul.Tensor": torch.mul,
    "mul.Scalar": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "addcmul": torch.addcmul,
}
"""Operations that keep the dtype of their operands, whole numbers too."""

_FLOATS: Final[dict[str, Callable[..., Any]]] = {
    **{
        name: getattr(torch, name)
        for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid")
    },
    **{name: getattr(torch, name) for name in ("sin", "cos", "erf", "addcdiv")},
    **{name: getattr(_nn, name) for name in ("silu", "gelu", "leaky_relu", "elu", "hardtanh", "softplus")},
    "div.Tensor": torch.div,
    "div.Scalar": torch.div,
    "lerp.Scalar": torch.lerp,
    **{
        name: _gradient(name)
        for name in ("threshold_backward", "tanh_backward", "sigmoid_backward", "gelu_backward", "silu_backward")
    },
}
"""Operations that keep the dtype of floats."""

_IN_PLACE: Final = (
    "abs", "neg", "relu", "clamp", "clamp_min", "clamp_max", "add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar",
    "mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "addcmul", "addcdiv", "lerp.Scalar", "exp", "log", "sqrt",
    "rsqrt", "reciprocal", "tanh", "sigmoid", "silu", "leaky_relu",
)  # fmt: skip


@lru_cache(maxsize=4096)
def broadcast_strides(operand: StoredAs, result: StoredAs) -> tuple[int, ...] | None:
    """The strides of an operand's elements over the device dims of the result; None where no strides do it.

    >>> import torch
    >>> from strideweave.spyre.pointwise import broadcast_strides
    >>> from strideweave.spyre.storage import stored_as
    >>> row = stored_as((100,), (1,), torch.float32)
    >>> broadcast_strides(row, stored_as((5, 100), (100, 1), torch.float32))
    (32, 0, 1)
    """
    mine, theirs = operand.layout, result.layout
    if mine.dim_map is None or theirs.dim_map is None or operand.step != result.step:
        return None
    if mine.elems_per_stick != theirs.elems_per_stick:
        return None
    shift = len(result.size) - len(operand.size)
    if shift < 0:
        return None
    strides = []
    for k, d in enumerate(theirs.dim_map):
        own = d - shift
        if d < 0 or own < 0 or operand.size[own] == 1:
            strides.append(0)
            continue
        if operand.size[own] != result.size[d]:
            return None
        places = [j for j, host in enumerate(mine.dim_map) if host == own]
        if (own == mine.dim_map[-1]) != (d == theirs.dim_map[-1]):
            return None
        strides.append(operand.device_strides[places[-1] if k == len(theirs.dim_map) - 1 else places[0]])
    return tuple(strides)


def _whole_record(tensor: torch.Tensor) -> StorageRecord | None:
    """The record of a tensor of the card that is all of its storage."""
    record = record_at(tensor.untyped_storage().data_ptr())
    if record is None:
        return None
    stored = record.stored
    if (
        tensor.dtype is stored.dtype
        and tensor.size() == stored.size
        and tensor.stride() == stored.strides
        and not tensor.storage_offset()
        and stored.step == 1
    ):
        return record
    return None


def _operands(arguments: Sequence[Any]) -> tuple[StoredAs, list[torch.Tensor], list[StorageRecord | None]] | None:
    """How the result is stored, the tensors among the arguments, their records (None for a number of the host)."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    records: list[StorageRecord | None] = []
    lead: StoredAs | None = None
    one = tensors[0]
    for tensor in tensors:
        if tensor.device.type != DEVICE_NAME:
            if tensor.dim():
                return None
            records.append(None)
            continue
        record = _whole_record(tensor)
        if record is None:
            return None
        records.append(record)
        if lead is None or _is_larger(record.stored.size, lead.size):
            lead, one = record.stored, tensor
    if lead is None or not lead.nbytes:
        return None
    for tensor, record in zip(tensors, records, strict=True):
        if record is None:
            if torch.result_type(one, tensor) is not lead.dtype:
                return None
        elif record.stored is not lead and (record.stored.dtype is not lead.dtype or record.stored.size == lead.size):
            return None  # of two orders of strides, torch decides which one the result has
    return lead, tensors, records


def _is_larger(size: tuple[int, ...], other: tuple[int, ...]) -> bool:
    if len(size) != len(other):
        return len(size) > len(other)
    return size != other and all(a >= b for a, b in zip(size, other, strict=True))


def _windows(
    lead: StoredAs, tensors: list[torch.Tensor], records: list[StorageRecord | None]
) -> tuple[list[torch.Tensor], bool] | None:
    """The operands as windows over the device dims of `lead`, and whether these are one flat dim: all stored alike."""
    arena, itemsize = card().view(lead.dtype), lead.dtype.itemsize
    is_flat = all(record is None or record.stored is lead for record in records)
    size = (lead.nbytes // itemsize,) if is_flat else lead.layout.device_size
    found: list[torch.Tensor] = []
    for tensor, record in zip(tensors, records, strict=True):
        if record is None:
            found.append(tensor)
            continue
        strides: tuple[int, ...] | None = (1,)
        if not is_flat:
            strides = lead.device_strides if record.stored is lead else broadcast_strides(record.stored, lead)
        if strides is None:
            return None
        found.append(arena.as_strided(size, strides, record.address // itemsize))
    return found, is_flat


def _keeps_dtype(arguments: Sequence[Any], named: dict[str, Any], dtype: torch.dtype) -> bool:
    """Whether the numbers among the arguments leave `dtype` as it is."""
    numbers = (int, float, type(None), str) if dtype.is_floating_point else (int, type(None))
    return all(isinstance(a, (torch.Tensor, *numbers)) for a in (*arguments, *named.values()))


def _kernel(name: str, compute: Callable[..., Any], *, whole_numbers: bool, is_in_place: bool) -> Callable[..., Any]:
    """The kernel of the operation `name`, which `compute(..., out=)` does on windows of device memory."""

    def kernel(*arguments: Any, **named: Any) -> Any:
        plan = _operands(arguments)
        if plan is None:
            return run_on_host(aten(name), *arguments, **named)
        lead, tensors, records = plan
        dtype = lead.dtype
        if not (dtype.is_floating_point or (whole_numbers and dtype in _INTEGERS)) or dtype.itemsize == 1:
            return run_on_host(aten(name), *arguments, **named)
        if not _keeps_dtype(arguments, named, dtype):
            return run_on_host(aten(name), *arguments, **named)
        if is_in_place and (records[0] is None or records[0].stored is not lead):
            return run_on_host(aten(name), *arguments, **named)
        found = _windows(lead, tensors, records)
        if found is None:
            return run_on_host(aten(name), *arguments, **named)
        windows, is_flat = found
        if is_in_place:
            made, target, address = arguments[0], windows[0], records[0].address  # type: ignore[union-attr]
        else:
            storage = new_storage(lead)
            address = storage.data_ptr() - BASE
            size, strides = ((lead.nbytes // dtype.itemsize,), (1,)) if is_flat else _device_dims(lead)
            target = card().view(dtype).as_strided(size, strides, address // dtype.itemsize)
            made = tensor_of(storage, 0, lead.size, lead.strides, dtype)
        supply = iter(windows)
        compute(*[next(supply) if isinstance(a, torch.Tensor) else a for a in arguments], **named, out=target)
        if lead.has_padding and not dtype.is_floating_point:
            poison_padding(address, lead)
        return made

    return untraced(kernel)


def _device_dims(stored: StoredAs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return stored.layout.device_size, stored.device_strides


_INTEGERS: Final = (torch.int16, torch.int32, torch.int64)

for _group, _whole_numbers in ((_ANY_NUMBER, True), (_FLOATS, False)):
    for _name, _compute in _group.items():
        _packet, _, _overload = _name.partition(".")
        kernels.kernels[_name] = _kernel(_name, _compute, whole_numbers=_whole_numbers, is_in_place=False)
        if _name in _IN_PLACE:
            _same = f"{_packet}_.{_overload}".removesuffix(".")
            kernels.kernels[_same] = _kernel(_same, _compute, whole_numbers=_whole_numbers, is_in_place=True)


@kernels("fill_.Scalar")
def fill_(tensor: torch.Tensor, value: Any) -> torch.Tensor:
    """`tensor.fill_(value)`: the lanes that hold elements, and no padding."""
    record = record_of(tensor)
    found = boxes_of(tensor, record, tensor.stride())
    if found is None:
        write(tensor, torch.full(tensor.size(), value, dtype=tensor.dtype))
        return tensor
    for box in found:
        window(record, tensor.dtype, box).fill_(value)
    return tensor


@kernels("fill_.Tensor")
def fill_with_tensor_(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`tensor.fill_(value)` with a value of no dims."""
    return run_on_host(aten("fill_.Tensor"), tensor, value)  # type: ignore[no-any-return]


@kernels("zero_")
def zero_(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor.zero_()`."""
    return fill_(tensor, 0)
