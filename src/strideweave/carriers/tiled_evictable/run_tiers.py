"""Primary tiers of carriers whose values no memory shows: tiles go there and back as runs, through packed scratch."""

from __future__ import annotations

from typing import NoReturn

import torch

from strideweave.carriers.carrier import Carrier, Run, Scalar
from strideweave.carriers.tiled_evictable.boxes import TileBox
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.memory_tiers import InPlaceTier, PrimaryTier, SlabTier
from strideweave.carriers.tiled_evictable.tiers import runs_of

_CARRIERS = 64  # slots share carriers beyond this many, since a carrier may be a file or a device extent


def primary_tier(geometry: Geometry, carrier: Carrier, capacity: int) -> PrimaryTier:
    """The tier of a primary: full or empty, in memory or not."""
    if carrier._is_in_memory():
        if carrier.size():
            return InPlaceTier(geometry, carrier)
        return SlabTier(geometry, carrier.dtype().torch_dtype, capacity)
    return InPlaceRunTier(geometry, carrier) if carrier.size() else RunTier(geometry, carrier, capacity)


class _Runs:
    """What the two tiers have in common: nothing to look at, and values that are moved and counted."""

    is_in_memory = False
    _like: Carrier

    def view(self, slot: int, box: TileBox) -> NoReturn:
        """Never asked: see `is_in_memory`."""
        raise AssertionError(f"a {type(self._like).__name__} shows no memory")

    def packed(self, slot: int) -> None:
        """No memory shows it."""
        return

    def _read(self, carrier: Carrier, runs: list[Run]) -> None:
        self._require_whole("read", carrier._read_runs(runs), runs)

    def _write(self, carrier: Carrier, runs: list[Run]) -> None:
        self._require_whole("wrote", carrier._write_runs(runs), runs)

    def _require_whole(self, did: str, nbytes: int, runs: list[Run]) -> None:
        wanted = sum(values.nbytes for _, values in runs)
        if nbytes != wanted:
            raise RuntimeError(
                f"cannot move a tile in primary: {type(self._like).__name__} {did} {nbytes} of {wanted} bytes. A "
                "carrier moves whole runs, or raises. Mend its storage."
            )

    def _one(self, value: Scalar = 0) -> torch.Tensor:
        return torch.tensor([value], dtype=self._like.dtype().torch_dtype)


class RunTier(_Runs):
    """Slots in carriers of the primary's own class, made when the first tile comes."""

    def __init__(self, geometry: Geometry, like: Carrier, capacity: int) -> None:
        self.capacity = capacity
        self._geometry = geometry
        self._like = like
        self._slots_each = -(-capacity // _CARRIERS)
        self._free = list(range(capacity - 1, -1, -1))
        self._ordinals = [0] * capacity
        self._carriers: dict[int, Carrier] = {}  # only grows, by one step of the dictionary at a time

    @property
    def free(self) -> int:
        """How many slots hold nothing."""
        return len(self._free)

    def ordinal_of(self, slot: int) -> int:
        """The tile that it was taken for."""
        return self._ordinals[slot]

    def take(self, ordinal: int) -> int | None:
        """Any free slot; its carrier is made when a tile is written to it, where an error is the tile's own."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._ordinals[slot] = ordinal
        return slot

    def give(self, slot: int) -> None:
        """Back to the free ones."""
        self._free.append(slot)

    def read(self, slot: int, out: torch.Tensor) -> None:
        """Fill a packed tile from a slot that one was written to."""
        number, start = self._place(slot)
        self._read(self._carriers[number], [(start, out)])

    def write(self, slot: int, source: torch.Tensor) -> None:
        """A slot holds a packed tile."""
        number, start = self._place(slot)
        carrier = self._carriers.get(number)
        self._write(self._made(number) if carrier is None else carrier, [(start, source)])

    def get(self, slot: int, place: int) -> Scalar:
        """One value of the packed tile in a slot."""
        one = self._one()
        number, start = self._place(slot)
        self._read(self._carriers[number], [(start + place, one)])
        value: Scalar = one.item()
        return value

    def set(self, slot: int, place: int, value: Scalar) -> None:
        """One value of the packed tile in a slot is another one."""
        number, start = self._place(slot)
        self._write(self._carriers[number], [(start + place, self._one(value))])

    def _place(self, slot: int) -> tuple[int, int]:
        number, place = divmod(slot, self._slots_each)
        return number, place * self._geometry.tile_elems

    def _made(self, number: int) -> Carrier:
        slots = min(self._slots_each, self.capacity - number * self._slots_each)
        made = self._like.allocate_like(slots * self._geometry.tile_elems, empty=True)
        kept = self._carriers.setdefault(number, made)
        if kept is not made:  # another lane was faster
            made.release()
        return kept

    def close(self) -> None:
        """Let go of the carriers."""
        while self._carriers:
            self._carriers.popitem()[1].release()

    def enter_child(self) -> bool:
        """In a forked child the carriers are the parent's, and so may their storage be: the slots are empty here."""
        self._carriers = {}
        return True


class InPlaceRunTier(_Runs):
    """Tiles that stay where they lie in a full carrier: its slot number is the tile's number."""

    def __init__(self, geometry: Geometry, carrier: Carrier) -> None:
        self.capacity = geometry.tiles
        self._geometry = geometry
        self._like = carrier
        self._taken: set[int] = set()
        self._is_forked = False

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

    def read(self, slot: int, out: torch.Tensor) -> None:
        """Fill a packed tile."""
        self._read(self._like, runs_of(self._geometry, slot, out))

    def write(self, slot: int, source: torch.Tensor) -> None:
        """The place holds a packed tile. Errors: RuntimeError in a forked child."""
        self._require_own_process()
        self._write(self._like, runs_of(self._geometry, slot, source))

    def get(self, slot: int, place: int) -> Scalar:
        """One value of the tile, by its place in the packed one."""
        one = self._one()
        self._read(self._like, [(self._slot(slot, place), one)])
        value: Scalar = one.item()
        return value

    def set(self, slot: int, place: int, value: Scalar) -> None:
        """One value of the tile, by its place in the packed one, is another one."""
        self._require_own_process()
        self._write(self._like, [(self._slot(slot, place), self._one(value))])

    def _slot(self, ordinal: int, place: int) -> int:
        footprint = self._geometry.footprint(ordinal)
        run, within = divmod(place, footprint.run_elems)
        return self._geometry.base(ordinal) + int(footprint.run_offsets[run]) + within

    def close(self) -> None:
        """Nothing: the carrier belongs to whoever gave it."""

    def enter_child(self) -> bool:
        """In a forked child the carrier is the parent's, which goes on with it: it is only read."""
        self._is_forked = True
        return False

    def _require_own_process(self) -> None:
        if self._is_forked:
            raise RuntimeError(
                f"cannot write tiles to {self._like!r} in a child after fork: the parent goes on with the same "
                "carrier. A forked child only reads tiles. Make the change in the parent."
            )
