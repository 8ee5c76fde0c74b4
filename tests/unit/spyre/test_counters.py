"""What programs have done is counted: runs, bytes per core, windows, iterations."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import sympy

from strideweave.spyre import reset_statistics, statistics
from strideweave.spyre.executor import prepare
from strideweave.spyre.memory import memory
from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Ref, TensorArg
from strideweave.spyre.sticks import DataFormat

X, Y = sympy.symbols("x y", integer=True, nonnegative=True)
FLOAT = DataFormat.IEEE_FP32


@pytest.fixture
def address() -> Iterator[int]:
    reset_statistics()
    found = memory().allocate(4096)
    yield found
    memory().free(found)


def add(rows: int, cores: int, tiled: tuple[tuple[sympy.Symbol, ...], ...] = ()) -> OpSpec:
    whole = TensorArg(True, 0, FLOAT, (8, 32), (X, Y), {"hbm": 0}, "float32")
    row = TensorArg(True, 0, FLOAT, (8, 32), (sympy.S.Zero, Y), {"hbm": 0}, "float32")
    out = TensorArg(False, 1, FLOAT, (8, 32), (X, Y), {"hbm": 0}, "float32")
    body = (("load", 0), ("load", 1), ("add", Ref(0), Ref(1)))
    space = {X: (sympy.Integer(rows), cores), Y: (sympy.Integer(32), 1)}
    return OpSpec("add", False, space, (whole, row, out), {"body": body}, tiled)


def test_runs_bytes_and_windows_of_an_operation_are_counted(address: int) -> None:
    prepared = prepare(Program("counted", (add(8, 3),), 2))
    for _ in range(5):
        prepared.run([address, address + 1024])
    (op,) = statistics().ops
    assert (op.program, op.number, op.name, op.runs, op.windows) == ("counted", 0, "add", 5, 15)
    # Cores take 3, 3 and 2 of the 8 rows; each reads the one row that all share.
    assert op.nbytes_by_core == tuple(5 * 4 * 32 * (2 * rows + 1) for rows in (3, 3, 2))
    assert op.seconds > 0
    assert statistics().nbytes == op.nbytes
    assert "counted[0] add" in str(statistics())


def test_loops_count_their_iterations_and_the_body_its_runs(address: int) -> None:
    loop = LoopSpec(sympy.Integer(4), (add(2, 1, ((X,),)),))
    prepared = prepare(Program("looped", (loop,), 2))
    prepared.run([address, address + 1024])
    prepared.run([address, address + 1024])
    (op,), (counted,) = statistics().ops, statistics().loops
    assert (op.number, op.runs) == (1, 8)
    assert (counted.number, counted.runs, counted.iterations) == (0, 2, 8)
    assert counted.seconds >= op.seconds
    assert "8 iterations" in str(statistics())


def test_counts_outlive_their_program_and_add_up(address: int) -> None:
    for _ in range(2):
        prepared = prepare(Program("again", (add(8, 1),), 2))
        prepared.run([address, address + 1024])
        del prepared
        gc.collect()
    (op,) = statistics().ops
    assert op.runs == 2
    reset_statistics()
    assert statistics().ops == ()
    assert statistics().seconds == 0
