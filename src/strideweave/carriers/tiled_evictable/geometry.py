"""Where every tile lies: the canonical slot layout of a carrier, divided once by the shape of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import mul

import numpy as np

from strideweave.carriers.tiled_evictable.boxes import TileBox, boxes_of
from strideweave.carriers.tiled_evictable.compatibility import incompatibility
from strideweave.carriers.tiled_evictable.footprint import Cut, Footprint, Slots, cut, footprints_of, outer_sum, sums
from strideweave.carriers.tiled_evictable.selection import Coordinate
from strideweave.layout import Layout


@dataclass(frozen=True)
class Geometry:
    """The tiles of a flat extent: `grid_shape` tiles of `tile_shape` each, placed by `layout`.

    The layout is divided by the tile once. The part within a tile is the same for every tile of one kind (its
    *footprint*); the rest says at which slot a tile begins (its *base*). Where `logical_shape` is less than grid times
    tile the last tile along that axis is *ragged*, it has the coordinates that are left: so there is one kind of whole
    tiles, and up to two to the number of such axes in all.

    Units: slots. Errors (from `Geometry.make`): TypeError, ValueError.
    Source: seed 000, "TiledEvictable owns one flat logical storage extent".

    >>> g = Geometry.make((2, 1), (2, 3), shape=(3, 3))
    >>> [g.extents_of(k) for k in range(g.tiles)], g.extent
    ([(2, 3), (1, 3)], 9)
    """

    grid_shape: tuple[int, ...]
    tile_shape: tuple[int, ...]
    """The extent of a whole tile along each axis."""
    logical_shape: tuple[int, ...]
    """Grid times tile, per axis, or less by what the last tile lacks."""
    layout: Layout
    """Canonical slot layout of the full logical shape: a bijection onto 0 .. extent - 1."""
    footprints: tuple[Footprint, ...] = field(compare=False, repr=False)
    """One for each kind of tile; the first axis tells the kinds apart fastest."""
    cuts: tuple[Cut, ...] = field(compare=False, repr=False)
    """How each axis falls into tiles."""

    @classmethod
    def make(
        cls,
        grid_shape: Iterable[int],
        tile_shape: Iterable[int],
        layout: Layout | None = None,
        shape: Iterable[int] | None = None,
    ) -> Geometry:
        """The geometry of a grid of tiles; the default layout is dense with the first mode fastest.

        `shape` is the logical shape, grid times tile unless given.
        """
        grid = _extents(grid_shape, "grid_shape")
        tile = _extents(tile_shape, "tile_shape")
        if len(grid) != len(tile):
            raise ValueError(
                f"cannot tile with grid_shape {grid} and tile_shape {tile}: their ranks are {len(grid)} and "
                f"{len(tile)}. The ranks must be equal. Give one tile extent per grid axis."
            )
        logical = tuple(map(mul, grid, tile)) if shape is None else _logical(shape, grid, tile)
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
        try:
            cuts = tuple(cut(layout[k], t) for k, t in enumerate(tile))
        except ValueError as e:
            raise ValueError(
                f"cannot tile with {layout!r} and tile_shape {tile}: {str(e).removesuffix('.')}. Use other tiles, or "
                "another layout."
            ) from e
        return cls(grid, tile, logical, layout, footprints_of(cuts), cuts)

    @cached_property
    def tiles(self) -> int:
        """How many tiles there are."""
        return math.prod(self.grid_shape)

    @cached_property
    def tile_elems(self) -> int:
        """How many slots a whole tile has; the room of every tile."""
        return math.prod(self.tile_shape)

    @cached_property
    def extent(self) -> int:
        """How many slots there are in all."""
        return math.prod(self.logical_shape)

    @cached_property
    def is_ragged(self) -> bool:
        """Whether some tile has fewer slots than a whole one."""
        return self.extent < self.tiles * self.tile_elems

    # -- tiles ---------------------------------------------------------------------------------------------------

    def ordinal(self, coordinate: Coordinate) -> int:
        """The number of a tile, first axis fastest."""
        return sum(map(mul, coordinate, self._grid_steps))

    def coordinate(self, ordinal: int) -> Coordinate:
        """The coordinate of a tile number."""
        return tuple(ordinal // step % extent for step, extent in zip(self._grid_steps, self.grid_shape, strict=True))

    def kind_of(self, ordinal: int) -> int:
        """Which of `footprints` a tile has."""
        return self._kinds[ordinal] if len(self.footprints) > 1 else 0

    def footprint(self, ordinal: int) -> Footprint:
        """The slots of a tile, counted from its base."""
        return self.footprints[self.kind_of(ordinal)]

    def elems_of(self, ordinal: int) -> int:
        """How many slots a tile has."""
        return self.footprints[self.kind_of(ordinal)].elems

    def extents_of(self, ordinal: int) -> tuple[int, ...]:
        """How many coordinates a tile has along each axis."""
        return self.footprints[self.kind_of(ordinal)].extents

    def origin_of(self, ordinal: int) -> tuple[int, ...]:
        """The logical coordinate at which a tile begins."""
        return tuple(map(mul, self.coordinate(ordinal), self.tile_shape))

    def base(self, ordinal: int) -> int:
        """The lowest slot of a tile."""
        return sum(int(bases[c]) for bases, c in zip(self._axis_bases, self.coordinate(ordinal), strict=True))

    def packed_start(self, ordinal: int) -> int:
        """Where a tile begins when all of them lie packed, one after the other."""
        return self._packed_starts[ordinal] if len(self.footprints) > 1 else ordinal * self.footprints[0].elems

    @property
    def bases(self) -> Slots:
        """The lowest slot of every tile."""
        return outer_sum(self._axis_bases)

    @cached_property
    def _grid_steps(self) -> tuple[int, ...]:
        return tuple(accumulate((1, *self.grid_shape[:-1]), mul))

    @cached_property
    def _axis_bases(self) -> tuple[Slots, ...]:
        return tuple(axis.bases for axis in self.cuts)

    @cached_property
    def _kinds(self) -> list[int]:
        parts, step = [], 1
        for axis, tiles in zip(self.cuts, self.grid_shape, strict=True):
            part = np.zeros(tiles, dtype=np.int64)
            if len(axis.spans) > 1:
                part[-1] = step
                step *= 2
            parts.append(part)
        kinds: list[int] = outer_sum(parts).tolist()
        return kinds

    @cached_property
    def _packed_starts(self) -> list[int]:
        elems = np.array([footprint.elems for footprint in self.footprints])[self._kinds]
        starts: list[int] = (np.cumsum(elems) - elems).tolist()
        return starts

    def run_starts(self, ordinal: int) -> list[int]:
        """The first slot of every run of a tile, ascending."""
        starts: list[int] = (self.footprint(ordinal).run_offsets + self.base(ordinal)).tolist()
        return starts

    def locate(self, slot: int) -> tuple[int, int]:
        """The tile that owns a slot, and the slot's place in the packed tile."""
        ordinal = 0
        for grid_step, axis in zip(self._grid_steps, self.cuts, strict=True):
            for step in axis.steps:
                ordinal += slot // step.stride % step.radix // step.divisor * grid_step if step.extent > 1 else 0
                grid_step *= step.extent
        return ordinal, int(self.footprint(ordinal).places(np.array([slot - self.base(ordinal)]))[0])

    # -- selections ----------------------------------------------------------------------------------------------

    def compact(self, per_axis: Sequence[Sequence[int]]) -> Compact:
        """Where the tiles of a selection lie in its compact result."""
        chosen = zip(per_axis, self.tile_shape, self.logical_shape, strict=True)
        extents = [[min(t, n - c * t) for c in axis] for axis, t, n in chosen]
        return Compact(
            tuple(tuple(accumulate(axis[:-1], initial=0)) for axis in extents), tuple(sum(axis) for axis in extents)
        )

    # -- tensors over the extent -----------------------------------------------------------------------------------

    def require_compatible(self, offset: int, layout: Layout) -> None:
        """Raise ValueError unless every logical tile reaches exactly the footprint of the carrier's tile.

        Source: seed 000, "Tensor Layout compatibility preserves exact carrier tile footprints".
        """
        if offset == 0 and layout == self.layout:
            return
        reason = incompatibility(self, offset, layout)
        if reason is not None:
            raise ValueError(
                f"cannot use a Tensor of {layout!r} at offset {offset}: {reason}. Every logical tile must reach "
                f"exactly the slots of the same carrier tile (tile footprints of grid {self.grid_shape}, tile "
                f"{self.tile_shape}), each once. Use the carrier's layout, or one that only permutes within tiles."
            )

    def boxes(self, layout: Layout) -> tuple[TileBox | None, ...]:
        """For every kind, a tile of a compatible Tensor as a strided box; None when only `order` can say it."""
        return boxes_of(self, layout)

    def box(self, layout: Layout, ordinal: int) -> TileBox | None:
        """A tile of a compatible Tensor as a strided box; None when only `order` can say it."""
        return boxes_of(self, layout)[self.kind_of(ordinal)]

    def own_box(self, ordinal: int) -> TileBox:
        """A tile of the carrier's own layout, which is a box by construction."""
        return self._own_boxes[self.kind_of(ordinal)]

    @cached_property
    def _own_boxes(self) -> list[TileBox]:
        return [box for box in self.boxes(self.layout) if box is not None]

    def order(self, ordinal: int, offset: int, layout: Layout) -> Slots:
        """The packed place of every value of a tile, in logical order (first axis fastest)."""
        axes = [sums(layout[k].leaves()) for k in range(len(self.tile_shape))]
        within = [
            axis[c * t : (c + 1) * t]
            for axis, c, t in zip(axes, self.coordinate(ordinal), self.tile_shape, strict=True)
        ]
        return self.footprint(ordinal).places(outer_sum(within) + (offset - self.base(ordinal)))


