"""What torch.compile on the card takes: to compile, and to run what it compiled, beside eager torch on the CPU.

Everything takes turns in one run and the best turn counts, since other work on a machine only adds. Compiling is
measured in a warm process, without caches, for chains of operations; what our passes add to Inductor's own work is
the column "ours".

    python benchmarks/spyre_compile.py            # about two minutes, 1 GB
    python benchmarks/spyre_compile.py --quick    # 1 MiB operands, short chains
    python benchmarks/spyre_compile.py --json | python -m json.tool
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as inductor_config

import strideweave.inductor
from strideweave.inductor import passes, scheduling

LIMITS = {"add": 1.5, "row broadcast": 1.5, "column broadcast": 1.5, "sum": 1.5, "matmul": 1.3, "chain of 5": 2.0}
OVERHEAD_LIMIT_US = 60.0
COMPILE_LIMIT_MS = 150.0

Case = tuple[str, Callable[..., torch.Tensor], list[torch.Tensor]]


def cases(nbytes: int, side: int) -> list[Case]:
    """The programs, each with its operands on the host."""
    found: list[Case] = []
    for dtype in (torch.float32, torch.float16):
        rows = nbytes // dtype.itemsize // 1024
        x, y = torch.randn(rows, 1024).to(dtype), torch.randn(rows, 1024).to(dtype)
        name = str(dtype).removeprefix("torch.")
        found += [
            (f"add {name}", lambda a, b: a + b, [x, y]),
            (f"row broadcast {name}", lambda a, b: a + b, [x, y[0].clone()]),
            (f"column broadcast {name}", lambda a, b: a + b, [x, y[:, :1].clone()]),
            (f"sum {name}", lambda a: a.sum(-1), [x]),
            (f"chain of 5 {name}", lambda a, b: (((a + b) * a - b) * b).relu(), [x, y]),
        ]
    a, b = torch.randn(side, side), torch.randn(side, side)
    found.append((f"matmul {side} float32", lambda p, q: p @ q, [a, b]))
    return found


def chain(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of so many operations."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for k in range(count):
            x = x * 2 if k % 2 else x + 1
        return x

    return run


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function compiled for whatever device its operands are on."""
    return torch.compile(function, dynamic=False)


def best_of(turns: int, *works: Callable[[], object]) -> list[float]:
    """The best time of each, turn by turn. Units: milliseconds."""
    best = [float("inf")] * len(works)
    for _ in range(turns):
        for k, work in enumerate(works):
            began = time.perf_counter()
            work()
            best[k] = min(best[k], (time.perf_counter() - began) * 1e3)
    return best


def ratios(nbytes: int, side: int, turns: int) -> list[dict[str, Any]]:
    """Compiled on the card beside eager on the CPU; both make a fresh result."""
    rows = []
    for name, function, operands in cases(nbytes, side):
        torch._dynamo.reset()
        on_card = [o.to("spyre") for o in operands]
        run = compiled(function)
        tolerance = 1e-4 if operands[0].dtype is torch.float32 else 2e-2
        torch.testing.assert_close(run(*on_card).cpu(), function(*operands), rtol=tolerance, atol=tolerance * 10)
        ours, theirs = best_of(
            turns, lambda run=run, args=on_card: run(*args), lambda f=function, args=operands: f(*args)
        )
        limit = next((v for k, v in LIMITS.items() if name.startswith(k)), None)
        rows.append({"program": name, "spyre_ms": ours, "torch_ms": theirs, "ratio": ours / theirs, "limit": limit})
    return rows


def overhead(turns: int) -> list[dict[str, Any]]:
    """What a small operation costs in a compiled chain. Units: microseconds."""
    found = []
    x = torch.randn(4, 32)
    for count in (1, 10, 50):
        torch._dynamo.reset()
        run, card = compiled(chain(count)), x.to("spyre")
        run(card)
        (ms,) = best_of(turns, lambda run=run, card=card: run(card))
        found.append({"operations": count, "us": ms * 1e3, "us_per_operation": ms * 1e3 / count})
    return found


def compile_times(counts: list[int], turns: int) -> list[dict[str, Any]]:
    """What compiling a chain takes, and how much of it our passes and code generation take. Units: milliseconds."""
    own = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal own
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                own += (time.perf_counter() - began) * 1e3

        return run

    kept = passes.run, scheduling.SpyreScheduling.codegen_node, scheduling.SpyreScheduling.flush
    passes.run = timed(passes.run)
    scheduling.SpyreScheduling.codegen_node = timed(kept[1])  # type: ignore[method-assign]
    scheduling.SpyreScheduling.flush = timed(kept[2])  # type: ignore[method-assign]
    rows = []
    try:
        card = torch.randn(8, 70).to("spyre")
        for count in [counts[0], *counts]:  # the first also warms up
            times, ours = [], []
            for _ in range(turns):
                torch._dynamo.reset()
                own = 0.0
                began = time.perf_counter()
                compiled(chain(count))(card)
                times.append((time.perf_counter() - began) * 1e3)
                ours.append(own)
            rows.append(
                {"operations": count, "ms": min(times), "ours_ms": min(ours), "ms_per_operation": min(times) / count}
            )
    finally:
        passes.run = kept[0]
        scheduling.SpyreScheduling.codegen_node = kept[1]  # type: ignore[method-assign]
        scheduling.SpyreScheduling.flush = kept[2]  # type: ignore[method-assign]
    return rows[1:]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 0 also when a limit is exceeded, since a busy machine says little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 MiB operands, few turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    asked = parser.parse_args(arguments)
    assert strideweave.inductor.register is not None
    with warnings.catch_warnings(), inductor_config.patch(force_disable_caches=True):
        warnings.simplefilter("ignore")  # Dynamo's own, about caches that are off
        nbytes, side = (2**20, 128) if asked.quick else (64 * 2**20, 1024)
        rows = ratios(nbytes, side, 3 if asked.quick else 7)
        small = overhead(5 if asked.quick else 200)
        compiling = compile_times([1, 4] if asked.quick else [1, 10, 20, 40, 80], 2 if asked.quick else 3)
    if asked.json:
        print(json.dumps({"nbytes": nbytes, "ratios": rows, "overhead": small, "compiling": compiling}))
        return 0
    print(f"operands of {nbytes // 2**20} MiB, {torch.get_num_threads()} threads\n")
    print(f"{'program':<26}{'spyre ms':>10}{'torch ms':>10}{'ratio':>8}{'limit':>7}")
    for row in rows:
        print(
            f"{row['program']:<26}{row['spyre_ms']:>10.2f}{row['torch_ms']:>10.2f}{row['ratio']:>8.2f}{row['limit']:>7}"
        )
    print(f"\nsmall operations, compiled and warm; at most {OVERHEAD_LIMIT_US:.0f} us each\n")
    for row in small:
        print(f"{row['operations']:>3} operations {row['us']:>10.1f} us {row['us_per_operation']:>8.1f} us each")
    print(f"\ncompiling; at most {COMPILE_LIMIT_MS:.0f} ms for one operation\n")
    for row in compiling:
        print(
            f"{row['operations']:>3} operations {row['ms']:>10.1f} ms, ours {row['ours_ms']:>8.1f} ms, "
            f"{row['ms_per_operation']:>7.1f} ms each"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
