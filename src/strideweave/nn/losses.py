"""Losses: how far an answer is from what was wanted, as one value."""

from __future__ import annotations

from typing import Literal, final

from strideweave.nn.module import Module
from strideweave.operation import functional
from strideweave.tensor.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]


@final
class MSELoss(Module):
    """The squared difference, its mean unless `reduction` says "sum" or "none"."""

    def __init__(self, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """How far `x` is from `y`."""
        return functional.mse_loss(x, y, reduction=self.reduction)


@final
class CrossEntropyLoss(Module):
    """The negative log-likelihood of the wanted classes, its mean unless `reduction` says "sum" or "none".

    Shapes: logits `(batch, classes)`, targets `(batch)` of Int64.
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How unlikely the targets are."""
        return functional.cross_entropy(logits, targets, reduction=self.reduction)
