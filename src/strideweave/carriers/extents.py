"""Which bytes of a device are free: aligned extents, given out lowest first, joined again when they come back."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of bytes. Units: bytes.

    >>> Extent(512, 1024).end_nbytes
    1536
    """

    offset_nbytes: int
    """Where it begins."""
    nbytes: int
    """How long it is."""

    @property
    def end_nbytes(self) -> int:
        """The byte after its last."""
        return self.offset_nbytes + self.nbytes


class FreeExtents:
    """The free bytes of a device of `capacity_nbytes`, as few extents as there can be, all multiples of `alignment`.

    What `capacity_nbytes` has beyond a multiple of the alignment is never given out. Not for several threads.

    >>> free = FreeExtents(4096, alignment=512)
    >>> first, second = free.take(100), free.take(1000)
    >>> first, second
    (Extent(offset_nbytes=0, nbytes=512), Extent(offset_nbytes=512, nbytes=1024))
    >>> free.give(first)
    >>> free.holes
    (Extent(offset_nbytes=0, nbytes=512), Extent(offset_nbytes=1536, nbytes=2560))
    """

    def __init__(self, capacity_nbytes: int, *, alignment: int) -> None:
        assert capacity_nbytes >= 0, "a device has no negative size"
        assert alignment >= 1, "an alignment is at least 1"
        self.alignment = alignment
        usable = capacity_nbytes - capacity_nbytes % alignment
        self._holes = [Extent(0, usable)] if usable else []  # ordered, never touching, never empty

    @property
    def holes(self) -> tuple[Extent, ...]:
        """The free extents, lowest first; no two touch."""
        return tuple(self._holes)

    @property
    def free_nbytes(self) -> int:
        """How many bytes are free."""
        return sum(hole.nbytes for hole in self._holes)

    @property
    def largest_nbytes(self) -> int:
        """The most that one extent can have now."""
        return max((hole.nbytes for hole in self._holes), default=0)

    def rounded(self, nbytes: int) -> int:
        """`nbytes` up to a multiple of the alignment."""
        return -(-nbytes // self.alignment) * self.alignment

    def take(self, nbytes: int) -> Extent | None:
        """The lowest free extent that holds `nbytes`, no longer free; None when no hole is that long.

        An extent of no bytes takes nothing.
        """
        needed = self.rounded(nbytes)
        if not needed:
            return Extent(0, 0)
        for k, hole in enumerate(self._holes):
            if hole.nbytes >= needed:
                left = Extent(hole.offset_nbytes + needed, hole.nbytes - needed)
                self._holes[k : k + 1] = [left] if left.nbytes else []
                return Extent(hole.offset_nbytes, needed)
        return None

    def give(self, extent: Extent) -> None:
        """The extent, which `take` gave out, is free again, and one with the holes that it touches."""
        if not extent.nbytes:
            return
        k = bisect_left(self._holes, extent.offset_nbytes, key=lambda hole: hole.offset_nbytes)
        begin, end = extent.offset_nbytes, extent.end_nbytes
        assert k == 0 or self._holes[k - 1].end_nbytes <= begin, "an extent is given back once"
        assert k == len(self._holes) or end <= self._holes[k].offset_nbytes, "an extent is given back once"
        first = after = k
        if k and self._holes[k - 1].end_nbytes == begin:
            first, begin = k - 1, self._holes[k - 1].offset_nbytes
        if k < len(self._holes) and self._holes[k].offset_nbytes == end:
            after, end = k + 1, self._holes[k].end_nbytes
        self._holes[first:after] = [Extent(begin, end - begin)]
