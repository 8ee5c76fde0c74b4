"""Where every tile lies: the canonical slot layout of a carrier, divided once by the shape of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import mul
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from strideweave.carriers.tiled_evictable.selection import Coordinate
from strideweave.layout import Layout, Shape, Stride, zipped_divide

Leaf: TypeAlias = tuple[int, int]
Slots: TypeAlias = npt.NDArray[np.int64]

_CACHED_LAYOUTS = 64


@dataclass(frozen=True)
class Geometry:
    """The tiles of a flat extent: `grid_shape` tiles of `tile_shape` each, placed by `layout`.

    The layout is divided by the tile once. The part within a tile is the same for every tile (the *footprint*);
    the rest says at which slot a tile begins (its *base*). A tile is stored *packed*: its slots in ascending
    order, without gaps.

    Units: slots. Errors (from `Geometry.make`): TypeError, ValueError.
    Source: seed 000, "TiledEvictable owns one flat logical storage extent".
    """

    grid_shape: tuple[int, ...]
    tile_shape: tuple[int, ...]
    layout: Layout
    """Canonical slot layout of the full logical shape: a bijection onto 0 .. extent - 1."""
    inner: tuple[tuple[Leaf, ...], ...]
    """Per axis, the leaves (extent, stride) within a tile, first leaf fastest."""
    outer: tuple[tuple[Leaf, ...], ...]
    """Per axis, the leaves (extent, stride) over the tiles."""

    @classmethod
    def make(cls, grid_shape: Iterable[int], tile_shape: Iterable[int], layout: Layout | None = None) -> Geometry:
        """The geometry of a grid of tiles; the default layout is dense with the first mode fastest."""
        grid = _extents(grid_shape, "grid_shape")
        tile = _extents(tile_shape, "tile_shape")
        if len(grid) != len(tile):
            raise ValueError(
                f"cannot tile with grid_shape {grid} and tile_shape {tile}: their ranks are {len(grid)} and "
                f"{len(tile)}. The ranks must be equal. Give one tile extent per grid axis."
            )
        logical = tuple(map(mul, grid, tile))
        if layout is None:
            layout = Layout.column_major(*logical)
        elif not isinstance(layout, Layout):
            raise TypeError(f"cannot tile with layout {layout!r}: it must be a Layout. Pass one, or leave it out.")
        _require_sizes(layout, logical)
        if layout.cosize != layout.size or not layout.is_injective:
            raise ValueError(
                f"cannot tile with {layout!r}: it reaches {layout.cosize} slots for {layout.size} coordinates. The "
                "slot layout must give every slot exactly one coordinate. Use a dense layout."
            )
        divided = _divide(layout, tile)
        return cls(grid, tile, layout, *divided)

    @cached_property
    def logical_shape(self) -> tuple[int, ...]:
        """Grid times tile, per axis."""
        return tuple(map(mul, self.grid_shape, self.tile_shape))

    @cached_property
    def tiles(self) -> int:
        """How many tiles there are."""
        return math.prod(self.grid_shape)

    @cached_property
    def tile_elems(self) -> int:
        """How many slots a tile has."""
        return math.prod(self.tile_shape)

    @cached_property
    def extent(self) -> int:
        """How many slots there are in all."""
        return self.tiles * self.tile_elems

    # -- tiles ---------------------------------------------------------------------------------------------------

    def ordinal(self, coordinate: Coordinate) -> int:
        """The number of a tile, first axis fastest."""
        return sum(map(mul, coordinate, self._grid_steps))

    def coordinate(self, ordinal: int) -> Coordinate:
        """The coordinate of a tile number."""
        return tuple(ordinal // step % extent for step, extent in zip(self._grid_steps, self.grid_shape, strict=True))

    def extents_of(self, ordinal: int) -> tuple[int, ...]:
        """How many coordinates a tile has along each axis."""
        return self.tile_shape

    def origin_of(self, ordinal: int) -> tuple[int, ...]:
        """The logical coordinate at which a tile begins."""
        return tuple(map(mul, self.coordinate(ordinal), self.tile_shape))

    def base(self, ordinal: int) -> int:
        """The lowest slot of a tile."""
        return sum(int(bases[c]) for bases, c in zip(self._axis_bases, self.coordinate(ordinal), strict=True))

    @cached_property
    def _grid_steps(self) -> tuple[int, ...]:
        return tuple(accumulate((1, *self.grid_shape[:-1]), mul))

    @cached_property
    def _axis_bases(self) -> tuple[Slots, ...]:
        return tuple(_sums(leaves) for leaves in self.outer)

    # -- footprint -----------------------------------------------------------------------------------------------

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves within a tile, all axes, with their strides in slots."""
        return tuple(leaf for axis in self.inner for leaf in axis)

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
        """How many consecutive slots begin every run of a tile; all of them when a tile is contiguous."""
        run = 1
        for stride, extent in sorted((d, n) for n, d in self.leaves if n > 1):
            if stride != run:
                break
            run *= extent
        return run

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether a tile's slots are consecutive, so that one run reads it."""
        return self.run_elems == self.tile_elems

    def run_starts(self, ordinal: int) -> list[int]:
        """The first slot of every run of a tile, ascending."""
        starts: list[int] = (self._run_offsets + self.base(ordinal)).tolist()
        return starts

    @cached_property
    def _run_offsets(self) -> Slots:
        return _sums(sorted(((n, d) for n, d in self.leaves if d >= self.run_elems), key=lambda leaf: leaf[1]))

    def places(self, offsets: Slots) -> Slots:
        """Where slots that lie `offsets` above a tile's base stand in the packed tile."""
        # A dense layout is a mixed-radix number: every leaf is one digit of the slot.
        return sum(
            (
                offsets // d % n * packed
                for (n, d), packed in zip(self.leaves, self.packed_strides, strict=True)
                if n > 1
            ),
            start=np.zeros_like(offsets),
        )

    def locate(self, slot: int) -> tuple[int, int]:
        """The tile that owns a slot, and the slot's place in the packed tile."""
        ordinal = 0
        for step, leaves in zip(self._grid_steps, self.outer, strict=True):
            for n, d in leaves:
                if n > 1:
                    ordinal += slot // d % n * step
                step *= n
        return ordinal, int(self.places(np.array([slot - self.base(ordinal)]))[0])

    # -- tensors over the extent -----------------------------------------------------------------------------------

    def require_compatible(self, offset: int, layout: Layout) -> None:
        """Raise ValueError unless every logical tile reaches exactly the footprint of the carrier's tile.

        Source: seed 000, "Tensor Layout compatibility preserves exact carrier tile footprints".
        """
        if offset == 0 and layout == self.layout:
            return
        reason = _incompatibility(self, offset, layout)
        if reason is not None:
            raise ValueError(
                f"cannot use a Tensor of {layout!r} at offset {offset}: {reason}. Every logical tile must reach "
                f"exactly the slots of the same carrier tile (tile footprints of grid {self.grid_shape}, tile "
                f"{self.tile_shape}), each once. Use the carrier's layout, or one that only permutes within tiles."
            )

    def box(self, layout: Layout) -> TileBox | None:
        """A tile of a compatible Tensor as a strided box; None when only `order` can say it."""
        return _box(self, layout)

    def order(self, ordinal: int, offset: int, layout: Layout) -> Slots:
        """The packed place of every value of a tile, in logical order (first axis fastest)."""
        axes = [_sums(layout[k].leaves()) for k in range(len(self.tile_shape))]
        within = [
            axis[c * t : (c + 1) * t]
            for axis, c, t in zip(axes, self.coordinate(ordinal), self.tile_shape, strict=True)
        ]
        return self.places(_outer_sum(within) + (offset - self.base(ordinal)))


