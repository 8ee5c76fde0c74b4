"""The graph under a Tensor: which operations led to it, and in which order gradients pass them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strideweave.operation.node import Operation, ResultContext
from strideweave.tensor.tensor import Tensor


def operation_of(context: object) -> tuple[Operation, int]:
    """The operation that a Tensor's context stands for, and which of its results the Tensor is.

    Errors: TypeError for what is no such context.
    """
    if isinstance(context, ResultContext):
        return context.operation, context.index
    if not isinstance(context, Operation):
        raise TypeError(
            f"cannot go backward from {context!r}: it is no recorded Operation. Pass the autograd_ctx of a Tensor that "
            "an operation made."
        )
    return context, 0


def parents(operation: Operation) -> Iterator[Tensor]:
    """The operands of an operation through which a gradient goes on."""
    operands = operation._live().call.operands
    for operand, needed in zip(operands, operation._needs, strict=True):
        if needed:
            yield operand


def backward_order(roots: Iterable[Operation]) -> list[Operation]:
    """Every operation under the roots, each before all those that made its operands; no recursion, any depth."""
    order: list[Operation] = []
    seen: set[int] = set()
    for root in roots:
        if id(root) in seen:
            continue
        seen.add(id(root))
        stack = [(root, parents(root))]
        while stack:
            operation, rest = stack[-1]
            for operand in rest:
                if operand._node is None:
                    continue
                below, _ = operation_of(operand._node)
                if id(below) not in seen:
                    seen.add(id(below))
                    stack.append((below, parents(below)))
                    break
            else:
                order.append(operation)
                stack.pop()
    order.reverse()
    return order
