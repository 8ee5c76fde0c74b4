"""Indexing kernels. 8-bit floats are moved as bytes; indices on a CPU are checked before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.indexing import leaves_of_mode, out_of_range
from strideweave.operation.kernels import assembling
from strideweave.operation.kernels.assembling import as_bytes
from strideweave.operation.reference import as_stored
from strideweave.operation.torch_executor import kernel

# -- what every kernel here shares ------------------------------------------------------------------------------------


def checked(invocation: ResolvedInvocation, idx: torch.Tensor, *, axis: int, extent: int) -> torch.Tensor:
    """The indices, every one in range. Errors: IndexError, on a CPU; other devices find it themselves."""
    if idx.device.type != "cpu":
        return idx.long()
    seen = idx if idx.is_contiguous() else idx.permute(sorted(range(idx.dim()), key=idx.stride, reverse=True))
    least, greatest = torch.aminmax(seen)  # read as it lies in memory, several times as fast
    if least.item() < 0 or greatest.item() >= extent:
        flat = idx.permute(*reversed(range(idx.dim()))).reshape(-1)  # first mode fastest
        ordinal = int(((flat < 0) | (flat >= extent)).nonzero()[0])
        raise out_of_range(invocation.name, axis=axis, extent=extent, index=int(flat[ordinal]), ordinal=ordinal)
    return idx


def in_memory_order(
    invocation: ResolvedInvocation, axis: int, function: Callable[..., torch.Tensor], *operands: torch.Tensor
) -> torch.Tensor:
    """What `function(axis, *operands)` gives, made slowest mode of the result first, so that it is not placed again."""
    order, back = _orders(invocation)
    if order == tuple(range(len(order))):
        return function(axis, *operands)
    return function(order.index(axis), *(x.permute(order) for x in operands)).permute(back)


def _orders(invocation: ResolvedInvocation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The modes of the result, slowest first, and the way back."""
    found: tuple[tuple[int, ...], tuple[int, ...]] | None = invocation.memo.get("memory_order")
    if found is None:
        steps = [max((d for n, d in mode.leaves() if n > 1), default=0) for mode in invocation.results[0].layout]
        found = invocation.memo["memory_order"] = assembling.slowest_first(steps)
    return found


# -- along one mode: operands and results by mode ---------------------------------------------------------------------


