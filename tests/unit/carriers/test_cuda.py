"""CUDA: what is missing is said on every machine; values, where there is a device."""

from __future__ import annotations

import pytest
import torch

from strideweave.carriers.cpu import CPU
from strideweave.carriers.cuda import CUDA
from strideweave.carriers.file_backed import read_all
from strideweave.dtype import DType, StorageDType

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none")


def pretend(
    monkeypatch: pytest.MonkeyPatch, *, built: bool = True, available: bool = True, count: int = 2, current: int = 0
) -> list[object]:
    """torch that says so of its devices; the list gets what would be allocated, which happens on the meta device."""
    asked: list[object] = []

    def zeros(size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        asked.append((size, dtype, device))
        return torch.empty(size, dtype=dtype, device="meta")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch, "zeros", zeros)
    return asked


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"built": False}, "is built without CUDA.*Install a torch that is built with CUDA, or use CPU"),
        ({"available": False, "count": 1}, "no device is visible.*driver and CUDA_VISIBLE_DEVICES"),
        ({"count": 0}, "no device is visible"),
    ],
)
def test_cuda_without_the_device_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, bool | int], words: str
) -> None:
    asked = pretend(monkeypatch, **facts)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=words):
        CUDA(10**15)
    with pytest.raises(RuntimeError, match=torch.__version__.replace("+", r"\+")):
        CUDA(1, device=1)
    assert asked == []


@pytest.mark.parametrize(
    ("device", "ordinal"),
    [(None, 1), (0, 0), (2, 2), ("cuda", 1), ("cuda:2", 2), (torch.device("cuda", 0), 0), (torch.device("cuda"), 1)],
)
def test_cuda_device_is_the_one_that_is_named_or_the_current_one(
    monkeypatch: pytest.MonkeyPatch, device: torch.device | str | int | None, ordinal: int
) -> None:
    asked = pretend(monkeypatch, count=3, current=1)
    CUDA(5, dtype=DType.Int8, device=device)
    assert asked == [(5, torch.int8, torch.device("cuda", ordinal))]


@pytest.mark.parametrize(
    ("device", "error", "words"),
    [
        (True, TypeError, "a device is an ordinal"),
        (1.0, TypeError, "a device is an ordinal"),
        (-1, ValueError, "counted from 0"),
        ("cpu", ValueError, "no CUDA device"),
        (torch.device("meta"), ValueError, "no CUDA device"),
        ("gpu", ValueError, "torch knows no such device"),
        (2, RuntimeError, "on device 2: 2 CUDA devices are visible"),
        ("cuda:7", RuntimeError, "on device 7: 2 CUDA devices are visible"),
    ],
)
def test_cuda_on_another_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, device: object, error: type[Exception], words: str
) -> None:
    asked = pretend(monkeypatch)
    with pytest.raises(error, match=words):
        CUDA(1, device=device)  # type: ignore[arg-type]
    assert asked == []


def test_cuda_bad_arguments_are_told_before_the_missing_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, built=False)
    with pytest.raises(TypeError, match="dtype must be a DType"):
        CUDA(1, dtype=torch.float32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="CUDA carrier of size -1"):
        CUDA(-1)


def test_cuda_wrap_of_host_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="a tensor on cpu: CUDA wraps a torch tensor on a CUDA device"):
        CUDA.wrap(torch.ones(1))


@needs_device
@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_cuda_keeps_values_of_every_dtype_on_the_device(dtype: StorageDType) -> None:
    carrier = CUDA(3, dtype=dtype)
    carrier[1] = 1
    assert [carrier[k] for k in range(3)] == [0, 1, 0]
    assert carrier._flat().device.type == carrier.device.type == "cuda"
    assert not carrier._is_in_memory()
    assert carrier.dlpack_info()[1:] == (2, carrier.device.index)
    made = carrier.new_like([1, None])
    assert isinstance(made, CUDA)
    assert (made.device, read_all(made).tolist()) == (carrier.device, [1, 0])
    carrier.release()
    assert carrier.allocate_like(2).device == made.device


@needs_device
def test_cuda_runs_go_to_and_from_the_host_and_the_device() -> None:
    carrier = CUDA.wrap(torch.arange(6.0, device="cuda"))
    carrier._write_runs([(1, torch.full((2,), -1.0)), (4, torch.full((1,), -2.0, device="cuda"))])
    host = CPU(6)
    carrier._read_runs([(0, host._flat())])
    assert host._flat().tolist() == [0.0, -1.0, -1.0, 3.0, -2.0, 5.0]
