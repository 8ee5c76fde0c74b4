"""One run of `bench stream`, and its report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from strideweave.bench.disk import Disk
from strideweave.bench.limits import memory_limit
from strideweave.bench.measure import drop_page_cache
from strideweave.bench.report import Report, Table, Target, busy_note, mib, number
from strideweave.bench.running import Say, folder_of, silent
from strideweave.bench.stream.contestants import ENTRIES, remove_results
from strideweave.bench.stream.work import OPERATIONS, Operation, Work, write_operands
from strideweave.bench.workers import KILLED, Run, Workers

HEADROOM_NBYTES: Final = 100 * 2**20
"""What may be taken beside budget and result."""
_MOST_S: Final = 150.0
_FLOOR_RATIO: Final = 1.15

Runs = dict[tuple[Operation, str], list[Run]]


def measure(
    *,
    quick: bool = False,
    of: Work | None = None,
    operations: Sequence[str] = OPERATIONS,
    contestants: Sequence[str] = tuple(ENTRIES),
    rounds: int | None = None,
    directory: Path | None = None,
    say: Say = silent,
) -> Report:
    """One run of the work `of`, by default `Work()`, or with `quick` `Work.quick()`.

    Without `rounds` there are 5, fewer on a busy machine, and one with `quick`.
    Errors: ValueError for an unknown operation or contestant, and for less than one round.
    """
    _require(operations, contestants, rounds)
    work = of or (Work.quick() if quick else Work())
    skipped = {name: reason for name in contestants if (reason := ENTRIES[name].why_absent)}
    names = [name for name in ENTRIES if name in contestants and name not in skipped]
    chosen = [operation for operation in OPERATIONS if operation in operations]
    modules = [module for name in names for module in ENTRIES[name].needs]
    with folder_of("stream", directory) as folder:
        say(f"writing {mib(2 * work.nbytes)}")
        write_operands(work, folder)
        (folder / "work.json").write_text(work.to_json())
        prepared = _prepare(names, work, folder, say)
        with Workers("strideweave.bench.stream.jobs", *modules) as workers:
            runs = _compete(work, folder, chosen, names, workers, 1 if quick and rounds is None else rounds, say)
        disk = Disk.of(folder)
    with memory_limit(work.operand_budget_nbytes + HEADROOM_NBYTES) as trial:
        no_limit = trial.reason
    document = {
        "benchmark": "stream",
        "version": 1,
        "disk": asdict(disk),
        "work": {**asdict(work), "nbytes": work.nbytes, "tile_nbytes": work.tile_nbytes},
        "rounds": len(runs[chosen[0], names[0]]),
        "no_limit_reason": no_limit,
        "operations": {
            operation: {
                "budget_nbytes": work.budget_nbytes(operation),
                "result_nbytes": work.result_nbytes(operation),
                "read_nbytes": work.read_nbytes(operation),
                "contestants": {
                    **{name: {**_summary(runs, operation, name), **prepared[name]} for name in names},
                    **{name: {"skipped": reason} for name, reason in skipped.items()},
                },
            }
            for operation in chosen
        },
    }
    return _report(document)


def _require(operations: Sequence[str], contestants: Sequence[str], rounds: int | None) -> None:
    if unknown := [name for name in operations if name not in OPERATIONS]:
        raise ValueError(
            f"cannot run {', '.join(unknown)}: the operations are {', '.join(OPERATIONS)}. Name some of them."
        )
    if unknown := [name for name in contestants if name not in ENTRIES]:
        raise ValueError(
            f"cannot race {', '.join(unknown)}: the contestants are {', '.join(ENTRIES)}. Name some of them."
        )
    if not operations or all(ENTRIES[name].why_absent for name in contestants):
        raise ValueError(
            "cannot measure: no operation, or nobody who is installed. Name some, or install what is missing."
        )
    if rounds is not None and rounds < 1:
        raise ValueError(f"cannot run {rounds} rounds: at least 1 is needed. Name a larger number.")


def _prepare(names: Sequence[str], work: Work, folder: Path, say: Say) -> dict[str, dict[str, Any]]:
    prepared = {}
    for name in names:
        write = ENTRIES[name].prepare
        began = time.perf_counter()
        nbytes = write(work, folder) if write else 0
        if nbytes:
            say(f"{name} wrote {mib(nbytes)}")
        prepared[name] = {"prepare_nbytes": nbytes, "prepare_s": time.perf_counter() - began if nbytes else 0.0}
    return prepared


def _compete(
    work: Work,
    folder: Path,
    operations: Sequence[Operation],
    names: Sequence[str],
    workers: Workers,
    rounds: int | None,
    say: Say,
) -> Runs:
    """Every contestant's runs of every operation, cold, by turns."""
    began = time.perf_counter()
    runs: Runs = {(operation, name): [] for operation in operations for name in names}
    for k in range(rounds or 5):
        passed_s = time.perf_counter() - began
        if rounds is None and k and passed_s * (k + 1) / k > _MOST_S:
            say(f"no round {k + 1}, since {k} took {passed_s:.0f} s; --rounds asks for more")
            break
        for operation, name in runs:
            limit = work.budget_nbytes(operation) + work.result_nbytes(operation) + HEADROOM_NBYTES
            remove_results(folder)
            drop_page_cache(path for path in folder.rglob("*") if path.is_file())
            run = workers.run(
                "strideweave.bench.stream.jobs:run",
                limit_nbytes=limit if ENTRIES[name].is_limited else None,
                contestant=name,
                folder=str(folder),
                operation=operation,
            )
            runs[operation, name].append(run)
            outcome = f"{run.told['run_s']:.2f} s" if run.told else run.failure
            say(f"{operation}, round {k + 1}: {name:12} {outcome}")
    remove_results(folder)
    return runs


