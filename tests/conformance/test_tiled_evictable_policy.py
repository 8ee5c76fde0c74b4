"""Seed 000, requirement: Residency policy can optimize but cannot define correctness."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest
import torch

import strideweave
import strideweave as sw
from strideweave import (
    CPU,
    LRU,
    BudgetExceeded,
    FileBacked,
    ResidencyPlan,
    ResidencyPolicy,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.carriers import tiled_evictable
from strideweave.carriers.tiled_evictable import LFU, AwaitResidency, Pinned, Schedule
from strideweave.operation import OperandKind, OperandSpec, OperationDefinition, OperationSchema, resolve_pointwise
from strideweave.operation.node import Operation
from support.direct import (
    CALLS,
    OTHER,
    RIGHT,
    SAVING,
    SHEET,
    Call,
    Recorded,
    cotangent_for,
    cotangent_of,
    in_background,
    oracle_gradients,
    ordinary,
    sheet,
    values,
)
from support.tiled import every_tile, experts, matrix, situation, slots_of, tiles


def first_of(kept: Tensor, dropped: Tensor) -> Tensor:
    """The value of `kept`, under a node of both operands whose gradient for the second is None."""
    definition = OperationDefinition(
        "first_of",
        OperationSchema([OperandSpec(name, OperandKind.TENSOR, differentiable=True) for name in ("kept", "dropped")]),
        resolve_pointwise,
        None,
        lambda context, g: (g, None),
    )
    node = Operation(definition, CPU)
    result = kept.detach()
    node._record(resolve_pointwise(definition.bind(kept, dropped)), (result,), (True, True))
    result.autograd_ctx = node
    return result


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


def wait_until(holds: Callable[[], bool]) -> None:
    """What a lane does for nobody in particular has happened."""
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.0005)


class TestResidencyPolicyCanOptimizeButCannotDefineCorrectness:
    @pytest.mark.parametrize("answer", [None, (), "plan", TileSet(), {"promote": TileSet()}])
    def test_reject_an_invalid_policy_result_before_execution(self, answer: object) -> None:
        policy = Recorded()
        policy.answer = answer
        carrier, weight, _, _ = experts(residency_policy=policy)
        before = situation(carrier)
        with pytest.raises(TypeError, match="ResidencyPlan"):
            carrier.project(weight, picked(0, 2))
        with pytest.raises(TypeError, match="ResidencyPlan"):
            carrier.stream(tiles(0))
        with pytest.raises(TypeError, match="ResidencyPlan"), carrier.borrow(tiles(0)):
            pass
        assert situation(carrier) == before

    @pytest.mark.parametrize("field", ["promote", "retain", "evict"])
    @pytest.mark.parametrize("outside", [TileSet([(4, 0, 0)]), TileSet([(0, 0)])])
    def test_plan_outside_the_grid_is_refused_before_execution(self, field: str, outside: TileSet) -> None:
        carrier, weight, _, _ = experts(residency_policy=Recorded(ResidencyPlan(**{field: outside})))
        before = situation(carrier)
        with pytest.raises(ValueError, match="bind tile"):
            carrier.project(weight, picked(0))
        assert situation(carrier) == before

    def test_exception_of_the_policy_propagates_before_any_work(self) -> None:
        error = ZeroDivisionError("policy")
        carrier, weight, _, _ = experts(residency_policy=Recorded(error))
        before = situation(carrier)
        for request in (
            lambda: carrier.project(weight, picked(0)),
            lambda: carrier.stream(tiles(0)),
            lambda: carrier.borrow(tiles(0)).__enter__(),
        ):
            with pytest.raises(ZeroDivisionError) as caught:
                request()
            assert caught.value is error
        assert situation(carrier) == before

    def test_policy_sees_the_required_tiles_and_the_purpose_once_per_request(self) -> None:
        policy = Recorded()
        carrier, weight, _, _ = experts(residency_policy=policy)
        carrier.project(weight, picked(2, 0)).wait()
        assert policy.asked == [(tiles(0, 2), "projection")]
        with carrier.borrow(tiles(1)):
            pass
        with carrier.stream(tiles(3)) as stream:
            list(stream)
        assert policy.asked[1:] == [(tiles(1), "operation"), (tiles(3), "operation")]

    def test_policy_is_not_asked_for_transitions_elements_or_refused_requests(self) -> None:
        policy = Recorded()
        carrier, weight, _, _ = experts(residency_policy=policy)
        carrier.promote(tiles(0))
        carrier.evict(tiles(0))
        weight[1, 0, 0] = weight[0, 0, 0]
        with pytest.raises(ValueError):
            carrier.project(weight, picked(9))
        with pytest.raises(TypeError):
            carrier.project(weight, picked(0), 3)  # type: ignore[arg-type]
        assert policy.asked == []

    def test_required_values_come_whatever_the_policy_says(self) -> None:
        carrier, weight, dense, _ = experts(residency_policy=Recorded(ResidencyPlan(promote=tiles(3))))
        assert torch.equal(carrier.project(weight, picked(1, 0)).wait(5).torch(), dense[[1, 0]])
        assert carrier.primary_tiles == tiles(0, 1, 3)

    def test_promoted_tiles_are_primary_when_the_request_is_over(self) -> None:
        for ask in ("project", "stream", "borrow"):
            carrier, weight, _, _ = experts(residency_policy=Recorded(ResidencyPlan(promote=tiles(3))))
            if ask == "project":
                carrier.project(weight, picked(0)).wait(5)
            elif ask == "stream":
                with carrier.stream(tiles(0)) as stream:
                    list(stream)
                assert carrier.statistics().pinned_tiles == 0
            else:
                with carrier.borrow(tiles(0)):
                    pass
            carrier.promote(TileSet())
            assert (0, 0, 0) in carrier.primary_tiles
            with carrier.borrow(tiles(3)):
                assert carrier.statistics().bytes_read == 48

    @pytest.mark.parametrize("ask", ["project", "stream", "borrow"])
    def test_evicted_required_tile_leaves_only_after_the_request(self, ask: str) -> None:
        carrier, weight, dense, _ = experts(residency_policy=Recorded(lambda required: ResidencyPlan(evict=required)))
        carrier.promote(tiles(1))
        if ask == "project":
            assert torch.equal(carrier.project(weight, picked(1, 0)).wait(5).torch(), dense[[1, 0]])
        elif ask == "stream":
            seen = {}
            with carrier.stream(tiles(0, 1)) as stream:
                for coordinate, view in stream:
                    seen[coordinate[0]] = view.reshape(2, 3).clone()
            assert all(torch.equal(seen[k], dense[k]) for k in (0, 1))
        else:
            with carrier.borrow(tiles(0, 1)) as views:
                assert carrier.primary_tiles == tiles(0, 1)
                assert torch.equal(views[(1, 0, 0)].reshape(2, 3), dense[1])
        assert carrier.primary_tiles == TileSet()

    def test_evicted_dirty_tile_is_preserved(self) -> None:
        carrier, weight, _, _ = experts(residency_policy=Recorded(ResidencyPlan(evict=tiles(2))))
        weight[2, 0, 0] = -1.0
        carrier.project(weight, picked(0)).wait(5)
        assert carrier.tile_state((2, 0, 0)).location == "secondary"
        assert weight[2, 0, 0] == -1.0

    def test_retained_tile_survives_a_full_budget(self) -> None:
        policy = Recorded(ResidencyPlan(retain=tiles(0)))
        carrier, weight, dense, _ = experts(budget_tiles=2, residency_policy=policy)
        carrier.promote(tiles(0))
        assert torch.equal(carrier.project(weight, picked(3, 1, 2)).wait(5).torch(), dense[[3, 1, 2]])
        assert (0, 0, 0) in carrier.primary_tiles
        with carrier.stream(tiles(1, 2, 3)) as stream:
            for _ in stream:
                assert (0, 0, 0) in carrier.primary_tiles

    def test_promoted_tile_that_is_primary_stays_until_it_is_consumed(self) -> None:
        policy = Recorded(ResidencyPlan(promote=tiles(0)))
        carrier, weight, dense, _ = experts(budget_tiles=2, residency_policy=policy)
        carrier.promote(tiles(0))
        assert torch.equal(carrier.project(weight, picked(1, 2)).wait(5).torch(), dense[[1, 2]])
        assert (0, 0, 0) in carrier.primary_tiles

    def test_plan_that_just_fits_the_budget_is_followed(self) -> None:
        policy = Recorded(ResidencyPlan(promote=tiles(2, 3)))
        carrier, weight, dense, _ = experts(budget_tiles=2, residency_policy=policy)
        assert torch.equal(carrier.project(weight, picked(0, 1)).wait(5).torch(), dense[[0, 1]])
        assert carrier.primary_tiles == tiles(2, 3)

    def test_plan_that_promotes_required_tiles_is_followed(self) -> None:
        policy = Recorded(lambda required: ResidencyPlan(promote=required))
        carrier, weight, dense, _ = experts(budget_tiles=2, residency_policy=policy)
        assert torch.equal(carrier.project(weight, picked(3, 0)).wait(5).torch(), dense[[3, 0]])
        assert carrier.primary_tiles == tiles(0, 3)

    # -- the protocol --------------------------------------------------------------------------------------------

    def test_protocol_is_structural_and_checked_at_runtime(self) -> None:
        assert isinstance(Recorded(), ResidencyPolicy)
        assert isinstance(LRU(), ResidencyPolicy)
        assert not isinstance(object(), ResidencyPolicy)

    def test_default_is_none_and_the_choice_is_fixed(self) -> None:
        policy = LRU()
        carrier, _, _ = matrix(residency_policy=policy)
        assert carrier.residency_policy is policy
        assert matrix()[0].residency_policy is None
        with pytest.raises(AttributeError):
            carrier.residency_policy = None  # type: ignore[misc]

    @pytest.mark.parametrize(
        "policy", [object(), 3, lambda required, purpose: ResidencyPlan(), type("P", (), {"plan": 3})()]
    )
    def test_no_policy_is_refused_at_construction_and_tiers_stay_free(self, policy: object) -> None:
        tiers = CPU(0), FileBacked()
        with pytest.raises(TypeError, match="residency_policy"):
            TiledEvictable(*tiers, (2,), (2,), residency_policy=policy)  # type: ignore[arg-type]
        assert not any(tier.is_owned() for tier in tiers)

    def test_name_is_importable_from_both_places(self) -> None:
        assert strideweave.ResidencyPolicy is tiled_evictable.ResidencyPolicy

    # -- LRU -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("policy", [None, LRU()])
    def test_least_recently_used_tile_makes_room(self, policy: ResidencyPolicy | None) -> None:
        carrier, weight, _, _ = experts(6, budget_tiles=3, residency_policy=policy)
        recent: list[int] = []
        for ordinal in (0, 1, 2, 0, 3, 1, 4, 4, 0, 5, 2, 3, 0, 0, 1):
            found = ordinal in recent
            before = carrier.statistics()
            carrier.project(weight, picked(ordinal)).wait(5)
            after = carrier.statistics().since(before)
            assert (after.hits, after.misses) == (int(found), int(not found))
            recent = [*(k for k in recent if k != ordinal), ordinal][-3:]
            assert carrier.primary_tiles == tiles(*sorted(recent))

    def test_statistics_of_a_known_sequence(self) -> None:
        carrier, weight, _, _ = experts(4, budget_tiles=2)
        for ordinal in itertools.chain((0, 1, 0, 2, 1)):
            carrier.project(weight, picked(ordinal)).wait(5)
        statistics = carrier.statistics()
        assert (statistics.hits, statistics.misses, statistics.evictions) == (1, 4, 2)
        assert statistics.bytes_read == 4 * 24
        assert statistics.hit_rate == 0.2
        assert statistics.resident_nbytes == 48
        assert "2 of 2 tiles resident" in str(statistics)
        carrier.evict(every_tile(carrier))
        assert carrier.statistics().since(statistics).evictions == 2

    # -- every evict tile is evicted after the request no longer needs it ------------------------------------------

    def test_eviction_is_deferred_until_it_cannot_invalidate_live_work(self) -> None:
        policy = Recorded()
        carrier, weight, dense, _ = experts(residency_policy=policy)
        weight[1, 0, 0] = dense[1, 0, 0] = -1.0
        with carrier.borrow(tiles(1)) as views:
            policy.answer = ResidencyPlan(evict=tiles(1, 2))
            carrier.promote(tiles(2))
            carrier.project(weight, picked(0)).wait(5)
            assert carrier.primary_tiles == tiles(0, 1), "another request looks at tile 1"
            assert torch.equal(views[(1, 0, 0)].reshape(2, 3), dense[1])
            policy.answer = ResidencyPlan()
        wait_until(lambda: carrier.primary_tiles == tiles(0))
        assert carrier.tile_state((1, 0, 0)).location == "secondary"
        assert weight[1, 0, 0] == -1.0

    def test_deferred_eviction_gives_way_to_a_promotion_that_is_asked_for_later(self) -> None:
        policy = Recorded()
        carrier, weight, _, _ = experts(residency_policy=policy)
        with carrier.borrow(tiles(1)):
            policy.answer = ResidencyPlan(evict=tiles(1))
            carrier.project(weight, picked(0)).wait(5)
            carrier.promote(tiles(1))
        carrier.flush()
        assert carrier.primary_tiles == tiles(0, 1)

    def test_deferred_eviction_of_a_released_carrier_is_forgotten(self, caplog: pytest.LogCaptureFixture) -> None:
        policy = Recorded()
        carrier, weight, _, _ = experts(residency_policy=policy)
        with carrier.borrow(tiles(1)):
            policy.answer = ResidencyPlan(evict=tiles(1))
            carrier.project(weight, picked(0)).wait(5)
        carrier.release()
        assert carrier.is_released()
        assert not caplog.records

    @pytest.mark.parametrize("ask", ["stream", "borrow"])
    def test_evicted_tiles_leave_after_a_request_whose_block_raised(self, ask: str) -> None:
        carrier, _, _, _ = experts(residency_policy=Recorded(ResidencyPlan(evict=tiles(0, 3))))
        carrier.promote(tiles(3))

        def use() -> None:
            with getattr(carrier, ask)(tiles(0)) as views:
                assert next(iter(views))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            use()
        wait_until(lambda: carrier.primary_tiles == TileSet())

    def test_evicted_tile_that_a_closed_stream_had_on_its_way_leaves_too(self) -> None:
        carrier, _, dense, secondary = experts(
            residency_policy=Recorded(lambda required: ResidencyPlan(evict=required))
        )
        with secondary.hold_read(2) as hold, carrier.stream(tiles(0, 1)) as stream:
            next(stream)
            hold.wait_until_reached()
        wait_until(lambda: carrier.statistics().resident_tiles == carrier.statistics().in_flight_tiles == 0)
        assert torch.equal(slots_of(carrier), dense.reshape(-1))

    @pytest.mark.parametrize("ask", ["project", "stream", "borrow"])
    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    def test_failed_eviction_is_reported_and_takes_no_result_away(
        self, ask: str, ordinal: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        policy = Recorded(ResidencyPlan(evict=tiles(1, 2, 3)))
        carrier, weight, dense, secondary = experts(residency_policy=policy)
        for k in (1, 2, 3):
            weight[k, 0, 0] = dense[k, 0, 0] = -float(k)
        for failures in (1, 2):
            secondary.fail_write(ordinal, OSError("disk full"))
            if ask == "project":
                assert torch.equal(carrier.project(weight, picked(1, 0)).wait(5).torch(), dense[[1, 0]])
            elif ask == "stream":
                with carrier.stream(tiles(0, 1)) as stream:
                    assert {c[0] for c, _ in stream} == {0, 1}
            else:
                with carrier.borrow(tiles(0, 1)) as views:
                    assert torch.equal(views[(1, 0, 0)].reshape(2, 3), dense[1])
            wait_until(lambda n=failures: carrier.statistics().failed_policy_evictions == n)
            assert carrier.dirty_tiles == tiles(1, 2, 3), "all leave or none"
        wait_until(lambda: caplog.text.count("disk full") == 2)
        assert carrier.statistics().pinned_tiles == 0
        carrier.project(weight, picked(0)).wait(5)
        assert carrier.primary_tiles == tiles(0)
        assert torch.equal(slots_of(carrier), dense.reshape(-1))

    @pytest.mark.parametrize("ask", ["project", "stream", "borrow", "write", "promote", "evict", "flush", "release"])
    def test_request_after_a_policy_eviction_waits_for_it_instead_of_conflicting(self, ask: str) -> None:
        policy = Recorded(ResidencyPlan(evict=tiles(1)))
        carrier, weight, dense, secondary = experts(residency_policy=policy)
        weight[1, 0, 0] = dense[1, 0, 0] = -1.0
        errors: list[BaseException] = []

        def request() -> None:
            try:
                {
                    "project": lambda: carrier.project(weight, picked(1)).wait(5),
                    "stream": lambda: list(carrier.stream(tiles(1))),
                    "borrow": lambda: carrier.borrow(tiles(1)).__enter__(),
                    "write": lambda: carrier.set_value(7, 5.0),
                    "promote": lambda: carrier.promote(tiles(1)),
                    "evict": lambda: carrier.evict(tiles(1)),
                    "flush": lambda: carrier.flush(),
                    "release": lambda: carrier.release(),
                }[ask]()
            except BaseException as error:
                errors.append(error)

        with secondary.hold_write() as hold:
            with carrier.borrow(tiles(0)):
                pass
            hold.wait_until_reached()
            policy.answer = ResidencyPlan()
            thread = threading.Thread(target=request)
            thread.start()
            thread.join(0.05)
            assert thread.is_alive(), "nobody has a handle of that eviction"
        thread.join(5)
        assert not thread.is_alive()
        assert errors == []

    # -- a policy that means harm ----------------------------------------------------------------------------------

    def test_policy_that_asks_in_turn_ends_in_its_own_recursion(self) -> None:
        policy = Recorded()
        carrier, weight, dense, _ = experts(residency_policy=policy)
        policy.answer = lambda required: carrier.project(weight, picked(0)).wait(5) and ResidencyPlan()
        before = situation(carrier)
        with pytest.raises(RecursionError):
            carrier.project(weight, picked(1))
        assert situation(carrier) == before
        policy.answer = ResidencyPlan()
        assert torch.equal(carrier.project(weight, picked(1)).wait(5).torch(), dense[[1]])

    @pytest.mark.parametrize("ask", ["project", "stream", "borrow", "scatter"])
    def test_policy_that_releases_the_carrier_fails_the_request(self, ask: str) -> None:
        policy = Recorded()
        carrier, weight, dense, _ = experts(residency_policy=policy)
        compact = carrier.project(weight, picked(0)).wait(5)
        policy.answer = lambda required: carrier.release() or ResidencyPlan(evict=required)
        with pytest.raises(RuntimeError, match="released"):
            {
                "project": lambda: carrier.project(weight, picked(1)),
                "stream": lambda: carrier.stream(tiles(1)),
                "borrow": lambda: carrier.borrow(tiles(1)).__enter__(),
                "scatter": lambda: carrier.scatter(compact, weight, picked(1)),
            }[ask]()
        assert not compact.carrier.is_owned()
        assert torch.equal(compact.torch(), dense[[0]])

    def test_policy_that_moves_the_required_tiles_away_changes_no_result(self) -> None:
        policy = Recorded()
        carrier, weight, dense, _ = experts(residency_policy=policy)
        policy.answer = lambda required: carrier.evict(required) or ResidencyPlan(evict=required)
        carrier.promote(every_tile(carrier))
        assert torch.equal(carrier.project(weight, picked(1, 0)).wait(5).torch(), dense[[1, 0]])
        with carrier.borrow(tiles(2)) as views:
            assert torch.equal(views[(2, 0, 0)].reshape(2, 3), dense[2])

    def test_policy_that_leaves_a_request_pending_conflicts_with_it(self) -> None:
        policy = Recorded()
        carrier, weight, dense, secondary = experts(residency_policy=policy)
        handles: list[AwaitResidency] = []
        policy.answer = lambda required: handles.append(carrier.promote_async(required)) or ResidencyPlan()
        with secondary.hold_read(), pytest.raises(RuntimeError, match=r"wait\(\)"):
            carrier.project(weight, picked(1))
        handles[0].wait(5)
        policy.answer = ResidencyPlan()
        assert torch.equal(carrier.project(weight, picked(1)).wait(5).torch(), dense[[1]])

    @pytest.mark.parametrize("fields", [("promote", "evict"), ("retain", "evict"), ("promote", "retain")])
    def test_policy_that_plans_a_tile_twice_is_refused_before_execution(self, fields: tuple[str, str]) -> None:
        policy = Recorded(lambda required: ResidencyPlan(**dict.fromkeys(fields, required)))
        carrier, weight, _, _ = experts(residency_policy=policy)
        before = situation(carrier)
        with pytest.raises(ValueError, match="disjoint"):
            carrier.project(weight, picked(1))
        assert situation(carrier) == before

    def test_policy_that_is_interrupted_leaves_everything_as_it_was(self) -> None:
        carrier, weight, _, _ = experts(residency_policy=Recorded(KeyboardInterrupt()))
        before = situation(carrier)
        with pytest.raises(KeyboardInterrupt):
            carrier.project(weight, picked(1))
        assert situation(carrier) == before

    # -- one policy, many carriers ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("policy", [LRU(), LFU(), Pinned(tiles(0)), Schedule([tiles(0, 1), tiles(2, 3)])], ids=repr)
    def test_policy_of_two_carriers_serves_both_at_once(self, policy: ResidencyPolicy) -> None:
        both = [experts(budget_tiles=2, residency_policy=policy) for _ in range(2)]
        wrong: list[object] = []

        def work(carrier: TiledEvictable, weight: Tensor, dense: torch.Tensor, seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            try:
                for _ in range(25):
                    chosen = torch.randperm(4, generator=generator)[:2].tolist()
                    if not torch.equal(carrier.project(weight, picked(*chosen)).wait(10).torch(), dense[chosen]):
                        wrong.append(chosen)
            except BaseException as error:
                wrong.append(error)

        threads = [
            threading.Thread(target=work, args=(carrier, weight, dense, seed))
            for seed, (carrier, weight, dense, _) in enumerate((*both, *both))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert wrong == []
        for carrier, _, _, _ in both:
            assert carrier.statistics().pinned_tiles == 0
            carrier.release()

    def test_backward_with_every_shipped_policy_gives_the_gradient_that_none_gives(self) -> None:
        gradients = []
        for policy in (None, LFU(), Pinned(tiles(0, 3)), Schedule([tiles(2), tiles(0)])):
            carrier, weight, _, _ = experts(budget_tiles=2, residency_policy=policy)
            weight.requires_grad_()
            compact = carrier.project(weight, picked(2, 0)).wait(5)
            loss = strideweave.reduce_sum(compact * compact)
            carrier.evict(every_tile(carrier))
            loss.backward()
            assert weight.grad is not None
            gradients.append(slots_of(weight.grad.carrier))  # type: ignore[arg-type]
        assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
        assert gradients[0].abs().sum() > 0

    # -- direct operations and their backward ----------------------------------------------------------------------

    def test_run_backward_without_a_policy(self) -> None:
        for call in CALLS:
            gradients = []
            for is_evicted in (False, True):
                carrier, x, _ = sheet(budget_tiles=None if is_evicted else 4)
                carrier.promote(every_tile(carrier))
                result, others = call.with_ordinary(x.requires_grad_(), wants=True)
                if is_evicted:
                    carrier.evict(every_tile(carrier))
                drawn = cotangent_of(result)
                result.backward(cotangent_for(result, drawn))
                gradients.append([values(t.grad) for t in (x, *others)])
            expected = oracle_gradients(call, SHEET, drawn)
            for found in gradients:
                assert all(torch.equal(one, wanted) for one, wanted in zip(found, expected, strict=True))

    def test_skip_an_unreachable_branch(self) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        kept = ordinary(OTHER, wants=True)
        skipped = ordinary(OTHER, wants=True)
        reached, unreached = sw.mul(kept, 2.0), sw.mul(x.requires_grad_(), skipped)
        joined = first_of(reached, unreached)
        assert [t.autograd_ctx is not None for t in joined.autograd_ctx.inputs()] == [True, True]
        carrier.evict(every_tile(carrier))
        policy.asked.clear()
        before, reads = situation(carrier), secondary.reads
        strideweave.reduce_sum(joined).backward()
        assert torch.equal(values(kept.grad), torch.full((4, 6), 2.0))
        assert (x.grad, skipped.grad) == (None, None)
        assert (policy.asked, secondary.reads, situation(carrier)) == ([], reads, before)

    def test_branch_that_the_loss_does_not_use_asks_nothing(self) -> None:
        policy = Recorded()
        carrier, x, _ = sheet(residency_policy=policy)
        weight = ordinary(RIGHT, wants=True)
        unused = sw.matmul(x, weight)
        used = sw.reduce_sum(sw.mul(weight, 3.0))
        policy.asked.clear()
        before = situation(carrier)
        used.backward()
        assert (policy.asked, situation(carrier)) == ([], before)
        assert unused.requires_grad

    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_policy_is_asked_once_for_an_operation_before_anything_moves(self, call: Call) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        policy.look = lambda: (situation(carrier), secondary.reads)
        before = situation(carrier), 0
        call.with_ordinary(x)
        assert policy.asked == [(every_tile(carrier), "operation")]
        assert policy.seen == [before]

    def test_each_carrier_of_an_operation_asks_its_own_policy_once(self) -> None:
        one, two = Recorded(), Recorded()
        first, x, _ = sheet(residency_policy=one)
        second, y, _ = sheet(residency_policy=two)
        sw.add(x, y)
        sw.elementwise_mul(x, x)
        assert one.asked == [(every_tile(first), "operation")] * 2
        assert two.asked == [(every_tile(second), "operation")]

    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_policy_is_asked_once_for_a_backward_that_reads_saved_tiles(self, call: Call) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        result, others = call.with_ordinary(x.requires_grad_(), wants=True)
        drawn = cotangent_for(result, cotangent_of(result))
        carrier.evict(every_tile(carrier))
        policy.asked.clear()
        policy.seen.clear()
        reads = secondary.reads
        policy.look = lambda: (situation(carrier), secondary.reads)
        before = situation(carrier), reads
        result.backward(drawn)
        if call in SAVING:
            assert policy.asked == [(every_tile(carrier), "backward")]
            assert policy.seen == [before]
        else:
            assert (policy.asked, secondary.reads) == ([], reads), "its gradient needs no value of the operand"
        assert len(others) == len(call.others)

    @pytest.mark.parametrize("call", SAVING, ids=str)
    def test_backward_that_reads_no_saved_tile_asks_nothing(self, call: Call) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        result, _ = call.with_ordinary(x.requires_grad_())
        drawn = cotangent_of(result)
        carrier.evict(every_tile(carrier))
        policy.asked.clear()
        reads = secondary.reads
        result.backward(cotangent_for(result, drawn))
        assert (policy.asked, secondary.reads) == ([], reads)
        assert torch.equal(values(x.grad), oracle_gradients(call, SHEET, drawn)[0])

    def test_policy_is_not_asked_for_an_operation_that_is_refused(self) -> None:
        policy = Recorded()
        _, x, _ = sheet(residency_policy=policy)
        for attempt in (
            lambda: sw.add(x, ordinary(RIGHT)),
            lambda: sw.matmul(x, x),
            lambda: sw.exp(x),
            lambda: sw.add(x, "no number"),
        ):
            with pytest.raises((ValueError, TypeError, NotImplementedError)):
                attempt()
        assert policy.asked == []

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            ("plan", TypeError),
            ((), TypeError),
            (ResidencyPlan(promote=TileSet([(2, 0)])), ValueError),
            (ResidencyPlan(retain=TileSet([(0, 0, 0)])), ValueError),
            (ResidencyPlan(evict=TileSet([(0, 9)])), ValueError),
            (ZeroDivisionError("policy"), ZeroDivisionError),
            (KeyboardInterrupt(), KeyboardInterrupt),
        ],
    )
    def test_reject_an_invalid_policy_result_before_execution_of_an_operation_and_a_backward(
        self, answer: object, error: type[BaseException]
    ) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        carrier.promote(TileSet([(1, 0)]))
        for call in CALLS:
            policy.answer = answer
            before, reads = situation(carrier), secondary.reads
            with pytest.raises(error):
                call.with_ordinary(x)
            assert (situation(carrier), secondary.reads) == (before, reads)
        for call in SAVING:
            policy.answer = ResidencyPlan()
            leaf = x.detach().requires_grad_()
            result, others = call.with_ordinary(leaf, wants=True)
            drawn = cotangent_of(result)
            policy.answer = answer
            before, reads = situation(carrier), secondary.reads
            with pytest.raises(error):
                result.backward(cotangent_for(result, drawn), retain_graph=True)
            assert (situation(carrier), secondary.reads) == (before, reads)
            assert (leaf.grad, others[0].grad) == (None, None)
            policy.answer = ResidencyPlan()
            result.backward(cotangent_for(result, drawn))
            assert torch.equal(values(leaf.grad), oracle_gradients(call, SHEET, drawn)[0])

    @pytest.mark.parametrize("call", CALLS, ids=str)
    @pytest.mark.parametrize("slots", [1, None])
    def test_evict_tiles_leave_after_the_operation_and_never_take_saved_values_away(
        self, call: Call, slots: int | None
    ) -> None:
        policy = Recorded(lambda required: ResidencyPlan(evict=required))
        carrier, x, _ = sheet(budget_tiles=slots, residency_policy=policy)
        changed = SHEET.clone()
        x[0, 0] = changed[0, 0] = 40.0
        result, others = call.with_ordinary(x.requires_grad_(), wants=True)
        assert torch.equal(values(result), call.expected(changed))
        wait_until(lambda: carrier.primary_tiles == TileSet())
        drawn = cotangent_of(result)
        result.backward(cotangent_for(result, drawn))
        for tensor, gradient in zip((x, *others), oracle_gradients(call, changed, drawn), strict=True):
            assert torch.equal(values(tensor.grad), gradient)
        wait_until(lambda: carrier.primary_tiles == TileSet())
        assert torch.equal(slots_of(carrier), changed.reshape(-1))

    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_promoted_tiles_are_primary_before_the_operation_consumes_them(self, call: Call) -> None:
        promoted = TileSet([(0, 1), (1, 1)])
        carrier, x, secondary = sheet(budget_tiles=2, residency_policy=Recorded(ResidencyPlan(promote=promoted)))
        assert torch.equal(values(call.with_ordinary(x)[0]), call.expected())
        assert carrier.primary_tiles == promoted
        assert secondary.reads == 4
        carrier.evict(every_tile(carrier))

    def test_promoted_tiles_are_primary_before_a_backward_consumes_them(self) -> None:
        promoted = TileSet([(0, 1), (1, 1)])
        for call in SAVING:
            policy = Recorded()
            carrier, x, _ = sheet(budget_tiles=2, residency_policy=policy)
            result, others = call.with_ordinary(x, wants=True)
            carrier.evict(every_tile(carrier))
            policy.answer = ResidencyPlan(promote=promoted)
            drawn = cotangent_of(result)
            result.backward(cotangent_for(result, drawn))
            assert torch.equal(values(others[0].grad), oracle_gradients(call, SHEET, drawn)[1])
            assert carrier.primary_tiles == promoted

    def test_plan_that_promotes_beyond_the_budget_is_refused_before_anything(self) -> None:
        policy = Recorded(lambda required: ResidencyPlan(promote=required))
        carrier, x, secondary = sheet(budget_tiles=2, residency_policy=policy)
        before = situation(carrier)
        for call in CALLS:
            with pytest.raises(BudgetExceeded):
                call.with_ordinary(x)
        assert (situation(carrier), secondary.reads) == (before, 0)

    @pytest.mark.parametrize("call", CALLS, ids=str)
    def test_retained_tiles_stay_until_the_operation_is_over(self, call: Call) -> None:
        retained = TileSet([(0, 0), (1, 0)])
        carrier, x, secondary = sheet(budget_tiles=2, residency_policy=Recorded(ResidencyPlan(retain=retained)))
        carrier.promote(retained)
        with secondary.hold_read(2) as hold, in_background(lambda: call.with_ordinary(x)[0], hold) as running:
            hold.wait_until_reached()
            assert carrier.primary_tiles == retained
            hold.let_go()
            assert torch.equal(values(running.result()), call.expected())
        assert carrier.primary_tiles == retained

    def test_required_values_come_to_an_operation_whatever_the_policy_says(self) -> None:
        for answer in (
            ResidencyPlan(promote=TileSet([(1, 1)]), evict=TileSet([(0, 0), (0, 1)])),
            ResidencyPlan(retain=TileSet([(0, 0)])),
            ResidencyPlan(evict=TileSet([(0, 0), (0, 1), (1, 0), (1, 1)])),
        ):
            carrier, x, _ = sheet(budget_tiles=1, residency_policy=Recorded(answer))
            for call in CALLS:
                assert torch.equal(values(call.with_ordinary(x)[0]), call.expected())
                carrier.promote(TileSet([(0, 0)]))

    def test_policy_that_moves_the_tiles_of_an_operation_away_changes_no_result(self) -> None:
        policy = Recorded()
        carrier, x, _ = sheet(residency_policy=policy)
        policy.answer = lambda required: carrier.evict(required) or ResidencyPlan(evict=required)
        for call in CALLS:
            carrier.promote(every_tile(carrier))
            result, others = call.with_ordinary(x.detach().requires_grad_(), wants=True)
            assert torch.equal(values(result), call.expected())
            drawn = cotangent_of(result)
            result.backward(cotangent_for(result, drawn))
            if others:
                assert torch.equal(values(others[0].grad), oracle_gradients(call, SHEET, drawn)[1])

    def test_policy_that_leaves_a_request_pending_conflicts_with_it_in_an_operation(self) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        handles: list[AwaitResidency] = []
        policy.answer = lambda required: handles.append(carrier.promote_async(required)) or ResidencyPlan()
        with secondary.hold_read(), pytest.raises(RuntimeError, match=r"wait\(\)"):
            sw.relu(x)
        handles[0].wait(5)
        policy.answer = ResidencyPlan()
        assert torch.equal(values(sw.relu(x)), SHEET.relu())

    def test_policy_that_releases_the_carrier_fails_the_operation(self) -> None:
        for call in CALLS:
            policy = Recorded()
            carrier, x, _ = sheet(residency_policy=policy)
            policy.answer = lambda required, c=carrier: c.release() or ResidencyPlan(evict=required)
            with pytest.raises(RuntimeError, match="released"):
                call.with_ordinary(x)

    def test_policy_that_operates_in_turn_ends_in_its_own_recursion(self) -> None:
        policy = Recorded()
        carrier, x, _ = sheet(residency_policy=policy)
        policy.answer = lambda required: sw.relu(x) and ResidencyPlan()
        before = situation(carrier)
        with pytest.raises(RecursionError):
            sw.relu(x)
        assert situation(carrier) == before

    def test_policy_that_writes_the_operand_gives_what_is_there_then(self) -> None:
        """The callback comes before the work: what it writes is part of the operand, and of what is saved."""
        policy = Recorded()
        carrier, x, _ = sheet(residency_policy=policy)
        policy.answer = lambda required: x.__setitem__((0, 0), 50.0) or ResidencyPlan()
        weight = ordinary(OTHER, wants=True)
        result = sw.mul(x, weight)
        changed = SHEET.clone()
        changed[0, 0] = 50.0
        assert torch.equal(values(result), changed * OTHER)
        policy.answer = ResidencyPlan()
        sw.reduce_sum(result).backward()
        assert torch.equal(values(weight.grad), changed)
        assert carrier.version == 1

    def test_failed_eviction_after_an_operation_is_reported_and_takes_no_result_away(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        policy = Recorded(lambda required: ResidencyPlan(evict=required))
        carrier, x, secondary = sheet(residency_policy=policy)
        changed = SHEET.clone()
        x[3, 5] = changed[3, 5] = 70.0
        for failures, call in enumerate(CALLS, 1):
            secondary.fail_write(1, OSError("disk full"))
            assert torch.equal(values(call.with_ordinary(x)[0]), call.expected(changed))
            wait_until(lambda n=failures: carrier.statistics().failed_policy_evictions == n)
            assert carrier.dirty_tiles == TileSet([(1, 1)])
        wait_until(lambda: caplog.text.count("disk full") == len(CALLS))

    def test_eviction_after_one_operation_is_deferred_while_another_runs(self) -> None:
        policy = Recorded(lambda required: ResidencyPlan(evict=required))
        carrier, x, secondary = sheet(residency_policy=policy)
        with secondary.hold_read(4) as hold, in_background(lambda: sw.relu(x), hold) as running:
            hold.wait_until_reached()
            resident = carrier.primary_tiles
            with in_background(lambda: sw.mul(x, 2.0), hold) as other:
                hold.let_go()
            assert torch.equal(values(other.result()), SHEET * 2)
            assert torch.equal(values(running.result()), SHEET.relu())
        assert resident is not None
        wait_until(lambda: carrier.primary_tiles == TileSet())

    @pytest.mark.parametrize(
        "policy", [LRU(), LFU(), Pinned(TileSet([(1, 1)])), Schedule([TileSet([(0, 0)]), TileSet([(1, 0)])])], ids=repr
    )
    def test_every_shipped_policy_gives_the_results_and_gradients_that_none_gives(
        self, policy: ResidencyPolicy
    ) -> None:
        for call in CALLS:
            carrier, x, _ = sheet(budget_tiles=2, residency_policy=policy)
            result, others = call.with_ordinary(x.requires_grad_(), wants=True)
            assert torch.equal(values(result), call.expected())
            drawn = cotangent_of(result)
            result.backward(cotangent_for(result, drawn))
            for tensor, gradient in zip((x, *others), oracle_gradients(call, SHEET, drawn), strict=True):
                assert torch.equal(values(tensor.grad), gradient)
            carrier.evict(every_tile(carrier))
