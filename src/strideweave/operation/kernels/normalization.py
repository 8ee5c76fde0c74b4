"""Kernels of softmax, normalisation and losses, over the dims of the leaves that are meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.kernels.reduction import along_one_dim
from strideweave.operation.losses import out_of_range
from strideweave.operation.torch_executor import kernel

_aten = torch.ops.aten


def _in_memory_order(
    dim: int, function: Callable[..., torch.Tensor], x: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    """`function(x, *others, dim)` on the dims in the order in which they lie: torch makes row-major copies else."""
    if x.is_contiguous():
        return function(x, *others, dim)
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda k: -strides[k])
    dim %= x.dim()
    made = function(*(operand.permute(order) for operand in (x, *others)), order.index(dim))
    return made.permute(sorted(range(len(order)), key=order.__getitem__))


@kernel("softmax")
def _softmax(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return along_one_dim(invocation.options["leaves"], lambda y, dim: _in_memory_order(dim, torch.softmax, y), x)


@kernel("log_softmax")
def _log_softmax(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return along_one_dim(invocation.options["leaves"], lambda y, dim: _in_memory_order(dim, torch.log_softmax, y), x)


@kernel("softmax_backward")
def _softmax_backward(invocation: ResolvedInvocation, g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def run(y: torch.Tensor, g: torch.Tensor, dim: int) -> torch.Tensor:
        made: torch.Tensor = _aten._softmax_backward_data(g, y, dim, y.dtype)
        return made

    return along_one_dim(invocation.options["leaves"], lambda *yg: _in_memory_order(yg[2], run, *yg[:2]), y, g)


@kernel("log_softmax_backward")
def _log_softmax_backward(invocation: ResolvedInvocation, g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def run(y: torch.Tensor, g: torch.Tensor, dim: int) -> torch.Tensor:
        made: torch.Tensor = _aten._log_softmax_backward_data(g, y, dim, y.dtype)
        return made

    return along_one_dim(invocation.options["leaves"], lambda *yg: _in_memory_order(yg[2], run, *yg[:2]), y, g)


# -- normalisation ---------------------------------------------------------------------------------------------------


def _leaves_last(x: torch.Tensor, leaves: Sequence[int]) -> tuple[list[int], list[int]]:
    """The dims with the normalised ones last, and the way back."""
    order = [*(k for k in range(x.dim()) if k not in leaves), *leaves]
    return order, sorted(range(len(order)), key=order.__getitem__)


@kernel("layer_norm")
def _layer_norm(
    invocation: ResolvedInvocation, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    leaves, eps = invocation.options["leaves"], invocation.options["eps"]
    sizes = [x.shape[k] for k in leaves]
    if leaves[0] == x.dim() - len(leaves):
        return torch.layer_norm(x, sizes, weight, bias, eps)
    order, back = _leaves_last(x, leaves)
    return torch.layer_norm(x.permute(order), sizes, weight, bias, eps).permute(back)


@kernel("layer_norm_backward")
def _layer_norm_backward(
    invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None
) -> list[torch.Tensor]:
    leaves, wanted = invocation.options["leaves"], invocation.options["wanted"]
    order, back = _leaves_last(x, leaves)
    sizes, trailing = [x.shape[k] for k in leaves], list(range(x.dim() - len(leaves), x.dim()))
    x, g = x.permute(order).contiguous(), g.permute(order).contiguous()
    variance, mean = torch.var_mean(x, trailing, correction=0, keepdim=True)
    scale = variance.add_(invocation.options["eps"]).rsqrt_()
    needs = [dtype is not None for dtype in wanted]
    # Of a bias only dtype and shape matter, which are those of the weight.
    native = [needs[0], needs[1], needs[2] and weight is not None]
    made = _aten.native_layer_norm_backward(g, x, sizes, mean, scale, weight, weight, native)
    results = [made[0].permute(back)] if needs[0] else []
    if needs[1]:
        results.append(made[1])
    if needs[2]:
        results.append(made[2] if native[2] else _summed(g, list(range(x.dim() - len(leaves)))))
    return results


def _summed(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return x.sum(tuple(dims)) if dims else x.clone()


@kernel("rms_norm")
def _rms_norm(invocation: ResolvedInvocation, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    leaves, eps = invocation.options["leaves"], invocation.options["eps"]
    sizes = [x.shape[k] for k in leaves]
    if leaves[0] == x.dim() - len(leaves):
        return torch.rms_norm(x, sizes, weight, eps)
    order, back = _leaves_last(x, leaves)
    return torch.rms_norm(x.permute(order), sizes, weight, eps).permute(back)


def _over_root_mean_square(x: torch.Tensor, leaves: Sequence[int], eps: float) -> torch.Tensor:
    """One over the root of the mean square along `leaves`, which stay with extent 1."""
    return x.square().mean(tuple(leaves), keepdim=True).add_(eps).rsqrt_()


def _beside(weight: torch.Tensor, x: torch.Tensor, leaves: Sequence[int]) -> torch.Tensor:
    """The weight with a dim for every dim of `x`."""
    for k in range(x.dim()):
        if k not in leaves:
            weight = weight.unsqueeze(k)
    return weight


@kernel("rms_norm_backward")
def _rms_norm_backward(
    invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None
) -> list[torch.Tensor]:
    leaves, wanted = invocation.options["leaves"], invocation.options["wanted"]
    scale = _over_root_mean_square(x, leaves, invocation.options["eps"])
    made = x * scale
    results = []
    if wanted[0] is not None:
        slope = g if weight is None else g * _beside(weight, x, leaves)
        along = (slope * made).mean(tuple(leaves), keepdim=True)
        results.append((slope - made * along).mul_(scale))
    if wanted[1] is not None:
        results.append(_summed(made.mul_(g), [k for k in range(x.dim()) if k not in leaves]))
    return results


# -- losses ----------------------------------------------------------------------------------------------------------


@kernel("cross_entropy")
def _cross_entropy(invocation: ResolvedInvocation, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    options = invocation.options
    y, dim = _on_one_dim(options["leaves"], logits)
    t = targets
    if y.dim() > 2 and dim == y.dim() - 1:  # torch wants the classes second: rows need no moving
        y, t = y.reshape(-1, y.shape[dim]), targets.reshape(-1)
    elif y.dim() > 1:
        y = y.movedim(dim, 1)
    try:
        made = torch.nn.functional.cross_entropy(
            y,
            t,
            reduction=options["reduction"],
            ignore_index=options["ignore_index"],
            label_smoothing=options["label_smoothing"],
        )
    except (IndexError, RuntimeError):
        classes = logits.numel() // targets.numel()
        wrong = ((targets < 0) | (targets >= classes)) & (targets != options["ignore_index"])
        if not wrong.any():
            raise
        raise out_of_range(int(targets[wrong][0]), classes) from None
    return made.reshape(targets.shape) if options["reduction"] == "none" else made


def _on_one_dim(leaves: Sequence[int], x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The operand with the leaves as one dim, first leaf fastest, and which dim that is."""
    if len(leaves) == 1:
        return x, leaves[0]
    kept = [k for k in range(x.dim()) if k not in leaves]
    order = (*kept, *reversed(leaves))
    return x.permute(order).reshape([*(x.shape[k] for k in kept), -1]), len(kept)


