"""Facts, section d: carriers. What the unit tests say already is named here and not said twice.

    slots, versions, release, new_like, allocate_like    unit/carriers/test_cpu.py, conformance/test_carrier_contract.py
    owners, their tokens and scopes                      unit/extension/test_ownership.py
    constructors of each class                           unit/carriers/test_<class>.py
    shipped classes are closed                           unit/extension/test_storage.py
    DependentCarrier                                     unit/extension/test_dependent.py
    plans and capabilities                               unit/extension/test_capabilities.py

Decided otherwise in `tensors.md`: FileBacked takes a path and outlives the process there; all take more dtypes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import strideweave as sw
from strideweave import CPU, BlockDevice, BlockDeviceCarrier, Carrier, CarrierFacet, DType, FileBacked, Generic
from strideweave.operation import Operation


class Marked(CarrierFacet):
    """A facet that no shipped class has."""


MAKERS: dict[str, Callable[[], Carrier]] = {
    "CPU": lambda: CPU(3),
    "Generic": lambda: Generic([0, 0, 0], dtype=DType.Float32),
    "FileBacked": lambda: FileBacked(size=3),
}
every_carrier = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())

MEMBERS = """
    size dtype get_value set_value new_like allocate_like is_mutable is_owned is_released release version dlpack_info
    dispatch_op supports_storage_dtype operation_capabilities supports_operation_plan unsupported_plan_reason
    require_operation_plan facet require_facet _supports_storage_dtype _dispatch_op _allocate _claim_ownership
    _relinquish_ownership _begin_owner_access _end_owner_access _has_owner_access _increment_version"""
REQUIRED = inspect.Parameter.empty


@pytest.mark.parametrize(
    ("function", "positional", "by_keyword"),
    [
        (Generic, ["values"], {"mutable": True, "dtype": REQUIRED}),
        (CPU, ["size", "pointer"], {"mutable": True, "dtype": DType.Float32, "empty": False}),
        (FileBacked, ["filename"], {"mutable": True, "dtype": DType.Float32}),
        (sw.Metal, ["size"], {"mutable": True, "dtype": DType.Float32, "empty": False}),
        (BlockDevice, ["path"], {}),
        (BlockDevice.allocate, ["self", "size"], {"mutable": True, "dtype": DType.Float32, "empty": False}),
        (sw.Evictable, ["primary", "secondary"], {}),
        (sw.TiledEvictable, ["primary", "secondary", "grid_shape", "tile_shape"], {"residency_policy": None}),
        (Carrier.new_like, ["self", "values"], {"mutable": True, "dtype": None}),
        (Carrier.allocate_like, ["self", "size"], {"mutable": True, "dtype": None, "empty": False}),
    ],
)
def test_signature_is_that_of_the_facts(
    function: Callable[..., Any], positional: list[str], by_keyword: dict[str, Any]
) -> None:
    parameters = inspect.signature(function).parameters
    assert [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    named = {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert {n: named[n] for n in by_keyword} == by_keyword


@pytest.mark.parametrize("name", MEMBERS.split())
def test_every_carrier_has_what_the_facts_name(name: str) -> None:
    assert hasattr(Carrier, name)


@every_carrier
def test_write_is_refused_for_the_first_reason_that_there_is(make: Callable[[], Carrier]) -> None:
    fixed = make().allocate_like(3, mutable=False)
    token = fixed._claim_ownership()
    with pytest.raises(RuntimeError, match="it is owned, so it must not be changed"):
        fixed.set_value(9, "x")  # type: ignore[arg-type]
    fixed._relinquish_ownership(token)
    with pytest.raises(RuntimeError, match="Carrier is not mutable"):
        fixed.set_value(9, "x")  # type: ignore[arg-type]
    fixed.release()
    with pytest.raises(RuntimeError, match="released"):
        fixed.set_value(9, "x")  # type: ignore[arg-type]
    carrier = make()
    with pytest.raises(TypeError, match="slot must be an integer"):
        carrier.set_value(None, 1.0)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="Carrier index out of range"):
        carrier.set_value(9, 1.0)
    with pytest.raises(TypeError, match="a value must be a real number"):
        carrier.set_value(0, "x")  # type: ignore[arg-type]
    assert (carrier.version, fixed.version) == (0, 0)


@every_carrier
def test_released_carrier_still_answers_for_its_class(make: Callable[[], Carrier]) -> None:
    carrier = make()
    before = carrier.operation_capabilities("add")
    carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        carrier.get_value(9)
    assert carrier.operation_capabilities("add") == before
    assert carrier.dtype() is DType.Float32
    assert carrier.supports_storage_dtype(DType.Int8)
    assert [carrier.new_like([1, None])[k] for k in range(2)] == [1.0, 0.0]
    assert carrier.allocate_like(2, dtype=DType.Bool)[1] is False


def test_ownership_tokens_are_ints_that_differ() -> None:
    a, b = CPU(1), CPU(1)
    tokens = [a._claim_ownership(), b._claim_ownership()]
    assert all(type(token) is int for token in tokens)
    assert len(set(tokens)) == 2


@every_carrier
def test_dispatch_gives_a_fresh_operation_of_exactly_this_class(make: Callable[[], Carrier]) -> None:
    carrier = make()
    operation = carrier.dispatch_op("add")
    assert isinstance(operation, Operation)
    assert operation is not carrier.dispatch_op("add")
    assert (operation._operation_name, operation._dispatch_carrier_class) == ("add", type(carrier))
    for name in (3, None, b"add"):
        with pytest.raises(TypeError, match="must be a str"):
            carrier.dispatch_op(name)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="'no_such'"):
        carrier.dispatch_op("no_such")


@every_carrier
def test_facet_is_found_by_exact_type_or_told_to_be_missing(make: Callable[[], Carrier]) -> None:
    carrier = make()
    assert carrier.facet(Marked) is None
    with pytest.raises(NotImplementedError, match="Marked"):
        carrier.require_facet(Marked)
    for kind in (int, Marked(), CarrierFacet):
        for ask in (carrier.facet, carrier.require_facet):
            with pytest.raises(TypeError, match="CarrierFacet subclass"):
                ask(kind)  # type: ignore[arg-type]


def test_storage_only_carriers_compute_nothing() -> None:
    assert FileBacked().operation_capabilities("add") == ()
    assert CPU(1).operation_capabilities("add")


def test_block_device_carrier_and_regular_files_are_refused_by_the_words_of_the_facts() -> None:
    with pytest.raises(TypeError, match=r"use BlockDevice\.allocate"):
        BlockDeviceCarrier(1)
    with pytest.raises(ValueError, match="regular file"):
        BlockDevice(__file__)


def test_cpu_over_an_address_shares_its_memory() -> None:
    memory = CPU(2)
    window = CPU(2, memory.pointer())
    window[1] = 5.0
    assert (memory[1], window.size(), memory.version) == (5.0, 2, 0)
