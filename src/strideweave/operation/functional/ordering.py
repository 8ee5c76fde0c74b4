"""Ordering operations as functions."""

from __future__ import annotations

from typing import NamedTuple

from strideweave.operation import ordering as definitions
from strideweave.operation.functional.indexing import mode_of, require_int
from strideweave.tensor.tensor import Tensor

__all__ = ["SortResult", "TopKResult", "argsort", "sort", "topk"]


class SortResult(NamedTuple):
    """The values in order, and the places along the axis that they came from.

    >>> import strideweave as sw
    >>> values, indices = sw.sort(sw.tensor([3, 1, 2]))
    >>> sw.to_list(values), sw.to_list(indices)
    ([1, 2, 3], [1, 2, 0])
    """

    values: Tensor
    """The values, of the dtype that they had."""
    indices: Tensor
    """Their places, in Int64: `gather(t, indices, axis)` gives the values."""


class TopKResult(NamedTuple):
    """The best values in order, and the places along the axis that they came from.

    >>> import strideweave as sw
    >>> sw.to_list(sw.topk(sw.tensor([3, 1, 2]), 2).values)
    [3, 2]
    """

    values: Tensor
    """The values, of the dtype that they had."""
    indices: Tensor
    """Their places, in Int64: `gather(t, indices, axis)` gives the values."""


def sort(t: Tensor, axis: int = -1, descending: bool = False) -> SortResult:
    """The values in ascending order along `axis`, equal ones in the order that they had; NaN is the greatest.

    A nested mode is ordered as one, first mode fastest. Errors: TypeError for no Tensor or no int; ValueError for an
    axis that is not there.

    >>> import strideweave as sw
    >>> values, indices = sw.sort(sw.tensor([3, 1, 2]))
    >>> sw.to_list(values), sw.to_list(indices)
    ([1, 2, 3], [1, 2, 0])
    """
    return SortResult(*definitions.SORT(t, axis=mode_of(t, axis, name="sort"), descending=bool(descending)))


def argsort(t: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The places of the values in ascending order along `axis`, in Int64; the rest as `sort`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.argsort(sw.tensor([3, 1, 2]), descending=True))
    [0, 2, 1]
    """
    return sort(t, axis, descending).indices


def topk(t: Tensor, k: int, axis: int = -1, largest: bool = True) -> TopKResult:
    """The `k` greatest values along `axis` from the greatest on (or the least from the least), and their places.

    Among equal values the one at the lowest place comes first, on every carrier; NaN is the greatest.

    Shapes: the axis has extent `k`, one leaf. Errors: as `sort`; ValueError for a `k` below 1 or beyond the extent.

    >>> import strideweave as sw
    >>> values, indices = sw.topk(sw.tensor([1, 3, 2, 3]), 2)
    >>> sw.to_list(values), sw.to_list(indices)
    ([3, 3], [1, 3])
    """
    require_int(k, "k", name="topk")
    return TopKResult(*definitions.TOPK(t, k=k, axis=mode_of(t, axis, name="topk"), largest=bool(largest)))
