"""What the layout algebra costs: microseconds per call on rank-6 layouts, from 10^3 to 10^12 coordinates.

Every layout is row-major with six modes, and its coordinates number 2^10, 2^20, 2^30 or 2^40. Each operation has the
same structure at every size; only the extents grow. Sizes take turns for many short rounds, and the best one counts;
time is that of this process, not of others on the machine. What is claimed is a ratio: the slowest size over the
fastest, which is 1 where the cost does not depend on extents.

    python benchmarks/layout_algebra.py            # about 4 seconds
    python benchmarks/layout_algebra.py --quick    # under a second
    python benchmarks/layout_algebra.py --json | python -m json.tool
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from time import process_time
from timeit import timeit
from typing import Any

from strideweave.layout import Layout, Shape, Stride, compose, divide, zipped_divide

EXPONENTS = {10: (2, 2, 2, 2, 1, 1), 20: (4, 4, 3, 3, 3, 3), 30: (5, 5, 5, 5, 5, 5), 40: (7, 7, 7, 7, 6, 6)}
"""For every size, as a power of two, the extents of the six modes, as powers of two."""
ROUND_S = 0.005
"""How long one operation at one size runs within a round."""

Operation = Callable[[], object]


def operations(layout: Layout) -> dict[str, Operation]:
    """The operations by name, ready to run: their operands exist already."""
    extents = layout.shape.leaves()
    ordinals = Layout.column_major(*extents)
    backwards = Layout(Shape(reversed(extents)), Stride(reversed(ordinals.stride.leaves())))
    whole = Layout.leaf(layout.size, 1)
    every_other_mode = Layout(Shape(extents[::2]), Stride(ordinals.stride.leaves()[::2]))
    halves = [Layout.leaf(n // 2, 2) for n in extents[:4]]
    return {
        "compose, modes in another order": lambda: compose(layout, backwards),
        "compose, one leaf split six times": lambda: compose(layout, whole),
        "compose, four tiles": lambda: compose(layout, halves),
        "divide by three modes": lambda: divide(layout, every_other_mode),
        "zipped_divide by four tiles": lambda: zipped_divide(layout, halves),
    }


def measure(rounds: int, round_s: float) -> dict[str, Any]:
    """The whole report as one object whose keys stay as they are within a version."""
    ready = {exponent: operations(Layout.row_major(*(2**k for k in modes))) for exponent, modes in EXPONENTS.items()}
    best: dict[str, dict[int, float]] = {name: {} for name in ready[10]}
    for _ in range(rounds):
        for exponent, named in ready.items():
            for name, operation in named.items():
                once_s = timeit(operation, timer=process_time, number=3) / 3
                calls = max(1, int(round_s / once_s))
                took_us = timeit(operation, timer=process_time, number=calls) / calls * 1e6
                best[name][exponent] = min(took_us, best[name].get(exponent, took_us))
    lines = {
        name: {
            "us": {str(2**exponent): us for exponent, us in by_size.items()},
            "ratio": max(by_size.values()) / min(by_size.values()),
        }
        for name, by_size in best.items()
    }
    return {
        "benchmark": "layout_algebra",
        "version": 1,
        "rounds": rounds,
        "sizes": [2**exponent for exponent in EXPONENTS],
        "operations": lines,
        "largest_us": max(us for line in lines.values() for us in line["us"].values()),
        "largest_ratio": max(line["ratio"] for line in lines.values()),
    }


def show(report: dict[str, Any]) -> str:
    """The report for people."""
    rows = [["us per call on a rank-6 layout of", *(f"{size:.0e}" for size in report["sizes"]), "slowest/fastest"]]
    for name, line in report["operations"].items():
        rows.append([name, *(f"{us:.1f}" for us in line["us"].values()), f"{line['ratio']:.2f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([*table, "", f"largest ratio: {report['largest_ratio']:.2f}, rounds: {report['rounds']}"])


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="10 rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--rounds", type=int, help="how often every size takes its turn (40; quick: 10)")
    arguments = parser.parse_args(words)
    if arguments.rounds is None:
        arguments.rounds = 10 if arguments.quick else 40
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    return arguments


def main(words: list[str] | None = None) -> int:
    arguments = parse(words)
    report = measure(arguments.rounds, ROUND_S / 2 if arguments.quick else ROUND_S)
    print(json.dumps(report, indent=2) if arguments.json else show(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
