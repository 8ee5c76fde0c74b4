"""`grad`: the gradient as a value, with nothing left in any Tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strideweave.autograd.backward import one_like, require_cotangent, traverse
from strideweave.layout import Layout
from strideweave.operation.alignment import dense_in_order
from strideweave.tensor.copying import overwrite, values_of
from strideweave.tensor.tensor import Tensor


def grad(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    cotangents: Tensor | None = None,
    *,
    batched: bool = False,
    retain_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """For every input, the product of `cotangents` with the Jacobian of `output`; no `grad` is touched.

    With `batched`, the first mode of `cotangents` counts cotangents, and that of every result counts products.

    Shapes: `cotangents` as `output` (or one mode more); results as the inputs (or one mode more).
    Errors: as `backward`; RuntimeError for an input that `output` does not depend on, unless `allow_unused`, which
    gives None for it.

    >>> import strideweave as sw
    >>> x = sw.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> (gradient,) = sw.grad(sw.reduce_sum(x * x), x)
    >>> sw.to_list(gradient), x.grad
    ([2.0, 4.0, 6.0], None)
    """
    wanted = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    for tensor in (output, *wanted):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"cannot take the grad with {type(tensor).__name__}: it takes Tensors. Pass them.")
        if not tensor.requires_grad:
            raise RuntimeError(
                f"cannot take the grad with {tensor!r}: grad is not available, since it requires no gradient. Set "
                "requires_grad before the operations."
            )
    if batched:
        return _batched(output, wanted, cotangents, retain_graph=retain_graph, allow_unused=allow_unused)
    start = one_like(output) if cotangents is None else require_cotangent(output, cotangents)
    return _products(output, wanted, start, retain_graph=retain_graph, allow_unused=allow_unused)


def _products(
    output: Tensor, wanted: Sequence[Tensor], start: Tensor, *, retain_graph: bool, allow_unused: bool
) -> tuple[Tensor | None, ...]:
    reached = traverse([(output, start)], wanted=wanted, collects_leaves=False, retain_graph=True)
    results = tuple(reached.of(tensor) for tensor in wanted)
    for k, result in enumerate(results):
        if result is None and not allow_unused:
            raise RuntimeError(
                f"cannot take the grad for input {k}, {wanted[k]!r}: the output does not depend on it. Leave it out, "
                "or pass allow_unused=True to get None."
            )
    if not retain_graph:
        _free(output)
    return results


def _free(output: Tensor) -> None:
    from strideweave.autograd.graph import backward_order, operation_of

    if output._node is not None:
        for operation in backward_order([operation_of(output._node)[0]]):
            operation._free()


def _batched(
    output: Tensor, wanted: Sequence[Tensor], cotangents: Tensor | None, *, retain_graph: bool, allow_unused: bool
) -> tuple[Tensor | None, ...]:
    if not isinstance(cotangents, Tensor) or len(cotangents.layout) < 1:
        raise TypeError(
            "cannot take a batched grad without cotangents: their first mode counts them. Pass a Tensor of one mode "
            "more than the output."
        )
    first, rest = cotangents.layout[0], cotangents.layout[1:]
    if rest.shape != output.shape:
        raise ValueError(
            f"cannot take a batched grad with cotangents of {cotangents.shape}: after the first mode they have the "
            f"shape of the output, {output.shape}. Reshape them."
        )
    if not cotangents.layout.is_injective:
        raise ValueError(
            f"cannot take a batched grad with cotangents of {cotangents.layout!r}: every coordinate has a slot of its "
            "own. Copy them into a dense layout."
        )
    products = [
        _products(
            output,
            wanted,
            Tensor._make(cotangents._carrier, cotangents._offset + first.index(k), rest),
            retain_graph=retain_graph or k + 1 < first.size,
            allow_unused=allow_unused,
        )
        for k in range(first.size)
    ]
    return tuple(stacked([row[k] for row in products]) for k in range(len(wanted)))


def stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors, all of one shape, as one with a first mode that counts them; it is the slowest in memory."""
    first = tensors[0]
    if first is None:
        return None
    count = len(first.layout.leaves())
    shape = Layout.make_layout(Layout.leaf(len(tensors), 0), *first.layout).shape
    layout = dense_in_order(shape, [*range(1, count + 1), 0])
    whole = torch.stack([values_of(tensor) for tensor in tensors if tensor is not None])
    target = Tensor._make(first._carrier.allocate_like(layout.cosize, dtype=first.dtype()), 0, layout)
    overwrite(target, whole)
    return target
