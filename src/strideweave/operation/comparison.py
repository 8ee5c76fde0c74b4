"""Comparisons, truths, and what is chosen by them: maximum, minimum, clamp, select."""

from __future__ import annotations

import math
from collections.abc import Callable

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType, StorageDType
from strideweave.operation.call import BoundOperationCall, VJPContext
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.pointwise import Gives, no_bool, pointwise
from strideweave.tensor.tensor import Tensor


def _comparison(name: str, function: Callable[[Scalar, Scalar], bool]) -> OperationDefinition:
    return pointwise(name, ["x", "y"], function, gives=Gives.BOOL)


EQ = _comparison("eq", lambda x, y: x == y)
NE = _comparison("ne", lambda x, y: x != y)
LT = _comparison("lt", lambda x, y: x < y)
LE = _comparison("le", lambda x, y: x <= y)
GT = _comparison("gt", lambda x, y: x > y)
GE = _comparison("ge", lambda x, y: x >= y)
LOGICAL_AND = _comparison("logical_and", lambda x, y: bool(x) and bool(y))
LOGICAL_OR = _comparison("logical_or", lambda x, y: bool(x) or bool(y))
LOGICAL_XOR = _comparison("logical_xor", lambda x, y: bool(x) != bool(y))
LOGICAL_NOT = pointwise("logical_not", ["x"], lambda x: not x, gives=Gives.BOOL)
ISNAN = pointwise("isnan", ["x"], lambda x: x != x, gives=Gives.BOOL)
ISFINITE = pointwise("isfinite", ["x"], math.isfinite, gives=Gives.BOOL)


# -- maximum and minimum ---------------------------------------------------------------------------------------------


def _maximum(x: Scalar, y: Scalar) -> Scalar:
    return x if x > y or x != x else y


def _minimum(x: Scalar, y: Scalar) -> Scalar:
    return x if x < y or x != x else y


def _extremum(
    name: str, function: Callable[[Scalar, Scalar], Scalar], loses: Callable[[Scalar, Scalar], bool]
) -> OperationDefinition:
    """The definition of maximum or minimum; where both are equal, each has half of the gradient."""
    backward = pointwise(
        f"{name}_backward", ["g", "x", "y"], lambda g, x, y: 0 if loses(x, y) else g / 2 if x == y else g
    )

    def vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y = context.operand(0), context.operand(1)
        return backward(g, x, y) if context.needs[0] else None, backward(g, y, x) if context.needs[1] else None

    return pointwise(name, ["x", "y"], function, vjp, saves={0: (0, 1), 1: (0, 1)})


MAXIMUM = _extremum("maximum", _maximum, lambda x, y: x < y)
MINIMUM = _extremum("minimum", _minimum, lambda x, y: x > y)


# -- clamp -----------------------------------------------------------------------------------------------------------


def _clamp_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    x, lower, upper = (context.operand(k) for k in range(3))
    return (
        CLAMP_BACKWARD(g, x, lower, upper) if context.needs[0] else None,
        SELECT(LOGICAL_AND(LT(x, lower), LT(lower, upper)), g, 0) if context.needs[1] else None,
        SELECT(LOGICAL_OR(GT(x, upper), LT(upper, lower)), g, 0) if context.needs[2] else None,
    )


def _clamp_min_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    x, lower = context.operand(0), context.operand(1)
    return (
        CLAMP_MIN_BACKWARD(g, x, lower) if context.needs[0] else None,
        SELECT(LT(x, lower), g, 0) if context.needs[1] else None,
    )


def _clamp_max_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    x, upper = context.operand(0), context.operand(1)
    return (
        CLAMP_MAX_BACKWARD(g, x, upper) if context.needs[0] else None,
        SELECT(GT(x, upper), g, 0) if context.needs[1] else None,
    )


_ALL = (0, 1, 2)

CLAMP = pointwise(
    "clamp",
    ["x", "lower", "upper"],
    lambda x, lower, upper: _minimum(_maximum(x, lower), upper),
    _clamp_vjp,
    saves=dict.fromkeys(_ALL, _ALL),
    check=no_bool,
)
CLAMP_MIN = pointwise(
    "clamp_min", ["x", "lower"], _maximum, _clamp_min_vjp, saves={0: (0, 1), 1: (0, 1)}, check=no_bool
)
CLAMP_MAX = pointwise(
    "clamp_max", ["x", "upper"], _minimum, _clamp_max_vjp, saves={0: (0, 1), 1: (0, 1)}, check=no_bool
)
CLAMP_BACKWARD = pointwise(
    "clamp_backward", ["g", "x", "lower", "upper"], lambda g, x, lower, upper: g if lower <= x <= upper else 0
)
CLAMP_MIN_BACKWARD = pointwise("clamp_min_backward", ["g", "x", "lower"], lambda g, x, lower: g if x >= lower else 0)
CLAMP_MAX_BACKWARD = pointwise("clamp_max_backward", ["g", "x", "upper"], lambda g, x, upper: g if x <= upper else 0)


# -- select ----------------------------------------------------------------------------------------------------------


def _select_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    condition = context.operand(0)
    return (
        None,
        SELECT(condition, g, 0) if context.needs[1] else None,
        SELECT(condition, 0, g) if context.needs[2] else None,
    )


def _truth_first(call: BoundOperationCall, common: StorageDType) -> None:
    condition = call.operands[0]
    if not isinstance(condition, Tensor) or condition.dtype() is not DType.Bool:
        found = condition.dtype().name if isinstance(condition, Tensor) else type(condition).__name__
        raise TypeError(
            f"cannot run {call.definition.name} on a condition of {found}: a condition is a Bool Tensor. Compare "
            "first, as sw.ne(x, 0) does."
        )


SELECT = pointwise(
    "select",
    ["condition", "x", "y"],
    lambda condition, x, y: x if condition else y,
    _select_vjp,
    saves={0: (1, 2)},
    check=_truth_first,
)
"""Bool is the lowest of dtypes, so that the condition never decides the dtype of the result."""

__all__ = ["CLAMP", "CLAMP_MAX", "CLAMP_MIN", "ISFINITE", "ISNAN", "MAXIMUM", "MINIMUM", "SELECT"]
