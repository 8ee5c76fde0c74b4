"""The slots of a tile, counted from its lowest one, and how an axis falls into tiles."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strideweave.layout import Layout, divide

Leaf: TypeAlias = tuple[int, int]
Slots: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """The part of an axis that tiles of one kind have: whole tiles, or the last one where it is cut."""

    extent: int
    """How many coordinates it has."""
    leaves: tuple[Leaf, ...]
    """Its leaves (extent, stride), first leaf fastest."""
    radices: tuple[int, ...]
    """The extent of the digit that each leaf is a part of, in the slots of the whole axis."""


@dataclass(frozen=True, slots=True)
class Step:
    """One leaf over the tiles of an axis, and how a slot tells its index: `slot // stride % radix // divisor`."""

    extent: int
    step: int
    """From one tile to the next, in slots."""
    stride: int
    radix: int
    divisor: int


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis in tiles."""

    spans: tuple[Span, ...]
    """Of whole tiles; then of the last tile, where it is smaller."""
    steps: tuple[Step, ...]

    @property
    def bases(self) -> Slots:
        """The slot at which every tile begins."""
        return sums([(step.extent, step.step) for step in self.steps])


def cut(mode: Layout, tile: int) -> Cut:
    """A mode in tiles of `tile` coordinates; the last one has fewer where they do not fit.

    Errors: ValueError when tiles of one kind would not be alike: a tile boundary falls inside a leaf.

    >>> from strideweave import Layout
    >>> [span.leaves for span in cut(Layout.leaf(7, 4), 3).spans]
    [((3, 4),), ((1, 4),)]
    """
    rest = mode.size % tile
    if not rest:
        parts = divide(mode, Layout.leaf(tile, 1))
        inner, outer = parts[0].leaves(), parts[1].leaves()
        return Cut((Span(tile, inner, tuple(n for n, _ in inner)),), tuple(Step(n, d, d, n, 1) for n, d in outer))
    leaves = mode.coalesce().leaves()
    if mode.size < tile:
        return Cut((Span(mode.size, leaves, tuple(n for n, _ in leaves)),), (Step(1, 0, 1, 1, 1),))
    *whole, (n, d) = leaves
    below = math.prod(n for n, _ in whole)
    if tile % below:
        raise ValueError(
            f"the mode {mode!r} has {len(leaves)} leaves after coalescing, of which all but the last count "
            f"{below} coordinates, and tiles of {tile} cut through them. Along an axis whose last tile is smaller the "
            "mode must be one leaf, or tiles must be a multiple of all its leaves but the last"
        )
    radices = (*(extent for extent, _ in whole), n)
    spans = tuple(Span(extent, (*whole, (extent // below, d)), radices) for extent in (tile, rest))
    return Cut(spans, (Step(-(-mode.size // tile), tile // below * d, d, n, tile // below),))


@dataclass(frozen=True)
class Footprint:
    """The slots of tiles of one kind, counted from the lowest one: a span along every axis.

    A tile is stored *packed*: its slots in ascending order, without gaps.

    Units: slots.
    """

    spans: tuple[Span, ...]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """How many coordinates there are along each axis."""
        return tuple(span.extent for span in self.spans)

    @cached_property
    def elems(self) -> int:
        """How many slots there are."""
        return math.prod(self.extents)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of all axes, with their strides in slots."""
        return tuple(leaf for span in self.spans for leaf in span.leaves)

    @cached_property
    def slots(self) -> Slots:
        """Every slot, ascending."""
        return np.sort(sums(self.leaves))

    @cached_property
    def merged(self) -> tuple[Leaf, ...]:
        """The fewest leaves, by stride, that reach the same slots as often; so equal ones mean equal slots."""
        merged: list[Leaf] = []
        for d, n in sorted((d, n) for n, d in self.leaves if n > 1):
            if merged and math.prod(merged[-1]) == d:
                merged[-1] = (merged[-1][0] * n, merged[-1][1])
            else:
                merged.append((n, d))
        return tuple(merged)

    @cached_property
    def packed_strides(self) -> tuple[int, ...]:
        """The strides of the same leaves inside a packed tile."""
        strides, step = [0] * len(self.leaves), 1
        for k in sorted(range(len(self.leaves)), key=lambda k: self.leaves[k][1]):
            extent = self.leaves[k][0]
            if extent > 1:
                strides[k] = step
                step *= extent
        return tuple(strides)

    @cached_property
    def run_elems(self) -> int:
        """How many consecutive slots begin every run; all of them when the tile is contiguous."""
        run = 1
        for stride, extent in sorted((d, n) for n, d in self.leaves if n > 1):
            if stride != run:
                break
            run *= extent
        return run

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether the slots are consecutive, so that one run reads them."""
        return self.run_elems == self.elems

    @cached_property
    def run_offsets(self) -> Slots:
        """The first slot of every run, ascending."""
        return sums(sorted(((n, d) for n, d in self.leaves if d >= self.run_elems), key=lambda leaf: leaf[1]))

    @cached_property
    def _digits(self) -> tuple[tuple[int, int, int], ...]:
        radices = (radix for span in self.spans for radix in span.radices)
        return tuple(
            (d, radix, packed)
            for (n, d), radix, packed in zip(self.leaves, radices, self.packed_strides, strict=True)
            if n > 1
        )

    def places(self, offsets: Slots) -> Slots:
        """Where slots that lie `offsets` above the lowest one stand in the packed tile."""
        # A dense layout is a mixed-radix number: every leaf is one digit of the slot, or the lower part of one.
        return sum((offsets // d % radix * packed for d, radix, packed in self._digits), start=np.zeros_like(offsets))

    def places_add_up(self, leaves: Sequence[Leaf]) -> bool:
        """Whether it is sure that the place of a sum of steps along `leaves` is the sum of the places of the steps.

        It is where every leaf steps within one digit of the slot, and those in the same digit never carry.
        """
        left = [n - 1 for n, _ in self.merged]
        strides = [d for _, d in self.merged]
        for n, d in leaves:
            if n == 1:
                continue
            digit = bisect_right(strides, d) - 1
            if digit < 0 or d % strides[digit]:
                return False
            left[digit] -= (n - 1) * (d // strides[digit])
        return all(steps >= 0 for steps in left)


def footprints_of(cuts: Sequence[Cut]) -> tuple[Footprint, ...]:
    """One for each kind of tile, the first axis fastest."""
    return tuple(Footprint(spans[::-1]) for spans in product(*(axis.spans for axis in reversed(cuts))))


def sums(leaves: Sequence[Leaf]) -> Slots:
    """The slot of every ordinal of the leaves, first leaf fastest."""
    return outer_sum([np.arange(n, dtype=np.int64) * d for n, d in leaves])


def outer_sum(parts: Sequence[Slots]) -> Slots:
    """All sums of one entry from each part, the first part fastest."""
    total = np.zeros(1, dtype=np.int64)
    for part in parts:
        total = (part[:, None] + total[None, :]).reshape(-1)
    return total
