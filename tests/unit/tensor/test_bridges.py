"""Bridges between Tensors, torch and numpy: the memory is one, and what cannot be shared says which copy to ask for."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch

from strideweave import CPU, DType, FileBacked, Generic, Layout, Shape, Stride, Tensor, TiledEvictable
from strideweave.dtype import StorageDType
from strideweave.tensor.bridges import array_protocol, from_numpy, from_torch, to_numpy

NUMPY_DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
NESTED = Layout(Shape((2, 3), 4), Stride((1, 8), 2))


def tiled() -> Tensor:
    carrier = TiledEvictable(CPU.wrap(torch.arange(16.0)), FileBacked(), (2, 2), (2, 2))
    return Tensor(carrier, 0, Layout.column_major(4, 4))


# -- torch -----------------------------------------------------------------------------------------------------------


def test_from_torch_of_slice_shares_memory_and_keeps_strides() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    source = base[1:, ::2].T
    tensor = from_torch(source)
    assert (tensor.offset, tensor.layout) == (6, Layout(Shape(3, 3), Stride(2, 6)))
    assert torch.equal(tensor.torch(), source)
    base[2, 4] = 99.0
    assert tensor[2, 1] == 99.0
    assert tensor.torch().data_ptr() == source.data_ptr()


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([1.0], TypeError, "no torch tensor"),
        (torch.ones(2, device="meta"), TypeError, "on meta"),
        (torch.eye(2).to_sparse(), TypeError, "to_dense"),
        (torch.ones(2, 0), ValueError, "at least 1"),
        (torch.ones(2, dtype=torch.complex64), ValueError, "no storage"),
        (torch.ones(2, dtype=torch.complex64).conj().imag, ValueError, "resolve_neg"),
    ],
)
def test_from_torch_of_what_cannot_be_shared_is_refused(source: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        from_torch(source)  # type: ignore[arg-type]


# -- from numpy ------------------------------------------------------------------------------------------------------


def test_from_numpy_knows_a_dtype_under_its_other_names() -> None:
    assert from_numpy(np.zeros(2, dtype="q")).dtype() is from_numpy(np.zeros(2, dtype="l")).dtype() is DType.Int64


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_from_numpy_of_every_dtype_shares_memory_and_keeps_values(name: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(name)
    tensor = from_numpy(array[1:, ::2])
    assert np.dtype(str(tensor.dtype().torch_dtype).removeprefix("torch.")) == array.dtype
    assert tensor.layout == Layout(Shape(2, 2), Stride(4, 2))
    assert [[tensor[i, j] for j in range(2)] for i in range(2)] == array[1:, ::2].tolist()
    array[2, 2] = 0
    assert tensor[1, 1] == 0
    tensor[0, 0] = 1
    assert array[1, 0] == 1


def test_from_numpy_of_every_order_keeps_strides() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    for order in itertools.permutations(range(3)):
        turned = array.transpose(order)
        tensor = from_numpy(turned)
        assert tensor.layout == Layout(Shape(*turned.shape), Stride(*(s // 8 for s in turned.strides)))
        assert np.array_equal(to_numpy(tensor), turned)


def test_from_numpy_of_rank_zero_and_broadcast_arrays_shares_them() -> None:
    assert from_numpy(np.array(3.5)).layout == Layout.empty()
    wide = from_numpy(np.broadcast_to(np.arange(3.0), (2, 3)))
    assert wide.layout == Layout(Shape(2, 3), Stride(0, 1))
    assert not wide.is_mutable()
    turned = np.arange(3.0)[:1][::-1]  # a negative stride along which nothing steps
    assert from_numpy(turned).layout == Layout(Shape(1), Stride(0))


def test_from_numpy_of_read_only_array_gives_an_immutable_carrier() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    tensor = from_numpy(array)
    with pytest.raises(RuntimeError, match="not mutable"):
        tensor[0] = 1.0
    assert from_numpy(array, copy=True).is_mutable()


def test_from_numpy_keeps_the_array_alive_and_no_longer() -> None:
    array = np.arange(1000.0)
    seen = weakref.ref(array)
    tensor = from_numpy(array[10:20])
    del array
    gc.collect()
    assert seen() is not None
    assert tensor[3] == 13.0
    tensor.carrier.release()
    gc.collect()
    assert seen() is None


def unaligned() -> np.ndarray:
    return np.frombuffer(bytes(9), dtype=np.uint8)[1:].view(np.float32)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.arange(4.0)[::-1], "step backward"),
        (np.arange(4.0).astype(">f8"), "byte order"),
        (unaligned(), "not aligned"),
        (np.zeros(3, dtype=[("a", "i4"), ("b", "i2")])["a"], "no whole number of 4-byte"),
    ],
)
def test_from_numpy_of_memory_that_no_layout_describes_names_the_copy(array: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=rf"{words}.*Pass copy=True"):
        from_numpy(array)
    copied = from_numpy(array, copy=True)
    assert np.array_equal(to_numpy(copied), array)
    assert copied.is_mutable()


def test_from_numpy_copy_keeps_the_order_and_is_independent() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    copied = from_numpy(array, copy=True)
    assert copied.layout == Layout.column_major(2, 3)
    array[0, 0] = 9.0
    assert copied[0, 0] == 0.0


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        ([1.0], TypeError, "numpy.asarray"),
        (np.ma.masked_array([1.0], [True]), TypeError, "filled"),
        (np.zeros((2, 0)), ValueError, "at least 1"),
        (np.zeros(2, dtype=np.complex64), ValueError, "astype"),
        (np.zeros(2, dtype=np.uint16), ValueError, "astype"),
        (np.array([None]), ValueError, "astype"),
    ],
)
def test_from_numpy_of_what_has_no_storage_is_refused(array: object, error: type[Exception], words: str) -> None:
    for copy in (False, True):
        with pytest.raises(error, match=words):
            from_numpy(array, copy=copy)  # type: ignore[arg-type]


# -- to numpy --------------------------------------------------------------------------------------------------------


def test_to_numpy_of_nested_layout_has_one_dim_per_leaf_and_shares_memory() -> None:
    tensor = Tensor(CPU.wrap(torch.arange(30.0)), 3, NESTED)
    array = to_numpy(tensor)
    assert array.shape == (2, 3, 4)
    for i, j, k in itertools.product(range(2), range(3), range(4)):
        assert array[i, j, k] == tensor[(i, j), k] == 3 + i + 8 * j + 2 * k
    array[1, 2, 3] = -1.0
    assert tensor[(1, 2), 3] == -1.0


def test_to_numpy_of_immutable_carrier_is_read_only() -> None:
    tensor = Tensor(CPU(3, mutable=False), 0, Layout.column_major(3))
    with pytest.raises(ValueError, match="read-only"):
        to_numpy(tensor)[0] = 1.0
    assert to_numpy(Tensor(CPU(3), 0, Layout.column_major(3))).flags.writeable


def test_to_numpy_array_outlives_the_release_of_its_carrier() -> None:
    tensor = from_torch(torch.arange(1000.0))
    array = to_numpy(tensor)
    tensor.carrier.release()
    assert array.sum() == 499500.0
    with pytest.raises(RuntimeError, match="released"):
        to_numpy(tensor)


@pytest.mark.parametrize("dtype", [DType.BFloat16, DType.E4M3, DType.E5M2])
def test_to_numpy_of_dtype_unknown_to_numpy_names_torch(dtype: StorageDType) -> None:
    with pytest.raises(TypeError, match=r"no such dtype.*\.torch\(\)"):
        to_numpy(Tensor(CPU(2, dtype=dtype), 0, Layout.column_major(2)))


def test_to_numpy_of_tensor_that_requires_grad_names_detach() -> None:
    tensor = Tensor(CPU(2), 0, Layout.column_major(2), requires_grad=True)
    with pytest.raises(RuntimeError, match="detach"):
        to_numpy(tensor)
    assert to_numpy(tensor.detach()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["tiled", "file", "generic"])
def test_to_numpy_without_addressable_memory_names_project_and_materialize(kind: str) -> None:
    layout = Layout.column_major(4)
    made = {
        "tiled": tiled,
        "file": lambda: Tensor(FileBacked(size=4), 0, layout),
        "generic": lambda: Tensor(Generic([0] * 4, dtype=DType.Float32), 0, layout),
    }[kind]()
    for export in (to_numpy, array_protocol):
        with pytest.raises(BufferError, match=r"project\(\).*materialize\(\)"):
            export(made)


# -- __array__ -------------------------------------------------------------------------------------------------------


def test_array_protocol_copies_only_when_asked_or_needed() -> None:
    tensor = from_torch(torch.arange(6.0).reshape(2, 3))
    shared = array_protocol(tensor)
    assert np.shares_memory(shared, to_numpy(tensor))
    assert np.shares_memory(array_protocol(tensor, np.dtype("float32"), copy=False), shared)
    assert not np.shares_memory(array_protocol(tensor, copy=True), shared)
    assert array_protocol(tensor, "int64").dtype == np.int64
    with pytest.raises(ValueError, match="without a copy"):
        array_protocol(tensor, "int64", copy=False)


def test_numpy_functions_take_a_tensor_through_its_protocol() -> None:
    source = torch.arange(6.0).reshape(2, 3).T
    tensor = from_torch(source)
    assert np.array_equal(np.asarray(tensor), source.numpy())
    assert np.shares_memory(np.asarray(tensor), source.numpy())
    assert not np.shares_memory(np.array(tensor), source.numpy())
    assert np.array(tensor, dtype="float16").dtype == np.float16
