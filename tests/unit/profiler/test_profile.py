"""`sw.profile`: which events there are, what they tell, and the trace that other tools open. Facts, section j."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

import strideweave as sw
from strideweave import CPU, DType, FileBacked, Generic, Layout, Shape, Tensor


def generic(*values: float) -> Tensor:
    return Tensor(Generic(values, dtype=DType.Float32), 0, Layout.column_major(len(values)))


def test_operations_are_events_in_the_order_in_which_they_ran() -> None:
    x = sw.tensor([1.0, 2.0])
    with sw.profile() as p:
        sw.relu(x + 1)
    sw.neg(x)
    add, relu = p.events()
    assert (add.name, relu.name) == ("add", "relu")
    assert add.id < relu.id
    assert add.parent_id is None
    assert relu.parent_id is None
    assert add.carrier_type is CPU
    assert add.implementation_type.__name__ == "TorchExecutor"
    assert add.input_shapes is None
    assert 0 < add.self_time_ns == add.duration_ns
    assert add.start_time_ns + add.duration_ns <= relu.start_time_ns
    assert add.thread_id == threading.get_ident()
    assert add.succeeded


def test_nothing_is_recorded_outside_the_block_or_in_other_threads() -> None:
    x = sw.tensor([1.0])
    with sw.profile() as p:
        thread = threading.Thread(target=lambda: sw.neg(x))
        thread.start()
        thread.join()
    assert p.events() == []
    assert sw.operation.observing.active == []


def test_shapes_are_recorded_when_asked_and_can_be_grouped() -> None:
    with sw.profile(record_shapes=True) as p:
        sw.add(sw.ones(2), 1)
        sw.add(sw.ones(3), 1)
        sw.add(sw.ones(3), 1)
    assert [event.input_shapes for event in p.events()] == [(Shape(2),), (Shape(3),), (Shape(3),)]
    (whole,) = p.key_averages()
    assert whole.count == 3
    assert whole.input_shapes is None
    small, large = p.key_averages(group_by_input_shape=True)
    assert (small.count, large.count, large.input_shapes) == (1, 2, (Shape(3),))
    times = [event.duration_ns for event in p.events()]
    assert (whole.total_time_ns, whole.min_time_ns, whole.max_time_ns) == (sum(times), min(times), max(times))
    assert whole.mean_time_ns == sum(times) / 3
    assert whole.self_total_time_ns == sum(times)


def test_grouping_by_shapes_that_were_not_recorded_is_refused() -> None:
    with sw.profile() as p:
        sw.neg(sw.ones(1))
    with pytest.raises(ValueError, match="record_shapes=True"):
        p.key_averages(group_by_input_shape=True)


def test_carriers_filter_by_exact_class() -> None:
    with sw.profile(carriers={Generic}) as p:
        sw.neg(sw.ones(1))
        sw.neg(generic(1.0))
    assert [event.carrier_type for event in p.events()] == [Generic]
    assert p.events()[0].implementation_type.__name__ == "ReferenceExecutor"
    with pytest.raises(TypeError, match="carriers are Carrier classes"):
        sw.profile(carriers=[torch.Tensor])  # type: ignore[list-item]


def test_failed_operation_is_an_event_that_did_not_succeed() -> None:
    frozen = Tensor(FileBacked(size=2), 0, Layout.column_major(2))
    with sw.profile() as p, pytest.raises(NotImplementedError):
        sw.neg(frozen)
    (event,) = p.events()
    assert event.name == "neg"
    assert not event.succeeded


def test_backward_shows_the_operations_that_it_runs() -> None:
    x = sw.tensor([1.0, 2.0], requires_grad=True)
    y = sw.reduce_sum(x * x)
    with sw.profile() as p:
        y.backward()
    assert "mul" in [event.name for event in p.events()]


def test_move_is_a_submission_and_a_completion_with_that_parent() -> None:
    source = sw.tensor([1.0, 2.0])
    with sw.profile(record_shapes=True) as p:
        handle = sw.move_async(source, FileBacked())
    handle.wait()
    submit, complete = p.events()
    assert (submit.name, complete.name) == ("move.submit", "move.complete")
    assert complete.parent_id == submit.id
    assert submit.id < complete.id
    assert submit.carrier_type is CPU
    assert complete.carrier_type is CPU
    assert complete.thread_id != submit.thread_id
    assert complete.succeeded
    assert submit.input_shapes == (Shape(2),)


def test_failed_move_completes_without_success() -> None:
    class Failing(sw.Carrier):
        def size(self) -> int:
            return 0

        def _read_runs(self, runs: object) -> int:
            return 0

        def _write_runs(self, runs: object) -> int:
            raise OSError("the write fails")

        def _allocate(self, size: int) -> None: ...

        def _free(self) -> None: ...

        def allocate_like(self, size: int, **_: object) -> sw.Carrier:
            return self

    with sw.profile() as p, pytest.raises(OSError, match="the write fails"):
        sw.move(sw.tensor([1.0]), Failing(dtype=DType.Float32))
    assert [(event.name, event.succeeded) for event in p.events()] == [("move.submit", True), ("move.complete", False)]


def test_nested_events_are_children_and_leave_the_self_time() -> None:
    from strideweave.operation import (
        NON_DIFFERENTIABLE,
        OperandKind,
        OperandSpec,
        OperationSchema,
        ResolvedInvocation,
        ResultSpec,
        define_operation,
        pointwise_plan,
    )

    inner = sw.tensor([1.0])

    def resolve(call: object) -> ResolvedInvocation:
        layout = Layout.column_major(1)
        return ResolvedInvocation(call, pointwise_plan(call), (ResultSpec(DType.Float32, layout.shape, layout),))  # type: ignore[arg-type]

    def reference(invocation: ResolvedInvocation) -> list[list[float]]:
        sw.neg(inner)
        return [[1.0]]

    outer = define_operation(
        "profiletest.outer",
        OperationSchema([OperandSpec("x", OperandKind.TENSOR)]),
        resolve,
        reference,
        NON_DIFFERENTIABLE,
    )
    with sw.profile() as p:
        outer(generic(1.0))
    parent, child = p.events()
    assert (parent.name, child.name) == ("profiletest.outer", "neg")
    assert child.parent_id == parent.id
    assert parent.self_time_ns == parent.duration_ns - child.duration_ns


def test_profile_is_entered_once() -> None:
    p = sw.profile()
    with p:
        pass
    with pytest.raises(RuntimeError, match="single-use"), p:
        pass


def test_two_profiles_see_the_same_operation() -> None:
    with sw.profile() as outer, sw.profile() as inner:
        sw.neg(sw.ones(1))
    assert [event.name for event in outer.events()] == [event.name for event in inner.events()] == ["neg"]


def test_table_sorts_limits_and_refuses() -> None:
    with sw.profile() as p:
        sw.neg(sw.ones(1))
        sw.add(sw.ones(1), 1)
        sw.add(sw.ones(1), 1)
    lines = p.table(sort_by="count").splitlines()
    assert lines[0].split()[:2] == ["name", "carrier"]
    assert [line.split()[0] for line in lines[1:3]] == ["add", "neg"]
    assert len(p.table(sort_by="name", descending=False, row_limit=1).splitlines()) == 2
    with pytest.raises(ValueError, match="cannot sort by"):
        p.table(sort_by="speed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a limit is 0 or more"):
        p.table(row_limit=-1)


def test_chrome_trace_has_one_complete_span_for_each_event(tmp_path: Path) -> None:
    with sw.profile(record_shapes=True) as p:
        sw.neg(sw.ones(2))
    path = tmp_path / "trace.json"
    p.export_chrome_trace(path)
    (span,) = json.loads(path.read_text())["traceEvents"]
    (event,) = p.events()
    assert span["ph"] == "X"
    assert span["name"] == "neg"
    assert span["ts"] == event.start_time_ns / 1000
    assert span["dur"] == event.duration_ns / 1000
    assert span["args"]["carrier"] == "CPU"
    assert span["args"]["shapes"] == ["2"]
