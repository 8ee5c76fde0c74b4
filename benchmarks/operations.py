"""What an operation costs beside torch's own: the overhead on 16 values, and the ratio on 100 million.

Overhead is the difference of the two times per call, in microseconds, forward alone and with recording and backward.
Ratios compare the same work on the same memory and layouts, both libraries taking turns; the median turn counts.

    python benchmarks/operations.py            # about 2 minutes, 2 GB
    python benchmarks/operations.py --quick    # 1 million values, a few seconds
    python benchmarks/operations.py --json | python -m json.tool
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import strideweave as sw

Work = Callable[[], object]
OVERHEAD_LIMIT_US = 25.0
RATIO_LIMIT = 1.15


def per_call_us(ours: Work, theirs: Work, *, rounds: int, calls: int) -> tuple[float, float]:
    """The best time per call of both, in microseconds, measured in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for k, work in enumerate((ours, theirs)):
            begin = time.perf_counter()
            for _ in range(calls):
                work()
            best[k] = min(best[k], (time.perf_counter() - begin) / calls * 1e6)
    return best[0], best[1]


def small_work() -> dict[str, tuple[Work, Work]]:
    """Operations on 16 values: ours and torch's."""
    a, b = torch.rand(4, 4) + 0.5, torch.rand(4, 4) + 0.5
    x, y = sw.from_torch(a), sw.from_torch(b)
    row, condition = torch.rand(4), a > b
    r, c = sw.from_torch(row), sw.from_torch(condition)
    w, v = torch.rand(4, 4, requires_grad=True), sw.from_torch(torch.rand(4, 4)).requires_grad_()

    indices, targets = torch.tensor([[0, 1, 2, 3]] * 4), torch.tensor([0, 1, 2, 3])
    i, t = sw.from_torch(indices), sw.from_torch(targets)
    raw_image, raw_taps = torch.rand(1, 1, 16), torch.rand(1, 1, 3)
    image, taps = sw.from_torch(raw_image), sw.from_torch(raw_taps)

    def backward_ours() -> None:
        v.grad = None
        sw.reduce_sum(sw.mul(v, x)).backward()

    def backward_theirs() -> None:
        w.grad = None
        (w * a).sum().backward()

    return {
        "add": (lambda: sw.add(x, y), lambda: torch.add(a, b)),
        "mul by a scalar": (lambda: sw.mul(x, 3.0), lambda: torch.mul(a, 3.0)),
        "add, broadcast": (lambda: sw.add(x, r), lambda: torch.add(a, row)),
        "exp": (lambda: sw.exp(x), lambda: torch.exp(a)),
        "relu": (lambda: sw.relu(x), lambda: torch.relu(a)),
        "select": (lambda: sw.select(c, x, y), lambda: torch.where(condition, a, b)),
        "reduce_sum, all": (lambda: sw.reduce_sum(x), lambda: torch.sum(a)),
        "reduce_sum, one axis": (lambda: sw.reduce_sum(x, axis=1), lambda: torch.sum(a, 1)),
        "matmul": (lambda: sw.matmul(x, y), lambda: torch.matmul(a, b)),
        "softmax": (lambda: sw.softmax(x), lambda: torch.softmax(a, -1)),
        "layer_norm": (lambda: sw.layer_norm(x), lambda: torch.nn.functional.layer_norm(a, (4,))),
        "rms_norm": (lambda: sw.rms_norm(x), lambda: torch.nn.functional.rms_norm(a, (4,))),
        "linear with bias": (lambda: sw.linear(x, y, r), lambda: torch.nn.functional.linear(a, b, row)),
        "einsum": (lambda: sw.einsum("ij,jk->ik", x, y), lambda: torch.einsum("ij,jk->ik", a, b)),
        "mse_loss": (lambda: sw.mse_loss(x, y), lambda: torch.nn.functional.mse_loss(a, b)),
        "cross_entropy": (lambda: sw.cross_entropy(x, t), lambda: torch.nn.functional.cross_entropy(a, targets)),
        "conv_general": (
            lambda: sw.conv_general(image, taps, (1,), [(0, 0)]),
            lambda: torch.nn.functional.conv1d(raw_image, raw_taps),
        ),
        "gather": (lambda: sw.gather(x, i, 1), lambda: torch.gather(a, 1, indices)),
        "sort": (lambda: sw.sort(x), lambda: torch.sort(a, stable=True)),
        "topk": (lambda: sw.topk(x, 2), lambda: torch.topk(a, 2)),
        "cumsum": (lambda: sw.cumsum(x, 1), lambda: torch.cumsum(a, 1)),
        "concatenate two": (lambda: sw.concatenate([x, y]), lambda: torch.cat([a, b])),
        "permute": (lambda: sw.permute(x, 1, 0), lambda: a.permute(1, 0)),
        "mul, recorded": (lambda: sw.mul(v, x), lambda: torch.mul(w, a)),
        "mul, sum, backward": (backward_ours, backward_theirs),
    }


