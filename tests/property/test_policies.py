"""Eviction orders against models that look at everything, and any policy at all against a dense tensor."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strideweave import BudgetExceeded, ResidencyPlan, TileSelection, TileSet
from strideweave.carriers.tiled_evictable import LRU, EvictionOrder
from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from strideweave.carriers.tiled_evictable.policies import LFU, Pinned, Schedule
from strideweave.carriers.tiled_evictable.policies.ranking import Ranking
from support.tiled import experts, slots_of, tiles

TILES = 6
GRID = (TILES,)

Event = tuple[str, int]
events = st.lists(
    st.tuples(st.sampled_from(["use", "use", "arrive", "forget"]), st.integers(0, TILES - 1)), max_size=60
)
sequences = st.lists(st.integers(0, TILES - 1), max_size=60)


def single(sequence: Sequence[int]) -> Schedule:
    return Schedule([(tile,) for tile in sequence])


def hits(order: EvictionOrder, accesses: Sequence[int], slots: int, *, use_first: bool = True) -> int:
    """How many accesses find their tile, when each leaves it resident."""
    resident: set[int] = set()
    found = 0
    for tile in accesses:
        if tile in resident:
            found += 1
            order.use(tile)
            continue
        if use_first:
            order.use(tile)
        if len(resident) == slots:
            victim = next(order.victims())
            resident.remove(victim)
            order.forget(victim)
        if not use_first:
            order.use(tile)
        resident.add(tile)
        order.arrive(tile)
    return found


def play(order: EvictionOrder, happened: Sequence[Event]) -> set[int]:
    """Tell an order what happened; the tiles that are there after it."""
    there: set[int] = set()
    for kind, tile in happened:
        if kind == "forget":
            if tile in there:
                there.remove(tile)
                order.forget(tile)
        else:
            getattr(order, kind)(tile)
            if kind == "arrive":
                there.add(tile)
    return there


@given(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 4))), max_size=300))
def test_ranking_of_any_changes_is_the_sorted_order(changes: list[tuple[int, int | None]]) -> None:
    ranking, model = Ranking(), dict[int, tuple[float, int]]()
    for k, (tile, value) in enumerate(changes):
        if value is None:
            ranking.drop(tile)
            model.pop(tile, None)
        else:
            ranking.put(tile, (float(value), k % 3))
            model[tile] = (float(value), k % 3)
        if k % 7 == 0:
            next(iter(ranking), None)
    assert list(ranking) == sorted(model, key=lambda tile: (model[tile], tile))
    assert list(ranking) == sorted(model, key=lambda tile: (model[tile], tile)), "looking changes nothing"


@given(events)
def test_lru_of_any_events_gives_up_the_oldest(happened: list[Event]) -> None:
    order = LRU().eviction_order(GRID, 3)
    there = play(order, happened)
    last: dict[int, int] = {}
    present: set[int] = set()
    for now, (kind, tile) in enumerate(happened):
        if kind == "arrive" or (kind == "use" and tile in present):
            last[tile] = now
        (present.add if kind == "arrive" else present.discard if kind == "forget" else id)(tile)
    assert list(order.victims()) == sorted(there, key=last.__getitem__)


@given(events, st.integers(1, 40))
def test_lfu_of_any_events_gives_up_the_lightest(happened: list[Event], half_life: int) -> None:
    order = LFU(half_life).eviction_order(GRID, 3)
    there = play(order, happened)
    weights, ranked, uses = [0.0] * TILES, [0.0] * TILES, 0
    for kind, tile in happened:
        if kind == "use":
            uses += 1
            weights = [weight * 0.5 ** (1 / half_life) for weight in weights]
            ranked = [weight * 0.5 ** (1 / half_life) for weight in ranked]
            weights[tile] += 1.0
            ranked[tile] = weights[tile]
        elif kind == "arrive":
            ranked[tile] = max(weights[tile], 1.0)
    victims = list(order.victims())
    assert set(victims) == there
    assert len(victims) == len(there)
    for lighter, heavier in itertools.pairwise(victims):
        assert ranked[lighter] <= ranked[heavier] * (1 + 1e-9)


@given(events, st.sets(st.integers(0, TILES - 1), max_size=3), st.sampled_from([LRU(), LFU(3), single([0, 1, 2, 3])]))
def test_pinned_of_any_events_gives_up_the_others_in_the_other_order(
    happened: list[Event], pinned: set[int], rest: Any
) -> None:
    order = Pinned(TileSet([(k,) for k in pinned]), rest=rest).eviction_order(GRID, 3)
    alone = rest.eviction_order(GRID, 3)
    play(order, happened)
    play(alone, [(kind, tile) for kind, tile in happened if kind == "use" or tile not in pinned])
    assert list(order.victims()) == list(alone.victims())


@given(sequences, st.integers(1, TILES), st.booleans())
def test_schedule_that_is_kept_hits_as_often_as_the_best_choice(
    accesses: list[int], slots: int, use_first: bool
) -> None:
    order = single(accesses).eviction_order(GRID, slots)
    assert hits(order, accesses, slots, use_first=use_first) == optimal_hits(accesses, slots)


@given(st.lists(st.sets(st.integers(0, TILES - 1), min_size=1), max_size=20), st.integers(0, 20), st.randoms())
def test_schedule_of_sets_gives_up_what_is_needed_last_whatever_the_order_within_a_step(
    steps: list[set[int]], over: int, random: Any
) -> None:
    order = Schedule([TileSet([(k,) for k in step]) for step in steps]).eviction_order(GRID, TILES)
    for tile in range(TILES):
        order.arrive(tile)
    for step in steps[:over]:
        for tile in random.sample(sorted(step), len(step)):
            order.use(tile)
    following = [next((k for k, s in enumerate(steps[over:]) if tile in s), math.inf) for tile in range(TILES)]
    needed = [following[tile] for tile in order.victims()]
    assert needed == sorted(following, reverse=True)


@given(sequences, events)
def test_schedule_that_is_not_kept_at_all_still_names_every_tile_once(
    announced: list[int], happened: list[Event]
) -> None:
    order = single(announced).eviction_order(GRID, 3)
    there = play(order, happened * 3)
    assert sorted(order.victims()) == sorted(there)


# -- through a carrier -----------------------------------------------------------------------------------------------


class Arbitrary:
    """A policy that plans what hypothesis draws, valid or not for the situation."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        whom = self._data.draw(
            st.lists(st.sampled_from(["promote", "retain", "evict", ""]), min_size=TILES, max_size=TILES)
        )
        return ResidencyPlan(
            **{field: tiles(*(k for k in range(TILES) if whom[k] == field)) for field in ("promote", "retain", "evict")}
        )


