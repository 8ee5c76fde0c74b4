"""Losses: how far an answer is from what was wanted, as one value."""

from __future__ import annotations

from typing import Literal, final

from strideweave.nn.module import Module
from strideweave.operation import functional
from strideweave.tensor.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]


@final
class MSELoss(Module):
    """The squared difference, its mean unless `reduction` says "sum" or "none".

    >>> import strideweave as sw
    >>> sw.item(sw.nn.MSELoss()(sw.tensor([1.0, 3.0]), sw.tensor([1.0, 1.0])))
    2.0
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """How far `x` is from `y`."""
        return functional.mse_loss(x, y, reduction=self.reduction)


@final
class CrossEntropyLoss(Module):
    """The negative log-likelihood of the wanted classes, its mean unless `reduction` says "sum" or "none".

    Shapes: logits `(batch, classes)`, targets `(batch)` of Int64.

    >>> import strideweave as sw
    >>> round(sw.item(sw.nn.CrossEntropyLoss()(sw.tensor([[0.0, 0.0]]), sw.tensor([1]))), 4)
    0.6931
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How unlikely the targets are."""
        return functional.cross_entropy(logits, targets, reduction=self.reduction)
