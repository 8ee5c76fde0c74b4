"""Reductions and running totals as functions."""

from __future__ import annotations

import math

from strideweave.dtype import DType, StorageDType
from strideweave.operation import reduction as definitions
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.functional.axes import Axes, leaves_of_one, reduced
from strideweave.tensor.tensor import Tensor

__all__ = [
    "argmax",
    "argmin",
    "cumprod",
    "cumsum",
    "logsumexp",
    "norm",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "std",
    "var",
]


# -- sums and products -----------------------------------------------------------------------------------------------


def reduce_sum(
    x: Tensor,
    description: str | None = None,
    *,
    axis: Axes = None,
    keepdims: bool = False,
    accumulator_dtype: StorageDType | None = None,
    **sizes: int,
) -> Tensor:
    """The sum over the modes `axis`, over all modes, or over what a description such as `"a b -> a"` leaves out.

    Floats keep their dtype and are added up in Float32 at least; whole numbers and Bool become Int64. A description
    also orders and groups what stays; `sizes` split a leaf that it groups, as in `"(h d) b -> d b", h=4`.

    Shapes: without the modes, or with 1 in their places with `keepdims`. Errors: TypeError for what is no Tensor, no
    axis or no description; ValueError for an axis that is not there, or a description that does not fit.

    >>> import strideweave as sw
    >>> x = sw.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> sw.to_list(sw.reduce_sum(x, axis=1)), sw.item(sw.reduce_sum(x)), sw.to_list(sw.reduce_sum(x, "a b -> b 1"))
    ([3.0, 7.0], 10.0, [[4.0], [6.0]])
    """
    if accumulator_dtype not in (None, DType.Float32, DType.Float64):
        raise TypeError(f"cannot add up in {accumulator_dtype!r}: an accumulator is Float32 or Float64. Pass one.")
    return reduced(definitions.REDUCE_SUM, x, description, axis, keepdims, sizes, accumulator_dtype=accumulator_dtype)


