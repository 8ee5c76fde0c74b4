"""Contractions: products of two operands, summed over what the result leaves out. Every matrix operation is one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout, Shape
from strideweave.operation.alignment import dense_in_order, dense_like, strides_dense
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import OperationDefinition, define
from strideweave.operation.plan import Accumulation, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.pointwise import arithmetic_of
from strideweave.operation.promotion import category, promote
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Axis:
    """One label of a contraction as one operand or the result has it."""

    label: int | None
    """Which label; None for a single coordinate that meets every coordinate of the others."""
    parts: tuple[tuple[int, int, int], ...]
    """(leaf, step, extent): every `step`-th coordinate of a leaf, `extent` of them. Several, the first of them
    fastest, only where the leaves of two operands have no common division."""

    @property
    def extent(self) -> int:
        """How many coordinates it has."""
        return math.prod(n for _, _, n in self.parts)


Side: TypeAlias = tuple[Axis, ...]
"""The axes of one operand or of the result."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """What meets what: the first two operands are multiplied where their labels agree, and summed into the result.

    Every label is on two of the three sides at least; a third operand, if any, is added and has labels of the result.
    """

    sides: tuple[Side, ...]
    """One for every operand."""
    output: Side
    """The result's."""


def whole_leaves(shape: Shape, labels: Sequence[int | None]) -> Side:
    """The side on which every leaf of `shape` has one label."""
    return tuple(Axis(label, ((k, 1, n),)) for k, (label, n) in enumerate(zip(labels, shape.leaves(), strict=True)))


def dense_after(shape: Shape, contraction: Contraction, layouts: Sequence[Layout]) -> Layout:
    """The dense layout of a result in the order of the first operand's strides.

    A leaf that only the second operand has takes the place, in that order, of what is contracted in the first: so a
    row-major matrix gives a row-major result and a column-major one a column-major result, whatever the second is.
    Among themselves such leaves follow the second operand's strides; but one that stands before a leaf of the first
    operand, as a batch mode does, goes with the leaf after it. Where nothing is contracted they are fastest when the
    last leaf of the first operand is its fastest one of several, else slowest. An operand with a stride of 0 orders
    nothing: then the second one decides, what only the first has in the place of what is contracted, and else the first
    mode is fastest.
    """
    labels = [axis.label for axis in contraction.output]
    strides = [_strides_by_label(side, layout) for side, layout in zip(contraction.sides, layouts, strict=False)]
    left, right = strides[0], strides[1]
    for first, second, leads in ((left, right, True), (right, left, False)):
        keys = _keys(labels, shape.leaves(), first, second, leads=leads)
        if keys is not None:
            return dense_in_order(shape, sorted(range(len(keys)), key=keys.__getitem__))
    return strides_dense(shape)


_Key: TypeAlias = tuple[float, int, int, int]


def _strides_by_label(side: Side, layout: Layout) -> dict[int, int]:
    """The stride of every label; -1 for one of extent 1 and stride 0, which is no broadcast."""
    leaves = layout.leaves()
    found: dict[int, int] = {}
    for axis in side:
        if axis.label is not None:
            stride = min(step * leaves[leaf][1] for leaf, step, _ in axis.parts)
            found[axis.label] = -1 if stride == 0 and axis.extent == 1 else stride
    return found


def _keys(
    labels: Sequence[int | None],
    extents: Sequence[int],
    first: Mapping[int, int],
    second: Mapping[int, int],
    *,
    leads: bool,
) -> list[_Key] | None:
    """By what the result's leaves are sorted, fastest first; None where the first operand does not order them.

    `leads` says that it is the left one, behind whose leaves those that only the other has come out.
    """
    wide = [label for label, n in zip(labels, extents, strict=True) if n > 1 and label is not None]
    kept = [first[label] for label in wide if label in first]
    contracted = [d for label, d in first.items() if label not in labels]
    if not wide or 0 in kept or 0 in contracted:
        return None
    place = math.inf
    if contracted:
        place = min(contracted)
    elif len(kept) > 1 and kept[-1] == min(kept):
        place = 0
    keys: list[_Key] = []
    after: tuple[float, int, int] = (-1, 0, 0)
    is_before = False
    for k in reversed(range(len(labels))):
        label = labels[k]
        if label is not None and label in first:
            is_before = leads
            after = (first[label], 1, 0) if extents[k] > 1 else after
        elif label is not None and extents[k] > 1 and not is_before:
            after = (place, 0, second[label])
        # Any other leaf has no order of its own: it goes with the leaf after it, as in a row-major tensor.
        keys.append((*after, -k))
    return keys[::-1]


def product_plan(call: BoundOperationCall) -> OperationPlan:
    """The plan of a contraction: dtypes promoted by the table, sums kept in Float32 at least, whole numbers exact.

    8-bit floats alone are computed in Float32; beside a wider dtype they are converted to it, which is exact. Errors:
    TypeError for Bool, and for an accumulator of whole numbers.
    """
    name = call.definition.name
    tensors = [o for o in call.operands if isinstance(o, Tensor)]
    dtypes = [(t.dtype(), len(t.layout) > 0) for t in tensors]
    output = promote(dtypes)
    accumulator: StorageDType | None = call.options.get("accumulator_dtype")
    if category(output) == 0:
        raise TypeError(
            f"cannot {name} Bool with Bool: the sum of truths is no Bool. It takes numbers. Convert one operand first."
        )
    if accumulator is not None and not output.is_floating:
        raise TypeError(
            f"cannot {name} {output.name} with accumulator {accumulator.name}: whole numbers are summed exactly. Only "
            "floating sums have an accumulator dtype. Leave it out, or convert the operands."
        )
    only_8_bit = output.is_floating and all(dtype.bits == 8 for dtype, _ in dtypes)
    inner = DType.Float64 if accumulator is DType.Float64 else DType.Float32 if only_8_bit else output
    operands = tuple(OperandPlan(OperandRole.TENSOR, dtype, None if dtype is inner else inner) for dtype, _ in dtypes)
    kept_in = (
        Accumulation.INTEGER
        if not inner.is_floating
        else Accumulation.BINARY64
        if inner is DType.Float64
        else Accumulation.BINARY32
    )
    return OperationPlan(name, operands, arithmetic_of(inner), kept_in, accumulator, output)


