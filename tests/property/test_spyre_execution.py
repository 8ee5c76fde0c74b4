"""The fast executor and the trap against the interpreter, which runs programs point by point and notes addresses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.support.spyre_programs import Case, Placed, cases

from strideweave.spyre import config
from strideweave.spyre.executor import prepare
from strideweave.spyre.interpreter import Touched, interpret
from strideweave.spyre.memory import memory
from strideweave.spyre.specs import OpSpec
from strideweave.spyre.trap import DeviceTrap


def meaning(case: Case, placed: Placed) -> list[Touched]:
    """Run a case point by point: what every core touched."""
    return interpret(case.program, placed.addresses, memory().bytes, placed.pool)


@given(cases())
@settings(max_examples=150, deadline=None)
def test_execution_is_what_the_program_means(case: Case) -> None:
    by_points, by_windows = Placed(case), Placed(case)
    try:
        meaning(case, by_points)
        prepare(case.program).run(by_windows.addresses)
        meant, found = by_points.output(), by_windows.output()
        assert torch.equal(meant[case.written], case.expected[case.written]), "the meaning is torch's"
        assert torch.equal(found[case.written], meant[case.written]), "windows do what points do"
        assert by_points.is_poison_elsewhere()
        assert by_windows.is_poison_elsewhere()
    finally:
        by_points.free()
        by_windows.free()


@given(cases())
@settings(max_examples=150, deadline=None)
def test_trap_is_the_enumerated_window_to_the_byte(case: Case) -> None:
    placed = Placed(case)
    try:
        touched = meaning(case, placed)
        # Operands in the order in which they are checked: of a program operation by operation.
        widest: dict[tuple[int, int], int] = {}
        for found in touched:
            key = (id(found.op), found.number)
            widest[key] = max(widest.get(key, 0), found.span)
        most = max(widest.values())
        with config.patch(max_span_bytes=most):
            prepare(case.program)
        with config.patch(max_span_bytes=most - 1), pytest.raises(DeviceTrap) as trapped:
            prepare(case.program)
        assert trapped.value.nbytes == most
        assert trapped.value.limit == most - 1
        assert widest[(id(_op_of(case, touched, most)), trapped.value.operand)] == most
    finally:
        placed.free()


def _op_of(case: Case, touched: list[Touched], most: int) -> OpSpec:
    """The first operation of the program that has a window of so many bytes."""
    for op in case.program.ops():
        if any(t.op is op and t.span == most for t in touched):
            return op
    raise AssertionError


@given(cases())
@settings(max_examples=40, deadline=None)
def test_nothing_is_written_when_it_traps(case: Case) -> None:
    placed = Placed(case)
    try:
        before = memory().bytes[placed.addresses[-1] : placed.addresses[-1] + 128].clone()
        with config.patch(max_span_bytes=0), pytest.raises(DeviceTrap):
            prepare(case.program).run(placed.addresses)
        assert torch.equal(memory().bytes[placed.addresses[-1] : placed.addresses[-1] + 128], before)
    finally:
        placed.free()
