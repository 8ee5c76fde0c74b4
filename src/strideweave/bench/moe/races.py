"""The contestants of one part take turns, cold, each in a process of its own; ratios are taken within each round."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from strideweave.bench.disk import Probe, probe_disk
from strideweave.bench.measure import drop_page_cache
from strideweave.bench.moe.contestants import ENTRIES, why_absent
from strideweave.bench.moe.work import Routes, Work, accesses, write_weights
from strideweave.bench.running import Say
from strideweave.bench.workers import KILLED, Run, Workers
from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from strideweave.io import cache_root, publish, session_directory

HEADROOM_NBYTES = 128 * 2**20
"""What a contestant may have beside the budget: what it changes of the memory that it shares, and its own."""
PROBE_READS = 16


@dataclass(frozen=True, slots=True)
class Part:
    """One race: a work, and those who do it."""

    name: str
    work: Work
    routes: Routes
    contestants: tuple[str, ...]
    most_s: float
    """What all rounds together may take when nobody asked for a number of them. Units: seconds."""


@contextmanager
def weights_of(work: Work, directory: Path | None, say: Say, *, keep: bool) -> Iterator[Path]:
    """A folder that holds the experts; it is removed at the end, or with `keep` only what else is in it."""
    home = directory or (cache_root() / "benchmarks" if keep else session_directory())
    shape = f"{work.layers}x{work.experts}x{work.hidden}x{work.inner}-seed{work.seed}"
    folder = home / (f"moe-{shape}" if keep else f"bench-moe-{os.getpid()}")
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "experts.safetensors"
    try:
        if not weights.exists():
            say(f"writing {work.nbytes / 2**20:.0f} MiB of experts")
            with publish(weights) as partial:
                write_weights(work, partial)
        yield folder
    finally:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path != weights or not keep:
                path.unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def prepare(names: Sequence[str], work: Work, weights: Path, say: Say) -> dict[str, dict[str, Any]]:
    """What contestants write before they start, without a limit. Units: seconds, bytes."""
    prepared = {}
    for name in names:
        write = ENTRIES[name].prepare
        began = time.perf_counter()
        nbytes = write(work, weights) if write else 0
        seconds = time.perf_counter() - began if nbytes else 0.0
        if nbytes:
            say(f"{name} wrote {nbytes / 2**20:.0f} MiB in {seconds:.1f} s")
        prepared[name] = {"prepare_s": seconds, "prepare_nbytes": nbytes}
    return prepared


def compete(
    part: Part, names: Sequence[str], folder: Path, workers: Workers, rounds: int | None, say: Say
) -> tuple[dict[str, list[Run]], list[Probe]]:
    """Every contestant's runs, and the probes of the disk between them.

    Without a number of rounds there are 3, or as many as fit in the time of the part on a machine that is busy.
    """
    (folder / f"{part.name}.json").write_text(part.work.to_json())
    np.save(folder / f"{part.name}.npy", part.routes)
    began, seed = time.perf_counter(), part.work.seed
    runs: dict[str, list[Run]] = {name: [] for name in names}
    probes = []
    for number in range(rounds or 3):
        passed_s = time.perf_counter() - began
        if rounds is None and number and passed_s * (number + 1) / number > part.most_s:
            say(f"{part.name}: no round {number + 1}, since {number} took {passed_s:.0f} s; --rounds asks for more")
            break
        for name in names:
            seed += 1
            entry = ENTRIES[name]
            limit_nbytes = part.work.budget_nbytes + entry.beside * part.work.expert_nbytes + HEADROOM_NBYTES
            probes.append(probe_disk(folder / "experts.safetensors", reads=PROBE_READS, seed=seed))
            drop_page_cache(path for path in folder.rglob("*") if path.is_file())
            run = workers.run(
                "strideweave.bench.moe.jobs:run",
                limit_nbytes=limit_nbytes if entry.is_limited else None,
                contestant=name,
                folder=str(folder),
                part=part.name,
            )
            runs[name].append(run)
            outcome = f"{run.told['run_s']:.2f} s" if run.told else run.failure
            say(f"{part.name}, round {number + 1}: {name:15} {outcome}")
    return runs, probes


def race(
    part: Part, folder: Path, workers: Workers, *, only: Sequence[str], rounds: int | None, say: Say
) -> dict[str, Any]:
    """The report of one part as one object whose keys stay as they are within a version."""
    work = part.work
    asked = [name for name in part.contestants if name in only]
    skipped = {name: reason for name in asked if (reason := why_absent(name))}
    names = [name for name in asked if name not in skipped]
    prepared = prepare(names, work, folder / "experts.safetensors", say)
    runs, probes = compete(part, names, folder, workers, rounds, say)
    used = accesses(part.routes)
    hits = optimal_hits(used, work.slots)
    floor_nbytes = (len(used) - hits) * work.expert_nbytes
    rates = [probe.nbytes_per_s for probe in probes]
    lines = {name: {**summarize(name, runs, work, floor_nbytes, median(rates)), **prepared[name]} for name in names}
    checksums = {line["checksum"] for line in lines.values() if "checksum" in line}
    return {
        "work": {
            **asdict(work),
            "expert_nbytes": work.expert_nbytes,
            "nbytes": work.nbytes,
            "budget_nbytes": work.budget_nbytes,
        },
        "is_direct": all(probe.is_direct for probe in probes),
        "nbytes_per_s": median(rates),
        "slowest_nbytes_per_s": min(rates),
        "fastest_nbytes_per_s": max(rates),
        "rounds": len(runs[names[0]]),
        "expert_uses": len(used),
        "best_hit_rate": hits / len(used),
        "floor_nbytes": floor_nbytes,
        "floor_s": floor_nbytes / median(rates),
        "contestants": {**lines, **{name: {"skipped": reason} for name, reason in skipped.items()}},
        "is_equal": len(checksums) == 1 and all(line.get("failed") in (None, KILLED) for line in lines.values()),
    }


def summarize(
    name: str, runs: dict[str, list[Run]], work: Work, floor_nbytes: int, nbytes_per_s: float
) -> dict[str, Any]:
    """The line of one contestant: medians over the rounds, ratios taken within each round."""
    failures = [run.failure for run in runs[name] if run.told is None]
    if failures:
        return {"failed": failures[0]}
    told = [run.told for run in runs[name] if run.told is not None]

    def middle(key: str) -> Any:
        return median(each[key] for each in told) if told[0].get(key) is not None else None

    def rate_over(other: str) -> float | None:
        pairs = zip(runs.get(other, ()), told, strict=False)
        ratios = [theirs.told["run_s"] / ours["run_s"] for theirs, ours in pairs if theirs.told]
        return median(ratios) if ratios else None

    def rate_over_ideal() -> float | None:
        """Of the rate at which its reads and the computing of everything-in-RAM overlap perfectly."""
        computing_s = [run.told["run_s"] for run in runs.get("ram", ()) if run.told]
        if "hit_rate" not in told[0] or not computing_s:  # the page cache hides what others read
            return None
        ideal_s = max(middle("bytes_read") / nbytes_per_s, median(computing_s))
        return float(ideal_s / middle("run_s"))

    return {
        "steps_per_s": work.steps / middle("run_s"),
        "ratio_to_strideweave": rate_over("strideweave"),
        "ratio_to_ram": rate_over("ram"),
        "ratio_to_ideal": rate_over_ideal(),
        "times_floor": middle("run_s") * nbytes_per_s / floor_nbytes if floor_nbytes else None,
        "disk_read_nbytes": middle("disk_read_nbytes"),
        "own_read_nbytes": middle("bytes_read"),
        "hit_rate": middle("hit_rate"),
        "stall_s": middle("stall_s"),
        "guesses": middle("guesses"),
        "precision": middle("precision"),
        "peak_anonymous_nbytes": max(each["peak_anonymous_nbytes"] - each["base_anonymous_nbytes"] for each in told),
        "open_s": middle("open_s"),
        "cpu_s": middle("cpu_s"),
        "checksum": "/".join(sorted({each["checksum"] for each in told})),
        "limit_nbytes": runs[name][-1].limit_nbytes,
        "others_cores": median(each["others_cores"] for each in told),
        "run_s": [each["run_s"] for each in told],
    }
