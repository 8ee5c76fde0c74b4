"""Routes: the registry of classes without a definition, every shipped pair, and that values go in runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import strideweave as sw
from strideweave import CPU, Carrier, CheckpointFile, DType, FileBacked, Layout, Tensor
from strideweave.carriers import Generic, Piece, routes
from strideweave.carriers.block_device import BlockDevice, BlockDeviceCarrier
from strideweave.carriers.evictable import Evictable
from strideweave.carriers.file_backed import read_all
from strideweave.carriers.move import (
    BlockDeviceToCpu,
    CpuToBlockDevice,
    CpuToFileBacked,
    ElementwiseMoveOperation,
    FileBackedToCpu,
    MoveOperation,
    dispatch_move,
    move,
    move_async,
    register_move_operation,
    registered_move_operation,
    unregister_move_operation,
)
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.io import SourceFile
from support.defined import defined
from support.loop_device import loop_device
from support.scripted_carrier import ScriptedCarrier

VALUES = torch.arange(12.0)
LAYOUT = Layout.row_major(3, 4)


class Here(ScriptedCarrier):
    """A class of this test's own, so that what it registers disturbs nobody."""


class Copying(MoveOperation):
    def __init__(self) -> None:
        self.calls: list[tuple[Carrier, int, Carrier, int]] = []

    def copy(self, source: Carrier, offset: int, destination: Carrier, count: int) -> None:
        self.calls.append((source, offset, destination, count))
        run = torch.empty(count)
        source._read_runs([(offset, run)])
        destination._write_runs([(0, run + 100)])


@pytest.fixture
def copying() -> Iterator[Copying]:
    operation = Copying()
    register_move_operation(Here, CPU, operation)
    yield operation
    if registered_move_operation(Here, CPU) is not None:
        unregister_move_operation(Here, CPU)


# -- the registry ----------------------------------------------------------------------------------------------------


def test_registered_operation_is_found_used_and_forgotten(copying: Copying) -> None:
    assert registered_move_operation(Here, CPU) is copying
    assert dispatch_move(Here, CPU) is copying
    source, destination = Here(torch.arange(10.0)), CPU(0)
    moved = move(Tensor(source, 2, Layout.row_major(2, 3)), destination)
    assert copying.calls == [(source, 2, destination, 6)]
    assert moved.torch().tolist() == [[102.0, 103.0, 104.0], [105.0, 106.0, 107.0]]
    assert source.is_released()
    unregister_move_operation(Here, CPU)
    assert registered_move_operation(Here, CPU) is None
    assert move(Tensor(Here(VALUES), 0, LAYOUT), CPU(0)).torch().tolist() == VALUES.reshape(3, 4).tolist()


def test_registered_operation_is_for_its_exact_pair_alone(copying: Copying) -> None:
    class Below(Here):
        pass

    for source, destination in ((CPU, Here), (Below, CPU), (ScriptedCarrier, CPU), (Here, FileBacked)):
        assert registered_move_operation(source, destination) is None
        assert isinstance(dispatch_move(source, destination), MoveOperation)
        assert dispatch_move(source, destination) is not copying


def test_registered_operation_that_is_on_its_way_goes_on_when_it_is_unregistered(copying: Copying) -> None:
    source = Here(VALUES)
    with source.hold_read() as hold:
        handle = move_async(Tensor(source, 0, LAYOUT), CPU(0))
        hold.wait_until_reached()
        unregister_move_operation(Here, CPU)
    assert handle.wait(20)[0] == 100.0


SHIPPED = {
    (CPU, FileBacked): CpuToFileBacked,
    (FileBacked, CPU): FileBackedToCpu,
    (CPU, BlockDeviceCarrier): CpuToBlockDevice,
    (BlockDeviceCarrier, CPU): BlockDeviceToCpu,
}


@pytest.mark.parametrize("pair", SHIPPED, ids=lambda pair: f"{pair[0].__name__}-{pair[1].__name__}")
def test_shipped_pair_has_its_operation(pair: tuple[type[Carrier], type[Carrier]]) -> None:
    assert type(registered_move_operation(*pair)) is SHIPPED[pair]
    assert dispatch_move(*pair) is registered_move_operation(*pair)
    with pytest.raises(ValueError, match="there is one already"):
        register_move_operation(*pair, Copying())
    assert type(registered_move_operation(*pair)) is SHIPPED[pair]


