"""Pointwise operations: one value in, one value out, at every coordinate of a common shape.

This module has what all of them share, and the arithmetic that gradients are added and scaled with. The families beside
it are `arithmetic`, `transcendental`, `activation` and `comparison`.

Where a gradient takes more than one operation, it has an operation of its own, named after the other with `_backward`:
one kernel call instead of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import torch

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType, StorageDType
from strideweave.operation.alignment import align, dense_like
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import VJP, OperationDefinition, define
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.promotion import computed_in, floating, promote
from strideweave.operation.schema import NON_DIFFERENTIABLE, OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

TENSOR_OR_SCALAR = (OperandKind.TENSOR, OperandKind.WEAK_SCALAR)

Check: TypeAlias = Callable[[BoundOperationCall, StorageDType], None]
"""Raises TypeError for a call, or a promoted dtype, that an operation does not take."""


class Gives(Enum):
    """Which dtype a pointwise operation gives, from the promoted dtype of its operands."""

    PROMOTED = "promoted"
    FLOATING = "floating"
    """Whole numbers and Bool become Float32."""
    NUMBER = "number"
    """Bool becomes Int64."""
    BOOL = "bool"


def pointwise_plan(call: BoundOperationCall, gives: Gives = Gives.PROMOTED) -> OperationPlan:
    """The plan of a pointwise call: operands promoted by the table, 8-bit floats computed in Float32.

    >>> import strideweave as sw
    >>> from strideweave.operation import find, pointwise_plan
    >>> pointwise_plan(find("add").bind(sw.tensor([1]), 1.5)).output
    DType.Float32
    """
    inner = computed_dtype(call, gives)
    operands = []
    for operand, kind in zip(call.operands, call.operand_kinds, strict=True):
        if kind is OperandKind.TENSOR:
            own = operand.dtype()
            converted = computed_in(own)
            operands.append(OperandPlan(OperandRole.TENSOR, own, None if converted is own else converted))
        elif kind is OperandKind.WEAK_SCALAR:
            operands.append(OperandPlan(OperandRole.WEAK_SCALAR, None))
    output = DType.Bool if gives is Gives.BOOL else inner
    return OperationPlan(call.definition.name, tuple(operands), arithmetic_of(inner), Accumulation.NONE, None, output)


def computed_dtype(call: BoundOperationCall, gives: Gives = Gives.PROMOTED) -> StorageDType:
    """The dtype that the operands of a pointwise call are promoted to before anything is computed."""
    tensors = [(o.dtype(), len(o.layout) > 0) for o in call.operands if isinstance(o, Tensor)]
    scalars = [_scalar_type(o) for o in call.operands if isinstance(o, int | float)]
    common = promote(tensors, scalars)
    if gives is Gives.FLOATING:
        return floating(common)
    return DType.Int64 if gives is Gives.NUMBER and common is DType.Bool else common


def _scalar_type(scalar: Scalar) -> type:
    return bool if isinstance(scalar, bool) else int if isinstance(scalar, int) else float


def arithmetic_of(dtype: StorageDType) -> Arithmetic:
    """The numbers in which values of `dtype` are computed."""
    if dtype.is_floating:
        return Arithmetic.BINARY64 if dtype is DType.Float64 else Arithmetic.BINARY32
    return Arithmetic.LOGICAL if dtype is DType.Bool else Arithmetic.INTEGER


def resolve_pointwise(
    call: BoundOperationCall, gives: Gives = Gives.PROMOTED, *, saves: Sequence[int] = ()
) -> ResolvedInvocation:
    """One result of the common shape, dense in the order of the first operand that has one.

    >>> import strideweave as sw
    >>> from strideweave.operation import find, resolve_pointwise
    >>> resolve_pointwise(find("add").bind(sw.ones(2, 1), sw.ones(3))).results[0].shape
    Shape(2, 3)
    """
    plan = pointwise_plan(call, gives)
    shape, aligned = align(call.layouts, name=call.definition.name)
    layout = dense_like(shape, aligned)
    left = iter(aligned)
    return ResolvedInvocation(
        call,
        plan,
        (ResultSpec(plan.output, shape, layout),),
        saved_operands=tuple(k for k in saves if isinstance(call.operands[k], Tensor)),
        aligned=tuple(next(left) if isinstance(o, Tensor) else None for o in call.operands),
    )


def pointwise(
    name: str,
    names: Sequence[str],
    function: Callable[..., Scalar],
    vjp: VJP | object = NON_DIFFERENTIABLE,
    *,
    gives: Gives = Gives.PROMOTED,
    saves: Mapping[int, Sequence[int]] | None = None,
    options: Sequence[OptionSpec] = (),
    check: Check | None = None,
) -> OperationDefinition:
    """The definition of a pointwise operation; `function` takes one number per operand, and the options by name.

    `saves` tells, for every operand that a gradient looks at, the operands whose gradients these are: it is saved only
    where one of them can have any.
    """
    kind = OperandKind.TENSOR if len(names) == 1 else TENSOR_OR_SCALAR
    operands = [OperandSpec(n, kind, differentiable=vjp is not NON_DIFFERENTIABLE) for n in names]
    wanted = saves or {}

    def resolve(call: BoundOperationCall) -> ResolvedInvocation:
        if check is not None:
            check(call, computed_dtype(call))
        gradients = {k for k, o in enumerate(call.operands) if isinstance(o, Tensor) and o.is_differentiable()}
        return resolve_pointwise(call, gives, saves=[k for k, of in wanted.items() if not gradients.isdisjoint(of)])

    def reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
        columns = promoted_values(invocation, gives)
        return [[function(*row, **invocation.options) for row in zip(*columns, strict=True)]]

    return define(name, OperationSchema(operands, options), resolve, reference, vjp)


def promoted_values(invocation: ResolvedInvocation, gives: Gives) -> list[list[Scalar]]:
    """For references: the values of every operand as the promoted dtype holds them, which is where computing begins.

    Python floats keep Float32 beside narrower floats, except in comparisons: as in torch.
    """
    inner = computed_in(computed_dtype(invocation.call, gives))
    columns = []
    for k, operand in enumerate(invocation.operands):
        if isinstance(operand, Tensor):
            source, target = operand.dtype().torch_dtype, inner
        else:
            source = torch.float64 if isinstance(operand, float) else torch.int64
            narrow = inner.is_floating and inner is not DType.Float64 and gives is not Gives.BOOL
            target = DType.Float32 if narrow else inner
        values: list[Scalar] = torch.tensor(invocation.values(k), dtype=source).to(target.torch_dtype).tolist()
        columns.append(values)
    return columns


def refused(call: BoundOperationCall, dtype: StorageDType, *, takes: str) -> TypeError:
    """The error of an operation that does not take `dtype`."""
    return TypeError(
        f"cannot run {call.definition.name} on {dtype.name}: {takes}. Convert the operand, as with sw.convert, first."
    )


def no_bool(call: BoundOperationCall, common: StorageDType) -> None:
    """Errors: TypeError when all operands are Bool."""
    if common is DType.Bool:
        raise refused(call, common, takes="it takes numbers, and Bool is none")


def only_floating(call: BoundOperationCall, common: StorageDType) -> None:
    """Errors: TypeError for whole numbers and Bool."""
    if not common.is_floating:
        raise refused(call, common, takes="it takes floating dtypes only, as PyTorch does")


# -- arithmetic ------------------------------------------------------------------------------------------------------


def _no_bool_operand(call: BoundOperationCall, common: StorageDType) -> None:
    if any(o is True or o is False or (isinstance(o, Tensor) and o.dtype() is DType.Bool) for o in call.operands):
        raise refused(call, DType.Bool, takes="a truth is subtracted from nothing; logical_xor tells where two differ")


def _sub_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    return g, NEG(g) if context.needs[1] else None


def _mul_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    return (
        MUL(g, context.operand(1)) if context.needs[0] else None,
        MUL(g, context.operand(0)) if context.needs[1] else None,
    )


def divided(x: Scalar, y: Scalar) -> float:
    """`x / y` with IEEE's infinities and NaN."""
    if y == 0:
        return math.nan if x == 0 or x != x else math.copysign(math.inf, x) * math.copysign(1.0, y)
    return x / y


