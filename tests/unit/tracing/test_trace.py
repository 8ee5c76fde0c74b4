"""`sw.trace`: its counts against the carrier's own, where tiles were against where they are, and its bounds."""

from __future__ import annotations

import gc
import json
import os
import random
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import CPU, Layout, Tensor, TiledEvictable, TileSelection, TileSet
from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from strideweave.carriers.tiled_evictable.writing import gradient_like
from strideweave.io import watching
from strideweave.operation import observing
from strideweave.tracing.trace import Recorded
from support.tiled import experts, matrix, tiles


def stream(carrier: TiledEvictable, *ordinals: int) -> None:
    with carrier.stream(tiles(*ordinals)) as found:
        for _ in found:
            pass


def work(carrier: TiledEvictable, steps: int, seed: int = 0) -> list[int]:
    """Random streams; the tiles in the order in which they were used."""
    draw = random.Random(seed)
    used = []
    for _ in range(steps):
        wanted = draw.sample(range(carrier.grid_shape[0]), 3)
        with carrier.stream(tiles(*wanted)) as found:
            used += [coordinate[0] for coordinate, _ in found]
    return used


def resident_after(recorded: Recorded, number: int) -> set[int]:
    """The tiles in primary at the end, by what was recorded alone."""
    (life,) = (life for life in recorded.lives if life.subject.number == number)
    resident = set(life.resident_first)
    for change in recorded.changes:
        if change.subject.number == number:
            assert (change.ordinal in resident) is not change.is_resident, "a tile comes once before it goes"
            (resident.add if change.is_resident else resident.remove)(change.ordinal)
    return resident


def really_resident(carrier: TiledEvictable) -> set[int]:
    return {coordinate[0] for coordinate in carrier.primary_tiles.coordinates}


@pytest.mark.parametrize("max_events", [250_000, 7])
def test_counts_and_residency_are_those_of_the_carrier_however_few_events_are_kept(max_events: int) -> None:
    carrier, _, _, _ = experts(12, budget_tiles=5)
    work(carrier, 9, seed=1)  # the trace begins with tiles in primary
    at_first = really_resident(carrier)
    with sw.trace(max_events=max_events) as t:
        used = work(carrier, 40, seed=2)
    work(carrier, 3, seed=3)  # and hears nothing afterwards
    (row,) = t.rows()
    with sw.trace() as empty:
        pass
    assert empty.rows() == []
    recorded = t.recorded()
    (life,) = (life for life in recorded.lives if life.tallies)
    assert set(life.initial) == at_first
    assert row.hits + row.misses == len(used) == 120
    assert row.bytes_read == row.misses * carrier.tile_nbytes
    assert len(recorded.events) <= max_events
    assert len(recorded.changes) <= max_events
    if max_events == 7:
        assert recorded.dropped_events > 0
        assert life.optimal_hits is None
    else:
        assert recorded.dropped_events == 0
        assert list(life.asked) == used
        assert life.optimal_hits == optimal_hits([*at_first, *used], 5)
    assert len(at_first) == 5


@pytest.mark.parametrize("max_events", [250_000, 5])
def test_tiles_that_came_and_went_lead_to_those_that_are_there(max_events: int) -> None:
    carrier, _, _, _ = experts(12, budget_tiles=5)
    work(carrier, 5)
    earlier = carrier.statistics()
    with sw.trace(max_events=max_events) as t:
        work(carrier, 20, seed=4)
        carrier.evict(TileSet([next(iter(carrier.primary_tiles.coordinates))]))
        now = carrier.statistics().since(earlier)
        (row,) = t.rows()
        assert (row.hits, row.misses, row.bytes_read) == (now.hits, now.misses, now.bytes_read)
        assert row.hit_rate == now.hit_rate
        assert row.stall_s == pytest.approx(now.stall_s, abs=0.05)
        assert resident_after(t.recorded(), carrier._engine.subject.number) == really_resident(carrier)
        carrier.release()
        assert resident_after(t.recorded(), carrier._engine.subject.number) == set()


def test_carrier_made_in_the_block_begins_with_what_its_primary_holds() -> None:
    with sw.trace() as t:
        carrier, _, _ = matrix()
        assert resident_after(t.recorded(), carrier._engine.subject.number) == {0, 1, 2, 3}
        carrier.evict(TileSet([(0, 0)]))
        assert resident_after(t.recorded(), carrier._engine.subject.number) == {1, 2, 3}
    (row,) = (row for row in t.rows() if row.bytes_written)
    assert (row.group, row.bytes_written) == ("tiles (0, *)", 16)
    assert [event.title for event in t.events() if event.kind == "write"] == ["write tile (0, 0)"]


