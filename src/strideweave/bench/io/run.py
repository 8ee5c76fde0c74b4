"""One run of `bench io`, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from strideweave.bench.disk import Disk, RawFile
from strideweave.bench.io.data import FULL, QUICK, Size, write_data
from strideweave.bench.io.python_loop import PythonLoop
from strideweave.bench.io.reads import RAW_THREADS, raw_kinds, reads_of
from strideweave.bench.io.writes import writes_of
from strideweave.bench.measure import BusyCores, drop_page_cache, huge_page_nbytes
from strideweave.bench.report import Report, Table, Target, busy_note, gigabytes, mib, number, size
from strideweave.bench.running import Say, folder_of, silent
from strideweave.io import default_lanes

_RATIO_FROM_NBYTES = 2**20
_SETTLED_S = 10.0


def measure(
    *,
    quick: bool = False,
    of: Size | None = None,
    rounds: int | None = None,
    directory: Path | None = None,
    say: Say = silent,
) -> Report:
    """One run, with the sizes `of`, by default `FULL`, or `QUICK` with `quick`."""
    chosen = of or (QUICK if quick else FULL)
    chosen = replace(chosen, rounds=rounds or chosen.rounds)
    with folder_of("io", directory) as folder:
        path = folder / "blocks.safetensors"
        say(f"writing {mib(chosen.file_nbytes)}")
        write_data(path, chosen.file_nbytes)
        drop_page_cache([path])
        try:
            return _report(_measured(path, chosen, say))
        finally:
            _settle()


def _settle() -> None:
    """After an interruption reads are still under way: none is when the process ends, or has its files removed."""
    until = time.perf_counter() + _SETTLED_S
    while not default_lanes().idle and time.perf_counter() < until:
        time.sleep(0.01)


def _measured(path: Path, chosen: Size, say: Say) -> dict[str, Any]:
    raw_reads = raw_kinds(chosen)
    with RawFile(path, block_nbytes=max(chosen.blocks_nbytes)) as raw:
        huge_before = huge_page_nbytes()
        with reads_of(path, chosen) as reads:
            memory = {
                "slots_nbytes": sum(chosen.budget_nbytes // tile * tile for tile in chosen.tiles_nbytes),
                "huge_nbytes": huge_page_nbytes() - huge_before,
                "setting": _huge_page_setting(),
            }
            with writes_of(path.parent, chosen) as writes, closing(PythonLoop(path, chosen)) as loop:
                sections: dict[str, Sequence[Callable[[int], None]]] = {
                    "raw": [partial(kind.measure, raw, chosen) for kind in raw_reads],
                    "reads": [partial(each.measure, raw) for each in reads],
                    "writes": [writes.measure],
                    "python_loop": [loop.measure],
                }
                others = _rounds(sections, chosen.rounds, say)
                return {
                    "benchmark": "io",
                    "version": 1,
                    "disk": {**asdict(Disk.of(path)), "is_direct": raw.is_direct},
                    "file_nbytes": chosen.file_nbytes,
                    "pass_nbytes": chosen.pass_nbytes,
                    "rounds": chosen.rounds,
                    "lanes": default_lanes().count,
                    "memory": memory,
                    "raw": [kind.to_json() for kind in raw_reads],
                    "reads": [each.row.to_json() for each in reads],
                    "writes": writes.to_json(),
                    "python_loop": loop.to_json(),
                    "others_cores": others,
                    "is_equal": writes.is_right() and all(len(each.row.checksums) == 1 for each in reads),
                }


def _rounds(sections: dict[str, Sequence[Callable[[int], None]]], rounds: int, say: Say) -> dict[str, float]:
    """Every section once a round; how many cores others kept busy meanwhile, the median of the rounds."""
    others: dict[str, list[float]] = {name: [] for name in sections}
    for k in range(rounds):
        say(f"round {k + 1} of {rounds}")
        for name, measurements in sections.items():
            with BusyCores() as busy:
                for number_of, measure_one in enumerate(measurements):
                    measure_one(1000 * k + number_of)
            others[name].append(busy.others_cores)
    return {name: median(found) for name, found in others.items()}


def _huge_page_setting() -> str:
    """When the kernel gives huge pages."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0]


