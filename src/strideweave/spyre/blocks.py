"""Boxes cut into blocks, in the order in which memory is passed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeAlias

Block: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Part of a box: where it begins along every dim, and its extents."""


def parts_of(sizes: Sequence[int], order: Sequence[int], limit: int) -> list[int]:
    """How much of each dim a block of at most `limit` elements takes; `order` names the dims, outermost first.

    >>> parts_of((100, 8, 32), (1, 0, 2), 1000)
    [31, 1, 32]
    """
    parts = [1] * len(sizes)
    inner = 1
    for d in reversed(order):
        part = min(sizes[d], max(limit // inner, 1))
        parts[d] = part
        inner *= part
        if part < sizes[d]:
            break
    return parts


def cut_in(sizes: tuple[int, ...], parts: Sequence[int]) -> list[Block]:
    """The blocks of a box, the last along each dim what is left.

    >>> cut_in((5, 2), (3, 2))
    [((0, 0), (3, 2)), ((3, 0), (2, 2))]
    """
    axes = [[(at, min(part, n - at)) for at in range(0, n, part)] for n, part in zip(sizes, parts, strict=True)]
    return [(tuple(a for a, _ in chosen), tuple(n for _, n in chosen)) for chosen in product(*axes)]


def blocks_of(sizes: tuple[int, ...], order: Sequence[int], limit: int) -> list[Block]:
    """The blocks of at most `limit` elements of a box, in the order in which memory is passed."""
    parts = parts_of(sizes, order, limit)
    found = cut_in(tuple(sizes[d] for d in order), tuple(parts[d] for d in order))
    back = {d: k for k, d in enumerate(order)}
    dims = range(len(sizes))
    return [(tuple(s[back[d]] for d in dims), tuple(n[back[d]] for d in dims)) for s, n in found]
