"""StrideWeave: cut the tensor, keep the tiles wherever there is room, touch only what a step needs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strideweave.public import *  # noqa: F403

__version__ = "0.1.0"


class _Package(ModuleType):
    """The package, whose names come from `strideweave.public` when the first of them is asked for.

    `import torch` brings the device `spyre` along, and with it this package; it must not pay for all of it.
    """

    @property
    def tensor(self) -> Any:
        """The function: importing the subpackage of that name leaves it in its place."""
        return self.__getattr__("tensor")

    @tensor.setter
    def tensor(self, subpackage: ModuleType) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") or name == "__all__":
            public = importlib.import_module("strideweave.public")
            if name in self.__dict__:  # a subpackage, which has come along
                return self.__dict__[name]
            if hasattr(public, name):
                found = getattr(public, name)
                if name != "tensor":
                    self.__dict__[name] = found
                return found
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *importlib.import_module("strideweave.public").__all__})


sys.modules[__name__].__class__ = _Package
