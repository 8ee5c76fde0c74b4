"""The geometry of tiles against a table of every coordinate and its slot."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strideweave import CPU, Layout, Shape, Stride, Tensor, TiledEvictable, TileSelection
from strideweave.carriers.tiled_evictable.geometry import Geometry
from support.scripted_carrier import ScriptedCarrier

Coordinate = tuple[int, ...]


# -- the oracle ------------------------------------------------------------------------------------------------------


def axis_slots(mode: Layout) -> list[int]:
    """The slot of every ordinal of one mode, by counting through its leaves, first leaf fastest."""
    leaves = mode.leaves()
    return [
        sum(c * d for c, (_, d) in zip(reversed(digits), leaves, strict=True))
        for digits in itertools.product(*(range(n) for n, _ in reversed(leaves)))
    ]


def slot_table(layout: Layout) -> np.ndarray:
    """The slot of every logical coordinate: one dim per mode."""
    table = np.zeros((1,) * len(layout), dtype=np.int64)
    for k in range(len(layout)):
        shape = [1] * len(layout)
        shape[k] = -1
        table = table + np.array(axis_slots(layout[k])).reshape(shape)
    return table


def block(table: np.ndarray, tile: Coordinate, tile_shape: tuple[int, ...]) -> np.ndarray:
    return table[tuple(slice(c * t, (c + 1) * t) for c, t in zip(tile, tile_shape, strict=True))]


def grid(grid_shape: tuple[int, ...]) -> list[Coordinate]:
    """Every tile, first axis fastest."""
    return [c[::-1] for c in itertools.product(*(range(n) for n in grid_shape[::-1]))]


def footprints(layout: Layout, grid_shape: tuple[int, ...], tile_shape: tuple[int, ...]) -> list[list[int]]:
    table = slot_table(layout)
    return [sorted(block(table, c, tile_shape).ravel().tolist()) for c in grid(grid_shape)]


def is_compatible(geometry: Geometry, offset: int, layout: Layout) -> bool:
    """The seed's rule, word for word, over every tile."""
    if tuple(layout[k].size for k in range(len(layout))) != geometry.logical_shape:
        return False
    reached = footprints(layout, geometry.grid_shape, geometry.tile_shape)
    owned = footprints(geometry.layout, geometry.grid_shape, geometry.tile_shape)
    return [[offset + s for s in slots] for slots in reached] == owned


# -- strategies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leafy:
    """An axis as leaves: `inner` multiply to the tile, `outer` to the grid."""

    inner: tuple[int, ...]
    outer: tuple[int, ...]


factors = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
axes = st.lists(st.builds(Leafy, inner=factors, outer=factors), min_size=1, max_size=3).filter(
    lambda drawn: math.prod(math.prod(a.inner) * math.prod(a.outer) for a in drawn) <= 400
)


def layout_of(modes: list[list[tuple[int, int]]]) -> Layout:
    """The layout with these leaves (extent, stride) in each mode."""
    return Layout.make_layout(
        *(
            Layout.leaf(*leaves[0])
            if len(leaves) == 1
            else Layout(Shape(*(n for n, _ in leaves)), Stride(*(d for _, d in leaves)))
            for leaves in modes
        )
    )


def by_mode(axes: list[Leafy], strides: list[int]) -> list[list[tuple[int, int]]]:
    left = iter(strides)
    return [[(n, next(left)) for n in (*axis.inner, *axis.outer)] for axis in axes]


def dense_layout(axes: list[Leafy], order: list[int]) -> Layout:
    """A layout whose leaves get their strides in this order: always a bijection."""
    extents = [n for axis in axes for n in (*axis.inner, *axis.outer)]
    strides, step = [0] * len(extents), 1
    for k in order:
        strides[k] = step
        step *= extents[k]
    return layout_of(by_mode(axes, strides))


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Geometry, list[Leafy], list[int]]:
    drawn = draw(axes)
    leaves = sum(len(a.inner) + len(a.outer) for a in drawn)
    kind = draw(st.sampled_from(["column", "row", "any"]))
    order = list(range(leaves))
    if kind == "row":
        order.reverse()
    elif kind == "any":
        order = draw(st.permutations(order))
    layout = dense_layout(drawn, order)
    grid_shape = tuple(math.prod(a.outer) for a in drawn)
    tile_shape = tuple(math.prod(a.inner) for a in drawn)
    return Geometry.make(grid_shape, tile_shape, layout), drawn, order


