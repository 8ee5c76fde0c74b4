"""What leaves alone say of the slots of a tile, beside a list of all of them."""

from __future__ import annotations

from itertools import product

import numpy as np

from strideweave.carriers.tiled_evictable.footprint import sums
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.layout import Layout

LEAVES = list(product((1, 2, 3, 4), range(1, 13)))
PAIRS = [[one, other] for one, other in product(LEAVES, LEAVES)]


def test_places_that_are_said_to_add_up_do() -> None:
    """Tiles of slots 0 .. 3 and 8 .. 11, and every pair of short leaves."""
    footprint = Geometry.make((2, 2), (4, 2), Layout.column_major(8, 4)).footprints[0]
    assert footprint.slots.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    said = [leaves for leaves in PAIRS if footprint.places_add_up(leaves)]
    assert [(2, 1), (2, 2)] in said
    assert [(2, 8), (4, 1)] in said
    for leaves in said:
        slots = sums(leaves)
        packed = footprint.places(np.array([d for _, d in leaves]))
        added = sums([(n, int(p)) for (n, _), p in zip(leaves, packed, strict=True)])
        assert footprint.places(slots).tolist() == added.tolist(), leaves
        assert set(slots.tolist()) <= set(footprint.slots.tolist()), leaves


def test_footprints_with_the_same_merged_leaves_have_the_same_slots() -> None:
    layouts = [Layout.row_major(8, 8), Layout.column_major(8, 8)]
    seen: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for layout, tile in product(layouts, product((1, 2, 4, 8), (1, 2, 4, 8))):
        footprint = Geometry.make((8 // tile[0], 8 // tile[1]), tile, layout).footprints[0]
        slots = footprint.slots.tolist()
        assert seen.setdefault(footprint.merged, slots) == slots
        assert np.sort(sums(footprint.merged)).tolist() == slots
    assert len(seen) < 32  # some are alike
