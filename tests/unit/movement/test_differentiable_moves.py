"""Moves in a graph: the gradient goes back by the reverse route, against torch; and what a profile sees of moves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import CPU, Carrier, DType, FileBacked, Generic, Layout, Shape, Stride, Tensor
from strideweave.carriers.block_device import BlockDevice, BlockDeviceCarrier
from strideweave.carriers.extension import (
    CarrierDefinition,
    PreparedTransfer,
    TransferProvider,
    TransferRequest,
    TransferRoute,
    register_carrier_definition,
)
from strideweave.carriers.move import (
    MoveOperation,
    move,
    move_async,
    register_move_operation,
    registered_move_operation,
    unregister_move_operation,
)
from strideweave.operation.node import Operation
from strideweave.tensor.copying import fresh_copy, values_of
from support.defined import defined, list_storage, run_storage
from support.loop_device import loop_device
from support.operations import dense, place
from support.scripted_carrier import ScriptedCarrier

FAR = defined(run_storage(elementwise_fallback=True), name="Far")
ACROSS: dict[str, Callable[[], Carrier]] = {
    "cpu": lambda: CPU(0),
    "file": FileBacked,
    "generic": lambda: Generic([], dtype=DType.Float32),
    "scripted": ScriptedCarrier,
    "defined": lambda: FAR(0, dtype=DType.Float32),
}
LAYOUTS = {
    "row-major": Layout.row_major(3, 4),
    "column-major": Layout.column_major(3, 4),
    "gaps": Layout(Shape(3, 4), Stride(2, 9)),
    "nested": Layout(Shape((3, 2), 2), Stride((1, 8), 4)),
    "broadcast": Layout(Shape(3, 4), Stride(0, 2)),
    "one slot": Layout(Shape(5), Stride(0)),
}


def leaf(values: torch.Tensor, layout: Layout, *, offset: int = 0, carrier: Carrier | None = None) -> Tensor:
    return Tensor(carrier or CPU.wrap(values.clone()), offset, layout, requires_grad=True)


def ordinary(requires_grad: bool = True) -> Tensor:
    return leaf(torch.arange(6.0), Layout.row_major(2, 3)) if requires_grad else sw.from_torch(torch.arange(6.0))


def on(carrier: Carrier, values: torch.Tensor) -> Tensor:
    """A leaf on an empty carrier of any class."""
    return move(sw.from_torch(values.clone()), carrier).requires_grad_()


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("by", ACROSS)
def test_gradient_passes_two_moves_in_a_graph_as_if_they_were_not_there(by: str, layout: Layout) -> None:
    values = torch.randn(2 + layout.cosize + 3)
    x = leaf(values, layout, offset=2)
    seen = sw.Tensor(CPU.wrap(values.clone()), 2, layout)
    y = sw.exp(move(move(x * 2.0, ACROSS[by]()), CPU(0)))
    weights = torch.randn([mode.size for mode in layout])
    (y * place(weights, y.layout)).backward(place(torch.ones_like(weights), y.layout))
    expected = dense(seen).requires_grad_()
    ((expected * 2).exp() * weights).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(dense(x.grad), expected.grad)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("out_of", ACROSS)
def test_gradient_of_a_moved_leaf_is_on_a_fresh_carrier_of_its_class(out_of: str, layout: Layout) -> None:
    values = torch.randn(3 + layout.cosize)
    start = move(Tensor(CPU.wrap(values.clone()), 0, Layout.row_major(values.numel())), ACROSS[out_of]())
    x = Tensor(start.carrier, 3, layout, requires_grad=True)
    y = move(x, CPU(0))
    weights = place(torch.randn([mode.size for mode in layout]), Layout.row_major(*[m.size for m in layout]))
    if weights.shape == y.shape:
        sw.reduce_sum(y * y * weights).backward()
        expected = 2 * dense(y) * dense(weights)
    else:
        sw.reduce_sum(y * y).backward()
        expected = 2 * dense(y)
    assert x.grad is not None
    assert x.grad.carrier_type() is type(start.carrier)
    assert x.grad.carrier is not start.carrier
    assert start.carrier.is_released()
    assert not x.grad.carrier.is_owned()
    assert not x.grad.requires_grad
    torch.testing.assert_close(values_dense(x.grad), expected)


def values_dense(tensor: Tensor) -> torch.Tensor:
    return dense(fresh_copy(tensor, tensor.layout, like=CPU(0, dtype=tensor.dtype())))


@pytest.mark.parametrize("dtype", [DType.Float64, DType.Float32, DType.BFloat16, DType.Float16], ids=lambda d: d.name)
def test_gradient_has_the_dtype_of_what_was_moved(dtype: sw.DType) -> None:
    values = torch.randn(6).to(dtype.torch_dtype)
    x = on(FileBacked(dtype=dtype), values)
    sw.reduce_sum(move(x, CPU(0, dtype=dtype)) * 3.0).backward()
    assert x.grad is not None
    assert x.grad.dtype() is dtype
    assert values_dense(x.grad).tolist() == [3.0] * 6


@pytest.mark.parametrize(
    "gradient",
    [
        Tensor(CPU.wrap(torch.tensor([2.0])), 0, Layout(Shape(2, 3), Stride(0, 0))),
        Tensor(CPU.wrap(torch.arange(9.0)), 3, Layout(Shape(2, 3), Stride(0, 2))),
        Tensor(CPU.wrap(torch.arange(20.0)), 1, Layout(Shape(2, 3), Stride(7, 2))),
        Tensor(CPU.wrap(torch.arange(6.0)), 0, Layout.column_major(2, 3)),
    ],
    ids=["one value", "broadcast", "gaps", "another order"],
)
@pytest.mark.parametrize("out_of", ACROSS)
def test_node_takes_a_cotangent_of_any_layout_and_leaves_it(out_of: str, gradient: Tensor) -> None:
    x = on(ACROSS[out_of](), torch.zeros(2, 3))
    y = move(x, CPU(0))
    (back,) = y.autograd_ctx.backward(gradient)
    assert back.carrier_type() is x.carrier_type()
    assert back.shape == x.shape
    assert torch.equal(values_dense(back), dense(gradient))
    assert not gradient.carrier.is_released()
    assert not gradient.carrier.is_owned()


@pytest.mark.parametrize("layout", [LAYOUTS["gaps"], LAYOUTS["nested"]], ids=["gaps", "nested"])
def test_gradient_that_is_given_on_a_carrier_that_only_stores_passes(layout: Layout) -> None:
    x = leaf(torch.randn(layout.cosize), layout)
    y = move(x, FileBacked())
    weights = torch.randn(layout.cosize)
    y.backward(move(Tensor(CPU.wrap(weights.clone()), 0, layout), FileBacked()))
    assert x.grad is not None
    assert torch.equal(values_of(x.grad), values_of(Tensor(CPU.wrap(weights), 0, layout)))


def test_node_refuses_a_cotangent_whose_carrier_is_released() -> None:
    y = move(ordinary(), FileBacked())
    gradient = move(sw.from_torch(torch.ones(2, 3)), FileBacked())
    gradient.carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        y.autograd_ctx.backward(gradient)


# -- the graph -------------------------------------------------------------------------------------------------------


def test_node_of_a_move_is_one_visible_operation() -> None:
    x = ordinary()
    y = move(x, FileBacked())
    node = y.autograd_ctx
    assert isinstance(node, Operation)
    assert node._operation_name == "move"
    assert node.inputs() == (x,)
    assert node.inputs()[0] is x
    assert node.input_versions() == (0,)
    assert (y.requires_grad, y.is_leaf, x.is_leaf) == (True, False, True)
    z = move(y, CPU(0))
    assert z.autograd_ctx.inputs()[0] is y
    assert "move" in repr(z)


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("is_recording", [True, False])
def test_moved_tensor_requires_a_gradient_when_the_move_is_recorded(requires_grad: bool, is_recording: bool) -> None:
    x = ordinary(requires_grad)
    with nullcontext() if is_recording else sw.no_grad():
        y = move(x, FileBacked())
    assert y.requires_grad is (requires_grad and is_recording)
    assert (y.autograd_ctx is None) is not (requires_grad and is_recording)


def test_move_is_recorded_in_the_mode_of_its_request_not_of_its_end() -> None:
    source = ScriptedCarrier(torch.ones(4))
    x = Tensor(source, 0, Layout.row_major(4), requires_grad=True)
    with source.hold_read() as hold:
        handle = move_async(x, CPU(0))
        hold.wait_until_reached()
        with sw.no_grad():
            hold.let_go()
            assert handle.wait(20).requires_grad


def test_move_of_whole_numbers_is_not_recorded() -> None:
    moved = move(sw.from_torch(torch.arange(6)), FileBacked(dtype=DType.Int64))
    assert (moved.requires_grad, moved.autograd_ctx) == (False, None)


def test_retained_graph_gives_the_gradient_again_and_a_freed_one_refuses() -> None:
    x = ordinary()
    y = sw.reduce_sum(move(move(x, FileBacked()), CPU(0)) * 5.0)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    assert x.grad.torch().tolist() == [[10.0] * 3] * 2
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()
    assert x.grad.torch().tolist() == [[10.0] * 3] * 2


def test_retained_gradient_of_a_moved_tensor_is_on_its_class() -> None:
    y = move(ordinary(), FileBacked())
    y.retain_grad()
    sw.reduce_sum(move(y, CPU(0)) * 4.0).backward()
    assert y.grad is not None
    assert y.grad.carrier_type() is FileBacked
    assert values_dense(y.grad).tolist() == [[4.0] * 3] * 2


def test_grad_gives_the_gradient_and_touches_none() -> None:
    x = ordinary()
    (found,) = sw.grad(sw.reduce_sum(move(move(x, FileBacked()), CPU(0)) * 5.0), x)
    assert found is not None
    assert found.torch().tolist() == [[5.0] * 3] * 2
    assert x.grad is None


def test_used_up_graph_keeps_no_carrier_that_was_moved_away() -> None:
    x = ordinary()
    y = move(x, FileBacked())
    carrier, path = weakref.ref(y.carrier), Path(y.carrier.path)  # type: ignore[attr-defined]
    z = sw.reduce_sum(move(y, CPU(0)))
    del y
    assert not path.exists()
    assert carrier() is not None  # the class of the gradient
    z.backward()
    gc.collect()
    assert carrier() is None


# -- the reverse route -----------------------------------------------------------------------------------------------


class Copied:
    done = True

    def __init__(self, request: TransferRequest) -> None:
        self._request = request

    def wait(self) -> Any:
        source, destination = self._request.tensor, self._request.destination
        run = torch.empty(self._request.physical_span)
        source.carrier._read_runs([(source.offset, run)])
        destination._write_runs([(0, run)])


def copying(request: TransferRequest) -> PreparedTransfer:
    return PreparedTransfer(lambda: Copied(request))


def one_way() -> type[Carrier]:
    cls = type("OneWay", (Carrier,), {})
    route = TransferRoute(CPU, cls, "lab.enter", TransferProvider(copying))
    register_carrier_definition(cls, CarrierDefinition(list_storage(), transfers=[route]))
    return cls


def test_missing_reverse_route_is_refused_before_anything_changes() -> None:
    x, destination = ordinary(), one_way()(0, dtype=DType.Float32)
    with pytest.raises(NotImplementedError, match=r"reverse route \(OneWay, CPU\).*no_grad"):
        move_async(x, destination)
    assert not x.carrier.is_owned()
    assert not destination.is_owned()
    assert (x.carrier.version, destination.version, destination.size()) == (0, 0, 0)


def test_no_reverse_route_is_needed_without_a_gradient() -> None:
    cls = one_way()
    with sw.no_grad():
        moved = move(ordinary(), cls(0, dtype=DType.Float32))
    assert not moved.requires_grad
    assert [moved[1, k] for k in range(3)] == [3.0, 4.0, 5.0]
    assert not move(ordinary(requires_grad=False), cls(0, dtype=DType.Float32)).requires_grad


class Back(ScriptedCarrier):
    """A class of this test's own."""


