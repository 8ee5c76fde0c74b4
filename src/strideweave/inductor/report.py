"""What the compiler did, row by row: kept while a function is explained, and logged as it happens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

import sympy

from strideweave.inductor.work_division import window_of
from strideweave.spyre import config
from strideweave.spyre.specs import OpSpec, TensorArg

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

    @property
    def exceeds(self) -> bool:
        """Whether the window is above the limit."""
        return self.window_nbytes is None or self.window_nbytes > config.max_span_bytes


@dataclass(frozen=True)
class OpRow:
    """One operation of a program."""

    program: str
    name: str
    """The buffer that it computes."""
    op: str
    ranges: dict[str, int]
    """The range of every symbol within a tile."""
    whole_ranges: dict[str, int]
    """The same before tiling."""
    cores: dict[str, int]
    """Over how many cores each symbol is divided; those that are not divided are left out."""
    loops: tuple[int, ...]
    """The counts of the loops around it, outermost first."""
    operands: tuple[OperandRow, ...]
    notes: tuple[str, ...] = ()
    """What the planner tried, and why."""


@dataclass
class Report:
    """What became of a function: one row per operation, in the order in which they run.

    `str(report)` is a table; `report.to_json()` plain data.
    """

    rows: list[OpRow] = field(default_factory=list)
    fallbacks: dict[str, str] = field(default_factory=dict)
    """Operations that run elsewhere, and why."""
    programs: list[str] = field(default_factory=list)
    """The text of every program."""

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and text."""
        return {
            "limit_nbytes": config.max_span_bytes,
            "cores": config.sencores,
            "operations": [asdict(row) for row in self.rows],
            "fallbacks": self.fallbacks,
            "programs": self.programs,
        }

    def __str__(self) -> str:
        lines = [
            f"{len(self.rows)} operations; one core's window is at most {_mib(config.max_span_bytes)}, "
            f"{config.sencores} cores"
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
                    f"{list(operand.device_size)} ({where}): {_mib(operand.window_whole_nbytes)} -> "
                    f"{_mib(operand.window_nbytes)}{flag}"
                )
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


def add_row(
    program: str,
    name: str,
    spec: OpSpec,
    loops: tuple[int, ...],
    whole_ranges: dict[sympy.Symbol, int],
    notes: tuple[str, ...] = (),
) -> None:
    """An operation was made."""
    row = OpRow(
        program,
        name,
        spec.op,
        {str(s): int(extent) for s, (extent, _) in spec.iteration_space.items()},
        {str(s): n for s, n in whole_ranges.items()},
        {str(s): cores for s, (_, cores) in spec.iteration_space.items() if cores > 1},
        loops,
        tuple(_operand(spec, arg, whole_ranges) for arg in spec.args),
        notes,
    )
    report = _current.get()
    if report is not None:
        report.rows.append(row)
    _log.debug("%s: %s", program, row)


def add_program(text: str) -> None:
    """A program was made."""
    report = _current.get()
    if report is not None:
        report.programs.append(text)
    _log.debug("%s", text)


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
    return OperandRow(
        arg.name,
        arg.is_input,
        arg.dtype,
        arg.device_size,
        tuple(map(str, arg.device_coordinates)),
        window_of(spec, arg, whole),
        window_of(spec, arg, divided),
        arg.arg_index < 0,
    )


def _mib(nbytes: int | None) -> str:
    if nbytes is None:
        return "unknown"
    return f"{nbytes / 2**20:.4g} MiB" if nbytes >= 2**20 else f"{nbytes} B"
