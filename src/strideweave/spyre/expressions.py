"""Expressions of coordinates and indices, evaluated on whole arrays of integers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy
import torch


def evaluate(expression: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    """The integers that an expression has at the values of its symbols: ints, numpy arrays or torch tensors alike.

    Takes sums, products, floor, Mod, and the divisions that Inductor writes. Errors: NotImplementedError for others.

    >>> import numpy, sympy
    >>> x = sympy.Symbol("x", integer=True)
    >>> evaluate(sympy.floor(x / 4) * 10 + sympy.Mod(x, 4), {x: numpy.arange(6)}).tolist()
    [0, 1, 2, 3, 10, 11]
    """
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return values[expression]
    if expression.is_Number:
        return float(expression)
    if expression.is_Add:
        total: Any = 0
        for term in expression.args:
            total = total + evaluate(term, values)
        return total
    if expression.is_Mul:
        result: Any = 1
        for factor in expression.args:
            result = result * evaluate(factor, values)
        return result
    if isinstance(expression, sympy.floor):
        numerator, denominator = _fraction(expression.args[0])
        return evaluate(numerator, values) // evaluate(denominator, values)
    if isinstance(expression, sympy.Mod):
        return evaluate(expression.args[0], values) % evaluate(expression.args[1], values)
    return _other(expression, values)


@lru_cache(maxsize=4096)
def _fraction(expression: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    numerator, denominator = sympy.fraction(sympy.together(expression))
    return numerator, denominator


def _other(expression: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    name = type(expression).__name__
    args = [evaluate(a, values) for a in expression.args] if name not in ("Piecewise", "ExprCondPair") else []
    if name in ("FloorDiv", "CleanDiv", "PythonMod") and len(args) == 2:
        return args[0] % args[1] if name == "PythonMod" else args[0] // args[1]
    if name == "ModularIndexing":
        return args[0] // args[1] % args[2]
    if name == "Identity":
        return args[0]
    if name in ("Max", "Min"):
        best = args[0]
        for other in args[1:]:
            best = _extreme(best, other, largest=name == "Max")
        return best
    if expression.is_Pow and args[1] == int(args[1]) and args[1] >= 0:
        return args[0] ** int(args[1])
    raise NotImplementedError(f"cannot evaluate {expression}: the card has no {name} in its coordinates")


def _extreme(a: Any, b: Any, *, largest: bool) -> Any:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        x, y = torch.as_tensor(a), torch.as_tensor(b)
        return torch.maximum(x, y) if largest else torch.minimum(x, y)
    import numpy as np

    return np.maximum(a, b) if largest else np.minimum(a, b)


def is_separable(expression: sympy.Expr) -> bool:
    """Whether an expression is a sum of parts with one symbol each."""
    return all(len(term.free_symbols) <= 1 for term in sympy.Add.make_args(sympy.expand(expression)))
