"""Transfers of a tiled carrier that fail or wait, by ordinal: what was true before is true after, and a retry works."""

from __future__ import annotations

import errno
import logging
import threading
import time

import pytest
import torch

from strideweave import (
    CPU,
    BudgetExceeded,
    FileBacked,
    Layout,
    ResidencyPlan,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.io import StorageError
from support.scripted_carrier import ScriptedCarrier
from support.tiled import Situation, every_tile, experts, situation, slots_of, tiles

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


def visible(seen: Situation) -> tuple[object, ...]:
    """What a failed request must leave as it was: states, version, ownership, and nothing in flight or pinned."""
    statistics = seen.statistics
    return (
        seen.states,
        seen.version,
        seen.owned,
        seen.released,
        statistics.resident_tiles,
        statistics.in_flight_tiles,
        statistics.pinned_tiles,
        statistics.evictions,
    )


def settled(carrier: TiledEvictable) -> Situation:
    """The situation once nothing is on its way any more."""
    deadline = time.monotonic() + 5
    while (now := situation(carrier)).statistics.in_flight_tiles or now.statistics.pinned_tiles:
        assert time.monotonic() < deadline, f"never idle: {now.statistics}"
        time.sleep(0.001)
    return now


class TestFailedPromotion:
    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    def test_promote_read_fails_promotes_none_of_the_set(self, ordinal: int) -> None:
        carrier, weight, dense, secondary = experts()
        carrier.promote(tiles(3))
        before = situation(carrier)
        error = OSError("the disk said no")
        secondary.fail_read(ordinal, error)
        handle = carrier.promote_async(tiles(0, 1, 2, 3))
        for _ in range(2):
            with pytest.raises(OSError, match="the disk said no") as caught:
                handle.wait(5)
            assert caught.value is error
        assert handle.done
        assert visible(situation(carrier)) == visible(before)
        carrier.promote(tiles(0, 1, 2, 3))
        assert carrier.primary_tiles == every_tile(carrier)
        assert torch.equal(weight.materialize().torch(), dense)

    def test_blocking_promote_raises_the_same_error(self) -> None:
        carrier, _, _, secondary = experts()
        error = OSError("again")
        secondary.fail_read(1, error)
        with pytest.raises(OSError) as caught:
            carrier.promote(tiles(0))
        assert caught.value is error
        carrier.release()

    def test_waits_do_not_lengthen_the_trace(self) -> None:
        carrier, _, _, secondary = experts()
        secondary.fail_read(1, OSError("no"))
        handle = carrier.promote_async(tiles(0))

        def depth() -> int:
            with pytest.raises(OSError) as caught:
                handle.wait(5)
            trace, count = caught.value.__traceback__, 0
            while trace is not None:
                trace, count = trace.tb_next, count + 1
            return count

        assert len({depth() for _ in range(5)}) == 1

    def test_promote_whose_write_back_for_room_fails_leaves_the_dirty_tile(self) -> None:
        carrier, weight, dense, secondary = experts(budget_tiles=1)
        weight[0, 0, 0] = -1.0
        before = situation(carrier)
        secondary.fail_write(1, NO_SPACE)
        with pytest.raises(OSError, match="No space"):
            carrier.promote(tiles(2))
        assert visible(situation(carrier)) == visible(before)
        assert weight[0, 0, 0] == -1.0
        carrier.promote(tiles(2))
        expected = dense.clone()
        expected[0, 0, 0] = -1.0
        assert torch.equal(slots_of(carrier), expected.reshape(-1))


class TestFailedEviction:
    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    @pytest.mark.parametrize("torn", [False, True])
    def test_evict_write_fails_evicts_none_of_the_set(self, ordinal: int, torn: bool) -> None:
        carrier, weight, dense, secondary = experts()
        expected = dense.clone()
        for k in range(3):
            weight[k, 1, 1] = expected[k, 1, 1] = -float(k) - 1
        carrier.promote(tiles(3))
        before = situation(carrier)
        secondary.fail_write(ordinal, NO_SPACE, torn=torn)
        handle = carrier.evict_async(every_tile(carrier))
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                handle.wait(5)
            assert caught.value is NO_SPACE
        assert visible(situation(carrier)) == visible(before)
        assert carrier.dirty_tiles == tiles(0, 1, 2)
        assert torch.equal(slots_of(carrier), expected.reshape(-1))
        carrier.evict(every_tile(carrier))
        assert carrier.primary_tiles == TileSet()
        assert torch.equal(slots_of(carrier), expected.reshape(-1))

    def test_full_disk_keeps_the_tile_dirty_and_resident(self, monkeypatch: pytest.MonkeyPatch) -> None:
        carrier = TiledEvictable(CPU.wrap(torch.arange(8.0)), FileBacked(), (2,), (4,))
        carrier[5] = -5.0
        with monkeypatch.context() as patch:
            patch.setattr("strideweave.io.writable_file._posix_fallocate", _no_space)
            before = situation(carrier)
            with pytest.raises(StorageError, match="No space"):
                carrier.evict(TileSet([(1,)]))
            assert visible(situation(carrier)) == visible(before)
            assert carrier.tile_state((1,)).dirty
            assert carrier.tile_state((1,)).location == "primary"
        carrier.evict(every_tile(carrier))
        assert [carrier[k] for k in range(8)] == [0.0, 1.0, 2.0, 3.0, 4.0, -5.0, 6.0, 7.0]

    def test_overlay_of_a_checkpoint_that_cannot_be_made_loses_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        secondary = ScriptedCarrier(torch.arange(8.0), mutable=False)
        carrier = TiledEvictable(CPU(0), secondary, (2,), (4,))
        carrier[5] = -5.0
        with monkeypatch.context() as patch:
            patch.setattr(ScriptedCarrier, "allocate_like", _no_space)
            with pytest.raises(OSError, match="No space"):
                carrier.evict(TileSet([(1,)]))
            assert carrier.dirty_tiles == carrier.primary_tiles == TileSet([(1,)])
        carrier.evict(TileSet([(1,)]))
        assert carrier[5] == -5.0
        assert secondary.writes == 0


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestFailedProjection:
    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    @pytest.mark.parametrize("budget_tiles", [None, 1, 2])
    def test_project_read_fails_publishes_nothing(self, ordinal: int, budget_tiles: int | None) -> None:
        carrier, weight, dense, secondary = experts(budget_tiles=budget_tiles)
        target = CPU(18)
        error = OSError("the disk said no")
        secondary.fail_read(ordinal, error)
        handle = carrier.project(weight, picked(2, 0, 1), target)
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                handle.wait(5)
            assert caught.value is error
        now = situation(carrier)
        assert (now.statistics.in_flight_tiles, now.statistics.pinned_tiles) == (0, 0)
        assert now.version == 0
        assert all(state.valid and not state.dirty for state in now.states.values())
        assert not target.is_owned()
        target[0] = 1.0
        again = carrier.project(weight, picked(2, 0, 1), target).wait(5)
        assert torch.equal(again.torch(), dense[[2, 0, 1]])
        carrier.release()

    def test_project_read_fails_leaves_the_callers_destination_as_it_was(self) -> None:
        carrier, weight, _, secondary = experts()
        target = CPU.wrap(torch.full((12,), 7.0))
        carrier.promote(tiles(0))
        secondary.fail_read(1, OSError("no"))
        with pytest.raises(OSError):
            carrier.project(weight, picked(0, 1), target).wait(5)
        assert [target[k] for k in range(12)] == [7.0] * 12
        assert target.version == 0
        assert not target.is_owned()
        carrier.project(weight, picked(0, 1), target).wait(5)
        assert target.version == 1

    def test_project_read_fails_leaves_the_callers_empty_destination_empty(self) -> None:
        carrier, weight, dense, secondary = experts()
        target = CPU(0)
        secondary.fail_read(1, OSError("no"))
        with pytest.raises(OSError):
            carrier.project(weight, picked(0, 1), target).wait(5)
        assert target.size() == 0
        assert not target.is_owned()
        assert torch.equal(carrier.project(weight, picked(0), target).wait(5).torch(), dense[[0]])

    def test_failure_of_one_projection_leaves_another_alone(self) -> None:
        carrier, weight, dense, secondary = experts()
        with secondary.hold_read() as hold:
            first = carrier.project(weight, picked(0))
            hold.wait_until_reached()
            secondary.fail_read(1, OSError("no"))
            second = carrier.project(weight, picked(1))
            with pytest.raises(OSError):
                second.wait(5)
        assert torch.equal(first.wait(5).torch(), dense[[0]])

    def test_keyboard_interrupt_on_a_lane_reaches_the_waiter(self) -> None:
        carrier, weight, dense, secondary = experts()
        secondary.fail_read(1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            carrier.project(weight, picked(0)).wait(5)
        assert torch.equal(carrier.project(weight, picked(0)).wait(5).torch(), dense[[0]])

    def test_failed_read_of_an_element_changes_nothing(self) -> None:
        carrier, weight, dense, secondary = experts()
        before = situation(carrier)
        secondary.fail_read(1, OSError("no"))
        with pytest.raises(OSError):
            weight[1, 0, 0]
        assert situation(carrier) == before
        assert weight[1, 0, 0] == dense[1, 0, 0]

    def test_failed_write_of_an_element_changes_nothing(self) -> None:
        carrier, weight, dense, secondary = experts()
        before = situation(carrier)
        secondary.fail_read(1, OSError("no"))
        with pytest.raises(OSError):
            weight[1, 0, 0] = 5.0
        assert visible(settled(carrier)) == visible(before)
        weight[1, 0, 0] = 5.0
        assert weight.version == 1
        assert weight[1, 0, 1] == dense[1, 0, 1]


class TestFailedUse:
    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    @pytest.mark.parametrize("budget_tiles", [None, 1])
    def test_stream_read_fails_ends_the_stream(self, ordinal: int, budget_tiles: int | None) -> None:
        carrier, weight, dense, secondary = experts(budget_tiles=budget_tiles)
        secondary.fail_read(ordinal, OSError("no"))
        stream = carrier.stream(tiles(0, 1, 2))
        seen = []

        def use() -> None:
            for coordinate, view in stream:
                assert torch.equal(view.reshape(2, 3), dense[coordinate[0]])
                seen.append(coordinate)

        with pytest.raises(OSError):
            use()
        assert len(seen) < 3
        assert settled(carrier).statistics.pinned_tiles == 0
        assert list(stream) == []
        with carrier.stream(tiles(0, 1, 2)) as again:
            assert sorted(c for c, _ in again) == list(tiles(0, 1, 2).coordinates)
        assert torch.equal(weight.materialize().torch(), dense)

    @pytest.mark.parametrize("ordinal", [1, 2])
    def test_borrow_read_fails_gives_every_pin_back(self, ordinal: int) -> None:
        carrier, _, dense, secondary = experts()
        secondary.fail_read(ordinal, OSError("no"))
        with pytest.raises(OSError), carrier.borrow(tiles(0, 1)):
            pytest.fail("the block must not run")
        settled(carrier)
        with carrier.borrow(tiles(0, 1)) as views:
            assert all(torch.equal(view.reshape(2, 3), dense[c[0]]) for c, view in views.items())

    def test_stream_write_back_fails_keeps_the_dirty_tile(self) -> None:
        carrier, weight, _, secondary = experts(budget_tiles=1)
        weight[3, 0, 0] = -1.0
        secondary.fail_write(1, NO_SPACE)
        with pytest.raises(OSError, match="No space"), carrier.stream(tiles(0)) as stream:
            next(stream)
        assert settled(carrier).states[(3, 0, 0)].dirty
        with carrier.stream(tiles(0)) as stream:
            next(stream)
        assert weight[3, 0, 0] == -1.0

    def test_evicting_what_a_closed_stream_has_on_its_way_leaves_it_absent(self) -> None:
        carrier, weight, dense, secondary = experts()
        with secondary.hold_read(2) as hold:
            with carrier.stream(tiles(0, 1)) as stream:
                next(stream)
            hold.wait_until_reached()
            handle = carrier.evict_async(tiles(0, 1))
            assert not handle.done
        handle.wait(5)
        assert settled(carrier).statistics.resident_tiles == 0
        assert carrier.primary_tiles == TileSet()
        assert torch.equal(weight.materialize().torch(), dense)

    def test_evicting_what_never_arrives_succeeds(self) -> None:
        carrier, _, _, secondary = experts()
        with secondary.hold_read(2) as hold:
            with carrier.stream(tiles(0, 1)) as stream:
                next(stream)
            hold.wait_until_reached()
            hold.error = OSError("too late")
            handle = carrier.evict_async(tiles(0, 1))
        assert handle.wait(5) is None
        assert carrier.primary_tiles == TileSet()


class TestOverlap:
    def test_disjoint_requests_run_together(self) -> None:
        carrier, weight, dense, secondary = experts(6)
        weight[3, 0, 0] = -1.0
        with secondary.hold_read() as reading, secondary.hold_write() as writing:
            projection = carrier.project(weight, picked(0))
            reading.wait_until_reached()
            eviction = carrier.evict_async(tiles(3))
            writing.wait_until_reached()
            carrier.promote_async(tiles(4)).wait(5)
            carrier.evict_async(tiles(4)).wait(5)
            assert torch.equal(carrier.project(weight, picked(5, 1)).wait(5).torch(), dense[[5, 1]])
            weight[2, 0, 0] = -2.0
            assert not projection.done
            assert not eviction.done
        assert torch.equal(projection.wait(5).torch(), dense[[0]])
        eviction.wait(5)
        assert weight[3, 0, 0] == -1.0
        assert weight[2, 0, 0] == -2.0

    def test_many_threads_over_few_slots_see_right_values(self) -> None:
        carrier, weight, dense, _ = experts(8, budget_tiles=3)
        wrong: list[object] = []

        def work(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            try:
                for _ in range(30):
                    chosen = torch.randperm(8, generator=generator)[:3].tolist()
                    if seed % 2:
                        result = carrier.project(weight, picked(*chosen)).wait(10).torch()
                        if not torch.equal(result, dense[chosen]):
                            wrong.append(chosen)
                    else:
                        with carrier.stream(tiles(*chosen)) as stream:
                            for coordinate, view in stream:
                                if not torch.equal(view.reshape(2, 3), dense[coordinate[0]]):
                                    wrong.append(coordinate)
            except BudgetExceeded:
                pass
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        assert settled(carrier).statistics.resident_tiles <= 3
        carrier.release()

    def test_wait_in_another_thread_sees_the_same_failure(self) -> None:
        carrier, weight, _, secondary = experts()
        error = OSError("no")
        seen: list[BaseException] = []
        with secondary.hold_read() as hold:
            hold.error = error
            handle = carrier.project(weight, picked(0))

            def wait() -> None:
                try:
                    handle.wait(5)
                except OSError as e:
                    seen.append(e)

            threads = [threading.Thread(target=wait) for _ in range(3)]
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        assert [e is error for e in seen] == [True, True, True]


class Policy:
    def __init__(self, plan: ResidencyPlan) -> None:
        self._plan = plan

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        return self._plan


class TestHostilePolicies:
    @pytest.mark.parametrize("ask", ["project", "stream", "borrow"])
    def test_promoting_more_than_the_budget_is_refused_before_any_work(self, ask: str) -> None:
        carrier, weight, _, _ = experts(budget_tiles=2, residency_policy=Policy(ResidencyPlan(promote=tiles(1, 2, 3))))
        before = situation(carrier)
        with pytest.raises(BudgetExceeded, match=r"room for [34] tiles"):
            {
                "project": lambda: carrier.project(weight, picked(0)),
                "stream": lambda: carrier.stream(tiles(0)),
                "borrow": lambda: carrier.borrow(tiles(0)).__enter__(),
            }[ask]()
        assert situation(carrier) == before

    def test_promoting_more_than_fits_beside_the_required_is_refused_before_any_work(self) -> None:
        carrier, weight, dense, _ = experts(budget_tiles=2, residency_policy=Policy(ResidencyPlan(promote=tiles(2, 3))))
        carrier.promote(tiles(0, 1))
        before = situation(carrier)
        try:
            handle = carrier.project(weight, picked(0, 1))
        except BudgetExceeded:
            assert situation(carrier) == before
        else:
            assert torch.equal(handle.wait(5).torch(), dense[[0, 1]])

    def test_promoting_an_invalid_tile_is_refused_before_any_work(self) -> None:
        carrier = TiledEvictable(
            CPU(0), FileBacked(), (2,), (2,), residency_policy=Policy(ResidencyPlan(promote=TileSet([(1,)])))
        ).allocate_like(4, empty=True)
        before = situation(carrier)
        with pytest.raises(RuntimeError, match="invalid"):
            carrier.project(Tensor(carrier, 0, Layout.column_major(4)), TileSelection([[0]]))
        assert situation(carrier) == before

    def test_evicting_everything_keeps_what_other_work_needs(self) -> None:
        carrier, weight, dense, _ = experts(residency_policy=Policy(ResidencyPlan(evict=tiles(0, 1, 2, 3))))
        with carrier.borrow(tiles(1)) as views:
            assert torch.equal(carrier.project(weight, picked(0, 1)).wait(5).torch(), dense[[0, 1]])
            assert carrier.primary_tiles == tiles(1)
            assert torch.equal(views[(1, 0, 0)].reshape(2, 3), dense[1])
        assert carrier.primary_tiles == TileSet()

    def test_failed_policy_eviction_takes_no_result_away(self, caplog: pytest.LogCaptureFixture) -> None:
        carrier, weight, dense, secondary = experts(residency_policy=Policy(ResidencyPlan(evict=tiles(3))))
        weight[3, 0, 0] = -1.0
        secondary.fail_write(1, NO_SPACE)
        with caplog.at_level(logging.ERROR, "strideweave"):
            assert torch.equal(carrier.project(weight, picked(0)).wait(5).torch(), dense[[0]])
        assert carrier.statistics().failed_policy_evictions == 1
        assert "No space" in caplog.text
        assert carrier.tile_state((3, 0, 0)).dirty
        carrier.project(weight, picked(0)).wait(5)
        assert carrier.tile_state((3, 0, 0)).location == "secondary"
        assert weight[3, 0, 0] == -1.0

    def test_policy_that_covers_a_pending_tile_conflicts(self) -> None:
        for plan in (ResidencyPlan(promote=tiles(3)), ResidencyPlan(retain=tiles(3))):
            carrier, weight, _, secondary = experts(residency_policy=Policy(plan))
            with secondary.hold_read():
                handle = carrier.promote_async(tiles(3))
                before = situation(carrier)
                with pytest.raises(RuntimeError, match=r"wait\(\)"):
                    carrier.project(weight, picked(0))
                assert situation(carrier) == before
            handle.wait(5)

    def test_policy_that_calls_back_is_not_deadlocked(self) -> None:
        class Curious:
            carrier: TiledEvictable | None = None

            def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
                if self.carrier is not None:
                    assert self.carrier.statistics().slots == 4
                    self.carrier.promote(required)
                return ResidencyPlan()

        policy = Curious()
        carrier, weight, dense, _ = experts(residency_policy=policy)
        policy.carrier = carrier
        assert torch.equal(carrier.project(weight, picked(1)).wait(5).torch(), dense[[1]])
