"""`strideweave explain`: what the compiler makes of a function in a file."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from strideweave.inductor import explain
from strideweave.inductor.report import Report


def explain_target(target: str, inputs: Sequence[str]) -> Report:
    """The report of `FILE.py:FUNCTION`, called with random tensors of these shapes.

    An input is written as its extents and, if it is not float32, its dtype: `8x64`, `8x64:float16`, `16:int64`.

    Errors: ValueError for a target or an input that is none; FileNotFoundError; whatever the function raises.
    """
    return explain(_function(target), *map(_tensor, inputs))


def _function(target: str) -> Callable[..., Any]:
    path, colon, name = target.rpartition(":")
    if not colon or not path:
        raise ValueError(f"cannot explain {target!r}: it names no function. Write FILE.py:FUNCTION.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"cannot explain {target!r}: there is no file {path!r}. Name one.")
    found = runpy.run_path(path).get(name)
    if not callable(found):
        raise ValueError(f"cannot explain {target!r}: {path} has no function {name!r}. Name one that it defines.")
    function: Callable[..., Any] = found
    return function


def _tensor(text: str) -> torch.Tensor:
    extents, _, dtype_name = text.partition(":")
    dtype = getattr(torch, dtype_name or "float32", None)
    try:
        size = [int(extent) for extent in extents.split("x")]
    except ValueError:
        size = []
    if not size or min(size) < 1 or not isinstance(dtype, torch.dtype):
        raise ValueError(f"cannot make an input of {text!r}: it is no shape. Write extents, as 8x64 or 8x64:float16.")
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0, 2, size, generator=generator).to(dtype)
