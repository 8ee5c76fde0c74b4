"""Decode steps of a mixture of experts that does not fit in memory: StrideWeave beside its peers.

The work (`moe_work.Work`): 2 layers of 32 experts, two bf16 matrices of 1408 x 2048 each (11 MiB an expert,
704 MiB in all), a budget of a quarter of them, 60 steps of 4 tokens, cold start, one torch thread. Routes are
drawn once for all (`moe_work.draw_routes`). The contestants (`moe_contestants`) take turns for several
rounds, each in a process of its own, with the pages of the files dropped before, and, where that is
permitted, in a control group that limits anonymous memory and page cache together to the budget and a fixed
headroom.

What counts are ratios within the run, and the time over the I/O floor: the bytes that the best possible
eviction would have read, at the rate of direct reads measured between the contestants. Linux only: memory and
bytes come from /proc.

    python benchmarks/moe_decode.py            # under 3 minutes on 2 cores
    python benchmarks/moe_decode.py --quick    # under 40 seconds
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from measure import Disk, Probe, drop_page_cache, memory_limit, probe_disk
from moe_contestants import CONTESTANTS, ENVIRONMENTS, OFFLOAD_FOLDER, PREPARATIONS, UNAVAILABLE
from moe_report import show
from moe_work import Work, accesses, draw_routes, write_weights
from strideweave.carriers.tiled_evictable.optimal import optimal_hits
from strideweave.io import cache_root, publish, session_directory

HEADROOM_NBYTES = 192 * 2**20
"""What a contestant may have beside the budget: Python and torch alone take about 150 MiB."""
PROBE_READS = 16
MOST_S = 165.0
"""What all rounds together may take when nobody asked for a number of them."""


@dataclass(frozen=True, slots=True)
class Run:
    """One contestant in one round: what it told, or why it told nothing."""

    told: dict[str, Any] | None
    limit_nbytes: int | None
    """The memory limit that it ran under, if any."""
    failure: str = ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def folder_of(work: Work, directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """A folder that holds the work; what is in it is removed at the end, or only all but the weights."""
    home = directory or (cache_root() / "benchmarks" if keep else session_directory())
    shape = f"{work.layers}x{work.experts}x{work.hidden}x{work.inner}-seed{work.seed}"
    folder = home / f"moe_decode-{shape}" if keep else home / f"moe_decode-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        weights = folder / "experts.safetensors"
        if not weights.exists():
            say(f"writing {work.nbytes / 2**20:.0f} MiB of experts to {folder}")
            with publish(weights) as partial:
                write_weights(work, partial)
        (folder / "work.json").write_text(work.to_json())
        yield folder
    finally:
        shutil.rmtree(folder / OFFLOAD_FOLDER, ignore_errors=True)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def run_once(contestant: str, folder: Path, limit_nbytes: int | None) -> Run:
    """One contestant in its own process, cold."""
    drop_page_cache(path for path in folder.rglob("*") if path.is_file())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **ENVIRONMENTS.get(contestant, {})}
    script = Path(__file__).with_name("moe_process.py")
    command = [sys.executable, str(script), contestant, str(folder)]
    if limit_nbytes is None:
        return _run(command, environment, None)
    with memory_limit(limit_nbytes) as limit:
        if limit.group is None:
            return _run(command, environment, None)
        return _run([*command, "--group", str(limit.group)], environment, limit_nbytes)


def _run(command: list[str], environment: dict[str, str], limit_nbytes: int | None) -> Run:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0:
        return Run(json.loads(done.stdout.splitlines()[-1]), limit_nbytes)
    if done.returncode == -signal.SIGKILL and limit_nbytes is not None:
        return Run(None, limit_nbytes, "killed by the memory limit")
    say(done.stderr)
    return Run(None, limit_nbytes, f"failed with exit status {done.returncode}")


def prepare(name: str, work: Work, weights: Path) -> dict[str, Any]:
    """What a contestant writes before it starts, without a limit."""
    began = time.perf_counter()
    nbytes = PREPARATIONS[name](work, weights) if name in PREPARATIONS else 0
    seconds = time.perf_counter() - began if nbytes else 0.0
    if nbytes:
        say(f"{name} wrote {nbytes / 2**20:.0f} MiB in {seconds:.1f} s")
    return {"prepare_s": seconds, "prepare_nbytes": nbytes}


def compete(
    names: list[str], folder: Path, limit_nbytes: int, rounds: int | None, seed: int
) -> tuple[dict[str, list[Run]], list[Probe]]:
    """Every contestant's runs, and the probes of the disk between them.

    Without a number of rounds there are 3, or as many as fit in `MOST_S` on a machine that is busy.
    """
    began = time.perf_counter()
    runs: dict[str, list[Run]] = {name: [] for name in names}
    probes = []
    for number in range(rounds or 3):
        passed_s = time.perf_counter() - began
        if rounds is None and number and passed_s * (number + 1) / number > MOST_S:
            say(f"no round {number + 1}: {number} took {passed_s:.0f} s. Ask for more with --rounds")
            break
        for name in names:
            seed += 1
            probes.append(probe_disk(folder / "experts.safetensors", reads=PROBE_READS, seed=seed))
            run = run_once(name, folder, None if name == "ram" else limit_nbytes)
            runs[name].append(run)
            outcome = f"{run.told['run_s']:.2f} s" if run.told else run.failure
            say(f"round {number + 1}: {name:12} {outcome}")
    return runs, probes


def summarize(
    name: str, runs: dict[str, list[Run]], work: Work, floor_nbytes: int, nbytes_per_s: float
) -> dict[str, Any]:
    """The line of one contestant: medians over the rounds, ratios taken within each round."""
    failures = [run.failure for run in runs[name] if run.told is None]
    if failures:
        return {"failed": failures[0]}
    told = [run.told for run in runs[name] if run.told is not None]

    def middle(key: str) -> Any:
        return median(each[key] for each in told) if key in told[0] else None

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
        "times_floor": middle("run_s") * nbytes_per_s / floor_nbytes,
        "disk_read_nbytes": middle("disk_read_nbytes"),
        "own_read_nbytes": middle("bytes_read"),
        "hit_rate": middle("hit_rate"),
        "stall_s": middle("stall_s"),
        "peak_anonymous_nbytes": max(each["peak_anonymous_nbytes"] for each in told),
        "open_s": middle("open_s"),
        "cpu_s": middle("cpu_s"),
        "checksum": "/".join(sorted({each["checksum"] for each in told})),
        "limit_nbytes": runs[name][-1].limit_nbytes,
        "others_cores": max(each["others_cores"] for each in told),
        "run_s": [each["run_s"] for each in told],
    }


def measure(work: Work, arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole report as one object whose keys stay as they are within a version."""
    skipped = {name: UNAVAILABLE[name] for name in arguments.contestants if name in UNAVAILABLE}
    names = [name for name in arguments.contestants if name not in skipped]
    routes = draw_routes(work)
    used = accesses(routes)
    hits = optimal_hits(used, work.slots)
    limit_nbytes = work.budget_nbytes + HEADROOM_NBYTES
    with memory_limit(limit_nbytes) as trial:
        no_limit = trial.reason
    with folder_of(work, arguments.directory, keep=arguments.keep) as folder:
        np.save(folder / "routes.npy", routes)
        disk = Disk.of(folder)
        prepared = {name: prepare(name, work, folder / "experts.safetensors") for name in names}
        runs, probes = compete(names, folder, limit_nbytes, arguments.rounds, work.seed)
    rates = [probe.nbytes_per_s for probe in probes]
    floor_nbytes = (len(used) - hits) * work.expert_nbytes
    lines = {name: {**summarize(name, runs, work, floor_nbytes, median(rates)), **prepared[name]} for name in names}
    checksums = {line["checksum"] for line in lines.values() if "checksum" in line}
    return {
        "benchmark": "moe_decode",
        "version": 1,
        "work": {
            **asdict(work),
            "expert_nbytes": work.expert_nbytes,
            "nbytes": work.nbytes,
            "budget_nbytes": work.budget_nbytes,
        },
        "disk": {
            **asdict(disk),
            "is_direct": all(probe.is_direct for probe in probes),
            "nbytes_per_s": median(rates),
            "slowest_nbytes_per_s": min(rates),
            "fastest_nbytes_per_s": max(rates),
        },
        "limit_nbytes": None if no_limit else limit_nbytes,
        "no_limit_reason": no_limit,
        "rounds": len(runs[names[0]]),
        "expert_uses": len(used),
        "best_hit_rate": hits / len(used),
        "floor_nbytes": floor_nbytes,
        "floor_s": floor_nbytes / median(rates),
        "contestants": {**lines, **{name: {"skipped": reason} for name, reason in skipped.items()}},
        "is_equal": len(checksums) == 1 and not any("failed" in line for line in lines.values()),
    }


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="experts of half the size, 24 steps, 1 round")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument(
        "--rounds", type=int, help="how often every contestant runs (3, on a busy machine fewer; quick: 1)"
    )
    parser.add_argument("--steps", type=int, help="decode steps (60; quick: 24)")
    parser.add_argument("--seed", type=int, help="of weights, tokens and routes (7)")
    parser.add_argument("--directory", type=Path, help="where the files are put (our cache directory)")
    parser.add_argument("--keep", action="store_true", help="leave the weights there and use them again")
    parser.add_argument(
        "--contestants",
        type=lambda text: list(dict.fromkeys(text.split(","))),
        default=list(CONTESTANTS),
        help=f"some of {','.join(CONTESTANTS)}",
    )
    arguments = parser.parse_args(words)
    if arguments.quick and arguments.rounds is None:
        arguments.rounds = 1
    if any(given is not None and given < 1 for given in (arguments.rounds, arguments.steps)):
        parser.error("--rounds and --steps are at least 1")
    if unknown := set(arguments.contestants) - set(CONTESTANTS):
        parser.error(f"no contestant is called {', '.join(sorted(unknown))}: choose from {', '.join(CONTESTANTS)}")
    if set(arguments.contestants) <= set(UNAVAILABLE):
        parser.error("; ".join(UNAVAILABLE.values()))
    return arguments


def main(words: list[str] | None = None) -> int:
    arguments = parse(words)
    work = Work.quick() if arguments.quick else Work()
    given = {key: getattr(arguments, key) for key in ("steps", "seed") if getattr(arguments, key) is not None}
    report = measure(replace(work, **given), arguments)
    print(json.dumps(report, indent=2) if arguments.json else show(report))
    return 0 if report["is_equal"] else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is removed then too
    sys.exit(main())
