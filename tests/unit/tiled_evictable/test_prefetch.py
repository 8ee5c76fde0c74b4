"""Guesses: never in the way, hurried when wanted, given up when their slot is needed, and judged by their use."""

from __future__ import annotations

import random
import threading

import pytest
import torch

import strideweave as sw
from strideweave import TileSet
from strideweave.carriers.tiled_evictable import LFU, LRU, Adaptive, Prefetcher, Rounds, Statistics
from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from support.inline_lanes import InlineLanes


def carrier_of(count: int = 8, *, slots: int = 3, policy: object = None) -> sw.TiledEvictable:
    """Tiles of two elements; the value of tile k is (2k, 2k + 1)."""
    full = sw.CPU.wrap(torch.arange(2.0 * count))
    return sw.TiledEvictable(sw.CPU(0), full, (count,), (2,), budget=8 * slots, residency_policy=policy)


def some(*ordinals: int) -> TileSet:
    return TileSet([(k,) for k in ordinals])


def read(carrier: sw.TiledEvictable, *ordinals: int) -> None:
    with carrier.stream(some(*ordinals)) as stream:
        for (k,), view in stream:
            assert view.tolist() == [2.0 * k, 2.0 * k + 1]


def counts(statistics: Statistics) -> tuple[int, int, int]:
    return statistics.prefetched, statistics.prefetched_used, statistics.prefetched_unused


def test_guess_that_is_wanted_is_read_once() -> None:
    carrier = carrier_of()
    assert carrier.prefetch(some(5, 6)) == 2
    read(carrier, 5)
    assert carrier.statistics().bytes_read <= 16
    read(carrier, 6)
    assert carrier.statistics().bytes_read == 16
    assert counts(carrier.statistics()) == (2, 2, 0)
    assert carrier.prefetch(some(5, 6)) == 0, "they are there"
    carrier.release()


def test_queued_guess_is_hurried_by_who_wants_it() -> None:
    with InlineLanes(lambda n: n - 1).installed() as lanes:
        carrier = carrier_of()
        carrier.prefetch(some(1))
        handle = carrier.promote_async(some(1, 2))
        handle.wait()
        lanes.run_all()
        assert carrier.primary_tiles == some(1, 2)
        assert counts(carrier.statistics()) == (1, 1, 0)
        assert carrier.statistics().bytes_read == 16
        carrier.release()


def test_queued_guesses_give_their_slots_to_requests() -> None:
    with InlineLanes(lambda n: n - 1).installed() as lanes:
        carrier = carrier_of(slots=3)
        assert carrier.prefetch(some(0, 1, 2)) == 3
        carrier.promote(some(5, 6, 7))
        lanes.run_all()
        assert carrier.primary_tiles == some(5, 6, 7)
        assert counts(carrier.statistics()) == (3, 0, 3)
        assert carrier.statistics().bytes_read == 24
        carrier.release()


def test_pinned_and_dirty_tiles_stay() -> None:
    carrier = carrier_of(slots=2)
    with carrier.borrow(some(0, 1)):
        assert carrier.prefetch(some(2, 3)) == 0
    carrier.set_value(0, 9.0)
    carrier.set_value(2, 9.0)
    assert carrier.prefetch(some(4)) == 0
    assert all(carrier.tile_state((k,)).dirty for k in (0, 1))
    carrier.release()


def test_guess_that_fails_is_no_error_until_somebody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = carrier_of()
    real, fails = carrier._engine.secondary.read, [True]

    def read_once(ordinal: int, out: torch.Tensor) -> int:
        if fails.pop() if fails else False:
            raise OSError("the disk is away")
        return real(ordinal, out)

    monkeypatch.setattr(carrier._engine.secondary, "read", read_once)
    carrier.prefetch(some(3))
    while carrier.statistics().in_flight_tiles:
        threading.Event().wait(0.001)
    assert counts(carrier.statistics()) == (1, 0, 1)
    read(carrier, 3)
    carrier.release()


def test_release_does_not_wait_for_queued_guesses() -> None:
    with InlineLanes(lambda n: 0).installed() as lanes:
        carrier = carrier_of()
        carrier.prefetch(some(0, 1))
        carrier.release()
        lanes.run_all()
        with pytest.raises(RuntimeError, match="cannot prefetch"):
            carrier.prefetch(some(0))


def test_requests_under_a_storm_of_guesses_are_right() -> None:
    carrier = carrier_of(40, slots=5)
    ended = threading.Event()

    def guess() -> None:
        draw = random.Random(1)
        while not ended.is_set():
            carrier.prefetch(some(*draw.sample(range(40), 2)))

    thread = threading.Thread(target=guess)
    thread.start()
    draw = random.Random(2)
    try:
        for _ in range(300):
            chosen = draw.sample(range(40), 4)
            if draw.random() < 0.3:
                carrier.promote(some(*chosen))
                continue
            read(carrier, *chosen)
    finally:
        ended.set()
        thread.join()
    assert carrier.statistics().resident_tiles <= 5
    carrier.release()


# -- the prefetcher --------------------------------------------------------------------------------------------------


