"""TorchStorage: what carriers on every device share, on a device that every machine has."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.cpu import CPU
from strideweave.carriers.cuda import CUDA
from strideweave.carriers.file_backed import FileBacked, read_all
from strideweave.carriers.metal import Metal
from strideweave.carriers.torch_storage import DLPackInfo, TorchStorage
from strideweave.dtype import DType, StorageDType


class Elsewhere(TorchStorage):
    """Host memory that calls itself a device of its own: values can be looked at, views are not the host's."""

    device_type: ClassVar[str] = "cpu"
    _device_words: ClassVar[str] = "elsewhere"

    @classmethod
    def _require_device(cls, device: torch.device | str | int | None) -> torch.device:
        if device == "missing":
            raise RuntimeError("cannot make an Elsewhere carrier: it is nowhere.")
        return torch.device("cpu")

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Elsewhere:
        return Elsewhere(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)


class Meta(TorchStorage):
    """A device that only counts: what lands on another device than the host's shows in the device of the storage."""

    device_type: ClassVar[str] = "meta"
    _device_words: ClassVar[str] = "the meta device"

    @classmethod
    def _require_device(cls, device: torch.device | str | int | None) -> torch.device:
        return torch.device("meta")

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Meta:
        return Meta(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)


def test_torch_storage_flat_works_without_being_host_memory() -> None:
    device, host, file = Elsewhere(2), CPU(2), FileBacked(size=2)
    assert isinstance(device, TorchStorage)
    assert isinstance(host, TorchStorage)
    assert device._flat().tolist() == [0.0, 0.0]
    assert [c._is_in_memory() for c in (device, host, Meta(2), file)] == [False, True, False, False]


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_torch_storage_of_every_dtype_starts_at_zero_and_keeps_runs(dtype: StorageDType) -> None:
    carrier = Elsewhere(4, dtype=dtype)
    assert read_all(carrier).to(torch.float64).tolist() == [0.0] * 4
    values = torch.tensor([1, 0, 1]).to(dtype.torch_dtype)
    assert carrier._write_runs([(0, values[:1]), (2, values[1:])]) == 3 * dtype.itemsize
    out = torch.empty(3, dtype=dtype.torch_dtype)
    assert carrier._read_runs([(1, out)]) == 3 * dtype.itemsize
    assert out.to(torch.float64).tolist() == [0.0, 0.0, 1.0]


def test_torch_storage_stays_on_its_device_over_its_whole_life() -> None:
    carrier = Meta(3, dtype=DType.Int16)
    source = torch.ones(2, dtype=torch.int16)
    assert carrier._write_runs([(1, source)]) == 4
    made = carrier.new_like([1, None, 2])
    assert made.size() == 3
    for each in (carrier, made, carrier.allocate_like(5, empty=True), Meta.wrap(torch.empty(2, device="meta"))):
        assert isinstance(each, Meta)
        assert each._flat().device.type == "meta"
        each._free()
        assert (each.size(), each._storage.device.type) == (0, "meta")
        each._allocate(4)
        assert (each.size(), each._flat().device.type) == (4, "meta")


def test_torch_storage_copies_runs_from_other_devices_and_cannot_read_what_is_not_there() -> None:
    meta = Meta(3)
    assert meta._read_runs([(0, torch.empty(3, device="meta"))]) == 12
    with pytest.raises(NotImplementedError):
        meta._read_runs([(0, torch.empty(3))])  # torch's own refusal: the meta device has no values to copy


@pytest.mark.parametrize(
    ("storage", "error", "words"),
    [
        (torch.empty(2), TypeError, "a tensor on cpu: Meta wraps a torch tensor on the meta device"),
        ([1.0], TypeError, "cannot wrap list"),
        (torch.empty(2, 2, device="meta"), ValueError, "a carrier is flat"),
        (torch.empty(6, device="meta")[::2], ValueError, "a carrier is flat"),
        (torch.empty(2, dtype=torch.complex64, device="meta"), ValueError, "no storage here"),
    ],
)
def test_torch_storage_wrap_of_another_device_or_shape_is_refused(
    storage: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Meta.wrap(storage)  # type: ignore[arg-type]


def test_torch_storage_wrap_of_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="to_dense"):
        CPU.wrap(torch.ones(3).to_sparse())


def test_torch_storage_wrap_keeps_class_mutability_and_memory() -> None:
    source = torch.arange(3, dtype=torch.int32)
    carrier = Elsewhere.wrap(source, mutable=False)
    assert type(carrier) is Elsewhere
    assert (carrier.dtype(), carrier.is_mutable(), carrier.pointer()) == (DType.Int32, False, source.data_ptr())


def test_torch_storage_missing_device_is_told_after_the_arguments_and_before_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **kwargs: object) -> torch.Tensor:
        raise AssertionError("nothing may be allocated")

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(RuntimeError, match="nowhere"):
        Elsewhere(10**15, device="missing")
    with pytest.raises(ValueError, match="Elsewhere carrier of size -1"):
        Elsewhere(-1, device="missing")
    with pytest.raises(TypeError, match="dtype must be a DType"):
        Elsewhere(1, dtype="Float32", device="missing")  # type: ignore[arg-type]


def test_cpu_stays_on_the_host_whatever_torch_defaults_to() -> None:
    with torch.device("meta"):
        carrier = CPU(2)
    assert carrier[0] == 0.0


class TestContentToken:
    def test_every_write_shows(self) -> None:
        memory = torch.arange(4.0)
        carrier = CPU.wrap(memory)
        view = carrier._flat().as_strided((2,), (2,), 1)
        writes = (
            lambda: carrier.set_value(0, 5.0),
            lambda: carrier._write_runs([(1, torch.ones(2))]),
            lambda: memory.add_(1),
            lambda: view.zero_(),
            lambda: memory.__setitem__(3, 0.0),
        )
        seen = [carrier._content_token()]
        for write in writes:
            write()
            seen.append(carrier._content_token())
        assert len(set(seen)) == len(writes) + 1

    def test_reads_and_views_do_not_show(self) -> None:
        memory = torch.arange(4.0)
        carrier = CPU.wrap(memory)
        before = carrier._content_token()
        read_all(carrier)
        assert carrier[1] == 1.0
        assert (memory * 2).sum() == 12.0
        assert carrier._content_token() == before

    def test_inference_memory_shows_our_own_writes(self) -> None:
        with torch.inference_mode():
            carrier = CPU(2)
            before = carrier._content_token()
            carrier[0] = 1.0
        assert carrier._content_token() != before

    def test_refused_write_does_not_show(self) -> None:
        carrier = CPU(2, mutable=False)
        before = carrier._content_token()
        with pytest.raises(RuntimeError, match="not mutable"):
            carrier[0] = 1.0
        assert carrier._content_token() == before


class TestDLPackInfo:
    def test_cpu_is_device_one_at_its_own_pointer(self) -> None:
        memory = torch.arange(10.0)
        carrier = CPU.wrap(memory[3:])
        assert carrier.dlpack_info() == DLPackInfo(memory.data_ptr() + 12, 1, 0)
        assert carrier.dlpack_info()[1:] == np.ones(1).__dlpack_device__()

    def test_released_carrier_has_none(self) -> None:
        carrier = CPU(1)
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            carrier.dlpack_info()


@pytest.mark.parametrize("cls", [CPU, CUDA, Metal])
def test_torch_storage_classes_say_what_they_store_without_a_device(cls: type[Carrier]) -> None:
    assert DType.Float32 in cls.accepted_dtypes
    assert issubclass(cls, TorchStorage)
