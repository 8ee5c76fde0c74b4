"""Copies from one Tensor's slots into another's, whatever carriers they are on."""

from __future__ import annotations

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.carriers.whole import read_all, write_all
from strideweave.dtype import DType
from strideweave.layout import Layout
from strideweave.tensor.tensor import Tensor


def strided(flat: torch.Tensor, layout: Layout, offset: int) -> torch.Tensor:
    """The slots of a 1-d tensor that a layout reaches from `offset` on, one dim per leaf; nothing is copied."""
    leaves = layout.leaves()
    return torch.as_strided(flat, [n for n, _ in leaves], [d for _, d in leaves], int(flat.storage_offset()) + offset)


def values_of(source: Tensor) -> torch.Tensor:
    """The values as a torch tensor, one dim per leaf: the memory itself on torch storage, a copy elsewhere."""
    carrier = source._carrier
    if isinstance(carrier, TorchStorage):
        return strided(carrier._flat(), source._layout, source._offset)
    carrier._require_live("read")
    span = torch.empty(source._layout.cosize, dtype=carrier.dtype().torch_dtype)
    read_all(carrier, source._offset, span)
    return strided(span, source._layout, 0)


def fresh_copy(source: Tensor, layout: Layout, like: Carrier | None = None) -> Tensor:
    """The values of `source` in fresh storage of the class of `like` (its own carrier's unless given).

    Shapes: `layout` has the shape of `source` and is injective; slots that it leaves out are zero.
    """
    carrier = (like or source._carrier).allocate_like(layout.cosize, dtype=source.dtype())
    copied = Tensor._make(carrier, 0, layout)
    if isinstance(carrier, TorchStorage):
        strided(carrier._flat(), layout, 0).copy_(values_of(source))
    else:
        span = torch.zeros(layout.cosize, dtype=source.dtype().torch_dtype)
        strided(span, layout, 0).copy_(values_of(source))
        write_all(carrier, 0, span)
    return copied


def stored(values: torch.Tensor, layout: Layout, like: Carrier) -> Tensor:
    """`values`, one dim per leaf, in fresh storage of the class of `like`. Shapes: `layout` is dense and injective."""
    carrier = like.allocate_like(layout.cosize, dtype=DType.from_torch(values.dtype))
    span = torch.zeros(layout.cosize, dtype=values.dtype)
    strided(span, layout, 0).copy_(values)
    write_all(carrier, 0, span)
    return Tensor._make(carrier, 0, layout)


def overwrite(target: Tensor, values: torch.Tensor) -> None:
    """`target` holds `values`, one dim per leaf, in place; the version advances once.

    Errors: RuntimeError for a carrier that is released, owned or immutable.
    """
    carrier = target._carrier
    carrier._require_writable("write")
    if isinstance(carrier, TorchStorage):
        strided(carrier._flat(), target._layout, target._offset).copy_(values)
    else:
        span = torch.empty(target._layout.cosize, dtype=carrier.dtype().torch_dtype)
        read_all(carrier, target._offset, span)
        strided(span, target._layout, 0).copy_(values)
        write_all(carrier, target._offset, span)
    carrier._version += 1
