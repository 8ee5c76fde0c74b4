"""`strideweave explain`: what the compiler makes of a function in a file."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from strideweave.inductor import explain
from strideweave.inductor.report import Report

RULES = ("seed", "window")


def explain_target(target: str, inputs: Sequence[str], *, plan_only: bool = False) -> Report:
    """The report of `FILE.py:FUNCTION`, called with random tensors of these shapes.

    An input is written as its extents and, if it is not float32, its dtype: `8x64`, `8x64:float16`, `16:int64`. With
    `plan_only` nothing runs, and no tensor has memory.

    Errors: ValueError for a target or an input that is none; FileNotFoundError; whatever the function raises.
    """
    tensors = [_tensor(text, plan_only=plan_only) for text in inputs]
    return explain(function_of(target), *tensors, plan_only=plan_only)


def switches(
    *, cores: int | None = None, span_nbytes: int | None = None, rule: str | None = None, automatic: bool = False
) -> dict[str, Any]:
    """What to patch the configuration with; a rule turns automatic tiling on, and so does `automatic`.

    Errors: ValueError for a rule that is none.

    >>> switches(cores=2, automatic=True)
    {'sencores': 2, 'ignore_span_overflow_hints': False}
    """
    changed: dict[str, Any] = {} if cores is None else {"sencores": cores}
    if span_nbytes is not None:
        changed["max_span_bytes"] = span_nbytes
    if rule is not None and rule not in RULES:
        raise ValueError(f"cannot tile by the rule {rule!r}: rules are {' and '.join(RULES)}. Name one of them.")
    if rule == "seed":
        from strideweave.inductor.span_overflow_hint_analysis import SEED_RULES

        changed |= SEED_RULES
    elif rule is not None:
        changed["span_rule"] = rule
    if automatic or rule is not None:
        changed["ignore_span_overflow_hints"] = False
    return changed


def function_of(target: str) -> Callable[..., Any]:
    """The function that `FILE.py:FUNCTION` names. Errors: ValueError, FileNotFoundError."""
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


def shape_of(text: str, default: str = "float32") -> tuple[tuple[int, ...], torch.dtype]:
    """The extents and the dtype of `8x64:float16`. Errors: ValueError for anything else.

    >>> shape_of("8x64")
    ((8, 64), torch.float32)
    """
    extents, _, dtype_name = text.strip().partition(":")
    dtype = getattr(torch, dtype_name or default, None)
    try:
        size = tuple(int(extent) for extent in extents.split("x"))
    except ValueError:
        size = ()
    if not size or min(size) < 1 or not isinstance(dtype, torch.dtype):
        raise ValueError(f"cannot make an input of {text!r}: it is no shape. Write extents, as 8x64 or 8x64:float16.")
    return size, dtype


def _tensor(text: str, *, plan_only: bool) -> torch.Tensor:
    size, dtype = shape_of(text)
    if plan_only:
        return torch.empty(size, dtype=dtype, device="meta")
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(size, generator=generator).to(dtype)
    return torch.randint(0, 2, size, generator=generator).to(dtype)
