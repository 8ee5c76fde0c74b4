"""What a VJP's entry is made into: a gradient of the operand's own shape and dtype."""

from __future__ import annotations

from strideweave.layout import Layout, Shape
from strideweave.operation import dispatch
from strideweave.operation.alignment import align, with_strides
from strideweave.operation.call import ProviderContractError
from strideweave.tensor.tensor import Tensor


def conform(entry: Tensor, operand: Tensor, *, name: str) -> Tensor:
    """`entry`, summed where the operand was broadcast, in the operand's dtype.

    Errors: ProviderContractError for what has neither the operand's shape nor one that it widens to.
    """
    if not isinstance(entry, Tensor):
        raise ProviderContractError(
            f"cannot run the backward of {name}: its vjp gave {type(entry).__name__} as a gradient. It gives a Tensor "
            "or None. Mend the vjp."
        )
    if entry._layout.shape != operand._layout.shape:
        entry = sum_to(entry, operand._layout.shape, name=name)
    if entry.dtype() is not operand.dtype():
        from strideweave.operation.pointwise import CONVERT

        result: Tensor = dispatch.run(CONVERT, (entry,), {"dtype": operand.dtype()})
        return result
    return entry


def sum_to(entry: Tensor, shape: Shape, *, name: str) -> Tensor:
    """The sum of `entry` over every leaf by which `shape` was widened."""
    from strideweave.operation.reduction import REDUCE_SUM

    counting = with_strides(shape, [1] * len(shape.leaves()))
    try:
        common, (_, widened) = align([entry.layout, counting], name=name)
    except ValueError:
        common, widened = None, counting
    if common != entry.shape:
        raise ProviderContractError(
            f"cannot run the backward of {name}: its vjp gave a gradient of shape {entry.shape} for an operand of "
            f"{shape}. It has the operand's shape, or one that this widens to. Mend the vjp."
        )
    # Where the operand was widened its stride is 0, though it is 1 everywhere else.
    summed = tuple(k for k, (n, d) in enumerate(widened.leaves()) if d == 0 and n > 1)
    if summed:
        entry = dispatch.run(REDUCE_SUM, (entry,), {"leaves": summed, "keepdims": True})
    return Tensor._make(entry._carrier, entry._offset, _narrowed(entry.layout, shape))


def _narrowed(layout: Layout, shape: Shape) -> Layout:
    """The layout of `shape` over the leaves of `layout` that are wider than 1."""
    strides = iter([d for n, d in layout.leaves() if n > 1])
    return with_strides(shape, [next(strides) if n > 1 else 0 for n in shape.leaves()])
