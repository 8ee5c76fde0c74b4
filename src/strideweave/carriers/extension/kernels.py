"""Kernels of a defined class: which plans each takes, and how it is prepared for a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.extension.providers import (
    ProviderCompletion,
    ProviderResult,
    Unsupported,
    once,
    require_callable,
    require_text,
)
from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.plan import OperationPlan

Version: TypeAlias = "int | str"


@dataclass(frozen=True, slots=True)
class KernelExecutionInterface:
    """How kernels of a class reach its storage, as a version: packs are made for one, and refused by another.

    Subclass it for an interface of your own: the type is a part of its identity.

    Errors: TypeError for a version that is no int or str.

    >>> from strideweave.carriers.extension import KernelExecutionInterface
    >>> KernelExecutionInterface(1).compatibility_identity == KernelExecutionInterface(2).compatibility_identity
    False
    """

    version: Version
    """Which version of the interface."""

    def __post_init__(self) -> None:
        require_version(self.version)

    @property
    def compatibility_identity(self) -> tuple[type, Version]:
        """What is equal for interfaces that fit together: exact type and version."""
        return type(self), self.version


@final
@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """A kernel that is ready for one call: `submit()` gives a ProviderResult, or a ProviderCompletion of one.

    Errors: TypeError for wrong kinds.

    >>> from strideweave.carriers.extension import KernelExecutionInterface, PreparedKernel
    >>> PreparedKernel(KernelExecutionInterface(1), submit=None)
    Traceback (most recent call last):
    TypeError: ...submit must be callable...
    """

    interface: KernelExecutionInterface
    """The interface that it was made for."""
    submit: Callable[[], ProviderResult | ProviderCompletion]
    """Run, or begin; called once at most."""

    def __post_init__(self) -> None:
        require_interface(self.interface, "PreparedKernel")
        require_callable(self, "submit")


Prepare: TypeAlias = Callable[[ResolvedInvocation], PreparedKernel | Unsupported]


@final
@dataclass(frozen=True, slots=True)
class KernelPattern:
    """A kernel for some plans of one operation.

    `prepare(invocation)` looks at the call and returns a PreparedKernel, or Unsupported with the reason: then the next
    pattern is asked. It changes nothing and computes nothing. What it raises ends the call.

    Errors: TypeError for wrong kinds; ValueError for no plans, for one of another operation, or an empty name.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import KernelPattern, Unsupported
    >>> from strideweave.carriers.operation_policy import resolve_operation_plan
    >>> plan = resolve_operation_plan("relu", sw.DType.Float32)
    >>> KernelPattern("relu", [plan], "lab.relu", lambda invocation: Unsupported("never")).preference
    0
    """

    operation: str
    """The name of the operation."""
    plans: tuple[OperationPlan, ...]
    """The plans that it takes; an iterable is read once."""
    kernel_id: str
    """Its name in messages, unique for the class."""
    prepare: Prepare
    """From a call to prepared work."""
    preference: int = 0
    """The highest is asked first."""

    def __init__(
        self, operation: str, plans: Iterable[OperationPlan], kernel_id: str, prepare: Prepare, preference: int = 0
    ) -> None:
        require_text(operation, "the operation of a KernelPattern")
        require_text(kernel_id, "a kernel_id")
        given = once(plans, "plans")
        for plan in given:
            if not isinstance(plan, OperationPlan):
                raise TypeError(f"cannot take {plan!r} as a plan of {kernel_id}: it is no OperationPlan. Pass one.")
            if plan.operation != operation:
                raise ValueError(
                    f"cannot take a plan of {plan.operation!r} for {kernel_id}: its operation is {operation!r}. A "
                    "pattern is for one operation. Make another pattern."
                )
        if not given:
            raise ValueError(f"cannot make pattern {kernel_id} without plans: nothing would reach it. Pass plans.")
        if isinstance(preference, bool) or not isinstance(preference, int):
            raise TypeError(f"cannot prefer {kernel_id} by {preference!r}: preference must be an integer. Pass an int.")
        for name, value in (
            ("operation", operation),
            ("plans", tuple(dict.fromkeys(given))),
            ("kernel_id", kernel_id),
            ("prepare", prepare),
            ("preference", preference),
        ):
            object.__setattr__(self, name, value)
        require_callable(self, "prepare")


@final
@dataclass(frozen=True, slots=True)
class KernelProvider:
    """The kernels that a definition brings, and the interface that packs for its class are made for.

    Errors: TypeError for wrong kinds; ValueError for a kernel_id that occurs twice.

    >>> from strideweave.carriers.extension import KernelExecutionInterface, KernelProvider
    >>> KernelProvider(KernelExecutionInterface(1)).patterns
    ()
    """

    interface: KernelExecutionInterface
    """How kernels reach the storage."""
    patterns: tuple[KernelPattern, ...] = ()
    """The kernels, in the order in which equal preferences are asked."""

    def __init__(self, interface: KernelExecutionInterface, patterns: Iterable[KernelPattern] = ()) -> None:
        require_interface(interface, "KernelProvider")
        object.__setattr__(self, "interface", interface)
        object.__setattr__(self, "patterns", require_patterns(patterns))


@final
@dataclass(frozen=True, slots=True)
class KernelPack:
    """More kernels for a class that somebody else defined; asked after the class's own of the same preference.

    Errors: TypeError for wrong kinds; ValueError for an empty namespace or a kernel_id that occurs twice.

    >>> from strideweave.carriers.extension import KernelPack
    >>> [field for field in KernelPack.__dataclass_fields__]
    ['namespace', 'version', 'carrier_class', 'execution_interface', 'patterns']
    """

    namespace: str
    """Whose pack it is."""
    version: Version
    """Which version of it; with the namespace unique, and what orders packs."""
    carrier_class: type[Carrier]
    """The exact class that it is for."""
    execution_interface: KernelExecutionInterface
    """The interface that its kernels are made for."""
    patterns: tuple[KernelPattern, ...]
    """Its kernels."""

    def __init__(
        self,
        namespace: str,
        version: Version,
        carrier_class: type[Carrier],
        execution_interface: KernelExecutionInterface,
        patterns: Iterable[KernelPattern],
    ) -> None:
        require_text(namespace, "the namespace of a KernelPack")
        require_version(version)
        require_carrier_class(carrier_class, "carrier_class")
        require_interface(execution_interface, "KernelPack")
        for name, value in (
            ("namespace", namespace),
            ("version", version),
            ("carrier_class", carrier_class),
            ("execution_interface", execution_interface),
            ("patterns", require_patterns(patterns)),
        ):
            object.__setattr__(self, name, value)

    @property
    def order(self) -> tuple[Any, ...]:
        """What packs are sorted by: namespace, then version, numbers before texts."""
        return self.namespace, isinstance(self.version, str), self.version


def require_patterns(patterns: Iterable[KernelPattern]) -> tuple[KernelPattern, ...]:
    """The patterns, read once, each with a kernel_id of its own."""
    given = once(patterns, "patterns")
    for pattern in given:
        if not isinstance(pattern, KernelPattern):
            raise TypeError(f"cannot take {pattern!r} as a kernel: patterns are KernelPatterns. Pass one.")
    require_distinct([pattern.kernel_id for pattern in given])
    return given


def require_distinct(kernel_ids: list[str]) -> None:
    """Nothing, when no kernel_id occurs twice."""
    for kernel_id in kernel_ids:
        if kernel_ids.count(kernel_id) > 1:
            raise ValueError(
                f"cannot take two kernels {kernel_id!r}: a kernel_id is unique for its class. Rename one of them."
            )


def require_interface(interface: object, what: str) -> None:
    """Nothing, when it is an interface."""
    if not isinstance(interface, KernelExecutionInterface):
        raise TypeError(
            f"cannot make a {what} for {interface!r}: its interface must be a KernelExecutionInterface. Pass one."
        )


def require_version(version: object) -> None:
    """Nothing, when it is an int or a text."""
    if isinstance(version, bool) or not isinstance(version, int | str):
        raise TypeError(f"cannot take {version!r} as a version: it must be an int or a str. Pass one.")


def require_carrier_class(cls: object, what: str) -> None:
    """Nothing, when it is a class of carriers."""
    if not (isinstance(cls, type) and issubclass(cls, Carrier)):
        raise TypeError(f"cannot take {cls!r} as {what}: it must be a Carrier class. Pass one.")
