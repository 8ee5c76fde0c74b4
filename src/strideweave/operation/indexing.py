"""Indexing operations: values picked, placed or added where a tensor of indices says, along one top-level mode.

A nested mode counts its coordinates first mode fastest, so an index into it is an ordinal. Indices are checked before
anything is computed where they are on a CPU; on other devices out-of-range ones are the device's own error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout, Shape
from strideweave.operation.alignment import dense_like, with_strides
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import OperationDefinition, define
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.pointwise import arithmetic_of
from strideweave.operation.promotion import promote
from strideweave.operation.schema import NON_DIFFERENTIABLE, OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

INDEX_DTYPES = (DType.Int64, DType.Int32)


# -- what every operation here shares ---------------------------------------------------------------------------------


def sizes_of(layout: Layout) -> list[int]:
    """How many coordinates each top-level mode has."""
    return [mode.size for mode in layout]


@lru_cache(maxsize=4096)
def leaves_of_mode(layout: Layout, axis: int) -> range:
    """The leaves of one top-level mode."""
    begin = sum(len(mode.leaves()) for mode in layout[:axis])
    return range(begin, begin + len(layout[axis].leaves()))


def ordered_like(shape: Shape, *layouts: Layout) -> Layout:
    """The dense layout of `shape` in the order of the first of the layouts that has as many leaves, and orders them."""
    count = len(shape.leaves())
    found = [
        with_strides(shape, [d for _, d in layout.leaves()]) for layout in layouts if len(layout.leaves()) == count
    ]
    return dense_like(shape, found)


def moving_plan(call: BoundOperationCall, output: StorageDType) -> OperationPlan:
    """Values are moved as they are; nothing is computed."""
    return _plan(call, output, {})


def converting_plan(call: BoundOperationCall, output: StorageDType) -> OperationPlan:
    """Values of several dtypes are moved into one."""
    return _plan(call, output, dict.fromkeys(range(len(call.operands)), output))


def adding_plan(call: BoundOperationCall, output: StorageDType, added: Sequence[int]) -> OperationPlan:
    """Operands `added` meet in sums, which floats below Float32 keep in that, to be rounded once."""
    wide = {k: summed_in(call.operands[k].dtype()) for k in added}
    return _plan(call, output, wide, adds=True)


def summed_in(dtype: StorageDType) -> StorageDType:
    """What sums of values of `dtype` are kept in."""
    return DType.Float32 if dtype.is_floating and dtype is not DType.Float64 else dtype


def _plan(
    call: BoundOperationCall, output: StorageDType, wide: dict[int, StorageDType], *, adds: bool = False
) -> OperationPlan:
    operands = []
    for k, (operand, kind) in enumerate(zip(call.operands, call.operand_kinds, strict=True)):
        if kind is OperandKind.TENSOR:
            own = operand.dtype()
            converted = wide.get(k, own)
            operands.append(OperandPlan(OperandRole.TENSOR, own, None if converted is own else converted))
        else:
            operands.append(OperandPlan(OperandRole.WEAK_SCALAR, None))
    accumulation = (
        Accumulation.NONE
        if not adds
        else Accumulation.INTEGER
        if not output.is_floating
        else Accumulation.BINARY64
        if output is DType.Float64
        else Accumulation.BINARY32
    )
    compute = arithmetic_of(output) if adds else Arithmetic.NONE
    return OperationPlan(call.definition.name, tuple(operands), compute, accumulation, None, output)


def _require_indices(call: BoundOperationCall, idx: Tensor) -> None:
    if idx.dtype() not in INDEX_DTYPES:
        raise TypeError(
            f"cannot {call.definition.name} by indices of {idx.dtype().name}: indices are Int64 or Int32. Convert them."
        )


def _require_one_dtype(call: BoundOperationCall, base: Tensor, updates: Tensor | Scalar) -> None:
    own = base.dtype()
    fits = updates.dtype() is own if isinstance(updates, Tensor) else promote([(own, True)], [type(updates)]) is own
    if not fits:
        given = updates.dtype().name if isinstance(updates, Tensor) else type(updates).__name__
        raise TypeError(
            f"cannot {call.definition.name} {given} into {own.name}: the updates have the dtype of the base, or are a "
            "number that it holds. Convert them."
        )


def _require_inside(call: BoundOperationCall, whole: Layout, idx: Layout, axis: int) -> None:
    """The indices have a mode for each of `whole`, none of them longer, except along `axis`."""
    outer, inner = sizes_of(whole), sizes_of(idx)
    if len(outer) != len(inner) or any(n > m for k, (m, n) in enumerate(zip(outer, inner, strict=True)) if k != axis):
        raise ValueError(
            f"cannot {call.definition.name} shape {whole.shape} by indices of {idx.shape} along axis {axis}: the "
            "indices have as many modes, and none but the axis is longer. Reshape, broadcast or slice them."
        )


def out_of_range(name: str, *, axis: int, extent: int, index: int, ordinal: int) -> IndexError:
    """The error for the first index that is not there."""
    return IndexError(
        f"cannot {name} along axis {axis} of extent {extent}: index {index}, at ordinal {ordinal} of the indices, is "
        f"out of range. Indices are 0 to {extent - 1}; negative ones do not count from the end. Pass only such."
    )


def _checked(invocation: ResolvedInvocation, k: int, *, axis: int, extent: int) -> list[int]:
    """For references: the values of index operand `k`, every one in range."""
    found = [int(index) for index in invocation.values(k)]
    for ordinal, index in enumerate(found):
        if not 0 <= index < extent:
            raise out_of_range(invocation.name, axis=axis, extent=extent, index=index, ordinal=ordinal)
    return found


def place(ordinal: int, sizes: Sequence[int], target: Sequence[int], axis: int, index: int) -> int:
    """For references: the ordinal in a shape of mode sizes `target` of the coordinate that `ordinal` is in `sizes`,
    with `index` along `axis`."""
    found, step = 0, 1
    for k, (n, m) in enumerate(zip(sizes, target, strict=True)):
        found += step * (index if k == axis else ordinal % n)
        ordinal //= n
        step *= m
    return found


def _tensor(name: str, *, differentiable: bool = False) -> OperandSpec:
    return OperandSpec(name, OperandKind.TENSOR, differentiable=differentiable)


# -- gather, and what puts its cotangent back -------------------------------------------------------------------------


def _resolve_gather(call: BoundOperationCall) -> ResolvedInvocation:
    x, idx = call.operands
    _require_indices(call, idx)
    _require_inside(call, x.layout, idx.layout, call.options["axis"])
    spec = ResultSpec(x.dtype(), idx.shape, ordered_like(idx.shape, x.layout, idx.layout))
    return ResolvedInvocation(call, moving_plan(call, x.dtype()), (spec,), saved_operands=(1,))


def _gather_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    axis, outer, inner = invocation.options["axis"], sizes_of(invocation.layout(0)), sizes_of(invocation.layout(1))
    values, indices = invocation.values(0), _checked(invocation, 1, axis=axis, extent=outer[axis])
    return [[values[place(ordinal, inner, outer, axis, index)] for ordinal, index in enumerate(indices)]]


def _gather_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    return gathered_back(context, g, context.operand(1)), None


def gathered_back(context: VJPContext, g: Tensor, idx: Tensor) -> Tensor:
    """Every value of `g` added, in zeros of the shape of the first operand, where `idx` says that it came from."""
    source = context.invocation.operands[0].layout
    target = dense_like(source.shape, [source])
    result: Tensor = GATHER_BACKWARD(g, idx, axis=context.options["axis"], target=target)
    return result


def _resolve_gather_backward(call: BoundOperationCall) -> ResolvedInvocation:
    own, target = call.operands[0].dtype(), call.options["target"]
    return ResolvedInvocation(call, adding_plan(call, own, (0,)), (ResultSpec(own, target.shape, target),))


def _gather_backward_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    axis, target = invocation.options["axis"], invocation.options["target"]
    return [_added([0] * target.size, sizes_of(target), invocation, 0, 1, axis)]


def _added(
    out: list[Scalar], sizes: Sequence[int], invocation: ResolvedInvocation, updates: int, idx: int, axis: int
) -> list[Scalar]:
    inner, added = sizes_of(invocation.layout(idx)), invocation.values(updates)
    for ordinal, index in enumerate(_checked(invocation, idx, axis=axis, extent=sizes[axis])):
        out[place(ordinal, inner, sizes, axis, index)] += added[ordinal]
    return out


GATHER_BACKWARD = define(
    "gather_backward",
    OperationSchema([_tensor("g"), _tensor("idx")], [OptionSpec("axis"), OptionSpec("target")]),
    _resolve_gather_backward,
    _gather_backward_reference,
    NON_DIFFERENTIABLE,
)
GATHER = define(
    "gather",
    OperationSchema([_tensor("t", differentiable=True), _tensor("idx")], [OptionSpec("axis")]),
    _resolve_gather,
    _gather_reference,
    _gather_vjp,
)


# -- scatter, which replaces, and scatter_add -------------------------------------------------------------------------


def _resolve_placing(call: BoundOperationCall, *, adds: bool) -> ResolvedInvocation:
    base, idx, updates = call.operands
    _require_indices(call, idx)
    _require_one_dtype(call, base, updates)
    _require_inside(call, base.layout, idx.layout, call.options["axis"])
    if isinstance(updates, Tensor) and updates.shape != idx.shape:
        raise ValueError(
            f"cannot {call.definition.name} updates of {updates.shape} by indices of {idx.shape}: every update has an "
            "index, so the shapes are the same. Broadcast or slice one of them."
        )
    own = base.dtype()
    plan = adding_plan(call, own, (0, 2)) if adds else moving_plan(call, own)
    spec = ResultSpec(own, base.shape, dense_like(base.shape, [base.layout]))
    return ResolvedInvocation(call, plan, (spec,), saved_operands=(1,))


def _scatter_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    axis, outer, inner = invocation.options["axis"], sizes_of(invocation.layout(0)), sizes_of(invocation.layout(1))
    out, indices = invocation.values(0), _checked(invocation, 1, axis=axis, extent=outer[axis])
    updates = invocation.operands[2]
    placed = invocation.values(2) if isinstance(updates, Tensor) else [updates] * len(indices)
    for ordinal, index in enumerate(indices):  # the last along the axis wins
        out[place(ordinal, inner, outer, axis, index)] = placed[ordinal]
    return [out]


def _scatter_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    idx, axis = context.operand(1), context.options["axis"]
    return (
        SCATTER(g, idx, 0, axis=axis) if context.needs[0] else None,
        None,
        SCATTER_UPDATES_BACKWARD(g, idx, axis=axis) if context.needs[2] else None,
    )


def _resolve_updates_backward(call: BoundOperationCall) -> ResolvedInvocation:
    g, idx = call.operands
    spec = ResultSpec(g.dtype(), idx.shape, ordered_like(idx.shape, g.layout, idx.layout))
    return ResolvedInvocation(call, moving_plan(call, g.dtype()), (spec,))


def _updates_backward_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    axis, outer, inner = invocation.options["axis"], sizes_of(invocation.layout(0)), sizes_of(invocation.layout(1))
    g, indices = invocation.values(0), _checked(invocation, 1, axis=axis, extent=outer[axis])
    written = [place(ordinal, inner, outer, axis, index) for ordinal, index in enumerate(indices)]
    last = {slot: ordinal for ordinal, slot in enumerate(written)}
    return [[g[slot] if last[slot] == ordinal else 0.0 for ordinal, slot in enumerate(written)]]


def _scatter_add_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    sizes = sizes_of(invocation.layout(0))
    return [_added(invocation.values(0), sizes, invocation, 2, 1, invocation.options["axis"])]


def _scatter_add_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    needed = context.needs[2]
    return g, None, GATHER(g, context.operand(1), axis=context.options["axis"]) if needed else None


SCATTER_UPDATES_BACKWARD = define(
    "scatter_updates_backward",
    OperationSchema([_tensor("g"), _tensor("idx")], [OptionSpec("axis")]),
    _resolve_updates_backward,
    _updates_backward_reference,
    NON_DIFFERENTIABLE,
)
SCATTER: OperationDefinition = define(
    "scatter",
    OperationSchema(
        [
            _tensor("base", differentiable=True),
            _tensor("idx"),
            OperandSpec("updates", (OperandKind.TENSOR, OperandKind.WEAK_SCALAR), differentiable=True),
        ],
        [OptionSpec("axis")],
    ),
    lambda call: _resolve_placing(call, adds=False),
    _scatter_reference,
    _scatter_vjp,
)
SCATTER_ADD = define(
    "scatter_add",
    OperationSchema(
        [_tensor("base", differentiable=True), _tensor("idx"), _tensor("updates", differentiable=True)],
        [OptionSpec("axis")],
    ),
    lambda call: _resolve_placing(call, adds=True),
    _scatter_add_reference,
    _scatter_add_vjp,
)


# -- take, whole slices; index_add, which adds them -------------------------------------------------------------------


def taken_layout(x: Layout, idx: Layout, axis: int) -> Layout:
    """The dense layout of `x` with the modes of `idx` in the place of `axis`: in the order of `x`, there its own."""
    shape = Shape._of(x.shape._items[:axis] + idx.shape._items + x.shape._items[axis + 1 :])
    outer, inner = dense_like(x.shape, [x]), dense_like(idx.shape, [idx])
    gone, unit = leaves_of_mode(x, axis), inner.cosize
    strides = [d * unit for _, d in outer.leaves()]
    least = min(strides[k] for k in gone)
    # Between two steps of `x` there is room for all of `idx`.
    strides[gone.start : gone.stop] = [least + d for _, d in inner.leaves()]
    return dense_like(shape, [with_strides(shape, strides)])


def _resolve_take(call: BoundOperationCall) -> ResolvedInvocation:
    x, idx = call.operands
    _require_indices(call, idx)
    layout = taken_layout(x.layout, idx.layout, call.options["axis"])
    spec = ResultSpec(x.dtype(), layout.shape, layout)
    return ResolvedInvocation(call, moving_plan(call, x.dtype()), (spec,), saved_operands=(1,))


def _split(layout: Layout, axis: int) -> tuple[int, int, int]:
    """How many coordinates the modes before `axis` have, the axis itself, and the modes behind it."""
    sizes = sizes_of(layout)
    return math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])


def _take_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    axis = invocation.options["axis"]
    before, extent, behind = _split(invocation.layout(0), axis)
    values, indices = invocation.values(0), _checked(invocation, 1, axis=axis, extent=extent)
    return [
        [values[i + before * (index + extent * j)] for j in range(behind) for index in indices for i in range(before)]
    ]


def _take_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    source = context.invocation.operands[0].layout
    target = dense_like(source.shape, [source])
    return TAKE_BACKWARD(g, context.operand(1), axis=context.options["axis"], target=target), None


def _added_slices(
    out: list[Scalar], target: Layout, invocation: ResolvedInvocation, updates: int, idx: int
) -> list[Scalar]:
    axis = invocation.options["axis"]
    before, extent, behind = _split(target, axis)
    added, indices = iter(invocation.values(updates)), _checked(invocation, idx, axis=axis, extent=extent)
    for j in range(behind):
        for index in indices:
            for i in range(before):
                out[i + before * (index + extent * j)] += next(added)
    return out


def _take_backward_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    target = invocation.options["target"]
    return [_added_slices([0] * target.size, target, invocation, 0, 1)]


def _resolve_index_add(call: BoundOperationCall) -> ResolvedInvocation:
    base, idx, updates = call.operands
    _require_indices(call, idx)
    _require_one_dtype(call, base, updates)
    axis, own = call.options["axis"], base.dtype()
    wanted = taken_layout(base.layout, idx.layout, axis).shape
    if updates.shape != wanted:
        raise ValueError(
            f"cannot index_add updates of {updates.shape} into {base.shape} along axis {axis} by indices of "
            f"{idx.shape}: the updates have the shape of what take would give, {wanted}. Reshape them."
        )
    spec = ResultSpec(own, base.shape, dense_like(base.shape, [base.layout]))
    return ResolvedInvocation(call, adding_plan(call, own, (0, 2)), (spec,), saved_operands=(1,))


def _index_add_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    needed = context.needs[2]
    return g, None, TAKE(g, context.operand(1), axis=context.options["axis"]) if needed else None


TAKE_BACKWARD = define(
    "take_backward",
    OperationSchema([_tensor("g"), _tensor("idx")], [OptionSpec("axis"), OptionSpec("target")]),
    _resolve_gather_backward,
    _take_backward_reference,
    NON_DIFFERENTIABLE,
)
TAKE = define(
    "take",
    OperationSchema([_tensor("t", differentiable=True), _tensor("idx")], [OptionSpec("axis")]),
    _resolve_take,
    _take_reference,
    _take_vjp,
)
INDEX_ADD = define(
    "index_add",
    OperationSchema(
        [_tensor("base", differentiable=True), _tensor("idx"), _tensor("updates", differentiable=True)],
        [OptionSpec("axis")],
    ),
    _resolve_index_add,
    lambda invocation: [_added_slices(invocation.values(0), invocation.layout(0), invocation, 2, 1)],
    _index_add_vjp,
)


# -- one_hot ----------------------------------------------------------------------------------------------------------


def _resolve_one_hot(call: BoundOperationCall) -> ResolvedInvocation:
    (idx,) = call.operands
    _require_indices(call, idx)
    n = call.options["n"]
    shape = Shape._of((*idx.shape._items, n))
    inner = dense_like(idx.shape, [idx.layout])
    layout = with_strides(shape, [*(d * n for _, d in inner.leaves()), 1])  # each row of classes lies together
    return ResolvedInvocation(call, moving_plan(call, DType.Int64), (ResultSpec(DType.Int64, shape, layout),))


def _one_hot_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    n = invocation.options["n"]
    indices = _checked(invocation, 0, axis=len(invocation.layout(0)), extent=n)
    return [[int(index == k) for k in range(n) for index in indices]]


ONE_HOT = define(
    "one_hot",
    OperationSchema([_tensor("idx")], [OptionSpec("n")]),
    _resolve_one_hot,
    _one_hot_reference,
    NON_DIFFERENTIABLE,
)
