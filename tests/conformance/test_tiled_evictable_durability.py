"""tensors.md, TiledEvictable: durability, fork and pickle."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from strideweave import (
    CPU,
    LRU,
    CheckpointFile,
    DType,
    FileBacked,
    Layout,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.carriers.checkpoint_file import Piece
from strideweave.carriers.tiled_evictable import TileState
from strideweave.io import ChangedFileError, SourceFile, writable_file
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, experts, locations, situation, slots_of, tiles

LAYOUT = Layout.row_major(4, 2, 3)
DENSE = torch.arange(1.0, 25.0)


def stored_at(path: Path, **options: Any) -> TiledEvictable:
    """Four experts in primary, none of them written yet."""
    return TiledEvictable(CPU.wrap(DENSE.clone()), FileBacked(path), (4, 1, 1), (1, 2, 3), layout=LAYOUT, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.tiles"


class TestFlush:
    def test_flush_leaves_tiles_where_they_are_and_clean(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier[0] = -1.0
        assert carrier.dirty_tiles == tiles(0)
        version, evictions = carrier.version, carrier.statistics().evictions
        assert carrier.flush() is None
        assert set(locations(carrier).values()) == {"primary"}
        assert carrier.dirty_tiles == TileSet([])
        assert (carrier.version, carrier.statistics().evictions) == (version, evictions)
        assert carrier.statistics().pinned_tiles == 0
        carrier.release()

    def test_flush_of_clean_tiles_writes_no_byte(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.flush()
        before = carrier.statistics()
        carrier.flush()
        carrier.evict(every_tile(carrier))
        carrier.flush()
        assert carrier.statistics().since(before).bytes_written == 0
        carrier.release()

    def test_flush_of_some_tiles_leaves_the_others(self, path: Path) -> None:
        carrier = stored_at(path)
        for k in range(4):
            carrier[6 * k] = -1.0
        carrier.flush(TileSelection([[2, 0], [0], [0]]))
        assert carrier.dirty_tiles == tiles(1, 3)
        carrier.release()
        again = TiledEvictable.open(path)
        assert again.valid_tiles == tiles(0, 2)
        again.release()

    def test_flush_syncs_before_it_is_done(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        carrier = stored_at(path)
        real, synced = writable_file._fsync, []

        def fsync(descriptor: int) -> None:
            synced.append(carrier.tile_state((0, 0, 0)).location)
            real(descriptor)

        monkeypatch.setattr(writable_file, "_fsync", fsync)
        carrier.flush()
        assert synced == ["primary"] * 2, "once the data and its records, once the mark that says so"
        carrier.release()

    def test_flush_over_a_full_file_writes_in_place_and_syncs_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path.write_bytes(DENSE.numpy().tobytes())
        carrier = TiledEvictable(CPU(0), FileBacked.open(path, dtype=DType.Float32), (4,), (6,))
        carrier[7] = -1.0
        calls: list[int] = []
        monkeypatch.setattr(writable_file, "_fsync", calls.append)
        carrier.flush()
        assert len(calls) == 1
        assert torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)[7] == -1.0
        carrier.release()

    def test_flush_over_other_carriers_makes_tiles_clean(self) -> None:
        carrier, weight, _, secondary = experts()
        weight[1, 0, 0] = -1.0
        carrier.flush()
        assert carrier.tile_state((1, 0, 0)) == TileState("primary", True, False)
        assert secondary.writes == 1
        carrier.release()

    def test_flush_async_overlaps_promotions_and_reads(self) -> None:
        carrier, weight, _, secondary = experts()
        weight[0, 0, 0] = -1.0
        with secondary.hold_write(1) as hold:
            handle = carrier.flush_async()
            hold.wait_until_reached()
            assert not handle.done
            carrier.promote(tiles(0, 2))
            picked = carrier.project(weight, TileSelection([[0, 3], [0], [0]])).wait(5)
            with carrier.borrow(tiles(0)) as views:
                assert views[(0, 0, 0)][0, 0, 0] == -1.0
            carrier.evict(tiles(2))
            hold.let_go()
            assert handle.wait(5) is None
        assert picked.torch()[0, 0, 0] == -1.0
        assert not carrier.dirty_tiles.coordinates
        carrier.release()

    @pytest.mark.parametrize(
        ("attempt", "words"),
        [
            (lambda c: c.evict(tiles(0)), "cannot evict tile .0, 0, 0.*pinned by flush of 1 tiles"),
            (lambda c: c.set_value(1, 5.0), "cannot write tile .0, 0, 0.*pinned"),
            (lambda c: c.release(), "work is pending .flush of 1 tiles"),
        ],
    )
    def test_tile_being_flushed_is_neither_evicted_nor_written_nor_released(
        self, attempt: Callable[[TiledEvictable], object], words: str
    ) -> None:
        carrier, weight, _, secondary = experts()
        weight[0, 0, 0] = -1.0
        with secondary.hold_write(1) as hold:
            handle = carrier.flush_async()
            hold.wait_until_reached()
            with pytest.raises(RuntimeError, match=words):
                attempt(carrier)
            hold.let_go()
            handle.wait(5)
        assert slots_of(carrier)[0] == -1.0
        carrier.release()

    def test_flush_over_a_pending_eviction_raises_and_names_it(self) -> None:
        carrier, weight, _, secondary = experts()
        weight[0, 0, 0] = -1.0
        with secondary.hold_write(1) as hold:
            eviction = carrier.evict_async(tiles(0))
            hold.wait_until_reached()
            for wanted in (None, tiles(0, 1)):
                with pytest.raises(RuntimeError, match=r"cannot flush tile .0, 0, 0.*evict 1 tiles.*pending"):
                    carrier.flush_async(wanted)
            carrier.flush(tiles(1))
            hold.let_go()
            eviction.wait(5)
        carrier.flush()
        carrier.release()

    def test_two_flushes_of_one_tile_both_end(self, path: Path) -> None:
        carrier = stored_at(path)
        handles = [carrier.flush_async() for _ in range(5)]
        for handle in handles:
            handle.wait(5)
        carrier.release()
        again = TiledEvictable.open(path)
        assert torch.equal(slots_of(again), DENSE)
        again.release()

    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    def test_flush_that_fails_leaves_all_as_it_was(self, ordinal: int) -> None:
        carrier, weight, _, secondary = experts()
        for k in range(3):
            weight[k, 0, 0] = -1.0
        before = situation(carrier)
        error = OSError("the disk said no")
        secondary.fail_write(ordinal, error)
        with pytest.raises(OSError, match="said no") as caught:
            carrier.flush()
        assert caught.value is error
        after = situation(carrier)
        assert (after.states, after.version, after.owned) == (before.states, before.version, before.owned)
        assert after.statistics.pinned_tiles == 0
        carrier.flush()
        assert not carrier.dirty_tiles.coordinates
        carrier.release()

    def test_flush_refuses_what_is_no_set_of_its_tiles(self, path: Path) -> None:
        carrier = stored_at(path)
        with pytest.raises(TypeError, match="must be a TileSet or a TileSelection"):
            carrier.flush([(0, 0, 0)])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="outside"):
            carrier.flush(tiles(4))
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            carrier.flush()


class TestOpen:
    def test_open_comes_back_with_clean_secondary_tiles(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.flush()
        carrier.release()
        again = TiledEvictable.open(path)
        assert (again.grid_shape, again.tile_shape, again.layout) == ((4, 1, 1), (1, 2, 3), LAYOUT)
        assert again.dtype() is DType.Float32
        for k in range(4):
            assert again.tile_state((k, 0, 0)) == TileState("secondary", True, False)
        assert torch.equal(Tensor(again, 0, LAYOUT).materialize().torch().reshape(-1), DENSE)
        assert again.statistics().bytes_written == 0
        again.release()

    def test_open_without_a_flush_finds_what_was_evicted(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.evict(tiles(1, 3))
        carrier.release()
        again = TiledEvictable.open(path)
        assert locations(again) == {(k, 0, 0): "secondary" if k % 2 else "invalid" for k in range(4)}
        with pytest.raises(RuntimeError, match="invalid"):
            again.promote(tiles(0))
        again.release()

    def test_open_keeps_a_budget_a_policy_and_a_primary(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.flush()
        carrier.release()
        primary, policy = CPU(0), LRU()
        again = TiledEvictable.open(path, primary, budget=48, residency_policy=policy)
        assert again.primary is primary
        assert again.residency_policy is policy
        assert again.statistics().slots == 2
        for k in range(24):
            again[k] = float(k)
        again.flush()
        again.release()
        last = TiledEvictable.open(path)
        assert torch.equal(slots_of(last), torch.arange(24.0))
        last.release()

    @pytest.mark.parametrize("dtype", [DType.BFloat16, DType.E4M3, DType.Int64, DType.Bool])
    @pytest.mark.parametrize("layout", [Layout.row_major(4, 6), Layout.column_major(4, 6)])
    def test_open_finds_every_dtype_and_layout(self, dtype: Any, layout: Layout, path: Path) -> None:
        values = (torch.arange(24) % 2).to(dtype.torch_dtype)
        carrier = TiledEvictable(CPU.wrap(values), FileBacked(path, dtype=dtype), (2, 3), (2, 2), layout=layout)
        expected = Tensor(carrier, 0, layout).materialize().torch().clone()
        carrier.evict(every_tile(carrier))
        carrier.release()
        again = TiledEvictable.open(path)
        found = Tensor(again, 0, again.layout).materialize().torch()
        assert found.dtype == dtype.torch_dtype
        assert torch.equal(found.double(), expected.double())
        again.release()

    def test_open_of_an_immutable_carrier_reads_only(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.flush()
        again = TiledEvictable.open(path, mutable=False)
        assert not again.is_mutable()
        with pytest.raises(RuntimeError, match="not mutable"):
            again[0] = 1.0
        again.promote(every_tile(again))
        again.evict(every_tile(again))
        again.flush()
        assert torch.equal(slots_of(again), DENSE)
        again.release()
        carrier.release()

    def test_constructor_over_the_same_store_finds_its_tiles(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.flush()
        carrier.release()
        secondary = FileBacked.open(path, dtype=DType.Float32, size=0)
        again = TiledEvictable(CPU(0), secondary, (4, 1, 1), (1, 2, 3), layout=LAYOUT)
        assert set(locations(again).values()) == {"secondary"}
        again.release()

    def test_constructor_over_another_store_is_refused_and_takes_nothing(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.flush()
        carrier.release()
        primary, secondary = CPU(0), FileBacked.open(path, dtype=DType.Float32, size=0)
        with pytest.raises(ValueError, match=r"grid \(2, 1, 1\).*it holds Float32 tiles of grid \(4, 1, 1\)"):
            TiledEvictable(primary, secondary, (2, 1, 1), (2, 2, 3), layout=LAYOUT)
        assert not primary.is_owned()
        assert not secondary.is_owned()

    def test_constructor_never_overwrites_a_file_of_values(self, path: Path) -> None:
        path.write_bytes(b"precious" * 100)
        secondary = FileBacked.open(path, dtype=DType.Float32, size=0)
        with pytest.raises(ValueError, match=r"cannot open .* as a tile store"):
            TiledEvictable(CPU(0), secondary, (4,), (6,))
        assert path.read_bytes() == b"precious" * 100

    def test_store_at_an_offset_is_refused(self, path: Path) -> None:
        with pytest.raises(ValueError, match=r"from byte 8 on.*begins at byte 0"):
            TiledEvictable(CPU(0), FileBacked(path, offset_nbytes=8), (4,), (6,))

    def test_open_refuses_a_full_or_different_primary(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.flush()
        carrier.release()
        with pytest.raises(ValueError, match=r"it has 24 slots.*must be empty"):
            TiledEvictable.open(path, CPU(24))
        with pytest.raises(TypeError, match="both tiers hold one dtype"):
            TiledEvictable.open(path, CPU(0, dtype=DType.Int8))

    def test_zeros_by_name_are_found_again_and_take_no_room(self, path: Path) -> None:
        carrier = TiledEvictable(CPU(0), FileBacked(path), (4,), (6,))
        with carrier._engine.guard:
            for tile in carrier._engine.tiles[:3]:
                tile.implicit = True
        carrier[0] = 5.0
        carrier.flush()
        carrier.release()
        again = TiledEvictable.open(path)
        assert list(locations(again).values()) == ["secondary", "implicit", "implicit", "invalid"]
        assert [again[k] for k in (0, 1, 6, 12)] == [5.0, 0.0, 0.0, 0.0]
        again.release()


def in_child(work: Callable[[], object]) -> str:
    """What the work returns in a forked child, or its error; a child that hangs is told so."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(work()).encode())
        except BaseException as e:
            os.write(writer, f"{type(e).__name__}: {e}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 10
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.002)
    with os.fdopen(reader) as pipe:
        return pipe.read()


