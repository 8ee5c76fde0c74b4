"""Carrier classes made by a definition: values in a Python list, as an author of a small one would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from strideweave import Carrier, DType, Tensor
from strideweave.carriers.extension import (
    CarrierDefinition,
    KernelExecutionInterface,
    KernelPattern,
    KernelProvider,
    PreparedKernel,
    ProviderResult,
    StorageProvider,
    Unsupported,
    register_carrier_definition,
)
from strideweave.dtype import StorageDType
from strideweave.operation import ResolvedInvocation

INTERFACE = KernelExecutionInterface(1)


def list_storage(**changes: Any) -> StorageProvider:
    """Storage in `carrier.values`, with some of its functions exchanged."""
    functions: dict[str, Any] = {
        "supports_dtype": lambda carrier, dtype: True,
        "physical_size": lambda carrier: len(carrier.values),
        "allocate": _allocate,
        "release": lambda carrier: carrier.values.clear(),
        "read": lambda carrier, i: carrier.values[i],
        "write": lambda carrier, i, value: carrier.values.__setitem__(i, value),
    }
    return StorageProvider(**{**functions, **changes})


def _allocate(carrier: Any, n: int) -> None:
    zero = 0.0 if carrier.dtype().is_floating else False if carrier.dtype() is DType.Bool else 0
    carrier.values = [zero] * n


def run_storage(**changes: Any) -> StorageProvider:
    """The same in a torch tensor, with runs."""

    def allocate(carrier: Any, n: int) -> None:
        carrier.values = torch.zeros(n, dtype=carrier.dtype().torch_dtype)

    def release(carrier: Any) -> None:
        carrier.values = carrier.values[:0]

    def read_runs(carrier: Any, runs: Sequence[tuple[int, torch.Tensor]]) -> int:
        for start, out in runs:
            out.copy_(carrier.values[start : start + out.numel()])
        return sum(out.nbytes for _, out in runs)

    def write_runs(carrier: Any, runs: Sequence[tuple[int, torch.Tensor]]) -> int:
        for start, source in runs:
            carrier.values[start : start + source.numel()] = source
        return sum(source.nbytes for _, source in runs)

    functions: dict[str, Any] = {
        "allocate": allocate,
        "release": release,
        "read": lambda carrier, i: carrier.values[i].item(),
        "read_runs": read_runs,
        "write_runs": write_runs,
    }
    return list_storage(**{**functions, **changes})


def defined(storage: StorageProvider | None = None, *, name: str = "Listed", **parts: Any) -> Any:
    """A fresh class with such a definition."""
    cls = type(name, (Carrier,), {})
    register_carrier_definition(cls, CarrierDefinition(storage or list_storage(), **parts))
    return cls


def filled(cls: Any, values: Iterable[Any], *, dtype: StorageDType = DType.Float32) -> Any:
    """A carrier of the class with these values."""
    numbers = list(values)
    carrier = cls(len(numbers), dtype=dtype)
    for k, value in enumerate(numbers):
        carrier[k] = value
    return carrier


def by_reference(invocation: ResolvedInvocation) -> ProviderResult:
    """The results that the definition's reference gives, on carriers of the operands' class."""
    source = next(o for o in invocation.operands if isinstance(o, Tensor)).carrier
    assert invocation.definition.reference is not None
    outputs = []
    for values, spec in zip(invocation.definition.reference(invocation), invocation.results, strict=True):
        made = source.allocate_like(spec.layout.cosize, dtype=spec.dtype)
        for k, value in enumerate(values):
            made[spec.layout.index(k)] = value
        outputs.append(Tensor(made, 0, spec.layout))
    return ProviderResult(outputs)


def kernel(
    plans: Iterable[Any],
    kernel_id: str,
    run: Callable[[ResolvedInvocation], Any] = by_reference,
    *,
    refuses: str | None = None,
    preference: int = 0,
    interface: KernelExecutionInterface = INTERFACE,
) -> KernelPattern:
    """A pattern whose kernel runs `run`, or always refuses."""
    given = list(plans)

    def prepare(invocation: ResolvedInvocation) -> PreparedKernel | Unsupported:
        return Unsupported(refuses) if refuses else PreparedKernel(interface, lambda: run(invocation))

    return KernelPattern(given[0].operation, given, kernel_id, prepare, preference)


def computing(patterns: Iterable[KernelPattern], storage: StorageProvider | None = None, **parts: Any) -> Any:
    """A fresh class with these kernels."""
    return defined(storage, kernels=KernelProvider(INTERFACE, patterns), **parts)
