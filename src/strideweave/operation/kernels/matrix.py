"""The kernel of every contraction: BLAS on strided views, straight into the result's own layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.contraction import Axis, Side, contraction_of
from strideweave.operation.kernels.blas import (
    ADDED,
    A,
    B,
    BlasPlan,
    C,
    Dim,
    Matrices,
    dense_strides,
    plan_blas,
    plan_copy,
)
from strideweave.operation.torch_executor import kernel

Run: TypeAlias = Callable[..., torch.Tensor]
"""From the operands to the result."""
Fill: TypeAlias = Callable[..., torch.Tensor]
"""From an empty result and the operands to that result, filled."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """An operand or the result with one dim for each of its labels that is wider than 1."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    labels: tuple[int, ...]
    prepare: Run | None = None
    """What is done to the tensor before it has these strides; None where it has them as it is."""


def _contract(invocation: ResolvedInvocation, *operands: torch.Tensor | None) -> torch.Tensor:
    given = [operand if _multiplies(operand) else operand.float() for operand in operands if operand is not None]
    where = "contract." + given[0].device.type  # the same signature has other strides where Float16 is converted
    run: Run | None = invocation.memo.get(where)
    if run is None:
        run = invocation.memo[where] = _prepared(invocation, given)
    return run(*given)


def _multiplies(operand: torch.Tensor) -> bool:
    """CPUs multiply Float16 matrices a hundred times slower than Float32 ones; other devices do not."""
    return operand.dtype is not torch.float16 or operand.device.type != "cpu"


def _prepared(invocation: ResolvedInvocation, given: Sequence[torch.Tensor]) -> Run:
    contraction = contraction_of(invocation)
    leaves = invocation.results[0].layout.leaves()
    sizes, strides = tuple(n for n, _ in leaves), tuple(d for _, d in leaves)
    seen = [_seen(side, t.size(), t.stride()) for side, t in zip(contraction.sides, given, strict=True)]
    joined = any(len(axis.parts) > 1 for axis in contraction.output)
    out = _dense(contraction.output) if joined else _seen(contraction.output, sizes, strides)
    own = [
        (tuple(t.size()), t.stride()) if s.prepare is None else ((), ()) for t, s in zip(given[:2], seen, strict=False)
    ]
    fill = _filling(seen, out, own)
    prepares = [(k, one.prepare) for k, one in enumerate(seen) if one.prepare is not None]
    made = (out.sizes, out.strides) if joined else (sizes, strides)
    apart = _apart(contraction.output, sizes) if joined else None

    def run(*operands: torch.Tensor) -> torch.Tensor:
        if prepares:
            changed = list(operands)
            for k, prepare in prepares:
                changed[k] = prepare(operands[k])
            operands = tuple(changed)
        first = operands[0]
        result = fill(torch.empty_strided(*made, dtype=first.dtype, device=first.device), *operands)
        return result if apart is None else apart(result)

    return run


def _seen(side: Side, sizes: Sequence[int], strides: Sequence[int]) -> _Seen:
    axes = _wide(side)
    if all(len(axis.parts) == 1 for axis in axes):
        steps = tuple(axis.parts[0][1] * strides[axis.parts[0][0]] for axis in axes)
        return _Seen(_extents(axes), steps, _labels(axes))
    # Parts are counted first one fastest, and torch's last dim is the fastest.
    order = [leaf for axis in axes for leaf, _, _ in reversed(axis.parts)]
    order = [leaf for leaf in range(len(sizes)) if leaf not in order] + order
    dense = _dense(side)
    return _Seen(dense.sizes, dense.strides, dense.labels, lambda t: t.permute(order).reshape(dense.sizes).contiguous())


def _dense(side: Side) -> _Seen:
    axes = _wide(side)
    extents = _extents(axes)
    return _Seen(extents, tuple(dense_strides(extents)), _labels(axes))


