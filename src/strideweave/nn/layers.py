"""Layers: Linear, the activations, and Sequential."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch

from strideweave.carriers.cpu import CPU
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout
from strideweave.nn.module import Module
from strideweave.nn.parameter import Parameter
from strideweave.operation import functional
from strideweave.tensor.tensor import Tensor


@final
class Linear(Module):
    """`x @ weight^T + bias`, drawn as torch draws it: uniform within 1/sqrt(in_features) of 0.

    Shapes: `(..., in_features)` to `(..., out_features)`; weight `(out_features, in_features)`, row-major.
    `generator` is torch's; its global one unless given, so that `torch.manual_seed` decides as it does there.

    >>> import strideweave as sw
    >>> sw.nn.Linear(3, 2)(sw.ones(4, 3)).shape
    Shape(4, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        dtype: StorageDType = DType.Float32,
        generator: torch.Generator | None = None,
    ) -> None:
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"cannot make a Linear of {in_features} to {out_features} features: both are at least 1. Pass more."
            )
        bound = 1 / math.sqrt(in_features)
        weight = torch.empty(out_features * in_features, dtype=dtype.torch_dtype).uniform_(
            -bound, bound, generator=generator
        )
        layout = Layout.row_major(out_features, in_features)
        self.weight = Parameter(CPU.wrap(weight), 0, layout, name="weight")
        self.bias: Parameter | None = None
        if bias:
            drawn = torch.empty(out_features, dtype=dtype.torch_dtype).uniform_(-bound, bound, generator=generator)
            self.bias = Parameter(CPU.wrap(drawn), name="bias")

    def forward(self, x: Tensor) -> Tensor:
        """The transformed features."""
        return functional.linear(x, self.weight, self.bias)


class _Activation(Module):
    """A pointwise function as a module."""

    _function: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        """The function at every coordinate."""
        return type(self)._function(x)


@final
class ReLU(_Activation):
    """`max(x, 0)`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.nn.ReLU()(sw.tensor([-1.0, 2.0])))
    [0.0, 2.0]
    """

    _function = staticmethod(functional.relu)


@final
class Sigmoid(_Activation):
    """`1 / (1 + exp(-x))`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.nn.Sigmoid()(sw.tensor([0.0, 0.0])))
    [0.5, 0.5]
    """

    _function = staticmethod(functional.sigmoid)


@final
class Tanh(_Activation):
    """The hyperbolic tangent.

    >>> import strideweave as sw
    >>> sw.to_list(sw.nn.Tanh()(sw.tensor([0.0, 0.0])))
    [0.0, 0.0]
    """

    _function = staticmethod(functional.tanh)


@final
class GELU(_Activation):
    """`x` times the normal distribution function of `x`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.nn.GELU()(sw.tensor([0.0, 0.0])))
    [0.0, 0.0]
    """

    _function = staticmethod(functional.gelu)


@final
class SiLU(_Activation):
    """`x * sigmoid(x)`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.nn.SiLU()(sw.tensor([0.0, 0.0])))
    [0.0, 0.0]
    """

    _function = staticmethod(functional.silu)


@final
class Softplus(_Activation):
    """`log(1 + exp(x))`.

    >>> import strideweave as sw
    >>> round(sw.item(sw.nn.Softplus()(sw.tensor([0.0]))), 4)
    0.6931
    """

    _function = staticmethod(functional.softplus)


@final
class ELU(Module):
    """`x` above 0 and `alpha * (exp(x) - 1)` below.

    >>> import strideweave as sw
    >>> sw.to_list(sw.nn.ELU()(sw.tensor([0.0, 2.0])))
    [0.0, 2.0]
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """The function at every coordinate."""
        return functional.elu(x, alpha=self.alpha)


@final
class LeakyReLU(Module):
    """`x` above 0 and `negative_slope * x` below.

    >>> import strideweave as sw
    >>> sw.to_list(sw.nn.LeakyReLU(0.5)(sw.tensor([-2.0, 2.0])))
    [-1.0, 2.0]
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """The function at every coordinate."""
        return functional.leaky_relu(x, negative_slope=self.negative_slope)


@final
class Sequential(Module):
    """One module after another.

    >>> import strideweave as sw
    >>> model = sw.nn.Sequential(sw.nn.Linear(3, 4), sw.nn.ReLU(), sw.nn.Linear(4, 2))
    >>> [name for name, _ in model.named_parameters()]
    ['layers.0.weight', 'layers.0.bias', 'layers.2.weight', 'layers.2.bias']
    """

    def __init__(self, *layers: Module) -> None:
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """The last module's result."""
        for layer in self.layers:
            x = layer(x)
        return x
