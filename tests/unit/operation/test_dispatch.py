"""From a call to its results: binding, refusals in their order, the cache of resolutions, and new operations."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import DType, Layout
from strideweave.operation import (
    NON_DIFFERENTIABLE,
    BoundOperationCall,
    OperandKind,
    OperandSpec,
    OperationDefinition,
    OperationSchema,
    OptionSpec,
    ProviderContractError,
    ResolvedInvocation,
    ResultSpec,
    UnsupportedOperationPlan,
    define_operation,
    definitions,
    dispatch,
    find,
    pointwise_plan,
    resolve_pointwise,
)
from support.operations import on_generic

TENSOR, SCALAR, STRUCTURAL = OperandKind.TENSOR, OperandKind.WEAK_SCALAR, OperandKind.STRUCTURAL
ONE = OperationSchema([OperandSpec("x", TENSOR, differentiable=True)])


def resolve(call: BoundOperationCall) -> ResolvedInvocation:
    return resolve_pointwise(call)


def copied(invocation: ResolvedInvocation) -> Sequence[Sequence[Any]]:
    return [invocation.values(0)]


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`define_operation`, with what it defines forgotten after the test."""
    from strideweave.operation import definition

    monkeypatch.setattr(definition, "_definitions", dict(definition._definitions))
    return define_operation


# -- binding ---------------------------------------------------------------------------------------------------------


def test_bind_another_number_of_operands_is_refused_naming_those_it_takes() -> None:
    x = sw.tensor([1.0])
    for operands in ((), (x,), (x, x, x)):
        with pytest.raises(TypeError, match=rf"add with {len(operands)} operands: it takes 2 \(x, y\)"):
            find("add")(*operands)


def test_bind_operands_by_keyword_puts_them_in_their_places() -> None:
    x = sw.tensor([5.0])
    assert sw.to_list(find("sub")(x, y=2)) == sw.to_list(find("sub")(x=x, y=2)) == [3.0]
    with pytest.raises(TypeError, match="sub with 0 operands"):
        find("sub")(y=2)
    with pytest.raises(TypeError, match="option 'y'"):
        find("sub")(x, 2, y=3)


def test_bind_an_unknown_option_is_refused_naming_the_known_ones() -> None:
    x = sw.tensor([1.0])
    with pytest.raises(TypeError, match=r"gelu with option 'slope': it takes approximate\. Leave it out"):
        find("gelu")(x, slope=1)
    with pytest.raises(TypeError, match="add with option 'alpha': it takes no options"):
        find("add")(x, x, alpha=2)


def test_bind_without_a_required_option_is_refused() -> None:
    with pytest.raises(TypeError, match=r"convert: option dtype has no default. Pass dtype="):
        find("convert")(sw.tensor([1.0]))


def test_bind_fills_in_defaults_and_tells_the_kinds() -> None:
    x = sw.tensor([1.0])
    assert find("gelu").bind(x).options == {"approximate": "none"}
    call = find("add").bind(x, 2)
    assert (call.operands, call.operand_kinds) == ((x, 2), (TENSOR, SCALAR))
    assert (call.layouts, call.dtypes) == ((x.layout,), (DType.Float32,))


@pytest.mark.parametrize(
    "wrong", [None, "1", [1.0], 1j, torch.ones(1), Layout.row_major(1)], ids=lambda w: type(w).__name__
)
def test_bind_an_operand_of_a_wrong_kind_is_refused_naming_what_to_pass(wrong: object) -> None:
    x = sw.tensor([1.0])
    message = rf"add with y={type(wrong).__name__}: it takes a Tensor or a number there. .*from_torch"
    with pytest.raises(TypeError, match=message):
        sw.add(x, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"exp with x=.* it takes a Tensor there"):
        sw.exp(wrong)  # type: ignore[arg-type]


def test_bind_a_handle_is_refused_naming_wait() -> None:
    x = sw.tensor([1.0])
    handle = sw.move_async(x, sw.CPU(1))
    with pytest.raises(TypeError, match=r"add with y=AwaitMove.*wait\(\) turns a handle into a Tensor"):
        sw.add(x, handle)  # type: ignore[arg-type]
    assert sw.to_list(sw.add(handle.wait(), 1)) == [2.0]


# -- carriers --------------------------------------------------------------------------------------------------------


def test_operands_on_two_carrier_classes_are_refused() -> None:
    x = sw.tensor([1.0])
    with pytest.raises(TypeError, match="on CPU and Generic: Tensor backing carriers must match"):
        x + on_generic(x)
    with pytest.raises(TypeError, match="on Generic and CPU: Tensor backing carriers must match"):
        sw.select(on_generic(sw.gt(x, 0)), x, 1)


