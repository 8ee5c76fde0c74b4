"""Moves that fail, by ordinal: the source is as it was, both carriers can be used again, and a retry works."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from strideweave import CPU, Carrier, CheckpointFile, DType, FileBacked, Generic, Layout, Shape, Stride, Tensor
from strideweave.carriers import Piece, routes
from strideweave.carriers import move as movement
from strideweave.carriers.carrier import Run
from strideweave.carriers.file_backed import read_all
from strideweave.carriers.move import move, move_async
from strideweave.io import SourceFile, StorageError
from support.scripted_carrier import PATIENCE_S, ScriptedCarrier

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
VALUES = torch.arange(10.0)
LAYOUT = Layout.row_major(2, 5)


@pytest.fixture(autouse=True)
def runs_of_four_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "RUN_NBYTES", 16)  # ten values are three runs: 4, 4 and 2


def failure(tensor: Tensor, destination: Carrier) -> BaseException:
    """The exception of the move; every wait raises the same object, with the same trace."""
    handle = move_async(tensor, destination)
    caught: list[BaseException] = []
    depths = set()
    for _ in range(3):
        with pytest.raises(BaseException) as info:
            handle.wait(PATIENCE_S)
        assert not isinstance(info.value, TimeoutError)
        caught.append(info.value)
        trace, depth = info.value.__traceback__, 0
        while trace is not None:
            trace, depth = trace.tb_next, depth + 1
        depths.add(depth)
    assert handle.done
    assert all(error is caught[0] for error in caught)
    assert len(depths) == 1
    return caught[0]


def assert_usable(source: Carrier, destination: Carrier, *, version: int = 0) -> None:
    """The source is what it was, and both carriers are nobody's; a retry of the move works."""
    assert (source.is_released(), source.is_owned(), source.version) == (False, False, version)
    assert (destination.is_released(), destination.is_owned(), destination.is_mutable()) == (False, False, True)
    assert torch.equal(read_all(source), VALUES)
    moved = move(Tensor(source, 0, LAYOUT), destination)
    assert torch.equal(moved.materialize().torch(), VALUES.reshape(2, 5))
    assert source.is_released()


DESTINATIONS: dict[str, Callable[[], Carrier]] = {
    "empty memory": lambda: CPU(0),
    "memory": lambda: CPU(12),
    "empty file": FileBacked,
    "file": lambda: FileBacked(size=12),
    "empty scripted": ScriptedCarrier,
}


@pytest.mark.parametrize("ordinal", [1, 2, 3])
@pytest.mark.parametrize("into", DESTINATIONS)
def test_move_whose_nth_read_fails_leaves_both_usable(into: str, ordinal: int) -> None:
    source, destination = ScriptedCarrier(VALUES), DESTINATIONS[into]()
    error = OSError("the disk said no")
    source.fail_read(ordinal, error)
    assert failure(Tensor(source, 0, LAYOUT), destination) is error
    assert source.reads == ordinal
    if into == "empty memory":
        assert destination.size() == 0
    assert_usable(source, destination)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("ordinal", [1, 2, 3])
@pytest.mark.parametrize("is_in_memory", [False, True])
def test_move_whose_nth_write_fails_leaves_both_usable(is_in_memory: bool, ordinal: int, torn: bool) -> None:
    source = CPU.wrap(VALUES.clone()) if is_in_memory else ScriptedCarrier(VALUES)
    destination = ScriptedCarrier(torch.full((10,), -1.0))
    destination.fail_write(ordinal, NO_SPACE, torn=torn)
    assert failure(Tensor(source, 0, LAYOUT), destination) is NO_SPACE
    assert destination.writes == ordinal
    if ordinal > 1 or torn:
        assert read_all(destination).tolist() != [-1.0] * 10
        assert destination.version == 1  # values changed, so whoever remembers the version learns of it
    assert_usable(source, destination)


