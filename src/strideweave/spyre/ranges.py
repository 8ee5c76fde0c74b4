"""Free ranges of device memory: sorted, joined with their neighbours, handed out from the lowest address up."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class FreeRanges:
    """Free ranges of one kind of memory; neighbours within a segment are one range.

    Units: bytes.

    >>> from strideweave.spyre.ranges import FreeRanges
    >>> free = FreeRanges(segment_nbytes=1024)
    >>> free.add(0, 256)
    >>> free.add(256, 256)
    >>> free.take(128), list(free)
    (0, [(128, 384)])
    """

    __slots__ = ("_nbytes", "_segment_nbytes", "_starts", "total_nbytes")

    def __init__(self, segment_nbytes: int) -> None:
        self._segment_nbytes = segment_nbytes
        self._starts: list[int] = []
        self._nbytes: dict[int, int] = {}
        self.total_nbytes = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((start, self._nbytes[start]) for start in self._starts)

    def largest(self) -> int:
        """The bytes of the largest range; 0 when there is none."""
        return max(self._nbytes.values(), default=0)

    def take(self, nbytes: int) -> int | None:
        """The address of `nbytes` that are no longer free: the first range that holds them; None when none does."""
        for position, start in enumerate(self._starts):
            found = self._nbytes[start]
            if found < nbytes:
                continue
            del self._nbytes[start]
            if found == nbytes:
                del self._starts[position]
            else:
                self._starts[position] = start + nbytes
                self._nbytes[start + nbytes] = found - nbytes
            self.total_nbytes -= nbytes
            return start
        return None

    def add(self, start: int, nbytes: int) -> None:
        """The range is free, joined with the free ranges that touch it in the same segment."""
        self.total_nbytes += nbytes
        position = bisect_left(self._starts, start)
        end = start + nbytes
        if position < len(self._starts) and self._starts[position] == end and end % self._segment_nbytes:
            del self._starts[position]
            nbytes += self._nbytes.pop(end)
        if position and start % self._segment_nbytes:
            before = self._starts[position - 1]
            if before + self._nbytes[before] == start:
                self._nbytes[before] += nbytes
                return
        insort(self._starts, start)
        self._nbytes[start] = nbytes

    def clear(self) -> list[tuple[int, int]]:
        """All ranges, none of which is kept."""
        ranges = list(self)
        self._starts.clear()
        self._nbytes.clear()
        self.total_nbytes = 0
        return ranges
