"""What the process of one contestant does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from strideweave.bench.measure import BusyCores, disk_read_nbytes
from strideweave.bench.stream.contestants import ENTRIES, RESULT
from strideweave.bench.stream.work import Operation, Work, checksum, checksum_of_file


def run(contestant: str, folder: str, operation: Operation) -> dict[str, Any]:
    """One operation by one contestant. Units: seconds, bytes, cores."""
    home = Path(folder)
    work = Work.from_json((home / "work.json").read_text())
    entry = ENTRIES[contestant]
    began = time.perf_counter()
    with entry.contestant(work, home, operation) as compute:
        opened = time.perf_counter()
        read_before = disk_read_nbytes()
        with BusyCores() as busy:
            result = compute()
        ended = time.perf_counter()
        return {
            "open_s": opened - began,
            "run_s": ended - opened,
            "disk_read_nbytes": disk_read_nbytes() - read_before,
            "cpu_s": busy.own_s,
            "others_cores": busy.others_cores,
            "checksum": _checksum(work, result) if entry.computes else None,
        }


def _checksum(work: Work, result: Any) -> str:
    if not isinstance(result, Path):
        return checksum([np.asarray(result)])
    if result.name == RESULT:
        return checksum_of_file(work, result)
    import zarr

    array = zarr.open_array(result, mode="r")
    return checksum(array[begin : begin + work.tile_rows] for begin in range(0, work.rows, work.tile_rows))
