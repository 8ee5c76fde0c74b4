"""Pointwise operations as functions."""

from __future__ import annotations

from strideweave.dtype import StorageDType
from strideweave.operation import pointwise as definitions
from strideweave.operation.functional.operands import Operand
from strideweave.tensor.tensor import Tensor

__all__ = [
    "add",
    "convert",
    "div",
    "elementwise_mul",
    "mul",
    "neg",
    "sub",
]


def add(x: Operand, y: Operand) -> Tensor:
    """`x + y` at every coordinate.

    Shapes: aligned from the last mode; every leaf equal or 1. Errors: TypeError for operands on different carrier
    classes or no Tensor; ValueError for shapes that are not broadcast-compatible.

    >>> import strideweave as sw
    >>> sw.to_list(sw.add(sw.tensor([1, 2]), 10))
    [11, 12]
    """
    result: Tensor = definitions.ADD(x, y)
    return result


def sub(x: Operand, y: Operand) -> Tensor:
    """`x - y` at every coordinate; shapes and errors as `add`, and TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.sub(10, sw.tensor([1, 2])))
    [9, 8]
    """
    result: Tensor = definitions.SUB(x, y)
    return result


def mul(x: Operand, y: Operand) -> Tensor:
    """`x * y` at every coordinate; shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.mul(sw.tensor([1.5, 2.0]), 2))
    [3.0, 4.0]
    """
    result: Tensor = definitions.MUL(x, y)
    return result


def elementwise_mul(x: Operand, y: Operand) -> Tensor:
    """The same as `mul`, under the name that tells it from `matmul`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.elementwise_mul(sw.tensor([2, 3]), sw.tensor([4, 5])))
    [8, 15]
    """
    result: Tensor = definitions.ELEMENTWISE_MUL(x, y)
    return result


def div(x: Operand, y: Operand) -> Tensor:
    """`x / y` at every coordinate, floating also for whole numbers; shapes and errors as `add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.div(sw.tensor([1, 3]), 2))
    [0.5, 1.5]
    """
    result: Tensor = definitions.DIV(x, y)
    return result


def neg(x: Tensor) -> Tensor:
    """`-x` at every coordinate. Errors: TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.neg(sw.tensor([1, -2])))
    [-1, 2]
    """
    result: Tensor = definitions.NEG(x)
    return result


def convert(x: Tensor, dtype: StorageDType) -> Tensor:
    """The values of `x` in another dtype, in fresh storage; rounded as torch rounds.

    >>> import strideweave as sw
    >>> sw.convert(sw.tensor([1.5, 2.0]), sw.DType.Int32).dtype()
    DType.Int32
    """
    if not isinstance(dtype, StorageDType):
        raise TypeError(f"cannot convert to {dtype!r}: dtype must be a DType. Pass one such as DType.BFloat16.")
    result: Tensor = definitions.CONVERT(x, dtype=dtype)
    return result
