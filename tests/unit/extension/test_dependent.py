"""Carriers made of others: capabilities for each instance, and operations by a composite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import CPU, Carrier, DType, Layout, Tensor
from strideweave.carriers.extension import (
    CarrierDefinition,
    CarrierFacet,
    CompositeProvider,
    DependentCarrier,
    PreparedComposite,
    ProviderResult,
    Unsupported,
    register_carrier_definition,
)
from strideweave.carriers.operation_capability import OperationCapability, capabilities_for_carrier_class
from strideweave.carriers.operation_policy import resolve_operation_plan
from strideweave.operation import ProviderContractError, ResolvedInvocation, UnsupportedOperationPlan
from support.defined import defined, list_storage

RELU = resolve_operation_plan("relu", DType.Float32)
NEG = resolve_operation_plan("neg", DType.Float32)


class Ratio(CarrierFacet):
    value = 2


def wrapping(**changes: Any) -> Any:
    """A class that passes everything on to one CPU carrier inside, defined as a third party would."""

    class Wrapper(DependentCarrier):
        inner: Carrier

        def __init__(self, inner: Carrier) -> None:
            super().__init__(dtype=inner.dtype())
            self.inner = inner
            self._finalize_dependent_capabilities()

        def allocate_like(self, size: int, **options: Any) -> Any:
            return Wrapper(self.inner.allocate_like(size, **options))

    def capabilities(carrier: Any) -> Any:
        return [c for c in carrier.inner.operation_capabilities("relu") if c.output is carrier.dtype()]

    def prepare(invocation: ResolvedInvocation) -> Any:
        (x,) = invocation.operands

        def submit() -> ProviderResult:
            return ProviderResult([sw.relu(Tensor(x.carrier.inner, x.offset, x.layout))])

        return PreparedComposite(submit)

    storage = list_storage(
        supports_dtype=lambda carrier, dtype: carrier.inner.supports_storage_dtype(dtype),
        physical_size=lambda carrier: carrier.inner.size(),
        release=lambda carrier: carrier.inner.release(),
        read=lambda carrier, i: carrier.inner[i],
        write=lambda carrier, i, value: carrier.inner.set_value(i, value),
    )
    parts = {"capabilities": capabilities, "result_carriers": lambda invocation: [CPU], "prepare": prepare, **changes}
    register_carrier_definition(
        Wrapper, CarrierDefinition(storage, composite=CompositeProvider(**parts), facets=[Ratio()])
    )
    return Wrapper


def over(cls: Any, *values: float, dtype: DType = DType.Float32) -> Tensor:  # type: ignore[valid-type]  # a namespace
    carrier = cls(CPU.wrap(torch.tensor(values)))
    return Tensor(carrier, 0, Layout.row_major(len(values)))


def test_dependent_carrier_reads_and_writes_by_its_definition() -> None:
    x = over(wrapping(), 1.0, -2.0)
    x[0] = 3.0
    assert (x[0], x[1], x.version) == (3.0, -2.0, 1)
    assert x.carrier.require_facet(Ratio).value == 2
    assert x.carrier._is_dependent()
    with pytest.raises(NotImplementedError, match="made of other carriers"):
        sw.move(x, CPU(0))


def test_dependent_carrier_has_the_capabilities_of_what_it_is_made_of() -> None:
    carrier = over(wrapping(), 1.0).carrier
    assert carrier.operation_capabilities() == (OperationCapability.from_plan(RELU),)
    assert carrier.operation_capabilities("neg") == ()
    assert carrier.supports_operation_plan(RELU)
    assert carrier.unsupported_plan_reason(NEG) == "Wrapper does not run neg"
    with pytest.raises(UnsupportedOperationPlan, match="does not run neg"):
        carrier.require_operation_plan(NEG)
    with pytest.raises(UnsupportedOperationPlan, match="has these dtypes"):
        carrier.require_operation_plan(resolve_operation_plan("relu", DType.Int8))
    with pytest.raises(NotImplementedError, match="none of that name"):
        carrier.operation_capabilities("no.such")
    carrier.release()
    assert carrier.supports_operation_plan(RELU)
    with pytest.raises(RuntimeError) as refusal:
        carrier.dispatch_op("no.such")
    assert str(refusal.value) == "Wrapper is released"
    with pytest.raises(TypeError, match="DependentCarrier"):
        capabilities_for_carrier_class(type(carrier))


def test_capabilities_are_frozen_at_construction() -> None:
    carrier = over(wrapping(), 1.0).carrier
    with pytest.raises(RuntimeError, match="frozen"):
        carrier._finalize_dependent_capabilities()
    early = type(carrier).__new__(type(carrier))
    with pytest.raises(RuntimeError, match="not final"):
        early.operation_capabilities()
    with pytest.raises(TypeError, match="OperationCapability"):
        over(wrapping(capabilities=lambda carrier: [RELU]), 1.0)
    with pytest.raises(TypeError, match="made of other carriers"):
        Carrier.__init__(early, 3, dtype=DType.Float32)


def test_dependent_carrier_without_a_definition_generates_its_capabilities() -> None:
    hooks = {name: lambda self, *_, **__: 0 for name in ("size", "_read_runs", "_write_runs", "_allocate", "_free")}
    legacy: Any = type("Legacy", (DependentCarrier,), {**hooks, "allocate_like": lambda self, *_, **__: self})
    carrier = legacy(dtype=DType.Float32)
    with pytest.raises(NotImplementedError, match="_generate_operation_capabilities"):
        carrier._finalize_dependent_capabilities()
    legacy._generate_operation_capabilities = lambda self: iter([OperationCapability.from_plan(RELU)])
    carrier._finalize_dependent_capabilities()
    assert carrier.supports_operation_plan(RELU)
    with pytest.raises(TypeError, match="definition-free Carrier construction"):
        type("Bare", (DependentCarrier,), {})(dtype=DType.Float32)


def test_dependent_carrier_of_an_unsupported_dtype_is_refused() -> None:
    cls = wrapping()
    inner = defined(list_storage(supports_dtype=lambda carrier, dtype: not hasattr(carrier, "values")))
    with pytest.raises(TypeError, match="does not support storage dtype Float32"):
        cls(inner(1, dtype=DType.Float32))


def test_operation_on_a_dependent_carrier_runs_by_its_composite() -> None:
    result = sw.relu(over(wrapping(), -1.0, 2.0))
    assert type(result.carrier) is CPU
    assert sw.to_list(result) == [0.0, 2.0]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"prepare": lambda invocation: Unsupported("too far")}, UnsupportedOperationPlan, "too far"),
        ({"prepare": lambda invocation: None}, ProviderContractError, "PreparedComposite or Unsupported"),
        ({"result_carriers": lambda invocation: []}, ProviderContractError, "0 classes for 1 results"),
        ({"result_carriers": lambda invocation: [sw.Generic]}, ProviderContractError, "exactly a Generic"),
        (
            {"prepare": lambda invocation: PreparedComposite(lambda: invocation.operands[0].carrier.release())},  # type: ignore[arg-type,return-value]
            ProviderContractError,
            "operand of an operation that runs",
        ),
    ],
)
def test_composite_that_refuses_or_breaks_its_contract_is_told(changes: Any, error: Any, words: str) -> None:
    x = over(wrapping(**changes), 1.0)
    with pytest.raises(error, match=words):
        sw.relu(x)
    assert (x[0], x.version, x.carrier.is_released()) == (1.0, 0, False)


def test_operation_that_the_composite_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedOperationPlan, match="does not run neg"):
        sw.neg(over(wrapping(), 1.0))
