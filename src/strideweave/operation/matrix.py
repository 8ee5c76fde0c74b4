"""Matrix operations: which modes of two operands meet in a product, and which are summed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from strideweave.layout import Shape
from strideweave.layout.nested import Level, flat
from strideweave.operation.alignment import align
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation
from strideweave.operation.contraction import (
    Axis,
    Contraction,
    contraction_reference,
    contraction_vjp,
    define_contraction,
    resolve_contraction,
)
from strideweave.operation.definition import define
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

Mode: TypeAlias = "int | Level"


class _Operand:
    """The leaves of an operand's shape, numbered from the first mode, handed out mode by mode."""

    def __init__(self, shape: Shape) -> None:
        self._modes = shape._items
        self._first = [0]
        for mode in self._modes:
            self._first.append(self._first[-1] + len(_leaves(mode)))

    def mode(self, k: int) -> list[tuple[int, int]]:
        """(leaf, extent) of every leaf of one mode."""
        return list(enumerate(_leaves(self._modes[k]), self._first[k]))


def _leaves(mode: Mode) -> tuple[int, ...]:
    return (mode,) if isinstance(mode, int) else flat(mode)


def _axes(leaves: Iterable[tuple[int, int]], first_label: int) -> list[Axis]:
    return [Axis(first_label + k, ((leaf, 1, n),)) for k, (leaf, n) in enumerate(leaves)]


def _met(left: list[tuple[int, int]], right: list[tuple[int, int]], first_label: int) -> tuple[list[Axis], list[Axis]]:
    """The axes of two modes of one size that meet in ordinal order: divided alike, or else each as one axis."""
    extents = _common_division([n for _, n in left], [n for _, n in right])
    if extents is None:
        whole = (tuple((leaf, 1, n) for leaf, n in side) for side in (left, right))
        return tuple([Axis(first_label, parts)] for parts in whole)  # type: ignore[return-value]  # two of them
    return _divided(left, extents, first_label), _divided(right, extents, first_label)


def _common_division(left: Sequence[int], right: Sequence[int]) -> list[int] | None:
    """The fewest extents that divide the leaves of both, first one fastest; None where the leaves cross."""
    a, b = [n for n in left if n > 1], [n for n in right if n > 1]
    extents: list[int] = []
    while a and b:
        n = min(a[0], b[0])
        if a[0] % n or b[0] % n:
            return None
        extents.append(n)
        for side in (a, b):
            side[0] //= n
            if side[0] == 1:
                side.pop(0)
    return extents or [1]


def _divided(leaves: list[tuple[int, int]], extents: Sequence[int], first_label: int) -> list[Axis]:
    axes: list[Axis] = []
    rest = [(leaf, n) for leaf, n in leaves if n > 1] or leaves[:1]
    step = 1
    for k, extent in enumerate(extents):
        leaf, n = rest[0]
        axes.append(Axis(first_label + k, ((leaf, step, extent),)))
        step *= extent
        if step == n:
            rest.pop(0)
            step = 1
    return axes


