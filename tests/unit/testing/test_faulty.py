"""Faults by ordinal: what was scripted happens to that call, and to no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from strideweave import CPU, Carrier, DType, Layout, Tensor, TiledEvictable, TileSet, move
from strideweave.carriers.file_backed import read_all
from strideweave.testing import FaultScript, FaultyCarrier, faulty

VALUES = torch.arange(8.0)
LOST = OSError("the cable is out")


def read(carrier: Carrier) -> list[float]:
    return read_all(carrier).tolist()


@pytest.mark.parametrize("ordinal", [1, 2, 4])
def test_script_failing_the_nth_read_leaves_the_others_alone(ordinal: int) -> None:
    carrier = FaultyCarrier(VALUES)
    carrier.fail_read(ordinal, LOST)
    for k in range(1, 6):
        if k == ordinal:
            with pytest.raises(OSError, match="cable") as info:
                read(carrier)
            assert info.value is LOST
        else:
            assert read(carrier) == VALUES.tolist()
    assert (carrier.reads, carrier.writes) == (5, 0)


@pytest.mark.parametrize("torn", [False, True])
def test_script_failing_a_write_leaves_nothing_or_half_of_its_first_run(torn: bool) -> None:
    carrier = FaultyCarrier(VALUES)
    carrier.fail_write(2, LOST, torn=torn)
    carrier._write_runs([(7, torch.tensor([70.0]))])
    with pytest.raises(OSError, match="cable"):
        carrier._write_runs([(0, torch.full((4,), 9.0)), (4, torch.full((2,), 9.0))])
    half = [9.0, 9.0] if torn else [0.0, 1.0]
    assert read(carrier) == [*half, 2, 3, 4, 5, 6, 70]
    carrier._write_runs([(0, torch.full((4,), 9.0))])
    assert read(carrier) == [9, 9, 9, 9, 4, 5, 6, 70]


def test_script_failing_an_element_write_leaves_value_and_version() -> None:
    carrier = FaultyCarrier(VALUES)
    carrier.fail_write(1, LOST)
    with pytest.raises(OSError, match="cable"):
        carrier[3] = 30.0
    assert (carrier[3], carrier.version) == (3.0, 0)


def test_script_tearing_a_read_fills_half_of_the_memory() -> None:
    carrier = FaultyCarrier(VALUES)
    carrier.script.fail("read", 1, LOST, torn=True)
    out = torch.full((8,), -1.0)
    with pytest.raises(OSError, match="cable"):
        carrier._read_runs([(0, out)])
    assert out.tolist() == [0, 1, 2, 3, -1, -1, -1, -1]


def test_script_without_an_error_of_its_own_raises_an_oserror_that_says_so() -> None:
    carrier = FaultyCarrier(VALUES)
    carrier.script.fail("read")
    with pytest.raises(OSError, match="the read that was to fail"):
        read(carrier)


def test_script_shortening_a_call_is_noticed_by_a_move() -> None:
    carrier = FaultyCarrier(VALUES)
    carrier.script.shorten("read")
    with pytest.raises(RuntimeError, match="read 28 of 32 bytes"):
        move(Tensor(carrier, 0, Layout.column_major(8)), CPU(0))
    assert not carrier.is_released()
    destination = FaultyCarrier()
    destination.script.shorten("write")
    with pytest.raises(RuntimeError, match="wrote 28 of 32 bytes"):
        move(Tensor(carrier, 0, Layout.column_major(8)), destination)
    assert read(carrier) == VALUES.tolist()


def test_script_failing_an_allocation_leaves_the_carrier_empty() -> None:
    destination = FaultyCarrier()
    destination.script.fail("allocate", 1, MemoryError("no room"))
    source = CPU.wrap(VALUES.clone())
    with pytest.raises(MemoryError, match="no room"):
        move(Tensor(source, 0, Layout.column_major(8)), destination)
    assert destination.size() == 0
    moved = move(Tensor(source, 0, Layout.column_major(8)), destination)
    assert read(moved.carrier) == VALUES.tolist()
    assert destination.script.count("allocate") == 2


def test_script_shared_by_two_carriers_counts_both() -> None:
    script = FaultScript()
    one, two = FaultyCarrier(VALUES, script=script), FaultyCarrier(VALUES, script=script)
    script.fail("read", 3, LOST)
    assert read(one) == read(two) == VALUES.tolist()
    with pytest.raises(OSError, match="cable"):
        read(one)
    assert one.reads == two.reads == script.count("read") == 3


def test_script_counts_calls_of_each_kind_on_their_own_and_ahead_of_now() -> None:
    carrier = FaultyCarrier(VALUES)
    read(carrier)
    read(carrier)
    carrier.fail_write(1, LOST)
    carrier.fail_read(2, LOST)
    assert read(carrier) == VALUES.tolist()
    for call in (lambda: read(carrier), lambda: carrier._write_runs([(0, VALUES[:1])])):
        with pytest.raises(OSError, match="cable"):
            call()


def test_script_that_is_cleared_lets_every_call_through() -> None:
    carrier = FaultyCarrier(VALUES)
    carrier.fail_read(1, LOST)
    carrier.script.clear()
    assert read(carrier) == VALUES.tolist()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda script: script.fail("seek"), "a script counts read, write, allocate"),
        (lambda script: script.hold("read", 0), "it is over"),
        (lambda script: script.shorten("write", -1), "it is over"),
    ],
)
def test_script_asked_for_what_never_comes_is_refused(ask: Callable[[Any], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(FaultScript())


def test_hold_keeps_a_read_until_it_is_let_go() -> None:
    carrier = FaultyCarrier(VALUES)
    seen: list[list[float]] = []
    with carrier.hold_read() as hold:
        reader = threading.Thread(target=lambda: seen.append(read(carrier)))
        reader.start()
        hold.wait_until_reached()
        assert hold.is_reached
        assert not seen
        carrier.storage[0] = 5.0
    reader.join(10)
    assert seen[0][0] == 5.0, "a held read had moved bytes before it was let go"


def test_hold_with_an_error_fails_when_it_is_let_go() -> None:
    disk = FaultyCarrier()
    tiled = TiledEvictable(CPU.wrap(VALUES.clone()), disk, (2,), (4,))
    with disk.hold_write() as hold:
        handle = tiled.evict_async(TileSet([(0,)]))
        hold.wait_until_reached()
        assert not handle.done
        hold.error = LOST
    with pytest.raises(OSError, match="cable"):
        handle.wait(10)
    assert [tiled[k] for k in range(8)] == VALUES.tolist()
    tiled.release()


def test_hold_that_nobody_reaches_or_lets_go_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty, "PATIENCE_S", 0.01)
    carrier = FaultyCarrier(VALUES)
    hold = carrier.hold_read()
    with pytest.raises(AssertionError, match="never made"):
        hold.wait_until_reached()
    with pytest.raises(AssertionError, match="nobody let the held call go"):
        read(carrier)


def test_faulty_carrier_makes_children_with_scripts_of_their_own() -> None:
    carrier = FaultyCarrier(VALUES)
    child = carrier.allocate_like(3, dtype=DType.Int8)
    assert carrier.children == [child]
    child.fail_read(1, LOST)
    assert read(carrier) == VALUES.tolist()
    with pytest.raises(OSError, match="cable"):
        read(child)
    assert read(child) == [0, 0, 0]


def test_faulty_carrier_does_not_share_the_memory_it_was_given() -> None:
    given = VALUES.clone()
    carrier = FaultyCarrier(given)
    given.zero_()
    assert read(carrier) == VALUES.tolist()
