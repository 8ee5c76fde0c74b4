"""Reduction kernels over the dims of the reduced leaves; results keep one dim per leaf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.torch_executor import kernel


def along_one_dim(
    leaves: Sequence[int], function: Callable[..., torch.Tensor], *operands: torch.Tensor
) -> torch.Tensor:
    """What `function(*operands, dim)` makes of operands of one shape, with `leaves` as one dim, first leaf fastest.

    Zero-copy for one leaf, and for several that lie in order.
    """
    if len(leaves) == 1:
        return function(*operands, leaves[0])
    shape = operands[0].shape
    order = _together(len(shape), leaves)
    out = function(*(_merged(x, order, len(leaves)) for x in operands), -1)
    return out.reshape([shape[k] for k in order]).permute(sorted(range(len(order)), key=order.__getitem__))


def _together(dims: int, leaves: Sequence[int]) -> list[int]:
    """The kept dims, then the reduced ones turned around: torch merges dims last fastest."""
    return [*(k for k in range(dims) if k not in leaves), *reversed(leaves)]


def _merged(x: torch.Tensor, order: Sequence[int], count: int) -> torch.Tensor:
    sizes = [x.shape[k] for k in order]
    return x.permute(tuple(order)).reshape([*sizes[: len(sizes) - count], -1])


def narrowed(x: torch.Tensor, leaves: Sequence[int]) -> torch.Tensor:
    """One value where a spread operand repeats it: extent 1 along `leaves`."""
    for leaf in leaves:
        x = x.narrow(leaf, 0, 1)
    return x


def _over_leaves(
    invocation: ResolvedInvocation, x: torch.Tensor, function: Callable[..., torch.Tensor], **options: Any
) -> torch.Tensor:
    """A function that reduces several dims at once; torch takes no dims for all of them, and here none is none."""
    leaves, keepdims = invocation.options["leaves"], invocation.options["keepdims"]
    if not leaves:
        return function(x.unsqueeze(-1), dim=(-1,), keepdim=False, **options)
    return function(x, dim=leaves, keepdim=keepdims, **options)


def _over_one_dim(
    invocation: ResolvedInvocation, x: torch.Tensor, function: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """A function that reduces one dim: the leaves are merged into one, first leaf fastest."""
    leaves, keepdims = invocation.options["leaves"], invocation.options["keepdims"]
    if len(leaves) == 1:
        return function(x, dim=leaves[0], keepdim=keepdims)
    out = function(_merged(x, _together(x.dim(), leaves), len(leaves)), dim=-1, keepdim=False)
    if keepdims:
        for leaf in leaves:
            out = out.unsqueeze(leaf)
    return out


def _several(name: str, function: Callable[..., Any]) -> None:
    def run(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
        return _over_leaves(invocation, x, function)

    kernel(name)(run)


_SEVERAL: dict[str, Callable[..., Any]] = {
    "reduce_sum": torch.sum,
    "reduce_mean": torch.mean,
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
    "reduce_any": torch.any,
    "reduce_all": torch.all,
    "logsumexp": torch.logsumexp,
}
for _name, _function in _SEVERAL.items():
    _several(_name, _function)


@kernel("reduce_prod")
def _reduce_prod(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _over_one_dim(invocation, x, torch.prod)


@kernel("reduce_prod_backward")
def _reduce_prod_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return along_one_dim(invocation.options["leaves"], _others, g, x)


def _others(g: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """The product of all before a value times the product of all behind it: no division, so zeros are right."""
    first, count = torch.ones_like(x.narrow(dim, 0, 1)), x.shape[dim]
    before = torch.cat([first, x.narrow(dim, 0, count - 1)], dim).cumprod(dim)
    behind = torch.cat([first, x.narrow(dim, 1, count - 1).flip(dim)], dim).cumprod(dim).flip(dim)
    return before.mul_(behind).mul_(g)


@kernel("reduce_extreme_backward")
def _reduce_extreme_backward(
    invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return _shared(invocation.options["leaves"], g, x, out)


def _shared(leaves: Sequence[int], g: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    winner = narrowed(out, leaves)
    won = (x == winner) | ((x != x) & (winner != winner))
    counts = won.sum(dim=tuple(leaves), keepdim=True) if leaves else won
    return torch.where(won, narrowed(g, leaves) / counts, 0)


@kernel("argmax")
def _argmax(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _place(invocation, _ordered(x), torch.argmax, torch.amax)


@kernel("argmin")
def _argmin(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _place(invocation, _ordered(x), torch.argmin, torch.amin)


def _place(
    invocation: ResolvedInvocation,
    x: torch.Tensor,
    place: Callable[..., torch.Tensor],
    extreme: Callable[..., torch.Tensor],
) -> torch.Tensor:
    leaves = invocation.options["leaves"]
    if len(leaves) < max(2, x.dim()) or x.numel() < _WORTH_SEARCHING or x.permute(*reversed(leaves)).is_contiguous():
        return _over_one_dim(invocation, x, place)
    found = _first(x, extreme(x))
    return found.reshape([1] * x.dim()) if invocation.options["keepdims"] else found


_WORTH_SEARCHING = 1 << 15
"""Below this many values a copy that puts them in order costs less than several passes."""


def _first(x: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """The ordinal of the first value that is `top`, found leaf by leaf from the slowest, without a copy in order."""
    won = x != x if bool(top != top) else x == top
    found, step = torch.zeros((), dtype=torch.int64, device=x.device), x.numel()
    for leaf in reversed(range(x.dim())):
        step //= x.shape[leaf]
        along = won.any(dim=[k for k in range(x.dim()) if k != leaf]).view(torch.uint8).argmax()
        found += along * step
        won = won.index_select(leaf, along.reshape(1))
    return found


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """torch finds no greatest Bool, but a greatest byte."""
    return x.view(torch.uint8) if x.dtype is torch.bool else x


@kernel("var")
def _var(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _over_leaves(invocation, x, torch.var, correction=invocation.options["correction"])


@kernel("std")
def _std(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _over_leaves(invocation, x, torch.std, correction=invocation.options["correction"])


@kernel("var_backward")
def _var_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    leaves = invocation.options["leaves"]
    slope, root = narrowed(g, leaves), narrowed(out, leaves)
    # The root of a variance of 0 has no slope: 0, as in torch.
    slope = torch.where(root == 0, 0, slope / root) if invocation.options["is_root"] else slope * 2
    centred = x - (x.mean(dim=leaves, keepdim=True) if leaves else x)
    count = x.numel() // root.numel()
    return centred.mul_(slope / (count - invocation.options["correction"]))


@kernel("norm")
def _norm(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _over_leaves(invocation, x, torch.linalg.vector_norm, ord=invocation.options["ord"])


@kernel("norm_backward")
def _norm_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    leaves, ord = invocation.options["leaves"], invocation.options["ord"]
    slope, size = narrowed(g, leaves), narrowed(out, leaves)
    if ord == 2:
        return x * torch.where(size == 0, 0, slope / size)
    if ord == 1:
        return torch.sgn(x) * slope
    return torch.sgn(x) * _shared(leaves, g, x.abs(), out)


@kernel("logsumexp_backward")
def _logsumexp_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    leaves = invocation.options["leaves"]
    whole = torch.logsumexp(x, dim=leaves, keepdim=True) if leaves else x
    return (x - whole).exp_().mul_(narrowed(g, leaves))


@kernel("cumsum")
def _cumsum(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    reverse = invocation.options["reverse"]
    return along_one_dim(invocation.options["leaves"], _cumsum_reversed if reverse else torch.cumsum, x)


def _cumsum_reversed(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


@kernel("cumprod")
def _cumprod(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return along_one_dim(invocation.options["leaves"], torch.cumprod, x)


@kernel("cumprod_backward")
def _cumprod_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return along_one_dim(invocation.options["leaves"], _cumprod_slope, g, x)


def _cumprod_slope(g: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    made: torch.Tensor = torch.ops.aten.cumprod_backward(g, x, dim, torch.cumprod(x, dim))
    return made
