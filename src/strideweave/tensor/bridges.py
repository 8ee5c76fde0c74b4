"""Bridges: the memory of torch, numpy and DLPack producers as Tensors, and Tensors as numpy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from strideweave.carriers.cpu import CPU
from strideweave.carriers.cuda import CUDA
from strideweave.carriers.metal import Metal
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout, Shape, Stride
from strideweave.tensor.dlpack import HOST, dlpack_capsule, dlpack_device, read_capsule, require_memory
from strideweave.tensor.pickling import deepcopy_tensor, reduce_tensor
from strideweave.tensor.tensor import Tensor

__all__ = [
    "array_protocol",
    "deepcopy_tensor",
    "dlpack_capsule",
    "dlpack_device",
    "from_dlpack",
    "from_numpy",
    "from_torch",
    "reduce_tensor",
    "to_numpy",
]

_CLASS_OF: dict[str, type[TorchStorage]] = {known.device_type: known for known in (CPU, CUDA, Metal)}

_STORAGE_OF: dict[np.dtype[Any], StorageDType] = {
    np.dtype(np.float64): DType.Float64,
    np.dtype(np.float32): DType.Float32,
    np.dtype(np.float16): DType.Float16,
    np.dtype(np.int64): DType.Int64,
    np.dtype(np.int32): DType.Int32,
    np.dtype(np.int16): DType.Int16,
    np.dtype(np.int8): DType.Int8,
    np.dtype(np.uint8): DType.UInt8,
    np.dtype(np.bool_): DType.Bool,
}


def from_torch(source: torch.Tensor) -> Tensor:
    """A Tensor over the memory of `source`: shape, strides and order are kept, nothing is copied.

    The carrier is a CPU, CUDA or Metal one, as the device of `source` is.

    Errors: TypeError for what is no strided torch tensor on one of these devices; ValueError for an empty one, or one
    whose dtype has no storage here.

    >>> import torch
    >>> from strideweave.tensor.bridges import from_torch
    >>> x = torch.arange(6.0).reshape(2, 3)
    >>> t = from_torch(x)
    >>> t[1, 0], t.torch().data_ptr() == x.data_ptr()
    (3.0, True)
    """
    if not isinstance(source, torch.Tensor):
        raise TypeError(f"cannot make a Tensor from {type(source).__name__}: it is no torch tensor. Pass one.")
    if source.device.type not in _CLASS_OF or source.layout != torch.strided:
        raise TypeError(
            f"cannot share a {source.layout} tensor on {source.device}: only strided tensors in memory of "
            f"{', '.join(_CLASS_OF)} are shared. Call .to_dense() or .cpu() first, which copies."
        )
    if source.is_conj() or source.is_neg():
        raise ValueError(
            "cannot share a lazily conjugated or negated tensor: its memory holds other values. Call .resolve_neg()."
        )
    _require_values(tuple(source.shape))
    return _over(source.detach(), mutable=True)


def from_numpy(array: npt.NDArray[Any], *, copy: bool = False) -> Tensor:
    """A Tensor over the memory of `array`, or over a dense copy that keeps the order of its dims; one mode per dim.

    A read-only array gives an immutable carrier. The array stays alive as long as the carrier needs it.

    Errors: TypeError for what is no array; ValueError for an empty one, for a dtype that has no storage here, and for
    memory that a Layout cannot describe: negative or uneven strides, a foreign byte order, unaligned elements. The
    message names the copy to ask for.

    >>> import numpy
    >>> from strideweave.tensor.bridges import from_numpy
    >>> a = numpy.arange(6.0).reshape(2, 3)
    >>> t = from_numpy(a.T)
    >>> a[0, 2] = 9.0
    >>> t[2, 0], t.layout
    (9.0, Layout(Shape(3, 2), Stride(1, 3)))
    """
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"cannot make a Tensor from {type(array).__name__}: it is no plain numpy array. Pass numpy.asarray of it, "
            "or .filled() of a masked array."
        )
    dtype = _storage_of(array)
    _require_values(array.shape)
    if copy:
        # order="K" keeps which dim is fastest; strides come out positive, elements aligned.
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="K", copy=True, subok=False)
    _require_describable(array)
    layout = Layout(Shape(*array.shape), Stride(*(nbytes // dtype.itemsize for nbytes in _steps(array))))
    # Not torch.from_numpy: it warns about read-only memory, for which the carrier is immutable here.
    memory = (ctypes.c_byte * (layout.cosize * dtype.itemsize)).from_address(array.ctypes.data)
    memory.owner = array  # type: ignore[attr-defined]  # a ctypes array takes attributes: this one keeps the memory
    flat = torch.frombuffer(memory, dtype=dtype.torch_dtype)
    return Tensor(CPU.wrap(flat, mutable=bool(array.flags.writeable)), 0, layout)


def from_dlpack(source: Any, *, copy: bool | None = None) -> Tensor:
    """A Tensor over the memory of anything with `__dlpack__`, or over a copy of it when `copy` is True.

    One mode per dim. Memory that its producer calls read-only gives an immutable carrier.

    Errors: TypeError for what has no `__dlpack__`; BufferError for memory on another device, and whatever the producer
    refuses; ValueError for an empty one, a dtype that has no storage here, or negative strides without a copy.

    >>> import torch
    >>> from strideweave.tensor.bridges import from_dlpack
    >>> x = torch.arange(6.0).reshape(2, 3)
    >>> from_dlpack(x)[1, 2], from_dlpack(x).torch().data_ptr() == x.data_ptr()
    (5.0, True)
    """
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TypeError(
            f"cannot make a Tensor from {type(source).__name__}: it has no __dlpack__ and __dlpack_device__. Pass an "
            "array of a library that exports DLPack."
        )
    if copy is not None and not isinstance(copy, bool):
        raise TypeError(f"cannot import with copy={copy!r}: it is True, False or None. Pass one of these.")
    kind, number = source.__dlpack_device__()
    if int(kind) != HOST:
        raise BufferError(
            f"cannot share memory on DLPack device ({int(kind)}, {int(number)}): a CPU carrier is in host memory, "
            "(1, 0). Copy it to the host first."
        )
    capsule = _export(source)
    facts = read_capsule(capsule)
    _require_values(facts.shape)
    # torch ends the process when it is given a capsule with a negative stride, so it never sees one.
    if facts.strides is not None and min(facts.strides, default=0) < 0:
        if copy:
            return from_numpy(np.from_dlpack(source), copy=True)
        raise ValueError(
            f"cannot share memory with strides {facts.strides}: a Layout steps forward only. Pass copy=True."
        )
    shared: torch.Tensor = torch.utils.dlpack.from_dlpack(capsule)
    return _over(shared.clone(), mutable=True) if copy else _over(shared, mutable=not facts.is_read_only)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """The same memory as a numpy array; a nested mode becomes one dim per leaf, first leaf first.

    The array is read-only when the tensor is not mutable, and stays good after the carrier is released.

    Errors: BufferError when the values are not in host memory; TypeError for a dtype that numpy does not have;
    RuntimeError for a tensor that requires grad, or whose carrier is released.

    >>> from strideweave import CPU, Layout, Tensor
    >>> from strideweave.tensor.bridges import to_numpy
    >>> a = to_numpy(Tensor(CPU(6), 0, Layout.row_major(2, 3)))
    >>> a.shape, a.strides, a.flags.writeable
    ((2, 3), (12, 4), True)
    """
    require_memory(tensor, "see as a numpy array")
    if tensor.requires_grad:
        raise RuntimeError(
            f"cannot call numpy() on {tensor!r}: it requires grad, and numpy records nothing. Use detach().numpy()."
        )
    dtype = tensor.dtype()
    if dtype not in _STORAGE_OF.values():
        raise TypeError(
            f"cannot see {dtype.name} as a numpy array: numpy has no such dtype. Use .torch(), and .float().numpy() on "
            "it for a Float32 copy."
        )
    view = tensor.torch().detach()
    if view.device.type != "cpu":
        raise BufferError(
            f"cannot see memory on {view.device} as a numpy array: numpy sees host memory only. Use "
            ".torch().cpu().numpy(), which copies."
        )
    array: npt.NDArray[Any] = view.numpy()
    if not tensor.is_mutable():
        array.flags.writeable = False
    return array


def array_protocol(tensor: Tensor, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
    """What `__array__` returns: the shared array of `to_numpy`, or a copy when one is asked for or `dtype` needs one.

    Errors: those of `to_numpy`; ValueError when `copy` is False and another dtype is asked for.
    Source: NumPy 2, `__array__(dtype=None, copy=None)`.

    >>> from strideweave import CPU, Layout, Tensor
    >>> from strideweave.tensor.bridges import array_protocol
    >>> array_protocol(Tensor(CPU(2), 0, Layout.column_major(2)), dtype="int8")
    array([0, 0], dtype=int8)
    """
    shared = to_numpy(tensor)
    if dtype is not None and np.dtype(dtype) != shared.dtype:
        if copy is False:
            raise ValueError(
                f"cannot see {tensor!r} as {np.dtype(dtype).name} without a copy: its memory holds {shared.dtype.name}."
                " Another dtype needs other memory. Pass copy=None."
            )
        return shared.astype(dtype)
    return shared.copy(order="K") if copy else shared


def _over(plain: torch.Tensor, *, mutable: bool) -> Tensor:
    """The Tensor over the whole storage of a strided tensor that has values."""
    slots = plain.untyped_storage().nbytes() // plain.element_size()
    flat = torch.as_strided(plain, (slots,), (1,), 0)
    layout = Layout(Shape(*plain.shape), Stride(*plain.stride()))
    carrier = _CLASS_OF[plain.device.type].wrap(flat, mutable=mutable)
    return Tensor(carrier, int(plain.storage_offset()), layout)


def _require_values(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ValueError(
            f"cannot share a tensor of shape {tuple(shape)}: a Layout has extents of at least 1. Leave it out."
        )


def _storage_of(array: npt.NDArray[Any]) -> StorageDType:
    found = _STORAGE_OF.get(array.dtype.newbyteorder("="))
    if found is None:
        names = ", ".join(known.name for known in _STORAGE_OF)
        raise ValueError(
            f"cannot make a Tensor of numpy dtype {array.dtype}: it has no storage here. Convert it with astype() to "
            f"one of {names}."
        )
    return found


def _steps(array: npt.NDArray[Any]) -> list[int]:
    """The strides in bytes; in a dim of one element, where nothing steps, 0 for a stride that no Layout has."""
    return [
        0 if extent == 1 and (nbytes < 0 or nbytes % array.itemsize) else nbytes
        for extent, nbytes in zip(array.shape, array.strides, strict=True)
    ]


def _require_describable(array: npt.NDArray[Any]) -> None:
    """Nothing, when a Layout over aligned elements of this machine's byte order describes the memory."""
    reason = ""
    if not array.dtype.isnative:
        reason = f"its dtype {array.dtype.str} has a foreign byte order"
    elif any(nbytes < 0 for nbytes in _steps(array)):
        reason = f"its strides {array.strides} bytes step backward, and a Layout steps forward only"
    elif any(nbytes % array.itemsize for nbytes in _steps(array)):
        reason = f"its strides {array.strides} bytes are no whole number of {array.itemsize}-byte elements"
    elif not array.flags.aligned:
        reason = f"its elements are not aligned to {array.dtype.alignment} bytes"
    if reason:
        raise ValueError(f"cannot share a numpy array of shape {array.shape}: {reason}. Pass copy=True.")


def _export(source: Any) -> object:
    """A capsule of the newest version that the producer offers."""
    try:
        exported: object = source.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer from before DLPack 1.0 does not know the argument
        exported = source.__dlpack__()
    return exported
