"""Metal: what is missing is said on every machine; values, where there is a device."""

from __future__ import annotations

import pytest
import torch

from strideweave.carriers.file_backed import read_all
from strideweave.carriers.metal import Metal
from strideweave.dtype import DType, StorageDType

needs_device = pytest.mark.skipif(
    not torch.backends.mps.is_available(), reason="needs an Apple GPU, and torch has no MPS device"
)
NOT_STORED = (DType.Float64, DType.E4M3, DType.E5M2)


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (False, "built without MPS.*Install a torch for macOS on Apple silicon, or use CPU"),
        (True, "no device is available.*needs macOS 14"),
    ],
)
def test_metal_without_the_device_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, built: bool, words: str
) -> None:
    def refuse(*args: object, **kwargs: object) -> torch.Tensor:
        raise AssertionError("nothing may be allocated")

    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(RuntimeError, match=words):
        Metal(10**15)


def test_metal_allocates_on_the_mps_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = torch.empty

    def empty(size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append((size, dtype, device))
        return real(size, dtype=dtype, device="meta")

    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", empty)
    prototype = Metal(4, dtype=DType.Int32, empty=True)
    prototype.allocate_like(2, dtype=DType.Bool, empty=True)
    assert asked == [(4, torch.int32, torch.device("mps")), (2, torch.bool, torch.device("mps"))]


@pytest.mark.parametrize("dtype", NOT_STORED, ids=lambda d: d.name)
def test_metal_of_a_dtype_that_the_device_has_not_is_refused(dtype: StorageDType) -> None:
    with pytest.raises(ValueError, match=f"Metal of {dtype.name}: it stores Float32"):
        Metal(1, dtype=dtype)


def test_metal_stores_every_other_dtype() -> None:
    assert {d.name for d in DType.registered()} - {d.name for d in Metal.accepted_dtypes} == {
        d.name for d in NOT_STORED
    }


def test_metal_wrap_of_host_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="a tensor on cpu: Metal wraps a torch tensor on an Apple GPU"):
        Metal.wrap(torch.ones(1))


@needs_device
@pytest.mark.parametrize("dtype", Metal.accepted_dtypes, ids=lambda d: d.name)
def test_metal_keeps_values_of_every_dtype_on_the_device(dtype: StorageDType) -> None:
    carrier = Metal(3, dtype=dtype)
    carrier[1] = 1
    assert [carrier[k] for k in range(3)] == [0, 1, 0]
    assert carrier._flat().device.type == "mps"
    assert not carrier._is_in_memory()
    assert read_all(carrier.new_like([1, None])).tolist() == [1, 0]
