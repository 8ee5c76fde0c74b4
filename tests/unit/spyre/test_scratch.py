"""Scratch belongs to one iteration: what is read there before it is written is poison, not what the last one left."""

from __future__ import annotations

import pytest
import sympy
import torch

from strideweave.spyre import config
from strideweave.spyre.executor import prepare
from strideweave.spyre.memory import memory
from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Ref, TensorArg
from strideweave.spyre.sticks import DataFormat

X, Y = sympy.symbols("x y", integer=True, nonnegative=True)
FLOAT = DataFormat.IEEE_FP32


def copy(source: TensorArg, target: TensorArg) -> OpSpec:
    space = {X: (sympy.Integer(2), 1), Y: (sympy.Integer(32), 1)}
    body = (("load", 0), ("copy", Ref(0)))
    return OpSpec("identity", False, space, (source, target), {"body": body}, ((X,),))


@pytest.mark.parametrize("is_poison", [True, False])
def test_scratch_is_poison_when_an_iteration_begins(is_poison: bool) -> None:
    address = memory().allocate(2048)
    rows = memory().view(torch.float32)[address // 4 : address // 4 + 256].view(8, 32)
    rows.copy_(torch.arange(256.0).view(8, 32))
    there = TensorArg(True, 0, FLOAT, (8, 32), (X, Y), {"hbm": 0}, "float32")
    back = TensorArg(False, 1, FLOAT, (8, 32), (X, Y), {"hbm": 0}, "float32")
    put, get = (
        TensorArg(is_input, -1, FLOAT, (2, 32), (X, Y), {"pool": 0}, "float32", per_tile_fixed=True)
        for is_input in (False, True)
    )
    late = LoopSpec(sympy.Integer(4), (copy(get, back), copy(there, put)))  # reads before it writes
    with config.patch(poison=is_poison):
        prepare(Program("late", (late,), 2, 256)).run([address, address + 1024])
    found = memory().view(torch.float32)[address // 4 + 256 : address // 4 + 512].view(8, 32)
    assert found[2:].isnan().all() if is_poison else torch.equal(found[2:], torch.arange(192.0).view(6, 32))
    memory().free(address)
