"""Names of the dims of tensors, as hints use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch

DimNames: TypeAlias = "tuple[str | None, ...]"

_declared: dict[str, int] = {}
_inputs: ContextVar[tuple[DimNames | None, ...]] = ContextVar("names_of_inputs", default=())
_ATTRIBUTE = "_spyre_dim_names"


def declare_tensor_dim(name: str, size: int) -> None:
    """From now on the name means a dim of this extent: `name_tensor_dims` checks it.

    Errors: ValueError when the name was declared with another extent.

    >>> from strideweave.inductor import declare_tensor_dim
    >>> declare_tensor_dim("heads", 12)
    """
    known = _declared.setdefault(name, size)
    if known != size:
        raise ValueError(f"cannot declare dim {name!r} of {size}: it is declared with {known}. Use another name.")


def name_tensor_dims(tensor: torch.Tensor, names: Sequence[str | None]) -> torch.Tensor:
    """The same tensor, its dims named for hints; None leaves one without a name. Name inputs before they are compiled.

    Errors: ValueError for another number of names than dims, or an extent that was declared differently.

    >>> import torch
    >>> from strideweave.inductor import name_tensor_dims
    >>> name_tensor_dims(torch.zeros(2, 3), ["rows", None]).shape
    torch.Size([2, 3])
    """
    if len(names) != tensor.dim():
        raise ValueError(
            f"cannot name the dims of a tensor of shape {tuple(tensor.shape)} {list(names)}: it has {tensor.dim()} "
            f"dims, and there are {len(names)} names. Give one for each, None for no name."
        )
    for name, extent in zip(names, tensor.shape, strict=True):
        if name is not None and _declared.get(name, extent) != extent:
            raise ValueError(
                f"cannot name a dim of {extent} {name!r}: it is declared with {_declared[name]}. Use another name."
            )
    setattr(tensor, _ATTRIBUTE, tuple(names))
    return tensor


def copy_names(source: torch.Tensor, other: torch.Tensor) -> None:
    """Give the dims of another tensor the names that those of `source` have, if they have any."""
    names = getattr(source, _ATTRIBUTE, None)
    if names is not None:
        setattr(other, _ATTRIBUTE, names)


def names_of_inputs() -> tuple[DimNames | None, ...]:
    """The names of the dims of the inputs of the graph that is being compiled, None for one without."""
    return _inputs.get()


@contextmanager
def naming_inputs(graph_module: Any, inputs: Sequence[Any]) -> Iterator[None]:
    """While this lasts, graphs that are lowered know the names of the dims of these inputs."""
    names = []
    placeholders = [n for n in getattr(getattr(graph_module, "graph", None), "nodes", ()) if n.op == "placeholder"]
    for k, given in enumerate(inputs):
        argument = placeholders[k].meta.get("grapharg") if k < len(placeholders) else None
        real = argument.example if argument is not None and argument.is_tensor else given
        names.append(getattr(real, _ATTRIBUTE, None))
    token = _inputs.set(tuple(names))
    try:
        yield
    finally:
        _inputs.reset(token)
