"""What the best possible eviction would have hit: the bound that a policy is held against."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence


def optimal_hits(accesses: Sequence[Hashable], slots: int) -> int:
    """The most accesses that any eviction policy finds resident, starting with nothing in `slots` slots.

    Every access must leave its tile resident, as one that is used in place does; the order of the accesses is
    taken as given. Costs O(n log n).

    Errors: ValueError for less than one slot.
    Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
    Journal 5(2), 1966: evict the tile whose next use is farthest away.

    >>> optimal_hits("abcabcd", slots=2)
    2
    >>> optimal_hits("abcabcd", slots=3)
    3
    """
    if slots < 1:
        raise ValueError(
            f"cannot bound the hits of {len(accesses)} accesses in {slots} slots: every access needs one. "
            "There must be at least 1 slot. Pass slots >= 1."
        )
    resident: set[Hashable] = set()
    farthest: list[tuple[int, int, Hashable]] = []  # (-next use, access, tile): the root is the next victim
    hits = 0
    for now, (tile, following) in enumerate(zip(accesses, _next_uses(accesses), strict=True)):
        if tile in resident:
            hits += 1
        elif len(resident) == slots:
            # An entry goes stale when its use comes. It is then nearer than the entry of any resident tile,
            # so the root is never stale.
            resident.remove(heapq.heappop(farthest)[2])
        resident.add(tile)
        heapq.heappush(farthest, (-following, now, tile))
    return hits


def _next_uses(accesses: Sequence[Hashable]) -> list[int]:
    """For each access when its tile is used next; the number of accesses when never."""
    after = [0] * len(accesses)
    seen: dict[Hashable, int] = {}
    for now in range(len(accesses) - 1, -1, -1):
        after[now] = seen.get(accesses[now], len(accesses))
        seen[accesses[now]] = now
    return after