def test_tile_that_is_written_again_where_it_is_does_not_come_again() -> None:
    _, w, _ = matrix()
    with sw.trace() as t:
        gradient, writer = gradient_like(w)
        for value in (1.0, 2.0):
            writer.put((0, 1), torch.full((2, 2), value), w.layout)
        fresh: TiledEvictable = gradient.carrier  # type: ignore[assignment]
        assert resident_after(t.recorded(), fresh._engine.subject.number) == {2}
    assert fresh.tile_state((0, 1)).location == "primary"


def test_requests_are_events_of_their_kinds_and_tiles() -> None:
    carrier, w, dense = matrix()
    with sw.trace() as t:
        picked = carrier.project(w, TileSelection([[1, 0], [1]])).wait()
        carrier.scatter(picked, w, TileSelection([[1, 0], [1]]), "add").wait()
        total = sw.reduce_sum(w)
    assert total.torch().item() == dense.sum()
    kinds = Counter(event.kind for event in t.events())
    assert kinds["gather"] == kinds["scatter"] == 2
    computed = [event for event in t.events() if event.kind == "compute"]
    assert sorted(event.ordinal for event in computed) == [0, 1, 2, 3], "the sum is taken tile by tile"
    (operation,) = (event for event in t.events() if event.name == "reduce_sum")
    assert all(operation.begin_ns <= event.begin_ns <= event.end_ns <= operation.end_ns for event in computed)
    assert all(event.succeeded for event in t.events())


def test_wait_for_a_handle_is_an_event_as_long_as_the_wait() -> None:
    carrier, w, _, secondary = experts(3, budget_tiles=3)
    with secondary.hold_read() as hold, sw.trace() as t:
        handle = carrier.project(w, TileSelection([[0, 1], [0], [0]]))
        threading.Timer(0.2, hold.let_go).start()
        handle.wait()
        handle.wait()
    (wait,) = (event for event in t.events() if event.kind == "wait")
    assert "project" in wait.name
    assert wait.duration_ns > 0.1e9


def test_failed_read_is_an_event_that_did_not_succeed() -> None:
    carrier, _, _, secondary = experts(3, budget_tiles=2)
    secondary.fail_read(1, OSError("mine"))
    with sw.trace() as t, pytest.raises(OSError, match="mine"):
        stream(carrier, 1)
    (read,) = (event for event in t.events() if event.kind == "read")
    assert not read.succeeded
    assert read.nbytes == 0
    assert t.rows()[0].bytes_read == 0