class Failing(MoveOperation):
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.calls = 0

    def copy(self, source: Carrier, offset: int, destination: Carrier, count: int) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        run = torch.empty(count)
        source._read_runs([(offset, run)])
        destination._write_runs([(0, run)])


@pytest.fixture
def reverse() -> Iterator[Failing]:
    operation = Failing()
    register_move_operation(Back, CPU, operation)
    yield operation
    if registered_move_operation(Back, CPU) is not None:
        unregister_move_operation(Back, CPU)


def test_reverse_route_is_the_one_of_the_moment_of_the_move(reverse: Failing) -> None:
    x = ordinary()
    y = move(x, Back())
    unregister_move_operation(Back, CPU)
    y.backward(move(sw.from_torch(torch.ones(2, 3)), Back()))
    assert reverse.calls == 1
    assert x.grad is not None
    assert x.grad.torch().tolist() == [[1.0] * 3] * 2


def test_failed_reverse_move_leaves_every_grad_and_the_graph_as_they_were(reverse: Failing) -> None:
    error = OSError("the wire was cut")
    x, w = ordinary(), leaf(torch.ones(6), Layout.row_major(2, 3))
    sw.reduce_sum(w * 7.0).backward()
    before = w.grad
    y = sw.reduce_sum(move(move(x, Back()), CPU(0)) * w)
    reverse.error = error
    with pytest.raises(OSError, match="wire") as caught:
        y.backward()
    assert caught.value is error
    assert x.grad is None
    assert w.grad is before
    assert w.grad is not None
    assert w.grad.torch().tolist() == [[7.0] * 3] * 2
    reverse.error = None
    y.backward()  # the graph is still there
    assert x.grad is not None
    assert x.grad.torch().tolist() == [[1.0] * 3] * 2
    assert w.grad.torch().tolist() == [[7.0 + k for k in range(3)], [7.0 + k for k in range(3, 6)]]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[BlockDevice]:
    with loop_device(tmp_path, 2**20) as path, BlockDevice(path) as opened:
        yield opened