@kernel("cross_entropy_backward")
def _cross_entropy_backward(
    invocation: ResolvedInvocation, g: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    options = invocation.options
    classes = logits.numel() // targets.numel()
    counts = targets != options["ignore_index"]
    known = torch.where(counts, targets, 0)
    scale = torch.where(counts, g / counts.sum() if options["reduction"] == "mean" else g, 0)
    smoothing = options["label_smoothing"]

    def run(y: torch.Tensor, dim: int) -> torch.Tensor:
        dim %= y.dim()
        made = _in_memory_order(dim, torch.softmax, y)
        if smoothing:
            made = made.sub_(smoothing / classes)
        right = known.unsqueeze(dim)
        made.scatter_add_(dim, right, torch.full_like(right, smoothing - 1, dtype=made.dtype))
        return made.mul_(scale.unsqueeze(dim))

    return along_one_dim(options["leaves"], run, logits)


@kernel("mse_loss")
def _mse_loss(invocation: ResolvedInvocation, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _aten.mse_loss(x, y, _REDUCTIONS[invocation.options["reduction"]])
    return made


_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
"""As torch numbers them."""


@kernel("mse_loss_backward")
def _mse_loss_backward(
    invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    count = x.numel() if invocation.options["reduction"] == "mean" else 1
    return torch.sub(x, y).mul_(g * (2 / count))
