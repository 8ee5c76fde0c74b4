"""The records of a definition: what they take, what they refuse, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import strideweave as sw
from strideweave import DType
from strideweave.carriers.extension import (
    CarrierDefinition,
    CarrierFacet,
    CompositeProvider,
    KernelExecutionInterface,
    KernelPack,
    KernelPattern,
    KernelProvider,
    PreparedComposite,
    PreparedKernel,
    PreparedTransfer,
    ProviderCompletion,
    ProviderResult,
    TransferProvider,
    TransferRoute,
    Unsupported,
    require_completion,
)
from strideweave.carriers.operation_policy import resolve_operation_plan
from strideweave.operation import ProviderContractError
from support.defined import INTERFACE, defined, kernel, list_storage

RELU = resolve_operation_plan("relu", DType.Float32)
NEG = resolve_operation_plan("neg", DType.Float32)


@pytest.mark.parametrize("name", ["supports_dtype", "physical_size", "allocate", "release", "read", "write"])
def test_storage_provider_without_a_function_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be callable"):
        list_storage(**{name: 3})


@pytest.mark.parametrize("flag", [1, 0, None, "yes"])
def test_storage_provider_with_a_flag_that_is_no_bool_is_refused(flag: object) -> None:
    with pytest.raises(TypeError, match="elementwise_fallback must be a bool"):
        list_storage(elementwise_fallback=flag)


def test_storage_provider_with_runs_that_are_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="read_runs must be callable"):
        list_storage(read_runs=1)
    assert list_storage().read_runs is None


def test_records_are_frozen() -> None:
    for record, name in ((list_storage(), "read"), (INTERFACE, "version"), (Unsupported("no"), "reason")):
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, None)


def test_interface_identity_is_exact_type_and_version() -> None:
    class Mine(KernelExecutionInterface):
        pass

    assert KernelExecutionInterface(1).compatibility_identity == (KernelExecutionInterface, 1)
    assert Mine(1).compatibility_identity != KernelExecutionInterface(1).compatibility_identity
    with pytest.raises(TypeError, match="int or a str"):
        KernelExecutionInterface(1.5)  # type: ignore[arg-type]  # what is refused


def _never(*_: Any) -> Any:
    return Unsupported("never")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Unsupported(""), ValueError, "must not be empty"),
        (lambda: Unsupported(3), TypeError, "must be a str"),
        (lambda: ProviderResult([]), ValueError, "at least one"),
        (lambda: ProviderResult([1]), TypeError, "outputs are Tensors"),
        (lambda: ProviderResult(1), TypeError, "must be iterable"),
        (lambda: PreparedKernel(1, _never), TypeError, "KernelExecutionInterface"),
        (lambda: PreparedKernel(INTERFACE, 1), TypeError, "submit must be callable"),
        (lambda: PreparedTransfer(1), TypeError, "submit must be callable"),
        (lambda: PreparedComposite(1), TypeError, "submit must be callable"),
        (lambda: KernelPattern("relu", [], "a", _never), ValueError, "without plans"),
        (lambda: KernelPattern("relu", [NEG], "a", _never), ValueError, "one operation"),
        (lambda: KernelPattern("relu", ["relu"], "a", _never), TypeError, "OperationPlan"),
        (lambda: KernelPattern("relu", [RELU], "", _never), ValueError, "kernel_id"),
        (lambda: KernelPattern("relu", [RELU], "a", None), TypeError, "prepare must be callable"),
        (lambda: KernelPattern("relu", [RELU], "a", _never, True), TypeError, "preference must be an integer"),
        (lambda: KernelProvider(1), TypeError, "KernelExecutionInterface"),
        (lambda: KernelProvider(INTERFACE, [1]), TypeError, "KernelPatterns"),
        (lambda: KernelProvider(INTERFACE, [kernel([RELU], "a"), kernel([NEG], "a")]), ValueError, "unique"),
        (lambda: KernelPack("", 1, sw.CPU, INTERFACE, []), ValueError, "must not be empty"),
        (lambda: KernelPack("lab", 1, int, INTERFACE, []), TypeError, "Carrier class"),
        (lambda: TransferProvider(1), TypeError, "prepare must be callable"),
        (lambda: TransferRoute(int, sw.CPU, "a", TransferProvider(_never)), TypeError, "source_class"),
        (lambda: TransferRoute(sw.CPU, sw.CPU, "", TransferProvider(_never)), ValueError, "route_id"),
        (lambda: TransferRoute(sw.CPU, sw.CPU, "a", _never), TypeError, "TransferProvider"),
        (lambda: CompositeProvider(_never, 1, _never), TypeError, "result_carriers must be callable"),
        (lambda: CarrierDefinition(1), TypeError, "StorageProvider"),
        (lambda: CarrierDefinition(list_storage(), kernels=1), TypeError, "KernelProvider"),
        (lambda: CarrierDefinition(list_storage(), transfers=[1]), TypeError, "TransferRoute"),
        (lambda: CarrierDefinition(list_storage(), composite=1), TypeError, "CompositeProvider"),
        (lambda: CarrierDefinition(list_storage(), facets=[1]), TypeError, "CarrierFacet"),
    ],
)
def test_record_of_a_wrong_kind_is_refused(make: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_definition_reads_iterables_once() -> None:
    class Facet(CarrierFacet):
        pass

    definition = CarrierDefinition(list_storage(), facets=iter([Facet()]), transfers=iter(()))
    assert len(definition.facets) == 1
    assert definition.transfers == ()
    assert KernelProvider(INTERFACE, iter([kernel([RELU], "a")])).patterns[0].kernel_id == "a"
    assert KernelPattern("relu", iter([RELU, RELU]), "a", _never).plans == (RELU,)


def test_definition_with_a_route_or_facet_twice_is_refused() -> None:
    class Facet(CarrierFacet):
        pass

    route = TransferRoute(sw.CPU, sw.Generic, "a", TransferProvider(_never))
    other = TransferRoute(sw.CPU, sw.Generic, "b", TransferProvider(_never))
    with pytest.raises(ValueError, match="duplicate exact transfer routes"):
        CarrierDefinition(list_storage(), transfers=[route, other])
    with pytest.raises(ValueError, match="duplicate exact facet types"):
        CarrierDefinition(list_storage(), facets=[Facet(), Facet()])


def test_facet_is_found_by_exact_type() -> None:
    class Facet(CarrierFacet):
        pass

    class Narrower(Facet):
        pass

    mark = Narrower()
    carrier = defined(facets=[mark])(1, dtype=DType.Float32)
    assert carrier.facet(Narrower) is mark
    assert carrier.require_facet(Narrower) is mark
    assert carrier.facet(Facet) is None
    with pytest.raises(NotImplementedError, match="Facet"):
        carrier.require_facet(Facet)
    for wrong in (int, mark, CarrierFacet):
        with pytest.raises(TypeError, match="CarrierFacet subclass"):
            carrier.facet(wrong)
    assert sw.CPU(1).facet(Facet) is None


class Completion:
    def __init__(self, done: object = True, outcome: object = None) -> None:
        self.done = done
        self.outcome = outcome

    def wait(self) -> object:
        return self.outcome


class Awaitable(Completion):
    def __await__(self) -> Any:
        yield


def test_completion_is_known_by_its_shape() -> None:
    assert isinstance(Completion(), ProviderCompletion)
    assert not isinstance(object(), ProviderCompletion)
    given = Completion()
    assert require_completion(given, what="a move") is given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Awaitable(), "must not expose a coroutine"),
        (Completion(done=1), "done must be a bool"),
        (None, "ProviderCompletion"),
        (object(), "ProviderCompletion"),
    ],
)
@pytest.mark.parametrize("error", [ProviderContractError, TypeError])
def test_completion_of_another_shape_is_refused(given: object, words: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=words):
        require_completion(given, what="a move")