def test_wrong_guesses_are_left_alone_for_a_while_and_right_ones_go_on() -> None:
    wrong = carrier_of(64, slots=4)
    prefetcher = Prefetcher(wrong, max_in_flight=1)
    for k in range(400):
        prefetcher.suggest([(32 + k % 32,)])
        read(wrong, k % 3)
    assert wrong.statistics().prefetched < 80, "of 400 suggestions"
    assert "pausing" in repr(prefetcher) or prefetcher.is_pausing
    right = carrier_of(64, slots=4)
    prefetcher = Prefetcher(right, max_in_flight=1)
    for k in range(400):
        prefetcher.suggest([((k + 1) % 64,)])
        read(right, k % 64)
    assert right.statistics().prefetched > 250
    assert right.statistics().prefetch_precision > 0.95
    assert right.statistics().bytes_read <= 8 * 410
    for carrier in (wrong, right):
        carrier.release()


def test_no_more_are_on_their_way_than_allowed() -> None:
    with InlineLanes(lambda n: 0).installed() as lanes:
        carrier = carrier_of()
        prefetcher = Prefetcher(carrier, max_in_flight=2)
        assert prefetcher.suggest([(k,) for k in range(8)]) == 2
        assert prefetcher.suggest([(7,)]) == 0
        lanes.run_all()
        assert prefetcher.suggest([(7,)]) == 1
        lanes.run_all()
        carrier.release()


@pytest.mark.parametrize(("settings", "words"), [({"max_in_flight": 0}, "=0"), ({"precision_floor": 1.5}, "=1.5")])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], words: str) -> None:
    carrier = carrier_of()
    with pytest.raises(ValueError, match=words):
        Prefetcher(carrier, **settings)  # type: ignore[arg-type]
    carrier.release()


# -- scans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [LRU(), LFU(), Adaptive()], ids=repr)
def test_passing_scan_leaves_what_was_there(policy: object) -> None:
    carrier = carrier_of(100, slots=20, policy=policy)
    hot = list(range(16))
    for _ in range(5):
        read(carrier, *hot)
    with carrier.stream(some(*range(20, 100)), passing=True) as stream:
        assert [view[0].item() / 2 for _, view in stream] == list(range(20, 100))
    before = carrier.statistics()
    read(carrier, *hot)
    assert carrier.statistics().since(before).hits >= 14
    with carrier.stream(some(*range(20, 100))) as stream:
        for _ in stream:
            pass
    before = carrier.statistics()
    read(carrier, *hot)
    assert policy == LFU() or isinstance(policy, LFU) or carrier.statistics().since(before).hits < 14
    carrier.release()


def test_passing_scan_works_with_one_slot_and_beside_borrowed_tiles() -> None:
    carrier = carrier_of(12, slots=1)
    with carrier.stream(some(*range(12)), passing=True) as stream:
        assert len(list(stream)) == 12
    carrier.release()
    carrier = carrier_of(12, slots=3)
    with carrier.borrow(some(0, 1)), carrier.stream(some(*range(2, 12)), passing=True) as stream:
        assert len(list(stream)) == 10
    carrier.release()


# -- orders ----------------------------------------------------------------------------------------------------------


def hits(policy: LRU | LFU | Rounds | Adaptive, steps: list[list[int]], grid: tuple[int, ...], slots: int) -> int:
    """Of a cache that gives up what the policy's order says, on paper."""
    order, held, found = policy.eviction_order(grid, slots), set[int](), 0
    for step in steps:
        for tile in step:
            order.use(tile)
            found += tile in held
            if tile not in held and len(held) >= slots:
                victim = next(k for k in order.victims() if k not in step)
                held.discard(victim)
                order.forget(victim)
            held.add(tile)
            order.arrive(tile)
    return found


def routes(layers: int, experts: int, turns: int, *, drift: bool) -> list[list[int]]:
    """Two experts of each layer in turn: steady favourites, or those of the last turn and now and then another."""
    draw = random.Random(5)
    weights = [[draw.random() ** 3 for _ in range(experts)] for _ in range(layers)]
    last = [draw.sample(range(experts), 2) for _ in range(layers)]
    steps = []
    for _ in range(turns):
        for layer in range(layers):
            if drift:
                if draw.random() < 0.2:
                    last[layer][draw.randrange(2)] = draw.randrange(experts)
                chosen = sorted(set(last[layer]))
            else:
                chosen = sorted(set(draw.choices(range(experts), weights[layer], k=2)))
            steps.append([layer + layers * expert for expert in chosen])
    return steps


def test_rounds_hits_more_than_lru_where_layers_have_favourites() -> None:
    steps = routes(12, 8, 80, drift=False)
    lru, rounds = (hits(policy, steps, (12, 8), 26) for policy in (LRU(), Rounds()))
    best = optimal_hits([tile for step in steps for tile in step], 26)
    assert lru < rounds <= best
    assert rounds > 1.15 * lru


@pytest.mark.parametrize("drift", [True, False])
def test_adaptive_is_nearly_as_good_as_the_better_of_its_policies(drift: bool) -> None:
    steps = routes(12, 8, 80, drift=drift)
    found = {repr(policy): hits(policy, steps, (12, 8), 26) for policy in (LRU(), Rounds(), Adaptive())}
    assert found[repr(Adaptive())] > 0.95 * max(found.values()), found


def test_adaptive_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Adaptive([])
    with pytest.raises(TypeError, match="eviction_order"):
        Adaptive([object()])
    with pytest.raises(ValueError, match="at least 1"):
        Rounds(0.5)
