"""Operations on defined classes: which kernel runs, what it is given, and what its results must be."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import DType, Layout, Tensor
from strideweave.carriers.extension import (
    KernelExecutionInterface,
    KernelPack,
    KernelPattern,
    PreparedKernel,
    ProviderResult,
    register_kernel_pack,
)
from strideweave.carriers.operation_policy import resolve_operation_plan
from strideweave.operation import (
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
from support.defined import INTERFACE, by_reference, computing, defined, filled, kernel

F32 = DType.Float32
ADD = resolve_operation_plan("add", F32, F32)
MUL = resolve_operation_plan("mul", F32, F32)
SCALED = resolve_operation_plan("mul", F32, float)
RELU = resolve_operation_plan("relu", F32)
SUM = resolve_operation_plan("reduce_sum", F32)


def row(cls: Any, *values: float) -> Tensor:
    return Tensor(filled(cls, values), 0, Layout.row_major(len(values)))


def test_kernel_of_the_definition_runs() -> None:
    cls = computing([kernel([ADD], "own.add")])
    result = row(cls, 1, 2) + row(cls, 10, 20)
    assert type(result.carrier) is cls
    assert sw.to_list(result) == [11.0, 22.0]


def test_kernels_are_asked_by_preference_then_own_then_packs_in_order() -> None:
    asked: list[str] = []

    def noted(kernel_id: str, preference: int = 0) -> KernelPattern:
        refusing = kernel([RELU], kernel_id, refuses=f"no {kernel_id}", preference=preference)

        def prepare(invocation: ResolvedInvocation) -> Any:
            assert invocation.kernel_id == kernel_id
            asked.append(kernel_id)
            return refusing.prepare(invocation)

        return replace_prepare(refusing, prepare)

    cls = computing([noted("own.first"), noted("own.second"), noted("own.last", -1)])
    for namespace, version, kernels in (
        ("b", 1, [noted("b1"), noted("b1.wanted", 2)]),
        ("a", 10, [noted("a10")]),
        ("a", 2, [noted("a2"), noted("a2.preferred", 1)]),
    ):
        register_kernel_pack(KernelPack(namespace, version, cls, INTERFACE, kernels))
    with pytest.raises(UnsupportedOperationPlan, match=r"b1\.wanted: no b1\.wanted; a2\.preferred: no a2\.preferred; "):
        sw.relu(row(cls, 1))
    assert asked == ["b1.wanted", "a2.preferred", "own.first", "own.second", "a2", "a10", "b1", "own.last"]


def replace_prepare(pattern: KernelPattern, prepare: Any) -> KernelPattern:
    return KernelPattern(pattern.operation, pattern.plans, pattern.kernel_id, prepare, pattern.preference)


def test_kernel_that_refuses_gives_way_to_the_next() -> None:
    cls = computing([kernel([RELU], "own.never", refuses="never", preference=5), kernel([RELU], "own.relu")])
    assert sw.to_list(sw.relu(row(cls, -1, 3))) == [0.0, 3.0]


def test_plan_without_a_kernel_is_refused_and_told_why() -> None:
    cls = computing([kernel([ADD], "own.add")], name="Adder")
    with pytest.raises(UnsupportedOperationPlan, match="Adder has no kernel for relu"):
        sw.relu(row(cls, 1))
    whole = Tensor(cls(2, dtype=DType.Int32), 0, Layout.row_major(2))
    with pytest.raises(UnsupportedOperationPlan, match=r"own\.add"):
        whole + whole


def test_class_without_kernels_only_stores() -> None:
    cls = defined(name="Shelf")
    with pytest.raises(UnsupportedOperationPlan, match="Shelf: it only stores"):
        sw.relu(row(cls, 1))


def test_views_need_no_kernel() -> None:
    cls = defined()
    x = row(cls, 1, 2, 3, 4)
    assert sw.to_list(sw.reshape(x, (2, 2))) == [[1.0, 2.0], [3.0, 4.0]] or x[1:3] is not None
    assert sw.to_list(x[1:3]) == [2.0, 3.0]


def test_pack_may_come_after_carriers() -> None:
    cls = computing([])
    x = row(cls, -1, 2)
    with pytest.raises(UnsupportedOperationPlan):
        sw.relu(x)
    register_kernel_pack(KernelPack("lab", "1.0", cls, INTERFACE, [kernel([RELU], "lab.relu")]))
    assert sw.to_list(sw.relu(x)) == [0.0, 2.0]


class Later:
    """A completion that another thread ends."""

    def __init__(self, work: Any) -> None:
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()

    def _run(self, work: Any) -> None:
        self.outcome = work()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> Any:
        self._thread.join()
        return self.outcome


def test_kernel_may_complete_later() -> None:
    cls = computing([kernel([RELU], "own.relu", lambda invocation: Later(lambda: by_reference(invocation)))])
    assert sw.to_list(sw.relu(row(cls, -1, 2))) == [0.0, 2.0]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda made, cls: ProviderResult([made, made]), "it gave 2 of 1"),
        (lambda made, cls: ProviderResult([sw.tensor([1.0, 2.0])]), "must be exactly a Spoiled"),
        (lambda made, cls: ProviderResult([Tensor(made.carrier, 0, Layout.row_major(1))]), "its layout is"),
        (
            lambda made, cls: ProviderResult([Tensor(cls(2, dtype=DType.Float16), 0, made.layout)]),
            "its dtype is Float16",
        ),
        (lambda made, cls: made.carrier.release() or ProviderResult([made]), "is released"),
        (lambda made, cls: made.carrier._claim_ownership() and ProviderResult([made]), "is owned"),
        (lambda made, cls: [made], "ProviderCompletion"),
        (lambda made, cls: Later(lambda: made), "It is a ProviderResult"),
    ],
)
def test_results_that_are_not_as_resolved_are_refused(spoil: Any, words: str) -> None:
    def run(invocation: ResolvedInvocation) -> Any:
        return spoil(by_reference(invocation).outputs[0], cls)

    cls = computing([kernel([RELU], "own.relu", run)], name="Spoiled")
    with pytest.raises(ProviderContractError, match=words):
        sw.relu(row(cls, 1, 2))


def test_result_on_the_carrier_of_an_operand_is_refused() -> None:
    cls = computing([kernel([RELU], "own.relu", lambda invocation: ProviderResult([invocation.operands[0]]))])
    with pytest.raises(ProviderContractError, match="must be fresh"):
        sw.relu(row(cls, 1))


def test_kernel_prepared_for_another_interface_is_refused() -> None:
    cls = computing([kernel([RELU], "own.relu", interface=KernelExecutionInterface(2))])
    with pytest.raises(ProviderContractError, match="does not match"):
        sw.relu(row(cls, 1))
    wrong = KernelPattern("relu", [RELU], "own.relu", lambda invocation: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ProviderContractError, match="PreparedKernel or Unsupported"):
        sw.relu(row(computing([wrong]), 1))


# -- an operation of one's own, from definition to gradient ------------------------------------------------------------


def _resolve(call: Any) -> ResolvedInvocation:
    (x,) = call.operands
    spec = ResultSpec(x.dtype(), x.shape, Layout.column_major(*x.shape))
    return ResolvedInvocation(call, pointwise_plan(call), (spec,), saved_operands=(0,))


def _vjp(context: Any, g: Tensor) -> tuple[Tensor]:
    return (sw.mul(sw.mul(g, context.operand(0)), 3.0),)


CUBIC = define_operation(
    "extensiontests.threehalves",
    OperationSchema([OperandSpec("x", OperandKind.TENSOR, differentiable=True)]),
    _resolve,
    reference=lambda invocation: [[1.5 * v * v for v in invocation.values(0)]],
    vjp=_vjp,
)


def test_custom_operation_on_a_defined_class_has_a_gradient() -> None:
    cls = computing([kernel([MUL], "own.mul"), kernel([SCALED], "own.scale"), kernel([SUM], "own.sum")])
    plan = CUBIC.resolve_call(sw.tensor([1.0])).plan
    x = row(cls, 1, -2, 3).requires_grad_()
    with pytest.raises(UnsupportedOperationPlan, match=r"extensiontests\.threehalves"):
        CUBIC(x)
    pack = KernelPack("extensiontests", 1, cls, INTERFACE, [kernel([plan], "extensiontests.kernel")])
    register_kernel_pack(pack)
    assert x.carrier.supports_operation_plan(plan)
    sw.reduce_sum(CUBIC(x)).backward()
    other = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    (1.5 * other * other).sum().backward()
    assert x.grad is not None
    assert type(x.grad.carrier) is cls
    assert other.grad is not None
    assert sw.to_list(x.grad) == other.grad.tolist()


def test_dispatched_operation_runs_on_its_class_alone() -> None:
    cls = computing([kernel([ADD], "own.add")])
    x = row(cls, 1, 2)
    add = x.carrier.dispatch_op("add")
    assert add is not x.carrier.dispatch_op("add")
    assert (add._operation_name, add._dispatch_carrier_class) == ("add", cls)
    assert sw.to_list(add.forward(x, x)) == [2.0, 4.0]
    with pytest.raises(TypeError, match="belongs to one carrier class"):
        add.forward(sw.tensor([1.0]), sw.tensor([1.0]))
    with pytest.raises(TypeError, match="must be a str"):
        x.carrier.dispatch_op(3)
    with pytest.raises(NotImplementedError, match="none of that name"):
        x.carrier.dispatch_op("no.such.operation")


def test_prepared_kernel_may_be_made_by_replace() -> None:
    prepared = PreparedKernel(INTERFACE, lambda: None)  # type: ignore[arg-type,return-value]
    assert replace(prepared, interface=KernelExecutionInterface(3)).interface.version == 3
