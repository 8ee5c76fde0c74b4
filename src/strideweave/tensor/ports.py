"""What a Tensor's operators and methods reach in the layers above it: operations by name, and backward.

`strideweave.operation` and `strideweave.autograd` bind themselves here when they are imported, so that imports run
downward only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_functions: dict[str, Callable[..., Any]] = {}


def bind(functions: Mapping[str, Callable[..., Any]]) -> None:
    """These functions can be reached by name from now on."""
    _functions.update(functions)


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """What the function of that name returns."""
    return _functions[name](*arguments, **options)


def operator(name: str, left: object, right: object) -> Any:
    """The result of a binary operator; NotImplemented for an operand of another kind, as Python asks."""
    from strideweave.tensor.tensor import Tensor

    for operand in (left, right):
        if not isinstance(operand, Tensor | int | float):
            return NotImplemented
    return _functions[name](left, right)
