"""Moves of classes with a definition: their TransferRoutes, the fallback, and providers that break the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from strideweave import CPU, Carrier, DType, FileBacked, Generic, Layout, Tensor
from strideweave.carriers.extension import (
    CarrierDefinition,
    CompositeProvider,
    DependentCarrier,
    PreparedTransfer,
    TransferProvider,
    TransferRequest,
    TransferRoute,
    Unsupported,
    register_carrier_definition,
)
from strideweave.carriers.move import move, move_async
from strideweave.operation import ProviderContractError
from support.defined import defined, filled, list_storage

LAYOUT = Layout.row_major(2, 3)
VALUES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
OPEN = defined(list_storage(elementwise_fallback=True), name="Open")
CLOSED = defined(name="Closed")


class Done:
    """A completion that is over."""

    def __init__(self, outcome: object = None) -> None:
        self.done = True
        self._outcome = outcome

    def wait(self) -> object:
        return self._outcome


def copying(request: TransferRequest) -> PreparedTransfer:
    """A transfer as an author would write it."""

    def submit() -> Any:
        run = torch.empty(request.physical_span, dtype=request.dtype.torch_dtype)
        request.tensor.carrier._read_runs([(request.tensor.offset, run)])
        request.destination._write_runs([(0, run)])
        return Done()

    return PreparedTransfer(submit)


def leaving(prepare: Callable[[TransferRequest], Any], destination: type[Carrier] = CPU) -> Any:
    """A fresh class with one route, into `destination`."""
    cls = type("Leaving", (Carrier,), {})
    route = TransferRoute(cls, destination, "lab.leave", TransferProvider(prepare))
    register_carrier_definition(cls, CarrierDefinition(list_storage(), transfers=[route]))
    return cls


def submitting(submit: Callable[[TransferRequest], Any]) -> Any:
    """A fresh class whose route into CPU submits like that."""
    return leaving(lambda request: PreparedTransfer(lambda: submit(request)))


def facts(*carriers: Carrier) -> list[tuple[object, ...]]:
    return [(c.is_owned(), c.is_released(), c.version, c.size(), c.is_mutable()) for c in carriers]


# -- the route -------------------------------------------------------------------------------------------------------


def test_route_is_used_for_its_exact_pair_and_sees_the_request() -> None:
    seen: list[TransferRequest] = []
    sizes: list[int] = []
    threads: list[str] = []

    def prepare(request: TransferRequest) -> PreparedTransfer:
        seen.append(request)
        threads.append(threading.current_thread().name)
        prepared = copying(request)

        def submit() -> Any:
            sizes.append(request.destination.size())
            threads.append(threading.current_thread().name)
            return prepared.submit()

        return PreparedTransfer(submit)

    cls = leaving(prepare)
    source, destination = filled(cls, VALUES), CPU(0)
    version = source.version
    tensor = Tensor(source, 1, LAYOUT)
    moved = move(tensor, destination)
    assert moved.torch().tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    (request,) = seen
    assert request.tensor is tensor
    assert request.destination is destination
    assert (request.source_class, request.destination_class) == (cls, CPU)
    assert (request.dtype, request.layout, request.physical_span) == (DType.Float32, LAYOUT, 6)
    assert sizes == [6]  # it has its slots when the transfer is submitted
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("strideweave-lane-")
    assert (source.is_released(), source.version, destination.version) == (True, version, 1)
    assert facts(destination) == [(False, False, 1, 6, True)]


def test_route_comes_before_the_fallback() -> None:
    seen: list[TransferRequest] = []
    cls = type("Both", (Carrier,), {})
    provider = TransferProvider(lambda request: seen.append(request) or copying(request))
    register_carrier_definition(
        cls,
        CarrierDefinition(
            list_storage(elementwise_fallback=True), transfers=[TransferRoute(CPU, cls, "lab.enter", provider)]
        ),
    )
    there = move(Tensor(CPU.wrap(torch.tensor(VALUES)), 1, LAYOUT), cls(0, dtype=DType.Float32))
    assert len(seen) == 1
    assert there.carrier.values == VALUES[1:]
    back = move(there, CPU(0))  # no route that way: by the fallback
    assert len(seen) == 1
    assert back.torch().tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_route_that_refuses_tells_its_reason_and_changes_nothing() -> None:
    cls = leaving(lambda request: Unsupported(f"{request.physical_span} slots are not what it likes"))
    source, destination = filled(cls, VALUES), CPU(0)
    before = facts(source, destination)
    with pytest.raises(NotImplementedError, match=r"lab\.leave.*\(Leaving, CPU\).*6 slots are not what it likes"):
        move_async(Tensor(source, 0, LAYOUT), destination)
    assert facts(source, destination) == before


@pytest.mark.parametrize("given", [None, Done(), lambda: Done()])
def test_route_that_prepares_something_else_breaks_the_contract(given: object) -> None:
    source, destination = filled(leaving(lambda request: given), VALUES), CPU(0)
    before = facts(source, destination)
    with pytest.raises(ProviderContractError, match="PreparedTransfer or Unsupported"):
        move_async(Tensor(source, 0, LAYOUT), destination)
    assert facts(source, destination) == before


def test_route_whose_prepare_raises_is_heard_at_once() -> None:
    error = LookupError("no such route today")

    def prepare(request: TransferRequest) -> PreparedTransfer:
        raise error

    source, destination = filled(leaving(prepare), VALUES), CPU(0)
    before = facts(source, destination)
    with pytest.raises(LookupError) as caught:
        move_async(Tensor(source, 0, LAYOUT), destination)
    assert caught.value is error
    assert facts(source, destination) == before


def test_route_is_not_inherited_and_not_used_backwards() -> None:
    cls = leaving(copying)
    with pytest.raises(NotImplementedError, match=r"\(CPU, Leaving\)"):
        move_async(Tensor(CPU(6), 0, LAYOUT), cls(0, dtype=DType.Float32))
    with pytest.raises(NotImplementedError, match=r"\(Leaving, FileBacked\)"):
        move_async(Tensor(filled(cls, VALUES), 0, LAYOUT), FileBacked())


def test_route_of_a_carrier_that_is_made_of_others_is_used() -> None:
    class Made(DependentCarrier):
        inner: Carrier

        def __init__(self, inner: Carrier) -> None:
            super().__init__(dtype=inner.dtype())
            self.inner = inner
            self._finalize_dependent_capabilities()

    storage = list_storage(
        physical_size=lambda carrier: carrier.inner.size(),
        release=lambda carrier: carrier.inner.release(),
        read=lambda carrier, i: carrier.inner[i],
        elementwise_fallback=True,
    )
    composite = CompositeProvider(lambda carrier: [], lambda invocation: [CPU], lambda invocation: Unsupported("no"))
    route = TransferRoute(Made, CPU, "lab.leave", TransferProvider(copying))
    register_carrier_definition(Made, CarrierDefinition(storage, composite=composite, transfers=[route]))
    source = Made(CPU.wrap(torch.tensor(VALUES)))
    with pytest.raises(NotImplementedError, match=r"\(Made, Generic\).*made of other carriers"):
        move_async(Tensor(source, 0, LAYOUT), Generic([], dtype=DType.Float32))  # it never moves slot by slot
    assert move(Tensor(source, 0, LAYOUT), CPU(0)).torch().tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert source.inner.is_released()


# -- the fallback ----------------------------------------------------------------------------------------------------

ALLOWED = {
    "two that allow it": (lambda: filled(OPEN, VALUES), lambda: OPEN(0, dtype=DType.Float32)),
    "out into cpu": (lambda: filled(OPEN, VALUES), lambda: CPU(0)),
    "in from cpu": (lambda: CPU.wrap(torch.tensor(VALUES)), lambda: OPEN(0, dtype=DType.Float32)),
    "out into a file": (lambda: filled(OPEN, VALUES), FileBacked),
    "in from generic": (lambda: Generic(VALUES, dtype=DType.Float32), lambda: OPEN(8, dtype=DType.Float32)),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_fallback_moves_where_both_allow_it(case: str) -> None:
    source, destination = (make() for make in ALLOWED[case])
    version = destination.version
    moved = move(Tensor(source, 1, LAYOUT), destination)
    assert [moved[i, j] for i in range(2) for j in range(3)] == VALUES[1:]
    assert (source.is_released(), destination.version) == (True, version + 1)


@pytest.mark.parametrize("out_of", [CLOSED, OPEN])
@pytest.mark.parametrize("into", [CLOSED, OPEN])
def test_fallback_that_one_side_does_not_allow_is_refused_by_the_pair(out_of: Any, into: Any) -> None:
    if out_of is into is OPEN:
        return
    source, destination = filled(out_of, VALUES), into(0, dtype=DType.Float32)
    before = facts(source, destination)
    with pytest.raises(NotImplementedError, match=rf"\({out_of.__name__}, {into.__name__}\).*elementwise_fallback"):
        move_async(Tensor(source, 0, LAYOUT), destination)
    assert facts(source, destination) == before


# -- providers that break the contract: it lands in the handle, and both sides go on -----------------------------------


class Awaitable(Done):
    def __await__(self) -> Any:
        yield None


class Unsure(Done):
    def __init__(self) -> None:
        super().__init__()
        self.done = 1  # type: ignore[assignment]


class Failing(Done):
    error = OSError("the wire was cut")

    def wait(self) -> object:
        raise self.error


async def coroutine() -> None:
    """Never run."""


def raising(request: TransferRequest) -> Any:
    raise Failing.error


def closed_coroutine(request: TransferRequest) -> Any:
    made = coroutine()
    made.close()
    return made


def touching_the_source(request: TransferRequest) -> Any:
    request.tensor.carrier._increment_version()
    return Done()


def shrinking(request: TransferRequest) -> Any:
    request.destination._free()
    return Done()


BREACHES: dict[str, tuple[Callable[[TransferRequest], Any], type[Exception], str]] = {
    "submit raises": (raising, OSError, "the wire was cut"),
    "completion raises": (lambda request: Failing(), OSError, "the wire was cut"),
    "no completion": (lambda request: None, ProviderContractError, "ProviderCompletion"),
    "no completion, a TypeError too": (lambda request: 7, TypeError, "ProviderCompletion"),
    "a coroutine": (closed_coroutine, ProviderContractError, "must not expose a coroutine"),
    "an awaitable completion": (lambda request: Awaitable(), ProviderContractError, "must not expose a coroutine"),
    "a done that is no bool": (lambda request: Unsure(), ProviderContractError, "done must be a bool"),
    "an outcome": (lambda request: Done(0), ProviderContractError, "completes with None"),
    "a tensor as outcome": (lambda request: Done(request.tensor), ProviderContractError, "completes with None"),
    "the source changed": (touching_the_source, RuntimeError, "version was 7 at the beginning and is 8"),
    "the destination has lost its slots": (shrinking, ValueError, "exceeds carrier size"),
}


@pytest.mark.parametrize("case", BREACHES)
def test_breach_of_a_provider_lands_in_the_handle_and_leaves_both_usable(case: str) -> None:
    submit, kind, words = BREACHES[case]
    source, destination = filled(submitting(submit), VALUES), CPU(0)
    tensor = Tensor(source, 0, LAYOUT)
    handle = move_async(tensor, destination)
    caught = []
    for _ in range(3):
        with pytest.raises(kind, match=words) as info:
            handle.wait(20)
        caught.append(info.value)
    assert handle.done
    assert all(error is caught[0] for error in caught)
    assert facts(source, destination) == [
        (False, False, 8 if case == "the source changed" else 7, 7, True),
        (False, False, 1, 0, True),
    ]
    source[0] = 9.0
    assert [source[k] for k in range(7)] == [9.0, *VALUES[1:]]
    destination.release()
    source.release()


def test_transfer_that_goes_on_after_submit_is_waited_for_by_the_handle() -> None:
    finish = threading.Event()

    class Slow(Done):
        def __init__(self, request: TransferRequest) -> None:
            super().__init__()
            self.done = False
            self._request = request

        def wait(self) -> object:
            assert finish.wait(20)
            return copying(self._request).submit().wait()

    source, destination = filled(submitting(Slow), VALUES), CPU(0)
    handle = move_async(Tensor(source, 0, LAYOUT), destination)
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    assert source.is_owned()
    assert destination.is_owned()
    for request_with in (
        lambda: source.set_value(0, 1.0),
        source.release,
        lambda: move_async(Tensor(source, 0, LAYOUT), CPU(0)),
    ):
        with pytest.raises(RuntimeError, match="owned"):
            request_with()
    finish.set()
    assert handle.wait(20).torch().tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_release_of_a_provider_that_breaks_the_contract_loses_no_value() -> None:
    cls = type("Careless", (Carrier,), {})
    storage = list_storage(release=lambda carrier: (carrier.values.clear(), 7)[1], elementwise_fallback=True)
    register_carrier_definition(cls, CarrierDefinition(storage))
    source, destination = filled(cls, VALUES), CPU(0)
    handle = move_async(Tensor(source, 1, LAYOUT), destination)
    with pytest.raises(TypeError, match="must return None"):
        handle.wait(20)
    assert [destination[k] for k in range(6)] == VALUES[1:]  # the only place where they are left
    assert source.is_released()
    assert not destination.is_owned()