def _summary(runs: Runs, operation: Operation, name: str) -> dict[str, Any]:
    """The line of one contestant: medians over the rounds, ratios within each round. Units: seconds, bytes, cores."""
    own = runs[operation, name]
    if failures := [run.failure for run in own if run.told is None]:
        return {"failed": failures[0]}
    told = [run.told for run in own if run.told is not None]

    def over(*others: str) -> float | None:
        """Its time over the longest of those of others, the median of the rounds."""
        theirs = [runs.get((operation, other), []) for other in others]
        if not all(theirs) or any(run.told is None for each in theirs for run in each):
            return None
        slowest = [max(run.told["run_s"] for run in found if run.told) for found in zip(*theirs, strict=True)]
        return float(median(mine["run_s"] / theirs_s for mine, theirs_s in zip(told, slowest, strict=True)))

    return {
        "run_s": [each["run_s"] for each in told],
        "median_s": median(each["run_s"] for each in told),
        "times_raw": over("raw"),
        "times_reader": over("reader"),
        "times_ideal": over("raw", "ram"),
        "times_strideweave": over("strideweave"),
        "disk_read_nbytes": median(each["disk_read_nbytes"] for each in told),
        "peak_anonymous_nbytes": max(each["peak_anonymous_nbytes"] - each["base_anonymous_nbytes"] for each in told),
        "cpu_s": median(each["cpu_s"] for each in told),
        "others_cores": median(each["others_cores"] for each in told),
        "checksums": sorted({each["checksum"] for each in told if each["checksum"]}),
        "limit_nbytes": own[-1].limit_nbytes,
    }


# -- the report ------------------------------------------------------------------------------------------------------

_COLUMNS: Final = {
    "s": ("median_s", "{:.2f}"),
    "x raw": ("times_raw", "{:.2f}"),
    "x reader": ("times_reader", "{:.2f}"),
    "x ideal": ("times_ideal", "{:.2f}"),
    "x strideweave": ("times_strideweave", "{:.2f}"),
    "disk MiB": ("disk_read_nbytes", "MiB"),
    "anon MiB": ("peak_anonymous_nbytes", "MiB"),
    "cpu s": ("cpu_s", "{:.2f}"),
    "others": ("others_cores", "{:.1f}"),
}


