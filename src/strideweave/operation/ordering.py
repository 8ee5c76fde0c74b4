"""Ordering operations: values in order along one top-level mode, with the places that they came from."""

from __future__ import annotations

from collections.abc import Sequence

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType
from strideweave.layout import Layout, Shape
from strideweave.operation.alignment import dense_like, with_strides
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import define
from strideweave.operation.indexing import gathered_back, leaves_of_mode
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.promotion import computed_in
from strideweave.operation.reducing import positions
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

_X = OperandSpec("x", OperandKind.TENSOR, differentiable=True)


def _resolved(call: BoundOperationCall, layout: Layout) -> ResolvedInvocation:
    """Two results of one layout: the values, and their places."""
    own = call.operands[0].dtype()
    compared = computed_in(own)  # 8-bit floats have no order of their own in torch; Float32 holds all of them
    operand = OperandPlan(OperandRole.TENSOR, own, None if compared is own else compared)
    plan = OperationPlan(call.definition.name, (operand,), Arithmetic.NONE, Accumulation.NONE, None, own)
    shape = layout.shape
    return ResolvedInvocation(call, plan, (ResultSpec(own, shape, layout), ResultSpec(DType.Int64, shape, layout)))


def _resolve_sort(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    return _resolved(call, dense_like(x.shape, [x.layout]))


def _resolve_topk(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    axis, k = call.options["axis"], call.options["k"]
    extent = x.layout[axis].size
    if not 1 <= k <= extent:
        raise ValueError(
            f"cannot take the top {k} of {x.shape} along axis {axis}: it has {extent} values there, and k is 1 to "
            f"{extent}. Pass a k among them."
        )
    items = x.shape._items
    shape = Shape._of((*items[:axis], k, *items[axis + 1 :]))
    gone, strides = leaves_of_mode(x.layout, axis), [d for _, d in x.layout.leaves()]
    strides[gone.start : gone.stop] = [min(strides[gone.start : gone.stop])]
    return _resolved(call, dense_like(shape, [with_strides(shape, strides)]))


def ordered(values: Sequence[Scalar], *, descending: bool) -> list[int]:
    """For references: the places of the values in order, NaN after every number; equal ones stay in their order."""
    keys = [(v != v, 0 if v != v else v) for v in values]
    return sorted(range(len(values)), key=keys.__getitem__, reverse=descending)


def _reference(invocation: ResolvedInvocation, *, count: int | None, descending: bool) -> Sequence[Sequence[Scalar]]:
    layout, axis, column = invocation.layout(0), invocation.options["axis"], invocation.values(0)
    target = invocation.results[0].layout
    values: list[Scalar] = [0] * target.size
    places: list[Scalar] = [0] * target.size
    groups = positions(layout.shape, leaves_of_mode(layout, axis))
    slots = positions(target.shape, leaves_of_mode(target, axis))
    for group, slot in zip(groups, slots, strict=True):
        order = ordered([column[k] for k in group], descending=descending)[:count]
        for where, place in zip(slot, order, strict=True):
            values[where], places[where] = column[group[place]], place
    return [values, places]


def _vjp(context: VJPContext, g: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    return (None if g is None else gathered_back(context, g, context.outputs[1]),)


SORT = define(
    "sort",
    OperationSchema([_X], [OptionSpec("axis"), OptionSpec("descending", False)]),
    _resolve_sort,
    lambda invocation: _reference(invocation, count=None, descending=invocation.options["descending"]),
    _vjp,
)
TOPK = define(
    "topk",
    OperationSchema([_X], [OptionSpec("k"), OptionSpec("axis"), OptionSpec("largest", True)]),
    _resolve_topk,
    lambda invocation: _reference(invocation, count=invocation.options["k"], descending=invocation.options["largest"]),
    _vjp,
)
