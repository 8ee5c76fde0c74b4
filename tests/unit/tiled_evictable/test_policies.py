"""The policies that come with tiled carriers: what they refuse, what they keep, and what a use costs."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from strideweave import ResidencyPlan, ResidencyPolicy, TileSelection, TileSet
from strideweave.carriers.tiled_evictable import LFU, LRU, BudgetExceeded, EvictionOrder, Pinned, Schedule
from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from support.tiled import every_tile, experts, tiles

SHIPPED = [LRU(), LFU(), LFU(7), Pinned(tiles(1)), Pinned(tiles(1), rest=LFU()), Schedule([(0, 0, 0), tiles(1, 2)])]


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


def ask(policy: ResidencyPolicy, accesses: list[int], *, count: int = 6, budget_tiles: int = 3) -> tuple[int, TileSet]:
    """The hits of a carrier that projects one tile after the other, and what is primary after it."""
    carrier, weight, dense, _ = experts(count, budget_tiles=budget_tiles, residency_policy=policy)
    for k in accesses:
        assert torch.equal(carrier.project(weight, picked(k)).wait(5).torch(), dense[[k]])
    return carrier.statistics().hits, carrier.primary_tiles


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SHIPPED, ids=repr)
def test_policy_that_is_shipped_satisfies_the_protocol_and_plans_nothing(policy: Any) -> None:
    assert isinstance(policy, ResidencyPolicy)
    assert policy.plan(tiles(0), "projection") == ResidencyPlan()
    assert isinstance(policy.eviction_order((4, 1, 1), 3), EvictionOrder)


@pytest.mark.parametrize("policy", SHIPPED, ids=repr)
def test_policy_of_two_carriers_keeps_an_order_for_each(policy: Any) -> None:
    first, second = (policy.eviction_order((4, 1, 1), 3) for _ in range(2))
    first.arrive(3)
    first.use(3)
    assert first is not second
    assert list(first.victims()) == [3]
    assert list(second.victims()) == []
    one, other = (experts(budget_tiles=2, residency_policy=policy) for _ in range(2))
    for k in (0, 1, 2, 3, 0):
        assert torch.equal(one[0].project(one[1], picked(k)).wait(5).torch(), one[2][[k]])
    assert other[0].statistics().hits == other[0].statistics().misses == 0
    assert torch.equal(other[0].project(other[1], picked(3, 1)).wait(5).torch(), other[2][[3, 1]])


@pytest.mark.parametrize("policy", [LRU(), LFU(), LFU(7), Pinned(tiles(1), rest=LFU(2))], ids=repr)
def test_policy_repr_pastes_back(policy: object) -> None:
    assert repr(eval(repr(policy))) == repr(policy)


@pytest.mark.parametrize("policy", SHIPPED, ids=repr)
def test_policy_survives_pickling(policy: Any) -> None:
    policy.eviction_order((4, 1, 1), 3)
    again = pickle.loads(pickle.dumps(policy))
    assert repr(again) == repr(policy)
    assert list(again.eviction_order((4, 1, 1), 3).victims()) == []


@pytest.mark.parametrize("kind", ["lru", "lfu", "pinned", "schedule"])
def test_policy_use_of_a_thousand_tiles_costs_microseconds(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    accesses = (torch.rand(50_000, generator=generator) ** 3 * 1500).long().tolist()
    policy = {
        "lru": lambda: LRU(),
        "lfu": lambda: LFU(),
        "pinned": lambda: Pinned(TileSet([(k,) for k in range(1400, 1500)]), rest=LFU()),
        "schedule": lambda: Schedule([TileSet([(k,)]) for k in accesses]),
    }[kind]()
    order = policy.eviction_order((1500,), 1000)
    resident: set[int] = set()
    began = time.process_time()
    for tile in accesses:
        order.use(tile)
        if tile not in resident:
            if len(resident) == 1000:
                victim = next(order.victims())
                resident.remove(victim)
                order.forget(victim)
            resident.add(tile)
            order.arrive(tile)
    assert (time.process_time() - began) / len(accesses) < 40e-6  # 1 to 4 us; a loop over all tiles costs 50 or more


# -- LFU -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("half_life", "error"), [(0, ValueError), (-3, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_lfu_of_no_half_life_is_refused(half_life: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="half_life"):
        LFU(half_life)


def test_lfu_keeps_what_is_used_often_where_lru_does_not() -> None:
    accesses = [0, 0, 1, 1, 2, 3, 4, 5, 0, 1]
    assert ask(LFU(100), accesses) == (4, tiles(0, 1, 5))
    assert ask(LRU(), accesses) == (2, tiles(0, 1, 5))


def test_lfu_forgets_an_old_favourite() -> None:
    old = [0] * 20
    for half_life, stays in ((1000, True), (2, False)):
        _, primary = ask(LFU(half_life), [*old, *([1, 2, 3] * 8)])
        assert ((0, 0, 0) in primary) is stays


def test_lfu_of_equal_counts_gives_up_the_least_recent() -> None:
    order = LFU(1000).eviction_order((4,), 4)
    for tile in (2, 0, 3, 2, 0, 3):
        order.use(tile)
    for tile in (0, 2, 3):
        order.arrive(tile)
    assert list(order.victims()) == [2, 0, 3]


def test_lfu_remembers_a_tile_that_was_away() -> None:
    order = LFU(1000).eviction_order((4,), 4)
    for tile in (0, 0, 0, 1, 1):
        order.use(tile)
        order.arrive(tile)
    order.forget(0)
    order.use(1)
    order.use(0)
    order.arrive(0)
    assert list(order.victims()) == [1, 0]


def test_lfu_does_not_give_up_first_what_was_brought_ahead() -> None:
    order = LFU(4).eviction_order((4,), 4)
    for tile in (0, 1, 1, 1, 1):
        order.use(tile)
        order.arrive(tile)
    order.arrive(2)
    assert list(order.victims()) == [0, 2, 1]


def test_lfu_after_very_many_uses_still_tells_tiles_apart() -> None:
    order = LFU(1).eviction_order((4,), 4)
    for tile in (0, 1):
        order.arrive(tile)
        for _ in range(3000):
            order.use(tile)
    order.use(0)
    assert list(order.victims()) == [1, 0]


# -- Pinned ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[(0,)], (0, 0, 0), None, LRU()])
def test_pinned_of_no_tile_set_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="TileSet"):
        Pinned(bad)


@pytest.mark.parametrize("bad", [3, object(), TileSet()])
def test_pinned_with_no_policy_for_the_rest_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"plan\(required, purpose\)"):
        Pinned(tiles(0), rest=bad)


def test_pinned_takes_a_selection() -> None:
    assert Pinned(picked(2, 0)).tiles == tiles(0, 2)


def test_pinned_tiles_beyond_the_budget_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match=r"pin 3 tiles in a budget of 2: they do not fit"):
        experts(budget_tiles=2, residency_policy=Pinned(tiles(0, 1, 2)))
    experts(budget_tiles=3, residency_policy=Pinned(tiles(0, 1, 2)))


@pytest.mark.parametrize("outside", [TileSet([(9, 0, 0)]), TileSet([(0,)])])
def test_pinned_tiles_outside_the_grid_are_refused_at_construction(outside: TileSet) -> None:
    with pytest.raises(ValueError, match="bind tile"):
        experts(residency_policy=Pinned(outside))


def test_pinned_tiles_stay_from_their_first_use_on() -> None:
    hits, primary = ask(Pinned(tiles(0)), [1, 2, 3, 0, 4, 5, 1, 2, 3, 4, 0])
    assert hits == 1
    assert primary == tiles(0, 3, 4)


def test_pinned_tiles_stay_from_a_promotion_on() -> None:
    carrier, weight, _, _ = experts(6, budget_tiles=3, residency_policy=Pinned(tiles(0, 5)))
    carrier.promote(tiles(0, 5))
    for k in (1, 2, 3, 4, 1, 2):
        carrier.project(weight, picked(k)).wait(5)
    assert carrier.primary_tiles == tiles(0, 2, 5)


def test_pinned_tiles_that_fill_the_budget_let_projections_pass_through() -> None:
    carrier, weight, dense, _ = experts(6, budget_tiles=2, residency_policy=Pinned(tiles(0, 5)))
    carrier.promote(tiles(0, 5))
    assert torch.equal(carrier.project(weight, picked(3, 1, 2)).wait(5).torch(), dense[[3, 1, 2]])
    assert carrier.primary_tiles == tiles(0, 5)


@pytest.mark.parametrize("dirty", [False, True])
def test_pinned_tiles_give_way_to_a_request_that_fits_only_without_them(dirty: bool) -> None:
    carrier, weight, dense, secondary = experts(6, budget_tiles=2, residency_policy=Pinned(tiles(0, 5)))
    carrier.promote(tiles(0, 5))
    if dirty:
        weight[0, 0, 0] = weight[5, 0, 0] = -1.0
    with carrier.borrow(tiles(2, 3)) as views:
        assert all(torch.equal(view.reshape(2, 3), dense[c[0]]) for c, view in views.items())
        with pytest.raises(BudgetExceeded, match="0 tiles"):
            carrier.promote(tiles(0))
    assert secondary.writes == 2 * dirty
    with carrier.stream(every_tile(carrier)) as stream:
        assert len(list(stream)) == 6
    assert weight[0, 0, 0] == (-1.0 if dirty else 1.0)


def test_pinned_stream_runs_ahead_only_where_nothing_is_pinned() -> None:
    carrier, _, _, _ = experts(6, budget_tiles=3, residency_policy=Pinned(tiles(0, 5)))
    carrier.promote(tiles(0, 5))
    with carrier.stream(tiles(1, 2, 3, 4)) as stream:
        for _ in stream:
            assert carrier.tile_state((0, 0, 0)).location == carrier.tile_state((5, 0, 0)).location == "primary"


def test_pinned_tiles_leave_when_they_are_told_to() -> None:
    carrier, weight, _, _ = experts(residency_policy=Pinned(tiles(0)))
    carrier.project(weight, picked(0)).wait(5)
    carrier.evict(tiles(0))
    assert carrier.primary_tiles == TileSet()


def test_pinned_filters_the_plan_of_the_rest() -> None:
    class Rest:
        def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
            return ResidencyPlan(promote=tiles(1), retain=tiles(2), evict=tiles(0, 3))

    assert Pinned(tiles(0, 1), rest=Rest()).plan(tiles(2), "operation") == ResidencyPlan(
        promote=tiles(1), retain=tiles(2), evict=tiles(3)
    )


def test_pinned_twice_leaves_the_rest_of_the_rest() -> None:
    policy = Pinned(tiles(0), rest=Pinned(tiles(5), rest=LFU()))
    assert ask(policy, [0, 5, 1, 2, 3, 4, 0, 5]) == (2, tiles(0, 4, 5))
    with pytest.raises(ValueError, match="pin 1 tiles in a budget of 0"):
        experts(6, budget_tiles=1, residency_policy=policy)


# -- Schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [3, "abc", None, tiles(0), picked(0), [3], [None], [(0, 0.5)], ["ab"]])
def test_schedule_of_no_sequence_of_steps_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError):
        Schedule(bad)


@pytest.mark.parametrize("bad", [[(-1,)], [(0,), (0, 0)], [TileSet([(0,)]), (0, 0)]])
def test_schedule_of_steps_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError):
        Schedule(bad)


def test_schedule_outside_the_grid_is_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="bind tile"):
        experts(residency_policy=Schedule([(0, 0, 0), (4, 0, 0)]))


@pytest.mark.parametrize("steps", [[], [TileSet()], [TileSet(), tiles(1), TileSet(), TileSet()]])
def test_schedule_with_empty_steps_is_lru_at_the_end(steps: list[TileSet]) -> None:
    hits, primary = ask(Schedule(steps), [1, 2, 3, 4, 3])
    assert (hits, primary) == (1, tiles(2, 3, 4))


def test_schedule_says_what_it_is() -> None:
    assert repr(Schedule([tiles(0, 1), (1, 0, 0)])) == "<Schedule of 2 steps over 2 tiles>"


def test_schedule_evicts_what_is_needed_last_where_lru_never_hits() -> None:
    accesses = [k % 6 for k in range(36)]
    policy = Schedule([(k, 0, 0) for k in accesses])
    assert ask(LRU(), accesses)[0] == 0
    assert ask(policy, accesses)[0] == optimal_hits(accesses, 3) > 10


def test_schedule_is_not_advanced_by_promotions() -> None:
    accesses = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    carrier, weight, dense, _ = experts(6, budget_tiles=3, residency_policy=Schedule([(k, 0, 0) for k in accesses]))
    for now, k in enumerate(accesses):
        ahead = accesses[now + 1] if now + 1 < len(accesses) else 5
        coming = carrier.promote_async(tiles(ahead)) if ahead != k else None
        assert torch.equal(carrier.project(weight, picked(k)).wait(5).torch(), dense[[k]])
        if coming is not None:
            coming.wait(5)
    assert carrier.statistics().misses == 1, "each was brought while the one before it was used"


def test_schedule_of_sets_is_kept_by_streams_and_borrows() -> None:
    steps = [tiles(0, 1), tiles(2, 3), tiles(0, 1), tiles(4, 5), tiles(0, 1)]
    carrier, _, _, _ = experts(6, budget_tiles=4, residency_policy=Schedule(steps))
    for k, step in enumerate(steps):
        if k % 2:
            with carrier.borrow(step):
                pass
        else:
            with carrier.stream(step) as stream:
                assert len(list(stream)) == 2
    assert carrier.statistics().misses == 6


def hits_of(order: Any, accesses: list[int], slots: int) -> list[bool]:
    resident: set[int] = set()
    found = []
    for tile in accesses:
        order.use(tile)
        found.append(tile in resident)
        if tile not in resident:
            if len(resident) == slots:
                victim = next(order.victims())
                resident.remove(victim)
                order.forget(victim)
            resident.add(tile)
            order.arrive(tile)
    return found


def routes(seed: int, count: int = 800) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, generator=generator) ** 2 * 40).long().tolist()


@pytest.mark.parametrize("seed", range(3))
def test_schedule_finds_its_place_after_a_leap(seed: int) -> None:
    announced = routes(seed)
    kept = [*announced[:200], *announced[500:]]
    order = Schedule([(k,) for k in announced]).eviction_order((40,), 10)
    found = hits_of(order, kept, 10)
    best = optimal_hits(announced[550:], 10)
    assert sum(found[250:]) >= 0.97 * best


@pytest.mark.parametrize("seed", range(3))
def test_schedule_finds_its_place_when_all_begins_anew(seed: int) -> None:
    announced = routes(seed)
    order = Schedule([(k,) for k in announced]).eviction_order((40,), 10)
    found = hits_of(order, [*announced, *announced], 10)
    assert sum(found[:800]) == optimal_hits(announced, 10)
    assert sum(found[850:]) >= 0.97 * optimal_hits(announced[50:], 10)


def test_schedule_with_every_other_use_unannounced_keeps_to_it_with_one_slot_less() -> None:
    announced = routes(5)
    kept = [tile for k in range(800) for tile in (announced[k], 40 + k % 7)]
    order = Schedule([(k,) for k in announced]).eviction_order((48,), 11)
    assert sum(hits_of(order, kept, 11)[::2]) >= optimal_hits(announced, 10)


def test_schedule_repeats_of_a_use_do_not_advance_it() -> None:
    announced = [k % 6 for k in range(36)]
    kept = [tile for tile in announced for _ in range(3)]
    order = Schedule([(k,) for k in announced]).eviction_order((6,), 3)
    found = hits_of(order, kept, 3)
    assert sum(found) == 72 + optimal_hits(announced, 3)


def test_schedule_with_steps_in_swapped_order_loses_little() -> None:
    announced = routes(6)
    kept = list(announced)
    for k in range(0, 798, 5):
        kept[k], kept[k + 1] = kept[k + 1], kept[k]
    order = Schedule([(k,) for k in announced]).eviction_order((40,), 10)
    assert sum(hits_of(order, kept, 10)) >= 0.98 * optimal_hits(kept, 10)


# -- what orders may do ----------------------------------------------------------------------------------------------


class WithOrder:
    def __init__(self, order: Any) -> None:
        self.order = order

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        return ResidencyPlan()

    def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> Any:
        self.asked = (grid_shape, slots)
        if isinstance(self.order, BaseException):
            raise self.order
        return self.order


def test_order_is_asked_for_with_the_grid_and_the_slots() -> None:
    policy = WithOrder(LRU().eviction_order((4, 1, 1), 2))
    experts(budget_tiles=2, residency_policy=policy)
    assert policy.asked == ((4, 1, 1), 2)


@pytest.mark.parametrize("order", [None, 3, LRU()])
def test_order_that_is_none_is_refused_at_construction(order: object) -> None:
    with pytest.raises(TypeError, match="EvictionOrder"):
        experts(residency_policy=WithOrder(order))


def test_order_error_at_construction_propagates() -> None:
    with pytest.raises(ZeroDivisionError):
        experts(residency_policy=WithOrder(ZeroDivisionError()))


class Strange:
    """Names tiles again and again, and not all of them."""

    def __init__(self, named: list[int]) -> None:
        self.named = named

    def use(self, tile: int) -> None: ...

    def arrive(self, tile: int) -> None: ...

    def forget(self, tile: int) -> None: ...

    def victims(self) -> Iterator[int]:
        return iter(self.named)


@pytest.mark.parametrize("named", [[], [0], [3, 3, 3, 0, 0, 1]])
def test_order_that_names_other_tiles_than_are_there_fails_no_request_that_fits(named: list[int]) -> None:
    carrier, weight, dense, _ = experts(6, budget_tiles=2, residency_policy=WithOrder(Strange(named)))
    for wanted in ((0, 1), (2, 3), (4, 5), (0, 3)):
        with carrier.borrow(tiles(*wanted)) as views:
            assert all(torch.equal(view.reshape(2, 3), dense[c[0]]) for c, view in views.items())
        carrier.promote(tiles(*wanted))
        with carrier.stream(every_tile(carrier)) as stream:
            assert len(list(stream)) == 6
        assert torch.equal(carrier.project(weight, picked(*wanted)).wait(5).torch(), dense[list(wanted)])
        weight[wanted[0], 0, 0] = dense[wanted[0], 0, 0] = -1.0
    with pytest.raises(BudgetExceeded):
        carrier.promote(tiles(0, 1, 2))
