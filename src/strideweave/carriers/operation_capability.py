"""What each carrier class can compute: capabilities, which mirror plans, and the questions about them.

Whoever runs operations on a class answers for it. An executor may have more than `execute`: `capabilities(cls)`, the
plans that it runs, and `unsupported_reason(cls, plan)`, None for those. For one that does not, what was registered by
hand counts. An Evictable can what its primary can.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Self, final

from strideweave.carriers import definition, ports
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.evictable import Evictable
from strideweave.carriers.operation_policy import resolvable_plans
from strideweave.dtype import StorageDType
from strideweave.operation import execution, views
from strideweave.operation.call import UnsupportedOperationPlan
from strideweave.operation.definition import OperationDefinition, definitions, find
from strideweave.operation.node import Operation
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperationPlan
from strideweave.operation.reference import ReferenceExecutor
from strideweave.operation.torch_executor import TorchExecutor

_VIEWS: Final = frozenset(
    value.name for value in vars(views).values() if isinstance(value, OperationDefinition) and value.reference is None
)
"""The operations for which nothing runs: they are there on every ordinary carrier."""


@final
@dataclass(frozen=True, slots=True)
class OperationCapability:
    """One plan that a carrier runs, field by field. Capabilities are compared by value.

    >>> from strideweave import DType
    >>> from strideweave.carriers.operation_capability import OperationCapability
    >>> from strideweave.carriers.operation_policy import resolve_operation_plan
    >>> plan = resolve_operation_plan("add", DType.Float32, DType.Float32)
    >>> OperationCapability.from_plan(plan).matches(plan)
    True
    """

    operation: str
    """The name of the operation."""
    operands: tuple[OperandPlan, ...]
    """One for every tensor or scalar operand, in order."""
    compute: Arithmetic
    """The numbers in which values are computed."""
    accumulation: Accumulation
    """The numbers in which sums are kept."""
    accumulator_dtype: StorageDType | None
    """The dtype that is asked for the sums, if any."""
    output: StorageDType
    """The dtype of the (first) result."""

    @classmethod
    def from_plan(cls, plan: OperationPlan) -> Self:
        """The capability to run exactly that plan. Errors: TypeError for no plan."""
        require_plan(plan)
        return cls(*(getattr(plan, one.name) for one in fields(cls)))

    def matches(self, plan: OperationPlan) -> bool:
        """Whether it is the capability to run exactly that plan. Errors: TypeError for no plan."""
        return OperationCapability.from_plan(plan) == self


def capabilities_for_carrier_class(cls: type[Carrier], name: str | None = None) -> tuple[OperationCapability, ...]:
    """What carriers of exactly this class can run, of one operation or of all; the class is sealed from now on.

    Shipped classes in memory run every plan of each operation that has a kernel there; their capabilities are the
    plans that dtypes alone decide (`resolvable_plans`), and `supports_operation_plan` knows the others too.

    Errors: TypeError for no class, or one whose carriers are made of others: these are asked one by one;
    NotImplementedError for an unknown name.

    >>> from strideweave import CPU, FileBacked
    >>> from strideweave.carriers.operation_capability import capabilities_for_carrier_class
    >>> len(capabilities_for_carrier_class(CPU, "relu")), capabilities_for_carrier_class(FileBacked)
    (11, ())
    """
    _require_class(cls)
    if name is not None:
        find(name)
    definition.observe(cls)
    found = [*(definition.declared(cls) or ()), *_computed(cls, name)]
    return tuple(dict.fromkeys(c for c in found if name is None or c.operation == name))


def supports_operation_plan(cls: type[Carrier], plan: OperationPlan) -> bool:
    """Whether carriers of exactly this class can run the plan. Errors: as `capabilities_for_carrier_class`.

    >>> from strideweave import CPU, DType
    >>> from strideweave.carriers.operation_capability import supports_operation_plan
    >>> from strideweave.carriers.operation_policy import resolve_operation_plan
    >>> supports_operation_plan(CPU, resolve_operation_plan("add", DType.Int8, float))
    True
    """
    return unsupported_reason(cls, plan) is None


def require_capability(cls: type[Carrier], plan: OperationPlan) -> None:
    """Nothing, when carriers of exactly this class can run the plan.

    Errors: UnsupportedOperationPlan with the reason; as `capabilities_for_carrier_class`.

    >>> from strideweave import CPU, DType
    >>> from strideweave.carriers.operation_capability import require_capability
    >>> from strideweave.carriers.operation_policy import resolve_operation_plan
    >>> require_capability(CPU, resolve_operation_plan("relu", DType.Float32))
    """
    require_supported(cls, plan, unsupported_reason(cls, plan))


def register_operation_capabilities(cls: type[Carrier], capabilities: Iterable[OperationCapability]) -> None:
    """From now on carriers of exactly this class, which has no definition, say that they can run these too.

    Who runs them is said by `strideweave.operation.register_executor`.

    Errors: TypeError for wrong kinds, a shipped class, or one with a CarrierDefinition, whose kernels say it instead.

    >>> from strideweave import Carrier, DType
    >>> from strideweave.carriers.operation_capability import *
    >>> from strideweave.carriers.operation_policy import resolve_operation_plan
    >>> class Remote(Carrier):
    ...     "Slots on another machine, which adds them up there."
    >>> plan = resolve_operation_plan("relu", DType.Float32)
    >>> register_operation_capabilities(Remote, [OperationCapability.from_plan(plan)])
    >>> supports_operation_plan(Remote, plan)
    True
    """
    _require_class(cls)
    given = tuple(capabilities)
    for capability in given:
        if not isinstance(capability, OperationCapability):
            raise TypeError(
                f"cannot register {capability!r} for {cls.__name__}: it must be an OperationCapability. Use from_plan."
            )
    if definition.qualified(cls) in definition.CLOSED:
        raise TypeError(
            f"cannot register operation capabilities for {cls.__name__}: shipped carrier classes know theirs. "
            "Register them for a class of your own."
        )
    definition.declare(cls, given)


def unsupported_reason(cls: type[Carrier], plan: OperationPlan) -> str | None:
    """Why carriers of exactly this class cannot run the plan; None when they can."""
    _require_class(cls)
    require_plan(plan)
    definition.observe(cls)
    if plan.operation in _VIEWS or OperationCapability.from_plan(plan) in (definition.declared(cls) or ()):
        return None
    executor = execution.executor_of(cls)
    known = definitions().get(plan.operation)
    if known is None:
        return f"there is no operation {plan.operation!r}"
    if executor is None:
        return f"{cls.__name__} only stores, and computes nothing; carriers that compute are {execution.names()}"
    if isinstance(executor, TorchExecutor):
        return None if executor.supports(plan.operation) else f"{cls.__name__} has no kernel for {plan.operation}"
    if isinstance(executor, ReferenceExecutor):
        return None if known.reference is not None else f"{plan.operation} has no reference for {cls.__name__} to run"
    ask = getattr(executor, "unsupported_reason", None)
    if ask is None:
        return f"{cls.__name__} has no such capability registered"
    reason: str | None = ask(cls, plan)
    return reason


def require_supported(cls: type[Carrier], plan: OperationPlan, reason: str | None) -> None:
    """Nothing, when there is no reason against it."""
    if reason is not None:
        raise UnsupportedOperationPlan(
            f"cannot run {plan.operation} giving {plan.output.name} on {cls.__name__}: {reason}. Move the operands to "
            "a carrier that can, or register a kernel."
        )


def require_plan(plan: object) -> None:
    """Nothing, when it is a plan."""
    if not isinstance(plan, OperationPlan):
        raise TypeError(f"cannot ask about {plan!r}: it must be an OperationPlan. Use resolve_operation_plan.")


def _computed(cls: type[Carrier], name: str | None) -> Iterable[OperationCapability]:
    """The capabilities that follow from whoever runs operations on the class."""
    executor: Any = execution.executor_of(cls)
    if isinstance(executor, TorchExecutor | ReferenceExecutor):
        names = [name] if name is not None else sorted(definitions())
        return [
            OperationCapability.from_plan(plan)
            for one in names
            if one not in _VIEWS
            for plan in resolvable_plans(one)
            if unsupported_reason(cls, plan) is None
        ]
    ask = getattr(executor, "capabilities", None)
    return () if ask is None else [OperationCapability.from_plan(plan) for plan in ask(cls)]


def _require_class(cls: object) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Carrier)):
        raise TypeError(f"cannot ask what {cls!r} computes: it must be a Carrier class. Pass one.")
    if cls is Evictable or getattr(cls, "_has_own_capabilities", False):
        raise TypeError(
            f"cannot ask what every {cls.__name__} computes: it is a DependentCarrier, or like one made of others, "
            "which differ. Ask one of its carriers: carrier.operation_capabilities()."
        )


def _dispatched(cls: type[Carrier], name: str) -> Operation:
    return Operation(find(name), cls)


def _own_capabilities(carrier: Carrier, name: str | None) -> tuple[OperationCapability, ...]:
    return capabilities_for_carrier_class(_computing_class(carrier), name)


def _own_reason(carrier: Carrier, plan: OperationPlan) -> str | None:
    return unsupported_reason(_computing_class(carrier), plan)


def _computing_class(carrier: Carrier) -> type[Carrier]:
    """The class whose kernels run operations on the carrier."""
    return type(carrier.primary) if isinstance(carrier, Evictable) else type(carrier)


ports.bind(
    {
        "dispatch_op": _dispatched,
        "capabilities": _own_capabilities,
        "unsupported_reason": _own_reason,
        "require_plan": require_supported,
    }
)