@dataclass(frozen=True, slots=True)
class Compact:
    """Where the tiles of a selection lie in its compact result: one after the other along every axis."""

    starts: tuple[tuple[int, ...], ...]
    """Per axis, the first coordinate of each selected tile."""
    shape: tuple[int, ...]

    def origin(self, place: Coordinate) -> tuple[int, ...]:
        """The compact coordinate at which the tile at a place of the compact grid begins."""
        return tuple(starts[c] for starts, c in zip(self.starts, place, strict=True))


def _logical(shape: Iterable[int], grid: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    logical = _extents(shape, "shape")
    if len(logical) != len(grid):
        raise ValueError(
            f"cannot tile shape {logical} with grid_shape {grid} and tile_shape {tile}: their ranks are {len(logical)} "
            f"and {len(grid)}. The ranks must be equal. Give one extent per grid axis."
        )
    needed = tuple(-(-n // t) for n, t in zip(logical, tile, strict=True))
    if needed != grid:
        raise ValueError(
            f"cannot tile shape {logical} with grid_shape {grid} and tile_shape {tile}: it takes {needed} tiles. The "
            "grid must be shape / tile, rounded up, on every axis. Change one of them."
        )
    return logical


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
            f"cannot tile with {layout!r}: its modes have sizes {sizes} and the logical shape (grid times tile, or "
            f"`shape`) is {logical}. They must be equal. Pass a Layout of the full logical shape."
        )
