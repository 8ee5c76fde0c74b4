"""Functions compiled for the card beside the same functions on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from strideweave.inductor import name_tensor_dims


def on_card(values: Any, names: Sequence[str | None] | None = None) -> Any:
    moved = values.to("spyre") if isinstance(values, torch.Tensor) else values
    return moved if names is None else name_tensor_dims(moved, names)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Dynamo's own, about caches and deprecated calls
            return torch.compile(function, dynamic=False)(*args, **kwargs)

    return run


def check(
    function: Callable[..., Any],
    *args: Any,
    plain: Callable[..., Any] | None = None,
    names: Sequence[Sequence[str | None] | None] = (),
    **tolerance: float,
) -> None:
    """The function compiled on the card gives what it (or `plain`) gives on the CPU, and changes what that changes."""
    host = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    moved = [on_card(a, names[k] if k < len(names) else None) for k, a in enumerate(args)]
    want = (plain or function)(*host)
    got = compiled(function)(*moved)
    pairs = list(zip(_flat(want), _flat(got), strict=True)) + list(zip(host, moved, strict=True))
    for expected, found in pairs:
        if isinstance(expected, torch.Tensor):
            assert found.device.type == "spyre"
            torch.testing.assert_close(found.cpu(), expected, equal_nan=True, **tolerance)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]
