"""What the process of one contestant does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from strideweave.bench.measure import BusyCores, disk_read_nbytes
from strideweave.bench.moe.contestants import ENTRIES
from strideweave.bench.moe.work import Work, decode


def run(contestant: str, folder: str, part: str) -> dict[str, Any]:
    """The steps of a part of the benchmark by one contestant. Units: seconds, bytes, cores."""
    home = Path(folder)
    work = Work.from_json((home / f"{part}.json").read_text())
    routes = np.load(home / f"{part}.npy")
    entered = ENTRIES[contestant].contestant(work, home / "experts.safetensors", routes)
    began = time.perf_counter()
    with entered as (run_layer, counters):
        opened = time.perf_counter()
        read_before = disk_read_nbytes()
        with BusyCores() as busy:
            checksum = decode(work, routes, run_layer)
        ended = time.perf_counter()
        return {
            "open_s": opened - began,
            "run_s": ended - opened,
            "disk_read_nbytes": disk_read_nbytes() - read_before,
            "cpu_s": busy.own_s,
            "others_cores": busy.others_cores,
            "checksum": checksum,
            **counters(),  # while the contestant still has what it counts
        }
