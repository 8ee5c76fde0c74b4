"""Composites: operations on carriers that are made of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.extension.providers import PreparedComposite, Unsupported, require_callable
from strideweave.carriers.operation_capability import OperationCapability
from strideweave.operation.call import ResolvedInvocation
from strideweave.tensor.tensor import Tensor

PrepareComposite: TypeAlias = Callable[[ResolvedInvocation], PreparedComposite | Unsupported]


@final
@dataclass(frozen=True, slots=True)
class CompositeProvider:
    """How carriers of a dependent class compute.

    `capabilities(carrier)` gives what one carrier can run; it is asked once, when the carrier is made.
    `result_carriers(invocation)` gives the exact carrier class of every result. `prepare(invocation)` checks every
    operand and returns a PreparedComposite, or Unsupported with the reason; it changes nothing. `gradient(context,
    *cotangents)`, if given, takes the place of the definition's VJP for what was computed here: one entry for every
    operand, or None to leave this call to the definition.

    Errors: TypeError ("must be callable").

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import CompositeProvider, Unsupported
    >>> provider = CompositeProvider(
    ...     capabilities=lambda carrier: (),
    ...     result_carriers=lambda invocation: (sw.CPU,),
    ...     prepare=lambda invocation: Unsupported("it only stores"),
    ... )
    >>> provider.gradient is None
    True
    """

    capabilities: Callable[[Any], Iterable[OperationCapability]]
    """What one carrier can run."""
    result_carriers: Callable[[ResolvedInvocation], Sequence[type[Carrier]]]
    """The class of every result."""
    prepare: PrepareComposite
    """From a call to prepared work."""
    gradient: Callable[..., Sequence[Tensor | None] | None] | None = None
    """The gradient of what was computed here; None for the definitions' own."""

    def __post_init__(self) -> None:
        for name in ("capabilities", "result_carriers", "prepare"):
            require_callable(self, name)
        if self.gradient is not None:
            require_callable(self, "gradient")


_composites: dict[type, CompositeProvider] = {}


def add_composite(cls: type[Carrier], composite: CompositeProvider) -> None:
    """The class computes like this. Whoever calls this has checked it, under `definition.lock`."""
    _composites[cls] = composite


def composite_of(cls: type[Carrier]) -> CompositeProvider | None:
    """How exactly this class computes; None when it was not defined so."""
    return _composites.get(cls)