def test_blocking_move_raises_the_same_error() -> None:
    source = ScriptedCarrier(VALUES)
    error = OSError("again")
    source.fail_read(2, error)
    with pytest.raises(OSError) as caught:
        move(Tensor(source, 0, LAYOUT), CPU(0))
    assert caught.value is error
    assert_usable(source, CPU(0))


def test_move_that_fails_after_a_while_is_owned_until_then() -> None:
    source, destination = ScriptedCarrier(VALUES), CPU(0)
    with source.hold_read(2) as hold:
        hold.error = OSError("late")
        handle = move_async(Tensor(source, 0, LAYOUT), destination)
        hold.wait_until_reached()
        assert not handle.done
        assert source.is_owned()
        assert destination.is_owned()
    with pytest.raises(OSError, match="late") as caught:
        handle.wait(PATIENCE_S)
    assert caught.value is hold.error
    assert_usable(source, destination)


def test_move_that_fails_after_its_handle_is_dropped_gives_both_back() -> None:
    source, destination = ScriptedCarrier(VALUES), CPU(0)
    with source.hold_read() as hold:
        hold.error = OSError("nobody hears this")
        handle = move_async(Tensor(source, 0, LAYOUT), destination)
        hold.wait_until_reached()
        gone = weakref.ref(handle)
        del handle
        gc.collect()
        assert gone() is None
    deadline = time.monotonic() + PATIENCE_S
    while source.is_owned() or destination.is_owned():
        assert time.monotonic() < deadline, "the dropped move never ended"
        time.sleep(0.001)
    assert_usable(source, destination)


def test_move_whose_destination_has_no_room_leaves_both_usable() -> None:
    class Full(ScriptedCarrier):
        is_full = True

        def _allocate(self, size: int) -> None:
            if self.is_full:
                raise NO_SPACE
            super()._allocate(size)

    source, destination = CPU.wrap(VALUES.clone()), Full()
    assert failure(Tensor(source, 0, LAYOUT), destination) is NO_SPACE
    assert (destination.size(), destination.version) == (0, 0)
    destination.is_full = False
    assert_usable(source, destination)


@pytest.mark.parametrize("side", ["read", "wrote"])
def test_move_whose_carrier_moves_fewer_bytes_in_silence_fails(side: str) -> None:
    class Short(ScriptedCarrier):
        short = 0

        def _read_runs(self, runs: Sequence[Run]) -> int:
            return super()._read_runs(runs) - self.short

        def _write_runs(self, runs: Sequence[Run]) -> int:
            return super()._write_runs(runs) - self.short

    source, destination = Short(VALUES), Short()
    (source if side == "read" else destination).short = 4
    error = failure(Tensor(source, 0, LAYOUT), destination)
    assert isinstance(error, RuntimeError)
    assert f"{side} 12 of 16 bytes" in str(error)
    source.short = destination.short = 0
    assert_usable(source, destination)


def test_move_of_a_source_whose_version_changes_fails() -> None:
    source, destination = ScriptedCarrier(VALUES), CPU(0)
    with source.hold_read(3) as hold:
        handle = move_async(Tensor(source, 0, LAYOUT), destination)
        hold.wait_until_reached()
        source._version += 1
    with pytest.raises(RuntimeError, match="version was 0 at the beginning and is 1"):
        handle.wait(PATIENCE_S)
    assert_usable(source, destination, version=1)


def test_move_whose_source_cannot_be_let_go_of_fails() -> None:
    class Sticky(ScriptedCarrier):
        error: BaseException | None = OSError("close failed")

        def _free(self) -> None:
            if self.error is not None:
                raise self.error
            super()._free()

    source, destination = Sticky(VALUES), CPU(0)
    assert failure(Tensor(source, 0, LAYOUT), destination) is source.error
    source.error = None
    assert_usable(source, destination)


def test_move_that_no_lane_takes_fails_in_the_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("can't start new thread")

    def refuse() -> None:
        raise error

    source, destination = CPU.wrap(VALUES.clone()), CPU(0)
    with monkeypatch.context() as patch:
        patch.setattr(movement, "default_lanes", refuse)
        assert failure(Tensor(source, 0, LAYOUT), destination) is error
    assert_usable(source, destination)


