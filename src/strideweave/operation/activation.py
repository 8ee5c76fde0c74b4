"""Activations of neural networks, each with a gradient of one operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strideweave.carriers.carrier import Scalar
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.pointwise import Gives, no_bool, only_floating, pointwise
from strideweave.operation.schema import OptionSpec
from strideweave.operation.transcendental import ieee


def _activation(
    name: str,
    function: Callable[..., Scalar],
    derivative: Callable[..., Scalar],
    *,
    defaults: Mapping[str, Any] | None = None,
) -> OperationDefinition:
    """The definition of a function of floating numbers, and of its gradient `g * derivative(x)`."""
    options: Sequence[OptionSpec] = [OptionSpec(key, value) for key, value in (defaults or {}).items()]
    backward = pointwise(f"{name}_backward", ["g", "x"], lambda g, x, **how: g * derivative(x, **how), options=options)
    return pointwise(
        name,
        ["x"],
        function,
        lambda context, g: (backward(g, context.operand(0), **context.options),),
        saves={0: (0,)},
        options=options,
        check=only_floating,
    )


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    small = ieee(math.exp)(x)
    return small / (1 + small)


def _gelu(x: float, approximate: str) -> float:
    if approximate == "tanh":
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def _gelu_derivative(x: float, approximate: str) -> float:
    if approximate == "tanh":
        inner = math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return 0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * slope
    density = math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + math.erf(x / math.sqrt(2))) + x * density


def _silu_derivative(x: float) -> float:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _softplus(x: float, beta: float, threshold: float) -> float:
    return x if x * beta > threshold else math.log1p(ieee(math.exp)(x * beta)) / beta


def _softplus_derivative(x: float, beta: float, threshold: float) -> float:
    return 1.0 if x * beta > threshold else _sigmoid(x * beta)


def _elu(x: float, alpha: float) -> float:
    return x if x > 0 else alpha * math.expm1(x)


def _elu_derivative(x: float, alpha: float) -> float:
    return 1.0 if x > 0 else alpha * math.exp(x)


RELU_BACKWARD = pointwise("relu_backward", ["g", "y"], lambda g, y: 0 if y <= 0 else g)

RELU = pointwise(
    "relu",
    ["x"],
    lambda x: x if x > 0 or x != x else 0,
    lambda context, g: (RELU_BACKWARD(g, context.outputs[0]),),
    check=no_bool,
)

SIGMOID_BACKWARD = pointwise("sigmoid_backward", ["g", "y"], lambda g, y: g * (1 - y) * y)

SIGMOID = pointwise(
    "sigmoid",
    ["x"],
    _sigmoid,
    lambda context, g: (SIGMOID_BACKWARD(g, context.outputs[0]),),
    gives=Gives.FLOATING,
)

GELU = _activation("gelu", _gelu, _gelu_derivative, defaults={"approximate": "none"})
SILU = _activation("silu", lambda x: x * _sigmoid(x), _silu_derivative)
SOFTPLUS = _activation("softplus", _softplus, _softplus_derivative, defaults={"beta": 1.0, "threshold": 20.0})
ELU = _activation("elu", _elu, _elu_derivative, defaults={"alpha": 1.0})
LEAKY_RELU = _activation(
    "leaky_relu",
    lambda x, negative_slope: x if x > 0 else x * negative_slope,
    lambda x, negative_slope: 1.0 if x > 0 else negative_slope,
    defaults={"negative_slope": 0.01},
)

__all__ = ["ELU", "GELU", "LEAKY_RELU", "RELU", "SIGMOID", "SILU", "SOFTPLUS"]
