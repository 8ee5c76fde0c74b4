"""`strideweave trace`: one answer with everything that happened to the experts, as a timeline and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from strideweave.carriers.tiled_evictable.budget import format_nbytes
from strideweave.integrations.transformers import plan
from strideweave.tools.generate import RunReport, Write, answer
from strideweave.tracing import TraceRow, trace
from strideweave.tracing.trace import require_folder


@dataclass(frozen=True, slots=True)
class TracedRun:
    """An answer and what its trace counted."""

    report: RunReport
    rows: Sequence[TraceRow]
    """One for each layer."""
    out: Path
    """Where the timeline is."""
    html: Path
    """Where the page is."""
    events: int
    """How many events the timeline has."""
    dropped_events: int
    """How many earlier ones were let go."""
    traced_s: float
    """How long the answer took, from the first step to the last."""

    def as_json(self) -> dict[str, Any]:
        """Plain data, with names that stay."""
        return {
            "trace": str(self.out),
            "html": str(self.html),
            "events": self.events,
            "dropped_events": self.dropped_events,
            "traced_s": self.traced_s,
            "hit_rate_over_optimal": self.report.hit_rate_over_optimal,
            "layers": [{**asdict(row), "hit_rate": row.hit_rate} for row in self.rows],
            **self.report.as_json(),
        }


def require_places(out: Path, html: Path) -> None:
    """Nothing, when both files can be written. Errors: FileNotFoundError for a folder; ValueError for one place."""
    if out.absolute() == html.absolute():
        raise ValueError(
            f"cannot write the timeline and the page both to {str(out)!r}: they are two files. Name another one with "
            "--html."
        )
    for path in (out, html):
        require_folder(path.absolute())


def traced_answer(
    path: str | Path,
    budget: int | str | None,
    prompt: str,
    *,
    max_new_tokens: int,
    out: Path,
    html: Path,
    write: Write = lambda text: None,
    note: Write = lambda text: None,
) -> TracedRun:
    """An answer as `strideweave.tools.generate.answer` gives it; the two files are written when it is there.

    Errors: as there, and StorageError for a file that cannot be written.
    """
    budget_nbytes = plan(path, budget).budget_nbytes
    t = trace()
    report = answer(path, budget_nbytes, prompt, max_new_tokens=max_new_tokens, write=write, note=note, watch=t)
    note("writing the trace")
    t.save(out)
    t.save_html(html, f"{Path(path).name}, {format_nbytes(budget_nbytes)} of experts in memory")
    recorded = t.recorded()
    rows = [row for row in t.rows() if row.carrier == "experts"]
    return TracedRun(report, rows, out, html, len(recorded.events), recorded.dropped_events, recorded.duration_s)


def traced_table(run: TracedRun) -> Table:
    """A row for each layer, and what they sum up to."""
    table = Table(box=None, pad_edge=False, show_footer=True)
    statistics = run.report.statistics
    columns = (
        ("layer", "all", [row.group.removeprefix("layer ") for row in run.rows]),
        ("hits", str(statistics.hits), [str(row.hits) for row in run.rows]),
        ("misses", str(statistics.misses), [str(row.misses) for row in run.rows]),
        ("hit rate", f"{statistics.hit_rate:.1%}", [f"{row.hit_rate:.1%}" for row in run.rows]),
        ("read", format_nbytes(statistics.bytes_read), [format_nbytes(row.bytes_read) for row in run.rows]),
        ("waited", f"{statistics.stall_s:.2f} s", [f"{row.stall_s:.2f} s" for row in run.rows]),
    )
    for name, total, _ in columns:
        table.add_column(name, footer=total, justify="right", no_wrap=True)
    for cells in zip(*(cells for _, _, cells in columns), strict=True):
        table.add_row(*cells)
    return table


def against_best(report: RunReport) -> str:
    """The hit rate beside the best possible one, as a line."""
    return (
        f"hit rate {report.statistics.hit_rate:.1%}: {report.hit_rate_over_optimal:.1%} of the best possible on this "
        f"routing (Belady), {report.optimal_hit_rate:.1%}"
    )