@kernel("gather", by_mode=True)
def _gather(invocation: ResolvedInvocation, x: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    axis = invocation.options["axis"]
    idx = checked(invocation, idx, axis=axis, extent=x.shape[axis])
    return in_memory_order(invocation, axis, _gathered, as_bytes(x), idx).view(x.dtype)


def _gathered(dim: int, x: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    return x.gather(dim, idx)


@kernel("gather_backward", by_mode=True)
def _gather_backward(invocation: ResolvedInvocation, g: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    zeros = g.new_zeros([mode.size for mode in invocation.options["target"]])
    return in_memory_order(invocation, invocation.options["axis"], _scatter_added, zeros, idx, g)


@kernel("scatter_add", by_mode=True)
def _scatter_add(
    invocation: ResolvedInvocation, base: torch.Tensor, idx: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    axis = invocation.options["axis"]
    idx = checked(invocation, idx, axis=axis, extent=base.shape[axis])
    return in_memory_order(invocation, axis, _scatter_added, base, idx, updates)


def _scatter_added(dim: int, base: torch.Tensor, idx: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    return base.scatter_add(dim, idx if idx.device.type == "cpu" else idx.long(), updates)


@kernel("scatter", by_mode=True)
def _scatter(invocation: ResolvedInvocation, base: torch.Tensor, idx: torch.Tensor, updates: Any) -> torch.Tensor:
    axis = invocation.options["axis"]
    idx = checked(invocation, idx, axis=axis, extent=base.shape[axis])
    own = as_bytes(base)
    if isinstance(updates, torch.Tensor):
        return in_memory_order(invocation, axis, _replaced, own, idx, as_bytes(updates)).view(base.dtype)
    value = as_stored(updates, invocation.results[0].dtype)
    if own is not base:
        value = int(as_bytes(torch.tensor(value).to(base.dtype)))

    def filled(dim: int, base: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
        return base.scatter(dim, idx, value)

    return in_memory_order(invocation, axis, filled, own, idx).view(base.dtype)


def _replaced(dim: int, base: torch.Tensor, idx: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """torch leaves open which of several updates stays. On a CPU it is the last along the dim; so it is here."""
    if base.device.type == "cpu":
        return base.scatter(dim, idx, updates)
    return replaced_by_last(dim, base, idx, updates)


def replaced_by_last(dim: int, base: torch.Tensor, idx: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """What a sequential scatter along `dim` gives, on devices that write in any order."""
    last = _last_written(dim, idx, base.shape)
    return torch.where(last < 0, base, updates.gather(dim, last.clamp(min=0)))


def _last_written(dim: int, idx: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """For every place, the last position along `dim` that writes there; -1 where none does."""
    none = torch.full(tuple(shape), -1, dtype=torch.int64, device=idx.device)
    return none.scatter_reduce_(dim, idx.long(), _positions(dim, idx).expand_as(idx), "amax")


def _positions(dim: int, idx: torch.Tensor) -> torch.Tensor:
    sizes = [1] * idx.dim()
    sizes[dim] = idx.shape[dim]
    return torch.arange(idx.shape[dim], device=idx.device).view(sizes)


@kernel("scatter_updates_backward", by_mode=True)
def _scatter_updates_backward(invocation: ResolvedInvocation, g: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    return in_memory_order(invocation, invocation.options["axis"], _kept_updates, as_bytes(g), idx.long()).view(g.dtype)


def _kept_updates(dim: int, g: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    last = _last_written(dim, idx, g.shape).gather(dim, idx)
    return torch.where(last == _positions(dim, idx), g.gather(dim, idx), 0)


# -- whole slices: operands and results by leaf -----------------------------------------------------------------------


@kernel("take")
def _take(invocation: ResolvedInvocation, x: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    axis = invocation.options["axis"]
    here = leaves_of_mode(invocation.layout(0), axis)
    x = assembling.merged(x, here)
    idx = checked(invocation, idx, axis=axis, extent=x.shape[here.start])
    order, inner, back = _take_orders(invocation, x.dim(), here.start, idx.dim())
    dim = order.index(here.start)
    if idx.dim() == 1:
        return x.permute(order).index_select(dim, idx).permute(back)
    picked = x.permute(order).index_select(dim, idx.permute(inner).reshape(-1))
    sizes = picked.shape
    return picked.view(*sizes[:dim], *(idx.shape[k] for k in inner), *sizes[dim + 1 :]).permute(back)


def _take_orders(
    invocation: ResolvedInvocation, dims: int, begin: int, count: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """How to permute the operand and the indices so that the result is made slowest leaf first, and the way back."""
    found: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = invocation.memo.get("take_orders")
    if found is None:
        steps = [d for _, d in invocation.results[0].layout.leaves()]
        inner = tuple(sorted(range(count), key=lambda k: steps[begin + k], reverse=True))
        outer = [*steps[:begin], max(steps[begin : begin + count], default=0), *steps[begin + count :]]
        order = tuple(sorted(range(dims), key=outer.__getitem__, reverse=True))
        made: list[int] = []  # which leaf of the result each dim is
        for k in order:
            made.extend([begin + j for j in inner] if k == begin else [k if k < begin else k + count - 1])
        found = order, inner, tuple(sorted(range(len(made)), key=made.__getitem__))
        invocation.memo["take_orders"] = found
    return found


@kernel("take_backward")
def _take_backward(invocation: ResolvedInvocation, g: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    target, axis, dtype = invocation.options["target"], invocation.options["axis"], invocation.results[0].dtype
    here = leaves_of_mode(target, axis)
    rows, slices = _flattened(g, idx, here.start)
    out = assembling.fresh(target, dtype.torch_dtype, g.device).zero_()
    if len(here) == 1 and g.dtype is not dtype.torch_dtype:
        # Only the slices that are there are kept in Float32, not the whole result.
        present, place = torch.unique(rows, return_inverse=True)
        sums = _sum_slices(slices.new_zeros(_with(slices.shape, here.start, len(present))), here.start, place, slices)
        as_bytes(out).index_copy_(here.start, present, as_bytes(sums.to(out.dtype)))
        return out
    if len(here) == 1:
        return _sum_slices(out, here.start, rows, slices)
    whole = slices.new_zeros(_with(slices.shape, here.start, target[axis].size))
    return assembling.unmerged(_sum_slices(whole, here.start, rows, slices), target, here)


@kernel("index_add")
def _index_add(
    invocation: ResolvedInvocation, base: torch.Tensor, idx: torch.Tensor, updates: torch.Tensor
) -> torch.Tensor:
    layout, axis = invocation.layout(0), invocation.options["axis"]
    here = leaves_of_mode(layout, axis)
    whole = assembling.merged(base, here)
    idx = checked(invocation, idx, axis=axis, extent=whole.shape[here.start])
    rows, slices = _flattened(updates, idx, here.start)
    whole = whole.clone()
    return assembling.unmerged(_sum_slices(whole, here.start, rows, slices), layout, here)


def _flattened(g: torch.Tensor, idx: torch.Tensor, begin: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices in one dim, and the slices with one dim for them, at `begin`."""
    count = idx.dim()
    if count == 1:
        return idx, g
    if count == 0:
        return idx.reshape(1), g.unsqueeze(begin)
    return idx.reshape(-1), g.flatten(begin, begin + count - 1)


def _with(sizes: Sequence[int], dim: int, size: int) -> list[int]:
    return [*sizes[:dim], size, *sizes[dim + 1 :]]


def _sum_slices(out: torch.Tensor, dim: int, rows: torch.Tensor, slices: torch.Tensor) -> torch.Tensor:
    """`out`, the slices added in place in an order that is always the same."""
    return out.index_add_(dim, rows, slices) if out.device.type == "cpu" else sum_sorted(out, dim, rows, slices)


def sum_sorted(out: torch.Tensor, dim: int, rows: torch.Tensor, slices: torch.Tensor) -> torch.Tensor:
    """The same on devices where index_add_ races: index_put_ sorts the rows first."""
    out.movedim(dim, 0).index_put_((rows.long(),), slices.movedim(dim, 0), accumulate=True)
    return out


@kernel("one_hot")
def _one_hot(invocation: ResolvedInvocation, idx: torch.Tensor) -> torch.Tensor:
    idx = checked(invocation, idx, axis=len(invocation.layout(0)), extent=invocation.options["n"])
    out = assembling.fresh(invocation.results[0].layout, torch.int64, idx.device).zero_()
    return out.scatter_(-1, idx.unsqueeze(-1), 1)