def test_ordinary_pair_without_an_operation_has_the_elementwise_one() -> None:
    for pair in ((Generic, CPU), (CPU, Generic), (Generic, FileBacked), (FileBacked, FileBacked), (CPU, CPU)):
        assert registered_move_operation(*pair) is None
        assert isinstance(dispatch_move(*pair), ElementwiseMoveOperation)


DEFINED = defined(name="Defined")
REQUESTS: dict[str, Callable[[type, type], object]] = {
    "register": lambda a, b: register_move_operation(a, b, Copying()),
    "unregister": unregister_move_operation,
    "registered": registered_move_operation,
    "dispatch": dispatch_move,
}


@pytest.mark.parametrize("request_with", REQUESTS.values(), ids=REQUESTS)
def test_registry_refuses_what_is_no_carrier_class(request_with: Callable[[object, object], object]) -> None:
    for pair in ((CPU(1), CPU), (CPU, int), (None, CPU), (CPU, "CPU")):
        with pytest.raises(TypeError, match="Carrier classes"):
            request_with(*pair)


@pytest.mark.parametrize("request_with", REQUESTS.values(), ids=REQUESTS)
def test_registry_refuses_a_defined_class_and_names_what_it_has_instead(
    request_with: Callable[[type, type], object],
) -> None:
    for pair in ((DEFINED, CPU), (CPU, DEFINED), (DEFINED, DEFINED)):
        with pytest.raises(RuntimeError, match="TransferRoute"):
            request_with(*pair)


def test_registry_refuses_an_operation_that_is_none_and_a_pair_that_has_none() -> None:
    for wrong in (None, Copying, lambda: None):
        with pytest.raises(TypeError, match="MoveOperation"):
            register_move_operation(Here, CPU, wrong)  # type: ignore[arg-type]
    assert registered_move_operation(Here, CPU) is None
    with pytest.raises(ValueError, match=r"\(Here, CPU\)"):
        unregister_move_operation(Here, CPU)
    with pytest.raises(TypeError):
        MoveOperation()  # type: ignore[abstract]


@pytest.mark.parametrize("pair", [(Evictable, CPU), (CPU, Evictable), (FileBacked, Evictable)])
def test_carrier_that_is_made_of_others_has_no_route(pair: tuple[type[Carrier], type[Carrier]]) -> None:
    with pytest.raises(NotImplementedError, match=rf"\({pair[0].__name__}, {pair[1].__name__}\)"):
        dispatch_move(*pair)
    whole = Evictable(CPU.wrap(VALUES.clone()), FileBacked())
    with pytest.raises(NotImplementedError, match=r"\(Evictable, CPU\)"):
        move_async(Tensor(whole, 0, LAYOUT), CPU(0))
    with pytest.raises(NotImplementedError, match=r"\(CPU, Evictable\)"):
        move_async(Tensor(CPU.wrap(VALUES.clone()), 0, LAYOUT), whole)
    assert not whole.is_owned()


def test_carrier_that_is_made_of_others_moves_by_an_operation_that_is_registered_for_it() -> None:
    operation = Copying()
    register_move_operation(Evictable, CPU, operation)
    try:
        whole = Evictable(CPU.wrap(VALUES.clone()), FileBacked())
        assert torch.equal(move(Tensor(whole, 0, LAYOUT), CPU(0)).torch(), VALUES.reshape(3, 4) + 100)
        assert whole.is_released()
    finally:
        unregister_move_operation(Evictable, CPU)


# -- a block device --------------------------------------------------------------------------------------------------


@pytest.fixture
def device(tmp_path: Path) -> Iterator[BlockDevice]:
    with loop_device(tmp_path, 4 * 2**20) as path, BlockDevice(path) as opened:
        yield opened


@pytest.mark.parametrize("size", [0, 12, 20])
@pytest.mark.parametrize("dtype", [DType.Float32, DType.BFloat16, DType.Bool])
def test_block_device_takes_values_from_memory_and_gives_them_back(
    device: BlockDevice, size: int, dtype: sw.DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "RUN_NBYTES", 16)
    values = VALUES.to(dtype.torch_dtype)
    there = move(Tensor(CPU.wrap(values.clone()), 0, LAYOUT), device.allocate(size, dtype=dtype))
    assert type(there.carrier) is BlockDeviceCarrier
    assert torch.equal(read_all(there.carrier)[:12], values)
    back = move(there, CPU(0, dtype=dtype))
    assert torch.equal(back.torch(), values.reshape(3, 4))
    assert there.carrier.is_released()
    del there, back


