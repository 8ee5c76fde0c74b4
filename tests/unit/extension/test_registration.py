"""What can be registered for which class, when, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import pytest

import strideweave as sw
from strideweave import Carrier, DType
from strideweave.carriers.definition import CLOSED, is_defined
from strideweave.carriers.extension import (
    CarrierDefinition,
    CompositeProvider,
    DependentCarrier,
    KernelExecutionInterface,
    KernelPack,
    KernelProvider,
    TransferProvider,
    TransferRoute,
    Unsupported,
    elementwise_fallback,
    register_carrier_definition,
    register_kernel_pack,
    transfer_route,
)
from strideweave.carriers.operation_capability import (
    OperationCapability,
    capabilities_for_carrier_class,
    register_operation_capabilities,
)
from strideweave.carriers.operation_policy import resolve_operation_plan
from support.defined import INTERFACE, computing, defined, kernel, list_storage

RELU = resolve_operation_plan("relu", DType.Float32)
NEG = resolve_operation_plan("neg", DType.Float32)
COMPOSITE = CompositeProvider(lambda carrier: (), lambda invocation: (), lambda invocation: Unsupported("never"))


def fresh(base: type = Carrier) -> Any:
    return type("Fresh", (base,), {})


def route(source: Any, destination: Any) -> TransferRoute:
    return TransferRoute(source, destination, "lab.copy", TransferProvider(lambda request: Unsupported("never")))


def test_definition_of_what_is_no_class_or_definition_is_refused() -> None:
    definition = CarrierDefinition(list_storage())
    for wrong in (int, sw.CPU(1), None):
        with pytest.raises(TypeError, match="Carrier class"):
            register_carrier_definition(wrong, definition)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(TypeError, match="CarrierDefinition"):
        register_carrier_definition(fresh(), list_storage())  # type: ignore[arg-type]  # what is refused
    for base in (Carrier, DependentCarrier):
        with pytest.raises(TypeError, match="base of others"):
            register_carrier_definition(base, definition)


def test_definition_twice_is_refused() -> None:
    cls = defined()
    with pytest.raises(TypeError, match="already has a CarrierDefinition"):
        register_carrier_definition(cls, CarrierDefinition(list_storage()))


@pytest.mark.parametrize("name", ["CPU", "FileBacked", "Generic", "CheckpointFile"])
def test_definition_of_a_shipped_class_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="definition-free shipped carrier"):
        register_carrier_definition(getattr(sw, name), CarrierDefinition(list_storage()))


def test_every_closed_name_is_a_class() -> None:
    for full in CLOSED:
        module, _, name = full.rpartition(".")
        assert issubclass(getattr(__import__(module, fromlist=[name]), name), Carrier)


def test_definition_after_a_question_is_refused() -> None:
    cls = fresh()
    assert capabilities_for_carrier_class(cls) == ()
    with pytest.raises(TypeError, match="already observed"):
        register_carrier_definition(cls, CarrierDefinition(list_storage()))
    assert not is_defined(cls)


def test_definition_after_a_construction_is_refused() -> None:
    hooks = {name: lambda self, *_, **__: 0 for name in ("size", "_read_runs", "_write_runs", "_allocate", "_free")}
    cls: Any = type("Hooked", (Carrier,), {**hooks, "allocate_like": lambda self, *_, **__: self})
    cls(dtype=DType.Float32)
    with pytest.raises(TypeError, match="already observed"):
        register_carrier_definition(cls, CarrierDefinition(list_storage()))


def test_definition_after_a_refused_construction_is_possible() -> None:
    cls = fresh()
    with pytest.raises(TypeError, match="definition-free Carrier construction"):
        cls(1, dtype=DType.Float32)
    register_carrier_definition(cls, CarrierDefinition(list_storage()))
    assert cls(1, dtype=DType.Float32).size() == 1


def test_definition_and_capabilities_by_hand_exclude_each_other() -> None:
    capability = OperationCapability.from_plan(RELU)
    by_hand = fresh()
    register_operation_capabilities(by_hand, [capability])
    assert capabilities_for_carrier_class(by_hand) == (capability,)
    with pytest.raises(TypeError, match="operation capabilities"):
        register_carrier_definition(by_hand, CarrierDefinition(list_storage()))
    with pytest.raises(TypeError, match="already has a CarrierDefinition"):
        register_operation_capabilities(defined(), [capability])
    with pytest.raises(TypeError, match="shipped carrier"):
        register_operation_capabilities(sw.CPU, [capability])
    with pytest.raises(TypeError, match="OperationCapability"):
        register_operation_capabilities(fresh(), [RELU])  # type: ignore[list-item]  # what is refused


def test_definition_of_the_other_kind_is_refused() -> None:
    kernels = KernelProvider(INTERFACE)
    with pytest.raises(TypeError, match="must not supply a composite"):
        register_carrier_definition(fresh(), CarrierDefinition(list_storage(), composite=COMPOSITE))
    with pytest.raises(TypeError, match="requires composite"):
        register_carrier_definition(fresh(DependentCarrier), CarrierDefinition(list_storage()))
    both = CarrierDefinition(list_storage(), kernels=kernels, composite=COMPOSITE)
    with pytest.raises(TypeError, match="forbids kernels"):
        register_carrier_definition(fresh(DependentCarrier), both)


def test_route_is_found_by_its_exact_pair() -> None:
    cls = fresh()
    there, back = route(sw.CPU, cls), route(cls, sw.CPU)
    register_carrier_definition(cls, CarrierDefinition(list_storage(), transfers=[there, back]))
    assert transfer_route(sw.CPU, cls) is there
    assert transfer_route(cls, sw.CPU) is back
    assert transfer_route(cls, sw.Generic) is None
    assert transfer_route(type("Narrower", (cls,), {}), sw.CPU) is None


def test_route_that_passes_by_or_is_there_already_is_refused() -> None:
    with pytest.raises(ValueError, match="begins or ends at"):
        defined(transfers=[route(sw.CPU, sw.Generic)])
    one, two = fresh(), fresh()
    register_carrier_definition(one, CarrierDefinition(list_storage(), transfers=[route(one, two)]))
    with pytest.raises(ValueError, match="duplicate exact transfer routes"):
        register_carrier_definition(two, CarrierDefinition(list_storage(), transfers=[route(one, two)]))
    assert not is_defined(two)


def test_fallback_is_what_the_definition_says() -> None:
    assert not elementwise_fallback(defined())
    assert elementwise_fallback(defined(list_storage(elementwise_fallback=True)))
    assert elementwise_fallback(sw.CPU)
    assert not elementwise_fallback(fresh(DependentCarrier))


def test_pack_for_a_class_that_takes_none_is_refused() -> None:
    def pack(cls: Any, interface: KernelExecutionInterface = INTERFACE) -> KernelPack:
        return KernelPack("lab", 1, cls, interface, [kernel([RELU], "lab.relu")])

    with pytest.raises(TypeError, match="KernelPack"):
        register_kernel_pack(None)  # type: ignore[arg-type]  # what is refused
    for cls in (fresh(), sw.CPU, type("Narrower", (computing([]),), {})):
        with pytest.raises(TypeError, match="exact CarrierDefinition"):
            register_kernel_pack(pack(cls))
    with pytest.raises(TypeError, match="DependentCarrier"):
        register_kernel_pack(pack(fresh(DependentCarrier)))
    for cls in (defined(), computing([])):
        with pytest.raises(TypeError, match="does not match"):
            register_kernel_pack(pack(cls, KernelExecutionInterface(2)))


def test_pack_that_is_there_already_is_refused() -> None:
    cls = computing([kernel([RELU], "own.relu")])

    def pack(version: int | str, kernel_id: str) -> KernelPack:
        return KernelPack("lab", version, cls, INTERFACE, [kernel([NEG], kernel_id)])

    register_kernel_pack(pack(1, "lab.neg"))
    with pytest.raises(ValueError, match="namespace and version"):
        register_kernel_pack(pack(1, "lab.other"))
    for taken in ("lab.neg", "own.relu"):
        with pytest.raises(ValueError, match="kernel_id is unique"):
            register_kernel_pack(pack(2, taken))
    register_kernel_pack(pack("1", "lab.text"))  # a version that is text is another one
