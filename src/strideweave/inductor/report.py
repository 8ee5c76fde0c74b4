"""What the compiler did, row by row: kept while a function is explained, and logged as it happens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

import sympy

from strideweave.inductor.spans.plans import SpanAnalysis
from strideweave.inductor.verify import walk
from strideweave.inductor.work_division import window_of
from strideweave.spyre import config
from strideweave.spyre.specs import OpSpec, Program, TensorArg

_log = logging.getLogger("strideweave.inductor")


@dataclass(frozen=True)
class OperandRow:
    """One access of an operation. Units: bytes of one core's window; None where it cannot be determined."""

    name: str
    is_input: bool
    dtype: str
    device_size: tuple[int, ...]
    coordinates: tuple[str, ...]
    window_whole_nbytes: int | None
    """The window of the operation undivided and untiled, into whole buffers."""
    window_nbytes: int | None
    """The window of one core in one tile."""
    is_scratch: bool
    exceeds: bool
    """Whether the window of one core in one tile is above the limit, or may be."""


@dataclass(frozen=True)
class OpRow:
    """One operation of a program."""

    program: str
    name: str
    """What it writes: a buffer of the graph, or scratch that making one needs."""
    buffer: str
    """The buffer of the graph that it takes part in making."""
    op: str
    ranges: dict[str, int]
    """The range of every symbol within a tile."""
    whole_ranges: dict[str, int]
    """The same before tiling."""
    cores: dict[str, int]
    """Over how many cores each symbol is divided; those that are not divided are left out."""
    loops: tuple[int, ...]
    """The counts of the loops around it, outermost first."""
    loop_ids: tuple[int, ...]
    """Which loops of its program these are: operations with equal ids share them."""
    operands: tuple[OperandRow, ...]
    spans: SpanAnalysis | None = None
    """What the planner of tiles found: candidates, splits that it rejected, its plan."""

    @property
    def is_result(self) -> bool:
        """Whether it writes the buffer itself, not scratch on the way there."""
        return self.name == self.buffer

    @property
    def notes(self) -> tuple[str, ...]:
        """What the planner tried, and why, line by line."""
        return () if self.spans is None else tuple(self.spans.lines())

    @property
    def tiles(self) -> int:
        """How many times it runs."""
        return math.prod(self.loops)

    @property
    def widest_nbytes(self) -> int | None:
        """The largest window of one core in one tile; None where one cannot be determined."""
        windows = [operand.window_nbytes for operand in self.operands]
        return None if None in windows else max(window or 0 for window in windows)

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and text."""
        document = asdict(self)
        if self.spans is not None:
            document["spans"]["rejected"] = [{"split": s, "reason": why} for s, why in self.spans.rejected]
        return {**document, "notes": list(self.notes) if self.is_result else []}


@dataclass
class Report:
    """What became of a function: one row per operation, in the order in which they run.

    `str(report)` is a table; `report.to_json()` plain data; `report.to_html()` a page.
    """

    rows: list[OpRow] = field(default_factory=list)
    fallbacks: dict[str, str] = field(default_factory=dict)
    """Operations that run elsewhere, and why."""
    programs: list[str] = field(default_factory=list)
    """The text of every program."""
    limit_nbytes: int = field(default_factory=lambda: config.max_span_bytes)
    """The window that one core had while it was made."""
    cores: int = field(default_factory=lambda: config.sencores)
    """How many cores the card had."""

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and text."""
        return {
            "limit_nbytes": self.limit_nbytes,
            "cores": self.cores,
            "operations": [row.to_json() for row in self.rows],
            "fallbacks": self.fallbacks,
            "programs": self.programs,
        }

    def to_html(self, title: str = "What the card runs") -> str:
        """The same as one page that needs nothing else: loops as nested boxes, windows as bars against the limit."""
        from strideweave.inductor.page import page_of

        return page_of(self, title)

    def __str__(self) -> str:
        lines = [
            f"{len(self.rows)} operations; one core's window is at most {mib(self.limit_nbytes)}, {self.cores} cores"
        ]
        for row in self.rows:
            ranges = ", ".join(f"{s}={n}" for s, n in row.whole_ranges.items())
            tiles = f" in loops of {' x '.join(map(str, row.loops))}" if row.loops else ""
            cores = f", cores {', '.join(f'{s}/{n}' for s, n in row.cores.items())}" if row.cores else ""
            lines.append(f"{row.name}: {row.op} over {ranges or 'one element'}{tiles}{cores}")
            for operand in row.operands:
                where = "scratch" if operand.is_scratch else "whole"
                flag = "  ABOVE THE LIMIT" if operand.exceeds else ""
                lines.append(
                    f"    {'reads ' if operand.is_input else 'writes'} {operand.name} {operand.dtype} "
                    f"{list(operand.device_size)} ({where}): {mib(operand.window_whole_nbytes)} -> "
                    f"{mib(operand.window_nbytes)}{flag}"
                )
            if row.is_result:
                lines += [f"    {note}" for note in row.notes]
        lines += [f"{op} runs elsewhere: {why}" for op, why in self.fallbacks.items()]
        return "\n".join(lines)