# -- places ----------------------------------------------------------------------------------------------------------


@given(geometries())
def test_geometry_tiles_partition_the_extent_at_their_base(drawn: tuple[Geometry, list[Leafy], list[int]]) -> None:
    geometry, *_ = drawn
    expected = footprints(geometry.layout, geometry.grid_shape, geometry.tile_shape)
    assert sorted(itertools.chain(*expected)) == list(range(geometry.extent))
    for ordinal, coordinate in enumerate(grid(geometry.grid_shape)):
        assert geometry.coordinate(ordinal) == coordinate
        assert geometry.ordinal(coordinate) == ordinal
        assert geometry.base(ordinal) == expected[ordinal][0]


@given(geometries())
def test_geometry_runs_cover_each_footprint_exactly(drawn: tuple[Geometry, list[Leafy], list[int]]) -> None:
    geometry, *_ = drawn
    expected = footprints(geometry.layout, geometry.grid_shape, geometry.tile_shape)
    for ordinal, slots in enumerate(expected):
        starts = geometry.run_starts(ordinal)
        assert starts == sorted(starts)
        footprint = geometry.footprint(ordinal)
        assert [s + k for s in starts for k in range(footprint.run_elems)] == slots
        assert footprint.is_contiguous == (slots[-1] - slots[0] + 1 == len(slots))


@given(geometries())
def test_geometry_locates_every_slot_in_ascending_packed_order(
    drawn: tuple[Geometry, list[Leafy], list[int]],
) -> None:
    geometry, *_ = drawn
    expected = footprints(geometry.layout, geometry.grid_shape, geometry.tile_shape)
    where = {slot: (tile, place) for tile, slots in enumerate(expected) for place, slot in enumerate(slots)}
    assert {slot: geometry.locate(slot) for slot in range(geometry.extent)} == where


def gathered(geometry: Geometry, layout: Layout, flat: torch.Tensor, packed: list[torch.Tensor]) -> None:
    """The box and the order of a compatible layout both give every tile's logical values."""
    table = slot_table(layout)
    for ordinal, coordinate in enumerate(grid(geometry.grid_shape)):
        wanted = flat.numpy()[block(table, coordinate, geometry.tile_shape)].ravel(order="F").tolist()
        order = geometry.order(ordinal, 0, layout)
        box = geometry.box(layout, ordinal)
        assert packed[ordinal][torch.from_numpy(order)].tolist() == wanted
        if box is None:
            continue
        extents = geometry.extents_of(ordinal)
        dense = torch.full((math.prod(extents),), -1.0)
        strides = box.strides_in([math.prod(extents[:k]) for k in range(len(extents))])
        dense.as_strided(box.extents, strides).copy_(packed[ordinal].as_strided(box.extents, box.packed))
        assert dense.tolist() == wanted
        dense.fill_(-1.0)
        in_place = flat.as_strided(box.extents, box.slots, geometry.base(ordinal))
        dense.as_strided(box.extents, strides).copy_(in_place)
        assert dense.tolist() == wanted


def packed_tiles(geometry: Geometry, flat: torch.Tensor) -> list[torch.Tensor]:
    slots = footprints(geometry.layout, geometry.grid_shape, geometry.tile_shape)
    return [flat[s] for s in slots]


@given(geometries())
def test_geometry_own_layout_gathers_logical_values(drawn: tuple[Geometry, list[Leafy], list[int]]) -> None:
    geometry, *_ = drawn
    flat = torch.arange(float(geometry.extent))
    assert None not in geometry.boxes(geometry.layout)
    gathered(geometry, geometry.layout, flat, packed_tiles(geometry, flat))


