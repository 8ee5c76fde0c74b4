"""What tiles cost: requests that return, tiles that are gathered and put back, and the overhead of one tile.

Every limit is a ratio within this run, or a time that does not depend on the machine by much. The contestants take
turns for some rounds; the best one counts for short calls, the median for copies.

- returns: the time until `promote_async` and `project` return, for tiles of 1 KiB to 64 MiB, in memory and on disk.
- copies: 8 of 128 tiles of 9 MiB gathered, scattered and sent back as a gradient, beside torch on the same memory.
- footprints: the check that a Tensor keeps to the tiles of its carrier, for (128, 1536, 2048), first and cached.
- overhead: microseconds per tile of 1 KiB, for more and more tiles in one request.

    python benchmarks/tiles.py            # about a minute, 4 GB
    python benchmarks/tiles.py --quick    # smaller tiles, about 2 seconds
    python benchmarks/tiles.py --json | python -m json.tool
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import strideweave as sw
from strideweave.carriers.tiled_evictable.boxes import boxes_of
from strideweave.carriers.tiled_evictable.compatibility import incompatibility
from strideweave.carriers.tiled_evictable.geometry import Geometry

RETURN_RATIO_LIMIT = 2.0
"""The slowest return over the fastest: 1 where the bytes of a tile cost nothing."""
COPY_RATIO_LIMIT = 1.3
FOOTPRINT_LIMIT_MS = 1.0
OVERHEAD_LIMIT_US = 60.0
_TILES_PER_RETURN = 4
_CACHES_NBYTES = 2**26
"""More than the caches of a core have."""
_PAUSE_S = 0.01

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run measures. Units: bytes."""

    return_tile_nbytes: tuple[int, ...]
    return_rounds: int
    tiles: int
    tile_shape: tuple[int, int]
    copy_rounds: int
    overhead_tiles: tuple[int, ...]
    overhead_rounds: int


FULL = Size((2**10, 2**15, 2**20, 2**23, 2**26), 15, 128, (1536, 3072), 15, (64, 512, 4096), 7)
QUICK = Size((2**10, 2**18, 2**22), 10, 32, (512, 768), 5, (64, 512), 3)


def seconds(work: Work) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# -- returns ---------------------------------------------------------------------------------------------------------


