"""How plans and runs look to people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from rich.table import Table

from strideweave.carriers.tiled_evictable.budget import format_nbytes
from strideweave.integrations.transformers import ExpertPlan
from strideweave.tools.doctor import Diagnosis
from strideweave.tools.generate import RunReport
from strideweave.tools.verify import Contents, Verdict

_RESIDENT, _ABSENT = "█", "·"


def plan_table(plan: ExpertPlan) -> Table:
    """The numbers of a plan."""
    return _table(
        f"{PurePath(plan.path).name}: {plan.model_type}, {plan.shards} shards, {plan.dtype}",
        (
            (
                "experts",
                f"{plan.layers} layers x {plan.experts}, top {plan.top_k}: {format_nbytes(plan.expert_nbytes)} on disk",
            ),
            ("dense part", f"{format_nbytes(plan.dense_nbytes)} in memory"),
            ("one tile (an expert)", format_nbytes(plan.tile_nbytes)),
            (
                "budget",
                f"{format_nbytes(plan.budget_nbytes)}: {plan.tiles_that_fit} tiles, {plan.resident_fraction:.0%} of "
                "the experts",
            ),
            (
                "a decoded token needs",
                f"{format_nbytes(plan.nbytes_per_token)} of experts, less what is resident",
            ),
            (
                "weights at the peak",
                f"{format_nbytes(plan.peak_nbytes)} of {format_nbytes(plan.available_nbytes)} available",
            ),
        ),
    )


def run_table(run: RunReport) -> Table:
    """What an answer cost."""
    s = run.statistics
    rows = [
        ("tokens", f"{run.new_tokens} after a prompt of {run.prompt_tokens}"),
        (
            "speed",
            f"{run.tokens_per_s:.1f} tokens/s, the first after {run.first_token_s:.2f} s (model open in "
            f"{run.load_s:.2f} s)",
        ),
        (
            "read per token",
            f"{format_nbytes(run.bytes_per_token)} of {format_nbytes(run.plan.nbytes_per_token)}",
        ),
        (
            "hit rate",
            f"{s.hit_rate:.1%} ({s.hits} of {s.hits + s.misses}); the best possible (Belady) is "
            f"{run.optimal_hit_rate:.1%}",
        ),
        (
            "resident experts",
            f"{format_nbytes(s.resident_nbytes)} of a budget of {format_nbytes(s.budget_nbytes)}",
        ),
        (
            "peak RSS",
            f"{format_nbytes(run.peak_rss_nbytes)}, {format_nbytes(run.base_rss_nbytes)} before the model opened",
        ),
        ("waited for tiles", f"{s.stall_s:.2f} s"),
    ]
    if run.verified is not None:
        verdict = "bit-equal to the stock model at every step" if run.verified else "DIFFERENT from the stock model"
        rows.append(("logits", verdict))
    return _table("cost", rows)


def contents_table(found: Contents) -> Table:
    """What a checkpoint holds."""
    dtypes = ", ".join(f"{format_nbytes(nbytes)} of {name}" for name, nbytes in found.dtypes.items())
    rows = [
        ("files", f"{found.shards} shards, {found.tensors} tensors, {format_nbytes(found.nbytes)}"),
        ("dtypes", dtypes),
    ]
    if found.layers is None or found.tile_nbytes is None or found.dense_nbytes is None:
        rows.append(("experts", found.refusal or "none"))
    else:
        rows.append(("experts", f"{found.layers} layers x {found.experts}, {format_nbytes(found.tile_nbytes)} each"))
        rows.append(("dense part", format_nbytes(found.dense_nbytes)))
    return _table(f"{PurePath(found.path).name}: {found.model_type or 'no model_type'}", rows)


def verdict_table(found: Verdict) -> Table:
    """What reading a checkpoint through has shown."""
    rows = [("read", f"{found.tensors} tensors, {format_nbytes(found.nbytes)}")]
    values = "; ".join(f"{count} in {name}" for name, count in list(found.not_finite.items())[:8])
    rows.append(("values", f"NOT FINITE: {values}" if values else "all finite"))
    rows.append(("experts", f"INCOMPLETE: {found.missing}" if found.missing else "nothing is missing"))
    if found.compared:
        differing = ", ".join(found.differing[:8])
        rows.append(
            ("manifest", f"DIFFERENT: {len(found.differing)} tensors: {differing}" if differing else "the same")
        )
    return _table(f"{PurePath(found.path).name}: {'good' if found.is_good else 'NOT GOOD'}", rows)


def diagnosis_table(found: Diagnosis) -> Table:
    """What a machine has."""
    return _table(
        f"Python {found.python} on {found.system}",
        (
            ("packages", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
            ("memory", f"{format_nbytes(found.available_nbytes)} available, {found.cores} cores"),
            ("cache directory", f"{found.cache_directory}, {format_nbytes(found.disk_free_nbytes)} free"),
            (
                "disk",
                f"{found.read_nbytes_per_s / 1e9:.2f} GB/s, {'direct' if found.has_direct_io else 'buffered'} reads",
            ),
            ("huge pages", found.huge_pages),
        ),
    )


def residency_picture(residency: Sequence[Sequence[bool]]) -> str:
    """Which experts are in memory, as text: the shorter of layers and experts runs down.

    >>> print(residency_picture([[True, False], [False, False], [True, True]]))
    experts down, layers across; █ in memory, · on disk
      0 █·█
      1 ··█
    """
    layers, experts = len(residency), len(residency[0])
    by_expert = experts <= layers
    rows = [[residency[k][e] for k in range(layers)] for e in range(experts)] if by_expert else residency
    title = "experts down, layers across" if by_expert else "layers down, experts across"
    lines = [f"{k:>3} " + "".join(_RESIDENT if cell else _ABSENT for cell in row) for k, row in enumerate(rows)]
    return "\n".join([f"{title}; {_RESIDENT} in memory, {_ABSENT} on disk", *lines])


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table