def test_numbers_alone_are_refused() -> None:
    with pytest.raises(TypeError, match="add on numbers alone: an operation takes at least one Tensor"):
        sw.add(1, 2)


def test_released_operand_is_refused() -> None:
    for x in (sw.tensor([1.0]), on_generic(sw.tensor([1.0]))):
        x.carrier.release()
        with pytest.raises(RuntimeError, match="carrier is released"):
            x + 1


def test_operand_on_a_carrier_that_only_stores_is_refused_naming_those_that_compute() -> None:
    stored = sw.move(sw.tensor([1.0, 2.0]), sw.FileBacked(dtype=DType.Float32))
    with pytest.raises(UnsupportedOperationPlan, match=r"exp on FileBacked: it only stores.*CPU.*Generic.*materialize"):
        sw.exp(stored)
    assert isinstance(UnsupportedOperationPlan("x"), NotImplementedError)


def test_operation_without_kernel_or_reference_is_refused_by_name(new: Any) -> None:
    bare = new("lab.bare", ONE, resolve, vjp=NON_DIFFERENTIABLE)
    x = sw.tensor([1.0])
    with pytest.raises(UnsupportedOperationPlan, match=r"lab\.bare on CPU: there is no kernel"):
        bare(x)
    with pytest.raises(UnsupportedOperationPlan, match=r"lab\.bare on Generic: its definition has no reference"):
        bare(on_generic(x))


def test_dispatched_operation_runs_on_its_own_carrier_class_only() -> None:
    x = sw.tensor([1.0])
    result = x * x.detach().requires_grad_()
    assert sw.to_list(result.autograd_ctx.forward(x, 3)) == [3.0]
    with pytest.raises(TypeError, match="dispatched by CPU on Generic"):
        result.autograd_ctx.forward(on_generic(x), 3)


# -- the cache -------------------------------------------------------------------------------------------------------


def counted(new: Any, name: str, schema: OperationSchema = ONE) -> tuple[OperationDefinition, list[BoundOperationCall]]:
    """An operation, and the calls that it was resolved for."""
    calls: list[BoundOperationCall] = []

    def counting(call: BoundOperationCall) -> ResolvedInvocation:
        calls.append(call)
        return resolve_pointwise(call)

    return new(name, schema, counting, copied, NON_DIFFERENTIABLE), calls


def test_calls_of_one_signature_are_resolved_once(new: Any) -> None:
    operation, calls = counted(new, "lab.cached")
    for values in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]):
        assert sw.to_list(operation(on_generic(sw.tensor(values)))) == values
    assert len(calls) == 1


def test_calls_of_another_layout_dtype_scalar_or_option_are_resolved_again(new: Any) -> None:
    two = OperationSchema([OperandSpec("x", TENSOR), OperandSpec("y", (TENSOR, SCALAR))], [OptionSpec("how", None)])
    operation, calls = counted(new, "lab.signature", two)
    x = on_generic(sw.tensor([[1.0, 2.0]]))
    turned = on_generic(sw.zeros(1, 2))
    signatures = [
        (x, x, None),
        (turned, x, None),
        (on_generic(sw.tensor([[1, 2]])), x, None),
        (x, 1, None),
        (x, 1.5, None),
        (x, True, None),
        (x, x, "other"),
    ]
    for a, b, how in signatures * 2:
        operation(a, b, how=how)
    assert len(calls) == len(signatures)
    operation(x, 2)
    operation(x, 7)
    assert len(calls) == len(signatures)


def test_scalar_of_a_cached_signature_is_the_one_of_the_call() -> None:
    x = sw.tensor([1.0])
    assert [sw.to_list(x + k) for k in range(3)] == [[1.0], [2.0], [3.0]]


def test_options_that_cannot_be_hashed_are_resolved_every_time(new: Any) -> None:
    schema = OperationSchema([OperandSpec("x", TENSOR)], [OptionSpec("how")])
    operation, calls = counted(new, "lab.unhashable", schema)
    x = on_generic(sw.tensor([1.0]))
    for _ in range(2):
        assert sw.to_list(operation(x, how=[1, 2])) == [1.0]
    assert len(calls) == 2


def test_cached_resolution_keeps_no_tensor_alive() -> None:
    layout = Layout.row_major(3, 7, 2)
    x = sw.zeros(3, 7, 2, layout=layout)
    y = sw.exp(x) + x
    watched = [weakref.ref(x), weakref.ref(x.carrier), weakref.ref(y.carrier)]
    del x, y
    gc.collect()
    assert [w() for w in watched] == [None, None, None]


def test_cache_that_is_full_is_emptied_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_CACHED", 2)
    monkeypatch.setattr(dispatch, "_resolutions", {})
    for n in range(1, 6):
        assert sw.to_list(sw.neg(sw.ones(n))) == [-1.0] * n
        assert len(dispatch._resolutions) <= 2


