"""The process of one contestant of `moe_decode`: it enters its memory limit before it imports more."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from measure import BusyCores, MemoryLimit, PeakAnonymous, disk_read_nbytes


def main() -> None:
    """One contestant over the work in a folder, told as JSON on standard output."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("contestant")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--group", type=Path, help="a control group to enter first")
    arguments = parser.parse_args()
    MemoryLimit(arguments.group).enter()

    import numpy as np
    import torch

    from moe_contestants import CONTESTANTS
    from moe_work import Work, decode

    torch.set_num_threads(1)
    work = Work.from_json((arguments.folder / "work.json").read_text())
    routes = np.load(arguments.folder / "routes.npy")
    contestant = CONTESTANTS[arguments.contestant](work, arguments.folder / "experts.safetensors")
    began = time.perf_counter()
    with PeakAnonymous() as peak, contestant as (run_layer, counters):
        opened = time.perf_counter()
        read_before = disk_read_nbytes()
        with BusyCores() as busy:
            checksum = decode(work, routes, run_layer)
        ended = time.perf_counter()
        read_nbytes = disk_read_nbytes() - read_before
        counted = counters()  # while the contestant still has what it counts
    told = {
        "open_s": opened - began,
        "run_s": ended - opened,
        "disk_read_nbytes": read_nbytes,
        "peak_anonymous_nbytes": peak.nbytes,
        "cpu_s": busy.own_s,
        "others_cores": busy.others_cores,
        "checksum": checksum,
        **counted,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
