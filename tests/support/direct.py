"""Direct operations on tiled Tensors: one matrix in tiles, every call that such a Tensor takes, and what torch says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import strideweave as sw
from strideweave import CPU, Layout, ResidencyPlan, Tensor, TiledEvictable, TileSet, from_torch
from support.operations import dense as dense_of
from support.scripted_carrier import Hold, ScriptedCarrier

PATIENCE_S = 10.0

SHEET = torch.arange(24.0).reshape(4, 6) - 9
OTHER = torch.arange(24.0).reshape(4, 6).flip(0) - 13
RIGHT = torch.arange(18.0).reshape(6, 3) - 4
LEFT = torch.arange(12.0).reshape(3, 4) - 5


def sheet(
    values: torch.Tensor = SHEET, *, budget_tiles: int | None = None, **options: Any
) -> tuple[TiledEvictable, Tensor, ScriptedCarrier]:
    """A row-major matrix in 2 x 3 tiles (4 of them when it is `SHEET`), all of it in a scripted secondary."""
    rows, columns = values.shape
    secondary = ScriptedCarrier(values.reshape(-1))
    layout = Layout.row_major(rows, columns)
    carrier = TiledEvictable(
        CPU(0, dtype=secondary.dtype()),
        secondary,
        (rows // 2, columns // 3),
        (2, 3),
        layout=layout,
        budget=None if budget_tiles is None else budget_tiles * 6 * values.itemsize,
        **options,
    )
    return carrier, Tensor(carrier, 0, layout), secondary


def ordinary(values: torch.Tensor, *, wants: bool = False) -> Tensor:
    """The values on the compute carrier."""
    return from_torch(values.clone()).requires_grad_(wants)


@dataclass(frozen=True, slots=True)
class Call:
    """A direct operation with the tiled Tensor as one operand and, perhaps, ordinary values as the other."""

    label: str
    operation: str
    run: Callable[..., Tensor]
    """Takes the tiled Tensor and the others."""
    oracle: Callable[..., torch.Tensor]
    """Takes the same as torch tensors."""
    others: tuple[torch.Tensor, ...] = ()

    def __str__(self) -> str:
        return self.label

    def with_ordinary(self, x: Tensor, *, wants: bool = False) -> tuple[Tensor, list[Tensor]]:
        """The result for a tiled `x`, and the other operands."""
        others = [ordinary(held, wants=wants) for held in self.others]
        return self.run(x, *others), others

    def expected(self, values: torch.Tensor = SHEET) -> torch.Tensor:
        """What torch says."""
        return self.oracle(values, *self.others)


CALLS = [
    Call("add", "add", sw.add, torch.add, (OTHER,)),
    Call("add second", "add", lambda x, y: sw.add(y, x), torch.add, (OTHER,)),
    Call("add a scalar", "add", lambda x: sw.add(x, 3.0), lambda x: x + 3.0),
    Call("add a row", "add", sw.add, torch.add, (OTHER[:1],)),
    Call("elementwise_mul", "elementwise_mul", sw.elementwise_mul, torch.mul, (OTHER,)),
    Call("mul", "mul", sw.mul, torch.mul, (OTHER,)),
    Call("mul a column", "mul", sw.mul, torch.mul, (OTHER[:, :1],)),
    Call("mul by a scalar", "mul", lambda x: sw.mul(x, -2.0), lambda x: x * -2.0),
    Call("mul of a scalar", "mul", lambda x: sw.mul(-2.0, x), lambda x: -2.0 * x),
    Call("relu", "relu", sw.relu, torch.relu),
    Call("reduce_sum", "reduce_sum", sw.reduce_sum, torch.sum),
    Call("reduce_sum of axis 0", "reduce_sum", lambda x: sw.reduce_sum(x, axis=0), lambda x: x.sum(0)),
    Call("reduce_sum by description", "reduce_sum", lambda x: sw.reduce_sum(x, "a b -> a"), lambda x: x.sum(1)),
    Call("matmul", "matmul", sw.matmul, torch.matmul, (RIGHT,)),
    Call("matmul second", "matmul", lambda x, y: sw.matmul(y, x), lambda x, y: y @ x, (LEFT,)),
]
"""Every operation that a tiled Tensor takes directly; small whole numbers, so that every answer is exact."""

SAVING = [call for call in CALLS if call.label in ("elementwise_mul", "mul", "mul a column", "matmul", "matmul second")]
"""Those whose gradient for the other operand reads the tiled one."""


class Recorded:
    """A policy that answers with what it was told to, remembers what it was asked, and can look on at the same time."""

    def __init__(self, answer: object = None, look: Callable[[], object] = lambda: None) -> None:
        self.answer = ResidencyPlan() if answer is None else answer
        self.look = look
        self.asked: list[tuple[TileSet, str]] = []
        self.seen: list[object] = []

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        self.asked.append((required, purpose))
        self.seen.append(self.look())
        if isinstance(self.answer, BaseException):
            raise self.answer
        if callable(self.answer):
            return self.answer(required)  # type: ignore[no-any-return]
        return self.answer  # type: ignore[return-value]

    @property
    def purposes(self) -> list[str]:
        return [purpose for _, purpose in self.asked]


class Background:
    """A call on a thread of its own: whether it is over, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert self.is_over, "it hangs"

    def result(self) -> Any:
        """What it gave, or raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result


@contextmanager
def in_background(call: Callable[[], Any], hold: Hold) -> Iterator[Background]:
    """The call runs meanwhile, up to `hold`, which the end of the block lets go; then the call is over."""
    running = Background(call)
    try:
        yield running
    finally:
        hold.let_go()
        running.join()


def values(tensor: Tensor | None) -> torch.Tensor:
    """The values of a result or of a gradient, tiled or not."""
    assert tensor is not None
    return dense_of(tensor.materialize() if isinstance(tensor.carrier, TiledEvictable) else tensor)


def oracle_gradients(call: Call, x: torch.Tensor, cotangent: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of every operand, by torch."""
    leaves = [t.clone().requires_grad_() for t in (x, *call.others)]
    call.oracle(*leaves).backward(cotangent)
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def cotangent_of(result: Tensor) -> torch.Tensor:
    """Small whole numbers of the result's shape, none of them 0 everywhere."""
    sizes = [result.layout[k].size for k in range(len(result.layout))]
    count = 1
    for n in sizes:
        count *= n
    return (torch.arange(float(count)) % 5 - 1).reshape(sizes)


def cotangent_for(result: Tensor, drawn: torch.Tensor) -> Tensor:
    """The same on the result's layout."""
    made = Tensor(CPU(result.layout.cosize, dtype=result.dtype()), 0, result.layout)
    made.torch().copy_(drawn)
    return made
