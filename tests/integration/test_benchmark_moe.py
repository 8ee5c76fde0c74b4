"""`strideweave bench moe`: its work is what it says, and all contestants compute the same thing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strideweave.bench.moe import parts, work
from strideweave.checkpoint import read_header

SMALL = work.Work(hidden=256, steps=4)
ROOT = Path(__file__).parents[2]


def started(*arguments: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "moe_decode.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def report_of(*arguments: str) -> dict[str, Any]:
    """What the benchmark prints; it must succeed and leave no control group behind."""
    process = started(*arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert not list(Path("/sys/fs/cgroup").glob(f"**/strideweave-{process.pid}-*"))
    report: dict[str, Any] = json.loads(output)  # nothing else is on standard output
    return report


def test_routes_of_a_seed_are_the_same_each_time_and_others_for_another() -> None:
    one, again, other = (work.draw_routes(work.Work(seed=seed)) for seed in (7, 7, 8))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_routes_choose_distinct_experts_with_the_locality_they_claim() -> None:
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


def test_routes_of_prefill_use_every_expert_equally_often() -> None:
    prefill = work.Work().prefill()
    routes = work.draw_prefill_routes(prefill)
    assert routes.shape == (2, 2, 32, 2)
    for step in routes:
        for layer in step:
            assert np.array_equal(np.bincount(layer.reshape(-1)), np.full(32, 2))


def test_weights_are_a_safetensors_file_that_its_own_reader_reads(tmp_path: Path) -> None:
    from safetensors import safe_open

    small = work.Work(layers=1, experts=2, hidden=4, inner=3)
    work.write_weights(small, tmp_path / "w.safetensors")
    entries = read_header(tmp_path / "w.safetensors").entries
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        assert sorted(file.keys()) == sorted(entries)
        first = file.get_tensor("layers.0.experts.000.w1")
    assert first.shape == (3, 4)
    assert 0 < first.abs().max() <= (3 / 4) ** 0.5


def test_benchmark_of_all_of_ours_computes_the_same_and_leaves_nothing(owned_cache: Path) -> None:
    ours = ["strideweave", "ahead-0.8", "schedule", "schedule-ahead", "project", "project-into", "positioned"]
    report = parts.measure(base=SMALL, rounds=1, parts=["decode"], contestants=ours).to_json()
    assert report["is_equal"]
    part = report["parts"]["decode"]
    lines = part["contestants"]
    assert list(lines) == ours
    expert_nbytes = part["work"]["expert_nbytes"]
    reads = lines["positioned"]
    assert reads["own_read_nbytes"] == part["expert_uses"] * expert_nbytes
    for name in ("strideweave", "schedule", "project"):
        line = lines[name]
        assert part["floor_nbytes"] <= line["own_read_nbytes"] <= reads["own_read_nbytes"]
        assert line["own_read_nbytes"] == round((1 - line["hit_rate"]) * part["expert_uses"]) * expert_nbytes
        assert line["hit_rate"] <= part["best_hit_rate"]
    assert lines["schedule"]["own_read_nbytes"] <= lines["strideweave"]["own_read_nbytes"]
    assert lines["schedule-ahead"]["precision"] == 1.0
    assert lines["ahead-0.8"]["precision"] < 1.0
    for line in lines.values():
        assert line["peak_anonymous_nbytes"] < part["work"]["nbytes"]
    assert not list(owned_cache.rglob("bench-*"))  # the session directory stays until the process ends


def test_benchmark_of_prefill_and_of_experts_that_fit_reads_each_expert_as_often_as_it_says(
    owned_cache: Path,
) -> None:
    names = ["strideweave", "ram", "resident"]
    report = parts.measure(base=SMALL, rounds=1, parts=["prefill", "fits"], contestants=names).to_json()
    assert report["is_equal"]
    prefill, fits = report["parts"]["prefill"], report["parts"]["fits"]
    assert prefill["expert_uses"] == 128
    assert prefill["contestants"]["strideweave"]["own_read_nbytes"] >= prefill["floor_nbytes"]
    assert fits["contestants"]["resident"]["hit_rate"] == 1.0
    assert fits["contestants"]["resident"]["own_read_nbytes"] == fits["work"]["nbytes"]
    assert [target["name"] for target in report["targets"]] == [
        "prefill: rate / numpy memmap",
        "everything fits: rate / all in RAM",
        "prefill: floor / time",
    ]


def test_benchmark_that_is_interrupted_leaves_nothing(owned_cache: Path) -> None:
    process = started("--quick", "--parts", "decode", "--contestants", "strideweave", "--rounds", "500")
    assert process.stderr is not None
    told = ""
    while "round 2" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not [path for path in owned_cache.rglob("*") if path.is_file()]
    assert not list(Path("/sys/fs/cgroup").glob(f"**/strideweave-{process.pid}-*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": ["coding"]}, "the parts are decode, prefill, fits"),
        ({"contestants": ["somebody"]}, "the contestants are ram, strideweave"),
        ({"parts": ["fits"], "contestants": ["memmap"]}, "none of memmap takes part"),
        ({"rounds": 0}, "each is at least 1"),
    ],
)
def test_benchmark_refuses_what_it_cannot_measure(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parts.measure(**options)


def test_contestant_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="zarr is not installed"):
        parts.measure(parts=["decode"], contestants=["zarr"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_benchmark_of_all_contestants_gives_one_checksum_and_the_stable_keys(owned_cache: Path) -> None:
    report = report_of("--quick", "--json")
    assert report["is_equal"]
    part = report["parts"]["decode"]
    assert tuple(part["contestants"]) == parts.PARTS["decode"]
    took_part = {name: line for name, line in part["contestants"].items() if "skipped" not in line}
    assert len({line["checksum"] for line in took_part.values()}) == 1
    for name, line in took_part.items():
        assert line["steps_per_s"] > 0
        is_limited = not report["no_limit_reason"] and name != "ram"
        assert (line["limit_nbytes"] is not None) == is_limited
    assert not [path for path in owned_cache.rglob("*") if path.is_file()]
