"""ReferenceExecutor: operations one Python number at a time, as their definitions say."""

from __future__ import annotations

import math

import torch

from strideweave.carriers.carrier import Scalar
from strideweave.carriers.generic import Generic
from strideweave.dtype import DType, StorageDType
from strideweave.operation.call import ResolvedInvocation, ResultSpec, UnsupportedOperationPlan
from strideweave.tensor.tensor import Tensor


class ReferenceExecutor:
    """Runs every operation whose definition has a reference, slowly: what kernels are measured against.

    >>> import strideweave as sw
    >>> from strideweave.operation import ReferenceExecutor, find
    >>> x = sw.Tensor(sw.Generic([1, 2], dtype=sw.DType.Int32), 0, sw.Layout.column_major(2))
    >>> (y,) = ReferenceExecutor().execute(find("neg").resolve_call(x))
    >>> sw.to_list(y)
    [-1, -2]
    """

    def execute(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        """Fresh Generic Tensors. Errors: UnsupportedOperationPlan for a definition without a reference."""
        reference = invocation.definition.reference
        if reference is None:
            raise UnsupportedOperationPlan(
                f"cannot run {invocation.name} on Generic: its definition has no reference. Move the operands to a "
                "carrier that has a kernel."
            )
        results = reference(invocation)
        return tuple(_placed(list(values), spec) for values, spec in zip(results, invocation.results, strict=True))


def _placed(values: list[Scalar], spec: ResultSpec) -> Tensor:
    slots: list[Scalar] = [0] * spec.layout.cosize
    for ordinal, value in enumerate(values):
        slots[spec.layout.index(ordinal)] = as_stored(value, spec.dtype)
    return Tensor(Generic(slots, dtype=spec.dtype), 0, spec.layout)


def as_stored(value: Scalar, dtype: StorageDType) -> Scalar:
    """The number that a slot of `dtype` takes: whole ones wrap modulo two to their bits, as torch's do."""
    if dtype.is_floating:
        return float(value)
    if dtype is DType.Bool:
        return bool(value)
    if isinstance(value, float) and not math.isfinite(value):
        return int(torch.tensor(value).to(dtype.torch_dtype).item())
    limits = torch.iinfo(dtype.torch_dtype)
    return (int(value) - limits.min) % (1 << dtype.bits) + limits.min
