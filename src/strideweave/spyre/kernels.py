"""Kernels of the device `spyre`: Python functions that torch's dispatcher calls, and that Dynamo must not trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, Final, TypeVar

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_F = TypeVar("_F", bound=Callable[..., Any])

DEVICE_NAME: Final = "spyre"
CPU_KEYS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""Where `redispatch` finds the kernels that only touch sizes and strides."""

_SKIP: Final = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def untraced(function: _F) -> _F:
    """The same function, which Dynamo runs as it is, with everything that it calls.

    Without this mark a frame evaluation after a graph break would compile the kernels themselves.

    >>> from strideweave.spyre.kernels import untraced
    >>> @untraced
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> double(4)
    8
    """
    plain = getattr(function, "__wrapped__", function)
    if isinstance(plain, FunctionType):
        set_code_exec_strategy(plain.__code__, _SKIP)
    return function


@lru_cache(maxsize=1024)
def aten(name: str) -> Any:
    """The operation of torch with that name and overload, made when it is first asked for.

    >>> from strideweave.spyre.kernels import aten
    >>> aten("add.Tensor"), aten("neg")
    (<OpOverload(op='aten.add', overload='Tensor')>, <OpOverload(op='aten.neg', overload='default')>)
    """
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def implement(library: Any, name: str, kernel: Callable[..., Any], key: str) -> None:
    """The dispatcher calls `kernel` for the operation `name` and the dispatch key `key`."""
    library.impl(name, kernel, key)


class KernelTable:
    """Kernels by the name of their operation, in the order in which they were defined.

    >>> from strideweave.spyre.kernels import KernelTable
    >>> table = KernelTable()
    >>> @table("neg")
    ... def negate(x):
    ...     return -x
    >>> list(table.kernels)
    ['neg']
    """

    def __init__(self) -> None:
        self.kernels: dict[str, Callable[..., Any]] = {}

    def __call__(self, *names: str) -> Callable[[_F], _F]:
        """A decorator that enters a function as the kernel of the operations `names`, such as "add.Tensor"."""

        def enter(function: _F) -> _F:
            for name in names:
                self.kernels[name] = untraced(function)
            return function

        return enter

    def register(self, library: torch.library.Library, key: str) -> None:
        """The dispatcher calls these kernels for the dispatch key `key`."""
        for name, kernel in self.kernels.items():
            implement(library, name, kernel, key)
