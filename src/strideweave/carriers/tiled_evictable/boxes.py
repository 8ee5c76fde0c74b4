"""Tiles as strided boxes: what a Tensor of any compatible Layout sees of a tile without a list of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

import numpy as np

from strideweave.carriers.tiled_evictable.footprint import Footprint, cut, footprints_of, sums
from strideweave.layout import Layout

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.geometry import Geometry

_CACHED_LAYOUTS = 64


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
def boxes_of(geometry: Geometry, layout: Layout) -> tuple[TileBox | None, ...]:
    """For every kind, a tile of a compatible Tensor as a strided box; None when it is none."""
    own = layout == geometry.layout
    try:
        found = (
            geometry.footprints
            if own
            else footprints_of([cut(layout[k], t) for k, t in enumerate(geometry.tile_shape)])
        )
    except ValueError:
        return (None,) * len(geometry.footprints)
    return tuple(_box(footprint, box, is_own=own) for footprint, box in zip(geometry.footprints, found, strict=True))


def _box(footprint: Footprint, found: Footprint, *, is_own: bool) -> TileBox | None:
    """The box of the leaves `found` that a Tensor has within tiles of this footprint."""
    axes, steps = list[int](), list[int]()
    for axis, span in enumerate(found.spans):
        axes.extend(axis for _ in span.leaves)
        steps.extend(accumulate((1, *(n for n, _ in span.leaves[:-1])), mul))
    extents, slots = tuple(n for n, _ in found.leaves), tuple(d for _, d in found.leaves)
    if is_own:
        packed = footprint.packed_strides
    else:
        packed = tuple(footprint.places(np.array(slots, dtype=np.int64)).tolist())
        if not footprint.places_add_up(found.leaves):
            wanted = footprint.places(sums(found.leaves))
            if not np.array_equal(sums(list(zip(extents, packed, strict=True))), wanted):
                return None
    return TileBox(extents, tuple(axes), tuple(steps), slots, packed)
