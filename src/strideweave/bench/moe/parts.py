"""What `bench moe` measures, and the whole of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from strideweave.bench.disk import Disk
from strideweave.bench.limits import memory_limit
from strideweave.bench.moe.contestants import ENTRIES, why_absent
from strideweave.bench.moe.races import HEADROOM_NBYTES, Part, race, weights_of
from strideweave.bench.moe.report import report_of
from strideweave.bench.moe.work import Work, draw_prefill_routes, draw_routes
from strideweave.bench.report import Report
from strideweave.bench.running import Say, silent
from strideweave.bench.workers import Workers

PARTS: Final = {
    "decode": tuple(name for name in ENTRIES if name != "resident"),
    "prefill": ("ram", "strideweave", "memmap", "positioned"),
    "fits": ("ram", "resident"),
}
"""The contestants of each part."""


def measure(
    *,
    quick: bool = False,
    base: Work | None = None,
    parts: Sequence[str] = tuple(PARTS),
    contestants: Sequence[str] = tuple(ENTRIES),
    rounds: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    directory: Path | None = None,
    keep: bool = False,
    say: Say = silent,
) -> Report:
    """One run of `base`, by default the work of `Work()`, or with `quick` that of `Work.quick()`.

    Without `rounds` there are 3, fewer on a busy machine, and one with `quick`.

    Errors: ValueError for an unknown part or contestant, when none of them can take part, and for less than one round
    or step.
    """
    _require(parts, contestants, rounds, steps)
    base = base or (Work.quick() if quick else Work())
    work = replace(base, steps=steps or base.steps, seed=base.seed if seed is None else seed)
    rounds = 1 if quick and rounds is None else rounds
    chosen = [part for part in _parts_of(work) if part.name in parts and set(part.contestants) & set(contestants)]
    modules = [entry.needs for name, entry in ENTRIES.items() if entry.needs and name in contestants]
    with (
        weights_of(work, directory, say, keep=keep) as folder,
        Workers("strideweave.bench.moe.jobs", *modules) as workers,
    ):
        found = {part.name: race(part, folder, workers, only=contestants, rounds=rounds, say=say) for part in chosen}
        disk = Disk.of(folder)
    with memory_limit(work.budget_nbytes + HEADROOM_NBYTES) as trial:
        no_limit = trial.reason
    document: dict[str, Any] = {
        "benchmark": "moe",
        "version": 1,
        "disk": asdict(disk),
        "headroom_nbytes": HEADROOM_NBYTES,
        "no_limit_reason": no_limit,
        "parts": found,
        "is_equal": all(part["is_equal"] for part in found.values()),
    }
    return report_of(document)


def _parts_of(work: Work) -> list[Part]:
    prefill, fits = work.prefill(), work.that_fits()
    return [
        Part("decode", work, draw_routes(work), PARTS["decode"], most_s=240.0),
        Part("prefill", prefill, draw_prefill_routes(prefill), PARTS["prefill"], most_s=40.0),
        Part("fits", fits, draw_routes(fits), PARTS["fits"], most_s=40.0),
    ]


def _require(parts: Sequence[str], contestants: Sequence[str], rounds: int | None, steps: int | None) -> None:
    if unknown := [name for name in parts if name not in PARTS]:
        raise ValueError(f"cannot measure {', '.join(unknown)}: the parts are {', '.join(PARTS)}. Name some of them.")
    if unknown := [name for name in contestants if name not in ENTRIES]:
        raise ValueError(
            f"cannot race {', '.join(unknown)}: the contestants are {', '.join(ENTRIES)}. Name some of them."
        )
    able = {name for name in contestants if why_absent(name) is None}
    if idle := [part for part in parts if not able & set(PARTS[part]) and set(contestants) & set(PARTS[part])]:
        raise ValueError(
            f"cannot measure {', '.join(idle)}: {'; '.join(filter(None, map(why_absent, contestants)))}. Somebody must "
            "take part. Name others, or install what is missing."
        )
    if not any(able & set(PARTS[part]) for part in parts):
        raise ValueError(
            f"cannot measure {', '.join(parts)}: none of {', '.join(contestants)} takes part there. Name others."
        )
    if any(given is not None and given < 1 for given in (rounds, steps)):
        raise ValueError(f"cannot run {rounds} rounds of {steps} steps: each is at least 1. Name larger numbers.")
