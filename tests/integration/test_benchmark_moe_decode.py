"""The benchmark of decode steps: its work is what it says, and all contestants compute the same thing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def benchmark_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def report_of(*arguments: str) -> dict[str, Any]:
    """What the benchmark prints; it must succeed and leave no control group behind."""
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "moe_decode.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert not list(Path("/sys/fs/cgroup").glob(f"**/strideweave-{process.pid}-*"))
    report: dict[str, Any] = json.loads(output)  # nothing else is on standard output
    return report


def test_routes_of_a_seed_are_the_same_each_time_and_others_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = benchmark_module("moe_work", monkeypatch)
    one, again, other = (work.draw_routes(work.Work(seed=seed)) for seed in (7, 7, 8))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_routes_choose_distinct_experts_with_the_locality_they_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    work = benchmark_module("moe_work", monkeypatch)
    full = work.Work()
    routes = work.draw_routes(full)
    assert routes.shape == (60, 2, 4, 2)
    assert (np.diff(routes, axis=-1) > 0).all()  # ascending, so distinct
    same = np.mean([(before == after).all(-1) for before, after in pairwise(routes)])
    assert same == pytest.approx(0.7, abs=0.07)
    used = work.accesses(routes)
    resident: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = 0
    for tile in used:
        hits += tile in resident
        resident[tile] = None
        resident.move_to_end(tile)
        if len(resident) > full.slots:
            resident.popitem(last=False)
    assert hits / len(used) == pytest.approx(0.75, abs=0.03)


def test_benchmark_of_two_contestants_computes_the_same_and_leaves_nothing(owned_cache: Path) -> None:
    report = report_of("--quick", "--json", "--steps", "3", "--contestants", "strideweave,positioned")
    assert report["is_equal"]
    ours, reads = report["contestants"]["strideweave"], report["contestants"]["positioned"]
    expert_nbytes = report["work"]["expert_nbytes"]
    assert reads["own_read_nbytes"] == report["expert_uses"] * expert_nbytes
    assert report["floor_nbytes"] <= ours["own_read_nbytes"] <= reads["own_read_nbytes"]
    assert ours["own_read_nbytes"] == round((1 - ours["hit_rate"]) * report["expert_uses"]) * expert_nbytes
    assert ours["hit_rate"] <= report["best_hit_rate"]
    assert not [path for path in owned_cache.rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_benchmark_of_all_contestants_gives_one_checksum_and_the_stable_keys(owned_cache: Path) -> None:
    report = report_of("--quick", "--json")
    assert report["is_equal"]
    assert set(report["contestants"]) == {
        "ram",
        "strideweave",
        "memmap",
        "get_tensor",
        "positioned",
        "accelerate",
    }
    took_part = {name: line for name, line in report["contestants"].items() if "skipped" not in line}
    assert len({line["checksum"] for line in took_part.values()}) == 1
    for name, line in took_part.items():
        assert line["steps_per_s"] > 0
        is_limited = report["limit_nbytes"] is not None and name != "ram"
        assert (line["limit_nbytes"] is not None) == is_limited
    assert took_part["strideweave"]["peak_anonymous_nbytes"] < report["work"]["nbytes"]
    assert not [path for path in owned_cache.rglob("*") if path.is_file()]
