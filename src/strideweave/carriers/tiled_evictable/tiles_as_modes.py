"""Tiles as torch tensors with one dim per top-level mode, whatever leaves the Layout has within a tile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from strideweave.carriers.tiled_evictable.boxes import TileBox
from strideweave.carriers.tiled_evictable.engine import Engine
from strideweave.layout import Layout


class TilesAsModes:
    """The tiles of one full Tensor, read and written in *mode dims*: one per axis, whatever nests.

    Where the Layout is a box within a tile (nearly always) a tile is seen where it lies, and only leaves that do not
    merge cost a copy; otherwise values are picked one by one, by the geometry's order.

    Shapes: the extents of the tile; inside a mode the first leaf is fastest.
    """

    def __init__(self, engine: Engine, offset: int, layout: Layout) -> None:
        """`layout` at `offset` is tile-footprint compatible with the engine's geometry."""
        self._engine = engine
        self._geometry = engine.geometry
        self._offset = offset
        self._layout = layout
        self._boxes = engine.geometry.boxes(layout)
        self._slowest_first = [[] if box is None else _slowest_first(box) for box in self._boxes]

    def of_slot(self, ordinal: int, slot: int) -> torch.Tensor:
        """The tile in a primary slot: its memory where there is any and its leaves merge, else a copy.

        Never written through.
        """
        kind = self._geometry.kind_of(ordinal)
        primary = self._engine.primary
        if (box := self._boxes[kind]) is not None and primary.is_in_memory:
            return self._merged(kind, primary.view(slot, box))
        packed = primary.packed(slot)
        if packed is None:
            packed = torch.empty(self._geometry.elems_of(ordinal), dtype=self._engine.dtype)
            primary.read(slot, packed)
        return self.of_packed(ordinal, packed)

    def of_packed(self, ordinal: int, packed: torch.Tensor) -> torch.Tensor:
        """The tile that lies packed in `packed`: as `of_slot`."""
        kind = self._geometry.kind_of(ordinal)
        if (box := self._boxes[kind]) is not None:
            return self._merged(kind, packed.as_strided(box.extents, box.packed, packed.storage_offset()))
        backward = self._geometry.extents_of(ordinal)[::-1]
        return _turned(packed[self._order(ordinal)].reshape(backward))

    def put_slot(self, ordinal: int, slot: int, values: torch.Tensor) -> None:
        """A primary slot holds `values` as the tile."""
        kind = self._geometry.kind_of(ordinal)
        primary = self._engine.primary
        if (box := self._boxes[kind]) is not None and primary.is_in_memory:
            primary.view(slot, box).copy_(self._split(kind, box, values))
        elif (packed := primary.packed(slot)) is not None:
            self.put_packed(ordinal, packed, values)
        else:
            scratch = torch.empty(self._geometry.elems_of(ordinal), dtype=self._engine.dtype)
            self.put_packed(ordinal, scratch, values)
            primary.write(slot, scratch)

    def put_packed(self, ordinal: int, packed: torch.Tensor, values: torch.Tensor) -> None:
        """The packed tile holds `values`."""
        kind = self._geometry.kind_of(ordinal)
        if (box := self._boxes[kind]) is not None:
            split = self._split(kind, box, values)
            packed.as_strided(box.extents, box.packed, packed.storage_offset()).copy_(split)
        else:
            packed[self._order(ordinal)] = _turned(values).reshape(-1).to(packed.dtype)

    def _order(self, ordinal: int) -> torch.Tensor:
        return torch.from_numpy(self._geometry.order(ordinal, self._offset, self._layout))

    def _merged(self, kind: int, leaves: torch.Tensor) -> torch.Tensor:
        """One dim per leaf made one dim per mode."""
        return leaves.permute(self._slowest_first[kind]).reshape(self._geometry.footprints[kind].extents)

    def _split(self, kind: int, box: TileBox, values: torch.Tensor) -> torch.Tensor:
        """One dim per mode made one dim per leaf, which never costs a copy."""
        order = self._slowest_first[kind]
        # Every mode is reversed in its own place, so that turning twice is no turn at all.
        return values.reshape([box.extents[k] for k in order]).permute(order)


def _slowest_first(box: TileBox) -> list[int]:
    """The leaf dims of a box, every mode's from its slowest to its fastest, as torch merges dims."""
    dims = list[int]()
    for _, within in groupby(range(len(box.axes)), key=box.axes.__getitem__):
        dims.extend(reversed(list(within)))
    return dims


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


def region_of(values: torch.Tensor, origin: Sequence[int], extents: Sequence[int]) -> torch.Tensor:
    """The region of a tensor in mode dims that begins at `origin`; nothing is copied.

    >>> import torch
    >>> region_of(torch.arange(8).reshape(2, 4), (1, 2), (1, 2)).tolist()
    [[6, 7]]
    """
    for dim, (begin, n) in enumerate(zip(origin, extents, strict=True)):
        values = values.narrow(dim, begin, n)
    return values


def _turned(values: torch.Tensor) -> torch.Tensor:
    """The dims in reversed order."""
    return values.permute(*reversed(range(values.dim())))