def _require_inner(call: BoundOperationCall, left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    sizes = [Shape(*(n for _, n in side)).size for side in (left, right)]
    if sizes[0] != sizes[1]:
        shapes = " and ".join(str(layout.shape) for layout in call.layouts[:2])
        raise ValueError(
            f"cannot {call.definition.name} shapes {shapes}: {sizes[0]} coordinates meet {sizes[1]}. Matmul inner "
            "dimensions must match. Permute or reshape one of them."
        )


def _matmul(call: BoundOperationCall) -> tuple[Contraction, Shape]:
    """The last mode of the left operand with the last but one of the right; the modes before these are the batch."""
    shapes = [layout.shape for layout in call.layouts]
    for which, shape in zip(("left", "right"), shapes, strict=True):
        if not len(shape):
            raise ValueError(
                f"cannot matmul shapes {shapes[0]} and {shapes[1]}: the {which} one has no modes. A factor has one "
                "mode at least. Use mul for a single value."
            )
    left, right = _Operand(shapes[0]), _Operand(shapes[1])
    k_right = max(len(shapes[1]) - 2, 0)
    _require_inner(call, left.mode(len(shapes[0]) - 1), right.mode(k_right))
    m_modes = shapes[0]._items[-2:-1]
    n_modes = shapes[1]._items[-1:] if len(shapes[1]) > 1 else ()
    batch = _batch_shape(call)
    batch_leaves = [n for mode in batch._items for n in _leaves(mode)]
    label = len(batch_leaves)
    m_axes = [axis for k in range(len(m_modes)) for axis in _axes(left.mode(len(shapes[0]) - 2 + k), label)]
    label += len(m_axes)
    n_axes = [axis for _ in n_modes for axis in _axes(right.mode(len(shapes[1]) - 1), label)]
    label += len(n_axes)
    k_left, k_met = _met(left.mode(len(shapes[0]) - 1), right.mode(k_right), label)
    sides = (
        (*_batch_axes(left, len(shapes[0]) - 2, batch), *m_axes, *k_left),
        (*_batch_axes(right, k_right, batch), *k_met, *n_axes),
    )
    shape = Shape._of((*batch._items, *m_modes, *n_modes))
    output = tuple(Axis(k, ((k, 1, n),)) for k, n in enumerate(shape.leaves()))
    return Contraction(sides, output), shape


def _batch_shape(call: BoundOperationCall) -> Shape:
    batches = [layout[:-2] for layout in call.layouts if len(layout) > 2]
    if not batches:
        return Shape()
    try:
        return align(batches, name=call.definition.name)[0]
    except ValueError as error:
        left, right = (layout.shape for layout in call.layouts)
        raise ValueError(
            f"cannot matmul shapes {left} and {right}: their batches, all modes but the last two, are not "
            "broadcast-compatible. Aligned from the last, every leaf must be equal or 1. Reshape one of them."
        ) from error


def _batch_axes(operand: _Operand, count: int, batch: Shape) -> list[Axis]:
    """The axes of an operand's first `count` modes, which are the last ones of the batch; None where it repeats."""
    modes = batch._items
    labels: list[range] = []
    for mode in modes:
        begin = labels[-1].stop if labels else 0
        labels.append(range(begin, begin + len(_leaves(mode))))
    axes: list[Axis] = []
    for k in range(max(count, 0)):
        mode, own = modes[len(modes) - count + k], labels[len(modes) - count + k]
        wanted, leaves = _leaves(mode), operand.mode(k)
        if len(leaves) != len(wanted):  # a single 1, which meets a whole nested mode
            axes.extend(Axis(None, ((leaf, 1, n),)) for leaf, n in leaves)
            continue
        for (leaf, n), target, label in zip(leaves, wanted, own, strict=True):
            axes.append(Axis(label if n == target else None, ((leaf, 1, n),)))
    return axes


def _require_modes(call: BoundOperationCall, which: str, shape: Shape, count: int) -> None:
    if len(shape) != count:
        word = {1: "one", 2: "two"}[count]
        raise ValueError(
            f"cannot {call.definition.name} with a {which} operand of shape {shape}: it has {len(shape)} modes. It "
            f"must have a {word}-mode layout. Group its modes with flatten_modes, or take a part."
        )


def _gemm(call: BoundOperationCall) -> tuple[Contraction, Shape]:
    """Second mode with second mode: `C[i,j] = sum over k of A[i,k] B[j,k]`."""
    for which, layout in zip(("left", "right"), call.layouts, strict=True):
        _require_modes(call, which, layout.shape, 2)
    return _rows_with_rows(call)


def _rows_with_rows(call: BoundOperationCall) -> tuple[Contraction, Shape]:
    """The last mode of the left operand with the second of the right; every other mode stays."""
    shapes = [layout.shape for layout in call.layouts]
    left, right = _Operand(shapes[0]), _Operand(shapes[1])
    last = len(shapes[0]) - 1
    _require_inner(call, left.mode(last), right.mode(1))
    m_axes = _axes([leaf for k in range(last) for leaf in left.mode(k)], 0)
    n_axes = _axes(right.mode(0), len(m_axes))
    k_left, k_right = _met(left.mode(last), right.mode(1), len(m_axes) + len(n_axes))
    shape = Shape._of((*shapes[0]._items[:-1], shapes[1]._items[0]))
    output = tuple(Axis(k, ((k, 1, n),)) for k, n in enumerate(shape.leaves()))
    return Contraction(((*m_axes, *k_left), (*n_axes, *k_right)), output), shape


def _outer(call: BoundOperationCall) -> tuple[Contraction, Shape]:
    """No mode with any other."""
    for which, layout in zip(("left", "right"), call.layouts, strict=True):
        _require_modes(call, which, layout.shape, 1)
    left, right = (layout.shape for layout in call.layouts)
    m_axes = _axes(_Operand(left).mode(0), 0)
    n_axes = _axes(_Operand(right).mode(0), len(m_axes))
    shape = Shape._of((*left._items, *right._items))
    output = tuple(Axis(k, ((k, 1, n),)) for k, n in enumerate(shape.leaves()))
    return Contraction((tuple(m_axes), tuple(n_axes)), output), shape


def _dot(call: BoundOperationCall) -> tuple[Contraction, Shape]:
    """The only mode with the only mode."""
    for which, layout in zip(("left", "right"), call.layouts, strict=True):
        _require_modes(call, which, layout.shape, 1)
    return _matmul(call)


def _resolve_linear(call: BoundOperationCall) -> ResolvedInvocation:
    x, weight, bias = call.operands
    _require_modes(call, "weight", weight.shape, 2)
    if not len(x.shape):
        raise ValueError(
            f"cannot linear x of shape {x.shape}: it has no modes. Its last mode meets the second one of the weight. "
            "Reshape it to one mode."
        )
    contraction, shape = _rows_with_rows(call)
    if isinstance(bias, Tensor):
        wanted = shape._items[-1:]
        if bias.shape._items != wanted:
            raise ValueError(
                f"cannot linear with a bias of shape {bias.shape}: the weight has shape {weight.shape}. The bias has "
                "the first mode of the weight. Reshape or broadcast it."
            )
        count = len(bias.shape.leaves())
        added = tuple(Axis(axis.label, ((k, 1, axis.extent),)) for k, axis in enumerate(contraction.output[-count:]))
        contraction = Contraction((*contraction.sides, added), contraction.output)
    return resolve_contraction(call, contraction, shape)


MATMUL = define_contraction("matmul", ["l", "r"], _matmul)
GEMM = define_contraction("gemm", ["l", "r"], _gemm)
DOT = define_contraction("dot", ["l", "r"], _dot)
OUTER = define_contraction("outer", ["l", "r"], _outer)
LINEAR = define(
    "linear",
    OperationSchema(
        [
            OperandSpec("x", OperandKind.TENSOR, differentiable=True),
            OperandSpec("weight", OperandKind.TENSOR, differentiable=True),
            OperandSpec("bias", (OperandKind.TENSOR, OperandKind.STRUCTURAL), differentiable=True),
        ],
        [OptionSpec("accumulator_dtype", None)],
    ),
    _resolve_linear,
    contraction_reference,
    contraction_vjp,
)
