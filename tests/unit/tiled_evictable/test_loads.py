from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from strideweave import CPU, FileBacked, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable.engine import Engine
from strideweave.io import Lanes

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
