"""Every public name says what is true of it, with an example that runs (the doctests run it)."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

import strideweave as sw

PACKAGES = (
    "strideweave",
    "strideweave.autograd",
    "strideweave.carriers",
    "strideweave.carriers.extension",
    "strideweave.carriers.move",
    "strideweave.carriers.tiled_evictable",
    "strideweave.checkpoint",
    "strideweave.dtype",
    "strideweave.einops",
    "strideweave.friendly",
    "strideweave.functional",
    "strideweave.layout",
    "strideweave.nn",
    "strideweave.operation",
    "strideweave.profiler",
    "strideweave.tensor",
    "strideweave.testing",
)

SHOWN_ELSEWHERE = {
    # Errors and handles are raised and returned by what has the example; enums and marks are used in one.
}


def public() -> list[tuple[str, object]]:
    found: dict[int, tuple[str, object]] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) or inspect.isroutine(value):
                found.setdefault(id(value), (f"{package}.{name}", value))
    return list(found.values())


def documentation(value: object) -> str:
    """The docstrings of a function, or of a class and its public methods."""
    texts = [value.__doc__ or ""]
    if isinstance(value, type):
        texts += [inspect.getdoc(member) or "" for name, member in vars(value).items() if not name.startswith("_")]
    return "\n".join(texts)


@pytest.mark.parametrize(("name", "value"), public(), ids=[name for name, _ in public()])
def test_public_name_has_a_sentence_and_an_example(name: str, value: object) -> None:
    first = (inspect.getdoc(value) or "").strip().splitlines()
    assert first, f"{name} has no docstring"
    assert first[0].strip()
    if name.rsplit(".", 1)[1] not in SHOWN_ELSEWHERE:
        assert ">>>" in documentation(value), f"{name} has no example"


def test_star_import_gives_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from strideweave import *", names)
    assert set(sw.__all__) <= set(names)
    assert len(sw.__all__) == len(set(sw.__all__))


def test_subpackage_is_a_module_though_a_function_has_its_name() -> None:
    assert callable(sw.tensor)
    assert isinstance(importlib.import_module("strideweave.tensor"), ModuleType)