def test_gradient_of_a_leaf_on_a_block_device_is_on_that_device(device: BlockDevice) -> None:
    x = on(device.allocate(0), torch.arange(6.0).reshape(2, 3))
    y = move(x, CPU(0))
    sw.reduce_sum(y * y).backward()
    assert x.grad is not None
    assert isinstance(x.grad.carrier, BlockDeviceCarrier)
    assert x.grad.carrier.device is device
    assert values_dense(x.grad).tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    del x, y
    gc.collect()


# -- handles are no operands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        sw.relu,
        lambda h: sw.add(h, sw.ones(6)),
        lambda h: sw.ones(6) + h,
        lambda h: sw.matmul(h, h),
        lambda h: move(h, CPU(0)),
    ],
    ids=["relu", "add", "operator", "matmul", "move"],
)
def test_handle_as_an_operand_is_refused(operation: Callable[[object], object]) -> None:
    handle = move_async(ordinary(), FileBacked())
    with pytest.raises(TypeError):
        operation(handle)
    handle.wait(20)


# -- the profile -----------------------------------------------------------------------------------------------------


def test_profile_sees_a_submission_and_later_its_completion() -> None:
    source = ScriptedCarrier(torch.ones(4))
    tensor = Tensor(source, 0, Layout.row_major(4))
    with source.hold_read() as hold:
        with sw.profile(record_shapes=True) as p:
            handle = move_async(tensor, CPU(0))
            hold.wait_until_reached()
        (submit,) = p.events()
        assert (submit.name, submit.carrier_type, submit.parent_id) == ("move.submit", ScriptedCarrier, None)
        assert submit.input_shapes == (Shape(4),)
    handle.wait(20)
    submit, complete = p.events()  # it is there before the handle is done
    assert (complete.name, complete.carrier_type, complete.parent_id) == ("move.complete", ScriptedCarrier, submit.id)
    assert complete.thread_id != submit.thread_id
    assert submit.id < complete.id
    assert submit.start_time_ns <= complete.start_time_ns
    assert complete.succeeded


def test_profile_sees_no_move_that_was_refused_and_the_end_of_one_that_failed() -> None:
    source = ScriptedCarrier(torch.ones(4))
    tensor = Tensor(source, 0, Layout.row_major(4))
    source.fail_read(1, OSError("no"))
    with sw.profile() as p:
        with pytest.raises(ValueError, match="too small"):
            move_async(tensor, CPU(3))
        with pytest.raises(OSError, match="no"):
            move(tensor, CPU(0))
    assert [(event.name, event.succeeded) for event in p.events()] == [("move.submit", True), ("move.complete", False)]


def test_profile_keeps_moves_of_the_source_classes_it_looks_at() -> None:
    with sw.profile(carriers={FileBacked}) as p:
        move(move(ordinary(requires_grad=False), FileBacked()), CPU(0))
    assert [(event.name, event.carrier_type) for event in p.events()] == [
        ("move.submit", FileBacked),
        ("move.complete", FileBacked),
    ]
