"""Seed 000, requirement: Residency remains valid while tiled work needs it."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

import strideweave as sw
from strideweave import BudgetExceeded, TiledEvictable, TileSelection, TileSet
from strideweave.testing import FaultyCarrier
from support.direct import (
    CALLS,
    RIGHT,
    SAVING,
    SHEET,
    Background,
    Call,
    cotangent_for,
    cotangent_of,
    in_background,
    oracle_gradients,
    ordinary,
    sheet,
    values,
)
from support.scripted_carrier import ScriptedCarrier
from support.tiled import coordinates, every_tile, experts, matrix, situation, slots_of, tiles


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


def assert_usable(carrier: TiledEvictable) -> None:
    """The failure is terminal: nothing is pinned, and nothing on its way."""
    assert (carrier.statistics().pinned_tiles, carrier.statistics().in_flight_tiles) == (0, 0)
    carrier.evict(every_tile(carrier))


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

    # -- direct operations and their backward --------------------------------------------------------------------

    @pytest.mark.parametrize("call", CALLS, ids=str)
    @pytest.mark.parametrize("resident", [False, True])
    def test_eviction_races_with_a_direct_operation(self, call: Call, resident: bool) -> None:
        carrier, x, secondary = sheet()
        if resident:
            carrier.promote(TileSet([(0, 0), (0, 1), (1, 0)]))
        with (
            secondary.hold_read(1 if resident else 4) as hold,
            in_background(lambda: call.with_ordinary(x)[0], hold) as work,
        ):
            hold.wait_until_reached()
            before = carrier.valid_tiles, carrier.dirty_tiles, carrier.version, carrier.is_released()
            for coordinate in coordinates(carrier):
                with pytest.raises(RuntimeError, match="pinned"):
                    carrier.evict(TileSet([coordinate]))
            for at in ((0, 0), (3, 5)):
                with pytest.raises(RuntimeError, match=r"pinned|pending|operation that runs"):
                    x[at] = 0.5
            with pytest.raises(RuntimeError, match=r"[Ww]ait"):
                carrier.release()
            assert (carrier.valid_tiles, carrier.dirty_tiles, carrier.version, carrier.is_released()) == before
            assert not work.is_over
            hold.let_go()
            assert torch.equal(values(work.result()), call.expected())
        carrier.evict(every_tile(carrier))
        carrier.release()

    def test_eviction_races_with_a_backward(self) -> None:
        for call in SAVING:
            carrier, x, secondary = sheet()
            result, others = call.with_ordinary(x, wants=True)
            carrier.evict(every_tile(carrier))
            drawn = cotangent_of(result)
            with (
                secondary.hold_read(2) as hold,
                in_background(lambda r=result, d=drawn: r.backward(cotangent_for(r, d)), hold) as work,
            ):
                hold.wait_until_reached()
                for coordinate in coordinates(carrier):
                    with pytest.raises(RuntimeError, match="pinned"):
                        carrier.evict(TileSet([coordinate]))
                with pytest.raises(RuntimeError, match=r"pinned|pending|operation that runs"):
                    x.detach()[0, 0] = 0.5
                with pytest.raises(RuntimeError, match=r"[Ww]ait"):
                    carrier.release()
                hold.let_go()
                work.result()
            assert torch.equal(values(others[0].grad), oracle_gradients(call, SHEET, drawn)[1])
            carrier.release()

    @pytest.mark.parametrize("call", CALLS, ids=str)
    @pytest.mark.parametrize("slots", [1, 3, None])
    @pytest.mark.parametrize("nth", [1, 2, 4])
    def test_failed_read_publishes_no_result_and_leaves_all_usable(
        self, call: Call, slots: int | None, nth: int
    ) -> None:
        carrier, x, secondary = sheet(budget_tiles=slots)
        x.requires_grad_()
        x.detach()[0, 0] = SHEET[0, 0].item()
        before = carrier.valid_tiles, carrier.version, carrier.is_owned(), carrier.primary.is_owned()
        threads = threading.active_count()
        carrier.evict(every_tile(carrier))
        others = [ordinary(held, wants=True) for held in call.others]
        secondary.fail_read(nth, OSError("gone"))
        with pytest.raises(OSError, match="gone"):
            call.run(x, *others)
        assert (carrier.valid_tiles, carrier.version, carrier.is_owned(), carrier.primary.is_owned()) == before
        assert carrier.dirty_tiles == TileSet()
        assert_usable(carrier)
        assert torch.equal(slots_of(carrier), SHEET.reshape(-1))
        assert not any(other.carrier.is_owned() or other.version for other in others)
        assert x.autograd_ctx is None
        result = call.run(x, *others)
        assert torch.equal(values(result), call.expected())
        assert threading.active_count() <= threads + 16
        carrier.evict(every_tile(carrier))
        carrier.release()

    @pytest.mark.parametrize("call", SAVING, ids=str)
    @pytest.mark.parametrize("nth", [1, 2, 4])
    def test_failed_read_of_a_backward_publishes_no_gradient(self, call: Call, nth: int) -> None:
        carrier, x, secondary = sheet(budget_tiles=2)
        result, others = call.with_ordinary(x.requires_grad_(), wants=True)
        carrier.evict(every_tile(carrier))
        drawn = cotangent_of(result)
        secondary.fail_read(nth, OSError("gone"))
        with pytest.raises(OSError, match="gone"):
            result.backward(cotangent_for(result, drawn), retain_graph=True)
        assert (x.grad, others[0].grad) == (None, None)
        assert_usable(carrier)
        assert torch.equal(slots_of(carrier), SHEET.reshape(-1))
        result.backward(cotangent_for(result, drawn))
        for tensor, gradient in zip((x, *others), oracle_gradients(call, SHEET, drawn), strict=True):
            assert torch.equal(values(tensor.grad), gradient)
        carrier.evict(every_tile(carrier))
        carrier.release()

    @pytest.mark.parametrize("nth", [1, 4])
    def test_interrupted_read_reaches_the_caller_and_leaves_all_usable(self, nth: int) -> None:
        for call in CALLS:
            carrier, x, secondary = sheet(budget_tiles=2)
            secondary.fail_read(nth, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                call.with_ordinary(x)
            assert_usable(carrier)
            assert torch.equal(values(call.with_ordinary(x)[0]), call.expected())

    def test_operations_among_the_transitions_of_other_threads_are_right_or_refused(self) -> None:
        """What is refused says so, before anything; what is not refused is right, and at the end nothing is pinned."""
        carrier, x, _ = sheet(budget_tiles=2)
        deadline = time.monotonic() + 1.0
        answers = {"right": 0, "refused": 0}

        def operate(seed: int) -> None:
            k = seed
            while time.monotonic() < deadline:
                call = CALLS[k % len(CALLS)]
                k += 1
                try:
                    result, others = call.with_ordinary(x.detach().requires_grad_(), wants=True)
                    drawn = cotangent_of(result)
                    result.backward(cotangent_for(result, drawn))
                except RuntimeError as error:
                    assert "wait()" in str(error), error  # noqa: PT017
                    answers["refused"] += 1
                    continue
                assert torch.equal(values(result), call.expected())
                expected = oracle_gradients(call, SHEET, drawn)
                assert all(torch.equal(values(t.grad), g) for t, g in zip(others, expected[1:], strict=True))
                answers["right"] += 1

        def move() -> None:
            generator = torch.Generator().manual_seed(3)
            while time.monotonic() < deadline:
                chosen = TileSet([coordinates(carrier)[int(torch.randint(4, (), generator=generator))]])
                try:
                    carrier.evict(chosen)
                    carrier.promote(chosen)
                except (RuntimeError, BudgetExceeded):
                    continue

        running = [Background(lambda k=k: operate(k)) for k in range(2)] + [Background(move)]
        for work in running:
            work.result()
        assert answers["right"] > 0
        assert_usable(carrier)
        carrier.release()

    def test_short_read_is_an_error_and_no_result(self) -> None:
        for call in CALLS:
            carrier, x, secondary = sheet()
            secondary.script.shorten("read", 2)
            with pytest.raises((OSError, RuntimeError)):
                call.with_ordinary(x)
            assert_usable(carrier)
            assert torch.equal(values(call.with_ordinary(x)[0]), call.expected())

    def test_failed_write_back_of_somebody_elses_tile_loses_nothing(self) -> None:
        """Dirty tiles of the operand stay in primary; no operation has a reason to write."""
        carrier, x, secondary = sheet(budget_tiles=2)
        changed = SHEET.clone()
        for at in ((0, 0), (3, 5)):
            x[at] = changed[at] = 100.0
        secondary.fail_write(1, OSError("disk full"))
        for call in CALLS:
            assert torch.equal(values(call.with_ordinary(x)[0]), call.expected(changed))
        assert secondary.writes == 0
        secondary.script.clear()
        assert torch.equal(slots_of(carrier), changed.reshape(-1))

    def test_gradient_that_cannot_spill_is_not_published(self) -> None:
        """A gradient of more tiles than the budget has goes to a secondary of its own, which may be full."""
        for call in CALLS:
            carrier, x, _ = sheet(budget_tiles=1)
            result, _ = call.with_ordinary(x.requires_grad_())

            def failing(tier: ScriptedCarrier, size: int) -> None:
                tier.script.fail("write", 1, OSError("disk full"))
                FaultyCarrier._allocate(tier, size)

            drawn = cotangent_for(result, cotangent_of(result))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ScriptedCarrier, "_allocate", failing)
                with pytest.raises(OSError, match="disk full"):
                    result.backward(drawn, retain_graph=True)
            assert x.grad is None
            assert_usable(carrier)
            result.backward(drawn)
            assert torch.equal(values(x.grad), oracle_gradients(call, SHEET, cotangent_of(result))[0])

    def test_operations_of_many_threads_share_a_budget_of_one_tile(self) -> None:
        carrier, x, _ = sheet(budget_tiles=1)
        for call in CALLS:
            running = [Background(lambda c=call: c.with_ordinary(x)[0]) for _ in range(4)]
            assert all(torch.equal(values(work.result()), call.expected()) for work in running)
        assert carrier.statistics().pinned_tiles == 0
        carrier.release()

    def test_operation_inside_a_stream_and_a_borrow_block(self) -> None:
        carrier, x, _ = sheet(budget_tiles=2)
        with carrier.stream(every_tile(carrier)) as stream:
            for coordinate, view in stream:
                assert torch.equal(values(sw.relu(x)), SHEET.relu())
                row, column = coordinate[0] * 2, coordinate[1] * 3
                assert torch.equal(view, SHEET[row : row + 2, column : column + 3])
        with carrier.borrow(TileSet([(0, 0), (1, 1)])):
            assert torch.equal(values(sw.matmul(x, ordinary(RIGHT))), SHEET @ RIGHT)
        carrier.evict(every_tile(carrier))


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