def test_resolution_that_raises_is_not_cached() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="broadcast-compatible"):
            sw.add(sw.zeros(2), sw.zeros(3))


# -- definitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["double", "", "lab.", ".double", "lab double", "lab.1", "1.lab", "lab..x"])
def test_define_a_name_without_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least two dot-separated identifiers"):
        define_operation(name, ONE, resolve, vjp=NON_DIFFERENTIABLE)


@pytest.mark.parametrize("name", ["strideweave.double", "add.fast", "reduce_sum.x"])
def test_define_in_the_namespace_of_the_built_in_ones_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="belongs to the built-in operations"):
        define_operation(name, ONE, resolve, vjp=NON_DIFFERENTIABLE)


def test_define_a_second_time_is_refused_and_the_first_stays(new: Any) -> None:
    first = new("lab.twice", ONE, resolve, vjp=NON_DIFFERENTIABLE)
    with pytest.raises(ValueError, match="there is one of that name already"):
        new("lab.twice", ONE, resolve, vjp=NON_DIFFERENTIABLE)
    assert find("lab.twice") is first
    assert definitions()["lab.twice"] is first


def test_define_without_a_vjp_is_refused_naming_what_says_that_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"its vjp is missing.*NON_DIFFERENTIABLE"):
        define_operation("lab.nameless", ONE, resolve)
    assert "lab.nameless" not in definitions()


