"""Signs, roundings, roots, powers and remainders as functions."""

from __future__ import annotations

from strideweave.operation import arithmetic as definitions
from strideweave.operation.functional.operands import Operand
from strideweave.tensor.tensor import Tensor

__all__ = [
    "abs",
    "ceil",
    "floor",
    "floor_div",
    "pow",
    "recip",
    "rem",
    "round",
    "rsqrt",
    "sign",
    "sqrt",
    "square",
    "trunc",
]


def abs(x: Tensor) -> Tensor:
    """The absolute value at every coordinate; its gradient at 0 is 0.

    Errors: TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.abs(sw.tensor([-1.5, 2.0])))
    [1.5, 2.0]
    """
    result: Tensor = definitions.ABS(x)
    return result


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 at every coordinate, in the dtype of `x`; 0 for NaN.

    >>> import strideweave as sw
    >>> sw.to_list(sw.sign(sw.tensor([-3, 0, 5])))
    [-1, 0, 1]
    """
    result: Tensor = definitions.SIGN(x)
    return result


def square(x: Tensor) -> Tensor:
    """`x * x` at every coordinate; Bool becomes Int64.

    >>> import strideweave as sw
    >>> sw.to_list(sw.square(sw.tensor([-3, 2])))
    [9, 4]
    """
    result: Tensor = definitions.SQUARE(x)
    return result


def recip(x: Tensor) -> Tensor:
    """`1 / x` at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.recip(sw.tensor([2, 0])))
    [0.5, inf]
    """
    result: Tensor = definitions.RECIP(x)
    return result


def sqrt(x: Tensor) -> Tensor:
    """The square root at every coordinate, floating also for whole numbers; NaN below 0.

    >>> import strideweave as sw
    >>> sw.to_list(sw.sqrt(sw.tensor([4, 9])))
    [2.0, 3.0]
    """
    result: Tensor = definitions.SQRT(x)
    return result


def rsqrt(x: Tensor) -> Tensor:
    """`1 / sqrt(x)` at every coordinate, floating also for whole numbers.

    >>> import strideweave as sw
    >>> sw.to_list(sw.rsqrt(sw.tensor([4.0])))
    [0.5]
    """
    result: Tensor = definitions.RSQRT(x)
    return result


def floor(x: Tensor) -> Tensor:
    """The greatest whole number that is not above, at every coordinate; the dtype stays.

    Errors: TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.floor(sw.tensor([-1.5, 1.5])))
    [-2.0, 1.0]
    """
    result: Tensor = definitions.FLOOR(x)
    return result


def ceil(x: Tensor) -> Tensor:
    """The least whole number that is not below, at every coordinate; the dtype stays.

    Errors: TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.ceil(sw.tensor([-1.5, 1.5])))
    [-1.0, 2.0]
    """
    result: Tensor = definitions.CEIL(x)
    return result


def trunc(x: Tensor) -> Tensor:
    """`x` without its fraction at every coordinate; the dtype stays.

    Errors: TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.trunc(sw.tensor([-1.5, 1.5])))
    [-1.0, 1.0]
    """
    result: Tensor = definitions.TRUNC(x)
    return result


def round(x: Tensor) -> Tensor:
    """The nearest whole number at every coordinate, half to even; the dtype stays.

    Errors: TypeError for Bool.

    >>> import strideweave as sw
    >>> sw.to_list(sw.round(sw.tensor([0.5, 1.5, -2.6])))
    [0.0, 2.0, -3.0]
    """
    result: Tensor = definitions.ROUND(x)
    return result


def pow(x: Operand, y: Operand) -> Tensor:
    """`x ** y` at every coordinate; whole numbers stay whole, modulo two to their bits.

    A whole number to a negative power is 0, unless it is 1 or -1. Shapes: as `add`.
    Errors: as `add`; TypeError for Bool to the power of Bool; ValueError for a whole Tensor to a negative whole number.

    >>> import strideweave as sw
    >>> sw.to_list(sw.pow(sw.tensor([1, 2, 3]), 2)), sw.to_list(sw.pow(sw.tensor([4.0]), 0.5))
    ([1, 4, 9], [2.0])
    """
    if isinstance(y, int) and y < 0 and isinstance(x, Tensor) and not x.dtype().is_floating:
        raise ValueError(
            f"cannot raise {x!r} to the power of {y}: whole numbers have no whole powers below 0. Convert it to a "
            f"floating dtype, or pass {float(y)}."
        )
    result: Tensor = definitions.POW(x, y)
    return result


def rem(x: Operand, y: Operand) -> Tensor:
    """What is left of `x` when it is divided by `y`, with the sign of `y`; shapes and errors as `add`.

    Errors: TypeError for Bool; ZeroDivisionError for a whole number by 0.

    >>> import strideweave as sw
    >>> sw.to_list(sw.rem(sw.tensor([5, -5]), 3))
    [2, 1]
    """
    result: Tensor = definitions.REM(x, y)
    return result


def floor_div(x: Operand, y: Operand) -> Tensor:
    """The greatest whole number not above `x / y`, in the promoted dtype; shapes and errors as `add`.

    Errors: TypeError for Bool; ZeroDivisionError for a whole number by 0.

    >>> import strideweave as sw
    >>> sw.to_list(sw.floor_div(sw.tensor([5, -5]), 3))
    [1, -2]
    """
    result: Tensor = definitions.FLOOR_DIV(x, y)
    return result