OPERATIONS_PER_CALL = {"mul, sum, backward": 5}
"""How many operations a row runs: two forward, and in backward one product, the spread sum, and the new gradient."""


def large_work(count: int) -> dict[str, tuple[Work, Work]]:
    """Operations on `count` values: ours and torch's, on the same memory."""
    side = int(count**0.5)
    a, b = torch.rand(side, side), torch.rand(side, side)
    thin = torch.rand(side, 64)
    x, y, t = sw.from_torch(a), sw.from_torch(b), sw.from_torch(thin)
    turned, z = a.T, sw.permute(x, 1, 0)
    return {
        "add": (lambda: sw.add(x, y), lambda: torch.add(a, b)),
        "add, both transposed": (lambda: sw.add(z, z), lambda: torch.add(turned, turned)),
        "exp": (lambda: sw.exp(x), lambda: torch.exp(a)),
        "reduce_sum, all": (lambda: sw.reduce_sum(x), lambda: torch.sum(a)),
        "reduce_sum, last axis": (lambda: sw.reduce_sum(x, axis=1), lambda: torch.sum(a, 1)),
        "reduce_sum, first axis": (lambda: sw.reduce_sum(x, axis=0), lambda: torch.sum(a, 0)),
        "matmul by 64 columns": (lambda: sw.matmul(x, t), lambda: torch.matmul(a, thin)),
        "matmul, transposed": (lambda: sw.matmul(z, t), lambda: torch.matmul(turned, thin)),
    }


def measure_overhead(rounds: int) -> list[dict[str, Any]]:
    """One row for every small operation. Units: microseconds for one operation."""
    rows = []
    for name, (ours, theirs) in small_work().items():
        ours_us, theirs_us = per_call_us(ours, theirs, rounds=rounds, calls=400)
        count = OPERATIONS_PER_CALL.get(name, 1)
        rows.append(
            {
                "operation": name,
                "strideweave_us": ours_us,
                "torch_us": theirs_us,
                "overhead_us": (ours_us - theirs_us) / count,
            }
        )
    return rows


def measure_ratios(count: int, turns: int) -> list[dict[str, Any]]:
    """One row for every large operation. Units: seconds for one call, the median of the turns."""
    rows = []
    for name, (ours, theirs) in large_work(count).items():
        ours(), theirs()
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(turns):
            for k, work in enumerate((ours, theirs)):
                begin = time.perf_counter()
                work()
                times[k].append(time.perf_counter() - begin)
        ours_s, theirs_s = (statistics.median(t) for t in times)
        rows.append({"operation": name, "strideweave_s": ours_s, "torch_s": theirs_s, "ratio": ours_s / theirs_s})
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 also when a limit is exceeded, since a busy machine says little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 million values, few rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    asked = parser.parse_args(arguments)
    count = 10**6 if asked.quick else 10**8
    overhead = measure_overhead(5 if asked.quick else 30)
    ratios = measure_ratios(count, 5 if asked.quick else 7)
    if asked.json:
        print(json.dumps({"values": count, "overhead": overhead, "ratios": ratios}))
        return 0
    print(f"16 values, {torch.get_num_threads()} threads; at most {OVERHEAD_LIMIT_US:.0f} us more than torch\n")
    print(f"{'operation':<24}{'strideweave us':>16}{'torch us':>12}{'overhead us':>14}")
    for row in overhead:
        print(
            f"{row['operation']:<24}{row['strideweave_us']:>16.1f}{row['torch_us']:>12.1f}{row['overhead_us']:>14.1f}"
        )
    print(f"\n{count:,} values; at most {RATIO_LIMIT} of torch's time\n")
    print(f"{'operation':<24}{'strideweave ms':>16}{'torch ms':>12}{'ratio':>14}")
    for row in ratios:
        ours_ms, theirs_ms = row["strideweave_s"] * 1e3, row["torch_s"] * 1e3
        print(f"{row['operation']:<24}{ours_ms:>16.1f}{theirs_ms:>12.1f}{row['ratio']:>14.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