def test_move_whose_destination_is_taken_at_the_last_moment_gives_the_source_back() -> None:
    class Contested(ScriptedCarrier):
        is_contested = True

        def _claim_ownership(self) -> int:
            if self.is_contested:
                raise RuntimeError("it is already owned")
            return super()._claim_ownership()

    source, destination = ScriptedCarrier(VALUES), Contested()
    with pytest.raises(RuntimeError, match="already owned"):
        move_async(Tensor(source, 0, LAYOUT), destination)
    destination.is_contested = False
    assert_usable(source, destination)


def test_move_whose_destination_was_filled_at_the_last_moment_writes_nothing() -> None:
    class Filled(ScriptedCarrier):
        def _claim_ownership(self) -> int:
            if self.size() == 0:
                self.storage = torch.full((3,), -1.0)  # as another move does, which ended before this one claims
            return super()._claim_ownership()

    source, destination = ScriptedCarrier(VALUES), Filled()
    error = failure(Tensor(source, 0, LAYOUT), destination)
    assert isinstance(error, ValueError)
    assert "too small" in str(error)
    assert read_all(destination).tolist() == [-1.0] * 3
    assert (destination.version, source.reads) == (0, 0)
    assert_usable(source, CPU(0))


def parts_of_memory(first: slice, second: slice) -> tuple[Carrier, Carrier, Callable[[], torch.Tensor]]:
    memory = torch.arange(30.0)
    return CPU.wrap(memory[first]), CPU.wrap(memory[second]), lambda: memory


def parts_of_an_address(first: slice, second: slice) -> tuple[Carrier, Carrier, Callable[[], torch.Tensor]]:
    memory = torch.arange(30.0)
    one, two = (CPU(part.stop - part.start, memory.data_ptr() + 4 * part.start) for part in (first, second))
    return one, two, lambda: memory


def parts_of_a_file(
    first: slice, second: slice, *, is_empty: bool = False, is_checkpoint: bool = False
) -> tuple[Carrier, Carrier, Callable[[], torch.Tensor]]:
    keeper = FileBacked(size=30)
    keeper._write_runs([(0, torch.arange(30.0))])
    other = Path(f"{keeper.path}.link")
    other.hardlink_to(keeper.path)  # the same file by another name

    def part(where: slice, size: int, path: str | Path) -> Carrier:
        return FileBacked.open(path, dtype=DType.Float32, size=size, offset_nbytes=4 * where.start)

    source: Carrier = part(first, first.stop - first.start, keeper.path)
    if is_checkpoint:
        middle = (first.start + first.stop) // 2
        file = SourceFile(keeper.path)
        halves = [(first.start, middle), (middle, first.stop)]
        source = CheckpointFile([Piece(file, 4 * a, 4 * (b - a)) for a, b in halves], dtype=DType.Float32)
    destination = part(second, 0 if is_empty else second.stop - second.start, other)

    def content() -> torch.Tensor:
        try:
            return read_all(keeper)
        finally:
            other.unlink(missing_ok=True)

    return source, destination, content


SHARED = {
    "memory": parts_of_memory,
    "an address": parts_of_an_address,
    "a file": parts_of_a_file,
    "a file, empty destination": partial(parts_of_a_file, is_empty=True),
    "a checkpoint": partial(parts_of_a_file, is_checkpoint=True),
}


@pytest.mark.parametrize("begin", [0, 1, 7, 9, 16])
@pytest.mark.parametrize("of", SHARED)
def test_move_within_shared_bytes_is_refused_and_changes_nothing(of: str, begin: int) -> None:
    source, destination, content = SHARED[of](slice(5, 17), slice(begin, begin + 10))
    tensor = Tensor(source, 2, Layout(Shape(2, 5), Stride(5, 1)))  # slots 7 to 16
    with pytest.raises(ValueError, match="same bytes"):
        move_async(tensor, destination)
    assert torch.equal(content(), torch.arange(30.0))
    assert not source.is_owned()
    assert not destination.is_owned()
    assert (source.version, destination.version) == (0, 0)


