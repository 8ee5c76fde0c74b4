"""Exponentials, logarithms, trigonometric functions and erf."""

from __future__ import annotations

import math
from collections.abc import Callable

from strideweave.carriers.carrier import Scalar
from strideweave.operation.call import VJPContext
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.pointwise import DIV, MUL, Gives, divided, pointwise
from strideweave.tensor.tensor import Tensor

Gradient = Callable[[VJPContext, Tensor], Tensor]


def _transcendental(
    name: str, function: Callable[[float], float], gradient: Gradient, *, saves: bool = False
) -> OperationDefinition:
    """The definition of a function of one number that is floating also for whole ones."""
    return pointwise(
        name,
        ["x"],
        ieee(function),
        lambda context, g: (gradient(context, g),),
        gives=Gives.FLOATING,
        saves={0: (0,)} if saves else None,
    )


def ieee(function: Callable[[float], float]) -> Callable[[float], float]:
    """The same function with infinity for what is too large, and NaN for what is undefined."""

    def total(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return total


def _backward(name: str, function: Callable[[Scalar, Scalar], Scalar]) -> OperationDefinition:
    return pointwise(name, ["g", "saved"], function)


def _logarithm(x: float, of: Callable[[float], float] = math.log) -> float:
    return -math.inf if x == 0 else of(x)


def _log1p(x: float) -> float:
    return -math.inf if x == -1 else math.log1p(x)


EXP2_BACKWARD = _backward("exp2_backward", lambda g, y: g * y * math.log(2.0))
EXPM1_BACKWARD = _backward("expm1_backward", lambda g, y: g * (y + 1))
LOG2_BACKWARD = _backward("log2_backward", lambda g, x: divided(g, x * math.log(2.0)))
LOG1P_BACKWARD = _backward("log1p_backward", lambda g, x: divided(g, x + 1))
SIN_BACKWARD = _backward("sin_backward", lambda g, x: g * ieee(math.cos)(x))
COS_BACKWARD = _backward("cos_backward", lambda g, x: -g * ieee(math.sin)(x))
TAN_BACKWARD = _backward("tan_backward", lambda g, y: g * (1 + y * y))
TANH_BACKWARD = _backward("tanh_backward", lambda g, y: g * (1 - y * y))
ERF_BACKWARD = _backward("erf_backward", lambda g, x: g * 2 / math.sqrt(math.pi) * math.exp(-x * x))

EXP = _transcendental("exp", math.exp, lambda context, g: MUL(g, context.outputs[0]))
EXP2 = _transcendental("exp2", lambda x: 2.0**x, lambda context, g: EXP2_BACKWARD(g, context.outputs[0]))
EXPM1 = _transcendental("expm1", math.expm1, lambda context, g: EXPM1_BACKWARD(g, context.outputs[0]))
LOG = _transcendental("log", _logarithm, lambda context, g: DIV(g, context.operand(0)), saves=True)
LOG2 = _transcendental(
    "log2",
    lambda x: _logarithm(x, math.log2),
    lambda context, g: LOG2_BACKWARD(g, context.operand(0)),
    saves=True,
)
LOG1P = _transcendental("log1p", _log1p, lambda context, g: LOG1P_BACKWARD(g, context.operand(0)), saves=True)
SIN = _transcendental("sin", math.sin, lambda context, g: SIN_BACKWARD(g, context.operand(0)), saves=True)
COS = _transcendental("cos", math.cos, lambda context, g: COS_BACKWARD(g, context.operand(0)), saves=True)
TAN = _transcendental("tan", math.tan, lambda context, g: TAN_BACKWARD(g, context.outputs[0]))
TANH = _transcendental("tanh", math.tanh, lambda context, g: TANH_BACKWARD(g, context.outputs[0]))
ERF = _transcendental("erf", math.erf, lambda context, g: ERF_BACKWARD(g, context.operand(0)), saves=True)


__all__ = ["COS", "ERF", "EXP", "EXP2", "EXPM1", "LOG", "LOG1P", "LOG2", "SIN", "TAN", "TANH", "ieee"]
