from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import pytest
import torch

from strideweave import CPU, FileBacked, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable.engine import Engine
from strideweave.io import Lanes, StorageError, positioned

COUNT = 6


@pytest.fixture
def carrier() -> Iterator[TiledEvictable]:
    """Six tiles on disk, and one lane."""
    c = TiledEvictable(CPU.wrap(torch.arange(2.0 * COUNT)), FileBacked(), (COUNT,), (2,))
    c.evict(TileSet([(k,) for k in range(COUNT)]))
    c._engine.lanes = Lanes(1)
    yield c
    c._engine.lanes.close()
    c.release()


class Gate:
    """Keeps the only lane busy until it is opened, and notes in which order tiles land."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.landed: list[int] = []
        self._open, started = threading.Event(), threading.Event()

        def wait() -> None:
            started.set()
            self._open.wait(10)

        engine.lanes.submit(wait)
        assert started.wait(5)

    def open(self) -> None:
        self._open.set()
        self.engine.lanes.close()


def test_tile_that_is_demanded_while_its_guess_waits_goes_before_other_guesses(carrier: TiledEvictable) -> None:
    gate = Gate(carrier._engine)
    order: list[int] = []
    fetch = carrier._engine.fetch_packed
    carrier._engine.fetch_packed = lambda tile, out: (order.append(tile.ordinal), fetch(tile, out))[1]  # type: ignore[method-assign]
    assert carrier.prefetch(TileSet([(0,), (1,), (2,)])) == 3
    asked = carrier.promote_async(TileSet([(2,), (4,)]))
    stream = carrier.stream(TileSet([(1,)]))
    gate.open()
    with stream:
        assert [(k, view.tolist()) for k, view in stream] == [((1,), [2.0, 3.0])]
    asked.wait()
    assert order == [2, 4, 1, 0]
    assert carrier.statistics().bytes_read == 4 * 8


def test_guess_that_is_called_off_reads_nothing_and_gives_its_slot_back(carrier: TiledEvictable) -> None:
    engine = carrier._engine
    gate = Gate(engine)
    carrier.prefetch(TileSet([(k,) for k in range(3)]))
    with engine.guard:
        engine.joined(engine.tiles[1]).landed.append(lambda error: gate.landed.append(1))
        assert [engine.give_up_guess(engine.tiles[k]) for k in range(3)] == [True, False, True]
    assert carrier.statistics().in_flight_tiles == 1
    gate.open()
    assert gate.landed == [1]
    assert carrier.primary_tiles == TileSet([(1,)])
    assert carrier.statistics().bytes_read == 8
    with engine.guard:
        assert not engine.give_up_guess()
    engine.lanes = Lanes(1)
    carrier.promote(TileSet([(0,), (2,)]))
    assert [carrier[k] for k in (0, 1, 4, 5)] == [0.0, 1.0, 4.0, 5.0]


def batched(budget_tiles: int = 8) -> TiledEvictable:
    """Eight tiles of 2 KiB in a file."""
    values = torch.arange(8 * 512.0)
    file = FileBacked(size=8 * 512)
    file._write_runs([(0, values)])
    return TiledEvictable(CPU(0), file, (8,), (512,), budget=budget_tiles * 2048)


def test_small_tiles_that_touch_are_read_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = batched()
    calls: list[tuple[int, int]] = []

    def preadv(descriptor: int, views: list[memoryview], offset: int) -> int:
        calls.append((offset, sum(map(len, views))))
        return os.preadv(descriptor, views, offset)

    monkeypatch.setattr(positioned, "_preadv", preadv)
    carrier.promote(TileSet([(5,), (1,), (2,), (3,)]))
    assert sorted(calls) == [(2048, 3 * 2048), (5 * 2048, 2048)]
    assert carrier.statistics().bytes_read == 4 * 2048
    for k in (1, 2, 3, 5):
        assert carrier[512 * k + 511] == 512 * k + 511
    carrier.release()


def test_tile_that_cannot_be_read_fails_alone_though_its_batch_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carrier = batched()

    def preadv(descriptor: int, views: list[memoryview], offset: int) -> int:
        if offset <= 2 * 2048 < offset + sum(map(len, views)):
            raise OSError(errno.EIO, "no")
        return os.preadv(descriptor, views, offset)

    monkeypatch.setattr(positioned, "_preadv", preadv)
    with carrier.stream(TileSet([(k,) for k in range(4)])) as stream:
        assert [next(stream)[0] for _ in range(2)] == [(0,), (1,)]
        with pytest.raises(StorageError, match=f"cannot read 2048 bytes at byte {2 * 2048} of"):
            next(stream)
    with pytest.raises(StorageError):
        carrier.promote(TileSet([(k,) for k in range(8)]))
    assert carrier.tile_state((2,)).location == "secondary"
    monkeypatch.undo()
    carrier.promote(TileSet([(k,) for k in range(8)]))
    assert carrier[2 * 512] == 1024.0
    carrier.release()