@pytest.mark.parametrize("begin", [0, 10])
@pytest.mark.parametrize("of", [of for of in SHARED if of != "a checkpoint"])  # that never changes while it is read
def test_move_beside_its_own_bytes_carries_the_values(of: str, begin: int) -> None:
    first, second = (slice(10, 20), slice(0, 10)) if begin == 0 else (slice(0, 10), slice(10, 20))
    source, destination, content = SHARED[of](first, second)
    move(Tensor(source, 0, LAYOUT), destination)
    expected = torch.arange(30.0)
    expected[second] = expected[first]
    assert torch.equal(content(), expected)


def test_move_whose_source_loses_its_slots_and_then_fails_keeps_the_values_in_the_destination() -> None:
    class Failing(ScriptedCarrier):
        def _free(self) -> None:
            super()._free()
            raise OSError("after the fact")

    source, destination = Failing(VALUES), CPU(0)
    error = failure(Tensor(source, 0, LAYOUT), destination)
    assert "after the fact" in str(error)
    assert source.is_released()
    assert torch.equal(read_all(destination), VALUES)
    assert not destination.is_owned()


@pytest.mark.parametrize("destination", [Generic([], dtype=DType.Float32), CPU(0)], ids=["generic", "cpu"])
def test_move_that_fails_leaves_an_empty_destination_empty(destination: Carrier) -> None:
    source = ScriptedCarrier(VALUES)
    source.fail_read(2, OSError("no"))
    failure(Tensor(source, 0, LAYOUT), destination)
    assert destination.size() == 0
    larger = torch.arange(30.0)
    moved = move(Tensor(CPU.wrap(larger), 0, Layout.row_major(30)), destination)
    assert torch.equal(read_all(moved.carrier), larger)


FORKING = """
import os, signal
import torch
from strideweave import CPU, FileBacked, Layout, Tensor
from strideweave.carriers.move import move, move_async
from strideweave.testing.faulty import FaultyCarrier

for make in (lambda: CPU(0), FileBacked):
    source = FaultyCarrier(torch.arange(4.0))
    destination = make()
    tensor = Tensor(source, 0, Layout.row_major(4))
    with source.hold_read() as hold:
        handle = move_async(tensor, destination)
        hold.wait_until_reached()
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            errors = []
            for _ in range(2):
                try:
                    handle.wait()
                except RuntimeError as error:
                    errors.append(error)
            assert handle.done and errors[0] is errors[1] and "forked child" in str(errors[0]), errors
            assert not source.is_owned() and not destination.is_owned() and not source.is_released()
            again = move(tensor, CPU(0))
            assert again.torch().tolist() == [0.0, 1.0, 2.0, 3.0] and source.is_released()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    moved = handle.wait(20)
    assert [moved[k] for k in range(4)] == [0.0, 1.0, 2.0, 3.0] and source.is_released()
    pid = os.fork()
    if not pid:
        assert handle.wait(5) is moved and [moved[k] for k in range(4)] == [0.0, 1.0, 2.0, 3.0]
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print("both")
"""


def test_move_on_its_way_at_a_fork_fails_in_the_child_and_goes_on_in_the_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "both\n", "")


def test_move_of_a_file_that_was_cut_short_fails_with_its_path() -> None:
    source = FileBacked(size=10)
    source._write_runs([(0, VALUES)])
    os.truncate(source.path, 20)
    destination = CPU(0)
    error = failure(Tensor(source, 0, LAYOUT), destination)
    assert isinstance(error, StorageError)
    assert source.path in str(error)
    assert destination.size() == 0
    source._write_runs([(0, VALUES)])
    assert_usable(source, destination)
