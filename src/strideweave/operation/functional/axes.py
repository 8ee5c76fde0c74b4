"""What an operation over modes goes by: axes, or a description, as leaves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from strideweave.einops import ReducePlan, parse_reduce, plan_reduce
from strideweave.layout import Layout, Node, Shape, Tree
from strideweave.layout.nested import Level
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.views import REARRANGE, RESHAPE
from strideweave.tensor.tensor import Tensor

Axes: TypeAlias = int | Sequence[int] | None


def leaves_of(layout: Layout, axis: Axes, *, name: str) -> tuple[int, ...]:
    """The leaves of these top-level modes, of all when `axis` is None; negative ones count from the last.

    Errors: TypeError for what is no int; ValueError for an axis that is not there or occurs twice.
    """
    if axis is None:
        return tuple(range(len(layout.leaves())))
    if not isinstance(axis, int | Sequence) or isinstance(axis, str):
        raise TypeError(f"cannot {name} over axis {axis!r}: an axis must be an integer. Pass an int, or several.")
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for one in axes:
        if isinstance(one, bool) or not isinstance(one, int):
            raise TypeError(f"cannot {name} over axis {one!r}: an axis must be an integer. Pass an int.")
    return _leaves_of(layout.shape, axes, name)


@lru_cache(maxsize=1024)
def _leaves_of(shape: Shape, axes: tuple[int, ...], name: str) -> tuple[int, ...]:
    rank = len(shape)
    chosen = set()
    for one in axes:
        if not -rank <= one < rank or one % rank in chosen:
            there = f"Axes are {-rank} to {rank - 1}, each once" if rank else "It has rank 0, and so no axis"
            raise ValueError(
                f"cannot {name} over axes {axes} of {shape}: axis {one} is not there or occurs twice. {there}. Choose "
                "among them."
            )
        chosen.add(one % rank)
    leaves: list[int] = []
    begin = 0
    for k, mode in enumerate(shape):
        count = 1 if isinstance(mode, int) else len(mode.leaves())
        if k in chosen:
            leaves.extend(range(begin, begin + count))
        begin += count
    return tuple(leaves)


def require_tensor(x: object, *, name: str) -> None:
    """Nothing, for a Tensor. Errors: TypeError for anything else."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"cannot run {name} with x={type(x).__name__}: it takes a Tensor there. Pass one; wait() turns a handle "
            "into a Tensor, from_torch a torch tensor."
        )


def reduced(
    definition: OperationDefinition,
    x: Tensor,
    description: str | None,
    axis: Axes,
    keepdims: bool,
    sizes: dict[str, int],
    **options: Any,
) -> Tensor:
    """The reduction of `x` over the modes `axis`, or over what the description leaves out.

    The reduction is one operation; a description that splits leaves, orders the kept ones anew or nests them otherwise
    adds one view before or after it. Errors: TypeError for a description beside an axis, and for sizes without one.
    """
    name = definition.name
    require_tensor(x, name=name)
    if description is None:
        if sizes:
            raise TypeError(
                f"cannot run {name} with {', '.join(sizes)}: sizes belong to the symbols of a description. Pass one, "
                "or leave them out."
            )
        leaves = leaves_of(x.layout, axis, name=name)
        result: Tensor = definition(x, leaves=leaves, keepdims=bool(keepdims), **options)
        return result
    if axis is not None or keepdims:
        raise TypeError(
            f"cannot run {name} by {description!r} and axis={axis!r}, keepdims={keepdims!r}: a description says what "
            "is reduced and what stays, where a 1 keeps a mode. Pass one or the other."
        )
    plan = plan_reduce(parse_reduce(description), x.shape, **sizes)
    if plan.source != x.shape:
        x = RESHAPE(x, how=(plan.source, "F"))
    result = definition(x, leaves=plan.reduced, keepdims=False, **options)
    if result.shape == plan.shape and list(plan.kept) == sorted(k for k in plan.kept if k is not None):
        return result
    view: Tensor = REARRANGE(result, how=(_order_of(plan), None))
    return view


def _order_of(plan: ReducePlan) -> Tree:
    """The kept leaves, numbered as the reduction leaves them, in the order and nesting of the description."""
    number = {leaf: k for k, leaf in enumerate(sorted(k for k in plan.kept if k is not None))}
    nodes = iter([Node.Leaf if leaf is None else Node.id(number[leaf]) for leaf in plan.kept])

    def nest(level: Level) -> Tree:
        return Tree(*(next(nodes) if isinstance(mode, int) else nest(mode) for mode in level))

    return nest(plan.shape._items)


def leaves_of_one(x: Tensor, axis: int, *, name: str) -> tuple[int, ...]:
    """The leaves of one mode of a Tensor. Errors: as `leaves_of`, and TypeError for no Tensor or several axes."""
    require_tensor(x, name=name)
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"cannot {name} along axis {axis!r}: an axis must be an integer. Pass one int.")
    return leaves_of(x.layout, axis, name=name)
