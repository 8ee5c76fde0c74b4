"""Ordering kernels, by mode. The same values in the same order always have the same places: ties go to the lowest."""

from __future__ import annotations

import torch

from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.torch_executor import kernel

SORTED_AT_ONCE_ELEMS = 512
"""Up to so many values a whole stable sort is quicker than to look for equals first."""
SORTED_WHOLE_ELEMS = 8192
"""Up to so many values a whole stable sort is quicker than the dozen passes that sort only the best."""


@kernel("sort", by_mode=True)
def _sort(invocation: ResolvedInvocation, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = x.sort(dim=invocation.options["axis"], descending=invocation.options["descending"], stable=True)
    return made.values, made.indices


@kernel("topk", by_mode=True)
def _topk(invocation: ResolvedInvocation, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    options = invocation.options
    k, dim, largest = options["k"], options["axis"], options["largest"]
    if x.dtype is torch.bool:
        values, indices = _best(x.view(torch.uint8), k, dim, largest=largest)
        return values.view(torch.bool), indices
    return _best(x, k, dim, largest=largest)


def _best(x: torch.Tensor, k: int, dim: int, *, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The `k` best in order. torch.topk picks any among equal values, so it is believed only where none are equal.

    On a CPU a whole stable sort takes 2 to 50 times as long as topk, and this check next to nothing; elsewhere the
    check would wait for the device, and the sort is quick.
    """
    if x.device.type != "cpu" or x.numel() <= SORTED_AT_ONCE_ELEMS:
        return _first_sorted(x, k, dim, largest=largest)
    seen = min(k + 1, x.shape[dim])  # one more, to see whether the last one has an equal outside
    values, indices = x.topk(seen, dim, largest=largest)
    before, after = values.narrow(dim, 0, seen - 1), values.narrow(dim, 1, seen - 1)
    if bool((before > after if largest else before < after).all()):
        return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)
    if x.numel() <= SORTED_WHOLE_ELEMS:
        return _first_sorted(x, k, dim, largest=largest)
    return _best_of_equals(x, values.narrow(dim, k - 1, 1), k, dim, largest=largest)


def _first_sorted(x: torch.Tensor, k: int, dim: int, *, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = x.sort(dim=dim, descending=largest, stable=True)
    return torch.narrow_copy(values, dim, 0, k), torch.narrow_copy(indices, dim, 0, k)


def _best_of_equals(
    x: torch.Tensor, last: torch.Tensor, k: int, dim: int, *, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """All that are better than the `last` one, and as many of its equals, lowest first, as there is room for."""
    better, equal = (x > last if largest else x < last), x == last
    if x.dtype.is_floating_point:  # NaN is greater than every number, and equal to NaN
        is_nan, last_is_nan = x.isnan(), last.isnan()
        better |= is_nan & ~last_is_nan if largest else ~is_nan & last_is_nan
        equal |= is_nan & last_is_nan
    room = k - better.sum(dim, keepdim=True)
    chosen = (better | (equal & (equal.cumsum(dim) <= room))).movedim(dim, -1)
    places = chosen.nonzero()[:, -1].reshape(*chosen.shape[:-1], k).movedim(-1, dim)
    values, order = x.gather(dim, places).sort(dim=dim, descending=largest, stable=True)
    return values, places.gather(dim, order)
