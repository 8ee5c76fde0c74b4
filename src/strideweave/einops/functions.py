"""Descriptions applied to Tensors: `rearrange`, `reduce` and `einsum`."""

from __future__ import annotations

from typing import Literal

from strideweave.tensor import ports
from strideweave.tensor.tensor import Tensor

_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


def rearrange(tensor: Tensor, description: str, **sizes: int) -> Tensor:
    """The same values with their modes reordered, grouped or split: `strideweave.rearrange` by a description.

    >>> import strideweave as sw
    >>> from strideweave.einops import rearrange
    >>> rearrange(sw.zeros(2, 3, 4), "a b c -> c (a b)").shape
    Shape(4, (2, 3))
    """
    result: Tensor = ports.call("rearrange", tensor, description, **sizes)
    return result


def reduce(
    tensor: Tensor,
    description: str,
    reduction: Literal["sum", "mean", "max", "min", "prod", "any", "all"] = "sum",
    **sizes: int,
) -> Tensor:
    """The reduction of the modes that the description leaves out.

    Errors: ValueError for another `reduction`; those of `strideweave.reduce_sum` and its like.

    >>> import strideweave as sw
    >>> from strideweave.einops import reduce
    >>> sw.to_list(reduce(sw.tensor([[1, 5], [7, 3]]), "a b -> b", "max"))
    [7, 5]
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"cannot reduce by {reduction!r}: there are {', '.join(_REDUCTIONS)}. Choose one.")
    result: Tensor = ports.call(f"reduce_{reduction}", tensor, description, **sizes)
    return result


def einsum(*operands: Tensor | str, **sizes: int) -> Tensor:
    """The sum of products that the description says: `strideweave.einsum`.

    >>> import strideweave as sw
    >>> from strideweave.einops import einsum
    >>> sw.item(einsum(sw.tensor([1.0, 2.0]), sw.tensor([3.0, 4.0]), "i, i ->"))
    11.0
    """
    result: Tensor = ports.call("einsum", *operands, **sizes)
    return result
