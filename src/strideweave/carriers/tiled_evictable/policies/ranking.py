"""Tiles by rank, the lowest first: what an eviction order looks its next victim up in."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TypeAlias

Rank: TypeAlias = tuple[float, int]

_STALE = 64  # that many replaced entries are kept before they may outnumber the others


class Ranking:
    """Tiles, each with a rank. O(log n) to set a rank, on average; O(k log k) to look at the first k tiles.

    A heap in which a replaced entry stays until it comes to the top, or until such entries are in the majority.

    >>> from strideweave.carriers.tiled_evictable.policies.ranking import Ranking
    >>> ranking = Ranking()
    >>> for tile, rank in ((7, (2.0, 0)), (8, (1.0, 0)), (7, (0.0, 0))):
    ...     ranking.put(tile, rank)
    >>> list(ranking), 8 in ranking
    ([7, 8], True)
    """

    def __init__(self) -> None:
        self._ranks: dict[int, Rank] = {}
        self._heap: list[tuple[Rank, int]] = []

    def __contains__(self, tile: int) -> bool:
        return tile in self._ranks

    def put(self, tile: int, rank: Rank) -> None:
        """The tile has this rank, and no other, from now on."""
        self._ranks[tile] = rank
        heapq.heappush(self._heap, (rank, tile))
        if len(self._heap) > 2 * len(self._ranks) + _STALE:
            self._heap = [(kept, k) for k, kept in self._ranks.items()]
            heapq.heapify(self._heap)

    def drop(self, tile: int) -> None:
        """The tile has no rank."""
        self._ranks.pop(tile, None)

    def tiles(self) -> list[int]:
        """Every tile, in no order."""
        return list(self._ranks)

    def __iter__(self) -> Iterator[int]:
        """Every tile, the lowest rank first. Nothing may be put while this runs."""
        heap = self._heap
        while heap and not self._is_current(*heap[0]):
            heapq.heappop(heap)
        # A heap is read in order without being changed: what follows an entry is below it.
        frontier = [(heap[0], 0)] if heap else []
        last: int | None = None
        while frontier:
            (rank, tile), place = heapq.heappop(frontier)
            for below in (2 * place + 1, 2 * place + 2):
                if below < len(heap):
                    heapq.heappush(frontier, (heap[below], below))
            # The same rank put twice stands there twice, one after the other.
            if tile != last and self._is_current(rank, tile):
                last = tile
                yield tile

    def _is_current(self, rank: Rank, tile: int) -> bool:
        return self._ranks.get(tile) == rank
