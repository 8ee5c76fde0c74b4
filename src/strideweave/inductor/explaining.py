"""`explain`: compile a function for the card and say what became of every operation."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from strideweave.inductor.errors import Unsupported
from strideweave.inductor.names import copy_names
from strideweave.inductor.report import Report, reporting
from strideweave.spyre import registration


def explain(function: Callable[..., Any], *args: Any, plan_only: bool = False, **kwargs: Any) -> Report:
    """What the compiler makes of `function(*args, **kwargs)`: layouts, windows, tiles, cores, loops, one row each.

    Tensors are taken to the card first; those that are there already, or on the meta device, are taken as they are.
    The function is compiled anew and runs once. With `plan_only` nothing runs and no tensor has memory, so that shapes
    can be explained that have no room here; tensors on the meta device stand for their shape then.

    Errors: Unsupported where it cannot run on the card.

    >>> import torch
    >>> from strideweave.inductor import explain
    >>> report = explain(lambda x: x + 1, torch.zeros(4, 100))
    >>> [(row.op, row.whole_ranges) for row in report.rows]
    [('add', {'c0': 4, 'c1': 100})]
    >>> huge = torch.empty(200704, 4096, dtype=torch.float16, device="meta")
    >>> explain(lambda x: x + 1, huge, plan_only=True).rows[0].operands[0].window_whole_nbytes // 2**20
    1568
    """
    import torch._inductor.config as inductor_config
    from torch._inductor.exc import InductorError
    from torch._subclasses import FakeTensorMode
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.utils._pytree import tree_map

    from strideweave.inductor.backend import register

    register()
    registration.register()
    torch._dynamo.reset()
    with (
        FakeTensorMode(allow_non_fake_inputs=True) if plan_only else nullcontext(),
        reporting() as report,
        inductor_config.patch(force_disable_caches=True),
        warnings.catch_warnings(action="ignore"),  # what torch says of itself while it compiles
        _silent("torch._inductor.utils"),  # where it leaves its files when it is refused
    ):
        args, kwargs = tree_map(_fake if plan_only else _to_card, (args, kwargs))
        try:
            torch.compile(function, dynamic=False)(*args, **kwargs)
        except InductorError as error:
            if isinstance(error.inner_exception, Unsupported):
                raise error.inner_exception from None
            raise
        except DataDependentOutputException as error:
            raise Unsupported(
                f"cannot plan {getattr(function, '__name__', function)} without running it: {error.func} asks for the "
                "value of a tensor. Tensors have no values while nothing runs. Leave plan_only out."
            ) from None
    torch._dynamo.reset()
    return report


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """While this lasts, a logger says nothing."""
    named = logging.getLogger(logger)
    before, named.disabled = named.disabled, True
    try:
        yield
    finally:
        named.disabled = before


def _to_card(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    moved = value.to("spyre")
    copy_names(value, moved)
    return moved


def _fake(value: Any) -> Any:
    """A tensor on the card of the same shape and names, without memory."""
    if not isinstance(value, torch.Tensor) or value.device.type not in ("cpu", "meta", "spyre"):
        return value
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="spyre")
    copy_names(value, made)
    return made.requires_grad_(value.requires_grad)
