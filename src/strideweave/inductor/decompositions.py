"""Operations that Inductor would leave to a fallback kernel, said in operations that the card has."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._inductor import decomposition as stock

aten = torch.ops.aten

_LONGEST_TOTAL: Final = 256
"""A running total is a sum for each of its places, up to so many; the fallback passes over the elements once."""


def register() -> None:
    """Put ours into Inductor's table, for tensors on the card; on other devices all stays as it is."""
    for overload, own in (
        (aten.addbmm.default, _addbmm),
        (aten._trilinear.default, _trilinear),
        (aten._cdist_forward.default, _cdist),
        (aten._pdist_forward.default, _pdist),
        (aten.cumsum.default, _cumsum),
    ):
        stock.decompositions[overload] = _on_card(own, stock.decompositions.get(overload))


def _on_card(own: Callable[..., Any], original: Callable[..., Any] | None) -> Callable[..., Any]:
    @functools.wraps(own)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if args[0].device.type == "spyre":
            return own(*args, **kwargs)
        return NotImplemented if original is None else original(*args, **kwargs)

    return decomposed


def _addbmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if not bias.is_floating_point():
        return NotImplemented
    a, b = a.transpose(0, 1).flatten(1), b.flatten(0, 1)  # one product over batch and K together
    if beta == 0:
        return torch.mm(a, b) * alpha
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha)


def _trilinear(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
    expand_a: Sequence[int], expand_b: Sequence[int], expand_c: Sequence[int], summed: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:  # fmt: skip
    for dim in expand_a:
        a = a.unsqueeze(dim)
    for dim in expand_b:
        b = b.unsqueeze(dim)
    for dim in expand_c:
        c = c.unsqueeze(dim)
    product = a * b * c
    return product.sum(list(summed), dtype=product.dtype) if summed else product


def _cdist(a: torch.Tensor, b: torch.Tensor, p: float, compute_mode: int | None = None) -> torch.Tensor:
    return _norm(a.unsqueeze(-2) - b.unsqueeze(-3), p)


def _pdist(a: torch.Tensor, p: float = 2) -> torch.Tensor:
    rows, others = torch.triu_indices(a.shape[0], a.shape[0], 1, device=a.device).unbind()
    return _norm(a[rows] - a[others], p)


def _norm(difference: torch.Tensor, p: float) -> torch.Tensor:
    if difference.shape[-1] == 0:
        return difference.sum(-1)
    magnitude = difference.abs()
    if p == 0:
        return (magnitude != 0).sum(-1, dtype=difference.dtype)
    if p == 1:
        return magnitude.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    return magnitude.amax(-1) if math.isinf(p) else magnitude.pow(p).sum(-1).pow(1 / p)


def _cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    dtype = dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)
    if x.ndim == 0:
        return x.to(dtype, copy=True)
    extent = x.shape[dim]
    if extent > _LONGEST_TOTAL or dtype.is_complex:
        return NotImplemented
    places = torch.arange(extent, device=x.device)
    counted = torch.where(places <= places.unsqueeze(1), x.movedim(dim, -1).unsqueeze(-2), 0)
    return counted.sum(-1, dtype=dtype).movedim(-1, dim)
