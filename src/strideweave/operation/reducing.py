"""How operations over leaves are defined: reductions, many values to one, and operations within groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout, Shape
from strideweave.layout.nested import Level
from strideweave.operation.alignment import dense_like, with_strides
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import VJP, OperationDefinition, define
from strideweave.operation.plan import Accumulation, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.pointwise import arithmetic_of
from strideweave.operation.promotion import computed_in
from strideweave.operation.schema import NON_DIFFERENTIABLE, OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

DTypeRule: TypeAlias = Callable[[StorageDType], StorageDType]
Values: TypeAlias = Sequence[Scalar]


# -- dtypes ----------------------------------------------------------------------------------------------------------


def same(dtype: StorageDType) -> StorageDType:
    """The dtype itself."""
    return dtype


def summed_dtype(dtype: StorageDType) -> StorageDType:
    """What a sum or product gives: floats keep their dtype, whole numbers and Bool become Int64, as in torch."""
    return dtype if dtype.is_floating else DType.Int64


def measured_in(dtype: StorageDType) -> StorageDType:
    """What torch takes to average and measure in one rounding: whole numbers as Float64, floats as they are."""
    return computed_in(dtype) if dtype.is_floating else DType.Float64


def single_at_least(dtype: StorageDType) -> StorageDType:
    """What keeps several steps to one rounding: whole numbers as Float64, the floats below Float32 as that."""
    if dtype is DType.Float64 or not dtype.is_floating:
        return DType.Float64
    return DType.Float32


def multiplied_in(dtype: StorageDType) -> StorageDType:
    """What keeps a product of floats to one rounding; whole numbers stay, which are exact anyway."""
    return single_at_least(dtype) if dtype.is_floating else dtype


# -- shapes ----------------------------------------------------------------------------------------------------------


def kept_shape(shape: Shape, leaves: Sequence[int], *, keepdims: bool) -> Shape:
    """The shape without these leaves, or with 1 in their places; a mode that loses all its leaves goes."""
    gone = set(leaves)
    position = iter(range(len(shape.leaves())))

    def keep(level: Level) -> Level:
        kept: list[Level | int] = []
        for mode in level:
            if isinstance(mode, int):
                if next(position) not in gone:
                    kept.append(mode)
                elif keepdims:
                    kept.append(1)
            elif inner := keep(mode):
                kept.append(inner if len(inner) > 1 or keepdims else inner[0])
        return tuple(kept)

    return Shape._of(keep(shape._items))


def kept_layout(layout: Layout, leaves: Sequence[int], *, keepdims: bool) -> Layout:
    """The layout over the kept leaves with their strides, or stride 0 in the places of the others."""
    gone = set(leaves)
    strides = [d for k, (_, d) in enumerate(layout.leaves()) if keepdims or k not in gone]
    if keepdims:
        strides = [0 if k in gone else d for k, d in enumerate(strides)]
    return with_strides(kept_shape(layout.shape, leaves, keepdims=keepdims), strides)


def count_of(shape: Shape, leaves: Sequence[int]) -> int:
    """How many values meet in one result."""
    extents = shape.leaves()
    return math.prod(extents[k] for k in leaves)


def spread(context: VJPContext, result: Tensor) -> Tensor:
    """A result or its cotangent, seen at every coordinate of the operand: a stride-0 view."""
    shape = context.invocation.operands[0].shape
    gone, keepdims = set(context.options["leaves"]), context.options["keepdims"]
    strides = iter([d for k, (_, d) in enumerate(result.layout.leaves()) if not keepdims or k not in gone])
    layout = with_strides(shape, [0 if k in gone else next(strides) for k in range(len(shape.leaves()))])
    return Tensor._make(result._carrier, result._offset, layout)


def positions(shape: Shape, leaves: Sequence[int]) -> list[list[int]]:
    """For references: the ordinals that meet in each result, ascending, for every result in ordinal order."""
    gone = set(leaves)
    strides, step = [], 1
    for k, n in enumerate(shape.leaves()):
        strides.append(0 if k in gone else step)
        step *= 1 if k in gone else n
    where = with_strides(shape, strides)
    met: list[list[int]] = [[] for _ in range(step)]
    for ordinal in range(shape.size):
        met[where.index(ordinal)].append(ordinal)
    return met


# -- how reductions are defined --------------------------------------------------------------------------------------


def _plan(
    call: BoundOperationCall,
    inner: DTypeRule,
    output: StorageDType,
    *,
    adds: bool,
    accumulator: StorageDType | None = None,
) -> OperationPlan:
    """Every operand is converted to what `inner` says of it, unless it is that already."""
    operands = tuple(
        OperandPlan(OperandRole.TENSOR, dtype, None if inner(dtype) is dtype else inner(dtype)) for dtype in call.dtypes
    )
    computed = inner(call.dtypes[0])
    accumulation = (
        Accumulation.NONE
        if not adds
        else Accumulation.INTEGER
        if not computed.is_floating
        else Accumulation.BINARY64
        if DType.Float64 in (computed, accumulator)
        else Accumulation.BINARY32
    )
    return OperationPlan(call.definition.name, operands, arithmetic_of(computed), accumulation, accumulator, output)


def reduction(
    name: str,
    function: Callable[..., Scalar],
    vjp: VJP | object,
    *,
    output: DTypeRule = same,
    inner: DTypeRule = computed_in,
    saves: Sequence[int] = (),
    options: Sequence[OptionSpec] = (),
    adds: bool = True,
    require: Callable[[BoundOperationCall], None] | None = None,
) -> OperationDefinition:
    """The definition of a reduction: one result without the leaves of option `leaves`, dense in the order of the rest.

    `function` takes the values that meet, in ordinal order, and the options of its own by name. `require` raises for
    a call that has no result.
    """

    def resolve(call: BoundOperationCall) -> ResolvedInvocation:
        if require is not None:
            require(call)
        (x,) = call.operands
        own, accumulator = x.dtype(), call.options.get("accumulator_dtype")
        kept = kept_layout(x.layout, call.options["leaves"], keepdims=call.options["keepdims"])
        given = output(own)
        if accumulator is None:
            plan = _plan(call, inner, given, adds=adds)
        else:
            plan = _plan(call, _accumulated_in(own, accumulator), given, adds=adds, accumulator=accumulator)
        spec = ResultSpec(given, kept.shape, dense_like(kept.shape, [kept]))
        return ResolvedInvocation(call, plan, (spec,), saved_operands=tuple(saves))

    def reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
        values, chosen = invocation.values(0), _own_options(invocation, options)
        met = positions(invocation.layout(0).shape, invocation.options["leaves"])
        return [[function([values[k] for k in group], **chosen) for group in met]]

    return define(
        name,
        OperationSchema(
            [OperandSpec("x", OperandKind.TENSOR, differentiable=vjp is not NON_DIFFERENTIABLE)],
            [OptionSpec("leaves"), OptionSpec("keepdims", False), *options],
        ),
        resolve,
        reference,
        vjp,
    )


def _accumulated_in(own: StorageDType, accumulator: StorageDType) -> DTypeRule:
    if not own.is_floating:
        raise TypeError(
            f"cannot add up {own.name} in {accumulator.name}: whole numbers are added up exactly, in Int64. Leave "
            "accumulator_dtype out, or convert the operand."
        )
    # Sums of 16-bit floats are kept in Float32 without being converted first.
    if accumulator is DType.Float32 and own in (DType.BFloat16, DType.Float16):
        return same
    return lambda dtype: accumulator


def groupwise(
    name: str,
    names: Sequence[str],
    function: Callable[..., Values],
    vjp: VJP | object,
    *,
    output: DTypeRule = same,
    inner: DTypeRule = single_at_least,
    saves: Sequence[int] | Callable[[StorageDType], Sequence[int]] = (),
    options: Sequence[OptionSpec] = (),
) -> OperationDefinition:
    """The definition of an operation within groups: every value of the result depends on those that it meets.

    The operands have one shape, and so has the result, with the dtype of the first. `function` takes the values that
    meet, one list per operand in ordinal order, and gives as many. `saves` may depend on the dtype of the first.
    """

    def resolve(call: BoundOperationCall) -> ResolvedInvocation:
        shape = call.layouts[0].shape
        given = output(call.dtypes[0])
        spec = ResultSpec(given, shape, dense_like(shape, call.layouts))
        plan = _plan(call, inner, given, adds=True)
        saved = tuple(saves(call.dtypes[0]) if callable(saves) else saves)
        return ResolvedInvocation(call, plan, (spec,), saved_operands=saved)

    def reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
        columns, chosen = [invocation.values(k) for k in range(len(names))], _own_options(invocation, options)
        results: list[Scalar] = [0] * len(columns[0])
        for group in positions(invocation.layout(0).shape, invocation.options["leaves"]):
            made = function(*([column[k] for k in group] for column in columns), **chosen)
            for k, value in zip(group, made, strict=True):
                results[k] = value
        return [results]

    differentiable = vjp is not NON_DIFFERENTIABLE
    return define(
        name,
        OperationSchema(
            [OperandSpec(n, OperandKind.TENSOR, differentiable=differentiable) for n in names],
            [OptionSpec("leaves"), *options],
        ),
        resolve,
        reference,
        vjp,
    )


def _own_options(invocation: ResolvedInvocation, options: Sequence[OptionSpec]) -> dict[str, Any]:
    return {o.name: invocation.options[o.name] for o in options if o.name != "accumulator_dtype"}


def through(adjoint: OperationDefinition, *, takes_result: bool = False, **fixed: Any) -> VJP:
    """The gradient of a reduction by one operation on the cotangent, the operand and, if it takes it, the result."""

    def vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
        operands = [spread(context, g), context.operand(0)]
        if takes_result:
            operands.append(spread(context, context.outputs[0]))
        names = [spec.name for spec in adjoint.schema.options]
        options = {name: fixed.get(name, context.options.get(name)) for name in names}
        return (adjoint(*operands, **options),)

    return vjp