def _report(document: dict[str, Any]) -> Report:
    disk, memory, others = document["disk"], document["memory"], document["others_cores"]
    how = "direct I/O" if disk["is_direct"] else "buffered reads of dropped pages (no direct I/O here)"
    head = [
        f"strideweave bench io: {mib(document['file_nbytes'])} of random bytes, {mib(document['pass_nbytes'])} a "
        f"measurement, rounds: {document['rounds']}, lanes: {document['lanes']}",
        f"disk: {disk['filesystem']} on {disk['device']}, read-ahead {disk['read_ahead_kib']} KiB; raw: {how}",
        f"memory of slots: {mib(memory['slots_nbytes'])}, {mib(memory['huge_nbytes'])} of this process in huge pages "
        f"(kernel setting: {memory['setting']})",
    ]
    is_equal = document.pop("is_equal")
    tables = [_raw_table(document["raw"]), _reads_table(document["reads"]), _others_table(document)]
    targets = [
        Target(
            f"tiles of {size(row['tile_nbytes'])}: promote_async / raw",
            row["ratio_to_raw"],
            at_least=0.9,
            others_cores=others["reads"],
        )
        for row in document["reads"]
        if row["tile_nbytes"] >= _RATIO_FROM_NBYTES
    ]
    targets.append(
        Target(
            "reads beside a Python loop / alone",
            document["python_loop"]["ratio"],
            at_least=0.4,
            others_cores=others["python_loop"],
        )
    )
    notes = [
        "peers copy each block into memory that is used again; memmap and from_file read through the page cache, with "
        "the read-ahead above",
        *busy_note(max(others.values())),
        f"checksums: {'equal' if is_equal else 'NOT EQUAL'}",
    ]
    return Report(head, tables, targets, document, notes, is_equal)


def _raw_table(raw: list[dict[str, Any]]) -> Table:
    blocks = sorted({kind["block_nbytes"] for kind in raw})
    rates = {(k["order"], k["threads"], k["block_nbytes"]): k["nbytes_per_s"] for k in raw}
    rows = [["raw reads", *(size(block) for block in blocks)]]
    for order in ("random", "sequential"):
        for threads in RAW_THREADS:
            name = f"{order}, {threads} thread{'s' if threads > 1 else ''}"
            rows.append([name, *(gigabytes(rates[order, threads, block]) for block in blocks)])
    return Table("GB/s of the disk itself", rows)


def _reads_table(reads: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in reads for name in row["peers"]))
    rows = [["tile", "promote_async", "raw", "ours / raw", *(f"{n}" for n in names), *(f"ours / {n}" for n in names)]]
    for row in reads:
        peers = [row["peers"].get(name, {}) for name in names]
        rates = [peer.get("nbytes_per_s") for peer in peers]
        rows.append(
            [
                size(row["tile_nbytes"]),
                gigabytes(row["nbytes_per_s"]),
                gigabytes(row["raw_nbytes_per_s"]),
                number(row["ratio_to_raw"]),
                *(peer.get("skipped", gigabytes(rate)) for peer, rate in zip(peers, rates, strict=True)),
                *(number(row["nbytes_per_s"] / rate if rate else None) for rate in rates),
            ]
        )
    return Table("GB/s of random tiles, cold; raw is the better of 1 and 4 threads in each round", rows)


def _others_table(document: dict[str, Any]) -> Table:
    writes, loop = document["writes"], document["python_loop"]
    rows = [
        ["tiles of 4 MiB", "GB/s", "beside", "GB/s", "ratio"],
        [
            "flush of dirty tiles",
            gigabytes(writes["nbytes_per_s"]),
            "raw writes, 4 threads",
            gigabytes(writes["raw_nbytes_per_s"]),
            number(writes["ratio_to_raw"]),
        ],
        [
            "reads beside a Python loop",
            gigabytes(loop["beside_nbytes_per_s"]),
            "reads alone",
            gigabytes(loop["alone_nbytes_per_s"]),
            number(loop["ratio"]),
        ],
        ["turns of that loop", "", "without reads", "", number(loop["loop_ratio"])],
    ]
    return Table("writes, and reads while Python runs", rows)
