"""Four threads, a thousand tiles, random requests that overlap: nothing hangs, is lost, or is left over."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch

import strideweave as sw
from strideweave import CPU, LRU, DType, FileBacked, Layout, Tensor, TiledEvictable, TileSelection, TileSet

ROWS, COLUMNS, TILE = 40, 25, (2, 3)
TILES = ROWS * COLUMNS
LAYOUT = Layout.row_major(ROWS * TILE[0], COLUMNS * TILE[1])
SLOTS = LAYOUT.size
STEP = 1 << 20
"""The values of a slot begin at its number times this, and only grow: a value tells where it belongs."""
PATIENCE_S = 30.0


class Shadow:
    """What each slot holds at least, and at most: they differ while the one thread that writes the slot is at it."""

    def __init__(self) -> None:
        self.low = torch.arange(SLOTS, dtype=torch.int64) * STEP
        self.high = self.low.clone()
        self.owners = [threading.Lock() for _ in range(64)]  # one writer of a slot at a time

    def write(self, carrier: TiledEvictable, slot: int) -> None:
        with self.owners[slot % len(self.owners)]:
            before = int(self.low[slot])
            self.high[slot] = before + 1
            try:
                carrier[slot] = before + 1
            except RuntimeError:
                self.high[slot] = before
                raise
            self.low[slot] = before + 1


class Worker:
    """Random requests of one thread until time is up; every value that it sees is held against the shadow."""

    def __init__(self, tensor: Tensor, shadow: Shadow, seed: int) -> None:
        carrier = tensor.carrier
        assert isinstance(carrier, TiledEvictable)
        self.carrier = carrier
        self.tensor = tensor
        self.shadow = shadow
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.wrong: list[object] = []
        self.pending: list[Callable[[], object]] = []
        self.steps: dict[str, Callable[[], object]] = {
            "project": self.project,
            "project_async": lambda: self.pending.append(self.start_project()),
            "scatter": self.scatter,
            "promote": lambda: self.carrier.promote(self.some()),
            "evict": lambda: self.carrier.evict(self.some()),
            "promote_async": lambda: self.pending.append(self.carrier.promote_async(self.some()).wait),
            "evict_async": lambda: self.pending.append(self.carrier.evict_async(self.some()).wait),
            "flush": lambda: self.carrier.flush(self.some()),
            "flush_async": lambda: self.pending.append(self.carrier.flush_async(self.some()).wait),
            "borrow": self.borrow,
            "stream": self.stream,
            "get": self.get,
            "set": lambda: self.shadow.write(self.carrier, self.random.randrange(SLOTS)),
            "wait": self.wait,
        }

    def run(self, until: float) -> None:
        names = list(self.steps)
        try:
            while time.monotonic() < until:
                self.attempt("reduce_sum" if self.random.random() < 0.004 else self.random.choice(names))
            while self.pending:
                self.attempt("wait")
        except BaseException as error:
            self.wrong.append(error)

    def attempt(self, name: str) -> None:
        try:
            self.reduce_sum() if name == "reduce_sum" else self.steps[name]()
        except RuntimeError as error:  # a conflict, a pinned tile, or no room: BudgetExceeded is one of these
            if not str(error).startswith("cannot "):
                raise
            self.refused[name] += 1
        else:
            self.done[name] += 1

    # -- choosing --------------------------------------------------------------------------------------------------

    def some(self) -> TileSet:
        """A few tiles, half of the time from a corner that everybody likes."""
        rows, columns = self.extent()
        count = self.random.randrange(1, 9)
        return TileSet({(self.random.randrange(rows), self.random.randrange(columns)) for _ in range(count)})

    def selection(self) -> TileSelection:
        rows, columns = self.extent()
        return TileSelection(
            [self.random.sample(range(rows), self.random.randrange(1, 4)), self.random.sample(range(columns), 2)]
        )

    def extent(self) -> tuple[int, int]:
        return (4, 4) if self.random.random() < 0.5 else (ROWS, COLUMNS)

    def slots(self, selection: TileSelection) -> torch.Tensor:
        """The slots of a projection, by place."""
        rows, columns = (
            torch.tensor([c * extent + k for c in axis for k in range(extent)])
            for axis, extent in zip(selection.per_axis, TILE, strict=True)
        )
        return rows[:, None] * COLUMNS * TILE[1] + columns[None, :]

    def compare(self, name: str, got: torch.Tensor, low: torch.Tensor, slots: torch.Tensor) -> None:
        high = self.shadow.high[slots]
        if not bool(((low <= got) & (got <= high)).all()):
            self.wrong.append((name, got, low, high))

    # -- requests --------------------------------------------------------------------------------------------------

    def start_project(self) -> Callable[[], None]:
        selection = self.selection()
        slots = self.slots(selection)
        low = self.shadow.low[slots]
        destination = CPU(0, dtype=DType.Int64) if self.random.random() < 0.5 else None
        handle = self.carrier.project(self.tensor, selection, destination)
        return lambda: self.compare("project", handle.wait(PATIENCE_S).torch(), low, slots)

    def project(self) -> None:
        self.start_project()()

    def scatter(self) -> None:
        selection = self.selection()
        slots = self.slots(selection)
        reduction = self.random.choice(["replace", "add"])
        compact = sw.from_torch(torch.full(slots.shape, 7))
        low = self.shadow.low[slots]
        made = self.carrier.scatter(compact, self.tensor, selection, reduction).wait(PATIENCE_S)
        fresh = made.carrier
        assert isinstance(fresh, TiledEvictable)
        got = fresh.project(made, selection).wait(PATIENCE_S).torch()
        if reduction == "add":
            self.compare("scatter", got - 7, low, slots)
        elif not bool((got == 7).all()):
            self.wrong.append(("scatter", got))
        fresh.release()

    def views(self, wanted: TileSet) -> dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]]:
        found = {}
        for coordinate in wanted.coordinates:
            slots = self.slots(TileSelection([[c] for c in coordinate]))
            found[coordinate] = (slots, self.shadow.low[slots])
        return found

    def borrow(self) -> None:
        wanted = self.some()
        known = self.views(wanted)
        with self.carrier.borrow(wanted) as views:
            for coordinate, view in views.items():
                slots, low = known[coordinate]
                self.compare("borrow", view, low, slots)

    def stream(self) -> None:
        wanted = self.some()
        known = self.views(wanted)
        leave_after = self.random.randrange(1, 12)
        with self.carrier.stream(wanted) as stream:
            for k, (coordinate, view) in enumerate(stream, 1):
                slots, low = known[coordinate]
                self.compare("stream", view, low, slots)
                if k == leave_after:
                    break

    def get(self) -> None:
        slot = torch.tensor(self.random.randrange(SLOTS))
        low = self.shadow.low[slot]
        self.compare("get", torch.tensor(self.carrier[int(slot)]), low, slot)

    def reduce_sum(self) -> None:
        low = int(self.shadow.low.sum())
        got = int(sw.reduce_sum(self.tensor).torch().item())
        high = int(self.shadow.high.sum())
        if not low <= got <= high:
            self.wrong.append(("reduce_sum", got, low, high))

    def wait(self) -> None:
        if self.pending:
            self.pending.pop(self.random.randrange(len(self.pending)))()


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))


def _other_threads() -> set[str]:
    """The threads that are no lanes: those are shared, few, and go when they have been idle for a while."""
    return {t.name for t in threading.enumerate() if not t.name.startswith("strideweave-lane-")}


def _stress(seconds: float, budget_tiles: int, seed: int) -> Counter[str]:
    FileBacked(size=1).release()  # whose folder of this process stays open from now on
    gc.collect()
    files, threads = _open_files(), _other_threads()
    shadow = Shadow()
    carrier = TiledEvictable(
        CPU(0, dtype=DType.Int64),
        _full(shadow.low),
        (ROWS, COLUMNS),
        TILE,
        layout=LAYOUT,
        budget=budget_tiles * TILE[0] * TILE[1] * 8,
        residency_policy=LRU(),
    )
    tensor = Tensor(carrier, 0, LAYOUT)
    workers = [Worker(tensor, shadow, seed + k) for k in range(4)]
    until = time.monotonic() + seconds
    running = [threading.Thread(target=w.run, args=(until,), daemon=True) for w in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(max(0.0, until + PATIENCE_S - time.monotonic()))
    if any(thread.is_alive() for thread in running):
        faulthandler.dump_traceback(sys.__stderr__)
        pytest.fail(f"a thread hangs: {carrier.statistics()}")
    assert [w.wrong for w in workers] == [[], [], [], []]
    deadline = time.monotonic() + PATIENCE_S
    while (now := carrier.statistics()).in_flight_tiles or now.pinned_tiles:
        assert time.monotonic() < deadline, f"never idle: {now}"
        time.sleep(0.001)
    assert now.resident_tiles <= now.slots
    assert torch.equal(shadow.low, shadow.high)
    every = TileSet((i, j) for i in range(ROWS) for j in range(COLUMNS))
    assert carrier.valid_tiles == every
    assert int(sw.reduce_sum(tensor).torch().item()) == int(shadow.low.sum())
    assert torch.equal(tensor.materialize().torch(), shadow.low.reshape(ROWS * TILE[0], -1))
    carrier.evict(every)
    assert (carrier.statistics().resident_tiles, carrier.statistics().pinned_tiles) == (0, 0)
    assert torch.equal(tensor.materialize().torch(), shadow.low.reshape(ROWS * TILE[0], -1)), "a tile was lost"
    carrier.release()
    done = sum((w.done for w in workers), Counter[str]())
    for worker in workers:
        worker.steps.clear()
    gc.collect()
    assert _other_threads() == threads
    assert sum(t.name.startswith("strideweave-lane-") for t in threading.enumerate()) <= 4
    assert _open_files() == files
    return done


def _full(values: torch.Tensor) -> FileBacked:
    made = FileBacked(size=values.numel(), dtype=DType.Int64)
    made._write_runs([(0, values)])
    return made


@pytest.mark.parametrize("budget_tiles", [24, TILES])
def test_a_second_of_overlapping_requests_loses_nothing(budget_tiles: int) -> None:
    done = _stress(1.0, budget_tiles, seed=budget_tiles)
    assert len(done) > 10


@pytest.mark.slow
@pytest.mark.parametrize("budget_tiles", [24, 300])
def test_twenty_seconds_of_overlapping_requests_lose_nothing(budget_tiles: int) -> None:
    done = _stress(20.0, budget_tiles, seed=1000 + budget_tiles)
    assert len(done) > 12
