"""How a contraction goes to BLAS: three-dimensional strided views of operands and result, copies only where needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

A, B, C, ADDED = 0, 1, 2, 3
_CALL = 4000
"""What one more BLAS call costs, in elements copied."""
_SPREAD = 10_000
"""What one more matrix of a result costs that does not lie in a row with the others: they are multiplied one by one."""
_MOST_CALLS = 1024


@dataclass(frozen=True, slots=True)
class Dim:
    """One label, or several that run together: its extent, and its stride in A, B, C and what is added."""

    n: int
    """The extent."""
    strides: tuple[int, int, int, int]
    """0 where it is absent, or repeats."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """A matrix, or a batch of matrices, within a tensor."""

    sizes: tuple[int, ...]
    """(batch,) rows and columns."""
    strides: tuple[int, ...]
    """The stride of each."""


@dataclass(frozen=True, slots=True)
class BlasPlan:
    """One way to run a contraction: what is copied first, and the views of every call."""

    copied: tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[int, ...] | None]
    """For A, B and C: None when used in place; else the dims, slowest first, of a dense copy (of a dense result)."""
    views: tuple[Matrices, Matrices, Matrices, Matrices]
    """A as (batch, m, k), B as (batch, k, n), C and what is added as (batch, m, n)."""
    starts: tuple[tuple[int, int, int, int], ...]
    """For every call, where each of them begins."""
    swapped: bool
    """Whether the result is computed transposed, B from the left."""


def plan_blas(dims: Sequence[Dim]) -> BlasPlan:
    """The cheapest way: in place when strides allow, else with copies of one operand, of both, or of all.

    At least one dim must be absent from C.
    """
    best: tuple[float, BlasPlan] | None = None
    contracted = [k for k, d in enumerate(dims) if not d.strides[C]]
    for copies in ((), (A,), (B,), (A, B), (C,), (A, C), (B, C), (A, B, C)):
        for by in (A, B):
            order = sorted(contracted, key=lambda k: -dims[k].strides[by])
            for cost, plan in _attempts(dims, copies, order):
                if best is None or cost < best[0]:
                    best = cost, plan
        if best is not None and best[0] == 0:
            break
    assert best is not None, "dense copies can always be multiplied"
    return best[1]


def _attempts(dims: Sequence[Dim], copies: Sequence[int], order: Sequence[int]) -> Iterator[tuple[float, BlasPlan]]:
    strides: list[list[int]] = [list(dim.strides) for dim in dims]
    kept = sorted((k for k, d in enumerate(dims) if d.strides[C]), key=lambda k: -dims[k].strides[C])
    copied: list[tuple[int, ...] | None] = [None, None, None]
    cost = 0
    for which in copies:
        own = [k for k in (kept if which == C else [*kept, *order]) if dims[k].strides[which] or k in order]
        # A dense copy has the batch outside; the two groups inside stay in the order in which they are.
        fastest: dict[int, int] = {}
        for k in own:
            group = _group(dims[k])
            fastest[group] = min(fastest.get(group, dims[k].strides[which]), dims[k].strides[which])
        fastest[_BATCH] = max(fastest.values(), default=0) + 1
        own.sort(key=lambda k: -fastest[_group(dims[k])])
        copied[which] = tuple(own)
        for k, step in zip(own, dense_strides([dims[k].n for k in own]), strict=True):
            strides[k][which] = step
        cost += (2 if which == C else 1) * math.prod(dims[k].n for k in own) + 1
    now = [Dim(dim.n, (s[A], s[B], s[C], s[ADDED])) for dim, s in zip(dims, strides, strict=True)]
    inner = _merged([now[k] for k in order], (A, B))
    if len(inner) > 1:
        return
    groups: list[list[Dim]] = [[], [], [], []]
    for k in kept:
        groups[_group(dims[k])].append(now[k])
    batch, rows, columns = (_merged(group, (A, B, C, ADDED)) for group in groups[:3])
    for m, n in itertools.product(rows or [_ONE], columns or [_ONE]):
        rest = [d for d in rows if d is not m] + [d for d in columns if d is not n]
        outer = _merged(sorted(batch + rest, key=lambda d: -d.strides[C]), (A, B, C, ADDED))
        most_calls = math.inf if len(copies) == 3 else _MOST_CALLS  # when all else fails, dense copies one by one
        plan = _plan((copied[A], copied[B], copied[C]), outer, m, n, inner[0] if inner else _ONE, most_calls)
        if plan is not None:
            calls = len(plan.starts)
            yield cost + _CALL * (calls - 1) + _SPREAD * _spread(plan.views[C]) * calls, plan


_ONE = Dim(1, (0, 0, 0, 0))
_BATCH, _ROWS, _COLUMNS, _CONTRACTED = 0, 1, 2, 3


def _group(dim: Dim) -> int:
    """Whether it belongs to the batch, the rows (of A), the columns (of B), or is contracted."""
    if not dim.strides[C]:
        return _CONTRACTED
    in_a, in_b = bool(dim.strides[A]), bool(dim.strides[B])
    return _BATCH if in_a == in_b else _ROWS if in_a else _COLUMNS


def dense_strides(sizes: Sequence[int]) -> list[int]:
    """The strides of a dense tensor of these sizes, last dim fastest."""
    strides, step = [1] * len(sizes), 1
    for k in reversed(range(len(sizes))):
        strides[k] = step
        step *= sizes[k]
    return strides


def plan_copy(
    sizes: Sequence[int], source: Sequence[int], target: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """The same copy with as few dims as the strides allow, the target's slowest first: torch turns matrices fast."""
    order = sorted(range(len(sizes)), key=lambda k: -target[k])
    merged = _merged([Dim(sizes[k], (source[k], 0, target[k], 0)) for k in order], (A, C))
    return [d.n for d in merged], [d.strides[A] for d in merged], [d.strides[C] for d in merged]


