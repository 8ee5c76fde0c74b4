"""Providers that fail or change what they may not: everything is as it was before, and the message says who did it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import strideweave as sw
from strideweave import DType, Layout, Tensor
from strideweave.carriers.extension import KernelPattern, PreparedKernel, ProviderResult, Unsupported
from strideweave.carriers.extension.guard import COMPARED_SLOTS
from strideweave.carriers.operation_policy import resolve_operation_plan
from strideweave.operation import (
    NON_DIFFERENTIABLE,
    OperandKind,
    OperandSpec,
    OperationSchema,
    ProviderContractError,
    ResolvedInvocation,
    ResultSpec,
    UnsupportedOperationPlan,
    define_operation,
    pointwise_plan,
)
from support.defined import by_reference, computing, defined, filled, kernel, list_storage, run_storage

RELU = resolve_operation_plan("relu", DType.Float32)


def row(cls: Any, *values: float) -> Tensor:
    return Tensor(filled(cls, values), 0, Layout.row_major(len(values)))


def facts(carrier: Any) -> tuple[object, ...]:
    values = [carrier[k] for k in range(carrier.size())]
    return values, carrier.version, carrier.is_owned(), carrier.is_mutable(), carrier.is_released()


def _pass_over(change: Callable[[], object]) -> None:
    try:
        change()
    except RuntimeError:
        return


def _write_inside(carrier: Any) -> None:
    carrier.values[0] = 99.0


CHANGES: dict[str, Callable[[Any], object]] = {
    "assignment": lambda carrier: carrier.set_value(0, 99.0),
    "assignment that is passed over": lambda carrier: _pass_over(lambda: carrier.set_value(0, 99.0)),
    "memory": _write_inside,
    "runs": lambda carrier: carrier._write_runs([(0, sw.tensor([99.0]).torch())]),
    "version": lambda carrier: carrier._increment_version(),
    "ownership": lambda carrier: carrier._claim_ownership(),
    "ownership by hand": lambda carrier: setattr(carrier, "_owner", 7),
    "release": lambda carrier: carrier.release(),
    "release that is passed over": lambda carrier: _pass_over(carrier.release),
}


@pytest.mark.parametrize("storage", [list_storage, run_storage])
@pytest.mark.parametrize("when", ["prepare", "prepare, then refuses", "prepare, then raises", "submit", "both"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_change_of_an_operand_is_undone_and_reported(change: Callable[[Any], object], when: str, storage: Any) -> None:
    def prepare(invocation: ResolvedInvocation) -> Any:
        carrier = invocation.operands[0].carrier
        if when != "submit":
            change(carrier)
        if when.endswith("refuses"):
            return Unsupported("no")
        if when.endswith("raises"):
            raise KeyError("after the change")

        def submit() -> ProviderResult:
            if when in ("submit", "both"):
                change(carrier)
            return by_reference(invocation)

        return PreparedKernel(pattern_interface, submit)

    pattern_interface = kernel([RELU], "x").prepare(None).interface  # type: ignore[arg-type,union-attr]
    cls = computing([KernelPattern("relu", [RELU], "own.relu", prepare)], storage())
    x = row(cls, 1.0, -2.0)
    before = facts(x.carrier)
    # An assignment in prepare is refused by the carrier itself; whoever lets that through is told the same.
    with pytest.raises(ProviderContractError):
        sw.relu(x)
    assert facts(x.carrier) == before
    x.carrier[1] = 5.0  # and it can be written again
    assert x.carrier.version == before[1] + 1  # type: ignore[operator]  # a version is an int


def test_failure_of_submit_is_reported_with_its_cause() -> None:
    def run(invocation: ResolvedInvocation) -> Any:
        raise MemoryError("full")

    x = row(computing([kernel([RELU], "own.relu", run)]), 1.0)
    with pytest.raises(ProviderContractError, match=r"relu by own\.relu.*MemoryError: full") as failure:
        sw.relu(x)
    assert isinstance(failure.value.__cause__, MemoryError)


def test_exception_of_prepare_is_terminal_and_comes_through() -> None:
    def prepare(invocation: ResolvedInvocation) -> Any:
        raise LookupError("no table")

    asked: list[str] = []
    after = kernel([RELU], "own.next", lambda invocation: asked.append("next"))
    cls = computing([KernelPattern("relu", [RELU], "own.relu", prepare), after])
    with pytest.raises(LookupError, match="no table"):
        sw.relu(row(cls, 1.0))
    assert asked == []


def test_interrupt_in_a_kernel_comes_through_and_leaves_no_shield() -> None:
    def run(invocation: ResolvedInvocation) -> Any:
        raise KeyboardInterrupt

    x = row(computing([kernel([RELU], "own.relu", run)]), 1.0)
    with pytest.raises(KeyboardInterrupt):
        sw.relu(x)
    x.carrier[0] = 2.0
    assert x.carrier._shields == ()


def test_large_operand_is_not_read_for_comparison() -> None:
    read: list[int] = []

    def counted(carrier: Any, i: int) -> Any:
        read.append(i)
        return carrier.values[i]

    def run(invocation: ResolvedInvocation) -> ProviderResult:
        (spec,) = invocation.results
        return ProviderResult([Tensor(cls(spec.layout.cosize, dtype=spec.dtype), 0, spec.layout)])

    cls = computing([kernel([RELU], "own.relu", run)], list_storage(read=counted))
    large = Tensor(cls(COMPARED_SLOTS + 1, dtype=DType.Float32), 0, Layout.row_major(COMPARED_SLOTS + 1))
    sw.relu(large)
    assert read == []
    small = Tensor(cls(4, dtype=DType.Float32), 0, Layout.row_major(4))
    sw.relu(small)
    assert read == [0, 1, 2, 3] * 2


def test_large_operand_is_shielded_from_assignment() -> None:
    def run(invocation: ResolvedInvocation) -> Any:
        invocation.operands[0].carrier[0] = 1.0

    cls = computing([kernel([RELU], "own.relu", run)])
    x = Tensor(cls(COMPARED_SLOTS + 1, dtype=DType.Float32), 0, Layout.row_major(COMPARED_SLOTS + 1))
    with pytest.raises(ProviderContractError, match="declare"):
        sw.relu(x)
    assert (x[0], x.version) == (0.0, 0)


# -- operands that may be changed --------------------------------------------------------------------------------------


def _resolve(call: Any) -> ResolvedInvocation:
    x, _ = call.operands
    spec = ResultSpec(x.dtype(), x.shape, x.layout, alias_of=0)
    return ResolvedInvocation(call, pointwise_plan(call), (spec,), mutated_operands=(0,))


INTO = define_operation(
    "faulttests.addinto",
    OperationSchema([OperandSpec("x", OperandKind.TENSOR), OperandSpec("y", OperandKind.TENSOR)]),
    _resolve,
    vjp=NON_DIFFERENTIABLE,
)
PLAN = INTO.resolve_call(sw.tensor([1.0]), sw.tensor([1.0])).plan


def adding(*, then: Callable[[ResolvedInvocation], object] = lambda invocation: None, by_runs: bool = False) -> Any:
    def run(invocation: ResolvedInvocation) -> ProviderResult:
        x, y = invocation.operands
        for k in range(x.layout.size):
            slot = x.offset + x.layout.index(k)
            if by_runs:
                x.carrier.values[slot] += y[k]
            else:
                x.carrier[slot] = x.carrier[slot] + y[k]
        then(invocation)
        return ProviderResult([x])

    return computing([kernel([PLAN], "own.addinto", run)])


@pytest.mark.parametrize("by_runs", [True, False])
def test_declared_operand_is_changed_in_place_and_counted(by_runs: bool) -> None:
    cls = adding(by_runs=by_runs)
    x, y = row(cls, 1.0, 2.0), row(cls, 10.0, 20.0)
    before = x.version
    assert INTO(x, y) is x
    assert sw.to_list(x) == [11.0, 22.0]
    assert x.version == before + (1 if by_runs else 2)
    assert sw.to_list(y) == [10.0, 20.0]


def _fail(invocation: ResolvedInvocation) -> None:
    raise OSError("gone")


@pytest.mark.parametrize("by_runs", [True, False])
@pytest.mark.parametrize(
    "then",
    [
        _fail,
        lambda invocation: invocation.operands[1].carrier.set_value(0, 7.0),
        lambda invocation: _write_inside(invocation.operands[1].carrier),
        lambda invocation: invocation.operands[0].carrier.release(),
        lambda invocation: invocation.operands[0].carrier._claim_ownership(),
    ],
)
def test_declared_operand_is_put_back_when_the_kernel_fails(then: Any, by_runs: bool) -> None:
    cls = adding(then=then, by_runs=by_runs)
    carrier = filled(cls, [0.5, 1.0, 2.0, 0.25])
    x, y = Tensor(carrier, 1, Layout.row_major(2)), row(cls, 10.0, 20.0)
    before = facts(carrier), facts(y.carrier)
    with pytest.raises(ProviderContractError):
        INTO(x, y)
    assert (facts(carrier), facts(y.carrier)) == before


def test_declared_operand_that_is_immutable_or_owned_is_refused_before_work() -> None:
    cls = adding(then=_fail)
    fixed = Tensor(cls(1, dtype=DType.Float32, mutable=False), 0, Layout.row_major(1))
    with pytest.raises(RuntimeError, match="not mutable"):
        INTO(fixed, row(cls, 1.0))
    x = row(cls, 1.0)
    x.carrier._claim_ownership()
    with pytest.raises(RuntimeError, match="owned"):
        INTO(x, row(cls, 1.0))


def test_result_that_is_not_the_declared_operand_is_refused() -> None:
    cls = computing([kernel([PLAN], "own.other", lambda invocation: ProviderResult([row(cls, 1.0)]))])
    with pytest.raises(ProviderContractError, match="not operand 0 itself"):
        INTO(row(cls, 1.0), row(cls, 1.0))


def _outer(invocation: ResolvedInvocation) -> ProviderResult:
    sw.neg(invocation.operands[0])
    return by_reference(invocation)


def test_operand_may_be_one_of_an_operation_inside() -> None:
    neg = resolve_operation_plan("neg", DType.Float32)
    x = row(computing([kernel([RELU], "outer", _outer), kernel([neg], "inner")]), -1.0, 2.0)
    assert sw.to_list(sw.relu(x)) == [0.0, 2.0]
    assert x.carrier._shields == ()
    with pytest.raises(ProviderContractError, match="no kernel for neg"):
        sw.relu(row(computing([kernel([RELU], "outer", _outer)]), 1.0))


def test_write_of_another_thread_is_refused_and_the_provider_is_not_blamed() -> None:
    refusals: list[BaseException] = []

    def run(invocation: ResolvedInvocation) -> ProviderResult:
        def write() -> None:
            try:
                invocation.operands[0].carrier[0] = 9.0
            except RuntimeError as error:
                refusals.append(error)

        other = threading.Thread(target=write)
        other.start()
        other.join()
        return by_reference(invocation)

    x = row(computing([kernel([RELU], "own.relu", run)]), 1.0)
    assert sw.to_list(sw.relu(x)) == [1.0]
    assert (x[0], len(refusals)) == (1.0, 1)
    assert "operand of an operation that runs" in str(refusals[0])


# -- storage that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("read", lambda carrier: carrier[0]),
        ("read", lambda carrier: carrier._read_runs([(0, sw.tensor([0.0]).torch())])),
        ("write", lambda carrier: carrier.set_value(0, 3.0)),
        ("write", lambda carrier: carrier._write_runs([(0, sw.tensor([3.0]).torch())])),
        ("physical_size", lambda carrier: carrier.size()),
        ("release", lambda carrier: carrier._free()),
        ("supports_dtype", lambda carrier: carrier.supports_storage_dtype(DType.Int8)),
        ("allocate", lambda carrier: carrier.allocate_like(3)),
    ],
)
def test_exception_of_storage_comes_through_as_it_is(name: str, use: Callable[[Any], object]) -> None:
    armed, error, plain = {"on": False}, OSError("gone"), getattr(list_storage(), name)

    def failing(*arguments: Any) -> Any:
        if armed["on"]:
            raise error
        return plain(*arguments)

    carrier = filled(defined(list_storage(**{name: failing})), [1.0, 2.0])
    armed["on"] = True
    with pytest.raises(OSError, match="gone") as failure:
        use(carrier)
    assert failure.value is error
    armed["on"] = False
    assert ([carrier[0], carrier[1]], carrier.version) == ([1.0, 2.0], 2)


def test_write_that_fails_leaves_the_version_alone() -> None:
    def write(carrier: Any, i: int, value: Any) -> None:
        raise OSError("disk full")

    carrier = defined(list_storage(write=write))(2, dtype=DType.Float32)
    with pytest.raises(OSError, match="disk full"):
        carrier[0] = 1.0
    assert carrier.version == 0


def test_all_kernels_that_refuse_leave_everything_as_it_was() -> None:
    cls = computing([kernel([RELU], "a", refuses="too long"), kernel([RELU], "b", refuses="too wide")])
    x = row(cls, 1.0)
    before = facts(x.carrier)
    with pytest.raises(UnsupportedOperationPlan, match="a: too long; b: too wide"):
        sw.relu(x)
    assert facts(x.carrier) == before