POLICIES: list[Callable[[st.DataObject], Any]] = [
    lambda data: LFU(),
    lambda data: Pinned(tiles(0, 3)),
    lambda data: Pinned(tiles(1), rest=Arbitrary(data)),
    lambda data: Schedule([(k, 0, 0) for k in data.draw(sequences)]),
    Arbitrary,
]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(POLICIES), st.integers(2, TILES))
def test_any_policy_changes_no_value_and_keeps_the_budget(
    data: st.DataObject, make: Callable[[st.DataObject], Any], budget_tiles: int
) -> None:
    carrier, weight, dense, _ = experts(TILES, budget_tiles=budget_tiles, residency_policy=make(data))
    dense = dense.clone()
    subsets = st.lists(st.integers(0, TILES - 1), min_size=1, max_size=3, unique=True)
    for ask in data.draw(
        st.lists(st.sampled_from(["project", "stream", "borrow", "write", "promote", "evict"]), max_size=8)
    ):
        wanted = data.draw(subsets)
        try:
            if ask == "project":
                result = carrier.project(weight, TileSelection([wanted, [0], [0]])).wait(5).torch()
                assert torch.equal(result, dense[wanted])
            elif ask == "stream":
                with carrier.stream(tiles(*wanted)) as stream:
                    assert all(torch.equal(view.reshape(2, 3), dense[c[0]]) for c, view in stream)
            elif ask == "borrow":
                with carrier.borrow(tiles(*wanted)) as views:
                    assert all(torch.equal(view.reshape(2, 3), dense[c[0]]) for c, view in views.items())
            elif ask == "write":
                weight[wanted[0], 1, 2] = dense[wanted[0], 1, 2] = -float(wanted[0]) - 1
            elif ask == "promote":
                carrier.promote(tiles(*wanted))
            else:
                carrier.evict(tiles(*wanted))
        except BudgetExceeded:
            assert isinstance(carrier.residency_policy, Arbitrary | Pinned) or len(wanted) > budget_tiles
        statistics = carrier.statistics()
        assert statistics.resident_tiles + statistics.in_flight_tiles <= budget_tiles
    deadline = time.monotonic() + 5
    while (now := carrier.statistics()).in_flight_tiles or now.pinned_tiles:
        assert time.monotonic() < deadline, now
        time.sleep(0.0005)
    assert torch.equal(slots_of(carrier), dense.reshape(-1))
    assert carrier.statistics().failed_policy_evictions == 0
    carrier.release()


@settings(max_examples=30, deadline=None)
@given(sequences, st.integers(1, TILES))
def test_schedule_on_a_carrier_hits_as_often_as_the_best_choice(accesses: list[int], budget_tiles: int) -> None:
    policy = Schedule([(k, 0, 0) for k in accesses])
    carrier, weight, dense, _ = experts(TILES, budget_tiles=budget_tiles, residency_policy=policy)
    for k in accesses:
        assert torch.equal(carrier.project(weight, TileSelection([[k], [0], [0]])).wait(5).torch(), dense[[k]])
    assert carrier.statistics().hits == optimal_hits(accesses, budget_tiles)


@pytest.mark.parametrize("seed", range(4))
def test_schedule_with_few_deviations_hits_nearly_as_often(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    popular = (torch.rand(600, generator=generator) ** 2 * 40).long().tolist()
    kept: list[int] = []
    for tile in popular:
        what = draw(60)
        if what == 0:
            continue
        if what == 1:
            kept.append(draw(40))
        kept.append(draw(40) if what == 2 else tile)
    order = single(popular).eviction_order((40,), 10)
    best = optimal_hits(kept, 10)
    assert hits(order, kept, 10) >= 0.95 * best
    assert hits(LRU().eviction_order((40,), 10), kept, 10) < 0.85 * best