@dataclass(frozen=True, slots=True)
class TileBox:
    """The values of a tile as nested steps: one leaf per entry, first axis first and its first leaf fastest."""

    extents: tuple[int, ...]
    axes: tuple[int, ...]
    """The axis that each leaf belongs to."""
    steps: tuple[int, ...]
    """How far each leaf moves the logical coordinate of its axis."""
    slots: tuple[int, ...]
    """Strides where the tile lies in the flat extent."""
    packed: tuple[int, ...]
    """Strides where the tile lies packed."""

    def strides_in(self, axis_strides: Sequence[int]) -> tuple[int, ...]:
        """Strides of the same box inside a dense tensor whose axes have these strides."""
        return tuple(axis_strides[a] * step for a, step in zip(self.axes, self.steps, strict=True))


@lru_cache(maxsize=_CACHED_LAYOUTS)
def _box(geometry: Geometry, layout: Layout) -> TileBox | None:
    own = layout == geometry.layout
    try:
        inner = geometry.inner if own else _divide(layout, geometry.tile_shape)[0]
    except ValueError:
        return None
    leaves = [(n, d, axis, step) for axis, axis_leaves in enumerate(inner) for n, d, step in _stepped(axis_leaves)]
    extents = tuple(n for n, *_ in leaves)
    slots = tuple(d for _, d, *_ in leaves)
    if own:
        packed = geometry.packed_strides
    else:
        packed = tuple(geometry.places(np.array(slots, dtype=np.int64)).tolist())
        wanted = geometry.places(_sums(list(zip(extents, slots, strict=True))))
        if not np.array_equal(_sums(list(zip(extents, packed, strict=True))), wanted):
            return None
    return TileBox(extents, tuple(a for *_, a, _ in leaves), tuple(s for *_, s in leaves), slots, packed)


