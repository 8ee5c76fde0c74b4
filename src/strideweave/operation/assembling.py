"""Assembling operations: tensors joined, cut, framed, turned around and repeated; values are moved, never computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import StorageDType
from strideweave.layout import Layout, Shape, Stride
from strideweave.layout.nested import Level
from strideweave.operation.alignment import dense_like, with_strides
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import OperationDefinition, define
from strideweave.operation.indexing import converting_plan, leaves_of_mode, moving_plan, sizes_of
from strideweave.operation.promotion import promote
from strideweave.operation.reduction import REDUCE_SUM
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

_MANY = OperationSchema(
    [OperandSpec("tensors", OperandKind.TENSOR, differentiable=True, variadic=True)], [OptionSpec("axis")]
)
_X = OperandSpec("x", OperandKind.TENSOR, differentiable=True)


def counted(level: Level | int, step: int) -> tuple[Level | int, int]:
    """Strides that count a mode first leaf fastest from `step` on, and the step behind them."""
    if isinstance(level, int):
        return step, step * level
    strides = []
    for mode in level:
        inner, step = counted(mode, step)
        strides.append(inner)
    return tuple(strides), step


def _coordinates(ordinal: int, sizes: Sequence[int]) -> list[int]:
    """For references: the ordinal within each top-level mode."""
    found = []
    for n in sizes:
        found.append(ordinal % n)
        ordinal //= n
    return found


def _ordinal(coordinates: Sequence[int], sizes: Sequence[int]) -> int:
    found, step = 0, 1
    for c, n in zip(coordinates, sizes, strict=True):
        found += c * step
        step *= n
    return found


# -- concatenate and stack --------------------------------------------------------------------------------------------


def _promoted(call: BoundOperationCall) -> StorageDType:
    return promote([(x.dtype(), len(x.layout) > 0) for x in call.operands])


def _resolve_concatenate(call: BoundOperationCall) -> ResolvedInvocation:
    axis, first = call.options["axis"], call.layouts[0]
    whole = first.shape._items
    for k, layout in enumerate(call.layouts):
        items = layout.shape._items
        if len(items) != len(whole) or items[:axis] + items[axis + 1 :] != whole[:axis] + whole[axis + 1 :]:
            raise ValueError(
                f"cannot concatenate shapes {first.shape} and {layout.shape} (operand {k}) along axis {axis}: all "
                "modes but the axis are the same. Reshape, slice or broadcast one of them."
            )
    shape = Shape._of((*whole[:axis], sum(layout[axis].size for layout in call.layouts), *whole[axis + 1 :]))
    gone = leaves_of_mode(first, axis)
    orders = []
    for layout in call.layouts:
        strides = [d for _, d in layout.leaves()]
        here = leaves_of_mode(layout, axis)
        orders.append(
            with_strides(shape, [*strides[: gone.start], min(strides[here.start : here.stop]), *strides[here.stop :]])
        )
    dtype = _promoted(call)
    spec = ResultSpec(dtype, shape, dense_like(shape, orders))
    return ResolvedInvocation(call, converting_plan(call, dtype), (spec,))


def _concatenate_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    axis, sizes = invocation.options["axis"], sizes_of(invocation.results[0].layout)
    out: list[Scalar] = [0] * invocation.results[0].shape.size
    begin = 0
    for k, operand in enumerate(invocation.operands):
        inner = sizes_of(operand.layout)
        for ordinal, value in enumerate(invocation.values(k)):
            where = _coordinates(ordinal, inner)
            where[axis] += begin
            out[_ordinal(where, sizes)] = value
        begin += inner[axis]
    return [out]


def piece(g: Tensor, shape: Shape, axis: int, begin: int) -> Tensor:
    """The part of `g` from `begin` on along `axis`, a single leaf there, seen as `shape`: a view."""
    strides = g.layout.stride._items
    step = strides[axis]
    assert isinstance(step, int), "the axis is a leaf"
    inner, _ = counted(shape._items[axis], step)
    layout = Layout(shape, Stride._of((*strides[:axis], inner, *strides[axis + 1 :])))
    return Tensor._make(g._carrier, g._offset + begin * step, layout)


def _concatenate_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    axis, operands = context.options["axis"], context.invocation.operands
    begins = accumulate((x.layout[axis].size for x in operands), initial=0)
    return tuple(
        piece(g, x.shape, axis, begin) if needed else None
        for x, needed, begin in zip(operands, context.needs, begins, strict=False)
    )


CONCATENATE = define("concatenate", _MANY, _resolve_concatenate, _concatenate_reference, _concatenate_vjp)


def _resolve_stack(call: BoundOperationCall) -> ResolvedInvocation:
    axis, first = call.options["axis"], call.layouts[0]
    for k, layout in enumerate(call.layouts):
        if layout.shape != first.shape:
            raise ValueError(
                f"cannot stack shapes {first.shape} and {layout.shape} (operand {k}): all are the same. Reshape or "
                "broadcast one of them, or concatenate them."
            )
    items = first.shape._items
    shape = Shape._of((*items[:axis], len(call.operands), *items[axis:]))
    inner = dense_like(first.shape, call.layouts)
    strides = [d for _, d in inner.leaves()]
    begin = sum(len(mode.leaves()) for mode in first[:axis])
    strides.insert(begin, inner.cosize)  # every operand lies together
    dtype = _promoted(call)
    spec = ResultSpec(dtype, shape, with_strides(shape, strides))
    return ResolvedInvocation(call, converting_plan(call, dtype), (spec,))


def _stack_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    axis, sizes = invocation.options["axis"], sizes_of(invocation.results[0].layout)
    columns = [invocation.values(k) for k in range(len(invocation.operands))]
    out: list[Scalar] = []
    for ordinal in range(invocation.results[0].shape.size):
        where = _coordinates(ordinal, sizes)
        k = where.pop(axis)
        out.append(columns[k][_ordinal(where, sizes[:axis] + sizes[axis + 1 :])])
    return [out]


def _stack_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    axis = context.options["axis"]
    step = g.layout[axis].leaves()[0][1]
    rest = g.layout[:axis] + g.layout[axis + 1 :]
    return tuple(
        Tensor._make(g._carrier, g._offset + k * step, rest) if needed else None
        for k, needed in enumerate(context.needs)
    )


STACK = define("stack", _MANY, _resolve_stack, _stack_reference, _stack_vjp)


# -- split, whose results are views -----------------------------------------------------------------------------------


def _resolve_split(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    axis, sizes = call.options["axis"], call.options["sizes"]
    items, strides = x.shape._items, x.layout.stride._items
    step = strides[axis]
    if not isinstance(step, int):
        raise ValueError(
            f"cannot split {x.shape} along axis {axis}: it is a nested mode, of which a part is no view. Reshape it "
            "to one leaf, or take the parts."
        )
    if sum(sizes) != items[axis]:
        raise ValueError(
            f"cannot split {x.shape} along axis {axis} into {sizes}: they add up to {sum(sizes)}, not to the extent. "
            "Pass sizes that do."
        )
    results = []
    begins = accumulate(sizes, initial=0)
    for size, begin in zip(sizes, begins, strict=False):
        shape = Shape._of((*items[:axis], size, *items[axis + 1 :]))
        results.append(ResultSpec(x.dtype(), shape, Layout(shape, x.layout.stride), view_of=0, offset=begin * step))
    return ResolvedInvocation(call, moving_plan(call, x.dtype()), tuple(results))


def _split_vjp(context: VJPContext, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
    given = next(g for g in cotangents if g is not None)
    zero = given._carrier.new_like([0], dtype=given.dtype())
    pieces = []
    for g, spec in zip(cotangents, context.invocation.results, strict=True):
        if g is None:  # a piece that led nowhere: zeros that take one slot
            g = Tensor._make(zero, 0, with_strides(spec.shape, [0] * len(spec.shape.leaves())))
        pieces.append(g)
    return (CONCATENATE(*pieces, axis=context.options["axis"]),)


SPLIT = define(
    "split", OperationSchema([_X], [OptionSpec("axis"), OptionSpec("sizes")]), _resolve_split, None, _split_vjp
)


# -- pad --------------------------------------------------------------------------------------------------------------


def _resolve_pad(call: BoundOperationCall) -> ResolvedInvocation:
    x, value = call.operands
    widths, own = call.options["widths"], x.dtype()
    if promote([(own, True)], [type(value)]) is not own:
        raise TypeError(
            f"cannot pad {own.name} with {value!r}: the value is a number that the dtype holds. Convert the tensor, or "
            "pass another value."
        )
    if len(widths) != len(x.layout):
        raise ValueError(
            f"cannot pad {x.shape} by {widths}: there are {len(widths)} pairs of widths for {len(x.layout)} modes. "
            "Pass one pair (before, behind) for every mode."
        )
    items: list[Level | int] = []
    for mode, (before, behind) in zip(x.shape._items, widths, strict=True):
        if isinstance(mode, tuple) and before + behind:
            raise ValueError(
                f"cannot pad {x.shape} by {widths}: {mode} is a nested mode, which has no first and last leaf to pad. "
                "Reshape it to one leaf, or pad it by (0, 0)."
            )
        items.append(mode + before + behind if isinstance(mode, int) else mode)
    shape = Shape._of(tuple(items))
    layout = dense_like(shape, [with_strides(shape, [d for _, d in x.layout.leaves()])])
    return ResolvedInvocation(call, moving_plan(call, own), (ResultSpec(own, shape, layout),))


def _pad_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    inner, sizes = sizes_of(invocation.layout(0)), sizes_of(invocation.results[0].layout)
    out: list[Scalar] = [invocation.operands[1]] * invocation.results[0].shape.size
    for ordinal, v in enumerate(invocation.values(0)):
        where = [
            c + before
            for c, (before, _) in zip(_coordinates(ordinal, inner), invocation.options["widths"], strict=True)
        ]
        out[_ordinal(where, sizes)] = v
    return [out]


def _pad_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    shape = context.invocation.operands[0].shape
    begin = sum(
        before * mode.leaves()[0][1]
        for mode, (before, _) in zip(g.layout, context.options["widths"], strict=True)
        if before
    )
    return Tensor._make(g._carrier, g._offset + begin, Layout(shape, g.layout.stride)), None


PAD = define(
    "pad",
    OperationSchema([_X, OperandSpec("value", OperandKind.WEAK_SCALAR)], [OptionSpec("widths")]),
    _resolve_pad,
    _pad_reference,
    _pad_vjp,
)


# -- flip, triangles --------------------------------------------------------------------------------------------------


def _resolve_same(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    spec = ResultSpec(x.dtype(), x.shape, dense_like(x.shape, [x.layout]))
    return ResolvedInvocation(call, moving_plan(call, x.dtype()), (spec,))


def _flip_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    sizes, axes, values = sizes_of(invocation.layout(0)), invocation.options["axes"], invocation.values(0)
    out: list[Scalar] = []
    for ordinal in range(len(values)):
        where = _coordinates(ordinal, sizes)
        for axis in axes:
            where[axis] = sizes[axis] - 1 - where[axis]
        out.append(values[_ordinal(where, sizes)])
    return [out]


FLIP: OperationDefinition = define(
    "flip",
    OperationSchema([_X], [OptionSpec("axes")]),
    _resolve_same,
    _flip_reference,
    lambda context, g: (FLIP(g, axes=context.options["axes"]),),
)


def _triangle(name: str, *, is_lower: bool) -> OperationDefinition:
    """The definition of what keeps one side of a diagonal of the last two modes, and is its own gradient."""

    def resolve(call: BoundOperationCall) -> ResolvedInvocation:
        (x,) = call.operands
        if len(x.layout) < 2:
            raise ValueError(
                f"cannot {name} {x.shape}: it has {len(x.layout)} modes, and a diagonal lies in the last two. "
                "Unsqueeze it."
            )
        return _resolve_same(call)

    def reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
        sizes, diagonal = sizes_of(invocation.layout(0)), invocation.options["diagonal"]
        out: list[Scalar] = []
        for ordinal, value in enumerate(invocation.values(0)):
            *_, row, column = _coordinates(ordinal, sizes)
            above = column - row - diagonal
            out.append(value if above == 0 or (above < 0) == is_lower else 0)
        return [out]

    def vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
        return (definition(g, diagonal=context.options["diagonal"]),)

    definition = define(name, OperationSchema([_X], [OptionSpec("diagonal", 0)]), resolve, reference, vjp)
    return definition


TRIL = _triangle("tril", is_lower=True)
TRIU = _triangle("triu", is_lower=False)


# -- repetition -------------------------------------------------------------------------------------------------------


def _repetition(name: str, *, is_interleaved: bool) -> OperationDefinition:
    """The definition of what repeats modes `counts` times: whole, or each coordinate in a row when interleaved."""

    def resolve(call: BoundOperationCall) -> ResolvedInvocation:
        (x,) = call.operands
        counts = call.options["counts"]
        shape = Shape._of(
            tuple(
                mode if count == 1 else count * inner.size
                for mode, inner, count in zip(x.shape._items, x.layout, counts, strict=True)
            )
        )
        strides: list[int] = []
        for mode, count in zip(x.layout, counts, strict=True):
            own = [d for _, d in mode.leaves()]
            strides.extend(own if count == 1 else [min(own)])
        layout = dense_like(shape, [with_strides(shape, strides)])
        return ResolvedInvocation(call, moving_plan(call, x.dtype()), (ResultSpec(x.dtype(), shape, layout),))

    def reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
        inner, sizes = sizes_of(invocation.layout(0)), sizes_of(invocation.results[0].layout)
        values, counts = invocation.values(0), invocation.options["counts"]
        out: list[Scalar] = []
        for ordinal in range(invocation.results[0].shape.size):
            where = _coordinates(ordinal, sizes)
            source = [c // count if is_interleaved else c % n for c, n, count in zip(where, inner, counts, strict=True)]
            out.append(values[_ordinal(source, inner)])
        return [out]

    def vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
        x, counts = context.invocation.operands[0], context.options["counts"]
        return (_summed_repeats(g, x.shape, counts, is_interleaved=is_interleaved),)

    return define(name, OperationSchema([_X], [OptionSpec("counts")]), resolve, reference, vjp)


def _summed_repeats(g: Tensor, shape: Shape, counts: Sequence[int], *, is_interleaved: bool) -> Tensor:
    """`g`, its repeated modes seen as the mode and its repeats, summed over the repeats."""
    extents: list[Level | int] = []
    strides: list[Level | int] = []
    summed, leaves = [], 0
    for mode, seen, step, count in zip(shape._items, g.shape._items, g.layout.stride._items, counts, strict=True):
        size = len(Shape._of((mode,)).leaves())
        if count == 1:
            extents.append(seen)
            strides.append(step)
        else:
            assert isinstance(step, int), "a repeated mode is one leaf"
            pair = (count, mode) if is_interleaved else (mode, count)
            extents.append(pair)
            strides.append(counted(pair, step)[0])
            summed.append(leaves if is_interleaved else leaves + size)
        leaves += size + (count > 1)
    layout = Layout(Shape._of(tuple(extents)), Stride._of(tuple(strides)))
    view = Tensor._make(g._carrier, g._offset, layout)
    result: Tensor = REDUCE_SUM(view, leaves=tuple(summed), keepdims=False) if summed else view
    return result


TILE = _repetition("tile", is_interleaved=False)
REPEAT = _repetition("repeat", is_interleaved=True)