def reduce_mean(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """The mean; Float32 for whole numbers and Bool. Arguments and errors as `reduce_sum`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.reduce_mean(sw.tensor([[1, 2], [3, 5]]), axis=0))
    [2.0, 3.5]
    """
    return reduced(definitions.REDUCE_MEAN, x, description, axis, keepdims, sizes)


def reduce_prod(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """The product; its gradient is right where values are 0. Dtypes, arguments and errors as `reduce_sum`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.reduce_prod(sw.tensor([[1, 2], [3, 4]]), axis=0))
    [3, 8]
    """
    return reduced(definitions.REDUCE_PROD, x, description, axis, keepdims, sizes)


# -- extremes --------------------------------------------------------------------------------------------------------


def reduce_max(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """The greatest value, NaN when there is one. Arguments and errors as `reduce_sum`.

    The gradient is split evenly among all that are greatest, as in `torch.amax`; NaN shares among NaN.

    >>> import strideweave as sw
    >>> sw.to_list(sw.reduce_max(sw.tensor([[1, 2], [3, 0]]), axis=1))
    [2, 3]
    """
    return reduced(definitions.REDUCE_MAX, x, description, axis, keepdims, sizes)


def reduce_min(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """The least value, NaN when there is one; gradient, arguments and errors as `reduce_max`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.reduce_min(sw.tensor([[1, 2], [3, 0]]), axis=1))
    [1, 0]
    """
    return reduced(definitions.REDUCE_MIN, x, description, axis, keepdims, sizes)


def argmax(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """The Int64 ordinal of the first greatest value, or of the first NaN. Arguments and errors as `reduce_sum`.

    Ordinals count the first mode fastest, over all that is reduced: without an axis of a row-major tensor of several
    modes, `torch.argmax` counts the last mode fastest and so gives another number. `x[ordinal]` is the value.

    >>> import strideweave as sw
    >>> x = sw.tensor([[1, 2, 9], [3, 4, 5]])
    >>> sw.to_list(sw.argmax(x, axis=1)), sw.item(sw.argmax(x)), x[4]
    ([2, 2], 4, 9)
    """
    return reduced(definitions.ARGMAX, x, description, axis, keepdims, sizes)


def argmin(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """The Int64 ordinal of the first least value, or of the first NaN; counted as in `argmax`.

    >>> import strideweave as sw
    >>> sw.item(sw.argmin(sw.tensor([[1, 2], [0, 4]])))
    1
    """
    return reduced(definitions.ARGMIN, x, description, axis, keepdims, sizes)


def reduce_any(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """Whether some value is not 0, as Bool; NaN is not 0. Arguments and errors as `reduce_sum`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.reduce_any(sw.tensor([[0, 0], [0, 4]]), axis=1))
    [False, True]
    """
    return reduced(definitions.REDUCE_ANY, x, description, axis, keepdims, sizes)


def reduce_all(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """Whether no value is 0, as Bool. Arguments and errors as `reduce_sum`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.reduce_all(sw.tensor([[0, 0], [1, 4]]), axis=1))
    [False, True]
    """
    return reduced(definitions.REDUCE_ALL, x, description, axis, keepdims, sizes)


# -- spread and size -------------------------------------------------------------------------------------------------


def var(
    x: Tensor,
    description: str | None = None,
    *,
    axis: Axes = None,
    keepdims: bool = False,
    correction: float = 1,
    **sizes: int,
) -> Tensor:
    """The variance: squares around the mean, over their number less `correction`; Float32 for whole numbers.

    Arguments and errors as `reduce_sum`; ValueError too where no more values meet than the correction takes away.

    >>> import strideweave as sw
    >>> sw.to_list(sw.var(sw.tensor([[1.0, 3.0], [2.0, 8.0]]), axis=1))
    [2.0, 18.0]
    """
    return _scattered(definitions.VAR, x, description, axis, keepdims, sizes, correction)


def std(
    x: Tensor,
    description: str | None = None,
    *,
    axis: Axes = None,
    keepdims: bool = False,
    correction: float = 1,
    **sizes: int,
) -> Tensor:
    """The standard deviation: the root of `var`; its gradient where it is 0 is 0.

    >>> import strideweave as sw
    >>> sw.item(sw.std(sw.tensor([1.0, 3.0]), correction=0))
    1.0
    """
    return _scattered(definitions.STD, x, description, axis, keepdims, sizes, correction)


def _scattered(
    definition: OperationDefinition,
    x: Tensor,
    description: str | None,
    axis: Axes,
    keepdims: bool,
    sizes: dict[str, int],
    correction: float,
) -> Tensor:
    if isinstance(correction, bool) or not isinstance(correction, int | float):
        raise TypeError(f"cannot {definition.name} with correction {correction!r}: it is no number. Pass 0 or 1.")
    return reduced(definition, x, description, axis, keepdims, sizes, correction=correction)


def norm(
    x: Tensor,
    description: str | None = None,
    *,
    ord: float = 2,
    axis: Axes = None,
    keepdims: bool = False,
    **sizes: int,
) -> Tensor:
    """The size of what meets, as a vector: the root of the sum of squares.

    `ord` 1 adds the sizes up, inf takes the greatest. Float32 for whole numbers. The gradient where it is 0 is 0;
    that of inf is split among ties. Arguments and errors as `reduce_sum`; ValueError too for another `ord`.

    >>> import strideweave as sw
    >>> x = sw.tensor([3.0, -4.0])
    >>> sw.item(sw.norm(x)), sw.item(sw.norm(x, ord=1)), sw.item(sw.norm(x, ord=float("inf")))
    (5.0, 7.0, 4.0)
    """
    if ord not in (1, 2, math.inf):
        raise ValueError(f"cannot take the norm of order {ord!r}: orders are 1, 2 and inf. Pass one of these.")
    return reduced(definitions.NORM, x, description, axis, keepdims, sizes, ord=float(ord))


def logsumexp(
    x: Tensor, description: str | None = None, *, axis: Axes = None, keepdims: bool = False, **sizes: int
) -> Tensor:
    """The logarithm of the sum of exponentials, without overflow; Float32 for whole numbers.

    Arguments and errors as `reduce_sum`.

    >>> import strideweave as sw
    >>> round(sw.item(sw.logsumexp(sw.tensor([1000.0, 1000.0]))), 3)
    1000.693
    """
    return reduced(definitions.LOGSUMEXP, x, description, axis, keepdims, sizes)


# -- running totals --------------------------------------------------------------------------------------------------


def cumsum(x: Tensor, dimension: int) -> Tensor:
    """The sum of all values up to and with each, along one mode; a nested mode counts its first mode fastest.

    Dtypes as `reduce_sum`. Errors: TypeError for what is no Tensor or no int; ValueError for a mode that is not there.

    >>> import strideweave as sw
    >>> sw.to_list(sw.cumsum(sw.tensor([[1, 2], [3, 4]]), 1))
    [[1, 3], [3, 7]]
    """
    leaves = leaves_of_one(x, dimension, name="cumsum")
    result: Tensor = definitions.CUMSUM(x, leaves=leaves, reverse=False)
    return result


def cumprod(x: Tensor, dimension: int) -> Tensor:
    """The product of all values up to and with each, along one mode; the rest as `cumsum`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.cumprod(sw.tensor([[1, 2], [3, 4]]), 0))
    [[1, 2], [3, 8]]
    """
    result: Tensor = definitions.CUMPROD(x, leaves=leaves_of_one(x, dimension, name="cumprod"))
    return result
