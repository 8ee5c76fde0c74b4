"""Arithmetic beyond the four rules: signs, rounding, roots, powers, remainders."""

from __future__ import annotations

import math
from collections.abc import Callable

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import StorageDType
from strideweave.operation.call import BoundOperationCall, VJPContext
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.pointwise import ZERO, Gives, divided, no_bool, pointwise
from strideweave.tensor.tensor import Tensor


def sign(x: Scalar) -> int:
    """-1, 0 or 1; 0 for NaN, as in torch."""
    return (x > 0) - (x < 0)


# -- one operand -----------------------------------------------------------------------------------------------------


def _flat(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    return (ZERO(g),)


def _stepped(name: str, function: Callable[[float], Scalar]) -> OperationDefinition:
    """The definition of a rounding: whole numbers, infinities and NaN stay."""
    return pointwise(name, ["x"], lambda x: function(x) if math.isfinite(x) else x, _flat, check=no_bool)


def _root(x: Scalar) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


SIGN = pointwise("sign", ["x"], sign, _flat)
FLOOR = _stepped("floor", math.floor)
CEIL = _stepped("ceil", math.ceil)
TRUNC = _stepped("trunc", math.trunc)
ROUND = _stepped("round", round)

ABS_BACKWARD = pointwise("abs_backward", ["g", "x"], lambda g, x: g * sign(x))

ABS = pointwise(
    "abs", ["x"], abs, lambda context, g: (ABS_BACKWARD(g, context.operand(0)),), saves={0: (0,)}, check=no_bool
)

SQUARE_BACKWARD = pointwise("square_backward", ["g", "x"], lambda g, x: 2 * g * x)

SQUARE = pointwise(
    "square",
    ["x"],
    lambda x: x * x,
    lambda context, g: (SQUARE_BACKWARD(g, context.operand(0)),),
    gives=Gives.NUMBER,
    saves={0: (0,)},
)

RECIP_BACKWARD = pointwise("recip_backward", ["g", "y"], lambda g, y: -g * y * y)

RECIP = pointwise(
    "recip",
    ["x"],
    lambda x: divided(1.0, x),
    lambda context, g: (RECIP_BACKWARD(g, context.outputs[0]),),
    gives=Gives.FLOATING,
)

SQRT_BACKWARD = pointwise("sqrt_backward", ["g", "y"], lambda g, y: divided(g, 2 * y))

SQRT = pointwise("sqrt", ["x"], _root, lambda context, g: (SQRT_BACKWARD(g, context.outputs[0]),), gives=Gives.FLOATING)

RSQRT_BACKWARD = pointwise("rsqrt_backward", ["g", "y"], lambda g, y: -0.5 * g * y * y * y)

RSQRT = pointwise(
    "rsqrt",
    ["x"],
    lambda x: divided(1.0, _root(x)),
    lambda context, g: (RSQRT_BACKWARD(g, context.outputs[0]),),
    gives=Gives.FLOATING,
)


# -- powers ----------------------------------------------------------------------------------------------------------


def power(x: Scalar, y: Scalar) -> Scalar:
    """`x ** y`: IEEE's for floats; modulo 2**64 for whole numbers, 0 for a negative exponent unless |x| is 1."""
    if isinstance(x, float) or isinstance(y, float):
        return _float_power(float(x), float(y))
    if y >= 0:
        return pow(int(x), int(y), 1 << 64)
    return 0 if abs(x) != 1 else 1 if x == 1 or y % 2 == 0 else -1


def _float_power(x: float, y: float) -> float:
    is_odd = y.is_integer() and y % 2 == 1
    if x == 0 and y < 0:
        return math.copysign(math.inf, x) if is_odd else math.inf
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and is_odd else math.inf
    except ValueError:
        return math.nan


def _base_gradient(g: Scalar, x: Scalar, y: Scalar) -> Scalar:
    return 0 if y == 0 else g * (y * _float_power(float(x), float(y - 1)))


def _exponent_gradient(g: Scalar, x: Scalar, y: Scalar, result: Scalar) -> Scalar:
    if x == 0 and y >= 0:
        return 0
    logarithm = -math.inf if x == 0 else math.log(x) if x > 0 else math.nan
    return g * (result * logarithm)


def _pow_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    x, y = context.operand(0), context.operand(1)
    return (
        POW_BASE_BACKWARD(g, x, y) if context.needs[0] else None,
        POW_EXPONENT_BACKWARD(g, x, y, context.outputs[0]) if context.needs[1] else None,
    )


def _no_bool_exponent(call: BoundOperationCall, common: StorageDType) -> None:
    # A Python truth as the exponent is the one case that torch takes.
    if isinstance(call.operands[1], Tensor):
        no_bool(call, common)


POW = pointwise("pow", ["x", "y"], power, _pow_vjp, saves={0: (0, 1), 1: (0, 1)}, check=_no_bool_exponent)
POW_BASE_BACKWARD = pointwise("pow_base_backward", ["g", "x", "y"], _base_gradient)
POW_EXPONENT_BACKWARD = pointwise("pow_exponent_backward", ["g", "x", "y", "result"], _exponent_gradient)


# -- remainders ------------------------------------------------------------------------------------------------------


def whole_division_by_zero(name: str) -> ZeroDivisionError:
    """The error of a whole number divided by zero."""
    return ZeroDivisionError(
        f"cannot run {name}: a whole number is divided by 0. Only floating numbers can be. Convert the operands, or "
        "select other divisors."
    )


def _remainder(x: Scalar, y: Scalar) -> Scalar:
    if y != 0:
        return x % y if math.isfinite(x) else math.nan
    if isinstance(x, float):
        return math.nan
    raise whole_division_by_zero("rem")


def _floor_quotient(x: Scalar, y: Scalar) -> Scalar:
    if y != 0:
        return x // y if math.isfinite(x) else math.nan
    if isinstance(x, float):
        return divided(x, y)
    raise whole_division_by_zero("floor_div")


def _rem_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    return g, REM_BACKWARD(g, context.operand(0), context.operand(1)) if context.needs[1] else None


REM = pointwise("rem", ["x", "y"], _remainder, _rem_vjp, saves={0: (1,), 1: (1,)}, check=no_bool)
REM_BACKWARD = pointwise("rem_backward", ["g", "x", "y"], lambda g, x, y: -g * _floor_quotient(float(x), y))
FLOOR_DIV = pointwise(
    "floor_div",
    ["x", "y"],
    _floor_quotient,
    lambda context, g: tuple(ZERO(g) if needed else None for needed in context.needs),
    check=no_bool,
)

__all__ = [
    "ABS",
    "CEIL",
    "FLOOR",
    "FLOOR_DIV",
    "POW",
    "RECIP",
    "REM",
    "ROUND",
    "RSQRT",
    "SIGN",
    "SQRT",
    "SQUARE",
    "TRUNC",
]
