"""Plans from dtypes alone, and what each carrier class says that it can run: what it says is what happens."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import strideweave as sw
from strideweave import CPU, Carrier, DType, FileBacked, Generic, Layout, Tensor
from strideweave.carriers.evictable import Evictable
from strideweave.carriers.operation_capability import (
    OperationCapability,
    capabilities_for_carrier_class,
    register_operation_capabilities,
    require_capability,
    supports_operation_plan,
)
from strideweave.carriers.operation_policy import (
    operation_execution_options,
    registered_operations,
    resolvable_plans,
    resolve_operation_plan,
)
from strideweave.operation import (
    OperandRole,
    OperationPlan,
    UnsupportedOperationPlan,
    definitions,
    find,
    register_executor,
)
from support.defined import computing, defined, kernel

RELU = resolve_operation_plan("relu", DType.Float32)


@pytest.mark.parametrize("name", ["add", "mul", "div", "gt"])
@pytest.mark.parametrize(("a", "b"), [*product((DType.Float32, DType.Int8, DType.BFloat16), repeat=2)])
def test_plan_is_the_one_that_a_call_resolves_to(name: str, a: Any, b: Any) -> None:
    x, y = (Tensor(CPU(6, dtype=d), 0, Layout.row_major(2, 3)) for d in (a, b))
    assert resolve_operation_plan(name, a, b) == find(name).resolve_call(x, y).plan


def test_plan_with_python_numbers_has_weak_operands() -> None:
    plan = resolve_operation_plan("mul", DType.Int32, float)
    assert [operand.role for operand in plan.operands] == [OperandRole.TENSOR, OperandRole.WEAK_SCALAR]
    assert (plan.output, resolve_operation_plan("mul", int, DType.Int8).output) == (DType.Float32, DType.Int8)


def test_plan_with_an_accumulator_says_so() -> None:
    wide = resolve_operation_plan("reduce_sum", DType.Float32, accumulator_dtype=DType.Float64)
    assert wide.accumulator_dtype is DType.Float64
    assert wide != resolve_operation_plan("reduce_sum", DType.Float32)
    assert operation_execution_options("reduce_sum") == {"accumulator_dtype": None}
    for refused in (
        lambda: resolve_operation_plan("relu", DType.Float32, accumulator_dtype=DType.Float64),
        lambda: operation_execution_options("relu", accumulator_dtype=DType.Float64),
    ):
        with pytest.raises(TypeError, match="no accumulator dtype"):
            refused()


def test_plan_of_what_is_no_operation_or_operand_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="none of that name"):
        resolve_operation_plan("no.such", DType.Float32)
    for operands in (("Float32",), (3,), (1.0,), (str,)):
        with pytest.raises(TypeError, match="an operand is a DType"):
            resolve_operation_plan("relu", *operands)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(TypeError, match="it takes 1"):
        resolve_operation_plan("relu", DType.Float32, DType.Float32)
    with pytest.raises(TypeError, match="it takes a Tensor"):
        resolve_operation_plan("relu", float)


def test_options_decide_a_plan() -> None:
    plan = resolve_operation_plan("convert", DType.Float32, options={"dtype": DType.Int8})
    assert plan.output is DType.Int8


def test_every_operation_is_registered_and_has_plans_of_its_own() -> None:
    assert registered_operations() == tuple(sorted(definitions()))
    for name in ("add", "elementwise_mul", "mul", "relu", "reduce_sum", "matmul"):
        plans = resolvable_plans(name)
        assert {plan.operation for plan in plans} == {name}
        assert len(set(plans)) == len(plans) > 10
    assert resolvable_plans("permute") == ()


def test_capability_mirrors_its_plan() -> None:
    capability = OperationCapability.from_plan(RELU)
    for field in ("operation", "operands", "compute", "accumulation", "accumulator_dtype", "output"):
        assert getattr(capability, field) == getattr(RELU, field)
    assert capability.matches(RELU)
    assert not capability.matches(resolve_operation_plan("relu", DType.Float64))
    for ask in (OperationCapability.from_plan, capability.matches):
        with pytest.raises(TypeError, match="OperationPlan"):
            ask("relu")  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("cls", [CPU, Generic])
@pytest.mark.parametrize("name", ["relu", "add", "gt", "reduce_sum"])
def test_capabilities_are_the_plans_that_run(cls: Any, name: str) -> None:
    capabilities = capabilities_for_carrier_class(cls, name)
    assert {c.operation for c in capabilities} == {name}
    assert set(capabilities) == {OperationCapability.from_plan(plan) for plan in resolvable_plans(name)}
    assert all(supports_operation_plan(cls, plan) for plan in resolvable_plans(name))


@pytest.mark.parametrize("dtype", DType.registered())
def test_relu_runs_where_it_is_said_to(dtype: Any) -> None:
    x = Tensor(CPU(2, dtype=dtype), 0, Layout.row_major(2))
    said = [c for c in x.carrier.operation_capabilities("relu") if c.operands[0].dtype is dtype]
    try:
        sw.relu(x)
    except TypeError:
        assert said == []
    else:
        assert len(said) == 1


def test_carrier_that_only_stores_says_why_it_cannot() -> None:
    carrier = FileBacked(dtype=DType.Float32)
    assert carrier.operation_capabilities() == ()
    assert not carrier.supports_operation_plan(RELU)
    reason = carrier.unsupported_plan_reason(RELU)
    assert reason is not None
    assert "only stores" in reason
    for ask in (lambda: carrier.require_operation_plan(RELU), lambda: require_capability(FileBacked, RELU)):
        with pytest.raises(UnsupportedOperationPlan, match="cannot run relu giving Float32 on FileBacked"):
            ask()
    CPU(1).require_operation_plan(RELU)
    assert issubclass(UnsupportedOperationPlan, NotImplementedError)


def test_views_are_there_on_every_carrier() -> None:
    plan = find("permute").resolve_call(sw.tensor([[1.0]]), how=(1, 0)).plan
    for carrier in (CPU(1), Generic([0], dtype=DType.Float32), FileBacked(dtype=DType.Float32)):
        assert carrier.supports_operation_plan(plan)


def test_plan_of_an_unknown_operation_is_unsupported() -> None:
    strange = OperationPlan("lab.strange", RELU.operands, RELU.compute, RELU.accumulation, None, DType.Float32)
    reason = CPU(1).unsupported_plan_reason(strange)
    assert reason is not None
    assert "no operation" in reason
    with pytest.raises(NotImplementedError, match="none of that name"):
        CPU(1).operation_capabilities("lab.strange")
    for wrong in (None, "relu", OperationCapability.from_plan(RELU)):
        with pytest.raises(TypeError, match="OperationPlan"):
            CPU(1).supports_operation_plan(wrong)
    with pytest.raises(TypeError, match="Carrier class"):
        capabilities_for_carrier_class(int)  # type: ignore[arg-type]  # what is refused


def test_evictable_can_what_its_primary_can() -> None:
    carrier = Evictable(CPU(2), FileBacked())
    assert carrier.operation_capabilities("relu") == CPU(1).operation_capabilities("relu")
    assert carrier.supports_operation_plan(RELU)
    assert sw.to_list(sw.relu(Tensor(carrier, 0, Layout.row_major(2)))) == [0.0, 0.0]
    stored = Evictable(defined()(2, dtype=DType.Float32), FileBacked())
    assert not stored.supports_operation_plan(RELU)
    with pytest.raises(TypeError, match="DependentCarrier"):
        capabilities_for_carrier_class(Evictable)


def test_executor_that_says_nothing_counts_by_what_was_registered() -> None:
    class Quiet:
        def execute(self, invocation: Any) -> Any:
            return ()

    cls: Any = type("Legacy", (Carrier,), {})
    register_executor(cls, Quiet())
    assert not supports_operation_plan(cls, RELU)
    register_operation_capabilities(cls, [OperationCapability.from_plan(RELU)])
    assert supports_operation_plan(cls, RELU)
    assert [c.operation for c in capabilities_for_carrier_class(cls)] == ["relu"]


def test_defined_class_can_what_its_kernels_take() -> None:
    add = resolve_operation_plan("add", DType.Float32, DType.Float32)
    cls = computing([kernel([RELU], "a"), kernel([RELU], "b"), kernel([add], "c")])
    carrier = cls(1, dtype=DType.Float32)
    assert carrier.operation_capabilities() == (
        OperationCapability.from_plan(RELU),
        OperationCapability.from_plan(add),
    )
    assert carrier.operation_capabilities("add") == (OperationCapability.from_plan(add),)
    assert carrier.supports_operation_plan(add)
    reason = carrier.unsupported_plan_reason(resolve_operation_plan("add", DType.Int8, DType.Int8))
    assert reason == "none of its kernels for add (c) takes these dtypes"
    carrier.release()
    assert len(carrier.operation_capabilities()) == 2
