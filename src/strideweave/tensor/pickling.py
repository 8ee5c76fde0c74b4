"""Pickled and deep copies of Tensors: the carrier goes along whole, so that views of one carrier stay views of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.pickling import deepcopy_carrier
from strideweave.layout import Layout
from strideweave.tensor.tensor import Tensor


def reduce_tensor(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """How pickle makes the Tensor again: its carrier, offset, layout and `requires_grad`, as a leaf without a `grad`.

    Tensors of one pickle that share a carrier share one again, as in torch; for that the carrier's slots are pickled,
    all of them. `materialize()` of a small view of a large carrier pickles small.

    >>> import pickle
    >>> from strideweave import CPU, Layout, Tensor
    >>> from strideweave.tensor.pickling import reduce_tensor
    >>> rebuild, (carrier, *rest) = reduce_tensor(Tensor(CPU(4), 0, Layout.row_major(2, 2)))
    >>> rebuild(carrier, *rest).layout
    Layout(Shape(2, 2), Stride(2, 1))
    """
    return _rebuild, (tensor.carrier, tensor.offset, tensor.layout, tensor.requires_grad)


def deepcopy_tensor(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A Tensor over storage of its own, its `grad` copied too; those that share a carrier share a copy of it.

    Errors: RuntimeError for a Tensor that a recorded operation made, as in torch; those of the carrier's copy.

    >>> from strideweave import CPU, Layout, Tensor
    >>> from strideweave.tensor.pickling import deepcopy_tensor
    >>> t = Tensor(CPU(4), 0, Layout.row_major(2, 2))
    >>> copied = deepcopy_tensor(t, {})
    >>> copied[0, 0] = 1.0
    >>> t[0, 0], copied[0, 0]
    (0.0, 1.0)
    """
    if not tensor.is_leaf:
        raise RuntimeError(
            f"cannot copy {tensor!r} deeply: a recorded operation made it. Only Tensors created explicitly by the user "
            "(graph leaves) support the deepcopy protocol. Copy detach() of it."
        )
    copied = _rebuild(deepcopy_carrier(tensor.carrier, memo), tensor.offset, tensor.layout, tensor.requires_grad)
    memo[id(tensor)] = copied
    if tensor.grad is not None:
        known: Tensor | None = memo.get(id(tensor.grad))
        copied.grad = deepcopy_tensor(tensor.grad, memo) if known is None else known
    return copied


def _rebuild(carrier: Carrier, offset: int, layout: Layout, requires_grad: bool) -> Tensor:
    return Tensor(carrier, offset, layout, requires_grad=requires_grad)