def resolve_contraction(
    call: BoundOperationCall, contraction: Contraction, shape: Shape, layout: Layout | None = None
) -> ResolvedInvocation:
    """One result of `shape`, in `layout` or else as `dense_after` lays it out."""
    plan = product_plan(call)
    if layout is None:
        layout = dense_after(shape, contraction, call.layouts)
    spec = ResultSpec(plan.output, shape, layout)
    return ResolvedInvocation(call, plan, (spec,), saved_operands=(0, 1), memo={"contraction": contraction})


def contraction_of(invocation: ResolvedInvocation) -> Contraction:
    """What the resolution has found."""
    found: Contraction = invocation.memo["contraction"]
    return found


def contraction_reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    """For every coordinate of the result the exact sum of its products, and of what is added."""
    contraction = contraction_of(invocation)
    columns = [invocation.values(k) for k, o in enumerate(invocation.operands) if isinstance(o, Tensor)]
    shapes = [o.shape for o in invocation.operands if isinstance(o, Tensor)]
    extents: dict[int, int] = {}
    for side in contraction.sides:
        extents.update({axis.label: axis.extent for axis in side if axis.label is not None})
    places = [_ordinal(side, shape) for side, shape in zip(contraction.sides, shapes, strict=True)]
    place = _ordinal(contraction.output, invocation.results[0].shape)
    terms: list[list[Scalar]] = [[] for _ in range(invocation.results[0].shape.size)]
    labels = list(extents)
    for digits in itertools.product(*(range(extents[label]) for label in labels)):
        at = dict(zip(labels, digits, strict=True))
        terms[place(at)].append(columns[0][places[0](at)] * columns[1][places[1](at)])
    if len(columns) == 3:
        for digits in itertools.product(*(range(axis.extent) for axis in contraction.output)):
            at = {axis.label: d for axis, d in zip(contraction.output, digits, strict=True) if axis.label is not None}
            terms[place(at)].append(columns[2][places[2](at)])
    return [[exact_sum(group) for group in terms]]


def _ordinal(side: Side, shape: Shape) -> Callable[[Mapping[int, int]], int]:
    """The ordinal within `shape` that a coordinate of every label reaches."""
    steps = list(itertools.accumulate(shape.leaves(), initial=1, func=lambda a, b: a * b))

    def ordinal(at: Mapping[int, int]) -> int:
        total = 0
        for axis in side:
            digit = 0 if axis.label is None else at[axis.label]
            for leaf, step, n in axis.parts:
                digit, low = divmod(digit, n)
                total += low * step * steps[leaf]
        return total

    return ordinal


def exact_sum(values: list[Scalar]) -> Scalar:
    """For references: the sum, of finite floats rounded once."""
    floating = isinstance(values[0], float)
    return math.fsum(values) if floating and all(map(math.isfinite, values)) else sum(values)


def contraction_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    """For every factor the contraction of the cotangent with the other one; what is added passes the cotangent on."""
    contraction = contraction_of(context.invocation)
    operands = context.invocation.operands
    entries: list[Tensor | None] = []
    for k in (0, 1):
        if not context.needs[k]:
            entries.append(None)
            continue
        own: Layout = operands[k].layout
        entries.append(
            EINSUM(
                g,
                context.operand(1 - k),
                contraction=Contraction((contraction.output, contraction.sides[1 - k]), contraction.sides[k]),
                shape=own.shape,
                layout=dense_like(own.shape, [own]),
                accumulator_dtype=context.options.get("accumulator_dtype"),
            )
        )
    entries.extend(g if isinstance(o, Tensor) else None for o in operands[2:])
    return tuple(entries)


def define_contraction(
    name: str,
    names: Sequence[str],
    find: Callable[[BoundOperationCall], tuple[Contraction, Shape]],
    *,
    options: Sequence[OptionSpec] = (),
) -> OperationDefinition:
    """The definition of an operation of two operands that is a contraction; `find` says which, and of what shape."""

    def resolve(call: BoundOperationCall) -> ResolvedInvocation:
        contraction, shape = find(call)
        return resolve_contraction(call, contraction, shape, call.options.get("layout"))

    operands = [OperandSpec(n, OperandKind.TENSOR, differentiable=True) for n in names]
    schema = OperationSchema(operands, [*options, OptionSpec("accumulator_dtype", None)])
    return define(name, schema, resolve, contraction_reference, contraction_vjp)


EINSUM = define_contraction(
    "einsum",
    ["l", "r"],
    lambda call: (call.options["contraction"], call.options["shape"]),
    options=[OptionSpec("contraction"), OptionSpec("shape"), OptionSpec("layout", None)],
)
