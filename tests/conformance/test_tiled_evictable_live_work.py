"""Seed 000, requirement: Residency remains valid while tiled work needs it."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from strideweave import BudgetExceeded, TileSelection, TileSet
from support.tiled import every_tile, experts, matrix, situation, tiles


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


class TestResidencyRemainsValidWhileTiledWorkNeedsIt:
    def test_eviction_races_with_execution(self) -> None:
        carrier, weight, dense, secondary = experts()
        carrier.promote(tiles(0))
        with secondary.hold_read() as hold:
            handle = carrier.project(weight, picked(0, 1))
            hold.wait_until_reached()
            before = situation(carrier)
            for wanted in (tiles(0), tiles(1), tiles(0, 1, 2)):
                with pytest.raises(RuntimeError, match=r"pinned by projection of 2 tiles.*Wait"):
                    carrier.evict(wanted)
            assert situation(carrier) == before
            carrier.evict(tiles(2, 3))
        assert torch.equal(handle.wait(5).torch(), dense[[0, 1]])
        carrier.evict(tiles(0, 1))
        assert carrier.primary_tiles == TileSet()

    def test_pinned_tiles_are_not_replaced_for_room(self) -> None:
        carrier, weight, dense, secondary = experts(budget_tiles=2)
        carrier.promote(tiles(0))
        with secondary.hold_read() as hold:
            handle = carrier.project(weight, picked(0, 1))
            hold.wait_until_reached()
            with pytest.raises(BudgetExceeded, match="projection of 2 tiles"):
                carrier.promote(tiles(2))
            other = carrier.project(weight, picked(3)).wait(5)
            assert torch.equal(other.torch(), dense[[3]])
        assert torch.equal(handle.wait(5).torch(), dense[[0, 1]])

    def test_writes_to_needed_tiles_are_refused(self) -> None:
        carrier, weight, dense, secondary = experts()
        carrier.promote(tiles(0))
        with secondary.hold_read() as hold:
            handle = carrier.project(weight, picked(0, 1))
            hold.wait_until_reached()
            before = situation(carrier)
            for ordinal in (0, 1):
                with pytest.raises(RuntimeError, match="pinned"):
                    weight[ordinal, 0, 0] = -1.0
            assert situation(carrier) == before
            weight[2, 0, 0] = -1.0
        assert torch.equal(handle.wait(5).torch(), dense[[0, 1]])

    def test_two_projections_share_their_tiles(self) -> None:
        carrier, weight, dense, secondary = experts()
        with secondary.hold_read() as hold:
            one = carrier.project(weight, picked(0, 1))
            hold.wait_until_reached()
            two = carrier.project(weight, picked(1, 0, 2))
        assert torch.equal(one.wait(5).torch(), dense[[0, 1]])
        assert torch.equal(two.wait(5).torch(), dense[[1, 0, 2]])
        assert carrier.statistics().bytes_read == 3 * 24

    def test_dropped_handle_neither_waits_nor_cancels(self) -> None:
        carrier, weight, dense, secondary = experts()
        with secondary.hold_read() as hold:
            handle = carrier.project(weight, picked(0))
            hold.wait_until_reached()
            gone = weakref.ref(handle)
            del handle
            gc.collect()
        while carrier.statistics().pinned_tiles:
            threading.Event().wait(0.001)
        del gone
        assert torch.equal(carrier.project(weight, picked(0)).wait(5).torch(), dense[[0]])
        assert carrier.statistics().bytes_read == 24


class TestBorrow:
    def test_views_share_memory_with_the_resident_tile(self) -> None:
        carrier, _, dense, _ = experts(budget_tiles=2)
        with carrier.borrow(tiles(3, 1)) as views:
            assert list(views) == [(1, 0, 0), (3, 0, 0)]
            assert all(torch.equal(view.reshape(2, 3), dense[c[0]]) for c, view in views.items())
            addresses = {c: view.data_ptr() for c, view in views.items()}
            with carrier.borrow(tiles(3)) as again:
                assert again[(3, 0, 0)].data_ptr() == addresses[(3, 0, 0)]

    def test_borrowed_tiles_cannot_leave_or_change(self) -> None:
        carrier, weight, _, _ = experts(budget_tiles=2)
        with carrier.borrow(tiles(0, 1)):
            assert carrier.statistics().pinned_tiles == 2
            with pytest.raises(RuntimeError, match="pinned by borrow of 2 tiles"):
                carrier.evict(tiles(0))
            with pytest.raises(RuntimeError, match="pinned"):
                weight[0, 0, 0] = 1.0
            with pytest.raises(BudgetExceeded, match="borrow of 2 tiles pins"):
                carrier.promote(tiles(2))
        assert carrier.statistics().pinned_tiles == 0
        carrier.promote(tiles(2, 3))

    def test_too_many_tiles_are_refused_before_any_moves(self) -> None:
        carrier, *_ = experts(budget_tiles=2)
        before = situation(carrier)
        with pytest.raises(BudgetExceeded, match="3 tiles"), carrier.borrow(tiles(0, 1, 2)):
            pass
        assert situation(carrier) == before

    def test_write_through_a_view_is_noticed_and_undone(self) -> None:
        carrier, weight, dense, _ = experts()
        with pytest.raises(RuntimeError, match=r"read-only.*stored value was kept"), carrier.borrow(tiles(1)) as views:
            views[(1, 0, 0)].zero_()
        assert torch.equal(weight.materialize().torch(), dense)
        assert carrier.statistics().pinned_tiles == 0
        assert carrier.version == 0

    def test_writes_through_two_views_are_both_undone(self) -> None:
        carrier, weight, dense, _ = experts()
        with pytest.raises(RuntimeError, match="read-only"), carrier.borrow(tiles(0, 1)) as views:
            torch._foreach_zero_(list(views.values()))
        assert torch.equal(weight.materialize().torch(), dense)

    def test_write_through_a_view_is_undone_when_the_block_raises(self) -> None:
        carrier, weight, dense, _ = experts()
        with pytest.raises((RuntimeError, ZeroDivisionError)), carrier.borrow(tiles(0)) as views:
            _ = 1 / int(views[(0, 0, 0)].zero_().sum())
        assert torch.equal(weight.materialize().torch(), dense)

    def test_exception_in_the_block_gives_pins_back(self) -> None:
        carrier, *_ = experts()
        with pytest.raises(ZeroDivisionError), carrier.borrow(tiles(0, 1)):
            _ = 1 / 0
        assert carrier.statistics().pinned_tiles == 0
        carrier.release()

    def test_empty_borrow_is_empty(self) -> None:
        carrier, *_ = experts()
        with carrier.borrow(TileSet()) as views:
            assert dict(views) == {}

    def test_view_has_the_shape_of_a_tile(self) -> None:
        carrier, _, dense = matrix()
        with carrier.borrow(TileSet([(1, 0)])) as views:
            assert torch.equal(views[(1, 0)], dense[2:, :2])


class TestStream:
    @pytest.mark.parametrize("budget_tiles", [None, 1, 2, 3])
    @pytest.mark.parametrize("resident", [None, 2, 3])
    @pytest.mark.parametrize("dirty", [None, 0, 3])
    def test_every_tile_comes_once_within_the_budget(
        self, budget_tiles: int | None, resident: int | None, dirty: int | None
    ) -> None:
        carrier, weight, dense, _ = experts(budget_tiles=budget_tiles)
        expected = dense.clone()
        if dirty is not None:
            weight[dirty, 0, 1] = expected[dirty, 0, 1] = -9.0
        if resident is not None:
            carrier.promote(tiles(resident))
        here = carrier.primary_tiles
        seen: list[int] = []
        with carrier.stream(every_tile(carrier)) as stream:
            for coordinate, view in stream:
                statistics = carrier.statistics()
                assert statistics.resident_tiles + statistics.in_flight_tiles <= statistics.slots
                assert torch.equal(view.reshape(2, 3), expected[coordinate[0]])
                seen.append(coordinate[0])
        assert sorted(seen) == [0, 1, 2, 3]
        assert {(k, 0, 0) for k in seen[: len(here)]} == set(here.coordinates)
        assert carrier.statistics().pinned_tiles == 0
        assert torch.equal(weight.materialize().torch(), expected)

    def test_tiles_that_are_there_come_first(self) -> None:
        carrier, *_ = experts()
        carrier.promote(tiles(3))
        with carrier.stream(tiles(0, 3)) as stream:
            assert [c for c, _ in stream] == [(3, 0, 0), (0, 0, 0)]

    def test_current_tile_is_pinned_and_the_last_one_is_not(self) -> None:
        carrier, *_ = experts(budget_tiles=1)
        stream = carrier.stream(tiles(0, 1))
        next(stream)
        with pytest.raises(RuntimeError, match="pinned by stream"):
            carrier.evict(tiles(0))
        next(stream)
        assert carrier.primary_tiles == tiles(1)
        with pytest.raises(StopIteration):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
        assert carrier.statistics().pinned_tiles == 0
        carrier.release()

    def test_stream_left_early_gives_its_pins_back(self) -> None:
        carrier, weight, dense, _ = experts()
        with carrier.stream(every_tile(carrier)) as stream:
            next(stream)
        stream.close()
        assert carrier.statistics().pinned_tiles == 0
        assert torch.equal(weight.materialize().torch(), dense)

    def test_dropped_stream_gives_its_pins_back(self) -> None:
        carrier, *_ = experts()
        stream = carrier.stream(every_tile(carrier))
        next(stream)
        del stream
        gc.collect()
        for _ in range(1000):
            if not carrier.statistics().pinned_tiles:
                break
            threading.Event().wait(0.005)
        assert carrier.statistics().pinned_tiles == 0

    def test_stream_collected_while_the_carrier_is_locked_does_not_hang(self) -> None:
        """The collector may run at any allocation, also inside the carrier's own critical sections."""
        carrier, *_ = experts()
        stream = carrier.stream(every_tile(carrier))
        next(stream)
        cycle: list[object] = [stream]
        cycle.append(cycle)
        del stream, cycle
        over = threading.Event()

        def collect() -> None:
            with carrier._engine.guard:
                gc.collect()
            over.set()

        threading.Thread(target=collect, daemon=True).start()
        assert over.wait(5), "collecting a stream waits for a lock that its own thread holds"

    def test_two_streams_that_cannot_both_go_on_are_told(self) -> None:
        carrier, *_ = experts(budget_tiles=1)
        one, two = carrier.stream(tiles(0, 1)), carrier.stream(tiles(2, 3))
        next(one)
        with pytest.raises(BudgetExceeded, match="stream of 2 tiles pins"):
            next(two)
        two.close()
        next(one)
        one.close()
        assert carrier.statistics().pinned_tiles == 0

    def test_write_through_a_streamed_view_is_noticed(self) -> None:
        carrier, weight, dense, _ = experts()
        stream = carrier.stream(tiles(0, 1))
        next(stream)[1].fill_(0)
        with pytest.raises(RuntimeError, match="read-only"):
            next(stream)
        stream.close()
        assert carrier.statistics().pinned_tiles == 0
        assert torch.equal(weight.materialize().torch(), dense)

    def test_write_through_the_view_that_a_stream_was_left_at_is_noticed(self) -> None:
        carrier, weight, dense, _ = experts()
        with pytest.raises(RuntimeError, match="read-only"), carrier.stream(tiles(0, 1)) as stream:
            next(stream)[1].fill_(0)
        assert carrier.statistics().pinned_tiles == 0
        assert torch.equal(weight.materialize().torch(), dense)

    def test_empty_stream_is_over_at_once(self) -> None:
        carrier, *_ = experts()
        with carrier.stream(TileSet()) as stream:
            assert list(stream) == []