def _div_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    y = context.operand(1)
    return (
        DIV(g, y) if context.needs[0] else None,
        DIV_BACKWARD(g, y, context.outputs[0]) if context.needs[1] else None,
    )


_BOTH = {0: (1,), 1: (0,)}

NEG: OperationDefinition = pointwise("neg", ["x"], lambda x: -x, lambda context, g: (NEG(g),), check=no_bool)
ADD = pointwise("add", ["x", "y"], lambda x, y: x + y, lambda context, g: (g, g))
SUB = pointwise("sub", ["x", "y"], lambda x, y: x - y, _sub_vjp, check=_no_bool_operand)
MUL = pointwise("mul", ["x", "y"], lambda x, y: x * y, _mul_vjp, saves=_BOTH)
ELEMENTWISE_MUL = pointwise("elementwise_mul", ["x", "y"], lambda x, y: x * y, _mul_vjp, saves=_BOTH)
DIV = pointwise("div", ["x", "y"], divided, _div_vjp, gives=Gives.FLOATING, saves={1: (0, 1)})
DIV_BACKWARD = pointwise("div_backward", ["g", "y", "quotient"], lambda g, y, quotient: -g * divided(quotient, y))
ZERO = pointwise("zero", ["x"], lambda x: 0)
"""Zeros of the shape and dtype of `x`: the gradient of what is flat almost everywhere."""


# -- conversion ------------------------------------------------------------------------------------------------------


def _resolve_convert(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    target: StorageDType = call.options["dtype"]
    plan = OperationPlan(
        "convert", (OperandPlan(OperandRole.TENSOR, x.dtype()),), Arithmetic.NONE, Accumulation.NONE, None, target
    )
    shape = x.shape
    return ResolvedInvocation(call, plan, (ResultSpec(target, shape, dense_like(shape, [x.layout])),))


def _convert_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Any]]:
    return [invocation.values(0)]


CONVERT = define(
    "convert",
    OperationSchema([OperandSpec("x", OperandKind.TENSOR, differentiable=True)], [OptionSpec("dtype")]),
    _resolve_convert,
    _convert_reference,
    lambda context, g: (g,),
)
