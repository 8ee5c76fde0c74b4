"""DLPack: a Tensor's memory as a capsule, and the facts that a capsule tells about somebody else's memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from strideweave.carriers.torch_storage import TorchStorage
from strideweave.tensor.tensor import Tensor

HOST = 1
"""The DLPack number of host memory (kDLCPU)."""

_READ_ONLY = 1
_VERSIONED = b"dltensor_versioned"
_LEGACY = b"dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Legacy(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


# Prototypes of our own: the attributes of ctypes.pythonapi belong to everybody in the process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class CapsuleFacts:
    """What a capsule that nobody has consumed says about its memory. Units: strides in elements."""

    device_type: int
    """The DLPack number of the device."""
    shape: tuple[int, ...]
    """The extent of every dim."""
    strides: tuple[int, ...] | None
    """The stride of every dim, which may be negative; None for dense rows."""
    is_read_only: bool
    """Whether the producer forbids writing; a capsule of before 1.0 cannot say."""


def read_capsule(capsule: object) -> CapsuleFacts:
    """The facts of a capsule, which stays unconsumed. Errors: TypeError for what is no such capsule.

    >>> import torch
    >>> from strideweave.tensor.dlpack import read_capsule
    >>> read_capsule(torch.zeros(2, 3).__dlpack__())
    CapsuleFacts(device_type=1, shape=(2, 3), strides=(3, 1), is_read_only=False)
    """
    if _is_valid(capsule, _VERSIONED):
        versioned = _Versioned.from_address(_get_pointer(capsule, _VERSIONED))
        if versioned.major != 1:
            raise BufferError(
                f"cannot read a DLPack capsule of version {versioned.major}.{versioned.minor}: only 1.x and those "
                "before it are known. Export it with max_version=(1, 0)."
            )
        return _facts(versioned.tensor, is_read_only=bool(versioned.flags & _READ_ONLY))
    if _is_valid(capsule, _LEGACY):
        return _facts(_Legacy.from_address(_get_pointer(capsule, _LEGACY)).tensor, is_read_only=False)
    raise TypeError(
        f"cannot read {capsule!r}: it is no unconsumed DLPack capsule. A capsule is consumed once. Export a new one."
    )


def dlpack_device(tensor: Tensor) -> tuple[int, int]:
    """The DLPack device type and number of the tensor's memory: (1, 0) for host memory.

    Errors: BufferError when the values are in no addressable memory; RuntimeError when the carrier is released.

    >>> from strideweave import CPU, Layout, Tensor
    >>> from strideweave.tensor.dlpack import dlpack_device
    >>> dlpack_device(Tensor(CPU(4), 0, Layout.column_major(2, 2)))
    (1, 0)
    """
    require_memory(tensor, "find the DLPack device of")
    kind, number = tensor.carrier._flat().__dlpack_device__()
    return int(kind), int(number)


def dlpack_capsule(
    tensor: Tensor,
    stream: int | None = None,
    *,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """A capsule over the tensor's own memory: a leaf of the layout is a dim, the offset is the capsule's `byte_offset`.

    A consumer of 1.0 or later gets a versioned capsule, read-only when the tensor is not mutable. The memory lives as
    long as the capsule or what was made of it, whatever becomes of the tensor, also when its carrier is released.

    Errors: BufferError when this memory cannot be shared as asked: values in no addressable memory, another device,
    copy=True, a stream in host memory, a tensor that requires grad, an immutable one for a consumer before 1.0.
    RuntimeError when the carrier is released.

    >>> import numpy
    >>> from strideweave import CPU, Layout, Tensor
    >>> from strideweave.tensor.dlpack import dlpack_capsule
    >>> t = Tensor(CPU(4), 0, Layout.column_major(2, 2))
    >>> dlpack_capsule(t, max_version=(1, 0))
    <capsule object "dltensor_versioned" at ...>
    """
    device = dlpack_device(tensor)
    is_versioned = max_version is not None and max_version[0] >= 1
    _require_shareable(tensor, device, stream=stream, is_versioned=is_versioned, dl_device=dl_device, copy=copy)
    # The capsule is torch's: its deleter is compiled code, right on any thread and at the end of the process.
    view = tensor.torch().detach()
    capsule: object = view.__dlpack__(
        stream=-1 if device[0] == HOST else stream, max_version=(1, 0) if is_versioned else None
    )
    if is_versioned:
        versioned = _Versioned.from_address(_get_pointer(capsule, _VERSIONED))
        exported = versioned.tensor
        if not tensor.is_mutable():
            versioned.flags |= _READ_ONLY
    else:
        exported = _Legacy.from_address(_get_pointer(capsule, _LEGACY)).tensor
    offset_nbytes = tensor.offset * tensor.dtype().itemsize
    exported.data -= offset_nbytes
    exported.byte_offset += offset_nbytes
    return capsule


def require_memory(tensor: Tensor, what: str) -> None:
    """Nothing, when the values lie in addressable memory.

    Errors: RuntimeError when the carrier is released; BufferError for one that has no such memory.
    """
    carrier = tensor.carrier
    carrier._require_live(what)
    if not isinstance(carrier, TorchStorage):
        raise BufferError(
            f"cannot {what} {tensor!r}: the values of {type(carrier).__name__} are not in addressable memory. Memory "
            "is shared, never filled silently. Call project() on a tiled carrier for the tiles you need, or "
            "materialize() on the tensor for a dense copy."
        )


def _require_shareable(
    tensor: Tensor,
    device: tuple[int, int],
    *,
    stream: int | None,
    is_versioned: bool,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> None:
    if tensor.requires_grad:
        raise BufferError(
            f"cannot export {tensor!r}: it requires grad, and a capsule carries no graph. Export detach() of it."
        )
    if copy:
        raise BufferError(
            f"cannot export {tensor!r} with copy=True: an export shares memory. Export materialize(), which copies."
        )
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != device:
        raise BufferError(
            f"cannot export {tensor!r} to DLPack device {tuple(map(int, dl_device))}: its memory is on {device}. An "
            "export shares memory where it is. Move the tensor first, or leave dl_device out."
        )
    if device[0] == HOST and stream not in (None, -1):
        raise BufferError(
            f"cannot export {tensor!r} to stream {stream!r}: host memory has no streams. Pass stream=None."
        )
    if not is_versioned and not tensor.is_mutable():
        raise BufferError(
            f"cannot export {tensor!r} to a consumer of DLPack before 1.0: the tensor is not mutable, and only a "
            "versioned capsule can say so. Ask with max_version=(1, 0), or export materialize()."
        )


def _facts(exported: Any, *, is_read_only: bool) -> CapsuleFacts:
    dims = range(exported.ndim)
    return CapsuleFacts(
        device_type=int(exported.device_type),
        shape=tuple(int(exported.shape[k]) for k in dims),
        strides=tuple(int(exported.strides[k]) for k in dims) if exported.strides else None,
        is_read_only=is_read_only,
    )
