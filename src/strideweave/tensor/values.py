"""Values on their way in and out: a Tensor from nested lists or arrays, and a Tensor as nested lists or a scalar."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from strideweave.carriers.carrier import Scalar
from strideweave.carriers.cpu import CPU
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout
from strideweave.tensor.bridges import from_numpy, from_torch
from strideweave.tensor.dense import require_injective
from strideweave.tensor.tensor import Tensor


def tensor(
    values: Any, *, layout: Layout | None = None, dtype: StorageDType | None = None, requires_grad: bool = False
) -> Tensor:
    """A Tensor on a CPU carrier that holds a copy of `values`: nested lists, scalars, numpy, torch, or a Tensor.

    Lists are row-major; an array keeps which dim is fastest. With a `layout` the values are placed by coordinate: they
    have one dim per leaf of it, or are a flat list in the order of its ordinals.

    Shapes: the extents of `values`, or `layout.shape`.
    Errors: ValueError for no values, ragged lists, or a layout that is not injective or has other extents; TypeError
    for what holds no real numbers; OverflowError for a number beyond the dtype.

    >>> from strideweave.dtype import DType
    >>> from strideweave.layout import Layout
    >>> from strideweave.tensor.values import tensor
    >>> t = tensor([[1, 2, 3], [4, 5, 6]])
    >>> t.layout, t.dtype(), t[1, 0]
    (Layout(Shape(2, 3), Stride(3, 1)), DType.Int64, 4)
    >>> tensor([[1, 2, 3], [4, 5, 6]], layout=Layout.column_major(2, 3), dtype=DType.Float32)[1, 0]
    4.0
    """
    data = _read(values, dtype)
    if data.numel() == 0:
        raise ValueError(
            f"cannot make a Tensor of shape {tuple(data.shape)}: a Layout has extents of at least 1. Leave it out."
        )
    if layout is None:
        made = from_torch(data)
        return made.requires_grad_() if requires_grad else made
    extents = [n for n, _ in require_injective(layout).leaves()]
    if list(data.shape) == extents:
        placed = data.permute(*reversed(range(data.dim())))
    elif data.dim() == 1 and data.numel() == layout.size:
        placed = data
    else:
        raise ValueError(
            f"cannot place values of shape {tuple(data.shape)} by {layout!r}: it has leaves of {tuple(extents)} and "
            f"{layout.size} ordinals. Values have one dim per leaf, or are flat in the order of the ordinals. Reshape "
            "them, or pass another layout."
        )
    return filled(layout, placed, requires_grad=requires_grad)


def to_list(tensor: Tensor) -> Any:
    """The values as nested lists, one level per leaf of the layout, whatever they live on; a scalar for rank 0.

    Errors: RuntimeError when the carrier is released, or some value is not there.

    >>> from strideweave.tensor.values import tensor, to_list
    >>> to_list(tensor([[1, 2], [3, 4]]))
    [[1, 2], [3, 4]]
    """
    _require_tensor(tensor)
    tensor.carrier._require_live("list")
    in_torch = isinstance(tensor.carrier, TorchStorage)
    return (tensor if in_torch else tensor.materialize()).torch().tolist()


def item(tensor: Tensor) -> Scalar:
    """The only value. Errors: ValueError for a Tensor of more than one.

    >>> from strideweave.tensor.values import item, tensor
    >>> item(tensor([[2.5]]))
    2.5
    """
    _require_tensor(tensor)
    if tensor.size() != 1:
        raise ValueError(
            f"cannot take the item of {tensor!r}: it has {tensor.size()} values. An item is the only value. Index it, "
            "or use to_list."
        )
    # Every coordinate is 0, and so is the layout's index.
    return tensor.carrier[tensor.offset]


def filled(layout: Layout, placed: torch.Tensor, *, requires_grad: bool) -> Tensor:
    """The Tensor of this layout whose values in the order of the ordinals are those of `placed`, read row by row."""
    made = Tensor(CPU(layout.cosize, dtype=DType.from_torch(placed.dtype)), 0, layout)
    leaves = layout.leaves()
    # Row by row over the dims turned around is first leaf fastest.
    view = made.torch().permute(*reversed(range(len(leaves))))
    view.copy_(placed.reshape(view.shape))
    return made.requires_grad_() if requires_grad else made


def require_dtype(dtype: StorageDType) -> StorageDType:
    """The dtype itself. Errors: TypeError for what is no storage dtype."""
    if not isinstance(dtype, StorageDType):
        raise TypeError(f"cannot make a Tensor of {dtype!r}: dtype must be a DType. Pass one such as DType.Float32.")
    return dtype


def _read(values: Any, dtype: StorageDType | None) -> torch.Tensor:
    """A copy of the values in host memory, of `dtype` or the one that they tell."""
    chosen = None if dtype is None else require_dtype(dtype).torch_dtype
    if isinstance(values, Tensor):
        data = values.detach().materialize().torch()
    elif isinstance(values, torch.Tensor):
        data = values.detach().cpu().resolve_conj().resolve_neg().clone()
    elif isinstance(values, np.ndarray):
        data = from_numpy(values, copy=True).torch() if values.size else torch.empty(values.shape)
    elif isinstance(values, list | tuple) and values and _has_dims(values[0]):
        data = _stack([_read(part, None) for part in values])
    else:
        return _read_numbers(values, chosen)
    return data if chosen is None else data.to(chosen)


def _has_dims(value: object) -> bool:
    """Whether nested lists hold arrays, as their first entry tells."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, np.ndarray | torch.Tensor | Tensor) and len(value.shape) > 0


def _stack(parts: list[torch.Tensor]) -> torch.Tensor:
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"cannot make a Tensor of {len(parts)} arrays: their shapes are {sorted(shapes)}. The arrays of a list "
            "have equal lengths. Pad them."
        )
    return torch.stack(parts)


def _read_numbers(values: Any, chosen: torch.dtype | None) -> torch.Tensor:
    """Scalars and nested lists, as torch reads them; but floats are Float32 whatever torch's default dtype is."""
    try:
        data = torch.tensor(values, dtype=chosen)
        if chosen is None and data.is_floating_point() and not isinstance(values, np.generic):
            data = torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        words = str(error)
        kind: type[Exception] = ValueError if "expected sequence" in words else TypeError
        if "verflow" in words:
            kind = OverflowError
        raise kind(
            f"cannot make a Tensor of this {type(values).__name__}: {words.rstrip('.')}. Values are real numbers in "
            "lists of equal lengths. Pass such lists, and a dtype that holds them."
        ) from error
    if data.is_complex():
        raise TypeError("cannot make a Tensor of complex numbers: they have no storage here. Pass their parts.")
    return data


def _require_tensor(tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"cannot read the values of {type(tensor).__name__}: it is no Tensor. Pass one.")
