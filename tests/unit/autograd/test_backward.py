"""backward: what reaches the leaves, in which order, and what is refused. Facts, section h."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

import strideweave as sw
from strideweave import DType, Layout, Shape, Stride, Tensor
from strideweave.dtype import StorageDType


def leaf(values: torch.Tensor) -> Tensor:
    return sw.from_torch(values.clone()).requires_grad_()


def grad_of(tensor: Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad.torch()


@pytest.fixture
def grad_mode() -> Iterator[None]:
    yield
    sw.set_grad_enabled(True)


# -- values ------------------------------------------------------------------------------------------------------------


def test_backward_diamond_adds_both_paths_and_visits_each_node_once() -> None:
    values = torch.tensor([1.0, -2.0, 3.0])
    x, other = leaf(values), values.clone().requires_grad_()
    shared = x * x
    sw.reduce_sum(shared * shared + sw.relu(shared) + x).backward()
    s = other * other
    (s * s + torch.relu(s) + other).sum().backward()
    assert torch.equal(grad_of(x), other.grad)


def test_backward_twice_over_two_graphs_accumulates_in_fresh_storage() -> None:
    x = leaf(torch.tensor([1.0, 2.0]))
    sw.reduce_sum(x * 3).backward()
    first = x.grad
    sw.reduce_sum(x * x).backward()
    assert grad_of(x).tolist() == [5.0, 7.0]
    assert first is not None
    assert first.torch().tolist() == [3.0, 3.0]


def test_backward_of_an_operand_used_twice_in_one_operation() -> None:
    x = leaf(torch.tensor([3.0]))
    (x * x).backward()
    assert grad_of(x).item() == 6.0


def test_backward_through_a_very_deep_graph_does_not_recurse() -> None:
    x = leaf(torch.tensor([1.0]))
    y = x
    for _ in range(5000):
        y = y + 1
    y.backward()
    assert grad_of(x).item() == 1.0


def test_backward_with_a_gradient_weights_the_result() -> None:
    x = leaf(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    y = x * x
    y.backward(sw.from_torch(torch.tensor([[1.0, 0.0], [0.5, 2.0]])))
    assert grad_of(x).tolist() == [[2.0, 0.0], [3.0, 16.0]]


def test_backward_reaches_only_what_requires_a_gradient() -> None:
    x, constant = leaf(torch.tensor([1.0, 2.0])), sw.tensor([5.0, 6.0])
    sw.reduce_sum(x * constant).backward()
    assert grad_of(x).tolist() == [5.0, 6.0]
    assert constant.grad is None


def test_branch_without_a_gradient_is_not_run() -> None:
    x = leaf(torch.tensor([1.0, 2.0]))
    values, indices = sw.sort(x)
    assert values.requires_grad
    assert not indices.requires_grad
    sw.reduce_sum(values * 2).backward()
    assert grad_of(x).tolist() == [2.0, 2.0]


# -- what a gradient is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        Layout.row_major(2, 3),
        Layout.column_major(2, 3),
        Layout(Shape(2, 3), Stride(10, 2)),
        Layout(Shape(2, (3, 1)), Stride(3, (1, 0))),
    ],
)
def test_grad_has_the_layout_of_an_injective_leaf_in_storage_of_its_own(layout: Layout) -> None:
    x = Tensor(sw.CPU(layout.cosize + 4), 4, layout, requires_grad=True)
    sw.reduce_sum(x * 2).backward()
    assert x.grad is not None
    assert x.grad.layout == layout
    assert x.grad.offset == 0
    assert x.grad.carrier is not x.carrier
    assert x.grad.carrier_type() is sw.CPU
    assert not x.grad.requires_grad
    assert x.grad.is_leaf
    assert [x.grad[k] for k in range(6)] == [2.0] * 6


def test_grad_of_a_broadcast_leaf_has_a_slot_for_every_coordinate() -> None:
    x = Tensor(sw.CPU.wrap(torch.tensor([7.0])), 0, Layout(Shape(2, 3), Stride(0, 0)), requires_grad=True)
    weights = torch.arange(6.0).reshape(2, 3)
    sw.reduce_sum(x * sw.from_torch(weights)).backward()
    assert x.grad is not None
    assert x.grad.layout == Layout.column_major(2, 3)
    assert torch.equal(x.grad.torch(), weights)


def test_grad_of_a_generic_leaf_is_generic() -> None:
    x = Tensor(sw.Generic([1.0, 2.0, 3.0], dtype=DType.Float32), 0, Layout.column_major(3), requires_grad=True)
    sw.reduce_sum(x * x).backward()
    assert x.grad is not None
    assert x.grad.carrier_type() is sw.Generic
    assert sw.to_list(x.grad) == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("dtype", [DType.Float64, DType.Float32, DType.BFloat16, DType.Float16])
def test_grad_has_the_dtype_of_its_leaf_across_promotion(dtype: StorageDType) -> None:
    x = sw.convert(sw.tensor([1.0, 2.0]), dtype).requires_grad_()
    wide = sw.convert(sw.tensor([3.0, 4.0]), DType.Float64)
    sw.reduce_sum(x * wide).backward()
    assert x.grad is not None
    assert x.grad.dtype() is dtype
    assert sw.to_list(x.grad) == [3.0, 4.0]


def test_retain_grad_keeps_the_gradient_of_what_an_operation_made() -> None:
    x = leaf(torch.tensor([1.0, 2.0]))
    y = x * 2
    z = y * y
    y.retain_grad()
    sw.reduce_sum(z).backward()
    assert y.grad is not None
    assert y.grad.torch().tolist() == [4.0, 8.0]
    assert z.grad is None
    y.retain_grad(False)


def test_setting_grad_checks_it() -> None:
    x = leaf(torch.zeros(2))
    x.grad = sw.ones(2)
    assert grad_of(x).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="shape and dtype"):
        x.grad = sw.ones(3)
    with pytest.raises(TypeError, match="Tensor or None"):
        x.grad = torch.zeros(2)  # type: ignore[assignment]
    x.grad = None
    assert x.grad is None
    with pytest.raises(RuntimeError, match="not available"):
        sw.tensor([1, 2]).grad = sw.ones(2)


# -- recording ---------------------------------------------------------------------------------------------------------


def test_nothing_is_recorded_unless_somebody_asks() -> None:
    x = sw.tensor([1.0])
    assert (x * 2).autograd_ctx is None
    assert not (x * 2).requires_grad


def test_recorded_node_is_the_operation_and_knows_its_operands(grad_mode: None) -> None:
    x, c = leaf(torch.tensor([1.0])), sw.tensor([2.0])
    y = x * c
    node = y.autograd_ctx
    assert isinstance(node, sw.operation.Operation)
    assert node._operation_name == "mul"
    assert node._dispatch_carrier_class is sw.CPU
    assert node.inputs() == (x, c)
    assert node.input_versions() == (x.version, c.version)
    assert node.ctx == {}
    entries = node.backward(sw.ones(1))
    assert entries[0] is not None
    assert sw.to_list(entries[0]) == [2.0]
    assert entries[1] is None


def test_no_grad_nests_and_restores_after_an_exception(grad_mode: None) -> None:
    x = leaf(torch.tensor([1.0]))
    with sw.no_grad():
        with sw.no_grad():
            assert not sw.is_grad_enabled()
        assert not sw.is_grad_enabled()
        assert not (x * 2).requires_grad
    assert sw.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), sw.no_grad():
        1 / 0  # noqa: B018
    assert sw.is_grad_enabled()


def test_no_grad_decorates_and_modes_are_of_one_thread(grad_mode: None) -> None:
    import threading

    @sw.no_grad()
    def f() -> bool:
        return sw.is_grad_enabled()

    assert f() is False
    assert f() is False
    seen = []
    with sw.no_grad():
        thread = threading.Thread(target=lambda: seen.append(sw.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]
    with pytest.raises(TypeError, match="on or off"):
        sw.set_grad_enabled(1)  # type: ignore[arg-type]


def test_whole_numbers_do_not_require_gradients() -> None:
    with pytest.raises(RuntimeError, match="not available"):
        sw.tensor([1, 2]).requires_grad_()
    with pytest.raises(RuntimeError, match="not available"):
        Tensor(sw.CPU(2, dtype=DType.Int32), 0, Layout.column_major(2), requires_grad=True)


def test_made_tensor_cannot_stop_requiring_and_detached_one_does_not() -> None:
    x = leaf(torch.tensor([1.0]))
    y = x * 2
    with pytest.raises(RuntimeError, match="detach"):
        y.requires_grad_(False)
    assert not y.detach().requires_grad
    assert y.detach().carrier is y.carrier
    assert not x.requires_grad_(False).requires_grad


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_backward_needs_a_gradient_unless_there_is_one_value() -> None:
    x = leaf(torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="requires a gradient for non-scalar tensors"):
        (x * 2).backward()
    assert x.grad is None


def test_backward_of_what_requires_nothing_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not available"):
        sw.tensor([1.0]).backward()
    with pytest.raises(RuntimeError, match="not available"):
        sw.tensor([1]).backward()
    with pytest.raises(RuntimeError, match="not available"):
        sw.tensor([1.0]).retain_grad()


def test_gradient_layout_must_equal_that_of_an_injective_target() -> None:
    x = leaf(torch.ones(2, 3))
    y = x * 2
    with pytest.raises(ValueError, match="gradient layout must match tensor layout"):
        y.backward(Tensor(sw.CPU(6), 0, Layout.column_major(2, 3)))
    y.backward(Tensor(sw.CPU(6), 0, Layout.row_major(2, 3)))


def test_gradient_of_a_broadcast_target_must_be_injective() -> None:
    x = leaf(torch.ones(1, 3))
    y = sw.broadcast_to(x, (2, 3))
    with pytest.raises(ValueError, match="injective"):
        y.backward(Tensor(sw.CPU(3), 0, Layout(Shape(2, 3), Stride(0, 1))))
    with pytest.raises(ValueError, match="gradient layout must match"):
        y.backward(sw.ones(3, 2))
    y.backward(sw.ones(2, 3))
    assert grad_of(x).tolist() == [[2.0, 2.0, 2.0]]


def test_gradient_of_another_kind_is_refused() -> None:
    x = leaf(torch.ones(2))
    y = x * 2
    with pytest.raises(TypeError, match="gradient is a Tensor"):
        y.backward(torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dtype and the carrier class"):
        y.backward(sw.ones(2, dtype=DType.Float64))
    with pytest.raises(TypeError, match="dtype and the carrier class"):
        y.backward(Tensor(sw.Generic([1.0, 1.0], dtype=DType.Float32), 0, Layout.column_major(2)))
    released = sw.ones(2)
    released.carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        y.backward(released)
    assert x.grad is None


def test_second_backward_needs_a_retained_graph() -> None:
    x = leaf(torch.tensor([2.0]))
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert grad_of(x).item() == 8.0
    with pytest.raises(RuntimeError, match=r"backward through the graph a second time.*retain_graph=True"):
        y.backward()
    assert grad_of(x).item() == 8.0


def test_shared_part_freed_by_another_backward_is_refused_and_nothing_accumulates() -> None:
    x = leaf(torch.tensor([2.0]))
    shared = x * x
    (shared * 2).backward()
    with pytest.raises(RuntimeError, match="second time"):
        (shared * 3).backward()
    assert grad_of(x).item() == 8.0


@pytest.mark.parametrize("how", ["element", "torch", "from_torch source"])
def test_saved_value_modified_in_place_is_noticed(how: str) -> None:
    source = torch.tensor([1.0, 2.0])
    c = sw.from_torch(source)
    x = leaf(torch.tensor([1.0, 1.0]))
    y = sw.reduce_sum(x * c)
    if how == "element":
        c[0] = 5.0
    elif how == "torch":
        c.torch().add_(1)
    else:
        source.mul_(2)
    with pytest.raises(RuntimeError, match="modified in-place"):
        y.backward()
    assert x.grad is None


def test_unsaved_value_may_be_modified() -> None:
    c = sw.tensor([1.0, 2.0])
    x = leaf(torch.tensor([1.0, 1.0]))
    y = sw.reduce_sum(x + c)
    c[0] = 5.0
    y.backward()
    assert grad_of(x).tolist() == [1.0, 1.0]


def test_saved_value_released_is_noticed() -> None:
    c, x = sw.tensor([1.0, 2.0]), leaf(torch.tensor([1.0, 1.0]))
    y = sw.reduce_sum(x * c)
    c.carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        y.backward()


def test_failure_in_the_middle_leaves_every_grad_and_the_graph() -> None:
    a, b, c = leaf(torch.tensor([1.0])), leaf(torch.tensor([2.0])), sw.tensor([3.0])
    y = (a * b) + (b * c)
    c.carrier._version += 1
    with pytest.raises(RuntimeError, match="modified in-place"):
        y.backward()
    assert a.grad is None
    assert b.grad is None
    c.carrier._version -= 1
    y.backward()
    assert grad_of(a).item() == 2.0
    assert grad_of(b).item() == 4.0


def test_backwards_traversal_starts_from_an_operation() -> None:
    x = leaf(torch.tensor([3.0]))
    y = x * x
    Tensor.backwards_traversal(sw.ones(1), y.autograd_ctx)
    assert grad_of(x).item() == 6.0


# -- memory ------------------------------------------------------------------------------------------------------------


def test_result_and_its_graph_are_freed_without_the_collector() -> None:
    x = leaf(torch.ones(3))
    gc.collect()
    gc.disable()
    try:
        y = sw.relu(x * 2)
        carrier = weakref.ref(y.carrier)
        node = y.autograd_ctx
        inner = weakref.ref(node.inputs()[0].carrier)
        del y, node
        assert carrier() is None
        assert inner() is None
    finally:
        gc.enable()


def test_backward_lets_go_of_what_was_saved() -> None:
    x = leaf(torch.ones(3))
    c = sw.tensor([1.0, 2.0, 3.0])
    held = weakref.ref(c.carrier)
    y = sw.reduce_sum(x * c)
    y.backward()
    del c
    assert held() is None
    assert y.requires_grad


@pytest.mark.parametrize("function", [sw.relu, sw.exp, lambda x: sw.sort(x)[0]])
def test_result_that_its_own_gradient_needs_is_noticed_when_modified(function: Callable[[Tensor], Tensor]) -> None:
    x = leaf(torch.tensor([1.0, 2.0]))
    y = function(x)
    total = sw.reduce_sum(y)
    node = y.autograd_ctx
    (getattr(node, "operation", node)._outputs[-1]).torch().add_(1)
    with pytest.raises(RuntimeError, match="modified in-place"):
        total.backward()
    assert x.grad is None


def test_result_that_no_gradient_needs_may_be_modified() -> None:
    x = leaf(torch.tensor([1.0, 2.0]))
    y = x + 1
    total = sw.reduce_sum(y)
    y.torch().add_(1)
    total.backward()
    assert grad_of(x).tolist() == [1.0, 1.0]


def test_only_values_that_the_wanted_gradients_need_must_stay() -> None:
    x, w = sw.tensor([1.0, 2.0]), leaf(torch.tensor([3.0, 4.0]))
    y = sw.reduce_sum(w * x)
    w.detach()[0] = 9.0  # the gradient of w needs x alone
    y.backward()
    assert grad_of(w).tolist() == [1.0, 2.0]


def test_gradients_pass_views_and_meet_on_a_carrier_that_only_stores() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    x = leaf(values)
    stored = sw.move(x * 1, sw.FileBacked())
    turned = sw.move(sw.permute(stored, 1, 0)[0:2, :], sw.CPU(0))
    (sw.reduce_sum(turned * turned)).backward()
    other = values.clone().requires_grad_()
    (other.T[0:2] ** 2).sum().backward()
    assert torch.equal(grad_of(x), other.grad)


def test_second_gradient_of_a_leaf_in_a_file_is_added_there() -> None:
    x = Tensor(sw.FileBacked(size=2), 0, Layout.column_major(2), requires_grad=True)
    for weight in (2.0, 3.0):
        view = sw.reshape(x, (2, 1))
        view.backward(Tensor(sw.FileBacked(size=2), 0, Layout.column_major(2, 1)).detach())
        assert x.grad is not None
        x.grad[0] = weight + x.grad[0]
    assert x.grad.carrier_type() is sw.FileBacked
    assert sw.to_list(x.grad) == [5.0, 0.0]
