"""What a benchmark found: tables and targets for people, in text or Markdown, and one object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

BUSY_CORES: Final = 0.3
"""From here on what others compute makes a result doubtful."""


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio within the run, and what it must be."""

    name: str
    value: float | None
    """None where it could not be measured: a peer is not installed, or failed."""
    at_least: float | None = None
    at_most: float | None = None
    others_cores: float = 0.0
    """How many cores others kept busy while it was measured."""

    @property
    def is_met(self) -> bool | None:
        """None where nothing was measured."""
        if self.value is None:
            return None
        if self.at_least is not None and self.value < self.at_least:
            return False
        return self.at_most is None or self.value <= self.at_most

    @property
    def is_doubtful(self) -> bool:
        """Whether others computed so much that the value says little."""
        return self.others_cores > BUSY_CORES

    def to_json(self) -> dict[str, Any]:
        """The value and the verdict."""
        return {
            "name": self.name,
            "value": self.value,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "is_met": self.is_met,
            "others_cores": self.others_cores,
        }

    def cells(self) -> list[str]:
        """The row of a table."""
        bound = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        verdict = {True: "met", False: "missed", None: "not measured"}[self.is_met]
        return [
            self.name,
            number(self.value, "{:.3g}"),
            bound,
            verdict + (f", others used {self.others_cores:.1f} cores" if self.is_doubtful else ""),
        ]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells that are written already: the first row is the head, the first column names the others."""

    title: str
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole of one run."""

    head: list[str]
    tables: list[Table]
    targets: list[Target]
    document: dict[str, Any]
    """What `--json` prints; its keys stay as they are within a version."""
    notes: list[str] = field(default_factory=list)
    is_equal: bool = True
    """Whether all contestants computed the same."""

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**self.document, "targets": [t.to_json() for t in self.targets], "is_equal": self.is_equal}

    def _all_tables(self) -> list[Table]:
        rows = [["target", "measured", "must be", ""], *(target.cells() for target in self.targets)]
        return [*self.tables, *([Table("targets, as ratios within this run", rows)] if self.targets else [])]

    def __str__(self) -> str:
        parts = ["\n".join(self.head), *(f"{table.title}\n{_text(table.rows)}" for table in self._all_tables())]
        if self.notes:
            parts.append("\n".join(self.notes))
        return "\n\n".join(parts)

    def to_markdown(self) -> str:
        """The same for `docs/performance.md`."""
        parts = ["\n".join(f"- {line}" for line in self.head)]
        parts += [f"{table.title}:\n\n{_markdown(table.rows)}" for table in self._all_tables()]
        if self.notes:
            parts.append("\n".join(f"- {line}" for line in self.notes))
        return "\n\n".join(parts)


def number(value: float | None, form: str = "{:.2f}") -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else form.format(value)


def gigabytes(nbytes_per_s: float | None) -> str:
    """A rate in GB/s."""
    return number(None if nbytes_per_s is None else nbytes_per_s / 1e9)


def mib(nbytes: float) -> str:
    """A size in MiB, with a decimal where it has one.

    >>> mib(3 * 2**20), mib(2.5 * 2**20)
    ('3 MiB', '2.5 MiB')
    """
    return f"{nbytes / 2**20:.1f} MiB".replace(".0 ", " ")


def size(nbytes: int) -> str:
    """The size of a block.

    >>> size(2**16), size(2**22)
    ('64 KiB', '4 MiB')
    """
    return f"{nbytes // 2**10} KiB" if nbytes < 2**20 else f"{nbytes // 2**20} MiB"


def busy_note(others_cores: float) -> list[str]:
    """A warning where others computed meanwhile."""
    if others_cores <= BUSY_CORES:
        return []
    return [f"others kept up to {others_cores:.1f} cores busy meanwhile: trust ratios only, and those with care"]


def _text(rows: Sequence[Sequence[str]]) -> str:
    """Names left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])