@st.composite
def other_layouts(draw: st.DrawFn) -> tuple[Geometry, int, Layout]:
    """A geometry with a layout that is often compatible: strides swapped within the tile, or anywhere, or broken."""
    geometry, drawn, order = draw(geometries())
    extents = [n for axis in drawn for n in (*axis.inner, *axis.outer)]
    inner = [k for k, is_inner in enumerate(_inner_flags(drawn)) if is_inner]
    kind = draw(st.sampled_from(["within", "anywhere", "alias", "offset", "refactored"]))
    other = list(order)
    if kind == "within":
        # Equal extents may trade strides; contiguous tiles may be reordered at will.
        positions = [p for p, k in enumerate(order) if k in inner]
        for p, k in zip(positions, draw(st.permutations([order[p] for p in positions])), strict=True):
            other[p] = k
    elif kind == "anywhere":
        other = draw(st.permutations(order))
    layout = dense_layout(drawn, other)
    if kind == "refactored":
        # The same modes written as plain leaves, when they are plain: cuts need not fall on leaves of the spelling.
        layout = layout_of([_merged(layout[k]) for k in range(len(layout))])
    if kind == "alias":
        wide = [k for k, n in enumerate(extents) if n > 1]
        if wide:
            gone = draw(st.sampled_from(wide))
            layout = layout_of(by_mode(drawn, [0 if k == gone else d for k, (_, d) in enumerate(layout.leaves())]))
    return geometry, draw(st.integers(0, 3)) if kind == "offset" else 0, layout


def _inner_flags(drawn: list[Leafy]) -> list[bool]:
    return [flag for axis in drawn for flag in (*(True for _ in axis.inner), *(False for _ in axis.outer))]


def _merged(mode: Layout) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for n, d in mode.leaves():
        if merged and merged[-1][0] * merged[-1][1] == d:
            merged[-1] = (merged[-1][0] * n, merged[-1][1])
        else:
            merged.append((n, d))
    return merged


@given(other_layouts())
def test_geometry_accepts_exactly_the_footprint_compatible_layouts(drawn: tuple[Geometry, int, Layout]) -> None:
    geometry, offset, layout = drawn
    if not is_compatible(geometry, offset, layout):
        with pytest.raises(ValueError):
            geometry.require_compatible(offset, layout)
        return
    geometry.require_compatible(offset, layout)
    flat = torch.arange(float(geometry.extent))
    gathered(geometry, layout, flat, packed_tiles(geometry, flat))


@given(st.data())
def test_geometry_any_strides_are_judged_as_the_rule_says(data: st.DataObject) -> None:
    """Small modes with arbitrary strides, where most are wrong in some way."""
    grid_shape, tile_shape = data.draw(
        st.sampled_from([((2, 2), (2, 2)), ((2,), (4,)), ((3, 1), (2, 2)), ((1, 2), (2, 3))])
    )
    geometry = Geometry.make(grid_shape, tile_shape)
    shapes = {2: [(2,)], 3: [(3,)], 4: [(4,), (2, 2)], 6: [(6,), (2, 3), (3, 2)], 8: [(8,), (2, 2, 2), (4, 2)]}
    shape = [data.draw(st.sampled_from(shapes[n])) for n in geometry.logical_shape]
    strides = st.sampled_from([0, 1, 2, 3, 4, 6, 8])
    layout = layout_of([[(n, data.draw(strides)) for n in mode] for mode in shape])
    offset = data.draw(st.sampled_from([0, 0, 0, 1]))
    try:
        geometry.require_compatible(offset, layout)
    except ValueError:
        assert not is_compatible(geometry, offset, layout)
    else:
        assert is_compatible(geometry, offset, layout)
        flat = torch.arange(float(geometry.extent))
        gathered(geometry, layout, flat, packed_tiles(geometry, flat))


@given(other_layouts(), st.data())
def test_project_of_any_compatible_layout_equals_numpy_indexing(
    drawn: tuple[Geometry, int, Layout], data: st.DataObject
) -> None:
    geometry, offset, layout = drawn
    if offset or not is_compatible(geometry, offset, layout):
        layout = geometry.layout
    project_equals_numpy_indexing(geometry, layout, data)


