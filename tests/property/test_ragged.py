"""Tiles that end where the shape does, against numpy slicing and a table of every slot."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from property.test_geometry import (
    Leafy,
    dense_layout,
    footprints,
    gathered,
    grid,
    is_compatible,
    layout_of,
    packed_tiles,
    project_equals_numpy_indexing,
    slot_table,
)
from property.test_tiled_autograd import (
    Case,
    Drawn,
    cases,
    check_order_and_boxes,
    check_program,
    check_tiles_as_modes,
    layouts,
)
from strideweave import Layout
from strideweave.carriers.tiled_evictable.geometry import Geometry

# An axis: leaves that every tile has whole, the last leaf, and how much of that one a tile has.
axes = st.tuples(st.lists(st.integers(1, 3), max_size=2).map(tuple), st.integers(1, 7), st.integers(1, 8))


@st.composite
def ragged_geometries(draw: st.DrawFn) -> Drawn:
    drawn = draw(
        st.lists(axes, min_size=1, max_size=3).filter(
            lambda axes: (
                math.prod(math.prod(whole) * last for whole, last, _ in axes) <= 300
                and any(last % part for _, last, part in axes)
            )
        )
    )
    leafy = [Leafy(whole, (last,)) for whole, last, _ in drawn]
    leaves = sum(len(a.inner) + 1 for a in leafy)
    kind = draw(st.sampled_from(["column", "row", "any"]))
    order = list(range(leaves))
    if kind == "row":
        order.reverse()
    elif kind == "any":
        order = draw(st.permutations(order))
    shape = [math.prod(whole) * last for whole, last, _ in drawn]
    tile = [math.prod(whole) * part for whole, _, part in drawn]
    grid_shape = [-(-n // t) for n, t in zip(shape, tile, strict=True)]
    return Geometry.make(grid_shape, tile, dense_layout(leafy, order), shape), leafy, order


def blocks(geometry: Geometry) -> list[np.ndarray]:
    """What numpy slicing gives for every tile of an array of the logical shape."""
    every = np.indices(geometry.logical_shape)
    return [
        every[(slice(None), *(slice(c * t, c * t + t) for c, t in zip(tile, geometry.tile_shape, strict=True)))]
        for tile in grid(geometry.grid_shape)
    ]


@given(ragged_geometries())
def test_ragged_tiles_are_the_blocks_of_numpy_slicing(drawn: Drawn) -> None:
    geometry, *_ = drawn
    assert geometry.is_ragged
    assert len(geometry.footprints) <= 2 ** len(geometry.grid_shape)
    assert len({geometry.kind_of(k) for k in range(geometry.tiles)}) == len(geometry.footprints)
    start = 0
    for ordinal, block in enumerate(blocks(geometry)):
        assert geometry.extents_of(ordinal) == block.shape[1:]
        assert geometry.origin_of(ordinal) == tuple(block.reshape(len(block), -1)[:, 0])
        assert geometry.elems_of(ordinal) == block[0].size
        assert geometry.packed_start(ordinal) == start
        start += block[0].size
    assert start == geometry.extent == math.prod(geometry.logical_shape)


@given(ragged_geometries())
def test_ragged_footprints_equal_a_table_of_every_slot(drawn: Drawn) -> None:
    geometry, *_ = drawn
    expected = footprints(geometry.layout, geometry.grid_shape, geometry.tile_shape)
    assert sorted(itertools.chain(*expected)) == list(range(geometry.extent))
    where = {}
    for ordinal, slots in enumerate(expected):
        footprint, base = geometry.footprint(ordinal), geometry.base(ordinal)
        assert geometry.ordinal(geometry.coordinate(ordinal)) == ordinal
        assert (footprint.slots + base).tolist() == slots
        assert [s + k for s in geometry.run_starts(ordinal) for k in range(footprint.run_elems)] == slots
        assert footprint.is_contiguous == (slots[-1] - slots[0] + 1 == len(slots))
        where.update({slot: (ordinal, place) for place, slot in enumerate(slots)})
    assert {slot: geometry.locate(slot) for slot in range(geometry.extent)} == where


@given(ragged_geometries().flatmap(lambda drawn: layouts(st.just(drawn))))
def test_ragged_compatible_layouts_gather_their_logical_values(drawn: tuple[Geometry, Layout]) -> None:
    geometry, layout = drawn
    assert None not in geometry.boxes(geometry.layout)
    geometry.require_compatible(0, layout)
    flat = torch.arange(float(geometry.extent))
    gathered(geometry, layout, flat, packed_tiles(geometry, flat))


@given(ragged_geometries(), st.data())
def test_ragged_geometry_accepts_exactly_the_footprint_compatible_layouts(drawn: Drawn, data: st.DataObject) -> None:
    geometry, leafy, order = drawn
    layout = dense_layout(leafy, data.draw(st.permutations(order)))
    if data.draw(st.booleans()):
        strides = st.sampled_from([0, 1, 2, 3, 4, 6, 8])
        layout = layout_of([[(n, data.draw(strides)) for n in (*a.inner, *a.outer)] for a in leafy])
    offset = data.draw(st.sampled_from([0, 0, 0, 1]))
    if not is_compatible(geometry, offset, layout):
        with pytest.raises(ValueError, match=r"tile footprints"):
            geometry.require_compatible(offset, layout)
        return
    geometry.require_compatible(offset, layout)
    flat = torch.arange(float(geometry.extent))
    gathered(geometry, layout, flat, packed_tiles(geometry, flat))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 30), st.randoms(use_true_random=False))
def test_geometry_of_any_leaves_and_tile_is_right_or_refused(leaves: list[int], tile: int, random: object) -> None:
    order = list(range(len(leaves)))
    random.shuffle(order)  # type: ignore[attr-defined]
    layout = dense_layout([Leafy(tuple(leaves[:-1]), (leaves[-1],))], order)
    size = math.prod(leaves)
    grid_shape = (-(-size // tile),)
    try:
        geometry = Geometry.make(grid_shape, (tile,), layout, (size,))
    except ValueError as e:
        assert size % tile == 0 or "cut through them" in str(e)  # noqa: PT017  # which it is depends on the tile
        assert len(layout.coalesce().leaves()) > 1
        return
    expected = footprints(layout, grid_shape, (tile,))
    assert [(geometry.footprint(k).slots + geometry.base(k)).tolist() for k in range(geometry.tiles)] == expected


@given(ragged_geometries().flatmap(lambda drawn: layouts(st.just(drawn))), st.data())
def test_project_of_ragged_tiles_equals_numpy_indexing(drawn: tuple[Geometry, Layout], data: st.DataObject) -> None:
    project_equals_numpy_indexing(*drawn, data)


@given(cases(ragged_geometries()), st.data())
def test_gradients_of_any_program_over_ragged_tiles_equal_those_of_dense_torch(case: Case, data: st.DataObject) -> None:
    check_program(case, data)


@given(cases(ragged_geometries()), st.randoms(use_true_random=False))
def test_ragged_tiles_as_modes_are_the_regions_of_the_dense_values(case: Case, random: object) -> None:
    check_tiles_as_modes(case, random)


@given(cases(ragged_geometries()))
def test_ragged_tiles_picked_by_order_are_those_seen_as_boxes(case: Case) -> None:
    check_order_and_boxes(case)


def test_slot_table_of_the_oracle_is_numpys_own() -> None:
    table = slot_table(Layout.row_major(3, 5))
    assert np.array_equal(table, np.arange(15).reshape(3, 5))