@lru_cache(maxsize=_CACHED_LAYOUTS)
def _incompatibility(geometry: Geometry, offset: int, layout: Layout) -> str | None:
    """Why a Tensor over this extent is not tile-footprint compatible; None when it is."""
    sizes = tuple(layout[k].size for k in range(len(layout)))
    if sizes != geometry.logical_shape:
        return f"its modes have sizes {sizes} and the carrier's axes {geometry.logical_shape}"
    axes = [_sums(layout[k].leaves()).reshape(-1, t) for k, t in enumerate(geometry.tile_shape)]
    footprint = np.sort(_sums(geometry.leaves))
    bases = _outer_sum(geometry._axis_bases)
    if all(bool(np.all(axis - axis[:, :1] == axis[0] - axis[0, 0])) for axis in axes):
        # Every tile has the same shape in the extent, so one comparison stands for all of them.
        reached = np.sort(_outer_sum([axis[0] - axis[0, 0] for axis in axes]))
        starts = _outer_sum([axis[:, 0] for axis in axes]) + offset
        if not np.array_equal(reached, footprint):
            return _difference(geometry, 0, reached + starts[0], footprint + bases[0])
        wrong = np.flatnonzero(starts != bases)
        if wrong.size:
            tile = int(wrong[0])
            return _difference(geometry, tile, reached + starts[tile], footprint + bases[tile])
        return None
    for tile in range(geometry.tiles):
        rows = [axis[c] for axis, c in zip(axes, geometry.coordinate(tile), strict=True)]
        reached = np.sort(_outer_sum(rows)) + offset
        if not np.array_equal(reached, footprint + bases[tile]):
            return _difference(geometry, tile, reached, footprint + bases[tile])
    return None


def _difference(geometry: Geometry, tile: int, reached: Slots, expected: Slots) -> str:
    return (
        f"logical tile {geometry.coordinate(tile)} reaches {len(np.unique(reached))} slots in {reached[0]} .. "
        f"{reached[-1]} and the carrier's tile has {len(expected)} in {expected[0]} .. {expected[-1]}"
    )


def _divide(
    layout: Layout, tile_shape: tuple[int, ...]
) -> tuple[tuple[tuple[Leaf, ...], ...], tuple[tuple[Leaf, ...], ...]]:
    """Per axis, the leaves within a tile and the leaves over the tiles."""
    parts = zipped_divide(layout, [Layout(Shape(t), Stride(1)) for t in tile_shape])
    tile, rest = parts[0], parts[1]
    return tuple(tile[k].leaves() for k in range(len(tile_shape))), tuple(
        rest[k].leaves() for k in range(len(tile_shape))
    )


def _stepped(leaves: Iterable[Leaf]) -> list[tuple[int, int, int]]:
    """Every leaf with how far it moves the coordinate of its axis."""
    out, step = [], 1
    for n, d in leaves:
        out.append((n, d, step))
        step *= n
    return out


def _sums(leaves: Sequence[Leaf]) -> Slots:
    """The slot of every ordinal of the leaves, first leaf fastest."""
    return _outer_sum([np.arange(n, dtype=np.int64) * d for n, d in leaves])


def _outer_sum(parts: Sequence[Slots]) -> Slots:
    """All sums of one entry from each part, the first part fastest."""
    total = np.zeros(1, dtype=np.int64)
    for part in parts:
        total = (part[:, None] + total[None, :]).reshape(-1)
    return total


def _extents(values: Iterable[int], name: str) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"cannot read {name} from {values!r}: it must be a finite iterable. Pass a tuple of ints.")
    extents = tuple(values)
    if not extents:
        raise ValueError(f"cannot tile with an empty {name}: a grid has at least one axis. Name its extents.")
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise TypeError(f"cannot use {extent!r} in {name}: extents must be integers. Pass ints.")
        if extent < 1:
            raise ValueError(f"cannot use {extent} in {name}: extents must be positive. Pass 1 or more.")
    return extents


def _require_sizes(layout: Layout, logical: tuple[int, ...]) -> None:
    sizes = tuple(layout[k].size for k in range(len(layout)))
    if sizes != logical:
        raise ValueError(
            f"cannot tile with {layout!r}: its modes have sizes {sizes} and grid times tile is {logical}. They must "
            "be equal. Pass a Layout of the full logical shape."
        )
