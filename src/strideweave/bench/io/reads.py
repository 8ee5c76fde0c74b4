"""Tiles of one size, read through `promote_async`, raw and by peers, in the same rounds."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from strideweave.bench.disk import Access, Order, RawFile
from strideweave.bench.io.data import BEGIN_NBYTES, TENSOR_NBYTES, Size, name_of
from strideweave.bench.measure import drop_page_cache
from strideweave.public import CPU, DType, FileBacked, TiledEvictable, TileSet

RAW_THREADS: Final = (1, 4)
_REQUEST_NBYTES = 4 * 2**20
_REQUESTS_AHEAD = 8

Bytes = npt.NDArray[np.uint8]


def checksum(blocks: Iterator[Bytes]) -> int:
    """The sum of all bytes as numbers of 64 bits: the same in any order of whole numbers."""
    return sum(int(block.view(np.uint64).sum()) for block in blocks) % 2**64


# -- raw -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Raw:
    """One kind of raw read, measured round by round. Units: bytes, bytes per second."""

    access: Access
    rates: list[float] = field(default_factory=list)

    def measure(self, raw: RawFile, size: Size, seed: int) -> None:
        """One more round: random blocks of the whole file, or all from a random one on."""
        places = self.access.places(BEGIN_NBYTES, size.file_nbytes, seed)
        count = size.pass_nbytes // self.access.block_nbytes
        begin = random.Random(seed).randrange(len(places) - count + 1) if self.access.order == "sequential" else 0
        self.rates.append(raw.read(places[begin : begin + count], self.access).nbytes_per_s)

    def to_json(self) -> dict[str, Any]:
        """What the report keeps."""
        return {
            "order": self.access.order,
            "block_nbytes": self.access.block_nbytes,
            "threads": self.access.threads,
            "nbytes_per_s": median(self.rates),
            "rates": self.rates,
        }


def raw_kinds(size: Size) -> list[Raw]:
    """Every kind of raw read."""
    orders: tuple[Order, ...] = ("random", "sequential")
    return [
        Raw(Access(block, threads, order))
        for order in orders
        for block in size.blocks_nbytes
        for threads in RAW_THREADS
    ]


# -- ours ------------------------------------------------------------------------------------------------------------


class Tiles:
    """A carrier of one row of tiles over the file, which is read where it lies."""

    def __init__(self, path: Path, size: Size, tile_nbytes: int, *, budget_nbytes: int | None = None) -> None:
        self.tile_nbytes = tile_nbytes
        self.count = size.file_nbytes // tile_nbytes
        self.carrier = TiledEvictable(
            CPU(0, dtype=DType.UInt8),
            FileBacked.open(path, dtype=DType.UInt8, size=size.file_nbytes, offset_nbytes=BEGIN_NBYTES, mutable=False),
            (self.count,),
            (tile_nbytes,),
            budget=budget_nbytes or size.budget_nbytes,
        )
        self._path = path

    def chosen(self, size: Size, seed: int) -> list[int]:
        """The tiles of one pass, in random order."""
        return random.Random(seed).sample(range(self.count), size.pass_nbytes // self.tile_nbytes)

    def make_cold(self) -> None:
        """No tile is in primary and no page of the file is cached; slots keep the memory that they have."""
        self.carrier.evict(self.carrier.primary_tiles)
        drop_page_cache([self._path])

    def read(self, chosen: Sequence[int]) -> float:
        """Seconds until every tile was in primary. A request has at least 4 MiB, and up to 8 are under way."""
        each = max(1, _REQUEST_NBYTES // self.tile_nbytes)
        slots = self.carrier.statistics().slots
        ahead = max(1, min(_REQUESTS_AHEAD, slots // each - 1))
        began = time.perf_counter()
        handles = deque[Any]()
        for k in range(0, len(chosen), each):
            if len(handles) == ahead:
                handles.popleft().wait()
            handles.append(self.carrier.promote_async(TileSet((tile,) for tile in chosen[k : k + each])))
        while handles:
            handles.popleft().wait()
        return time.perf_counter() - began

    def blocks(self) -> Iterator[Bytes]:
        """Every tile as numpy sees it."""
        for _, view in self.carrier.stream(TileSet((k,) for k in range(self.count))):
            yield view.numpy()


# -- peers -----------------------------------------------------------------------------------------------------------

Copy = Callable[[int, Bytes], None]
"""Puts the block of that number into memory."""


@contextmanager
def numpy_memmap(path: Path, size: Size, block_nbytes: int) -> Iterator[Copy]:
    """A mapping of the file."""
    mapped = np.memmap(path, np.uint8, mode="r", offset=BEGIN_NBYTES, shape=(size.file_nbytes,))
    yield lambda number, into: np.copyto(into, mapped[number * block_nbytes : (number + 1) * block_nbytes])


@contextmanager
def torch_from_file(path: Path, size: Size, block_nbytes: int) -> Iterator[Copy]:
    """A mapping of the file, by torch."""
    whole = torch.from_file(str(path), shared=False, size=BEGIN_NBYTES + size.file_nbytes, dtype=torch.uint8)
    mapped = whole[BEGIN_NBYTES:].numpy()
    yield lambda number, into: np.copyto(into, mapped[number * block_nbytes : (number + 1) * block_nbytes])


@contextmanager
def safetensors_get_tensor(path: Path, size: Size, block_nbytes: int) -> Iterator[Copy]:
    """A tensor of the file, copied like the others'."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        yield lambda number, into: np.copyto(into, file.get_tensor(name_of(number)).numpy())


