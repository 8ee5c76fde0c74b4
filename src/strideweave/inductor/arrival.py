"""Registration with Inductor at the moment that Inductor is imported, and not before: it takes a second to import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_AWAITED: Final = "torch._inductor.compile_fx"


def register_on_arrival() -> None:
    """Register with Inductor now if it is here already, else when it is imported. Again is harmless."""
    if _AWAITED in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    importlib.import_module("strideweave.inductor.backend")


class _Finder(MetaPathFinder):
    """Finds the awaited module by the other finders, once, and registers when it has been run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, its loader wrapped."""
        if fullname != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Another loader, after which we register."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then register."""
        self._loader.exec_module(module)
        _register()
