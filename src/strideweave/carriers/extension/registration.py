"""CarrierDefinition, and the two registrations: of a class, and of more kernels for one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from strideweave.carriers import definition as registry
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.definition import CarrierFacet, Installed, StorageProvider
from strideweave.carriers.extension.composite import CompositeProvider, add_composite
from strideweave.carriers.extension.dependent import DependentCarrier
from strideweave.carriers.extension.executors import CompositeExecutor, KernelExecutor
from strideweave.carriers.extension.kernels import KernelPack, KernelProvider, require_carrier_class
from strideweave.carriers.extension.providers import once
from strideweave.carriers.extension.transfers import TransferRoute, add_route, transfer_route
from strideweave.operation import execution


@final
@dataclass(frozen=True, slots=True)
class CarrierDefinition:
    """What a class of carriers is: how it stores, and if it can, how it computes, moves and what else it does.

    Errors: TypeError for wrong kinds; ValueError ("duplicate exact transfer routes", "duplicate exact facet types").

    >>> from strideweave.carriers.extension import CarrierDefinition
    >>> CarrierDefinition(storage=None)
    Traceback (most recent call last):
    TypeError: cannot make a CarrierDefinition with None: storage must be a StorageProvider. Pass one.
    """

    storage: StorageProvider
    """How it stores."""
    kernels: KernelProvider | None = None
    """How an independent class computes; None for one that only stores."""
    transfers: tuple[TransferRoute, ...] = ()
    """The routes that begin or end at the class."""
    composite: CompositeProvider | None = None
    """How a dependent class computes."""
    facets: tuple[CarrierFacet, ...] = ()
    """What else it can do: one instance of each type."""

    def __init__(
        self,
        storage: StorageProvider,
        kernels: KernelProvider | None = None,
        transfers: Iterable[TransferRoute] = (),
        composite: CompositeProvider | None = None,
        facets: Iterable[CarrierFacet] = (),
    ) -> None:
        routes, marks = once(transfers, "transfers"), once(facets, "facets")
        _require_kind(storage, StorageProvider, "storage")
        if kernels is not None:
            _require_kind(kernels, KernelProvider, "kernels")
        for route in routes:
            _require_kind(route, TransferRoute, "transfers")
        if composite is not None:
            _require_kind(composite, CompositeProvider, "composite")
        for mark in marks:
            _require_kind(mark, CarrierFacet, "facets")
        if len({route.pair for route in routes}) != len(routes):
            pairs = ", ".join(f"({a.__name__}, {b.__name__})" for a, b in (route.pair for route in routes))
            raise ValueError(
                f"cannot make a CarrierDefinition with routes {pairs}: duplicate exact transfer routes. A pair of "
                "classes has one. Drop the others."
            )
        if len({type(mark) for mark in marks}) != len(marks):
            raise ValueError(
                f"cannot make a CarrierDefinition with facets {', '.join(type(m).__name__ for m in marks)}: duplicate "
                "exact facet types. A type has one instance. Drop the others."
            )
        for name, value in (
            ("storage", storage),
            ("kernels", kernels),
            ("transfers", routes),
            ("composite", composite),
            ("facets", marks),
        ):
            object.__setattr__(self, name, value)


def register_carrier_definition(cls: type[Carrier], definition: CarrierDefinition) -> None:
    """From now on exactly this class is what the definition says; `cls(slots, dtype=..., mutable=True)` makes carriers.

    Register right after the class statement: the first carrier, or the first question what it computes, seals a class.

    Errors: TypeError for wrong kinds, a class that is shipped, sealed or defined already or has capabilities that were
    registered by hand, and for a definition of the other kind (kernels for a dependent class, a composite for an
    independent one); ValueError for a route that somebody else has defined, or that passes the class by. Nothing has
    changed then.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import CarrierDefinition, StorageProvider, register_carrier_definition
    >>> class Listed(sw.Carrier):
    ...     values: list
    >>> register_carrier_definition(Listed, CarrierDefinition(StorageProvider(
    ...     supports_dtype=lambda carrier, dtype: True,
    ...     physical_size=lambda carrier: len(carrier.values),
    ...     allocate=lambda carrier, n: setattr(carrier, "values", [0] * n),
    ...     release=lambda carrier: carrier.values.clear(),
    ...     read=lambda carrier, i: carrier.values[i],
    ...     write=lambda carrier, i, value: carrier.values.__setitem__(i, value),
    ... )))
    >>> c = Listed(3, dtype=sw.DType.Int32)
    >>> c[1] = 7
    >>> [c[k] for k in range(3)], c.version
    ([0, 7, 0], 1)
    """
    require_carrier_class(cls, "the class of a definition")
    if not isinstance(definition, CarrierDefinition):
        raise TypeError(f"cannot define {cls.__name__} by {definition!r}: it takes a CarrierDefinition. Pass one.")
    with registry.lock:
        _require_free(cls)
        is_dependent = issubclass(cls, DependentCarrier)
        _require_fitting(cls, definition, is_dependent=is_dependent)
        for route in definition.transfers:
            _require_route(cls, route)
        facets = MappingProxyType({type(facet): facet for facet in definition.facets})
        registry.install(cls, Installed(definition.storage, facets, is_dependent))
        for route in definition.transfers:
            add_route(route)
        if definition.kernels is not None:
            kernels = definition.kernels
            _kernel_executors[cls] = KernelExecutor(cls, kernels.interface, kernels.patterns)
            if kernels.patterns:
                execution.register_executor(cls, _kernel_executors[cls])
        if definition.composite is not None:
            add_composite(cls, definition.composite)
            execution.register_executor(cls, CompositeExecutor(cls, definition.composite))


def register_kernel_pack(pack: KernelPack) -> None:
    """From now on the kernels of the pack are asked too; carriers of the class may exist already.

    Errors: TypeError for no pack, for a class without a definition of its own, a DependentCarrier, and for another
    interface than that of the class; ValueError for a namespace and version, or a kernel_id, that is there already.

    >>> from strideweave.carriers.extension import register_kernel_pack
    >>> register_kernel_pack("fast")
    Traceback (most recent call last):
    TypeError: ...
    """
    if not isinstance(pack, KernelPack):
        raise TypeError(f"cannot register {pack!r}: it must be a KernelPack. Pass one.")
    cls = pack.carrier_class
    name = f"{pack.namespace} {pack.version}"
    with registry.lock:
        if issubclass(cls, DependentCarrier):
            raise TypeError(
                f"cannot register pack {name} for {cls.__name__}: it is a DependentCarrier, which computes by the "
                "carriers that it is made of. Register the pack for their class."
            )
        if not registry.is_defined(cls):
            raise TypeError(
                f"cannot register pack {name} for {cls.__name__}: the class has no exact CarrierDefinition, and none "
                "is inherited. Define it first."
            )
        executor = _kernel_executors.get(cls)
        if executor is None:
            raise TypeError(
                f"cannot register pack {name} for {cls.__name__}: its interface does not match, since the definition "
                "has no kernels and so no KernelExecutionInterface. Define the class with a KernelProvider."
            )
        if pack.execution_interface.compatibility_identity != executor.interface.compatibility_identity:
            raise TypeError(
                f"cannot register pack {name} for {cls.__name__}: its interface {pack.execution_interface!r} does not "
                f"match {executor.interface!r}. Use a pack that is made for it."
            )
        executor.add(pack)
        execution.register_executor(cls, executor)


_kernel_executors: dict[type[Carrier], KernelExecutor] = {}


def _require_free(cls: type[Carrier]) -> None:
    """The class can still be defined."""
    full = registry.qualified(cls)
    wrong = None
    if full in registry.CLOSED - registry.DEFINED_HERE:
        wrong = "it is a definition-free shipped carrier, and stays one. Define a class of your own"
    elif registry.is_defined(cls):
        wrong = "it already has a CarrierDefinition. A class has one. Define another class"
    elif cls is Carrier or cls is DependentCarrier:
        wrong = "it is the base of others. A definition is for exactly one class. Subclass it"
    elif registry.declared(cls) is not None:
        wrong = "it already has operation capabilities registered by hand. A definition says these. Drop that call"
    elif registry.is_observed(cls):
        wrong = "it was already observed, by its first construction or a question about it. Define it before that"
    if wrong is not None:
        raise TypeError(f"cannot define {cls.__name__}: {wrong}.")


def _require_fitting(cls: type[Carrier], definition: CarrierDefinition, *, is_dependent: bool) -> None:
    wrong = None
    if not is_dependent and definition.composite is not None:
        wrong = "an independent class must not supply a composite. Leave it out, or subclass DependentCarrier"
    elif is_dependent and definition.kernels is not None:
        wrong = "a DependentCarrier forbids kernels: it computes by the carriers it is made of. Pass a composite"
    elif is_dependent and definition.composite is None:
        wrong = "a DependentCarrier requires composite: it computes by the carriers it is made of. Pass one"
    if wrong is not None:
        raise TypeError(f"cannot define {cls.__name__}: {wrong}.")


def _require_route(cls: type[Carrier], route: TransferRoute) -> None:
    source, destination = route.pair
    pair = f"({source.__name__}, {destination.__name__})"
    if cls not in route.pair:
        raise ValueError(
            f"cannot define {cls.__name__} with route {route.route_id} {pair}: a route of a definition begins or "
            "ends at its class. Put it where it belongs."
        )
    if transfer_route(source, destination) is not None:
        raise ValueError(
            f"cannot define {cls.__name__} with route {route.route_id} {pair}: duplicate exact transfer routes, since "
            "another definition has that pair. Drop one of them."
        )


def _require_kind(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"cannot make a CarrierDefinition with {value!r}: {name} must be a {kind.__name__}. Pass one.")
