"""Facts, section h: autograd. What the unit tests say already is named here and not said twice.

    topology, accumulation, retain, versions, words of every refusal   unit/autograd/test_backward.py
    sw.grad, batched cotangents                                        unit/autograd/test_grad.py
    each gradient against torch and finite differences                 unit/operation/test_<family>.py
    the gradient of a move                                             unit/movement/test_differentiable_moves.py

Decided otherwise in `tensors.md`: a node needs an operand that requires a gradient; a rank-0 result needs no cotangent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import strideweave as sw
from strideweave import CPU, DType, Generic, Layout, Tensor


def leaf(*values: float) -> Tensor:
    return sw.tensor(list(values), requires_grad=True)


@pytest.mark.parametrize(
    ("operation", "is_recorded"),
    [
        (lambda x: x * x, True),
        (lambda x: sw.permute(x, 0), True),
        (lambda x: sw.convert(x, DType.Float64), True),
        (lambda x: sw.argmax(x), False),
        (lambda x: x < 1, False),
        (lambda x: sw.logical_not(x), False),
        (lambda x: sw.convert(x, DType.Int32), False),
    ],
)
def test_node_is_recorded_when_operand_and_result_have_gradients(
    operation: Callable[[Tensor], Tensor], is_recorded: bool
) -> None:
    x = leaf(1.0, 2.0)
    assert (operation(x).autograd_ctx is not None) is is_recorded
    assert operation(x.detach()).autograd_ctx is None
    with sw.no_grad():
        assert operation(x).autograd_ctx is None


def test_grad_mode_is_of_one_thread() -> None:
    seen: list[bool] = []
    with sw.no_grad():
        other = threading.Thread(target=lambda: seen.append(sw.is_grad_enabled()))
        other.start()
        other.join()
        seen.append(sw.is_grad_enabled())
    assert seen == [True, False]


def test_results_of_one_operation_have_contexts_that_share_it() -> None:
    x = sw.tensor([[3.0, 1.0], [2.0, 5.0]], requires_grad=True)
    first, second = sw.split(x, 1)
    assert first.autograd_ctx is not second.autograd_ctx
    values, places = sw.sort(leaf(2.0, 1.0))
    context = values.autograd_ctx
    assert (context._operation_name, context.index, places.autograd_ctx) == ("sort", 0, None)
    assert context.inputs() == context.operation.inputs()


def test_backward_without_a_gradient_takes_one_leaf_mode_of_extent_one() -> None:
    x = leaf(3.0)
    (x * x).backward()
    assert x.grad is not None
    assert sw.to_list(x.grad) == [6.0]
    for layout in (Layout.leaf(2, 1), Layout.column_major(1, 1)):
        y = Tensor(CPU(2), 0, layout, requires_grad=True) * 2
        with pytest.raises(ValueError, match="requires a gradient for non-scalar tensors"):
            y.backward()


def other_class(slots: int) -> Tensor:
    return Tensor(Generic([0.0] * slots, dtype=DType.Float32), 0, Layout.leaf(slots, 1))


def released() -> Tensor:
    tensor = other_class(3)
    tensor.carrier.release()
    return tensor


@pytest.mark.parametrize(
    ("gradient", "error", "words"),
    [
        (lambda: [1.0, 1.0], TypeError, "a gradient is a Tensor"),
        (released, RuntimeError, "released"),
        (lambda: other_class(3), TypeError, "dtype and the carrier class"),
        (lambda: sw.ones(3, dtype=DType.Float64), TypeError, "dtype and the carrier class"),
        (lambda: sw.ones(3), ValueError, "gradient layout must match tensor layout"),
        (lambda: Tensor(CPU(2), 0, Layout.leaf(2, 0)), ValueError, "gradient layout must match tensor layout"),
    ],
)
def test_gradient_is_checked_in_order_and_nothing_changes(
    gradient: Callable[[], Any], error: type[Exception], words: str
) -> None:
    x = leaf(1.0, 2.0)
    y = x * x
    with pytest.raises(error, match=words):
        y.backward(gradient())
    with pytest.raises(error, match=words):
        sw.grad(y, [x], gradient())
    assert x.grad is None
    y.backward(sw.ones(2))


def test_what_has_no_gradient_is_told_before_the_gradient_is_looked_at() -> None:
    for x in (sw.tensor([1, 2]), sw.tensor([1.0, 2.0])):
        for call in (lambda x=x: x.backward("junk"), lambda x=x: sw.grad(x, [x], "junk"), x.retain_grad):
            with pytest.raises(RuntimeError, match="not available"):
                call()


def test_second_traversal_is_told_before_a_saved_value_that_changed() -> None:
    x = leaf(1.0, 2.0)
    y = x * x
    y.backward(sw.ones(2))
    with sw.no_grad():
        x[0] = 5.0
    with pytest.raises(RuntimeError, match=r"backward through the graph a second time.*retain_graph=True"):
        y.backward(sw.ones(2))


def test_traversal_from_what_is_no_operation_is_refused() -> None:
    for junk in (None, 3, leaf(1.0)):
        with pytest.raises(TypeError, match="no recorded Operation"):
            Tensor.backwards_traversal(sw.ones(1), junk)


def test_there_is_no_graph_of_gradients() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(TypeError, match="create_graph"):
        (x * x).backward(sw.ones(2), create_graph=True)  # type: ignore[call-arg]
    (gradient,) = sw.grad(x * x, [x], sw.ones(2))
    assert gradient is not None
    assert (gradient.requires_grad, gradient.autograd_ctx) == (False, None)
    (x * x).backward(sw.ones(2))
    assert x.grad is not None
    assert (x.grad.requires_grad, x.grad.autograd_ctx) == (False, None)


def test_grad_takes_its_cotangents_by_place_and_leaves_grad_alone() -> None:
    x = leaf(1.0, 2.0)
    kept = sw.ones(2)
    x.grad = kept
    (gradient,) = sw.grad(x * x, [x], sw.tensor([1.0, 10.0]))
    assert gradient is not None
    assert sw.to_list(gradient) == [2.0, 40.0]
    assert x.grad is kept


def test_node_remembers_the_versions_of_its_inputs_and_its_backward_makes_no_nodes() -> None:
    x, y = sw.tensor([2.0], requires_grad=True), sw.tensor([3.0])
    y.carrier[y.offset] = 5.0
    node = (x + y).autograd_ctx
    y.carrier[y.offset] = 6.0
    assert node.input_versions() == (0, 1)
    first, second = (x * x).autograd_ctx.backward(sw.ones(1).requires_grad_())
    assert not first.requires_grad
    assert (first.autograd_ctx, second.autograd_ctx) == (None, None)
