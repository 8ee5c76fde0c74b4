"""What a carrier's methods reach in the layers above it: operations by name, and what it can compute.

`strideweave.carriers.operation_capability` binds itself here when it is imported, so that imports run downward only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_functions: dict[str, Callable[..., Any]] = {}


def bind(functions: Mapping[str, Callable[..., Any]]) -> None:
    """These functions can be reached by name from now on."""
    _functions.update(functions)


def call(name: str, *arguments: Any) -> Any:
    """What the function of that name returns."""
    return _functions[name](*arguments)
