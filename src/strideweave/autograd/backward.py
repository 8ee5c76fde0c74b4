"""Backward: cotangents pass from results to operands, and what reaches a leaf is added to its grad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strideweave.autograd.graph import backward_order, operation_of
from strideweave.layout import Layout
from strideweave.operation.alignment import strides_dense
from strideweave.operation.execution import executor_of
from strideweave.operation.node import Operation
from strideweave.operation.pointwise import ADD
from strideweave.tensor.copying import fresh_copy, stored, values_of
from strideweave.tensor.grad_mode import no_grad
from strideweave.tensor.tensor import Tensor


class Cotangents:
    """What has come together so far: for every result of every operation, and for every Tensor that keeps it."""

    def __init__(self, wanted: Sequence[Tensor] = ()) -> None:
        self._results: dict[int, dict[int, Tensor]] = {}
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._wanted = {id(tensor) for tensor in wanted}

    def add(self, tensor: Tensor, cotangent: Tensor, *, collects_leaves: bool) -> None:
        """`cotangent` reaches `tensor` too."""
        node = tensor._node
        if id(tensor) in self._wanted or (collects_leaves and (node is None or tensor._retains_grad)):
            before = self._tensors.get(id(tensor))
            self._tensors[id(tensor)] = (tensor, cotangent if before is None else _sum(before[1], cotangent))
        if node is not None:
            operation, index = operation_of(node)
            results = self._results.setdefault(id(operation), {})
            results[index] = _sum(results[index], cotangent) if index in results else cotangent

    def take(self, operation: Operation) -> list[Tensor | None] | None:
        """The cotangents of an operation's results; None when none reached it."""
        results = self._results.pop(id(operation), None)
        if results is None:
            return None
        return [results.get(k) for k in range(len(operation._outputs))]

    def of(self, tensor: Tensor) -> Tensor | None:
        """What reached a Tensor; None when nothing did."""
        found = self._tensors.get(id(tensor))
        return None if found is None else found[1]

    def kept(self) -> list[tuple[Tensor, Tensor]]:
        """Every Tensor that keeps its cotangent, and what it is."""
        return list(self._tensors.values())


def _sum(a: Tensor, b: Tensor) -> Tensor:
    own: Tensor | None = a._carrier._summed(a, b)
    if own is not None:
        return own
    if executor_of(type(a._carrier)) is None:  # a carrier that only stores: added in host memory
        return stored(values_of(a) + values_of(b), strides_dense(a.shape), a._carrier)
    result: Tensor = ADD(a, b)
    return result


def traverse(
    starts: Sequence[tuple[Tensor, Tensor]],
    *,
    wanted: Sequence[Tensor] = (),
    collects_leaves: bool = True,
    retain_graph: bool,
) -> Cotangents:
    """Every cotangent that the starts lead to; the graph is freed after all of it has succeeded."""
    cotangents = Cotangents(wanted)
    roots = []
    with no_grad():
        for tensor, cotangent in starts:
            cotangents.add(tensor, cotangent, collects_leaves=collects_leaves)
            if tensor._node is not None:
                roots.append(operation_of(tensor._node)[0])
        _pass_on(cotangents, backward_order(roots), collects_leaves, retain_graph)
    return cotangents


def _pass_on(cotangents: Cotangents, order: Sequence[Operation], collects_leaves: bool, retain_graph: bool) -> None:
    for operation in order:
        results = cotangents.take(operation)
        if results is None:
            continue
        entries = operation._gradients(*results)
        for operand, entry in zip(operation._live().call.operands, entries, strict=True):
            if entry is not None:
                cotangents.add(operand, entry, collects_leaves=collects_leaves)
    if not retain_graph:
        for operation in order:
            operation._free()


def backward(tensor: Tensor, gradient: Tensor | None = None, retain_graph: bool = False) -> None:
    """Leave the gradient of `tensor` in the grad of every leaf; see `Tensor.backward`.

    >>> import strideweave as sw
    >>> from strideweave.autograd import backward
    >>> x = sw.tensor([3.0], requires_grad=True)
    >>> backward(x * x)
    >>> sw.to_list(x.grad)
    [6.0]
    """
    tensor._require_differentiable("run the backward of")
    if not tensor._requires_grad:
        raise RuntimeError(
            f"cannot run the backward of {tensor!r}: backward is not available, since nothing that it is made of "
            "requires a gradient. Set requires_grad before the operations, outside no_grad."
        )
    start = one_like(tensor) if gradient is None else require_cotangent(tensor, gradient)
    publish(traverse([(tensor, start)], retain_graph=retain_graph))


