"""EvictableExecutor: operations on whole-value two-tier carriers, lowered to their primaries and wrapped back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from strideweave.carriers.evictable import Evictable
from strideweave.operation import execution
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, UnsupportedOperationPlan, with_call
from strideweave.tensor.tensor import Tensor


class EvictableExecutor:
    """Promotes every operand, runs the operation of their primary class, and gives Evictables of the same tiers."""

    def execute(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        """Fresh Evictable Tensors, promoted. Errors: TypeError for primaries of two classes; those of the primary's."""
        with ExitStack() as in_use:
            lowered: list[Any] = []
            prototype: Evictable | None = None
            primary_class: type | None = None
            for operand in invocation.operands:
                if not isinstance(operand, Tensor):
                    lowered.append(operand)
                    continue
                carrier = operand.carrier
                assert isinstance(carrier, Evictable)
                primary = in_use.enter_context(carrier._compute_carrier())
                if primary_class is not None and type(primary) is not primary_class:
                    raise TypeError(
                        f"cannot run {invocation.name} on primaries of {primary_class.__name__} and "
                        f"{type(primary).__name__}: Tensor backing carriers must match. Move one of the operands."
                    )
                primary_class, prototype = type(primary), prototype or carrier
                lowered.append(Tensor._make(primary, operand.offset, operand.layout))
            assert primary_class is not None
            assert prototype is not None
            executor = execution.executor_of(primary_class)
            if executor is None:
                raise UnsupportedOperationPlan(
                    f"cannot run {invocation.name} on Evictable over {primary_class.__name__}: its primary only "
                    f"stores. Primaries that compute are {execution.names()}. Choose one of these."
                )
            call = invocation.call
            results = executor.execute(
                with_call(
                    invocation, BoundOperationCall(call.definition, tuple(lowered), call.options, call.operand_kinds)
                )
            )
            return tuple(_wrapped(result, prototype) for result in results)


def _wrapped(result: Tensor, prototype: Evictable) -> Tensor:
    secondary = prototype.secondary.allocate_like(0, dtype=result.dtype())
    return Tensor._make(Evictable(result.carrier, secondary), result.offset, result.layout)