def test_define_with_wrong_kinds_is_refused() -> None:
    with pytest.raises(TypeError, match="a name is text"):
        define_operation(3, ONE, resolve, vjp=NON_DIFFERENTIABLE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes an OperationSchema"):
        define_operation("lab.wrong", [OperandSpec("x", TENSOR)], resolve, vjp=NON_DIFFERENTIABLE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="resolve must be callable"):
        define_operation("lab.wrong", ONE, None, vjp=NON_DIFFERENTIABLE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="reference must be callable"):
        define_operation("lab.wrong", ONE, resolve, 3, NON_DIFFERENTIABLE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="vjp must be callable or NON_DIFFERENTIABLE"):
        define_operation("lab.wrong", ONE, resolve, vjp=None)
    assert "lab.wrong" not in definitions()


def test_schema_of_what_are_no_specs_or_of_repeated_names_is_refused() -> None:
    with pytest.raises(TypeError, match="made of OperandSpecs"):
        OperationSchema(["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="made of OptionSpecs"):
        OperationSchema([], ["how"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a name occurs twice"):
        OperationSchema([OperandSpec("x", TENSOR)], [OptionSpec("x")])
    with pytest.raises(ValueError, match="a name is an identifier"):
        OperandSpec("not a name", TENSOR)
    with pytest.raises(ValueError, match="a name is an identifier"):
        OptionSpec("")
    with pytest.raises(TypeError, match="it is an OperandKind"):
        OperandSpec("x", "tensor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only tensors have gradients"):
        OperandSpec("x", SCALAR, differentiable=True)


def test_schema_reads_an_iterable_once() -> None:
    schema = OperationSchema(OperandSpec(n, TENSOR) for n in "xy")
    assert [spec.name for spec in schema.operands] == ["x", "y"]
    assert [spec.kind.value for spec in schema.operands] == ["tensor", "tensor"]


def test_find_what_is_not_there_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"operation 'lab\.absent'"):
        find("lab.absent")
    with pytest.raises(TypeError, match="a name is text"):
        find(3)  # type: ignore[arg-type]


def test_definitions_is_a_copy() -> None:
    definitions().clear()  # type: ignore[attr-defined]
    assert find("add") is definitions()["add"]


def test_resolve_that_gives_something_else_is_a_broken_contract(new: Any) -> None:
    broken = new("lab.broken", ONE, lambda call: None, copied, NON_DIFFERENTIABLE)
    with pytest.raises(ProviderContractError, match="its resolve gave NoneType"):
        broken(on_generic(sw.tensor([1.0])))


def test_result_of_another_shape_than_its_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="the layout has another shape"):
        ResultSpec(DType.Float32, sw.Shape(3), Layout.row_major(2))


def test_new_operation_runs_is_recorded_and_has_its_gradient(new: Any) -> None:
    triple = new(
        "lab.triple", ONE, resolve, lambda i: [[3 * v for v in i.values(0)]], lambda context, g: (find("mul")(g, 3),)
    )
    x = on_generic(sw.tensor([1.0, 2.0])).requires_grad_()
    y = triple(x)
    assert sw.to_list(y) == [3.0, 6.0]
    assert y.autograd_ctx._operation_name == "lab.triple"
    (found,) = sw.grad(y, x, on_generic(sw.tensor([1.0, 10.0])))
    assert found is not None
    assert sw.to_list(found) == [3.0, 30.0]


def test_vjp_that_reads_what_was_not_saved_or_gives_too_few_is_a_broken_contract(new: Any) -> None:
    x = on_generic(sw.tensor([1.0])).requires_grad_()
    unsaved = new("lab.unsaved", ONE, resolve, copied, lambda context, g: (context.operand(0),))
    with pytest.raises(ProviderContractError, match="the resolution saves operands"):
        sw.grad(unsaved(x), x, x.detach())
    few = new("lab.few", ONE, resolve, copied, lambda context, g: ())
    with pytest.raises(ProviderContractError, match="its vjp gave 0 entries for 1 operands"):
        sw.grad(few(x), x, x.detach())
    number = new("lab.number", ONE, resolve, copied, lambda context, g: (1.0,))
    with pytest.raises(ProviderContractError, match="its vjp gave float"):
        sw.grad(number(x), x, x.detach())
    other = new("lab.other", ONE, resolve, copied, lambda context, g: (on_generic(sw.ones(2, 3)),))
    y = on_generic(sw.tensor([1.0, 2.0])).requires_grad_()
    with pytest.raises(ProviderContractError, match="gave a gradient of shape"):
        sw.grad(other(y), y, y.detach())


# -- results that are their operand ----------------------------------------------------------------------------------


def aliasing(new: Any, name: str) -> tuple[OperationDefinition, list[str]]:
    """An operation whose result is its operand, changed in place; and what ran."""
    ran: list[str] = []

    def resolve_alias(call: BoundOperationCall) -> ResolvedInvocation:
        (x,) = call.operands
        spec = ResultSpec(x.dtype(), x.shape, x.layout, alias_of=0)
        return ResolvedInvocation(call, pointwise_plan(call), (spec,), mutated_operands=(0,))

    def reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Any]]:
        ran.append(invocation.name)
        return copied(invocation)

    return new(name, ONE, resolve_alias, reference, lambda context, g: (g,)), ran


def test_recording_a_result_that_is_its_operand_is_refused_before_anything_runs(new: Any) -> None:
    operation, ran = aliasing(new, "lab.alias")
    x = on_generic(sw.tensor([1.0])).requires_grad_()
    with pytest.raises(ValueError, match="exact-object aliased"):
        operation(x)
    assert ran == []


def test_released_carrier_wins_over_the_refusal_of_an_alias(new: Any) -> None:
    operation, _ = aliasing(new, "lab.alias_released")
    x = on_generic(sw.tensor([1.0])).requires_grad_()
    x.carrier.release()
    with pytest.raises(RuntimeError, match="carrier is released"):
        operation(x)


def test_structural_operands_are_part_of_the_signature_and_need_no_tensor_kind(new: Any) -> None:
    schema = OperationSchema([OperandSpec("x", TENSOR), OperandSpec("how", STRUCTURAL)])
    operation, calls = counted(new, "lab.structural", schema)
    x = on_generic(sw.tensor([1.0]))
    for how in ("a", "b", "a", (1, 2)):
        operation(x, how)
    assert [call.operands[1] for call in calls] == ["a", "b", (1, 2)]
    assert calls[0].operand_kinds == (TENSOR, STRUCTURAL)


def test_tensor_where_structure_is_meant_is_refused_and_not_kept_alive() -> None:
    from strideweave.operation.reduction import REDUCE_SUM

    x, stray = sw.ones(2), sw.ones(2)
    with pytest.raises(TypeError, match="an option says how, never how much"):
        REDUCE_SUM(x, leaves=stray)
    with pytest.raises(TypeError):
        sw.layer_norm(x, 3)  # type: ignore[arg-type]
    carrier = weakref.ref(stray.carrier)
    del stray
    assert carrier() is None


def test_kernel_that_gives_a_part_or_a_view_of_something_is_copied_out_of_it() -> None:
    from strideweave.operation import (
        NON_DIFFERENTIABLE,
        OperandKind,
        OperandSpec,
        OperationSchema,
        define_operation,
        resolve_pointwise,
    )
    from strideweave.operation.torch_executor import kernel

    same = define_operation(
        "dispatchtest.same",
        OperationSchema([OperandSpec("x", OperandKind.TENSOR)]),
        resolve_pointwise,
        vjp=NON_DIFFERENTIABLE,
    )
    kernel("dispatchtest.same")(lambda invocation, x: x)
    x = sw.from_torch(torch.arange(8.0)[2:6])
    y = same(x)
    x[0] = 9.0
    assert sw.to_list(y) == [2.0, 3.0, 4.0, 5.0]
    best = sw.topk(sw.rand(100, rng=0), 2).values
    assert best.carrier._flat().untyped_storage().nbytes() == 2 * 4
