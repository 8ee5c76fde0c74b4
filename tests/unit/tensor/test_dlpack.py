"""DLPack in both directions, with numpy and torch at the other end."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from strideweave import CPU, DType, FileBacked, Layout, Shape, Stride, Tensor
from strideweave.dtype import StorageDType
from strideweave.tensor import dlpack
from strideweave.tensor.bridges import from_dlpack, from_torch
from strideweave.tensor.dlpack import dlpack_capsule, dlpack_device, read_capsule

NESTED = Layout(Shape((2, 3), 4), Stride((1, 8), 2))


def counted(layout: Layout, offset: int = 0, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Tensor:
    flat = torch.arange(offset + layout.cosize).to(dtype.torch_dtype)
    return Tensor(CPU.wrap(flat, mutable=mutable), offset, layout)


class Producer:
    """Something with the protocol, around whatever makes its capsule."""

    def __init__(self, tensor: Tensor, device: tuple[int, int] = (1, 0)) -> None:
        self.tensor, self.device, self.asked = tensor, device, {}  # type: ignore[var-annotated]

    def __dlpack__(self, **asked: Any) -> object:
        self.asked = asked
        return dlpack_capsule(self.tensor, **asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldProducer(Producer):
    """One from before DLPack 1.0: it knows no arguments."""

    def __dlpack__(self, stream: None = None) -> object:  # type: ignore[override]
        return dlpack_capsule(self.tensor, stream)


# -- export ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_capsule_is_versioned_exactly_for_consumers_of_one_and_later(max_version: tuple[int, int] | None) -> None:
    capsule = dlpack_capsule(counted(NESTED), max_version=max_version)
    is_versioned = max_version is not None and max_version >= (1, 0)
    assert ('"dltensor_versioned"' if is_versioned else '"dltensor"') in repr(capsule)


@pytest.mark.parametrize("dtype", DType.registered(), ids=repr)
def test_capsule_of_every_dtype_gives_torch_the_same_memory(dtype: StorageDType) -> None:
    tensor = counted(NESTED, 5, dtype=dtype)
    for max_version in (None, (1, 0)):
        seen = torch.utils.dlpack.from_dlpack(dlpack_capsule(tensor, max_version=max_version))
        assert seen.dtype == dtype.torch_dtype
        assert seen.data_ptr() == tensor.torch().data_ptr()
        assert (seen.shape, seen.stride()) == ((2, 3, 4), (1, 8, 2))


def test_capsule_carries_the_offset_in_bytes_and_the_carrier_as_data() -> None:
    tensor = counted(Layout.row_major(2, 3), 5)
    capsule = dlpack_capsule(tensor, max_version=(1, 0))
    held = dlpack._Versioned.from_address(dlpack._get_pointer(capsule, b"dltensor_versioned")).tensor
    assert (held.data, held.byte_offset) == (tensor.carrier._flat().data_ptr(), 20)
    assert ctypes.cast(held.data + held.byte_offset, ctypes.POINTER(ctypes.c_float))[5] == 10.0


def test_numpy_consumes_nested_views_writable_or_read_only() -> None:
    for mutable in (True, False):
        tensor = counted(NESTED, 3, mutable=mutable)
        array = np.from_dlpack(Producer(tensor))
        assert np.array_equal(array, tensor.torch().numpy())
        assert np.shares_memory(array, tensor.torch().numpy())
        assert array.flags.writeable is mutable


def test_torch_consumes_through_the_tensor_itself() -> None:
    tensor = counted(NESTED, 3)
    seen = torch.from_dlpack(tensor)
    seen[1, 2, 3] = -1.0
    assert tensor[(1, 2), 3] == -1.0


def test_export_of_immutable_tensor_to_an_old_consumer_is_refused() -> None:
    tensor = counted(NESTED, mutable=False)
    with pytest.raises(BufferError, match=r"max_version=\(1, 0\)"):
        dlpack_capsule(tensor)
    assert read_capsule(dlpack_capsule(tensor, max_version=(1, 0))).is_read_only


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"copy": True}, "shares memory"),
        ({"dl_device": (2, 0)}, r"to DLPack device \(2, 0\)"),
        ({"dl_device": (1, 1)}, r"to DLPack device \(1, 1\)"),
        ({"stream": 3}, "no streams"),
        ({"stream": 0}, "no streams"),
    ],
)
def test_export_that_memory_cannot_meet_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(BufferError, match=words):
        dlpack_capsule(counted(NESTED), max_version=(1, 0), **asked)
    for fine in ({"copy": False}, {"dl_device": (1, 0)}, {"stream": None}, {"stream": -1}):
        dlpack_capsule(counted(NESTED), max_version=(1, 0), **fine)  # type: ignore[arg-type]


def test_export_of_tensor_that_requires_grad_is_refused() -> None:
    tensor = Tensor(CPU(2), 0, Layout.column_major(2), requires_grad=True)
    with pytest.raises(BufferError, match="detach"):
        dlpack_capsule(tensor)


def test_export_without_addressable_memory_names_project_and_materialize() -> None:
    tensor = Tensor(FileBacked(size=4), 0, Layout.column_major(4))
    for export in (dlpack_capsule, dlpack_device):
        with pytest.raises(BufferError, match=r"project\(\).*materialize\(\)"):
            export(tensor)
    assert dlpack_device(tensor.materialize()) == (1, 0)
    tensor.carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        dlpack_capsule(tensor)


# -- lifetime --------------------------------------------------------------------------------------------------------


def watched() -> tuple[Tensor, weakref.ref[np.ndarray]]:
    array = np.arange(1000.0)
    seen = weakref.ref(array)
    return from_torch(torch.from_numpy(array)), seen


@pytest.mark.parametrize("consume", [np.from_dlpack, torch.from_dlpack])
def test_exported_memory_outlives_tensor_and_carrier(consume: Any) -> None:
    tensor, memory = watched()
    alias = consume(tensor)
    tensor.carrier.release()
    del tensor
    gc.collect()
    assert memory() is not None
    assert float(alias.sum()) == 499500.0
    del alias
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_unconsumed_capsule_lets_the_memory_go(max_version: tuple[int, int] | None) -> None:
    tensor, memory = watched()
    capsule = dlpack_capsule(tensor, max_version=max_version)
    del tensor
    gc.collect()
    assert memory() is not None
    del capsule
    gc.collect()
    assert memory() is None


# -- import ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Producer, OldProducer])
def test_from_dlpack_shares_memory_and_keeps_strides(kind: type[Producer]) -> None:
    source = counted(NESTED, 3)
    tensor = from_dlpack(kind(source))
    assert tensor.layout == Layout(Shape(2, 3, 4), Stride(1, 8, 2))
    assert tensor.torch().data_ptr() == source.torch().data_ptr()
    tensor[1, 2, 3] = -1.0
    assert source[(1, 2), 3] == -1.0


def test_from_dlpack_of_read_only_memory_is_immutable() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    assert not from_dlpack(array).is_mutable()
    assert not from_dlpack(counted(NESTED, mutable=False)).is_mutable()
    assert from_dlpack(array, copy=True).is_mutable()
    assert from_dlpack(np.arange(3.0)).is_mutable()


def test_from_dlpack_copy_is_independent_and_keeps_values() -> None:
    source = torch.arange(6.0).reshape(2, 3).T
    tensor = from_dlpack(source, copy=True)
    assert torch.equal(tensor.torch(), source)
    tensor[0, 0] = 9.0
    assert source[0, 0] == 0.0


def test_from_dlpack_of_negative_strides_names_the_copy() -> None:
    array = np.arange(6.0).reshape(2, 3)[:, ::-1]
    with pytest.raises(ValueError, match=r"forward only. Pass copy=True"):
        from_dlpack(array)
    assert np.array_equal(from_dlpack(array, copy=True).torch().numpy(), array)


def test_from_dlpack_keeps_foreign_memory_alive_and_no_longer() -> None:
    array = np.arange(1000.0)
    memory = weakref.ref(array)
    tensor = from_dlpack(array)
    del array
    gc.collect()
    assert tensor[999] == 999.0
    tensor.carrier.release()
    gc.collect()
    assert memory() is None


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([1.0], TypeError, "no __dlpack__"),
        (np.zeros((2, 0)), ValueError, "at least 1"),
        (np.zeros(2, dtype=np.uint16), ValueError, "no storage"),
        (torch.zeros(2, dtype=torch.complex64), ValueError, "no storage"),
        (Producer(counted(NESTED), device=(2, 0)), BufferError, "host"),
        (torch.zeros(2, requires_grad=True), BufferError, "gradient"),
    ],
)
def test_from_dlpack_of_what_cannot_be_shared_is_refused(source: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        from_dlpack(source)


def test_from_dlpack_with_another_kind_of_copy_is_refused() -> None:
    with pytest.raises(TypeError, match="True, False or None"):
        from_dlpack(np.zeros(2), copy=1)  # type: ignore[arg-type]


def test_read_capsule_of_consumed_or_foreign_object_is_refused() -> None:
    capsule = dlpack_capsule(counted(NESTED))
    torch.utils.dlpack.from_dlpack(capsule)
    for other in (capsule, 3):
        with pytest.raises(TypeError, match="unconsumed"):
            read_capsule(other)
