"""Every carrier against a plain bytearray: any order of write, read, move, evict, promote, release and failure."""

from __future__ import annotations

import errno
import gc
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from strideweave import (
    CPU,
    BudgetExceeded,
    Carrier,
    DType,
    FileBacked,
    Generic,
    Layout,
    Tensor,
    TiledEvictable,
    TileSet,
    move,
)
from strideweave.carriers.block_device import BlockDevice, BlockDeviceCarrier
from strideweave.carriers.carrier import Run, byte_view
from strideweave.carriers.evictable import Evictable
from strideweave.io import positioned
from strideweave.testing import FaultScript, FaultyCarrier
from support.loop_device import loop_device

SIZE, TILE, ITEM = 24, 4, 2
"""Slots of a carrier, slots of a tile, bytes of a slot (Int16)."""
WHOLE = Layout.column_major(SIZE)
_numbers = itertools.count()

Make = Callable[[Path], Carrier]


def named(folder: Path) -> Path:
    return folder / f"{next(_numbers)}.bin"


def opened(folder: Path) -> FileBacked:
    path = named(folder)
    path.write_bytes(b"#" * 5 + bytes(SIZE * ITEM) + b"#" * 5)
    return FileBacked.open(path, size=SIZE, dtype=DType.Int16, offset_nbytes=5)


def memory() -> CPU:
    return CPU(SIZE, dtype=DType.Int16)


def disk(full: bool = False) -> FaultyCarrier:
    return FaultyCarrier(torch.zeros(SIZE if full else 0, dtype=torch.int16))


