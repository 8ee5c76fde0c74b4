"""FreeExtents against a bitmap: lowest first fit, aligned, joined again."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strideweave.carriers.extents import Extent, FreeExtents


class Bitmap:
    """One bool per byte: what FreeExtents is, by brute force."""

    def __init__(self, capacity: int, alignment: int) -> None:
        self.alignment = alignment
        self.free = [True] * (capacity - capacity % alignment)

    def take(self, nbytes: int) -> Extent | None:
        needed = next(n for n in range(nbytes, nbytes + self.alignment) if n % self.alignment == 0)
        if needed == 0:
            return Extent(0, 0)
        for offset in range(0, len(self.free), self.alignment):
            if offset + needed <= len(self.free) and all(self.free[offset : offset + needed]):
                self.free[offset : offset + needed] = [False] * needed
                return Extent(offset, needed)
        return None

    def give(self, extent: Extent) -> None:
        assert not any(self.free[extent.offset_nbytes : extent.end_nbytes])
        self.free[extent.offset_nbytes : extent.end_nbytes] = [True] * extent.nbytes

    def holes(self) -> tuple[Extent, ...]:
        found, at = [], 0
        for is_free, group in groupby(self.free):
            length = len(list(group))
            if is_free:
                found.append(Extent(at, length))
            at += length
        return tuple(found)


@given(
    capacity=st.integers(0, 60),
    alignment=st.integers(1, 7),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 25)), max_size=40),
)
def test_free_extents_in_any_order_equal_a_bitmap(capacity: int, alignment: int, steps: list[tuple[bool, int]]) -> None:
    free, model = FreeExtents(capacity, alignment=alignment), Bitmap(capacity, alignment)
    taken: list[Extent] = []
    for is_take, number in steps:
        if is_take or not taken:
            extent = free.take(number)
            assert extent == model.take(number)
            if extent is not None:
                assert extent.nbytes == free.rounded(number)
                taken.append(extent)
        else:
            extent = taken.pop(number % len(taken))
            free.give(extent)
            model.give(extent)
        assert free.holes == model.holes()
        assert free.free_nbytes == sum(model.free)
        assert free.largest_nbytes == max((hole.nbytes for hole in model.holes()), default=0)
    for extent in taken:
        free.give(extent)
    assert free.holes == Bitmap(capacity, alignment).holes()


def test_free_extents_take_the_lowest_that_fits_and_not_the_best() -> None:
    free = FreeExtents(100, alignment=10)
    parts = [free.take(n) for n in (30, 10, 10, 10, 40)]
    assert free.take(1) is None
    for k in (0, 2):
        part = parts[k]
        assert part is not None
        free.give(part)
    assert free.take(10) == Extent(0, 10)  # the hole at 40 would fit exactly
    assert free.take(25) is None
    assert free.take(20) == Extent(10, 20)
    assert free.take(5) == Extent(40, 10)


def test_free_extents_never_give_out_the_ragged_end() -> None:
    free = FreeExtents(1023, alignment=512)
    assert free.take(513) is None
    assert free.take(1) == Extent(0, 512)
    assert free.take(1) is None


def test_free_extents_refuse_what_is_free_already() -> None:
    free = FreeExtents(40, alignment=10)
    first, second = free.take(10), free.take(10)
    assert first is not None
    assert second is not None
    free.give(first)
    for again in (first, Extent(0, 20), Extent(10, 30)):
        with pytest.raises(AssertionError, match="given back once"):
            free.give(again)
    free.give(second)
    assert free.holes == (Extent(0, 40),)
