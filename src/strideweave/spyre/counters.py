"""What programs have done: runs, bytes per core, windows, iterations and time of every operation and loop."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strideweave.spyre.prepared import PreparedOp

_lock = threading.RLock()  # guards _living and _gone; a finalizer may run while this thread holds it
_living: dict[int, Sequence[Counter]] = {}
_gone: dict[tuple[object, ...], Counter] = {}


@dataclass(slots=True, eq=False)
class Counter:
    """Counts of one operation or loop; written by one run at a time."""

    program: str
    number: int
    name: str
    nbytes_by_core: tuple[int, ...]
    """What one run moves; empty for a loop."""
    windows: int
    iterations: int
    runs: int = 0
    time_ns: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same operation of the same program, prepared again."""
        return self.program, self.number, self.name, self.nbytes_by_core, self.windows, self.iterations


@dataclass(frozen=True, slots=True)
class OpStatistics:
    """One operation of a program, or one loop: `iterations` is 0 for an operation, and a loop has the time of its body.

    Bytes count every element that a core reads or writes once for each argument.
    """

    program: str
    number: int
    """Its place in the program, loops and operations counted from 0 as they are written."""
    name: str
    runs: int
    seconds: float
    nbytes_by_core: tuple[int, ...]
    """Bytes moved by every core, over all runs."""
    windows: int
    """How many windows of device memory all runs used."""
    iterations: int
    """How often the body of a loop ran."""

    @property
    def nbytes(self) -> int:
        """Bytes moved by all cores."""
        return sum(self.nbytes_by_core)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Everything that ran since the counts began."""

    ops: tuple[OpStatistics, ...]
    loops: tuple[OpStatistics, ...]

    @property
    def nbytes(self) -> int:
        """Bytes moved."""
        return sum(op.nbytes for op in self.ops)

    @property
    def runs(self) -> int:
        """How many operations ran."""
        return sum(op.runs for op in self.ops)

    @property
    def seconds(self) -> float:
        """The time of all operations."""
        return sum(op.seconds for op in self.ops)

    def __str__(self) -> str:
        lines = [f"{'operation':<40}{'runs':>10}{'MiB':>12}{'cores':>7}{'windows':>10}{'ms':>12}"]
        lines += [
            f"{f'{op.program}[{op.number}] {op.name}':<40}{op.runs:>10}{op.nbytes / 2**20:>12.2f}"
            f"{len(op.nbytes_by_core):>7}{op.windows:>10}{op.seconds * 1e3:>12.3f}"
            for op in self.ops
        ]
        lines += [
            f"{f'{loop.program}[{loop.number}] loop':<40}{loop.runs:>10}{'':>12}{'':>7}{'':>10}"
            f"{loop.seconds * 1e3:>12.3f}  {loop.iterations} iterations"
            for loop in self.loops
        ]
        return "\n".join(lines)


def statistics() -> Statistics:
    """What all programs have done since the process began, or since `reset_statistics`.

    Programs that are gone count too. Units: bytes, seconds.

    >>> from strideweave.spyre.counters import reset_statistics, statistics
    >>> reset_statistics()
    >>> statistics().runs, statistics().nbytes
    (0, 0)
    """
    with _lock:
        merged: dict[tuple[object, ...], Counter] = {key: _copied(counter) for key, counter in list(_gone.items())}
        for counters in list(_living.values()):
            for counter in counters:
                _merge(merged, counter)
    rows = [_row(counter) for counter in merged.values() if counter.runs]
    rows.sort(key=lambda row: (row.program, row.number))
    return Statistics(
        tuple(row for row in rows if row.nbytes_by_core), tuple(row for row in rows if not row.nbytes_by_core)
    )


def reset_statistics() -> None:
    """Every count is 0 again."""
    with _lock:
        _gone.clear()
        for counters in list(_living.values()):
            for counter in counters:
                counter.runs = counter.time_ns = 0


def keep(owner: int, counters: Sequence[Counter]) -> None:
    """Count these from now on."""
    with _lock:
        _living[owner] = counters


def retire(owner: int) -> None:
    """The program that these belong to is gone; their counts stay."""
    with _lock:
        for counter in _living.pop(owner, ()):
            if counter.runs:
                _merge(_gone, counter)


def nbytes_by_core(prepared: PreparedOp) -> tuple[int, ...]:
    """What every core moves in one run: the elements of its part of the iteration space, for each argument."""
    space = prepared.spec.iteration_space
    cores = math.prod(count for _, count in space.values())
    found = []
    for core in range(cores):
        rest, own = core, {}
        for symbol, (extent, count) in space.items():
            rest, place = divmod(rest, count)
            part = -(-int(extent) // count)
            own[symbol] = max(0, min(part, int(extent) - place * part))
        is_idle = not all(own.values())
        found.append(
            sum(
                0 if is_idle else math.prod(own[s] for s in own if s in used) * itemsize
                for used, itemsize in (
                    (a.address.free_symbols, a.arg.device_dtype.itemsize) for a in prepared.arguments
                )
            )
        )
    return tuple(found)


def _row(counter: Counter) -> OpStatistics:
    runs = counter.runs
    return OpStatistics(
        counter.program,
        counter.number,
        counter.name,
        runs,
        counter.time_ns / 1e9,
        tuple(runs * nbytes for nbytes in counter.nbytes_by_core),
        runs * counter.windows,
        runs * counter.iterations,
    )


def _copied(counter: Counter) -> Counter:
    return replace(counter)


def _merge(into: dict[tuple[object, ...], Counter], counter: Counter) -> None:
    known = into.get(counter.key)
    if known is None:
        into[counter.key] = _copied(counter)
    else:
        known.runs += counter.runs
        known.time_ns += counter.time_ns
