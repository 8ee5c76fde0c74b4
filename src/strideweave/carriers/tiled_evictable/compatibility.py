"""Whether a Tensor keeps to the tiles of a carrier: the exact footprint rule, without a loop over slots."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from strideweave.carriers.tiled_evictable.footprint import Slots, cut, footprints_of, outer_sum, sums
from strideweave.layout import Layout

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.geometry import Geometry

_CACHED_LAYOUTS = 64


@lru_cache(maxsize=_CACHED_LAYOUTS)
def incompatibility(geometry: Geometry, offset: int, layout: Layout) -> str | None:
    """Why a Tensor over this extent is not tile-footprint compatible; None when it is."""
    sizes = tuple(layout[k].size for k in range(len(layout)))
    if sizes != geometry.logical_shape:
        return f"its modes have sizes {sizes} and the carrier's axes {geometry.logical_shape}"
    if _is_proven(geometry, offset, layout):
        return None
    axes = [sums(layout[k].leaves()) for k in range(len(sizes))]
    bases = geometry.bases
    if all(_is_alike(axis, t) for axis, t in zip(axes, geometry.tile_shape, strict=True)):
        # All tiles of a kind have the same shape in the extent, so one comparison stands for all of them.
        starts = outer_sum([axis[::t] for axis, t in zip(axes, geometry.tile_shape, strict=True)]) + offset
        for kind, footprint in enumerate(geometry.footprints):
            reached = np.sort(outer_sum([axis[:n] - axis[0] for axis, n in zip(axes, footprint.extents, strict=True)]))
            if not np.array_equal(reached, footprint.slots):
                tile = next(k for k in range(geometry.tiles) if geometry.kind_of(k) == kind)
                return _difference(geometry, tile, reached + starts[tile], footprint.slots + bases[tile])
        wrong = np.flatnonzero(starts != bases)
        if wrong.size:
            tile = int(wrong[0])
            footprint = geometry.footprint(tile)
            reached = outer_sum([axis[:n] - axis[0] for axis, n in zip(axes, footprint.extents, strict=True)])
            return _difference(geometry, tile, np.sort(reached) + starts[tile], footprint.slots + bases[tile])
        return None
    for tile in range(geometry.tiles):
        rows = [
            axis[origin : origin + n]
            for axis, origin, n in zip(axes, geometry.origin_of(tile), geometry.extents_of(tile), strict=True)
        ]
        reached = np.sort(outer_sum(rows)) + offset
        owned = geometry.footprint(tile).slots + bases[tile]
        if not np.array_equal(reached, owned):
            return _difference(geometry, tile, reached, owned)
    return None


def _is_proven(geometry: Geometry, offset: int, layout: Layout) -> bool:
    """Whether the leaves alone say that it is: its cost is that of the leaves and the tiles per axis, not of slots."""
    try:
        cuts = [cut(layout[k], t) for k, t in enumerate(geometry.tile_shape)]
    except ValueError:  # a tile boundary falls inside a leaf
        return False
    if offset or any(not np.array_equal(own.bases, c.bases) for own, c in zip(geometry.cuts, cuts, strict=True)):
        return False
    return [f.merged for f in footprints_of(cuts)] == [f.merged for f in geometry.footprints]


def _is_alike(axis: Slots, tile: int) -> bool:
    """Whether every tile along an axis has the steps of the first one, and a smaller last one the first of them."""
    if len(axis) <= tile:
        return True
    steps = axis[:tile] - axis[0]
    whole = axis[: len(axis) // tile * tile].reshape(-1, tile)
    rest = axis[len(whole) * tile :]
    return bool(np.all(whole - whole[:, :1] == steps)) and (
        not len(rest) or bool(np.all(rest - rest[0] == steps[: len(rest)]))
    )


def _difference(geometry: Geometry, tile: int, reached: Slots, expected: Slots) -> str:
    return (
        f"logical tile {geometry.coordinate(tile)} reaches {len(np.unique(reached))} slots in {reached[0]} .. "
        f"{reached[-1]} and the carrier's tile has {len(expected)} in {expected[0]} .. {expected[-1]}"
    )
