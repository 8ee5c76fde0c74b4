"""Optimizers: parameters follow their gradients, in place, step for step as torch's do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import final

import torch

from strideweave.carriers.torch_storage import TorchStorage
from strideweave.nn.parameter import Parameter
from strideweave.tensor.copying import overwrite, values_of


class Optimizer(ABC):
    """Changes parameters by their gradients. Errors: TypeError, ValueError for no parameters or a negative rate.

    >>> import strideweave as sw
    >>> isinstance(sw.nn.SGD([sw.Parameter(sw.ones(1))], lr=0.1), sw.nn.Optimizer)
    True
    """

    def __init__(self, params: Iterable[Parameter], lr: float) -> None:
        self.params = list(params)
        for parameter in self.params:
            if not isinstance(parameter, Parameter):
                raise TypeError(
                    f"cannot optimize {type(parameter).__name__}: an optimizer takes Parameters. Pass "
                    "module.parameters()."
                )
        if not self.params:
            raise ValueError("cannot optimize nothing: there are no parameters. Pass module.parameters().")
        if lr < 0:
            raise ValueError(f"cannot optimize with lr={lr}: a learning rate is at least 0. Pass one.")
        self.lr = lr

    def zero_grad(self) -> None:
        """No parameter has a gradient now."""
        for parameter in self.params:
            parameter._grad = None

    def step(self) -> None:
        """Every parameter with a gradient has moved once, and its version advanced once."""
        for k, parameter in enumerate(self.params):
            gradient = parameter._grad
            if gradient is None:
                continue
            carrier = parameter._carrier
            carrier._require_writable("update")
            value = values_of(parameter)
            self._update(k, value, values_of(gradient))
            if isinstance(carrier, TorchStorage):
                carrier._version += 1
            else:
                overwrite(parameter, value)

    @abstractmethod
    def _update(self, k: int, value: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move parameter `k`, whose value is changed in place."""


@final
class SGD(Optimizer):
    """`p -= lr * g`, with momentum and weight decay as torch defines them.

    >>> import strideweave as sw
    >>> p = sw.Parameter(sw.tensor([1.0]))
    >>> sw.reduce_sum(p * p).backward()
    >>> sw.nn.SGD([p], lr=0.25).step()
    >>> sw.to_list(p)
    [0.5]
    """

    def __init__(
        self, params: Iterable[Parameter], lr: float, *, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocities: dict[int, torch.Tensor] = {}

    def _update(self, k: int, value: torch.Tensor, gradient: torch.Tensor) -> None:
        if self.weight_decay:
            gradient = gradient.add(value, alpha=self.weight_decay)
        if self.momentum:
            velocity = self._velocities.get(k)
            if velocity is None:
                velocity = self._velocities[k] = gradient.clone()
            else:
                velocity.mul_(self.momentum).add_(gradient)
            gradient = velocity
        value.add_(gradient, alpha=-self.lr)


@final
class AdamW(Optimizer):
    """Adam with decoupled weight decay, as torch defines it.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).

    >>> import strideweave as sw
    >>> p = sw.Parameter(sw.tensor([1.0]))
    >>> sw.reduce_sum(p * p).backward()
    >>> sw.nn.AdamW([p], lr=0.1, weight_decay=0.0).step()
    >>> round(sw.item(p), 6)
    0.9
    """

    def __init__(
        self,
        params: Iterable[Parameter],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr)
        for beta in betas:
            if not 0 <= beta < 1:
                raise ValueError(f"cannot average with betas={betas}: both are in [0, 1). Pass such ones.")
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self._moments: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._steps: dict[int, int] = {}

    def _update(self, k: int, value: torch.Tensor, gradient: torch.Tensor) -> None:
        if k not in self._moments:
            self._moments[k] = (torch.zeros_like(value), torch.zeros_like(value))
        mean, square = self._moments[k]
        step = self._steps[k] = self._steps.get(k, 0) + 1
        first, second = self.betas
        value.mul_(1 - self.lr * self.weight_decay)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = math.sqrt(1 - second**step)
        value.addcdiv_(mean, (square.sqrt() / scale).add_(self.eps), value=-self.lr / (1 - first**step))
