"""Reads while the main thread runs Python without a pause: how much of both is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from strideweave.bench.io.data import Size
from strideweave.bench.io.reads import Tiles
from strideweave.public import TileSet

_TILE_NBYTES = 4 * 2**20
_TURNS = 2000


class PythonLoop:
    """Tiles of 4 MiB, alone and beside a loop."""

    def __init__(self, path: Path, size: Size) -> None:
        self._size = size
        self._tiles = Tiles(path, size, _TILE_NBYTES, budget_nbytes=size.pass_nbytes)
        self.alone: list[float] = []
        self.beside: list[float] = []
        self.loop_alone: list[float] = []
        self.loop_beside: list[float] = []

    def measure(self, seed: int) -> None:
        """One more round. Units: bytes per second, turns of the loop per second."""
        wanted = TileSet((tile,) for tile in self._tiles.chosen(self._size, seed))
        self._tiles.make_cold()
        began = time.perf_counter()
        self._tiles.carrier.promote_async(wanted).wait()
        self.alone.append(self._size.pass_nbytes / (time.perf_counter() - began))
        until = time.perf_counter() + 0.1
        self.loop_alone.append(_looped(lambda: time.perf_counter() > until)[0])
        self._tiles.make_cold()
        handle = self._tiles.carrier.promote_async(wanted)
        turns_per_s, seconds = _looped(lambda: handle.done)
        self.beside.append(self._size.pass_nbytes / seconds)
        self.loop_beside.append(turns_per_s)

    def to_json(self) -> dict[str, Any]:
        """What the report keeps. Units: bytes per second."""
        return {
            "tile_nbytes": _TILE_NBYTES,
            "alone_nbytes_per_s": median(self.alone),
            "beside_nbytes_per_s": median(self.beside),
            "ratio": median(b / a for a, b in zip(self.alone, self.beside, strict=True)),
            "loop_ratio": median(b / a for a, b in zip(self.loop_alone, self.loop_beside, strict=True)),
        }

    def close(self) -> None:
        """The carrier is released."""
        with suppress(RuntimeError):  # an interrupted request is still under way
            self._tiles.carrier.release()


def _looped(is_over: Callable[[], bool]) -> tuple[float, float]:
    """Turns per second of a loop that never waits, and how long it ran."""
    turns, began = 0, time.perf_counter()
    while not is_over():
        for _ in range(_TURNS):
            turns += 1
    seconds = time.perf_counter() - began
    return turns / max(seconds, 1e-9), max(seconds, 1e-9)