def test_many_threads_are_counted_exactly() -> None:
    carriers = [experts(8, budget_tiles=3)[0] for _ in range(4)]
    with sw.trace(max_events=50) as t:
        threads = [threading.Thread(target=work, args=(c, 25, k)) for k, c in enumerate(carriers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = t.rows()
    told = [c.statistics() for c in carriers]
    assert sum(row.hits for row in rows) == sum(s.hits for s in told)
    assert sum(row.misses for row in rows) == sum(s.misses for s in told)
    assert sum(row.bytes_read for row in rows) == sum(s.bytes_read for s in told)


def events_of(path: Path) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return shown


def test_chrome_trace_has_named_threads_nested_events_and_resident_bytes(tmp_path: Path) -> None:
    carrier, _, _, _ = experts(12, budget_tiles=5)
    path = tmp_path / "trace.json"
    with sw.trace(path):
        work(carrier, 10)
        sw.neg(sw.ones(2))
    shown = events_of(path)
    names = {e["tid"]: e["args"]["name"] for e in shown if e["name"] == "thread_name"}
    assert threading.current_thread().name in names.values()
    assert any(name.startswith("strideweave-lane") for name in names.values())
    timed = [e for e in shown if e["ph"] == "X"]
    assert {e["tid"] for e in timed} <= set(names)
    assert {e["pid"] for e in shown} == {os.getpid()}
    reads = [e for e in timed if e["cat"] == "read"]
    assert len(reads) == carrier.statistics().misses
    assert sum(e["args"]["nbytes"] for e in reads) == carrier.statistics().bytes_read
    assert reads[0]["name"] == "read tile ({}, {}, {})".format(*reads[0]["args"]["tile"])
    by_thread = defaultdict(list)
    for e in timed:
        assert e["ts"] >= 0
        assert e["dur"] >= 0
        by_thread[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for spans in by_thread.values():  # of one thread: one after the other, or one inside the other
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)
    counters = [e for e in shown if e["ph"] == "C" and e["name"].endswith(f"#{carrier._engine.subject.number}")]
    assert counters[0]["args"]["nbytes"] == 0
    assert counters[-1]["args"]["nbytes"] == carrier.statistics().resident_nbytes == 5 * 24
    assert max(e["args"]["nbytes"] for e in counters) == 5 * 24
    assert [e["ts"] for e in counters] == sorted(e["ts"] for e in counters)


def test_nothing_is_made_while_nobody_looks() -> None:
    assert watching.watchers == []
    assert watching.event("read") is watching.event("wait", "somebody")
    with sw.trace() as t:
        assert watching.event("read") is not watching.event("read")
    assert watching.watchers == []
    assert observing.active == []
    assert t.events() == []


def test_trace_keeps_no_carrier_alive() -> None:
    carrier = experts(4, budget_tiles=2)[0]
    with sw.trace() as t:
        stream(carrier, 0, 1, 2)
        gone = weakref.ref(carrier)
        engine = weakref.ref(carrier._engine)
        del carrier
        gc.collect()
        assert gone() is None
        assert engine() is None
    assert t.rows()[0].misses == 3


def test_traces_inside_each_other_hear_the_same() -> None:
    carrier, _, _, _ = experts(4, budget_tiles=2)
    with sw.trace() as outer:
        stream(carrier, 0)
        with sw.trace() as inner:
            stream(carrier, 1, 2)
    assert (outer.rows()[0].misses, inner.rows()[0].misses) == (3, 2)


def test_what_began_before_the_trace_begins_with_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    carrier, w, _, secondary = experts(3, budget_tiles=3)
    with sw.trace(), secondary.hold_read() as hold:
        handle = carrier.project(w, TileSelection([[0], [0], [0]]))
        hold.wait_until_reached()
        with sw.trace(path):
            hold.let_go()
            handle.wait()
    (read,) = (e for e in events_of(path) if e.get("cat") == "read")
    assert read["ts"] == 0
    assert read["dur"] >= 0


def test_residency_is_told_from_where_it_is_known_when_changes_were_let_go(tmp_path: Path) -> None:
    carrier, _, _, _ = experts(12, budget_tiles=5)
    with sw.trace(max_events=6) as t:
        work(carrier, 20)
    recorded = t.recorded()
    assert recorded.dropped_changes > 0
    assert len(recorded.changes) == 6
    assert recorded.known_ns == recorded.changes[0].time_ns > recorded.begin_ns
    t.save(tmp_path / "trace.json")
    name = f"#{carrier._engine.subject.number}"
    counters = [e for e in events_of(tmp_path / "trace.json") if e["ph"] == "C" and e["name"].endswith(name)]
    assert counters[0]["ts"] == (recorded.known_ns - recorded.begin_ns) / 1000
    assert counters[-1]["args"]["nbytes"] == carrier.statistics().resident_nbytes


def test_block_that_raises_is_written_and_its_error_passes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    carrier, _, _, _ = experts(4, budget_tiles=2)

    def fail(then: Callable[[], object]) -> None:
        with sw.trace(path):
            then()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(lambda: stream(carrier, 0))
    assert any(e["name"] == "read tile (0, 0, 0)" for e in events_of(path))
    path = tmp_path / "gone" / "trace.json"
    path.parent.mkdir()
    with pytest.raises(KeyError) as raised:
        fail(path.parent.rmdir)
    assert "writing the trace failed too" in raised.value.__notes__[0]
    assert watching.watchers == []


def test_misuse_is_refused_before_anything_is_watched(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot keep 0 events"):
        sw.trace(max_events=0)
    with pytest.raises(FileNotFoundError, match="there is no folder"), sw.trace(tmp_path / "nowhere" / "trace.json"):
        pass
    assert watching.watchers == []
    t = sw.trace()
    with t:
        pass
    with pytest.raises(RuntimeError, match="single-use"), t:
        pass
    assert watching.watchers == []


def test_forked_child_goes_on_without_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    carrier, _, _, _ = experts(4, budget_tiles=2)
    with sw.trace(path) as t:
        stream(carrier, 0)
        child = os.fork()
        if child == 0:
            try:
                is_free = watching.watchers == []
                stream(carrier, 1)
                t.__exit__(None, None, None)
                os._exit(0 if is_free and not path.exists() else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        stream(carrier, 2)
    assert {e["name"] for e in events_of(path) if e.get("cat") == "read"} == {
        "read tile (0, 0, 0)",
        "read tile (2, 0, 0)",
    }


def test_moves_are_events_on_whatever_thread_they_end() -> None:
    with sw.trace() as t:
        sw.move(sw.tensor([1.0, 2.0]), sw.FileBacked())
    assert [e.name for e in t.events() if e.kind == "move"] == ["move.submit", "move.complete"]


def test_tensor_of_a_matrix_is_unchanged_by_looking() -> None:
    carrier = TiledEvictable(CPU(0), CPU.wrap(torch.arange(64.0)), (4, 4), (2, 2), budget=3 * 16)
    w = Tensor(carrier, 0, Layout.column_major(8, 8))
    with sw.trace():
        seen = sw.matmul(w, w).torch()
    assert torch.equal(seen, sw.matmul(w, w).torch())