PEERS: Final = {"memmap": numpy_memmap, "from_file": torch_from_file, "get_tensor": safetensors_get_tensor}


def peers_of(tile_nbytes: int) -> list[str]:
    """Who can read blocks of that size: `get_tensor` reads whole tensors."""
    return [name for name in PEERS if name != "get_tensor" or tile_nbytes == TENSOR_NBYTES]


@dataclass(slots=True)
class Row:
    """One tile size. Units: bytes per second, by round."""

    tile_nbytes: int
    engine: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    """The better of 1 and 4 threads."""
    peers: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a peer did not take part."""
    read_nbytes: int = 0
    """What the engine says that it read, all rounds together."""
    checksums: set[int] = field(default_factory=set)

    @property
    def ratio(self) -> float:
        """Ours over the raw rate, the median of the rounds."""
        return median(ours / raw for ours, raw in zip(self.engine, self.raw, strict=True))

    def to_json(self) -> dict[str, Any]:
        """What the report keeps."""
        return {
            "tile_nbytes": self.tile_nbytes,
            "nbytes_per_s": median(self.engine),
            "rates": self.engine,
            "raw_nbytes_per_s": median(self.raw),
            "raw_rates": self.raw,
            "ratio_to_raw": self.ratio,
            "read_nbytes": self.read_nbytes,
            "peers": {
                **{name: {"nbytes_per_s": median(rates), "rates": rates} for name, rates in self.peers.items()},
                **{name: {"skipped": reason} for name, reason in self.missing.items()},
            },
        }


class Reads:
    """All contestants of one tile size, ready to take turns."""

    def __init__(self, path: Path, size: Size, tile_nbytes: int, memory: Bytes) -> None:
        self._path, self._size, self._memory = path, size, memory[:tile_nbytes]
        self.row = Row(tile_nbytes)
        self._tiles = Tiles(path, size, tile_nbytes)
        self.row.checksums.add(checksum(self._tiles.blocks()))  # touches every slot too
        for name in peers_of(tile_nbytes):
            try:
                with PEERS[name](path, size, tile_nbytes) as copy:
                    self.row.checksums.add(checksum(self._copied(copy, range(self._tiles.count))))
                self.row.peers[name] = []
            except ImportError:
                self.row.missing[name] = "not installed"

    def _copied(self, copy: Copy, numbers: Sequence[int]) -> Iterator[Bytes]:
        for number in numbers:
            copy(number, self._memory)
            yield self._memory

    def measure(self, raw: RawFile, seed: int) -> None:
        """One more round."""
        size, tile = self._size, self.row.tile_nbytes
        rates = []
        for threads in RAW_THREADS:
            kind = Raw(Access(tile, threads))
            kind.measure(raw, size, seed)
            rates += kind.rates
        self.row.raw.append(max(rates))
        self._tiles.make_cold()
        before = self._tiles.carrier.statistics().bytes_read
        self.row.engine.append(size.pass_nbytes / self._tiles.read(self._tiles.chosen(size, seed)))
        self.row.read_nbytes += self._tiles.carrier.statistics().bytes_read - before
        for name, found in self.row.peers.items():
            with PEERS[name](self._path, size, tile) as copy:
                drop_page_cache([self._path])
                began = time.perf_counter()
                for _ in self._copied(copy, self._tiles.chosen(size, seed + 1)):
                    pass
                found.append(size.pass_nbytes / (time.perf_counter() - began))

    def close(self) -> None:
        """The carrier is released."""
        self._tiles.carrier.release()


@contextmanager
def reads_of(path: Path, size: Size) -> Iterator[list[Reads]]:
    """The contestants of every tile size."""
    memory = np.ones(max(size.tiles_nbytes), np.uint8)
    open_ones: list[Reads] = []
    try:
        for tile in size.tiles_nbytes:
            open_ones.append(Reads(path, size, tile, memory))  # noqa: PERF401 - those made so far are closed on an error
        yield open_ones
    finally:
        for each in open_ones:
            with suppress(RuntimeError):  # an interrupted request is still under way
                each.close()
