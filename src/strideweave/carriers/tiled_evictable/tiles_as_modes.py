"""Tiles as torch tensors with one dim per top-level mode, whatever leaves the Layout has within a tile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from strideweave.carriers.tiled_evictable.engine import Engine
from strideweave.layout import Layout


class TilesAsModes:
    """The tiles of one full Tensor, read and written in *mode dims*: the shape is `tile_shape`, whatever nests.

    Where the Layout is a box within a tile (nearly always) a tile is seen where it lies, and only leaves that do not
    merge cost a copy; otherwise values are picked one by one, by the geometry's order.

    Shapes: `tile_shape`; inside a mode the first leaf is fastest.
    """

    def __init__(self, engine: Engine, offset: int, layout: Layout) -> None:
        """`layout` at `offset` is tile-footprint compatible with the engine's geometry."""
        self._engine = engine
        self._geometry = engine.geometry
        self._offset = offset
        self._layout = layout
        self._box = engine.geometry.box(layout)
        self._slowest_first: list[int] = []
        """The leaf dims of the box, every mode's from its slowest to its fastest, as torch merges dims."""
        if self._box is not None:
            axes = self._box.axes
            for _, dims in groupby(range(len(axes)), key=axes.__getitem__):
                self._slowest_first.extend(reversed(list(dims)))

    def of_slot(self, ordinal: int, slot: int) -> torch.Tensor:
        """The tile in a primary slot: the memory itself where its leaves merge, else a copy; never written through."""
        if self._box is not None:
            return self._merged(self._engine.primary.view(slot, self._box))
        packed = self._engine.primary.packed(slot)
        if packed is None:
            packed = torch.empty(self._geometry.tile_elems, dtype=self._engine.dtype)
            self._engine.packed_view(packed).copy_(self._engine.view(slot))
        return self.of_packed(ordinal, packed)

    def of_packed(self, ordinal: int, packed: torch.Tensor) -> torch.Tensor:
        """The tile that lies packed in `packed`: as `of_slot`."""
        box = self._box
        if box is not None:
            return self._merged(packed.as_strided(box.extents, box.packed, packed.storage_offset()))
        backward = self._geometry.tile_shape[::-1]
        return _turned(packed[self._order(ordinal)].reshape(backward))

    def put_slot(self, ordinal: int, slot: int, values: torch.Tensor) -> None:
        """A primary slot holds `values` as the tile."""
        if self._box is not None:
            self._engine.primary.view(slot, self._box).copy_(self._split(values))
        elif (packed := self._engine.primary.packed(slot)) is not None:
            self.put_packed(ordinal, packed, values)
        else:
            scratch = torch.empty(self._geometry.tile_elems, dtype=self._engine.dtype)
            self.put_packed(ordinal, scratch, values)
            self._engine.view(slot).copy_(self._engine.packed_view(scratch))

    def put_packed(self, ordinal: int, packed: torch.Tensor, values: torch.Tensor) -> None:
        """The packed tile holds `values`."""
        box = self._box
        if box is not None:
            packed.as_strided(box.extents, box.packed, packed.storage_offset()).copy_(self._split(values))
        else:
            packed[self._order(ordinal)] = _turned(values).reshape(-1).to(packed.dtype)

    def _order(self, ordinal: int) -> torch.Tensor:
        return torch.from_numpy(self._geometry.order(ordinal, self._offset, self._layout))

    def _merged(self, leaves: torch.Tensor) -> torch.Tensor:
        """One dim per leaf made one dim per mode."""
        return leaves.permute(self._slowest_first).reshape(self._geometry.tile_shape)

    def _split(self, values: torch.Tensor) -> torch.Tensor:
        """One dim per mode made one dim per leaf, which never costs a copy."""
        assert self._box is not None
        order = self._slowest_first
        # Every mode is reversed in its own place, so that turning twice is no turn at all.
        return values.reshape([self._box.extents[k] for k in order]).permute(order)


def in_mode_dims(leaves: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The values of a Layout with one dim per leaf made one dim per top-level mode, first leaf fastest.

    >>> import torch
    >>> from strideweave import Layout, Shape, Stride
    >>> in_mode_dims(torch.arange(4).reshape(2, 2), Layout(Shape([(2, 2)]), Stride([(2, 1)]))).tolist()
    [0, 2, 1, 3]
    """
    order, sizes, begin = list[int](), list[int](), 0
    for mode in layout:
        count = len(mode.leaves())
        order.extend(range(begin + count - 1, begin - 1, -1))
        sizes.append(mode.size)
        begin += count
    return leaves.permute(order).reshape(sizes)


def tile_of(values: torch.Tensor, place: Sequence[int], tile_shape: Sequence[int]) -> torch.Tensor:
    """The region of a tensor in mode dims that the tile at grid coordinate `place` has; nothing is copied.

    >>> import torch
    >>> tile_of(torch.arange(8).reshape(2, 4), (1, 1), (1, 2)).tolist()
    [[6, 7]]
    """
    for dim, (c, t) in enumerate(zip(place, tile_shape, strict=True)):
        values = values.narrow(dim, c * t, t)
    return values


def _turned(values: torch.Tensor) -> torch.Tensor:
    """The dims in reversed order."""
    return values.permute(*reversed(range(values.dim())))