def _apart(side: Side, sizes: Sequence[int]) -> Run:
    """The inverse of joining: from one dim for each wide label to one for each leaf."""
    order = [leaf for axis in _wide(side) for leaf, _, _ in reversed(axis.parts)]
    order += [leaf for leaf in range(len(sizes)) if leaf not in order]
    split = [sizes[leaf] for leaf in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return lambda t: t.reshape(split).permute(back)


def _wide(side: Side) -> list[Axis]:
    return [axis for axis in side if axis.label is not None and axis.extent > 1]


def _extents(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(axis.extent for axis in axes)


def _labels(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(axis.label for axis in axes if axis.label is not None)


def _filling(seen: Sequence[_Seen], out: _Seen, own: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Fill:
    extents = {label: n for one in seen for label, n in zip(one.labels, one.sizes, strict=True)}
    places = [dict(zip(one.labels, one.strides, strict=True)) for one in (*seen[:2], out, *seen[2:])]
    rows = {label: [place.get(label, 0) for place in places] + [0] for label in extents}
    dims = [Dim(n, (rows[label][0], rows[label][1], rows[label][2], rows[label][3])) for label, n in extents.items()]
    if all(dim.strides[C] for dim in dims):
        return _multiplying(dims)
    plan = plan_blas(dims)
    if len(plan.starts) == 1 and len(seen) == 2 and len(plan.views[C].sizes) == 2 and plan.copied == (None,) * 3:
        return _calling_once(plan, own)
    return _calling_blas(dims, plan)


def _multiplying(dims: Sequence[Dim]) -> Fill:
    """Nothing is summed: every product is one value of the result."""
    sizes = [dim.n for dim in dims]
    strides = [[dim.strides[which] for dim in dims] for which in range(4)]

    def fill(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
        left, right = _view(a, sizes, strides[A]), _view(b, sizes, strides[B])
        if added:
            torch.addcmul(_view(added[0], sizes, strides[ADDED]), left, right, out=_view(c, sizes, strides[C]))
        else:
            torch.mul(left, right, out=_view(c, sizes, strides[C]))
        return c

    return fill


def _calling_once(plan: BlasPlan, own: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Fill:
    """One matrix times one matrix, as they are: the most frequent case, with nothing to decide."""
    a, b, c, _ = plan.views
    if c.sizes == (1, 1):
        length = (max(a.sizes),)
        strides = [(max(v.strides[v.sizes[0] == 1], 1) if v.sizes != (1, 1) else 1,) for v in (a, b)]

        def fill_one(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            torch.dot(_view(x, length, strides[A]), _view(y, length, strides[B]), out=out.view(()))
            return out

        return fill_one
    a_as_is, b_as_is = ((v.sizes, v.strides) == one for v, one in zip((a, b), own, strict=True))
    is_swapped = plan.swapped

    def fill(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left = x if a_as_is else _matrices(x, a, 0)
        right = y if b_as_is else _matrices(y, b, 0)
        if is_swapped:
            left, right = right, left
        torch.mm(left, right, out=_matrices(out, c, 0))
        return out

    return fill


def _calling_blas(dims: Sequence[Dim], plan: BlasPlan) -> Fill:
    views = plan.views
    is_matrix = len(views[C].sizes) == 2
    multiply: Callable[..., torch.Tensor] = torch.mm if is_matrix else torch.bmm
    multiply_added: Callable[..., torch.Tensor] = torch.addmm if is_matrix else torch.baddbmm
    copies = [_copying(dims, which, plan.copied[which]) for which in (A, B)]
    copied = plan.copied[C]
    if copied is not None:
        sizes = [dims[k].n for k in copied]
        back = plan_copy(sizes, dense_strides(sizes), [dims[k].strides[C] for k in copied])

    def fill(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
        a, b = copies[A](a), copies[B](b)
        target = c if copied is None else c.new_empty(sizes)
        for start in plan.starts:
            left, right, into = (_matrices(t, views[w], start[w]) for w, t in ((A, a), (B, b), (C, target)))
            if plan.swapped:
                left, right = right, left
            if added:
                multiply_added(_matrices(added[0], views[ADDED], start[ADDED]), left, right, out=into)
            else:
                multiply(left, right, out=into)
        if copied is not None:
            _view(c, back[0], back[2]).copy_(_view(target, back[0], back[1]))
        return c

    return fill


def _copying(dims: Sequence[Dim], which: int, copied: Sequence[int] | None) -> Run:
    if copied is None:
        return lambda t: t
    sizes = [dims[k].n for k in copied]
    merged, source, target = plan_copy(sizes, [dims[k].strides[which] for k in copied], dense_strides(sizes))

    def copy(t: torch.Tensor) -> torch.Tensor:
        made = t.new_empty(sizes)
        _view(made, merged, target).copy_(_view(t, merged, source))
        return made

    return copy


def _view(t: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], start: int = 0) -> torch.Tensor:
    return torch.as_strided(t, sizes, strides, t.storage_offset() + start)


def _matrices(t: torch.Tensor, matrices: Matrices, start: int) -> torch.Tensor:
    return torch.as_strided(t, matrices.sizes, matrices.strides, t.storage_offset() + start)


for _name in ("matmul", "gemm", "dot", "outer", "linear", "einsum"):
    kernel(_name)(_contract)
