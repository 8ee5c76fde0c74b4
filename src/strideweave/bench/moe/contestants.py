"""Everyone who takes part in `bench moe`, by the names that the report uses."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from strideweave.bench.moe import ours, peers
from strideweave.bench.moe.peers import Contestant
from strideweave.bench.moe.work import Work


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant and what the report says of it."""

    contestant: Contestant
    note: str
    """What it remembers experts with."""
    needs: str | None = None
    """The package that must be installed."""
    prepare: Callable[[Work, Path], int] | None = None
    """Writes once what it needs on the disk before it starts; gives back the bytes."""
    is_limited: bool = True
    """Whether it runs under the memory limit."""
    beside: int = 0
    """How many experts it holds beside the budget: results that it asked for."""

    @property
    def is_installed(self) -> bool:
        """Whether its package is there."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


_AHEAD = "the default eviction; promotes one layer ahead, guesses are right {}"

ENTRIES: Final[dict[str, Entry]] = {
    "ram": Entry(
        peers.all_in_ram, "needs 4 times the budget; not limited, reads before the first step", is_limited=False
    ),
    "strideweave": Entry(ours.views, "`stream`: caches in its own slots, and uses them in place"),
    "ahead": Entry(partial(ours.looking_ahead, precision=1.0), _AHEAD.format("always")),
    "ahead-0.9": Entry(partial(ours.looking_ahead, precision=0.9), _AHEAD.format("9 times in 10")),
    "ahead-0.8": Entry(partial(ours.looking_ahead, precision=0.8), _AHEAD.format("8 times in 10")),
    "adaptive-0.6": Entry(
        partial(ours.looking_ahead, precision=0.6, adapts=True),
        _AHEAD.format("6 times in 10") + ", and stops while they are",
    ),
    "schedule": Entry(ours.scheduled, "evicts what all routes need last; reads nothing ahead of its step"),
    "schedule-ahead": Entry(
        partial(ours.looking_ahead, precision=1.0, knows=True), "evicts what all routes need last; reads a layer ahead"
    ),
    "project": Entry(
        partial(ours.projected, recycles=False), "`project` of one expert at a time into fresh memory", beside=8
    ),
    "project-into": Entry(
        partial(ours.projected, recycles=True),
        "`project` of one expert at a time into carriers that are used again",
        beside=8,
    ),
    "resident": Entry(ours.resident, "`stream` over experts that are all in its slots"),
    "memmap": Entry(peers.numpy_memmap, "caches in the page cache, and uses it in place"),
    "from_file": Entry(peers.torch_from_file, "caches in the page cache, and uses it in place"),
    "get_tensor": Entry(peers.safetensors_get_tensor, "caches in the page cache", needs="safetensors"),
    "positioned": Entry(peers.safetensors_positioned, "keeps nothing; the page cache does"),
    "accelerate": Entry(
        peers.accelerate_disk_offload,
        "keeps nothing; the page cache does; needs every weight written again, and a heap that shrinks",
        needs="accelerate",
        prepare=peers.write_offload_folder,
    ),
    "zarr": Entry(
        peers.zarr_chunks,
        "keeps nothing; the page cache does; needs every weight written again",
        needs="zarr",
        prepare=peers.write_zarr,
    ),
    "tensorstore": Entry(
        peers.tensorstore_chunks,
        "a cache of half the budget, beside its page cache; reads what zarr wrote",
        needs="tensorstore",
    ),
}


def why_absent(name: str) -> str | None:
    """Why a contestant cannot take part here; None when it can."""
    entry = ENTRIES[name]
    if not entry.is_installed:
        return f"{entry.needs} is not installed"
    if name == "tensorstore" and not ENTRIES["zarr"].is_installed:
        return "zarr, which writes its array, is not installed"
    return None
