"""Where a tile is used: slots of one tile each, and those of them that are memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from strideweave.carriers.carrier import Carrier, Scalar
from strideweave.carriers.tiled_evictable.boxes import TileBox
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.io import SlabPool


class PrimaryTier(Protocol):
    """Slots of one tile each. `take` and `give` are called under the carrier's lock."""

    capacity: int
    is_in_memory: bool
    """Whether tiles can be seen where they are: only then `view` works. `run_tiers.py` has those that move them."""

    @property
    def free(self) -> int:
        """How many slots hold nothing."""
        ...

    def ordinal_of(self, slot: int) -> int:
        """The tile that a taken slot is for."""
        ...

    def take(self, ordinal: int) -> int | None:
        """A slot for a tile, or None when all are taken."""
        ...

    def give(self, slot: int) -> None:
        """Back to the free ones."""
        ...

    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the box."""
        ...

    def packed(self, slot: int) -> torch.Tensor | None:
        """The tile in a slot as one run; None when it does not lie in one."""
        ...

    def read(self, slot: int, out: torch.Tensor) -> None:
        """Fill a packed tile from a slot (outside the lock)."""
        ...

    def write(self, slot: int, source: torch.Tensor) -> None:
        """A slot holds a packed tile (outside the lock)."""
        ...

    def get(self, slot: int, place: int) -> Scalar:
        """One value of the tile in a slot, by its place in the packed one."""
        ...

    def set(self, slot: int, place: int, value: Scalar) -> None:
        """One value of the tile in a slot is another one."""
        ...

    def close(self) -> None:
        """Let go of the memory."""
        ...

    def enter_child(self) -> bool:
        """In a forked child: whether the slots are empty now, since what was in them is the parent's."""
        ...


class _Memory(ABC):
    """What can be seen can be copied, and no child shares it."""

    is_in_memory = True
    _geometry: Geometry

    @abstractmethod
    def ordinal_of(self, slot: int) -> int:
        """The tile that a taken slot is for."""

    @abstractmethod
    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the box."""

    def read(self, slot: int, out: torch.Tensor) -> None:
        """Fill a packed tile from a slot."""
        box = self._box(slot)
        out.as_strided(box.extents, box.packed, out.storage_offset()).copy_(self.view(slot, box))

    def write(self, slot: int, source: torch.Tensor) -> None:
        """A slot holds a packed tile."""
        box = self._box(slot)
        self.view(slot, box).copy_(source.as_strided(box.extents, box.packed, source.storage_offset()))

    def get(self, slot: int, place: int) -> Scalar:
        """One value of the tile in a slot, by its place in the packed one."""
        value: Scalar = self._element(slot, place).item()
        return value

    def set(self, slot: int, place: int, value: Scalar) -> None:
        """One value of the tile in a slot is another one."""
        self._element(slot, place).fill_(value)

    def enter_child(self) -> bool:
        """A child has memory of its own."""
        return False

    def _element(self, slot: int, place: int) -> torch.Tensor:
        box = self._box(slot)
        index = tuple(place // step % n if n > 1 else 0 for n, step in zip(box.extents, box.packed, strict=True))
        return self.view(slot, box)[index]

    def _box(self, slot: int) -> TileBox:
        return self._geometry.own_box(self.ordinal_of(slot))


class SlabTier(_Memory):
    """Tiles packed into equal slabs of one mapping: what stays resident is what the budget says, page for page."""

    def __init__(self, geometry: Geometry, dtype: torch.dtype, capacity: int) -> None:
        self.capacity = capacity
        self._geometry = geometry
        self._ordinals = [0] * capacity
        self._pool = SlabPool(geometry.tile_elems * dtype.itemsize, capacity)
        self._step = self._pool.stride_nbytes // dtype.itemsize
        self._flat = torch.frombuffer(self._pool.buffer, dtype=dtype)

    @property
    def free(self) -> int:
        """How many slots hold nothing."""
        return self._pool.free

    def ordinal_of(self, slot: int) -> int:
        """The tile that it was taken for."""
        return self._ordinals[slot]

    def take(self, ordinal: int) -> int | None:
        """Any free slot."""
        slot = self._pool.take()
        if slot is not None:
            self._ordinals[slot] = ordinal
        return slot

    def give(self, slot: int) -> None:
        """Back to the free ones."""
        self._pool.give(slot)

    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the box."""
        return self._flat.as_strided(box.extents, box.packed, slot * self._step)

    def packed(self, slot: int) -> torch.Tensor:
        """The tile in a slot as one run."""
        start = slot * self._step
        return self._flat[start : start + self._geometry.elems_of(self._ordinals[slot])]

    def close(self) -> None:
        """Let go of the memory; it is unmapped when the last view is gone."""
        self._flat = torch.empty(0)
        self._pool.close()


class InPlaceTier(_Memory):
    """Tiles that stay where they lie in a full carrier: its slot number is the tile's number."""

    def __init__(self, geometry: Geometry, carrier: Carrier) -> None:
        self.capacity = geometry.tiles
        self._geometry = geometry
        self._flat = carrier._flat()
        self._origin = int(self._flat.storage_offset())
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """How many tiles hold nothing."""
        return self.capacity - len(self._taken)

    def ordinal_of(self, slot: int) -> int:
        """The tile of that number."""
        return slot

    def take(self, ordinal: int) -> int | None:
        """The tile's own place."""
        self._taken.add(ordinal)
        return ordinal

    def give(self, slot: int) -> None:
        """The place holds nothing now."""
        self._taken.remove(slot)

    def view(self, slot: int, box: TileBox) -> torch.Tensor:
        """The tile where it lies, one dim per leaf of the box."""
        return self._flat.as_strided(box.extents, box.slots, self._origin + self._geometry.base(slot))

    def packed(self, slot: int) -> torch.Tensor | None:
        """The tile as one run, when it is contiguous."""
        footprint = self._geometry.footprint(slot)
        if not footprint.is_contiguous:
            return None
        base = self._geometry.base(slot)
        return self._flat[base : base + footprint.elems]

    def close(self) -> None:
        """Let go of the memory."""
        self._flat = torch.empty(0)
