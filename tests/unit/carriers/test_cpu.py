"""CPU: a flat torch storage, its own or somebody else's; and what the base class decides for every carrier."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
import torch

from strideweave import CPU, Carrier, DType, FileBacked, Generic, Layout, Tensor, TiledEvictable, TileSelection
from strideweave.dtype import StorageDType
from support.scripted_carrier import ScriptedCarrier


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_cpu_of_every_dtype_starts_at_zero_and_keeps_what_is_written(dtype: StorageDType) -> None:
    carrier = CPU(3, dtype=dtype)
    assert [carrier[k] for k in range(3)] == [0, 0, 0]
    carrier[1] = 1
    assert [carrier[k] for k in range(3)] == [0, 1, 0]
    assert carrier.dtype() is dtype
    assert carrier.nbytes == 3 * dtype.itemsize
    assert carrier._flat().dtype == dtype.torch_dtype


def test_cpu_wrap_shares_memory_both_ways() -> None:
    source = torch.arange(4.0)
    carrier = CPU.wrap(source)
    assert carrier.pointer() == source.data_ptr()
    source[0] = 9.0
    carrier[1] = 8.0
    assert carrier[0] == 9.0
    assert source[1] == 8.0
    assert carrier.version == 1


def test_cpu_wrap_keeps_the_memory_alive() -> None:
    carrier = CPU.wrap(torch.arange(1000.0))
    gc.collect()
    assert carrier[999] == 999.0


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (torch.ones(2, 2), ValueError),
        (torch.arange(6.0)[::2], ValueError),
        (torch.tensor(1.0), ValueError),
        (np.ones(3), TypeError),
        ([1.0], TypeError),
        (torch.ones(2, device="meta"), TypeError),
        (torch.ones(2, dtype=torch.complex64), (TypeError, ValueError, LookupError)),
    ],
)
def test_cpu_wrap_of_what_is_no_flat_cpu_tensor_is_refused(source: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        CPU.wrap(source)  # type: ignore[arg-type]


def test_cpu_pointer_wraps_memory_that_the_caller_keeps() -> None:
    memory = (ctypes.c_int32 * 3)(5, 6, 7)
    carrier = CPU(3, ctypes.addressof(memory), dtype=DType.Int32)
    assert [carrier[k] for k in range(3)] == [5, 6, 7]
    carrier[2] = -1
    assert memory[2] == -1
    carrier.release()
    assert memory[0] == 5


@pytest.mark.parametrize(("size", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError), ("3", TypeError)])
def test_cpu_of_a_bad_size_is_refused(size: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="size"):
        CPU(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, "Float32", np.float32, None])
def test_cpu_of_what_is_no_storage_dtype_is_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match="dtype must be a DType"):
        CPU(1, dtype=dtype)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="storage dtype must be a DType"):
        CPU(1).supports_storage_dtype(dtype)  # type: ignore[arg-type]


def test_cpu_runs_copy_each_stretch() -> None:
    carrier = CPU.wrap(torch.arange(10.0))
    out = [torch.empty(2), torch.empty(3)]
    assert carrier._read_runs([(8, out[0]), (1, out[1])]) == 20
    assert [o.tolist() for o in out] == [[8.0, 9.0], [1.0, 2.0, 3.0]]
    assert carrier._write_runs([(0, torch.tensor([-1.0])), (4, torch.tensor([-2.0, -3.0]))]) == 12
    assert carrier._flat().tolist() == [-1.0, 1.0, 2.0, 3.0, -2.0, -3.0, 6.0, 7.0, 8.0, 9.0]


MAKERS = {
    "cpu": lambda: CPU(3),
    "file_backed": lambda: FileBacked(size=3),
    "generic": lambda: Generic([0.0, 0.0, 0.0], dtype=DType.Float32),
    "scripted": lambda: ScriptedCarrier(torch.zeros(3)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
class TestEveryCarrier:
    def test_slot_outside_is_refused_and_counts_nothing(self, make) -> None:  # type: ignore[no-untyped-def]
        carrier: Carrier = make()
        for index in (-1, 3, 10**12):
            with pytest.raises(IndexError, match="out of range"):
                carrier[index]
            with pytest.raises(IndexError, match="out of range"):
                carrier[index] = 1.0
        for wrong in (1.0, True, None, slice(0, 1)):
            with pytest.raises(TypeError, match="must be an integer"):
                carrier[wrong]  # type: ignore[index]
        assert carrier.version == 0
        carrier.release()

    def test_write_counts_once(self, make) -> None:  # type: ignore[no-untyped-def]
        carrier: Carrier = make()
        for k in range(3):
            carrier[k] = k
        assert carrier.version == 3
        with pytest.raises((TypeError, ValueError)):
            carrier[0] = "x"  # type: ignore[assignment]
        assert carrier.version == 3
        assert [carrier[k] for k in range(3)] == [0.0, 1.0, 2.0]
        carrier.release()

    def test_owner_keeps_everyone_else_out(self, make) -> None:  # type: ignore[no-untyped-def]
        carrier: Carrier = make()
        token = carrier._claim_ownership()
        assert carrier.is_owned()
        assert not carrier.is_mutable()
        for request in (lambda: carrier.__setitem__(0, 1.0), carrier.release, carrier._claim_ownership):
            with pytest.raises(RuntimeError, match="owned"):
                request()
        assert carrier[0] == 0.0
        carrier._relinquish_ownership(token)
        carrier[0] = 1.0
        carrier.release()

    def test_release_is_final_and_idempotent(self, make) -> None:  # type: ignore[no-untyped-def]
        carrier: Carrier = make()
        assert carrier.release() is None
        assert carrier.release() is None
        assert carrier.is_released()
        assert not carrier.is_mutable()
        assert carrier.size() == 0
        assert carrier.dtype() is DType.Float32
        assert carrier.supports_storage_dtype(DType.Float32)
        assert "released" in repr(carrier)
        for request in (lambda: carrier[0], lambda: carrier.__setitem__(0, 1.0), carrier._claim_ownership):
            with pytest.raises(RuntimeError, match="released"):
                request()

    def test_new_like_is_fresh_and_none_is_zero(self, make) -> None:  # type: ignore[no-untyped-def]
        carrier: Carrier = make()
        carrier.release()
        fresh = carrier.new_like([1, None, 3, None])
        assert type(fresh) is type(carrier)
        assert [fresh[k] for k in range(4)] == [1.0, 0.0, 3.0, 0.0]
        assert carrier.new_like([]).size() == 0
        fresh.release()

    def test_allocate_like_is_zero_and_of_the_asked_dtype(self, make) -> None:  # type: ignore[no-untyped-def]
        fresh = make().allocate_like(2, dtype=DType.Int16, mutable=False)
        assert (fresh.size(), fresh.dtype()) == (2, DType.Int16)
        assert [fresh[0], fresh[1]] == [0, 0]
        with pytest.raises(RuntimeError, match="not mutable"):
            fresh[0] = 1
        assert fresh.version == 0
        fresh.release()


def test_immutable_carrier_refuses_writes() -> None:
    carrier = CPU.wrap(torch.ones(2), mutable=False)
    assert not carrier.is_mutable()
    with pytest.raises(RuntimeError, match="Carrier is not mutable"):
        carrier[0] = 2.0
    assert carrier[0] == 1.0


def test_only_memory_can_be_seen_as_memory() -> None:
    file = FileBacked(size=2)
    with pytest.raises(BufferError, match="materialize"):
        file._flat()
    tiled = TiledEvictable(CPU(0), file, (2,), (1,))
    with pytest.raises(BufferError, match=r"project\(\).*materialize\(\)"):
        tiled._flat()
    tiled.release()
    released = CPU(2)
    released.release()
    with pytest.raises(RuntimeError, match="released"):
        released._flat()
    with pytest.raises(RuntimeError, match="released"):
        released.pointer()


@pytest.mark.parametrize("request_name", ["_read_runs", "_write_runs", "_allocate"])
def test_tiled_carrier_has_no_runs(request_name: str) -> None:
    tiled = TiledEvictable(CPU(0), FileBacked(size=2), (2,), (1,))
    with pytest.raises(NotImplementedError, match="TiledEvictable"):
        getattr(tiled, request_name)([(0, torch.empty(1))])
    tiled.release()


def test_wrapped_slice_is_seen_from_its_own_beginning() -> None:
    storage = torch.arange(10.0)
    carrier = CPU.wrap(storage[3:])
    assert Tensor(carrier, 1, Layout.row_major(2, 2)).torch().tolist() == [[4.0, 5.0], [6.0, 7.0]]
    tiled = TiledEvictable(carrier, FileBacked(), (1, 1), (7, 1))
    whole = Tensor(tiled, 0, Layout.column_major(7, 1))
    assert tiled.project(whole, TileSelection([[0], [0]])).wait().torch().flatten().tolist() == list(range(3, 10))
