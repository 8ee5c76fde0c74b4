"""Activations as functions."""

from __future__ import annotations

from strideweave.operation import activation as definitions
from strideweave.tensor.tensor import Tensor

__all__ = ["elu", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus"]


def relu(x: Tensor) -> Tensor:
    """`max(x, 0)` at every coordinate; its gradient at 0 is 0. Errors: TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.relu(sw.tensor([-1.0, 2.0])))
    [0.0, 2.0]
    """
    result: Tensor = definitions.RELU(x)
    return result


def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + exp(-x))` at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.sigmoid(sw.tensor([0.0])))
    [0.5]
    """
    result: Tensor = definitions.SIGMOID(x)
    return result


def silu(x: Tensor) -> Tensor:
    """`x * sigmoid(x)` at every coordinate. Errors: TypeError for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.silu(sw.tensor([0.0, 100.0])))
    [0.0, 100.0]
    """
    result: Tensor = definitions.SILU(x)
    return result


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """`x` times the share of the normal distribution below it; `approximate="tanh"` takes the tanh form of it.

    Errors: TypeError for whole numbers; ValueError for another approximation.

    >>> import strideweave as sw
    >>> sw.to_list(sw.gelu(sw.tensor([0.0, 100.0])))
    [0.0, 100.0]
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"cannot run gelu with approximate={approximate!r}: there is 'none' and 'tanh'. Pass one.")
    result: Tensor = definitions.GELU(x, approximate=approximate)
    return result


def softplus(x: Tensor, *, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + exp(beta * x)) / beta` at every coordinate; `x` itself where `beta * x` is above `threshold`.

    Errors: TypeError for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.softplus(sw.tensor([0.0, 100.0])))
    [0.69314..., 100.0]
    """
    result: Tensor = definitions.SOFTPLUS(x, beta=beta, threshold=threshold)
    return result


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` above 0, `alpha * (exp(x) - 1)` elsewhere. Errors: TypeError for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.elu(sw.tensor([-100.0, 2.0])))
    [-1.0, 2.0]
    """
    result: Tensor = definitions.ELU(x, alpha=alpha)
    return result


def leaky_relu(x: Tensor, *, negative_slope: float = 0.01) -> Tensor:
    """`x` above 0, `negative_slope * x` elsewhere. Errors: TypeError for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.leaky_relu(sw.tensor([-2.0, 2.0]), negative_slope=0.5))
    [-1.0, 2.0]
    """
    result: Tensor = definitions.LEAKY_RELU(x, negative_slope=negative_slope)
    return result