class TestFork:
    @pytest.mark.parametrize("is_stored", [True, False])
    def test_child_reads_clean_tiles_in_either_tier(self, is_stored: bool, path: Path) -> None:
        if is_stored:
            carrier = stored_at(path)
            carrier.flush()
        else:
            carrier, *_ = experts()
        carrier.evict(tiles(1, 2))
        weight = Tensor(carrier, 0, LAYOUT)
        told = in_child(lambda: torch.equal(weight.materialize().torch().reshape(-1), DENSE))
        assert told == "True"
        assert torch.equal(slots_of(carrier), DENSE)
        carrier.release()

    def test_child_refuses_dirty_tiles_and_reads_the_others(self) -> None:
        carrier, weight, _, _ = experts(budget_tiles=2)
        weight[0, 0, 0] = -1.0
        for attempt in (
            lambda: carrier[0],
            lambda: carrier.promote(tiles(0, 1)),
            lambda: carrier.project(weight, TileSelection([[0], [0], [0]])),
            lambda: carrier.borrow(tiles(0)).__enter__(),
        ):
            told = in_child(attempt)
            assert told.startswith("RuntimeError: cannot ")
            assert "tile (0, 0, 0)" in told
            assert "after fork: it was dirty in the parent" in told
            assert "flush() in the parent" in told
        assert in_child(lambda: [carrier[6 * k] for k in (1, 2, 3)]) == "[7.0, 13.0, 19.0]"
        assert in_child(lambda: (carrier.promote(tiles(1, 2)), carrier.primary_tiles == tiles(1, 2))) == "(None, True)"
        assert carrier[0] == -1.0
        carrier.release()

    @pytest.mark.parametrize("is_stored", [True, False])
    def test_child_writes_nothing_to_the_parents_tiles(self, is_stored: bool, path: Path) -> None:
        carrier = stored_at(path) if is_stored else experts()[0]
        before = path.read_bytes() if is_stored else b""
        assert "after fork: the parent goes on" in in_child(lambda: carrier.set_value(0, 9.0))
        if is_stored:
            assert "after fork: the parent goes on" in in_child(lambda: carrier.evict(tiles(0)))
            assert "after fork: the parent goes on" in in_child(lambda: carrier.flush())
            assert path.read_bytes() == before
            carrier.flush()
            assert in_child(lambda: carrier.evict(tiles(0))) == "None", "a clean tile needs no write"
            carrier[0] = 2.0
        carrier.flush()
        carrier.release()

    def test_child_of_a_busy_parent_neither_hangs_nor_waits_for_its_requests(self) -> None:
        carrier, _, _, secondary = experts(budget_tiles=3)
        with secondary.hold_read(1) as hold:
            handle = carrier.promote_async(tiles(0))
            hold.wait_until_reached()

            def work() -> object:
                with pytest.raises(RuntimeError, match="after fork: the threads that worked on it are the parent's"):
                    handle.wait(5)
                carrier.promote(tiles(0, 1, 2))
                free = carrier.statistics()
                carrier.release()
                return free.in_flight_tiles, free.pinned_tiles, free.resident_tiles

            assert in_child(work) == "(0, 0, 3)"
            hold.let_go()
            handle.wait(5)
        carrier.release()

    def test_child_of_a_parent_whose_threads_hold_locks_reads_on(self) -> None:
        carrier, _, _, _ = experts(budget_tiles=2)
        over = threading.Event()

        def churn() -> None:
            k = 0
            while not over.is_set():
                k = (k + 1) % 4
                with carrier.borrow(tiles(k)):
                    carrier.statistics()

        threads = [threading.Thread(target=churn) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(8):
                assert in_child(lambda: carrier[20]) == "21.0"
        finally:
            over.set()
            for thread in threads:
                thread.join()
        carrier.release()

    def test_child_of_a_thread_inside_a_borrow_block_leaves_it(self) -> None:
        carrier, _, _, _ = experts(budget_tiles=2)

        def work() -> object:
            block.__exit__(None, None, None)
            carrier.promote(tiles(2, 3))
            return carrier.statistics().pinned_tiles

        block = carrier.borrow(tiles(0))
        block.__enter__()
        assert in_child(work) == "0"
        block.__exit__(None, None, None)
        carrier.release()

    def test_child_notices_that_the_parent_replaced_a_tile(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.evict(every_tile(carrier))
        ready, go = os.pipe()

        def work() -> object:
            os.read(ready, 1)
            return (carrier[6], carrier[0])

        threading.Timer(0.05, lambda: (carrier.set_value(0, -1.0), carrier.evict(tiles(0)), os.write(go, b"x"))).start()
        told = in_child(work)
        assert told.startswith("ChangedFileError")
        assert "tile 0 was written by another carrier" in told
        os.close(ready)
        os.close(go)
        carrier.release()


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class TestPickle:
    def test_pickled_store_is_opened_again_by_path(self, path: Path) -> None:
        carrier = stored_at(path, residency_policy=LRU())
        carrier.flush()
        copied = again(carrier)
        assert (copied.grid_shape, copied.layout, copied.is_mutable()) == (carrier.grid_shape, LAYOUT, True)
        assert isinstance(copied.residency_policy, LRU)
        assert set(locations(copied).values()) == {"secondary"}
        assert torch.equal(slots_of(copied), DENSE)
        assert not copied.is_owned()
        copied[0] = -1.0
        with pytest.raises(RuntimeError, match="another carrier writes to it"):
            copied.flush()
        carrier.release()
        copied.flush()
        copied.release()

    def test_pickled_tensor_over_a_store_has_its_values(self, path: Path) -> None:
        carrier = stored_at(path)
        carrier.evict(every_tile(carrier))
        weight = again(Tensor(carrier, 0, LAYOUT))
        assert torch.equal(weight.materialize().torch().reshape(-1), DENSE)
        weight.carrier.release()
        carrier.release()

    def test_pickle_keeps_the_budget(self, path: Path) -> None:
        stored = stored_at(path)
        stored.flush()
        stored.release()
        carrier = TiledEvictable.open(path, budget=72)
        copied = again(carrier)
        assert copied.statistics().slots == 3
        carrier.release()
        copied.release()

    def test_pickle_of_tiles_over_a_full_file_or_a_checkpoint_reads_them_again(self, path: Path) -> None:
        path.write_bytes(DENSE.numpy().tobytes())
        for secondary in (
            FileBacked.open(path, dtype=DType.Float32),
            FileBacked.open(path, dtype=DType.Float32, mutable=False),
            CheckpointFile([Piece(SourceFile(path), 0, 96)], dtype=DType.Float32),
        ):
            carrier = TiledEvictable(CPU(0), secondary, (4, 1, 1), (1, 2, 3), layout=LAYOUT, budget=48)
            carrier.promote(tiles(1))
            copied = again(carrier)
            assert type(copied.secondary) is type(secondary)
            assert torch.equal(slots_of(copied), DENSE)
            assert set(locations(copied).values()) == {"secondary"}
            carrier[0] = -1.0
            with pytest.raises(RuntimeError, match=r"1 tiles have values that are in no file.*flush\(\) first"):
                pickle.dumps(carrier)
            copied.release()
            carrier.release()

    def test_pickle_of_dirty_tiles_is_refused_until_they_are_flushed(self, path: Path) -> None:
        carrier = stored_at(path)
        with pytest.raises(RuntimeError, match=r"4 tiles .*takes no dirty tile along. Call flush\(\) first"):
            pickle.dumps(carrier)
        carrier.flush()
        again(carrier).release()
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            pickle.dumps(carrier)

    def test_pickle_of_tiles_in_an_overlay_or_in_memory_is_refused(self, path: Path) -> None:
        path.write_bytes(DENSE.numpy().tobytes())
        overlaid = TiledEvictable(CPU(0), FileBacked.open(path, dtype=DType.Float32, mutable=False), (4,), (6,))
        overlaid[0] = -1.0
        overlaid.flush()
        scripted = TiledEvictable(CPU(0), ScriptedCarrier(DENSE), (4,), (6,))
        anonymous = TiledEvictable(CPU.wrap(DENSE.clone()), FileBacked(), (4,), (6,))
        anonymous.flush()
        for carrier in (overlaid, scripted, anonymous):
            for attempt in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match=r"materialize\(\)"):
                    attempt(carrier)
            carrier.release()

    @pytest.mark.parametrize("mutable", [True, False])
    def test_unpickle_where_another_file_lies_is_refused(self, mutable: bool, path: Path) -> None:
        stored = stored_at(path)
        stored.flush()
        stored.release()
        carrier = TiledEvictable.open(path, mutable=mutable)
        data = pickle.dumps(carrier)
        carrier.release()
        path.rename(path.with_suffix(".old"))
        path.write_bytes(path.with_suffix(".old").read_bytes())
        with pytest.raises(ChangedFileError, match=r"cannot unpickle a TiledEvictable.*the file was.*inode.*it is"):
            pickle.loads(data)
