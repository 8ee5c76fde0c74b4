"""The bound on hits, held against every choice that an eviction policy could make."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strideweave.carriers.tiled_evictable.optimal import optimal_hits


def most_hits_by_trying_everything(accesses: Sequence[int], slots: int) -> int:
    best = {frozenset[int](): 0}  # for each set that may be resident, the most hits that lead to it
    for tile in accesses:
        after: dict[frozenset[int], int] = {}
        for resident, hits in best.items():
            if tile in resident:
                choices = [resident]
            elif len(resident) < slots:
                choices = [resident | {tile}]
            else:
                choices = [(resident - {victim}) | {tile} for victim in resident]
            for choice in choices:
                after[choice] = max(after.get(choice, 0), hits + (tile in resident))
        best = after
    return max(best.values())


def hits_of_lru(accesses: Sequence[int], slots: int) -> int:
    resident: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for tile in accesses:
        hits += tile in resident
        resident[tile] = None
        resident.move_to_end(tile)
        if len(resident) > slots:
            resident.popitem(last=False)
    return hits


@given(st.lists(st.integers(0, 5), max_size=24), st.integers(1, 5))
def test_optimal_hits_of_any_small_sequence_equal_the_best_of_all_choices(accesses: list[int], slots: int) -> None:
    assert optimal_hits(accesses, slots) == most_hits_by_trying_everything(accesses, slots)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 12))
def test_optimal_hits_of_any_sequence_are_at_least_those_of_lru(accesses: list[int], slots: int) -> None:
    assert hits_of_lru(accesses, slots) <= optimal_hits(accesses, slots) <= len(accesses) - len(set(accesses))


def test_optimal_hits_when_everything_fits_miss_each_tile_once() -> None:
    accesses = [(layer, expert) for _ in range(5) for layer in range(2) for expert in range(8)]
    assert optimal_hits(accesses, 16) == len(accesses) - 16


def test_optimal_hits_of_a_cyclic_scan_are_those_that_theory_gives() -> None:
    # 8 tiles round and round in 4 slots: after the first round MIN hits 4 - 1 of every 8 - 1.
    accesses = [k % 8 for k in range(8 + 700)]
    assert hits_of_lru(accesses, 4) == 0
    assert optimal_hits(accesses, 4) == pytest.approx(700 * 3 / 7, abs=3)


def test_optimal_hits_of_nothing_are_none() -> None:
    assert optimal_hits([], 1) == 0


def test_optimal_hits_without_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 slot"):
        optimal_hits([1, 2], 0)
