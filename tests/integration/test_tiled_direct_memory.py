"""A direct operation streams: an operand four times the budget never becomes memory. Measured from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

MIB = 2**20
ROWS = COLUMNS = 8192
OPERAND = ROWS * COLUMNS * 4
BUDGET = OPERAND // 4
TILES = {"rows": (256, COLUMNS), "blocks": (1024, 1024)}
"""The shapes of a tile: one run in the file, and many."""

_MEASURE = """
import gc, json, math, sys, threading, time
import torch
import strideweave as sw
from strideweave import CPU, FileBacked, Layout, Tensor, TiledEvictable, from_torch
torch.set_num_threads(1)
path, budget, rows, columns, tile, names = json.loads(sys.argv[1])

def resident():
    found = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("Rss"))
    return sum(int(found[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024

peak = 0
over = False

def watch():
    global peak
    while not over:
        peak = max(peak, resident())
        time.sleep(0.001)

def operand():
    layout = Layout.row_major(rows, columns)
    disk, grid = FileBacked.open(path, dtype=sw.DType.Float32), (rows // tile[0], columns // tile[1])
    carrier = TiledEvictable(CPU(0), disk, grid, tile, layout=layout, budget=budget)
    return carrier, Tensor(carrier, 0, layout)

# What a row of the operand adds up to: its values are column % 5 - 2 + (row % 3).
line = (torch.arange(float(columns)) % 5 - 2)
shift = torch.arange(float(rows)) % 3
thin = (torch.arange(columns * 8.0).reshape(columns, 8) % 3 - 1)
row = torch.ones(1, columns) * 2

OPERATIONS = {
    "reduce_sum": (lambda x: sw.reduce_sum(x, axis=1), lambda: line.sum() + columns * shift),
    "matmul": (lambda x: sw.matmul(x, from_torch(thin)), lambda: (line @ thin) + shift[:, None] * thin.sum(0)),
    "add": (lambda x: sw.add(x, from_torch(row)), lambda: None),
    "mul": (lambda x: sw.mul(x, from_torch(row)), lambda: None),
    "relu": (sw.relu, lambda: None),
    "dense": (lambda x: sw.relu(x.materialize()), lambda: None),
}
POINTWISE = {"add": lambda v: v + 2, "mul": lambda v: v * 2, "relu": torch.relu, "dense": torch.relu}

def right(name, found):
    expected = OPERATIONS[name][1]()
    if expected is not None:
        return torch.equal(found, expected)
    return all(torch.equal(found[k], POINTWISE[name](line + shift[k])) for k in (0, 1, 2, 4095, rows - 1))

def forward(name):
    carrier, x = operand()
    result = OPERATIONS[name][0](x)
    return carrier, [x, result], right(name, result.torch())

def backward(name):
    carrier, x = operand()
    x.requires_grad_()
    weight = from_torch(thin.clone()).requires_grad_()
    if name == "matmul":
        result = sw.matmul(x, weight)
    else:
        result = OPERATIONS[name][0](x)
    kept = [x, result, weight]
    cotangent = torch.ones(result.torch().shape) if name != "reduce_sum" else torch.ones(rows)
    result.backward(from_torch(cotangent))
    gradient = x.grad.carrier
    part = gradient.project(x.grad, sw.TileSelection([[1], [0]])).wait(60).torch()
    first = line[: tile[1]] + shift[tile[0] : 2 * tile[0], None]
    wanted = {
        "reduce_sum": lambda: torch.ones(tile),
        "matmul": lambda: thin.sum(1)[: tile[1]].expand(tile),
        "mul": lambda: torch.full(tile, 2.0),
        "add": lambda: torch.ones(tile),
        "relu": lambda: (first > 0).float(),
    }[name]()
    fine = torch.equal(part, wanted)
    if name == "matmul":
        fine = fine and torch.equal(weight.grad.torch(), (rows * line + shift.sum())[:, None].expand(columns, 8))
    return carrier, kept, fine

warm = from_torch(torch.ones(64, 64))
sw.reduce_sum(sw.relu(sw.matmul(warm.requires_grad_(), warm))).backward()
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
report = {}
for name in names:
    gc.collect()
    direction, _, operation = name.partition(" ")
    start = peak = resident()
    began = time.perf_counter()
    carrier, kept, fine = (forward if direction == "forward" else backward)(operation)
    report[name] = {"grown": peak - start, "fine": fine, "s": round(time.perf_counter() - began, 2)}
    del kept
    carrier.release()
over = True
watcher.join()
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def operand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 MiB of small whole numbers, so that every sum is exact."""
    path = tmp_path_factory.mktemp("operand") / "values"
    line = (np.arange(COLUMNS) % 5 - 2).astype(np.float32)
    with path.open("wb") as file:
        three = np.stack([line, line + 1, line + 2])
        block = np.tile(three, (256, 1))
        for start in range(0, ROWS, len(block)):
            file.write(block[: ROWS - start].tobytes())
    assert path.stat().st_size == OPERAND
    return path


def measure(path: Path, tile: tuple[int, int], names: list[str]) -> dict[str, dict[str, float]]:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(_MEASURE),
            json.dumps([str(path), BUDGET, ROWS, COLUMNS, list(tile), names]),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    assert all(one["fine"] for one in report.values()), report
    return report


def allowed(tile: tuple[int, int], dense: int, carriers: int = 1) -> int:
    """The budget of every tiled carrier, what is dense by its meaning, three tiles, and 100 MiB."""
    return carriers * BUDGET + dense + 3 * tile[0] * tile[1] * 4 + 100 * MIB


SMALL = MIB
RESULTS = {"reduce_sum": SMALL, "matmul": SMALL, "add": OPERAND, "mul": OPERAND, "relu": OPERAND}
"""The bytes of a result."""


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_direct_operation_stays_within_budget_result_three_tiles_and_100_mib(
    operand: Path, tile: tuple[int, int]
) -> None:
    report = measure(operand, tile, [f"forward {name}" for name in RESULTS])
    grown = {name: report[f"forward {name}"]["grown"] for name in RESULTS}
    over = {name: (grown[name] / MIB, allowed(tile, RESULTS[name]) / MIB) for name in RESULTS}
    assert all(found <= most for found, most in over.values()), over
    assert grown["relu"] > OPERAND, "the measure sees the result"


def test_backward_stays_within_the_budgets_of_operand_and_gradient(operand: Path) -> None:
    """The dense parts of a backward are the result, which its node keeps, and the cotangent, which the caller made."""
    tile = TILES["rows"]
    dense = {"reduce_sum": SMALL, "matmul": 4 * SMALL, "mul": 2 * OPERAND, "relu": 2 * OPERAND}
    report = measure(operand, tile, [f"backward {name}" for name in dense])
    over = {
        name: (report[f"backward {name}"]["grown"] / MIB, allowed(tile, most, carriers=2) / MIB)
        for name, most in dense.items()
    }
    assert all(found <= most for found, most in over.values()), over


def test_operation_on_a_materialized_operand_breaks_the_same_promise(operand: Path) -> None:
    """The measure sees a copy of the operand: the promise is not met by whatever is measured."""
    tile = TILES["rows"]
    grown = measure(operand, tile, ["forward dense"])["forward dense"]["grown"]
    assert grown > allowed(tile, OPERAND)
