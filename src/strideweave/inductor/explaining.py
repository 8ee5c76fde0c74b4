"""`explain`: compile a function for the card and say what became of every operation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from strideweave.inductor.report import Report, reporting
from strideweave.spyre import registration


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """What the compiler makes of `function(*args, **kwargs)`: layouts, windows, tiles, cores, loops, one row each.

    Tensors are taken to the card first; those that are there already, or on the meta device, are taken as they are.
    The function is compiled anew and runs once.

    Errors: Unsupported where it cannot run on the card.

    >>> import torch
    >>> from strideweave.inductor import explain
    >>> report = explain(lambda x: x + 1, torch.zeros(4, 100))
    >>> [(row.op, row.whole_ranges) for row in report.rows]
    [('add', {'c0': 4, 'c1': 100})]
    """
    import torch._inductor.config as inductor_config
    from torch.utils._pytree import tree_map

    from strideweave.inductor.backend import register

    register()
    registration.register()
    args, kwargs = tree_map(_to_card, (args, kwargs))
    torch._dynamo.reset()
    with (
        reporting() as report,
        inductor_config.patch(force_disable_caches=True),
        warnings.catch_warnings(action="ignore"),  # what torch says of itself while it compiles
    ):
        torch.compile(function, dynamic=False)(*args, **kwargs)
    torch._dynamo.reset()
    return report


def _to_card(value: Any) -> Any:
    return value.to("spyre") if isinstance(value, torch.Tensor) and value.device.type == "cpu" else value
