"""Exponentials, logarithms, trigonometric functions and erf as functions."""

from __future__ import annotations

from strideweave.operation import transcendental as definitions
from strideweave.tensor.tensor import Tensor

__all__ = ["cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "log2", "sin", "tan", "tanh"]


def exp(x: Tensor) -> Tensor:
    """`e ** x` at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.exp(sw.tensor([0, 1])))
    [1.0, 2.71828...]
    """
    result: Tensor = definitions.EXP(x)
    return result


def exp2(x: Tensor) -> Tensor:
    """`2 ** x` at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.exp2(sw.tensor([0, 3])))
    [1.0, 8.0]
    """
    result: Tensor = definitions.EXP2(x)
    return result


def expm1(x: Tensor) -> Tensor:
    """`e ** x - 1` at every coordinate, exact near 0, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.expm1(sw.tensor([0.0, 1e-6])))
    [0.0, 1.00000...e-06]
    """
    result: Tensor = definitions.EXPM1(x)
    return result


def log(x: Tensor) -> Tensor:
    """The natural logarithm at every coordinate, floating also for whole numbers; -inf for 0, NaN below.

    >>> import strideweave as sw
    >>> sw.to_list(sw.log(sw.tensor([1.0, 0.0])))
    [0.0, -inf]
    """
    result: Tensor = definitions.LOG(x)
    return result


def log2(x: Tensor) -> Tensor:
    """The logarithm to base 2 at every coordinate, floating also for whole numbers; -inf for 0, NaN below.

    >>> import strideweave as sw
    >>> sw.to_list(sw.log2(sw.tensor([1, 8])))
    [0.0, 3.0]
    """
    result: Tensor = definitions.LOG2(x)
    return result


def log1p(x: Tensor) -> Tensor:
    """`log(1 + x)` at every coordinate, exact near 0, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.log1p(sw.tensor([0.0, -1.0])))
    [0.0, -inf]
    """
    result: Tensor = definitions.LOG1P(x)
    return result


def sin(x: Tensor) -> Tensor:
    """The sine at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.sin(sw.tensor([0.0])))
    [0.0]
    """
    result: Tensor = definitions.SIN(x)
    return result


def cos(x: Tensor) -> Tensor:
    """The cosine at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.cos(sw.tensor([0.0])))
    [1.0]
    """
    result: Tensor = definitions.COS(x)
    return result


def tan(x: Tensor) -> Tensor:
    """The tangent at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.tan(sw.tensor([0.0])))
    [0.0]
    """
    result: Tensor = definitions.TAN(x)
    return result


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.tanh(sw.tensor([0.0, 100.0])))
    [0.0, 1.0]
    """
    result: Tensor = definitions.TANH(x)
    return result


def erf(x: Tensor) -> Tensor:
    """The error function at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.erf(sw.tensor([0.0, 100.0])))
    [0.0, 1.0]
    """
    result: Tensor = definitions.ERF(x)
    return result