def _report(document: dict[str, Any]) -> Report:
    work, disk = document["work"], document["disk"]
    limit = (
        f"control group of budget, result and {mib(HEADROOM_NBYTES)}, page cache included"
        if not document["no_limit_reason"]
        else f"not enforced ({document['no_limit_reason']})"
    )
    head = [
        f"strideweave bench stream: float32 {work['rows']} x {work['columns']}, {mib(work['nbytes'])} each, "
        f"in tiles of {mib(work['tile_nbytes'])}; budget {mib(work['nbytes'] // work['budget_part'])} an operand; "
        f"rounds: {document['rounds']}",
        f"disk: {disk['filesystem']} on {disk['device']}, read-ahead {disk['read_ahead_kib']} KiB",
        f"memory limit: {limit}; one thread computes",
    ]
    tables, targets, is_equal, busy = [], [], True, 0.0
    for operation, found in document["operations"].items():
        lines = found["contestants"]
        checksums = {each for line in lines.values() for each in line.get("checksums", ())}
        found["is_equal"] = len(checksums) <= 1 and all(line.get("failed") in (None, KILLED) for line in lines.values())
        is_equal &= found["is_equal"]
        busy = max(busy, *(line.get("others_cores", 0.0) for line in lines.values()))
        title = f"{operation}: {mib(found['read_nbytes'])} to read, budget {mib(found['budget_nbytes'])}"
        tables.append(Table(title, _rows(lines)))
        targets += _targets(operation, found)
    told = {name for found in document["operations"].values() for name in found["contestants"]}
    notes = [
        *(f"{name}: {ENTRIES[name].note}" for name in ENTRIES if name in told),
        "ideal: the slower of raw and in RAM, in each round",
        *busy_note(busy),
        f"checksums: {'equal for every operation' if is_equal else 'NOT EQUAL, or a contestant failed'}",
    ]
    return Report(head, tables, targets, document, notes, is_equal)


def _rows(lines: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows = [["contestant", *_COLUMNS]]
    for name, line in lines.items():
        if "median_s" not in line:
            rows.append([name, line.get("failed") or line["skipped"], *[""] * (len(_COLUMNS) - 1)])
            continue
        cells = [(line[key], form) for key, form in _COLUMNS.values()]
        rows.append([name, *(f"{v / 2**20:.0f}" if form == "MiB" else number(v, form) for v, form in cells)])
    return rows


def _targets(operation: str, found: dict[str, Any]) -> list[Target]:
    lines = found["contestants"]
    ours = lines.get("strideweave", {})
    if "median_s" not in ours:
        return []

    def busy(*names: str) -> float:
        return float(max(lines.get(name, {}).get("others_cores", 0.0) for name in ("strideweave", *names)))

    targets = [
        Target(
            f"{operation}: time / ideal (the slower of raw I/O and arithmetic)",
            ours["times_ideal"],
            at_most=_FLOOR_RATIO,
            others_cores=busy("raw", "ram"),
        ),
        Target(
            f"{operation}: time / our reader without arithmetic",
            ours["times_reader"],
            at_most=_FLOOR_RATIO,
            others_cores=busy("reader"),
        ),
    ]
    targets += [
        Target(
            f"{operation}: time of {name} / ours",
            lines.get(name, {}).get("times_strideweave"),
            at_least=1.0,
            others_cores=busy(name),
        )
        for name in ("memmap", "dask")
        if name in lines
    ]
    allowed = found["budget_nbytes"] + found["result_nbytes"] + HEADROOM_NBYTES
    peak = ours["peak_anonymous_nbytes"]
    name = f"{operation}: peak memory over its base / (budget + result + {mib(HEADROOM_NBYTES)})"
    return [*targets, Target(name, peak / allowed, at_most=1.0)]
