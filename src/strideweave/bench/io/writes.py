"""Dirty tiles that are flushed, beside raw writes of as many bytes; both are durable at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from strideweave.bench.disk import Access, RawFile
from strideweave.bench.io.data import Size
from strideweave.public import CPU, DType, FileBacked, TiledEvictable, TileSet

_TILE_NBYTES = 4 * 2**20
_THREADS = 4


class Writes:
    """A file that is written raw, and one that tiles are flushed to."""

    def __init__(self, folder: Path, size: Size) -> None:
        nbytes = min(size.pass_nbytes, 128 * 2**20)
        self._count = nbytes // _TILE_NBYTES
        self._nbytes = self._count * _TILE_NBYTES
        self._noise = np.random.default_rng(7).bytes(_TILE_NBYTES)
        self._paths = [folder / "raw.bin", folder / "tiles.bin"]
        for path in self._paths:
            with path.open("wb") as file:
                for _ in range(self._count):
                    file.write(self._noise)
                file.flush()
                os.fsync(file.fileno())
        self._carrier = TiledEvictable(
            CPU(0, dtype=DType.UInt8),
            FileBacked.open(self._paths[1], dtype=DType.UInt8),
            (self._count,),
            (_TILE_NBYTES,),
        )
        self._carrier.promote(TileSet((k,) for k in range(self._count)))
        self._raw = RawFile(self._paths[0], threads=_THREADS, block_nbytes=_TILE_NBYTES, writes=True)
        self.ours: list[float] = []
        self.theirs: list[float] = []

    def measure(self, seed: int) -> None:
        """One more round."""
        access = Access(_TILE_NBYTES, _THREADS)
        probe = self._raw.write(access.places(0, self._nbytes, seed), access)
        self.theirs.append(probe.nbytes_per_s)
        for k in range(self._count):
            self._carrier[k * _TILE_NBYTES] = len(self.ours) % 100 + 1
        began = time.perf_counter()
        self._carrier.flush()
        self.ours.append(self._nbytes / (time.perf_counter() - began))

    def is_right(self) -> bool:
        """Whether the file holds what was last written to the tiles."""
        found = np.fromfile(self._paths[1], np.uint8)
        expected = np.tile(np.frombuffer(self._noise, np.uint8), self._count)
        expected[::_TILE_NBYTES] = (len(self.ours) - 1) % 100 + 1
        return bool(np.array_equal(found, expected))

    def to_json(self) -> dict[str, Any]:
        """What the report keeps. Units: bytes, bytes per second."""
        ratios = [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return {
            "tile_nbytes": _TILE_NBYTES,
            "nbytes": self._nbytes,
            "nbytes_per_s": median(self.ours),
            "rates": self.ours,
            "raw_nbytes_per_s": median(self.theirs),
            "raw_rates": self.theirs,
            "ratio_to_raw": median(ratios),
            "written_nbytes": self._carrier.statistics().bytes_written,
        }

    def close(self) -> None:
        """Nothing is open any more."""
        self._raw.__exit__(None, None, None)
        with suppress(RuntimeError):  # an interrupted flush is still under way
            self._carrier.release()


@contextmanager
def writes_of(folder: Path, size: Size) -> Iterator[Writes]:
    """Both files, closed at the end."""
    writes = Writes(folder, size)
    try:
        yield writes
    finally:
        writes.close()