def _merged(dims: Sequence[Dim], where: Sequence[int]) -> list[Dim]:
    """The dims, slowest first, with neighbours joined where each of these strides allows."""
    out: list[Dim] = []
    for dim in dims:
        if out and all(out[-1].strides[w] == dim.n * dim.strides[w] for w in where):
            out[-1] = Dim(out[-1].n * dim.n, dim.strides)
        else:
            out.append(dim)
    return out


def _plan(
    copied: tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[int, ...] | None],
    outer: Sequence[Dim],
    m: Dim,
    n: Dim,
    k: Dim,
    most_calls: float,
) -> BlasPlan | None:
    """The plan with these dims inside; None where BLAS cannot take the strides, or for too many calls."""
    batch = max(outer, key=lambda d: d.n, default=_ONE)
    loops = [d for d in outer if d is not batch]
    if math.prod(d.n for d in loops) > most_calls:
        return None
    a = _matrix((m.n, m.strides[A]), (k.n, k.strides[A]))
    b = _matrix((k.n, k.strides[B]), (n.n, n.strides[B]))
    c = _matrix((m.n, m.strides[C]), (n.n, n.strides[C]))
    if a is None or b is None or c is None:
        return None
    swapped = c[1] != 1
    added = (m.strides[ADDED], n.strides[ADDED])
    views = [
        Matrices((batch.n, *sizes), (batch.strides[w], *strides))
        for w, sizes, strides in (
            (A, (m.n, k.n), a),
            (B, (k.n, n.n), b),
            (C, (m.n, n.n), c),
            (ADDED, (m.n, n.n), added),
        )
    ]
    if swapped:
        views = [Matrices(_turned(v.sizes), _turned(v.strides)) for v in views]
    if batch.n == 1:
        views = [Matrices(v.sizes[1:], v.strides[1:]) for v in views]
    starts = [(0, 0, 0, 0)]
    for dim in loops:
        starts = [
            tuple(s + i * d for s, d in zip(start, dim.strides, strict=True))  # type: ignore[misc]  # four
            for start in starts
            for i in range(dim.n)
        ]
    return BlasPlan(copied, tuple(views), tuple(starts), swapped)  # type: ignore[arg-type]  # four


def _spread(result: Matrices) -> int:
    """How many matrices the result has when they do not lie in a row."""
    if len(result.sizes) == 2:
        return 0
    batch, m, n = result.sizes
    return 0 if result.strides == (m * n, n, 1) else batch


def _turned(triple: tuple[int, ...]) -> tuple[int, ...]:
    return triple[0], triple[2], triple[1]


def _matrix(rows: tuple[int, int], columns: tuple[int, int]) -> tuple[int, int] | None:
    """The strides of a matrix that BLAS takes: one of them 1, the other no shorter than a line. None for others."""
    (m, sm), (n, sn) = rows, columns
    if m == 1:
        sm = n if sn == 1 or n == 1 else 1
    if n == 1:
        sn = 1 if sm != 1 or m == 1 else m
    if (sn == 1 and sm >= n) or (sm == 1 and sn >= m):
        return sm, sn
    return None