def test_block_device_is_reached_from_cpu_alone(device: BlockDevice) -> None:
    inside = device.allocate(12)
    others: list[Carrier] = [FileBacked(size=12), Generic(VALUES.tolist(), dtype=DType.Float32), Here(VALUES)]
    for other in [*others, DEFINED(12, dtype=DType.Float32), device.allocate(12)]:
        name = type(other).__name__
        for source, destination in ((inside, other), (other, inside)):
            pair = rf"\({type(source).__name__}, {type(destination).__name__}\)"
            with pytest.raises(NotImplementedError, match=pair):
                move_async(Tensor(source, 0, LAYOUT), destination)
            assert not source.is_owned(), name
            assert not destination.is_owned(), name
    del inside, other, source, destination


def test_block_device_without_room_fails_in_the_handle_and_leaves_both_usable(device: BlockDevice) -> None:
    hog = device.allocate((device.capacity_bytes - 4096) // 4, empty=True)
    source, destination = CPU(2048), device.allocate(0)
    handle = move_async(Tensor(source, 0, Layout.row_major(2048)), destination)
    with pytest.raises(MemoryError, match="no aligned extent"):
        handle.wait(20)
    assert (source.is_released(), source.is_owned(), destination.is_owned(), destination.size()) == (False, False) * 2
    hog.release()
    move(Tensor(source, 0, Layout.row_major(2048)), destination)
    del hog, destination, handle
    gc.collect()  # the error and its trace


# -- runs, not elements ----------------------------------------------------------------------------------------------


def on_cpu(values: torch.Tensor) -> Carrier:
    return CPU.wrap(values.clone())


def in_file(values: torch.Tensor) -> Carrier:
    carrier = FileBacked(size=values.numel(), dtype=DType.from_torch(values.dtype))
    carrier._write_runs([(0, values)])
    return carrier


def in_checkpoint(values: torch.Tensor) -> Carrier:
    keeper = in_file(values)
    assert isinstance(keeper, FileBacked)
    carrier = CheckpointFile([Piece(SourceFile(keeper.path), 0, values.nbytes)], dtype=keeper.dtype())
    carrier.keeper = keeper  # type: ignore[attr-defined]  # the file goes with it
    return carrier


def on_generic(values: torch.Tensor) -> Carrier:
    return Generic(values.tolist(), dtype=DType.from_torch(values.dtype))


SOURCES = [on_cpu, in_file, in_checkpoint, on_generic]
DESTINATIONS: dict[str, Callable[[], Carrier]] = {
    "cpu": lambda: CPU(0),
    "file": FileBacked,
    "generic": lambda: Generic([], dtype=DType.Float32),
}


@pytest.mark.parametrize("into", DESTINATIONS)
@pytest.mark.parametrize("out_of", SOURCES, ids=lambda make: make.__name__)
def test_move_between_shipped_carriers_touches_no_single_slot(
    out_of: Callable[[torch.Tensor], Carrier], into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    source, destination = out_of(torch.arange(1000.0)), DESTINATIONS[into]()
    for cls in {type(source), type(destination), Carrier}:
        for name in ("get_value", "set_value"):
            monkeypatch.setattr(cls, name, lambda *args, name=name: calls.append(name))
        for name in ("_read_runs", "_write_runs"):
            plain = getattr(cls, name)

            def counted(self: Carrier, runs, name=name, plain=plain):  # type: ignore[no-untyped-def]
                calls.append(name)
                return plain(self, runs)

            monkeypatch.setattr(cls, name, counted)
    monkeypatch.setattr(routes, "RUN_NBYTES", 1000)  # 4000 bytes are four runs
    moved = move(Tensor(source, 0, Layout.row_major(10, 100)), destination)
    both_in_memory = (out_of, into) == (on_cpu, "cpu")
    assert len(calls) == (0 if both_in_memory else 4 if "cpu" in (into, out_of.__name__[3:]) else 8)
    assert set(calls) <= {"_read_runs", "_write_runs"}
    monkeypatch.undo()
    assert torch.equal(read_all(moved.carrier), torch.arange(1000.0))


# -- a device whose memory the host cannot address -------------------------------------------------------------------


class FarAway(torch.Tensor):
    """Says that it is on a device."""

    where = torch.device("meta")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.where


class Elsewhere(TorchStorage):
    """Torch storage as a device's is: files cannot be read into it."""

    device_type = "cpu"
    _device_words = "a device"

    @classmethod
    def _require_device(cls, device: object) -> torch.device:
        return torch.device("cpu")

    def allocate_like(self, size: int, *, mutable: bool = True, dtype=None, empty: bool = False):  # type: ignore[no-untyped-def]
        return Elsewhere(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)

    def _flat(self) -> torch.Tensor:
        return super()._flat().as_subclass(FarAway)


class Watched(ScriptedCarrier):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__(values)
        self.runs: list[tuple[int, int, type]] = []

    def _read_runs(self, runs):  # type: ignore[no-untyped-def]
        self.runs += [(run.data_ptr(), run.numel(), type(run)) for _, run in runs]
        return super()._read_runs(runs)

    def _write_runs(self, runs):  # type: ignore[no-untyped-def]
        self.runs += [(run.data_ptr(), run.numel(), type(run)) for _, run in runs]
        return super()._write_runs(runs)


def test_device_memory_passes_through_one_bounce_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "RUN_NBYTES", 20)
    source, device = Watched(VALUES), Elsewhere(0)
    middle = move(Tensor(source, 0, LAYOUT), device)
    assert torch.equal(device._storage, VALUES)
    target = Watched(torch.empty(0))
    move(Tensor(device, 1, Layout.row_major(11)), target)
    assert torch.equal(target.storage, VALUES[1:])
    for runs, expected in ((source.runs, [5, 5, 2]), (target.runs, [5, 5, 1])):
        assert [count for _, count, _ in runs] == expected
        assert {kind for _, _, kind in runs} == {torch.Tensor}  # of the host
        assert len({at for at, _, _ in runs}) == 1
    assert middle.carrier.is_released()


@pytest.mark.parametrize("out_of", SOURCES, ids=lambda make: make.__name__)
def test_device_takes_values_from_every_shipped_carrier_and_gives_them_back(
    out_of: Callable[[torch.Tensor], Carrier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "RUN_NBYTES", 20)
    for destination in (CPU(0), FileBacked(), Generic([], dtype=DType.Float32), Elsewhere(12)):
        there = move(Tensor(out_of(VALUES), 0, LAYOUT), Elsewhere(0))
        assert torch.equal(read_all(move(there, destination).carrier), VALUES)


def test_cuda_move_waits_for_what_was_launched_before_and_for_its_own_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    class Stream:
        def record_event(self) -> Stream:
            heard.append("recorded")
            return self

        def synchronize(self) -> None:
            heard.append("waited")

    class Copying(MoveOperation):
        def copy(self, source: Carrier, offset: int, destination: Carrier, count: int) -> None:
            heard.append("copied")

    monkeypatch.setattr(FarAway, "where", torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    register_move_operation(Elsewhere, CPU, Copying())
    try:
        source = Elsewhere(4)
        handle = move_async(Tensor(source, 0, Layout.row_major(4)), CPU(0))
        assert heard[0] == "recorded"
        handle.wait(20)
    finally:
        unregister_move_operation(Elsewhere, CPU)
    assert heard == ["recorded", "waited", "copied", "waited"]


# -- memory of inference mode ----------------------------------------------------------------------------------------


def test_carrier_that_keeps_what_it_is_given_can_be_written_after_a_move() -> None:
    class Keeping(ScriptedCarrier):
        def _write_runs(self, runs):  # type: ignore[no-untyped-def]
            ((start, run),) = runs
            self.storage = torch.cat([self.storage[:start], run.clone(), self.storage[start + run.numel() :]])
            return run.nbytes

    moved = move(Tensor(CPU.wrap(VALUES.clone()), 0, LAYOUT), Keeping(torch.empty(0)))
    moved.carrier.storage[0] = 5.0  # type: ignore[attr-defined]  # an inference tensor would refuse
    assert moved[0, 0] == 5.0
