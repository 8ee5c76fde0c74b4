"""Comparisons, truths, and what is chosen by them, as functions."""

from __future__ import annotations

from strideweave.operation import comparison as definitions
from strideweave.operation.functional.operands import Operand
from strideweave.tensor.tensor import Tensor

__all__ = [
    "clamp",
    "eq",
    "ge",
    "gt",
    "isfinite",
    "isnan",
    "le",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "maximum",
    "minimum",
    "ne",
    "select",
]


def eq(x: Operand, y: Operand) -> Tensor:
    """Where `x` equals `y`, as Bool; compared in the promoted dtype, shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.eq(sw.tensor([1, 2]), 1))
    [True, False]
    """
    result: Tensor = definitions.EQ(x, y)
    return result


def ne(x: Operand, y: Operand) -> Tensor:
    """Where `x` differs from `y`, as Bool; compared in the promoted dtype, shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.ne(sw.tensor([1, 2]), 1))
    [False, True]
    """
    result: Tensor = definitions.NE(x, y)
    return result


def lt(x: Operand, y: Operand) -> Tensor:
    """Where `x < y`, as Bool; compared in the promoted dtype, shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.lt(sw.tensor([1, 2]), 2))
    [True, False]
    """
    result: Tensor = definitions.LT(x, y)
    return result


def le(x: Operand, y: Operand) -> Tensor:
    """Where `x <= y`, as Bool; compared in the promoted dtype, shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.le(sw.tensor([1, 2]), 1))
    [True, False]
    """
    result: Tensor = definitions.LE(x, y)
    return result


def gt(x: Operand, y: Operand) -> Tensor:
    """Where `x > y`, as Bool; compared in the promoted dtype, shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.gt(sw.tensor([1, 2]), 1))
    [False, True]
    """
    result: Tensor = definitions.GT(x, y)
    return result


def ge(x: Operand, y: Operand) -> Tensor:
    """Where `x >= y`, as Bool; compared in the promoted dtype, shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.ge(sw.tensor([1, 2]), 2))
    [False, True]
    """
    result: Tensor = definitions.GE(x, y)
    return result


def _truth(operand: Operand) -> Operand:
    return operand if isinstance(operand, Tensor) or not isinstance(operand, int | float) else bool(operand)


def logical_and(x: Operand, y: Operand) -> Tensor:
    """Where both are other than 0, as Bool; shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.logical_and(sw.tensor([0, 2]), True))
    [False, True]
    """
    result: Tensor = definitions.LOGICAL_AND(_truth(x), _truth(y))
    return result


def logical_or(x: Operand, y: Operand) -> Tensor:
    """Where one is other than 0, as Bool; shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.logical_or(sw.tensor([0, 2]), False))
    [False, True]
    """
    result: Tensor = definitions.LOGICAL_OR(_truth(x), _truth(y))
    return result


def logical_xor(x: Operand, y: Operand) -> Tensor:
    """Where exactly one is other than 0, as Bool; shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.logical_xor(sw.tensor([0, 2]), True))
    [True, False]
    """
    result: Tensor = definitions.LOGICAL_XOR(_truth(x), _truth(y))
    return result


def logical_not(x: Tensor) -> Tensor:
    """Where `x` is 0, as Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.logical_not(sw.tensor([0, 2])))
    [True, False]
    """
    result: Tensor = definitions.LOGICAL_NOT(x)
    return result


def isnan(x: Tensor) -> Tensor:
    """Where `x` is NaN, as Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.isnan(sw.tensor([1.0, float('nan')])))
    [False, True]
    """
    result: Tensor = definitions.ISNAN(x)
    return result


def isfinite(x: Tensor) -> Tensor:
    """Where `x` is neither infinite nor NaN, as Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.isfinite(sw.tensor([1.0, float('inf')])))
    [True, False]
    """
    result: Tensor = definitions.ISFINITE(x)
    return result


def maximum(x: Operand, y: Operand) -> Tensor:
    """The greater one at every coordinate, NaN where one is; shapes and errors as `add`.

    Where both are equal, each has half of the gradient.

    >>> import strideweave as sw
    >>> sw.to_list(sw.maximum(sw.tensor([0.0, 2.0]), 1))
    [1.0, 2.0]
    """
    result: Tensor = definitions.MAXIMUM(x, y)
    return result


def minimum(x: Operand, y: Operand) -> Tensor:
    """The smaller one at every coordinate, NaN where one is; shapes and errors as `add`.

    Where both are equal, each has half of the gradient.

    >>> import strideweave as sw
    >>> sw.to_list(sw.minimum(sw.tensor([0.0, 2.0]), 1))
    [0.0, 1.0]
    """
    result: Tensor = definitions.MINIMUM(x, y)
    return result


def clamp(x: Tensor, lower: Operand | None = None, upper: Operand | None = None) -> Tensor:
    """`x`, but not below `lower` and not above `upper`; `upper` where the two cross, NaN where one is.

    The gradient goes to `x` from `lower` to `upper`, both included. Shapes and errors: as `add`; TypeError for Bool;
    ValueError without bounds.

    >>> import strideweave as sw
    >>> sw.to_list(sw.clamp(sw.tensor([-1.0, 0.5, 2.0]), 0, 1))
    [0.0, 0.5, 1.0]
    """
    result: Tensor
    if lower is not None and upper is not None:
        result = definitions.CLAMP(x, lower, upper)
    elif lower is not None:
        result = definitions.CLAMP_MIN(x, lower)
    elif upper is not None:
        result = definitions.CLAMP_MAX(x, upper)
    else:
        raise ValueError("cannot clamp without bounds: lower and upper are both None. Pass at least one of them.")
    return result


def select(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """`x` where `condition` is true, `y` elsewhere, in their promoted dtype; shapes as `add`.

    Errors: as `add`; TypeError for a condition that is no Bool Tensor.

    >>> import strideweave as sw
    >>> x = sw.tensor([-1.0, 2.0])
    >>> sw.to_list(sw.select(sw.gt(x, 0), x, 0))
    [0.0, 2.0]
    """
    result: Tensor = definitions.SELECT(condition, x, y)
    return result
