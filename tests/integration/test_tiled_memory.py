"""Tiles within a budget: the peak of resident memory, measured by the kernel in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MIB = 2**20
BUDGET = 16 * MIB
SLACK = 16 * MIB
"""What the interpreter, the threads' stacks, bookkeeping of 2048 tiles and the allocator may take besides."""

_COMMON = """
import json, pathlib, sys
import torch
import strideweave as sw
from strideweave.io import default_lanes
torch.set_num_threads(1)
MIB, folder = 2**20, pathlib.Path(sys.argv[1])
TILE, TILES, BUDGET = 16384, 2048, 16 * MIB  # tiles of 64 KiB, 128 MiB of them

def kernel(name):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

def on_file():
    values = torch.arange(TILES, dtype=torch.float32).repeat_interleave(TILE)
    return sw.move(sw.from_torch(values), sw.FileBacked(dtype=sw.DType.Float32)).carrier

def tiled(secondary, budget=BUDGET):
    return sw.TiledEvictable(sw.CPU(0), secondary, (TILES,), (TILE,), budget=budget)

def full(carrier, **options):
    return sw.Tensor(carrier, 0, carrier.layout, **options)

def begin():
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    return kernel("VmRSS")

def end(start, **more):
    print(json.dumps({"grown": kernel("VmHWM") - start, **more}))
"""

_WALK = """
for k in range(3 * TILES):
    tile = k * 37 % TILES
    picked = carrier.project(tensor, sw.TileSelection([[tile]])).wait().torch()
    assert picked[0] == picked[-1] == tile
    if k % 64 == 63:
        rss.append(kernel("VmRSS"))
end(start, rss=rss, read=carrier.statistics().bytes_read)
"""

WALK_A_FILE = (
    _COMMON
    + """
carrier = tiled(on_file())
tensor, rss, start = full(carrier), [], begin()
"""
    + _WALK
)

WALK_A_STORE = (
    _COMMON
    + """
def write():
    values = torch.arange(TILES, dtype=torch.float32).repeat_interleave(TILE)
    whole = sw.TiledEvictable(sw.CPU.wrap(values), sw.FileBacked(folder / "w.tiles"), (TILES,), (TILE,))
    whole.flush()
    whole.release()

write()
carrier = sw.TiledEvictable.open(folder / "w.tiles", budget=BUDGET)
tensor, rss, start = full(carrier), [], begin()
"""
    + _WALK
)

SCATTER = (
    _COMMON
    + """
carrier = tiled(on_file())
template = full(carrier)
selection = sw.TileSelection([range(0, TILES, 16)])  # 8 MiB
compact = sw.from_torch(torch.ones(128 * TILE))
rss, start = [], begin()
for k in range(30):
    result = carrier.scatter(compact, template, selection, "add" if k % 2 else "replace").wait()
    got = result.carrier.project(result, sw.TileSelection([[16 * 77]])).wait().torch()
    assert got[0] == got[-1] == (16 * 77 + 1 if k % 2 else 1)
    result.carrier.evict(selection)
    result.carrier.release()
    rss.append(kernel("VmRSS"))
end(start, rss=rss, read=carrier.statistics().bytes_read)
"""
)

GRADIENT = (
    _COMMON
    + """
carrier = tiled(on_file())
tensor = full(carrier, requires_grad=True)
start = begin()
for part in range(2):
    chosen = sw.TileSelection([range(part, TILES, 4)])  # 32 MiB, which is twice the budget
    picked = carrier.project(tensor, chosen).wait()
    picked.backward(sw.from_torch(torch.full((512 * TILE,), part + 2.0)))
    del picked
gradient = tensor.grad.carrier
counts = [len(gradient.primary_tiles), len(gradient.secondary_tiles), len(gradient.valid_tiles)]
for tile, value in ((0, 2.0), (1, 3.0), (4 * 300 + 1, 3.0), (2, 0.0), (2047, 0.0)):
    got = gradient.project(tensor.grad, sw.TileSelection([[tile]])).wait().torch()
    assert bool((got == value).all()), (tile, got)
end(start, counts=counts, written=gradient.statistics().bytes_written)
"""
)


def measure(script: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    if "clear_refs" in done.stderr:
        pytest.skip(f"this kernel cannot reset the peak of a process: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


@pytest.mark.parametrize("script", [WALK_A_FILE, WALK_A_STORE], ids=["file", "store"])
def test_memory_of_thousands_of_projections_is_the_budget_and_flat(script: str, tmp_path: Path) -> None:
    """Tile by tile through a tensor of eight budgets, three times over: 6144 steps."""
    measured = measure(script, tmp_path)
    assert measured["grown"] < BUDGET + SLACK
    assert measured["read"] > 300 * MIB  # it did go through the file, again and again
    last = measured["rss"][len(measured["rss"]) // 2 :]
    assert max(last) - min(last) < MIB


def test_memory_of_scatter_is_the_touched_tiles_of_both_carriers(tmp_path: Path) -> None:
    """8 MiB into fresh carriers of 128 MiB, 30 times: "add" brings the template's tiles into its budget."""
    measured = measure(SCATTER, tmp_path)
    template, result = 8 * MIB, 8 * MIB
    assert measured["grown"] < template + result + SLACK
    last = measured["rss"][10:]
    assert max(last) - min(last) < 4 * MIB


def test_memory_of_a_gradient_beyond_the_budget_is_budgets_and_compact_parts(tmp_path: Path) -> None:
    """Two projections of twice the budget; their gradients spill to files, and so does the sum of both."""
    measured = measure(GRADIENT, tmp_path)
    compact, cotangent = 32 * MIB, 32 * MIB
    carriers = 4  # the source, the gradient there was, the one that backward made, and their sum
    assert measured["grown"] < carriers * BUDGET + compact + cotangent + SLACK
    in_primary, in_secondary, valid = measured["counts"]
    assert (in_primary, in_secondary, valid) == (256, 768, 2048)  # a budget of 256 tiles of the 1024 written ones
    assert measured["written"] >= 768 * 64 * 1024