def project_equals_numpy_indexing(geometry: Geometry, layout: Layout, data: st.DataObject) -> None:
    flat = torch.arange(float(geometry.extent))
    in_primary = data.draw(st.booleans())
    budget = None if in_primary else 4 * geometry.tile_elems * data.draw(st.integers(1, geometry.tiles))
    carrier = TiledEvictable(
        CPU.wrap(flat.clone()) if in_primary else CPU(0),
        ScriptedCarrier() if in_primary else ScriptedCarrier(flat),
        geometry.grid_shape,
        geometry.tile_shape,
        shape=geometry.logical_shape,
        layout=geometry.layout,
        budget=budget,
    )
    chosen = [
        data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)) for n in geometry.grid_shape
    ]
    compact = carrier.project(Tensor(carrier, 0, layout), TileSelection(chosen)).wait()
    rows = [
        [k for c in axis for k in range(c * t, min(c * t + t, n))]
        for axis, t, n in zip(chosen, geometry.tile_shape, geometry.logical_shape, strict=True)
    ]
    expected = flat.numpy()[slot_table(layout)][np.ix_(*rows)]
    assert compact.torch().shape == expected.shape
    assert np.array_equal(compact.torch().numpy(), expected)
    assert compact.layout.cosize == compact.layout.size
    assert compact.layout.is_injective
    carrier.release()


# -- the five layouts of the seed's scenarios ------------------------------------------------------------------------

TWO_BY_TWO = Geometry.make((2, 2), (2, 2))


def test_compatibility_within_tile_permutation_is_accepted() -> None:
    layout = Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8)))
    assert is_compatible(TWO_BY_TWO, 0, layout)
    TWO_BY_TWO.require_compatible(0, layout)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(Layout(Shape((2, 2), (2, 2)), Stride((1, 2), (8, 4))), id="spans"),
        pytest.param(Layout(Shape(4, 4), Stride(4, 1)), id="remaps"),
        pytest.param(Layout(Shape(4, 4), Stride(1, 0)), id="aliases"),
        pytest.param(Layout(Shape((2, 2), (2, 2)), Stride((1, 8), (2, 4))), id="omits"),
    ],
)
def test_compatibility_wrong_footprint_is_refused(layout: Layout) -> None:
    assert not is_compatible(TWO_BY_TWO, 0, layout)
    with pytest.raises(ValueError, match="tile footprints"):
        TWO_BY_TWO.require_compatible(0, layout)


def test_compatibility_other_extent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes \(2, 8\)"):
        TWO_BY_TWO.require_compatible(0, Layout.column_major(2, 8))
    with pytest.raises(ValueError, match=r"sizes \(16,\)"):
        TWO_BY_TWO.require_compatible(0, Layout.column_major(16))


def test_compatibility_offset_is_part_of_the_footprint() -> None:
    with pytest.raises(ValueError, match="at offset 1"):
        TWO_BY_TWO.require_compatible(1, Layout.column_major(4, 4))


# -- making one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid_shape", "tile_shape", "error", "words"),
    [
        (5, (2,), TypeError, "grid_shape .* finite iterable"),
        ((2,), "ab", TypeError, "tile_shape .* finite iterable"),
        ((), (), ValueError, "empty grid_shape"),
        ((2,), (), ValueError, "empty tile_shape"),
        ((2.0,), (2,), TypeError, "integers"),
        ((True,), (2,), TypeError, "integers"),
        ((2,), (0,), ValueError, "positive"),
        ((-1,), (2,), ValueError, "positive"),
        ((2, 2), (2,), ValueError, "ranks"),
    ],
)
def test_geometry_bad_extents_are_refused(
    grid_shape: object, tile_shape: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Geometry.make(grid_shape, tile_shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout.column_major(4, 2), "grid times tile"),
        (Layout(Shape(4, 4), Stride(1, 5)), "exactly one coordinate"),
        (Layout(Shape(4, 4), Stride(1, 0)), "exactly one coordinate"),
    ],
)
def test_geometry_layout_that_is_no_bijection_is_refused(layout: Layout, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Geometry.make((2, 2), (2, 2), layout)


def test_geometry_layout_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a Layout"):
        Geometry.make((2,), (2,), (4,))  # type: ignore[arg-type]


def test_geometry_layout_whose_leaves_the_tiles_cut_is_refused() -> None:
    with pytest.raises(ValueError):
        Geometry.make((3,), (2,), layout_of([[(3, 2), (2, 1)]]))