def backwards_traversal(gradient: Tensor, operation: Any, retain_graph: bool = False) -> None:
    """Leave in the leaves under `operation` what its result's `gradient` comes to.

    >>> import strideweave as sw
    >>> from strideweave.autograd import backwards_traversal
    >>> x = sw.tensor([3.0], requires_grad=True)
    >>> backwards_traversal(sw.ones(1), (x * x).autograd_ctx)
    >>> sw.to_list(x.grad)
    [6.0]
    """
    node, index = operation_of(operation)
    node._live()
    result = Tensor._make(node._outputs[index]._carrier, node._outputs[index]._offset, node._outputs[index]._layout)
    result.autograd_ctx = operation
    publish(traverse([(result, require_cotangent(result, gradient))], retain_graph=retain_graph))


def one_like(tensor: Tensor) -> Tensor:
    """The cotangent 1 of a single value. Errors: ValueError for more than one."""
    leaves = tensor.layout.leaves()
    if tensor.size() != 1 or len(leaves) > 1:
        raise ValueError(
            f"cannot run the backward of {tensor!r} without a gradient: it has {tensor.size()} values in "
            f"{len(leaves)} leaf modes. backward requires a gradient for non-scalar tensors. Reduce it, or pass "
            "one of its layout."
        )
    carrier = tensor._carrier.new_like([1], dtype=tensor.dtype())
    return Tensor._make(carrier, 0, strides_dense(tensor.shape))


def require_cotangent(tensor: Tensor, gradient: Tensor) -> Tensor:
    """`gradient` itself, when it can be the cotangent of `tensor`.

    Errors: TypeError for no Tensor, another dtype or carrier class; ValueError for another layout, or one that shares
    slots; RuntimeError for a released one.
    """
    if not isinstance(gradient, Tensor):
        raise TypeError(
            f"cannot run the backward of {tensor!r} with {type(gradient).__name__}: a gradient is a Tensor. Pass one."
        )
    if gradient._carrier.is_released():
        raise RuntimeError(
            f"cannot run the backward of {tensor!r}: the carrier of its gradient is released. Pass one that is live."
        )
    if gradient.carrier_type() is not tensor.carrier_type() or gradient.dtype() is not tensor.dtype():
        raise TypeError(
            f"cannot run the backward of {tensor!r} with {gradient!r}: a gradient has the dtype and the carrier class "
            "of its tensor. Convert or move it."
        )
    layout = tensor.layout
    if layout.is_injective:
        if gradient.layout != layout:
            raise ValueError(
                f"cannot run the backward of a tensor of {layout!r} with a gradient of {gradient.layout!r}: gradient "
                "layout must match tensor layout. Copy the gradient into that layout."
            )
    elif gradient.shape != layout.shape or not gradient.layout.is_injective:
        raise ValueError(
            f"cannot run the backward of a tensor of {layout!r} with a gradient of {gradient.layout!r}: the tensor "
            "repeats slots, so its gradient has an injective layout of the same shape, as gradient layout must match "
            "tensor layout in all else. Pass one with a slot for every coordinate."
        )
    return gradient.detach()


def publish(cotangents: Cotangents) -> None:
    """Add what reached every leaf to its grad; all of it is computed before any grad changes."""
    with no_grad():
        gradients = [(tensor, _grad(tensor, cotangent)) for tensor, cotangent in cotangents.kept()]
    for tensor, gradient in gradients:
        tensor._grad = gradient


def _grad(tensor: Tensor, cotangent: Tensor) -> Tensor:
    """What the grad of a Tensor becomes: in fresh storage of its carrier's class, detached."""
    before = tensor._grad
    if before is not None:
        return _sum(before, cotangent)
    own: Tensor | None = cotangent._carrier._as_gradient(cotangent)
    if own is not None:
        return own
    return fresh_copy(cotangent, gradient_layout(tensor.layout))


def gradient_layout(layout: Layout) -> Layout:
    """The layout of a gradient: the Tensor's own when every coordinate has its slot, else dense, first mode fastest."""
    return layout if layout.is_injective else strides_dense(layout.shape)
