"""DependentCarrier: a carrier made of others, which can compute what these can."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from strideweave.carriers import definition
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.extension.composite import composite_of
from strideweave.carriers.operation_capability import OperationCapability, require_plan
from strideweave.operation.definition import find


class DependentCarrier(Carrier):
    """A carrier made of other carriers: what it can compute is said by each instance, and frozen at its construction.

    The constructor of a subclass takes the others over, calls `super().__init__(dtype=..., mutable=...)`, and ends with
    `_finalize_dependent_capabilities()`. A defined class has a CompositeProvider that gives the capabilities; another
    one overrides `_generate_operation_capabilities`.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import DependentCarrier
    >>> issubclass(DependentCarrier, sw.Carrier)
    True
    """

    _has_own_capabilities: ClassVar[bool] = True
    _capabilities: tuple[OperationCapability, ...] | None = None

    def _is_dependent(self) -> bool:
        return True

    def _generate_operation_capabilities(self) -> Iterable[OperationCapability]:
        """What this carrier can compute; overridden by classes without a definition."""
        raise NotImplementedError(
            f"cannot say what {type(self).__name__} computes: it has no CarrierDefinition, so it overrides "
            "_generate_operation_capabilities. Override it, or register a definition with a CompositeProvider."
        )

    def _finalize_dependent_capabilities(self) -> None:
        """What this carrier can compute is settled: the last step of its construction.

        Errors: RuntimeError the second time; TypeError for what are no capabilities, or a dtype that is not supported.
        """
        if self._capabilities is not None:
            raise RuntimeError(
                f"cannot finalize {self!r} again: its capabilities are frozen. Once, as the last step of construction."
            )
        if definition.is_defined(type(self)) and not self._supports_storage_dtype(self._dtype):
            raise TypeError(
                f"cannot make a {type(self).__name__}: it does not support storage dtype {self._dtype.name}. Make it "
                "of carriers of another dtype."
            )
        composite = composite_of(type(self))
        given: Any = self._generate_operation_capabilities() if composite is None else composite.capabilities(self)
        frozen = tuple(dict.fromkeys(given))
        for capability in frozen:
            if not isinstance(capability, OperationCapability):
                raise TypeError(
                    f"cannot take {capability!r} as a capability of {type(self).__name__}: it must be an "
                    "OperationCapability. Use OperationCapability.from_plan."
                )
        self._capabilities = frozen

    def operation_capabilities(self, name: str | None = None) -> tuple[OperationCapability, ...]:
        """What this very carrier can compute, of one operation or of all; after release too.

        Errors: RuntimeError before its construction is over; NotImplementedError for an unknown name.
        """
        if name is not None:
            find(name)
        found = self._capabilities
        if found is None:
            raise RuntimeError(
                f"cannot say what {type(self).__name__} computes: its capabilities are not final. Its constructor ends "
                "with _finalize_dependent_capabilities()."
            )
        return found if name is None else tuple(c for c in found if c.operation == name)

    def unsupported_plan_reason(self, plan: Any) -> str | None:
        """Why this very carrier cannot run the plan; None when it can. Errors: TypeError for no plan."""
        require_plan(plan)
        same = [c for c in self.operation_capabilities() if c.operation == plan.operation]
        if not same:
            return f"{type(self).__name__} does not run {plan.operation}"
        if OperationCapability.from_plan(plan) in same:
            return None
        return f"none of its {len(same)} plans of {plan.operation} has these dtypes"
