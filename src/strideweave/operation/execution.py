"""Who runs an operation on a carrier class: one executor for each exact class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strideweave.carriers.carrier import Carrier
from strideweave.operation.call import ResolvedInvocation, VJPContext
from strideweave.tensor.tensor import Tensor


class Executor(Protocol):
    """Computes the results of invocations whose tensor operands live on one carrier class."""

    def execute(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        """Fresh Tensors as `invocation.results` describes them, or the operands that these alias.

        Errors: UnsupportedOperationPlan, before anything is computed, when there is no kernel.
        """
        ...


class DifferentiatingExecutor(Executor, Protocol):
    """An executor that has gradients of its own for what it computed."""

    def gradient(self, context: VJPContext, *cotangents: Tensor | None) -> Sequence[Tensor | None] | None:
        """One entry for every operand, as a VJP gives them; None for the definition's own VJP."""
        ...


_executors: dict[type[Carrier], Executor] = {}


def register_executor(carrier_class: type[Carrier], executor: Executor) -> None:
    """From now on `executor` runs every operation on exactly this class.

    >>> import strideweave as sw
    >>> from strideweave.operation import ReferenceExecutor, register_executor
    >>> register_executor(sw.Generic, ReferenceExecutor())
    """
    _executors[carrier_class] = executor


def executor_of(carrier_class: type[Carrier]) -> Executor | None:
    """Who runs operations on exactly this class; None for carriers that only store."""
    return _executors.get(carrier_class)


def names() -> str:
    """The classes that compute, for messages."""
    return ", ".join(sorted(cls.__name__ for cls in _executors))