def tiled(primary: Carrier, secondary: Carrier, budget_tiles: int | None = None) -> TiledEvictable:
    budget = None if budget_tiles is None else budget_tiles * TILE * ITEM
    return TiledEvictable(primary, secondary, (SIZE // TILE,), (TILE,), budget=budget)


KINDS: dict[str, Make] = {
    "Generic": lambda folder: Generic([0] * SIZE, dtype=DType.Int16),
    "CPU": lambda folder: memory(),
    "CPU over torch memory": lambda folder: CPU.wrap(torch.zeros(SIZE + 7, dtype=torch.int16)[3 : 3 + SIZE]),
    "FileBacked": lambda folder: FileBacked(size=SIZE, dtype=DType.Int16),
    "FileBacked with a name": lambda folder: FileBacked(named(folder), size=SIZE, dtype=DType.Int16),
    "FileBacked at an offset": opened,
    "FaultyCarrier": lambda folder: disk(full=True),
    "Evictable over a disk that fails": lambda folder: Evictable(memory(), disk()),
    "Evictable over a file": lambda folder: Evictable(memory(), FileBacked(dtype=DType.Int16)),
    "TiledEvictable over a disk that fails": lambda folder: tiled(memory(), disk()),
    "TiledEvictable over a file": lambda folder: tiled(memory(), FileBacked(dtype=DType.Int16)),
    "TiledEvictable of two slots, full disk": lambda folder: tiled(CPU(0, dtype=DType.Int16), disk(full=True), 2),
    "TiledEvictable of one slot, full file": lambda folder: tiled(CPU(0, dtype=DType.Int16), opened(folder), 1),
}
PLAIN = ("Generic", "CPU", "FileBacked", "FileBacked at an offset", "FaultyCarrier")
"""The kinds that values move to on their way."""

slots = st.integers(0, SIZE - 1)
values = st.integers(-(2**15), 2**15 - 1)


class Slip(OSError):
    """The injected failure."""


failures: Counter[str] = Counter()
"""How often a request failed, by its kind."""


@contextmanager
def failing_files(call: str, ahead: int, torn: bool) -> Iterator[None]:
    """The nth transfer of bytes fails, a torn one after half of them."""
    name = "_preadv" if call == "read" else "_pwritev"
    real = getattr(positioned, name)
    left = ahead

    def moved(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        nonlocal left
        left -= 1
        if left == 0 and torn and len(views[0]) > 1:
            done: int = real(descriptor, [views[0][: len(views[0]) // 2]], offset)
            return done
        if left in (0, -1) and (left == 0) != torn:
            raise Slip(errno.EIO, os.strerror(errno.EIO))
        moved_nbytes: int = real(descriptor, views, offset)
        return moved_nbytes

    with mock.patch.object(positioned, name, moved):
        yield


@contextmanager
def failing_script(script: FaultScript, call: Any, ahead: int, torn: bool) -> Iterator[None]:
    script.fail(call, ahead, Slip(errno.EIO, os.strerror(errno.EIO)), torn=torn)
    try:
        yield
    finally:
        script.clear()


class CarrierMachine(RuleBasedStateMachine):
    """One carrier, and the bytes that it should hold."""

    def __init__(self, make: Make, folder: Path, *, may_fail: bool) -> None:
        super().__init__()
        self.make = make
        self.folder = folder
        self.may_fail = may_fail

    @initialize()
    def start(self) -> None:
        self.carrier = self.fresh()
        self.model = bytearray(SIZE * ITEM)
        self.version = 0

    def fresh(self) -> Carrier:
        return self.make(self.folder)

    def is_tiled(self) -> bool:
        return isinstance(self.carrier, TiledEvictable)

    def is_plain(self) -> bool:
        return not isinstance(self.carrier, TiledEvictable | Evictable)

    # -- what is there -----------------------------------------------------------------------------------------------

    def contents(self) -> bytes:
        if self.is_tiled():
            flat = torch.tensor([self.carrier[k] for k in range(SIZE)], dtype=torch.int16)
        else:
            flat = torch.empty(SIZE, dtype=torch.int16)
            assert self.carrier._read_runs([(0, flat)]) == SIZE * ITEM
        return bytes(byte_view(flat))

    @invariant()
    def bytes_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.contents() == self.model
        assert self.carrier.version == self.version
        assert (self.carrier.size(), self.carrier.dtype()) == (SIZE, DType.Int16)
        assert self.carrier.is_mutable()
        assert not self.carrier.is_released()

    # -- write and read ----------------------------------------------------------------------------------------------

    @rule(slot=slots, value=values)
    def write(self, slot: int, value: int) -> None:
        self.carrier[slot] = value
        self.model[slot * ITEM : (slot + 1) * ITEM] = value.to_bytes(ITEM, "little", signed=True)
        self.version += 1

    @precondition(lambda self: not self.is_tiled())
    @rule(bounds=st.lists(slots, max_size=8, unique=True), seed=st.integers(0, 999), backwards=st.booleans())
    def write_runs(self, bounds: list[int], seed: int, backwards: bool) -> None:
        runs, after = self.chosen(bounds, seed)
        assert self.carrier._write_runs(runs[::-1] if backwards else runs) == sum(r.nbytes for _, r in runs)
        self.model = after

    @rule(slot=slots)
    def read(self, slot: int) -> None:
        wanted = int.from_bytes(self.model[slot * ITEM : (slot + 1) * ITEM], "little", signed=True)
        assert self.carrier[slot] == wanted

    @precondition(lambda self: not self.is_tiled())
    @rule(bounds=st.lists(slots, max_size=8, unique=True), backwards=st.booleans())
    def read_runs(self, bounds: list[int], backwards: bool) -> None:
        runs, _ = self.chosen(bounds, 0)
        nbytes = self.carrier._read_runs(runs[::-1] if backwards else runs)
        assert nbytes == sum(out.nbytes for _, out in runs)
        for start, out in runs:
            assert bytes(byte_view(out)) == self.model[start * ITEM : start * ITEM + out.nbytes]

    def chosen(self, bounds: list[int], seed: int) -> tuple[list[Run], bytearray]:
        """Disjoint runs between every other pair of bounds, and the model after they are written."""
        source = torch.Generator().manual_seed(seed)
        runs: list[Run] = []
        after = bytearray(self.model)
        for low, high in zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False):
            run = torch.randint(-(2**15), 2**15, (high - low,), generator=source).to(torch.int16)
            runs.append((low, run))
            after[low * ITEM : high * ITEM] = bytes(byte_view(run))
        return runs, after

    @rule(slot=st.sampled_from([-1, SIZE, SIZE + 3]))
    def reach_outside(self, slot: int) -> None:
        with pytest.raises(IndexError):
            self.carrier[slot]
        with pytest.raises(IndexError):
            self.carrier[slot] = 1

    @rule(slot=slots)
    def write_while_owned(self, slot: int) -> None:
        token = self.carrier._claim_ownership()
        with pytest.raises(RuntimeError, match="owned"):
            self.carrier[slot] = 1
        self.carrier._relinquish_ownership(token)

    # -- another place -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.is_plain())
    @rule(via=st.sampled_from(PLAIN))
    def move_there_and_back(self, via: str) -> None:
        if isinstance(self.carrier, BlockDeviceCarrier):
            via = "CPU"  # which alone it moves to and from
        for destination in (KINDS[via](self.folder), self.fresh()):
            source = self.carrier
            moved = move(Tensor(source, 0, WHOLE), destination)
            assert source.is_released()
            assert moved.carrier is destination
            self.carrier, self.version = destination, 1
            self.bytes_are_those_of_the_model()

    @precondition(lambda self: not self.is_plain())
    @rule()
    def move_without_a_route(self) -> None:
        with pytest.raises(NotImplementedError, match=type(self.carrier).__name__):
            move(Tensor(self.carrier, 0, WHOLE), CPU(0, dtype=DType.Int16))

    @precondition(lambda self: not self.is_plain())
    @rule(numbers=st.sets(st.integers(0, SIZE // TILE - 1)))
    def evict(self, numbers: set[int]) -> None:
        if isinstance(self.carrier, TiledEvictable):
            self.carrier.evict(TileSet([(n,) for n in numbers]))
            assert not numbers & {n for (n,) in self.carrier.primary_tiles.coordinates}
        elif isinstance(self.carrier, Evictable):
            self.carrier.evict()
            assert self.carrier.is_evicted()

    @precondition(lambda self: not self.is_plain())
    @rule(numbers=st.sets(st.integers(0, SIZE // TILE - 1)))
    def promote(self, numbers: set[int]) -> None:
        if isinstance(self.carrier, TiledEvictable):
            try:
                self.carrier.promote(TileSet([(n,) for n in numbers]))
            except BudgetExceeded:
                assert len(numbers) > self.carrier.statistics().slots
                return
            assert numbers <= {n for (n,) in self.carrier.primary_tiles.coordinates}
        elif isinstance(self.carrier, Evictable):
            self.carrier.promote()
            assert not self.carrier.is_evicted()

    @rule(first=st.booleans())
    def release_and_make_another_like_it(self, first: bool) -> None:
        old = self.carrier
        held = [int.from_bytes(self.model[k : k + ITEM], "little", signed=True) for k in range(0, SIZE * ITEM, ITEM)]
        if first:
            old.release()
            made = old.new_like(held)
        else:
            made = old.new_like(held)
            old[0] = 1
            old.release()
        assert type(made) is type(old)
        with pytest.raises(RuntimeError, match="released"):
            old[0]
        with pytest.raises(RuntimeError, match="released"):
            old[0] = 1
        self.carrier, self.version = made, made.version

    # -- failure -----------------------------------------------------------------------------------------------------

    @contextmanager
    def faults(self, call: str, ahead: int, torn: bool) -> Iterator[None]:
        storage = getattr(self.carrier, "secondary", self.carrier)
        if isinstance(storage, FaultyCarrier):
            with failing_script(storage.script, call, ahead, torn):
                yield
        else:
            with failing_files(call, ahead, torn):
                yield

    @precondition(lambda self: self.may_fail)
    @rule(call=st.sampled_from(["read", "write"]), ahead=st.integers(1, 2), slot=slots, value=values)
    def fail_a_write(self, call: str, ahead: int, slot: int, value: int) -> None:
        """It was made wholly, or not at all: one slot is never torn by a carrier's own doing."""
        with self.faults(call, ahead, torn=False):
            try:
                self.write(slot, value)
            except (OSError, BudgetExceeded):
                failures["write"] += 1

    @precondition(lambda self: self.may_fail and not self.is_tiled())
    @rule(
        bounds=st.lists(slots, min_size=2, max_size=8, unique=True),
        seed=st.integers(0, 999),
        ahead=st.integers(1, 3),
        torn=st.booleans(),
    )
    def fail_a_write_of_runs(self, bounds: list[int], seed: int, ahead: int, torn: bool) -> None:
        """Each byte of the runs is old or new then, and no other byte has changed."""
        before = bytes(self.model)
        _, after = self.chosen(bounds, seed)
        with self.faults("write", ahead, torn):
            try:
                self.write_runs(bounds, seed, backwards=False)
            except OSError:
                failures["runs"] += 1
                found = self.contents()
                assert all(byte in (old, new) for byte, old, new in zip(found, before, after, strict=True))
                self.model = bytearray(found)

    @precondition(lambda self: self.may_fail)
    @rule(slot=slots, ahead=st.integers(1, 2), torn=st.booleans())
    def fail_a_read(self, slot: int, ahead: int, torn: bool) -> None:
        with self.faults("read", ahead, torn):
            try:
                self.read(slot)
            except OSError:
                failures["read"] += 1

    @precondition(lambda self: self.may_fail and not self.is_plain())
    @rule(
        call=st.sampled_from(["read", "write"]),
        ahead=st.integers(1, 3),
        torn=st.booleans(),
        away=st.booleans(),
        numbers=st.sets(st.integers(0, SIZE // TILE - 1), min_size=1),
    )
    def fail_a_transition(self, call: str, ahead: int, torn: bool, away: bool, numbers: set[int]) -> None:
        with self.faults(call, ahead, torn):
            try:
                (self.evict if away else self.promote)(numbers)
            except (OSError, BudgetExceeded):
                failures["transition"] += 1

    @precondition(lambda self: self.may_fail and self.is_plain())
    @rule(call=st.sampled_from(["read", "write"]), torn=st.booleans(), via=st.sampled_from(PLAIN))
    def fail_a_move(self, call: str, torn: bool, via: str) -> None:
        """The source is as it was, and a second attempt works with the same two carriers."""
        source, destination = self.carrier, KINDS[via](self.folder)
        with self.faults(call, 1, torn):
            if isinstance(destination, FaultyCarrier) and call == "write":
                destination.fail_write(1, Slip(errno.EIO, "no"), torn=torn)
            try:
                move(Tensor(source, 0, WHOLE), destination)
            except OSError:
                failures["move"] += 1
                assert not source.is_released()
                assert source.is_mutable()
                self.bytes_are_those_of_the_model()
                if isinstance(destination, FaultyCarrier):
                    destination.script.clear()
            else:
                self.carrier, self.version = destination, destination.version
                return
        before = destination.version
        move(Tensor(source, 0, WHOLE), destination)
        self.carrier, self.version = destination, before + 1

    def teardown(self) -> None:
        if hasattr(self, "carrier"):
            self.carrier.release()


def check(make: Make, folder: Path, chosen: settings, *, may_fail: bool = True) -> None:
    machine: Any = lambda: CarrierMachine(make, folder, may_fail=may_fail)  # noqa: E731 - hypothesis asks for a type
    run_state_machine_as_test(machine, settings=settings(chosen, stateful_step_count=30))


@pytest.mark.parametrize("kind", KINDS)
def test_carrier_after_any_order_of_requests_holds_the_bytes_of_a_bytearray(kind: str, tmp_path: Path) -> None:
    check(KINDS[kind], tmp_path, settings(max_examples=max(5, settings().max_examples // 5)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "FileBacked" in kind or "disk" in kind or "file" in kind])
def test_machine_reaches_the_failures_that_it_injects(kind: str, tmp_path: Path) -> None:
    failures.clear()
    machine = CarrierMachine(KINDS[kind], tmp_path, may_fail=True)
    machine.start()
    machine.write(slot=0, value=5)
    if machine.is_plain():
        machine.fail_a_write(call="write", ahead=1, slot=3, value=7)
        machine.fail_a_write_of_runs(bounds=[2, 9], seed=0, ahead=1, torn=True)
        machine.fail_a_move(call="read", torn=False, via="CPU")
        machine = CarrierMachine(KINDS[kind], tmp_path, may_fail=True)
        machine.start()
    else:
        machine.promote(numbers={0})
        machine.write(slot=0, value=6)
        machine.fail_a_transition(call="write", ahead=1, torn=True, away=True, numbers={0})
        machine.bytes_are_those_of_the_model()
        machine.evict(numbers={0})
        machine.fail_a_transition(call="read", ahead=1, torn=True, away=False, numbers={0})
    machine.bytes_are_those_of_the_model()
    machine.fail_a_read(slot=0, ahead=1, torn=False)
    machine.teardown()
    plain = {"write": 1, "runs": 1, "move": 1, "read": 1}
    assert failures == (plain if machine.is_plain() else {"transition": 2, "read": 1})


def test_block_device_carrier_after_any_order_of_requests_holds_the_bytes_of_a_bytearray(tmp_path: Path) -> None:
    """Without failures: a device that fails once is not used again."""
    with loop_device(tmp_path, 2**18) as path:
        device = BlockDevice(path)
        check(lambda _: device.allocate(SIZE, dtype=DType.Int16), tmp_path, settings(max_examples=5), may_fail=False)
        gc.collect()
        device.close()


class Forgetful(FaultyCarrier):
    """Its fifth write is lost."""

    def _write_runs(self, runs: Sequence[Run]) -> int:
        kept = self.storage.clone()
        nbytes = super()._write_runs(runs)
        if self.writes == 5:
            self.storage = kept
        return nbytes


class Torn(FaultyCarrier):
    """A write that fails has changed the slot after it."""

    def _write_runs(self, runs: Sequence[Run]) -> int:
        try:
            return super()._write_runs(runs)
        except OSError:
            self.storage[-1] = 77
            raise


@pytest.mark.parametrize("broken", [Forgetful, Torn])
def test_machine_finds_a_carrier_that_loses_a_write(broken: type[FaultyCarrier], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(
            lambda _: broken(torch.zeros(SIZE, dtype=torch.int16)),
            tmp_path,
            settings(max_examples=60, phases=[Phase.generate], report_multiple_bugs=False),
        )
