"""Softmax, normalisation and losses as functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strideweave.dtype import DType
from strideweave.operation import losses
from strideweave.operation import normalization as definitions
from strideweave.operation.functional.axes import leaves_of, leaves_of_one, require_tensor
from strideweave.tensor.tensor import Tensor

__all__ = ["cross_entropy", "layer_norm", "log_softmax", "mse_loss", "rms_norm", "softmax"]

_EPS64, _EPS32 = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The exponentials over their sum along one mode, without overflow; a nested mode is taken whole.

    Floats keep their dtype and are computed in Float32 at least, whole numbers become Float32.
    Errors: TypeError for what is no Tensor or no int; ValueError for an axis that is not there.

    >>> import strideweave as sw
    >>> sw.to_list(sw.softmax(sw.tensor([[0.0, 0.0], [1000.0, 0.0]])))
    [[0.5, 0.5], [1.0, 0.0]]
    """
    result: Tensor = definitions.SOFTMAX(x, leaves=leaves_of_one(x, axis, name="softmax"))
    return result


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """The logarithm of `softmax`, exact where that is 0; the rest as `softmax`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.log_softmax(sw.tensor([1000.0, 0.0])))
    [0.0, -1000.0]
    """
    result: Tensor = definitions.LOG_SOFTMAX(x, leaves=leaves_of_one(x, axis, name="log_softmax"))
    return result


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    axis: int | Sequence[int] = -1,
    eps: float = 1e-5,
) -> Tensor:
    """`(x - mean) / sqrt(variance + eps)` over the modes `axis`, then times `weight` plus `bias`.

    The result has the dtype of `x`, whatever that of the weight and the bias; whole numbers become Float32.

    Shapes: weight and bias have the shape of the modes `axis`, in the order of `x`. Errors: TypeError for wrong kinds;
    ValueError for an axis that is not there, another shape, or a negative eps.

    >>> import strideweave as sw
    >>> sw.to_list(sw.layer_norm(sw.tensor([[1.0, 3.0], [5.0, 5.0]]), eps=0.0, weight=sw.tensor([1.0, 2.0]))[:1, :])
    [[-1.0, 2.0]]
    """
    leaves = _normalised(x, axis, eps, name="layer_norm")
    result: Tensor = definitions.LAYER_NORM(x, weight, bias, leaves=leaves, eps=float(eps))
    return result


def rms_norm(
    x: Tensor, weight: Tensor | None = None, *, axis: int | Sequence[int] = -1, eps: float | None = None
) -> Tensor:
    """`x / sqrt(mean(x * x) + eps)` over the modes `axis`, then times `weight`; the rest as `layer_norm`.

    Without `eps` it is the machine epsilon of the arithmetic, as in torch: Float64's for Float64, else Float32's.

    >>> import strideweave as sw
    >>> sw.to_list(sw.rms_norm(sw.tensor([3.0, 3.0]), eps=0.0))
    [1.0, 1.0]
    """
    if eps is None and isinstance(x, Tensor):
        eps = _EPS64 if x.dtype() is DType.Float64 else _EPS32
    leaves = _normalised(x, axis, eps, name="rms_norm")
    assert eps is not None
    result: Tensor = definitions.RMS_NORM(x, weight, leaves=leaves, eps=float(eps))
    return result


def _normalised(x: Tensor, axis: int | Sequence[int], eps: object, *, name: str) -> tuple[int, ...]:
    require_tensor(x, name=name)
    if isinstance(eps, bool) or not isinstance(eps, int | float):
        raise TypeError(f"cannot {name} with eps {eps!r}: it is no number. Pass a small one, such as 1e-5.")
    if not eps >= 0:
        raise ValueError(f"cannot {name} with eps {eps!r}: a root is taken of what it is added to. Pass 0 or more.")
    leaves = leaves_of(x.layout, axis, name=name)
    if not leaves:
        raise ValueError(f"cannot {name} {x.shape} over axes {axis!r}: they name no mode. Pass at least one.")
    return leaves


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    axis: int = -1,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """What `-log_softmax(logits)` is at the class of each target: its mean, sum, or with `none` every one.

    Targets of `ignore_index` count neither in the sum nor in the mean, which is NaN when there is no other. With
    `label_smoothing` that part of every target goes to all classes evenly. As in torch, but the classes are the *last*
    mode unless `axis` says otherwise; torch's are mode 1.

    Shapes: targets have the shape of the logits without the classes. Errors: TypeError for wrong kinds, or targets that
    are no whole numbers; ValueError for another shape or reduction; IndexError for a target that is no class.

    >>> import strideweave as sw
    >>> logits = sw.tensor([[0.0, 0.0], [0.0, 1000.0]])
    >>> round(sw.item(sw.cross_entropy(logits, sw.tensor([0, 1]))), 4)
    0.3466
    """
    require_tensor(logits, name="cross_entropy")
    require_tensor(targets, name="cross_entropy")
    _require_reduction(reduction, name="cross_entropy")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"cannot ignore targets of {ignore_index!r}: a target is an int. Pass one.")
    if isinstance(label_smoothing, bool) or not isinstance(label_smoothing, int | float):
        raise TypeError(f"cannot smooth labels by {label_smoothing!r}: it is no number. Pass 0 to 1.")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cannot smooth labels by {label_smoothing}: it is the part that goes to all. Pass 0 to 1.")
    result: Tensor = losses.CROSS_ENTROPY(
        logits,
        targets,
        leaves=leaves_of_one(logits, axis, name="cross_entropy"),
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=float(label_smoothing),
    )
    return result


def mse_loss(x: Tensor, y: Tensor, *, reduction: str = "mean") -> Tensor:
    """`(x - y) ** 2`: its mean, sum, or with `none` at every coordinate, of the common shape.

    Floats are promoted and computed in Float32 at least. Shapes: aligned as in `add`. Errors: TypeError for wrong
    kinds; ValueError for shapes that are not broadcast-compatible, or another reduction.

    >>> import strideweave as sw
    >>> sw.item(sw.mse_loss(sw.tensor([1.0, 2.0]), sw.tensor([1.0, 4.0])))
    2.0
    """
    _require_reduction(reduction, name="mse_loss")
    result: Tensor = losses.MSE_LOSS(x, y, reduction=reduction)
    return result


def _require_reduction(reduction: object, *, name: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f"cannot {name} with reduction {reduction!r}: there are mean, sum and none. Pass one of these."
        )
