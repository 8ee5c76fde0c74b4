"""What an einsum description comes to: views and sums of single operands first, then contractions of two at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from strideweave.einops import EinsumPlan, EinsumSpec, plan_einsum
from strideweave.layout import Shape
from strideweave.operation.contraction import Contraction, whole_leaves

Labels: TypeAlias = "tuple[int | None, ...]"
"""For every leaf its label; None for a literal 1."""


@dataclass(frozen=True, slots=True)
class Step:
    """One contraction: the operands of these numbers are taken out of the list, and its result is put at the end."""

    left: int
    """The number of the first factor, the smaller one."""
    right: int
    """The number of the second."""
    contraction: Contraction
    """What meets what."""
    shape: Shape
    """The shape of its result."""


@dataclass(frozen=True, slots=True)
class EinsumSteps:
    """All of it, in order."""

    sources: tuple[Shape, ...]
    """What every operand is reshaped to, leaves split that the description groups."""
    summed: tuple[tuple[int, ...], ...]
    """The leaves of every operand that nothing else has, to sum first."""
    steps: tuple[Step, ...]
    """The contractions, one fewer than operands."""


@lru_cache(maxsize=1024)
def einsum_steps(spec: EinsumSpec, shapes: tuple[Shape, ...], sizes: tuple[tuple[str, int], ...]) -> EinsumSteps:
    """The steps for operands of these shapes, at least two; of several the pair with the fewest products first.

    Errors: ValueError for modes that do not fit the description, see `plan_einsum`.
    """
    plan = plan_einsum(spec, shapes, **dict(sizes))
    summed = tuple(_alone(plan, k) for k in range(len(shapes)))
    waiting: list[tuple[Labels, Shape]] = []
    named = {label for _, labels in plan.symbols for label in labels}
    for labels, gone, source in zip(plan.labels, summed, plan.sources, strict=True):
        kept = [k for k in range(len(labels)) if k not in gone]
        leaves = source.leaves()
        waiting.append(
            (tuple(labels[k] if labels[k] in named else None for k in kept), Shape(*(leaves[k] for k in kept)))
        )
    steps: list[Step] = []
    while len(waiting) > 1:
        i, j = _cheapest(waiting, plan.extents)
        right, left = waiting.pop(j), waiting.pop(i)
        if waiting:
            needed = _needed((left[0], right[0]), [labels for labels, _ in waiting], plan.output)
            output: Labels = needed
            shape = Shape(*(plan.extents[label] for label in needed))
        else:
            output, shape = plan.output, plan.shape
        sides = whole_leaves(left[1], left[0]), whole_leaves(right[1], right[0])
        steps.append(Step(i, j, Contraction(sides, whole_leaves(shape, output)), shape))
        waiting.append((output, shape))
    return EinsumSteps(plan.sources, summed, tuple(steps))


def sorted_sizes(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """The sizes as a value that can be a key."""
    return tuple(sorted(sizes.items()))


def _alone(plan: EinsumPlan, operand: int) -> tuple[int, ...]:
    """The leaves of an operand whose symbols neither the result nor another operand has."""
    return tuple(sorted(leaf for s in plan.summed for leaf in plan.leaves_of(operand, s)))


def _cheapest(waiting: Sequence[tuple[Labels, Shape]], extents: Sequence[int]) -> tuple[int, int]:
    def products(pair: tuple[int, int]) -> int:
        both = {label for k in pair for label in waiting[k][0] if label is not None}
        return math.prod(extents[label] for label in both)

    return min(itertools.combinations(range(len(waiting)), 2), key=products)


def _needed(factors: Sequence[Labels], others: Sequence[Labels], output: Labels) -> tuple[int, ...]:
    """The labels of the factors, in order, that a later step or the result has."""
    later = {label for labels in (*others, output) for label in labels}
    return tuple(dict.fromkeys(x for labels in factors for x in labels if x is not None and x in later))
