"""A carrier of your own: slots in tiles that zstd compresses, one after the other in one file.

    pip install strideweave zstandard
    python examples/zstd_carrier.py

All that a third party writes is here: a class without code, and a `CarrierDefinition` that says how it stores. It then
works wherever a carrier does; `main` makes it the secondary tier of a `TiledEvictable`. The test of this file runs the
shipped contract, `strideweave.testing.CarrierContract`, on it.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import zstandard

from strideweave import CPU, Carrier, DType, Layout, Tensor, TiledEvictable, TileSelection
from strideweave.carriers.extension import (
    CarrierDefinition,
    CarrierFacet,
    StorageProvider,
    register_carrier_definition,
)
from strideweave.dtype import StorageDType

TILE_SLOTS = 4096
"""How many slots are compressed together. A run of whole, aligned tiles is stored without reading the old ones."""
SLACK_NBYTES = 64 * 1024
"""The file is compacted when more than this and more than half of it is dead. Units: bytes."""

Run = tuple[int, torch.Tensor]


class Frame(NamedTuple):
    """Where a compressed tile lies. Units: bytes."""

    offset: int
    nbytes: int


class Part(NamedTuple):
    """The slots of a run that lie in one tile. Units: slots."""

    tile: int
    first: int
    """The first of them, counted in the tile."""
    done: int
    """The same one, counted in the run."""
    slots: int


class TileFile:
    """`slots` slots in compressed tiles. A tile that was never written takes no room and reads as zero.

    A new value of a tile goes to the end of the file, and only then does the tile move there: a write that fails leaves
    it wholly as it was. What is left behind is dead space until `compact`.
    """

    def __init__(self, slots: int, itemsize: int) -> None:
        self.slots = slots
        self.tile_nbytes = TILE_SLOTS * itemsize
        self._lock = threading.RLock()  # guards everything below
        self._frames: dict[int, Frame] = {}
        self._end = 0
        self._recent = (-1, b"")  # the last tile that was read, for those who come back for its other slots
        self._descriptor = -1
        self._close: Callable[[], object] = lambda: None
        if slots:
            self._descriptor, self._close = self._open()

    @property
    def live_nbytes(self) -> int:
        """The bytes of the frames that count."""
        with self._lock:
            return sum(frame.nbytes for frame in self._frames.values())

    @property
    def file_nbytes(self) -> int:
        """How long the file is, dead space included."""
        with self._lock:
            return self._end

    def parts(self, start: int, count: int) -> Iterator[Part]:
        """The tiles that a run touches, in order."""
        done = 0
        while done < count:
            tile, first = divmod(start + done, TILE_SLOTS)
            part = min(TILE_SLOTS - first, count - done)
            yield Part(tile, first, done, part)
            done += part

    def read(self, tile: int) -> bytes:
        """The bytes of a tile."""
        with self._lock:
            if self._recent[0] != tile:
                self._recent = (tile, self._load(tile))
            return self._recent[1]

    def write(self, tile: int, data: bytes | memoryview) -> None:
        """The tile has these bytes, or, after an error, those that it had."""
        with self._lock:
            packed = zstandard.ZstdCompressor(level=3).compress(data)
            _write_all(self._descriptor, packed, self._end)
            self._frames[tile] = Frame(self._end, len(packed))
            self._end += len(packed)
            self._recent = (-1, b"")
            if self._end > 2 * self.live_nbytes + SLACK_NBYTES:
                self.compact()

    def compact(self) -> None:
        """The frames that count lie in a new file, end to end; nothing is dead."""
        with self._lock:
            descriptor, close = self._open()
            frames, end = {}, 0
            try:
                for tile, frame in self._frames.items():
                    _write_all(descriptor, _read_all(self._descriptor, frame), end)
                    frames[tile] = Frame(end, frame.nbytes)
                    end += frame.nbytes
            except BaseException:
                close()
                raise
            self.close()
            self._descriptor, self._close, self._frames, self._end = descriptor, close, frames, end

    def close(self) -> None:
        """The file is gone."""
        self._close()

    def _load(self, tile: int) -> bytes:
        frame = self._frames.get(tile)
        if frame is None:
            return bytes(self.tile_nbytes)
        packed = _read_all(self._descriptor, frame)
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=self.tile_nbytes)

    def _open(self) -> tuple[int, Callable[[], object]]:
        """A file without a name: it goes when it is closed, which a carrier that is only dropped does too."""
        descriptor, path = tempfile.mkstemp(prefix="strideweave-", suffix=".zst")
        Path(path).unlink()
        return descriptor, weakref.finalize(self, os.close, descriptor)


class Compression(CarrierFacet):
    """What can be asked of a `ZstdTiles` beyond a carrier: `carrier.require_facet(Compression).ratio(carrier)`."""

    def stored_nbytes(self, carrier: ZstdTiles) -> int:
        """What the tiles take in the file. Units: bytes."""
        return carrier.tiles.live_nbytes

    def ratio(self, carrier: ZstdTiles) -> float:
        """The bytes of the values, for each byte that is stored."""
        return carrier.nbytes / max(1, self.stored_nbytes(carrier))


class ZstdTiles(Carrier):
    """`ZstdTiles(slots, *, dtype, mutable=True)`: slots in compressed tiles in one file, zero at first."""

    tiles: TileFile


def _bytes_of(memory: torch.Tensor) -> memoryview:
    return memoryview(memory.view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy's stubs know no buffers


def _supports(carrier: ZstdTiles, dtype: StorageDType) -> bool:
    return True


def _size(carrier: ZstdTiles) -> int:
    return carrier.tiles.slots


def _allocate(carrier: ZstdTiles, slots: int) -> None:
    carrier.tiles = TileFile(slots, carrier.dtype().itemsize)


def _release(carrier: ZstdTiles) -> None:
    carrier.tiles.close()
    carrier.tiles = TileFile(0, carrier.dtype().itemsize)


def _read(carrier: ZstdTiles, slot: int) -> Any:
    one = torch.empty(1, dtype=carrier.dtype().torch_dtype)
    _read_runs(carrier, [(slot, one)])
    return one.item()


def _write(carrier: ZstdTiles, slot: int, value: Any) -> None:
    _write_runs(carrier, [(slot, torch.tensor([value], dtype=carrier.dtype().torch_dtype))])


def _read_runs(carrier: ZstdTiles, runs: Sequence[Run]) -> int:
    tiles, itemsize = carrier.tiles, carrier.dtype().itemsize
    for start, out in runs:
        memory = _bytes_of(out)
        for tile, first, done, slots in tiles.parts(start, out.numel()):
            found = memoryview(tiles.read(tile))[first * itemsize : (first + slots) * itemsize]
            memory[done * itemsize : (done + slots) * itemsize] = found
    return sum(out.nbytes for _, out in runs)


def _write_runs(carrier: ZstdTiles, runs: Sequence[Run]) -> int:
    tiles, itemsize = carrier.tiles, carrier.dtype().itemsize
    for start, source in runs:
        memory = _bytes_of(source)
        for tile, first, done, slots in tiles.parts(start, source.numel()):
            given = memory[done * itemsize : (done + slots) * itemsize]
            if slots == TILE_SLOTS:
                tiles.write(tile, given)
                continue
            with tiles._lock:  # nobody else may change the tile between the reading and the writing of its other slots
                whole = bytearray(tiles.read(tile))
                whole[first * itemsize : (first + slots) * itemsize] = given
                tiles.write(tile, bytes(whole))
    return sum(source.nbytes for _, source in runs)


def _read_all(descriptor: int, frame: Frame) -> bytes:
    packed = os.pread(descriptor, frame.nbytes, frame.offset)
    if len(packed) != frame.nbytes:
        raise OSError(f"cannot read {frame.nbytes} bytes at byte {frame.offset}: the file has {len(packed)} of them.")
    return packed


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)


register_carrier_definition(
    ZstdTiles,
    CarrierDefinition(
        storage=StorageProvider(
            supports_dtype=_supports,
            physical_size=_size,
            allocate=_allocate,
            release=_release,
            read=_read,
            write=_write,
            elementwise_fallback=True,
            read_runs=_read_runs,
            write_runs=_write_runs,
        ),
        facets=(Compression(),),
    ),
)


def main() -> None:
    """A 1024 x 1024 table in memory is evicted into compressed tiles, and two of its tiles are brought back."""
    n, tile = 1024, 64
    wave = torch.sin(torch.arange(n) / 40.0)
    table = (100 * torch.outer(wave, wave)).round().to(torch.int8)
    layout = Layout.row_major(n, n)
    disk = ZstdTiles(0, dtype=DType.Int8)
    tiled = TiledEvictable(
        CPU.wrap(table.reshape(-1).clone()), disk, (n // tile, n // tile), (tile, tile), layout=layout
    )
    tiled.evict(TileSelection([range(n // tile), range(n // tile)]))
    compression = disk.require_facet(Compression)
    print(f"{table.nbytes} bytes in {n // tile}x{n // tile} tiles took {compression.stored_nbytes(disk)} bytes,")
    print(f"a ratio of {compression.ratio(disk):.1f}; in memory: {len(tiled.primary_tiles.coordinates)} tiles")
    picked = tiled.project(Tensor(tiled, 0, layout), TileSelection([[3], [0, 7]])).wait()
    wanted = torch.cat([table[192:256, :64], table[192:256, 448:512]], dim=1)
    print(f"two tiles came back equal: {torch.equal(picked.torch(), wanted)}")
    tiled.release()


if __name__ == "__main__":
    main()
