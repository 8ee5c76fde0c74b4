"""A block device that fails, by ordinal: the n-th call of a seam raises, and the device is faulted from then on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from strideweave.carriers import block_device
from strideweave.carriers.block_device import BlockDevice, BlockDeviceCarrier
from strideweave.carriers.file_backed import read_all
from strideweave.io import StorageError, block_node, positioned
from support.loop_device import loop_device

CAPACITY = 64 * 1024


EIO = OSError(errno.EIO, "i/o")


class Nth:
    """A call that raises, or moves only so many bytes, at given ordinals, and does what it should at all others."""

    def __init__(self, real: Callable[..., Any], faults: dict[int, OSError | int]) -> None:
        self.real, self.faults, self.calls = real, faults, 0

    def __call__(self, descriptor: int, *rest: Any) -> Any:
        self.calls += 1
        fault = self.faults.get(self.calls)
        if isinstance(fault, OSError):
            raise type(fault)(*fault.args)  # a fresh one: an error keeps the frames that it passed, they keep carriers
        if fault is not None:
            return self.real(descriptor, [rest[0][0][:fault]], rest[1])
        return self.real(descriptor, *rest)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with loop_device(tmp_path_factory.mktemp("loop"), CAPACITY) as path:
        yield path


@pytest.fixture
def device(node: str) -> Iterator[BlockDevice]:
    device = BlockDevice(node)
    yield device
    device.close()


def assert_faulted(device: BlockDevice, carrier: BlockDeviceCarrier, *, version: int) -> None:
    assert device.is_faulted()
    assert "faulted" in repr(device)
    uses: list[Callable[[], object]] = [
        lambda: carrier[0],
        lambda: carrier.__setitem__(0, 1.0),
        lambda: read_all(carrier),
        lambda: carrier._write_runs([(0, torch.ones(1))]),
        lambda: device.allocate(1),
        lambda: carrier.allocate_like(0),
        lambda: carrier.new_like([1.0]),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="device is faulted"):
            use()
    assert carrier.version == version
    carrier.release()
    assert carrier.size() == 0
    assert not device.is_closed()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nth_read_that_fails_faults_the_device(device: BlockDevice, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    carrier, other = device.allocate(10), device.allocate(10)
    carrier[0] = 5.0
    monkeypatch.setattr(positioned, "_preadv", Nth(os.preadv, {nth: EIO}))
    for _ in range(nth - 1):
        assert carrier[0] == 5.0
    with pytest.raises(StorageError, match=f"cannot read 4 bytes at byte 0 of {device.path!r}"):
        carrier[0]
    assert_faulted(device, other, version=0)
    assert_faulted(device, carrier, version=1)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nth_write_that_fails_faults_the_device_and_keeps_the_version_that_it_advanced(
    device: BlockDevice, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    carrier = device.allocate(10)
    monkeypatch.setattr(positioned, "_pwritev", Nth(os.pwritev, {nth: EIO}))
    for k in range(nth - 1):
        carrier[k] = 1.0
    with pytest.raises(StorageError, match="cannot write 4 bytes") as caught:
        carrier[9] = 1.0
    assert caught.value.errno == errno.EIO
    assert_faulted(device, carrier, version=nth)


def test_write_that_never_reaches_the_device_is_a_failed_write(
    device: BlockDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = device.allocate(10)
    monkeypatch.setattr(block_node, "_fdatasync", Nth(os.fdatasync, {2: EIO}))
    carrier[0] = 1.0
    with pytest.raises(StorageError, match="when the bytes were to reach the device"):
        carrier[1] = 1.0
    assert_faulted(device, carrier, version=2)


@pytest.mark.parametrize("fault", [1, InterruptedError(errno.EINTR, "interrupted")], ids=["short", "EINTR"])
@pytest.mark.parametrize("nth", [1, 2])
def test_transfer_that_is_short_or_interrupted_goes_on(
    device: BlockDevice, monkeypatch: pytest.MonkeyPatch, fault: OSError | int, nth: int
) -> None:
    carrier = device.allocate(10)
    monkeypatch.setattr(positioned, "_pwritev", Nth(os.pwritev, {1: 3, nth: fault}))
    monkeypatch.setattr(positioned, "_preadv", Nth(os.preadv, {1: 3, nth: fault}))
    carrier._write_runs([(2, torch.arange(5.0))])
    assert read_all(carrier).tolist() == [0, 0, 0, 1, 2, 3, 4, 0, 0, 0]
    assert not device.is_faulted()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nth_stretch_of_zeros_that_fails_makes_no_carrier(
    device: BlockDevice, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    monkeypatch.setattr(block_device, "_ZEROS_NBYTES", 1024)
    monkeypatch.setattr(positioned, "_pwritev", Nth(os.pwritev, {nth: EIO}))
    kept = device.allocate(1, empty=True)
    with pytest.raises(StorageError, match=f"1024 bytes at byte {512 + 1024 * (nth - 1)} ") as caught:
        device.allocate(1024)
    assert_faulted(device, kept, version=0)
    del kept
    device.close()  # the caught error keeps no carrier
    assert caught.value.errno == errno.EIO


def test_refused_arguments_do_not_fault(device: BlockDevice) -> None:
    carrier = device.allocate(2)
    refusals: list[tuple[type[Exception] | tuple[type[Exception], ...], Callable[[], object]]] = [
        (IndexError, lambda: carrier[2]),
        (IndexError, lambda: carrier._write_runs([(1, torch.ones(2))])),
        (MemoryError, lambda: device.allocate(CAPACITY)),
        ((TypeError, ValueError, RuntimeError), lambda: carrier.set_value(0, object())),  # type: ignore[arg-type]
    ]
    for error, use in refusals:
        with pytest.raises(error):
            use()
    assert (carrier.version, device.is_faulted()) == (0, False)


def test_transfer_that_waited_for_the_failing_one_is_refused(
    device: BlockDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = device.allocate(2)
    started, go, calls = threading.Event(), threading.Event(), []

    def fail_late(descriptor: int, views: list[memoryview], offset: int) -> int:
        calls.append(offset)
        started.set()
        assert go.wait(20)
        raise OSError(*EIO.args)

    outcomes: list[BaseException] = []

    def read() -> None:
        try:
            carrier[0]
        except Exception as error:
            outcomes.append(error)

    monkeypatch.setattr(positioned, "_preadv", fail_late)
    first = threading.Thread(target=read)
    first.start()
    assert started.wait(20)
    second = threading.Thread(target=read)
    second.start()
    second.join(0.05)
    assert second.is_alive()  # one transfer at a time
    go.set()
    first.join()
    second.join()
    assert len(calls) == 1
    assert [type(error) for error in outcomes] == [StorageError, RuntimeError]
    outcomes.clear()


def test_faulted_device_opens_anew_without_the_fault(device: BlockDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = device.allocate(2)
    with monkeypatch.context() as patch:
        patch.setattr(positioned, "_preadv", Nth(os.preadv, {1: EIO}))
        with pytest.raises(StorageError):
            carrier[0]
    path = device.path
    del carrier
    device.close()
    with BlockDevice(path) as again:
        assert again.allocate(2)[1] == 0.0