_current: ContextVar[Report | None] = ContextVar("report", default=None)


@contextmanager
def reporting() -> Iterator[Report]:
    """While this lasts, everything that is compiled is reported."""
    report = Report()
    token = _current.set(report)
    try:
        yield report
    finally:
        _current.reset(token)


def is_reporting() -> bool:
    """Whether anybody wants rows."""
    return _current.get() is not None or _log.isEnabledFor(logging.DEBUG)


def add_program(
    program: Program,
    whole_ranges: Callable[[OpSpec], dict[sympy.Symbol, int]],
    computed_by: Callable[[str], tuple[str, SpanAnalysis | None]],
) -> None:
    """A program was made; the functions say what an operation iterated before tiling, and what its memory is for."""
    numbers: dict[int, int] = {}
    rows = []
    for spec, loops in walk(program.specs):
        ids = tuple(numbers.setdefault(id(loop), len(numbers)) for loop in loops)
        name, whole = spec.args[-1].name, whole_ranges(spec)
        buffer, spans = computed_by(name)
        row = OpRow(
            program.name,
            name,
            buffer,
            spec.op,
            {str(s): int(extent) for s, (extent, _) in spec.iteration_space.items()},
            {str(s): n for s, n in whole.items()},
            {str(s): cores for s, (_, cores) in spec.iteration_space.items() if cores > 1},
            tuple(int(loop.count) for loop in loops),
            ids,
            tuple(_operand(spec, arg, whole) for arg in spec.args),
            spans,
        )
        _log.debug("%s: %s", program.name, row)
        rows.append(row)
    text = repr(program)
    _log.debug("%s", text)
    report = _current.get()
    if report is not None:
        report.rows += rows
        report.programs.append(text)


def add_fallback(op: str, why: str) -> None:
    """An operation runs elsewhere; said once for each."""
    report = _current.get()
    if report is not None:
        report.fallbacks.setdefault(op, why)
    if op not in _told:
        _told.add(op)
        _log.warning("%s does not run on the card as a program: %s. It runs on the host, on copies.", op, why)


_told: set[str] = set()


def _operand(spec: OpSpec, arg: TensorArg, whole: dict[sympy.Symbol, int]) -> OperandRow:
    divided = {s: -(-int(extent) // cores) for s, (extent, cores) in spec.iteration_space.items()}
    window = window_of(spec, arg, divided)
    return OperandRow(
        arg.name,
        arg.is_input,
        arg.dtype,
        arg.device_size,
        tuple(map(str, arg.device_coordinates)),
        window_of(spec, arg, whole),
        window,
        arg.arg_index < 0,
        window is None or window > config.max_span_bytes,
    )


def mib(nbytes: int | None) -> str:
    """Bytes as text: MiB from one on."""
    if nbytes is None:
        return "unknown"
    if nbytes < 2**20:
        return f"{nbytes} B"
    return f"{nbytes / 2**20:.4g} MiB" if nbytes < 1000 * 2**20 else f"{nbytes / 2**20:.0f} MiB"
