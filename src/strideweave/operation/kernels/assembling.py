"""Assembling kernels: results are made as they lie in memory, so that nothing is placed a second time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strideweave.layout import Layout
from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.indexing import leaves_of_mode
from strideweave.operation.reference import as_stored
from strideweave.operation.torch_executor import kernel

# -- what every kernel here shares ------------------------------------------------------------------------------------


def slowest_first(strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims by falling strides, and the way back."""
    order = tuple(sorted(range(len(strides)), key=strides.__getitem__, reverse=True))
    return order, tuple(sorted(range(len(order)), key=order.__getitem__))


def fresh(layout: Layout, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """New memory for a layout, one dim per leaf."""
    leaves = layout.leaves()
    return torch.empty_strided([n for n, _ in leaves], [d for _, d in leaves], dtype=dtype, device=device)


def merged(x: torch.Tensor, leaves: range) -> torch.Tensor:
    """The dims of a mode's leaves as one, first leaf fastest: a view for one leaf, and for several in order."""
    if len(leaves) == 1:
        return x
    return x.permute(_turned(x.dim(), leaves)).flatten(leaves.start, leaves.stop - 1)


def unmerged(x: torch.Tensor, layout: Layout, leaves: range) -> torch.Tensor:
    """What `merged` made one dim, as the leaves of `layout` again."""
    if len(leaves) == 1:
        return x
    sizes = [layout.leaves()[k][0] for k in reversed(leaves)]
    split = x.reshape([*x.shape[: leaves.start], *sizes, *x.shape[leaves.start + 1 :]])
    return split.permute(_turned(split.dim(), leaves))


def _turned(dims: int, leaves: range) -> list[int]:
    """The dims with those of the leaves turned around: torch counts its last dim fastest. It undoes itself."""
    return [*range(leaves.start), *reversed(leaves), *range(leaves.stop, dims)]


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The bits of 8-bit floats, which few torch functions take; anything else as it is. The bits of zero are zero."""
    return x.view(torch.uint8) if x.dtype.is_floating_point and x.dtype.itemsize == 1 else x


def _result(invocation: ResolvedInvocation, device: torch.device) -> torch.Tensor:
    spec = invocation.results[0]
    return fresh(spec.layout, spec.dtype.torch_dtype, device)


# -- kernels ----------------------------------------------------------------------------------------------------------


@kernel("concatenate")
def _concatenate(invocation: ResolvedInvocation, *tensors: torch.Tensor) -> torch.Tensor:
    prepared: _Joining | None = invocation.memo.get("joining")
    if prepared is None:
        prepared = invocation.memo["joining"] = _joining(invocation)
    parts = tensors
    if prepared.nested:
        parts = tuple(merged(x, leaves) for x, leaves in zip(tensors, prepared.nested, strict=True))
    if prepared.is_in_order:
        return torch.cat(parts, prepared.dim)
    order = prepared.order
    return torch.cat([x.permute(order) for x in parts], order.index(prepared.dim)).permute(prepared.back)


@dataclass(frozen=True, slots=True)
class _Joining:
    """How tensors are joined so that the result is made slowest leaf first, as it lies in memory."""

    dim: int
    """The leaf along which they are joined."""
    order: tuple[int, ...]
    """The leaves of the result, slowest first."""
    back: tuple[int, ...]
    """The way back."""
    is_in_order: bool
    """Whether the two change nothing."""
    nested: tuple[range, ...]
    """The leaves of the axis in every operand; empty when each has one."""


def _joining(invocation: ResolvedInvocation) -> _Joining:
    axis, layout = invocation.options["axis"], invocation.results[0].layout
    order, back = slowest_first([d for _, d in layout.leaves()])
    nested = tuple(leaves_of_mode(invocation.layout(k), axis) for k in range(len(invocation.operands)))
    if all(len(leaves) == 1 for leaves in nested):
        nested = ()
    return _Joining(leaves_of_mode(layout, axis).start, order, back, order == tuple(range(len(order))), nested)


@kernel("stack")
def _stack(invocation: ResolvedInvocation, *tensors: torch.Tensor) -> torch.Tensor:
    found: tuple[list[int], list[int], bool] | None = invocation.memo.get("stacking")
    if found is None:
        found = invocation.memo["stacking"] = _stacking(invocation)
    inner, back, is_in_order = found
    if is_in_order:
        return torch.stack(tensors)
    return torch.stack([x.permute(inner) for x in tensors]).permute(back)


def _stacking(invocation: ResolvedInvocation) -> tuple[list[int], list[int], bool]:
    """The leaves of an operand, slowest first; how the result, the new mode before them, is turned back."""
    layout = invocation.results[0].layout
    dim = leaves_of_mode(layout, invocation.options["axis"]).start
    order, _ = slowest_first([d for _, d in layout.leaves()])
    rest = [k for k in order if k != dim]
    whole = [dim, *rest]
    back = sorted(range(len(whole)), key=whole.__getitem__)
    return [k - (k > dim) for k in rest], back, back == list(range(len(back)))


@kernel("pad")
def _pad(invocation: ResolvedInvocation, x: torch.Tensor, value: float) -> torch.Tensor:
    out = _result(invocation, x.device).fill_(as_stored(value, invocation.results[0].dtype))
    inside, dim = out, 0
    for mode, (before, _) in zip(invocation.layout(0), invocation.options["widths"], strict=True):
        for _leaf in mode.leaves():
            inside = inside.narrow(dim, before, x.shape[dim])
            dim += 1
    inside.copy_(x)
    return out


@kernel("flip")
def _flip(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    layout = invocation.layout(0)
    # The last ordinal of a nested mode has the last coordinate of every leaf.
    leaves = [leaf for axis in invocation.options["axes"] for leaf in leaves_of_mode(layout, axis)]
    return as_bytes(x).flip(leaves).view(x.dtype)


@kernel("tril", by_mode=True)
def _tril(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _triangle(as_bytes(x), invocation.options["diagonal"], is_lower=True).view(x.dtype)


@kernel("triu", by_mode=True)
def _triu(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _triangle(as_bytes(x), invocation.options["diagonal"], is_lower=False).view(x.dtype)


def _triangle(x: torch.Tensor, diagonal: int, *, is_lower: bool) -> torch.Tensor:
    if x.stride(-2) < x.stride(-1):  # made as it lies: the other triangle of the transpose
        return _triangle(x.mT, -diagonal, is_lower=not is_lower).mT
    return x.tril(diagonal) if is_lower else x.triu(diagonal)


@kernel("tile", by_mode=True)
def _tile(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _repeated(x, invocation.options["counts"], is_interleaved=False)


@kernel("repeat", by_mode=True)
def _repeat(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return _repeated(x, invocation.options["counts"], is_interleaved=True)


def _repeated(x: torch.Tensor, counts: Sequence[int], *, is_interleaved: bool) -> torch.Tensor:
    """One copy of a stride-0 view that has a dim for the repeats of every mode."""
    sizes = [n * count for n, count in zip(x.shape, counts, strict=True)]
    spread: list[int] = []
    for dim, (n, count) in enumerate(zip(x.shape, counts, strict=True)):
        x = x.unsqueeze(2 * dim + int(is_interleaved))
        spread.extend((n, count) if is_interleaved else (count, n))
    return x.expand(spread).reshape(sizes)