@contextmanager
def in_tiles(values: torch.Tensor, tiles: int, *, where: str, budget: int | None = None) -> Iterator[sw.Tensor]:
    """A Tensor of one mode over so many tiles; all of them begin in "slots", in "memory" beyond it, or on "disk"."""
    dtype = sw.from_torch(values).dtype()
    full = sw.CPU.wrap(values)
    if where == "slots":
        primary, secondary = full, sw.CPU(0, dtype=dtype)
    elif where == "memory":
        primary, secondary = sw.CPU(0, dtype=dtype), full
    else:
        primary, secondary = sw.CPU(0, dtype=dtype), sw.move(sw.from_torch(values), sw.FileBacked(dtype=dtype)).carrier
    carrier = sw.TiledEvictable(primary, secondary, (tiles,), (values.numel() // tiles,), budget=budget)
    try:
        yield sw.Tensor(carrier, 0, carrier.layout)
    finally:
        carrier.release()


def measure_returns(size: Size) -> list[dict[str, Any]]:
    """One row for each request and place. Units: microseconds until the handle is there."""
    best: dict[str, dict[int, float]] = {}
    other = torch.zeros(_CACHES_NBYTES // 4)

    def note(name: str, nbytes: int, request: Callable[[], sw.AwaitResult[Any]]) -> None:
        # Copies of large tiles leave nothing in the caches for what follows, and cores that sleep; so must small ones.
        other.add_(1.0)
        time.sleep(_PAUSE_S)
        began = time.perf_counter()
        handle = request()
        took_us = (time.perf_counter() - began) * 1e6
        handle.wait()
        of_name = best.setdefault(name, {})
        of_name[nbytes] = min(took_us, of_name.get(nbytes, took_us))

    every = sw.TileSet((k,) for k in range(_TILES_PER_RETURN))
    selection = sw.TileSelection([range(_TILES_PER_RETURN)])
    for nbytes in size.return_tile_nbytes:
        values = torch.ones(_TILES_PER_RETURN * nbytes // 4)
        for where in ("slots", "memory", "disk"):
            with in_tiles(values, _TILES_PER_RETURN, where=where) as tensor:
                carrier = tensor.carrier
                for _ in range(size.return_rounds):
                    if where == "slots":
                        note("project, in primary", nbytes, lambda c=carrier, t=tensor: c.project(t, selection))
                        continue
                    note(f"promote_async, from {where}", nbytes, lambda c=carrier: c.promote_async(every))
                    carrier.evict(every)
                    note(f"project, from {where}", nbytes, lambda c=carrier, t=tensor: c.project(t, selection))
                    carrier.evict(every)
    return [
        {"request": name, "us": {str(k): us for k, us in by_size.items()}, "ratio": _growth(by_size)}
        for name, by_size in best.items()
    ]


def _growth(by_size: dict[int, float]) -> float:
    """The slowest over the time of the smallest size."""
    return max(by_size.values()) / by_size[min(by_size)]


# -- copies ----------------------------------------------------------------------------------------------------------


def measure_copies(size: Size) -> list[dict[str, Any]]:
    """One row for each way to move 8 tiles. Units: milliseconds, the median of the rounds."""
    count, (rows, columns) = size.tiles, size.tile_shape
    values = torch.ones(count, rows, columns, dtype=torch.bfloat16)
    chosen = [(k * 37 + 5) % count for k in range(8)]
    index, selection = torch.tensor(chosen), sw.TileSelection([chosen, [0], [0]])
    layout = sw.Layout.row_major(count, rows, columns)
    flat, dtype, tile = values.reshape(-1), sw.DType.BFloat16, (1, rows, columns)
    grid = (count, 1, 1)
    in_place = sw.TiledEvictable(sw.CPU.wrap(flat), sw.CPU(0, dtype=dtype), grid, tile, layout=layout)
    in_slots = sw.TiledEvictable(
        sw.CPU(0, dtype=dtype), sw.CPU.wrap(flat), grid, tile, layout=layout, budget=16 * rows * columns * 2
    )
    in_slots.promote(selection)
    tensors = [sw.Tensor(carrier, 0, layout) for carrier in (in_place, in_slots)]
    wanting = sw.Tensor(in_place, 0, layout, requires_grad=True)
    picked = torch.ones(8, rows, columns, dtype=torch.bfloat16)
    compact, place = sw.from_torch(picked), torch.empty_like(picked)

    def gradient() -> None:
        wanting.grad = None
        in_place.project(wanting, selection).wait().backward(compact)

    work: dict[str, tuple[Work, str]] = {
        "index_select": (lambda: torch.index_select(values, 0, index), ""),
        "copy": (lambda: place.copy_(picked), ""),
        "copy into fresh memory": (picked.clone, ""),
        "project, tiles of a full carrier": (
            lambda: in_place.project(tensors[0], selection).wait(),
            "index_select",
        ),
        "project, tiles in slots": (lambda: in_slots.project(tensors[1], selection).wait(), "index_select"),
        "zeros, index_copy": (lambda: torch.zeros_like(values).index_copy_(0, index, picked), ""),
        "scatter": (lambda: in_place.scatter(compact, tensors[0], selection).wait(), "zeros, index_copy"),
        "index_select, zeros, index_add": (
            lambda: (torch.index_select(values, 0, index), torch.zeros_like(values).index_add_(0, index, picked)),
            "",
        ),
        "project and its gradient": (gradient, "index_select, zeros, index_add"),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for once, _ in work.values():
        once()  # the first time pays for caches and threads
    for _ in range(size.copy_rounds):
        for name, (once, _) in work.items():
            times[name].append(seconds(once))
    wanting.grad = None
    median = {name: statistics.median(taken) * 1e3 for name, taken in times.items()}
    for carrier in (in_place, in_slots):
        carrier.release()
    return [
        {
            "work": name,
            "ms": median[name],
            "peer": peer or None,
            "ratio": median[name] / median[peer] if peer else None,
            "of_copy": median[name] / median["copy into fresh memory"],
        }
        for name, (_, peer) in work.items()
    ]


# -- footprints ------------------------------------------------------------------------------------------------------


def footprint_layouts() -> dict[str, sw.Layout]:
    """Layouts of a (128, 1536, 2048) tensor that keep to row-major tiles of (1, 1536, 2048)."""
    shape, stride, expert = sw.Shape, sw.Stride, 1536 * 2048
    return {
        "the carrier's own": sw.Layout.row_major(128, 1536, 2048),
        "permuted within tiles": sw.Layout(shape([128, 1536, 2048]), stride([expert, 1, 1536])),
        "nested within tiles": sw.Layout(
            shape([(8, 16), (32, 48), (64, 32)]), stride([(expert, 8 * expert), (64, 2048 * 32), (1, 2048)])
        ),
    }


def measure_footprints(size: Size) -> list[dict[str, Any]]:
    """One row for each Layout. Units: milliseconds for the first check, microseconds for one more."""
    geometry = Geometry.make((128, 1, 1), (1, 1536, 2048), sw.Layout.row_major(128, 1536, 2048))
    lines = []
    for name, layout in footprint_layouts().items():
        first = cached = float("inf")
        for _ in range(size.overhead_rounds):
            incompatibility.cache_clear()
            boxes_of.cache_clear()
            first = min(first, seconds(lambda at=layout: (geometry.require_compatible(0, at), boxes_of(geometry, at))))
            again = seconds(lambda at=layout: [geometry.require_compatible(0, at) for _ in range(1000)])
            cached = min(cached, again / 1000)
        lines.append({"layout": name, "first_ms": first * 1e3, "cached_us": cached * 1e6})
    return lines


# -- overhead --------------------------------------------------------------------------------------------------------


def overhead_of(count: int) -> dict[str, float]:
    """Microseconds per tile of each request over `count` tiles of 1 KiB."""
    every = sw.TileSet((k,) for k in range(count))
    selection = sw.TileSelection([range(count)])
    taken: dict[str, float] = {}
    values = torch.ones(count * 256)
    with in_tiles(values, count, where="memory") as tensor:
        carrier = tensor.carrier
        taken["project, from memory"] = seconds(lambda: carrier.project(tensor, selection).wait())
        carrier.evict(every)
        taken["promote"] = seconds(lambda: carrier.promote(every))
        taken["project, in primary"] = seconds(lambda: carrier.project(tensor, selection).wait())
        taken["evict, clean"] = seconds(lambda: carrier.evict(every))
        compact = sw.from_torch(values)
        handles: list[sw.Tensor] = []
        taken["scatter"] = seconds(lambda: handles.append(carrier.scatter(compact, tensor, selection).wait()))
        result = handles.pop()
        taken["evict, dirty"] = seconds(lambda: result.carrier.evict(every))
        result.carrier.release()
    with in_tiles(values, count, where="memory", budget=count // 8 * 1024) as tensor:
        carrier = tensor.carrier
        taken["project, budget of an eighth"] = seconds(lambda: carrier.project(tensor, selection).wait())
        singles = [sw.TileSelection([[k]]) for k in range(count)]
        taken["project, one at a time"] = seconds(
            lambda: [carrier.project(tensor, single).wait() for single in singles]
        )
    with in_tiles(values, count, where="memory", budget=count // 2 * 1024) as tensor:
        tensor.requires_grad_()
        picked = tensor.carrier.project(tensor, selection).wait()
        taken["gradient, budget of a half"] = seconds(lambda: picked.backward(compact))
        gradient = tensor.grad.carrier  # half of its tiles fill primary, all of them dirty
        others = gradient.secondary_tiles
        missing = sw.TileSelection([[k for (k,) in others.coordinates]])
        # Both are about half of the tiles.
        taken["project, primary all dirty"] = 2 * seconds(lambda: gradient.project(tensor.grad, missing).wait())
        taken["promote, primary all dirty"] = 2 * seconds(lambda: gradient.promote(others))
    taken["TileSet"] = seconds(lambda: sw.TileSet((k,) for k in range(count)))
    taken["TileSelection"] = seconds(lambda: sw.TileSelection([range(count)]).tile_set)
    return {name: s / count * 1e6 for name, s in taken.items()}


def measure_overhead(size: Size) -> list[dict[str, Any]]:
    """One row for each request. Units: microseconds per tile, the best of the rounds."""
    best: dict[str, dict[int, float]] = {}
    for _ in range(size.overhead_rounds):
        for count in size.overhead_tiles:
            for name, us in overhead_of(count).items():
                of_name = best.setdefault(name, {})
                of_name[count] = min(us, of_name.get(count, us))
    return [
        {"request": name, "us": {str(k): us for k, us in by_count.items()}, "ratio": _growth(by_count)}
        for name, by_count in best.items()
    ]


# -- the report ------------------------------------------------------------------------------------------------------


def measure(size: Size) -> dict[str, Any]:
    """The whole report as one object whose keys stay as they are within a version."""
    return {
        "benchmark": "tiles",
        "version": 1,
        "limits": {
            "return_ratio": RETURN_RATIO_LIMIT,
            "copy_ratio": COPY_RATIO_LIMIT,
            "footprint_ms": FOOTPRINT_LIMIT_MS,
            "overhead_us": OVERHEAD_LIMIT_US,
        },
        "tile_nbytes": size.tile_shape[0] * size.tile_shape[1] * 2,
        "tiles": size.tiles,
        "threads": torch.get_num_threads(),
        "returns": measure_returns(size),
        "footprints": measure_footprints(size),
        "overhead": measure_overhead(size),
        "copies": measure_copies(size),
    }


def show(report: dict[str, Any]) -> str:
    """The report for people."""
    returns, overhead = report["returns"], report["overhead"]
    sizes = [_bytes(int(n)) for n in returns[0]["us"]]
    tables = [
        (
            f"us until the handle is there, {_TILES_PER_RETURN} tiles; at most {RETURN_RATIO_LIMIT} of the smallest",
            [["tiles of", *sizes, "growth"], *(_spread(row) for row in returns)],
        ),
        (
            f"ms to check that a Tensor keeps to its tiles, (128, 1536, 2048); at most {FOOTPRINT_LIMIT_MS}",
            [
                ["Layout", "first ms", "cached us"],
                *([r["layout"], f"{r['first_ms']:.3f}", f"{r['cached_us']:.2f}"] for r in report["footprints"]),
            ],
        ),
        (
            f"us per tile of 1 KiB; at most {OVERHEAD_LIMIT_US:.0f}, whatever their number",
            [["tiles at once", *overhead[0]["us"], "growth"], *(_spread(row) for row in overhead)],
        ),
        (
            f"8 of {report['tiles']} tiles of {_bytes(report['tile_nbytes'])}, {report['threads']} threads; at most "
            f"{COPY_RATIO_LIMIT} of torch's time",
            [
                ["work", "ms", "of torch's", "of a copy"],
                *(
                    [r["work"], f"{r['ms']:.1f}", f"{r['ratio']:.2f}" if r["peer"] else "", f"{r['of_copy']:.2f}"]
                    for r in report["copies"]
                ),
            ],
        ),
    ]
    return "\n\n".join(f"{title}\n{_table(rows)}" for title, rows in tables)


def _spread(row: dict[str, Any]) -> list[str]:
    return [row["request"], *(f"{us:.1f}" for us in row["us"].values()), f"{row['ratio']:.2f}"]


def _bytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:g} MiB" if nbytes >= 2**20 else f"{nbytes // 2**10} KiB"


def _table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


def main(words: list[str] | None = None) -> int:
    """Measure and print; 0 also when a limit is exceeded, since a busy machine says little."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="smaller tiles, few rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args(words)
    report = measure(QUICK if arguments.quick else FULL)
    print(json.dumps(report, indent=2) if arguments.json else show(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
