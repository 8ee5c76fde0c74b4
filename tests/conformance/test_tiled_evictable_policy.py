"""Seed 000, requirement: Residency policy can optimize but cannot define correctness."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import strideweave
from strideweave import (
    CPU,
    LRU,
    FileBacked,
    ResidencyPlan,
    ResidencyPolicy,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.carriers import tiled_evictable
from support.tiled import every_tile, experts, matrix, situation, tiles


class Recorded:
    """A policy that answers with what it was told to, and remembers what it was asked."""

    def __init__(self, answer: object = None) -> None:
        self.answer = ResidencyPlan() if answer is None else answer
        self.asked: list[tuple[TileSet, str]] = []

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        self.asked.append((required, purpose))
        if isinstance(self.answer, BaseException):
            raise self.answer
        if isinstance(self.answer, Callable):  # type: ignore[arg-type]
            return self.answer(required)  # type: ignore[no-any-return, operator]
        return self.answer  # type: ignore[return-value]


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


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
