"""Convolution: a kernel moved over the spatial modes of a batch, and its two gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strideweave.carriers.carrier import Scalar
from strideweave.layout import Layout, Shape
from strideweave.operation.alignment import dense_in_order, dense_like, strides_dense
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.contraction import exact_sum, product_plan
from strideweave.operation.definition import define
from strideweave.operation.schema import NON_DIFFERENTIABLE, OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

Ints: TypeAlias = tuple[int, ...]
Pairs: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """How the kernel moves, one entry for every spatial mode, and which mode is which."""

    strides: Ints
    """How far the kernel moves from one result to the next."""
    padding: Pairs
    """(low, high): the zeros before and after the dilated left operand; negative ones take values away."""
    lhs_dilation: Ints
    """How far apart values of the left operand are, with zeros between them."""
    kernel_dilation: Ints
    """How far apart values of the kernel are."""
    groups: int
    """Into how many groups features are split, each convolved alone."""
    lhs_dims: Ints
    """The numbers of the left operand's batch, feature and spatial modes."""
    kernel_dims: Ints
    """The numbers of the kernel's output feature, input feature and spatial modes."""
    output_dims: Ints
    """The numbers of the result's batch, feature and spatial modes."""

    def padded(self, lhs_sizes: Sequence[int]) -> Ints:
        """The spatial sizes of the left operand, dilated and padded."""
        return tuple(
            (n - 1) * d + 1 + low + high
            for n, d, (low, high) in zip(lhs_sizes, self.lhs_dilation, self.padding, strict=True)
        )

    def reached(self, kernel_sizes: Sequence[int]) -> Ints:
        """The spatial sizes of the kernel, dilated."""
        return tuple((n - 1) * d + 1 for n, d in zip(kernel_sizes, self.kernel_dilation, strict=True))

    def results(self, lhs_sizes: Sequence[int], kernel_sizes: Sequence[int]) -> Ints:
        """The spatial sizes of the result."""
        return tuple(
            (n - k) // s + 1 if n >= k else 0
            for n, k, s in zip(self.padded(lhs_sizes), self.reached(kernel_sizes), self.strides, strict=True)
        )


def sizes_of(shape: Shape, dims: Ints) -> Ints:
    """How many coordinates the modes of these numbers have."""
    return tuple(shape[k].size for k in dims)


def same_padding(
    lhs_sizes: Sequence[int], kernel_sizes: Sequence[int], strides: Ints, lhs_dilation: Ints, kernel_dilation: Ints
) -> Pairs:
    """The padding with which a result has as many coordinates as the dilated left operand, over the stride, rounded up;
    an odd zero goes behind."""
    pairs = []
    for n, k, s, d, kd in zip(lhs_sizes, kernel_sizes, strides, lhs_dilation, kernel_dilation, strict=True):
        dilated, reached = (n - 1) * d + 1, (k - 1) * kd + 1
        missing = max((math.ceil(dilated / s) - 1) * s + reached - dilated, 0)
        pairs.append((missing // 2, missing - missing // 2))
    return tuple(pairs)


def _resolve(call: BoundOperationCall) -> ResolvedInvocation:
    lhs, kernel = call.operands
    window: Window = call.options["window"]
    asked = f"cannot conv_general shapes {lhs.shape} and {kernel.shape}"
    lhs_sizes, kernel_sizes = sizes_of(lhs.shape, window.lhs_dims), sizes_of(kernel.shape, window.kernel_dims)
    features, (out, per_group) = lhs_sizes[1], kernel_sizes[:2]
    if features != per_group * window.groups or out % window.groups:
        raise ValueError(
            f"{asked}: {features} features meet kernels of {per_group}, {out} of them, in {window.groups} groups. Each "
            "group takes as many features as a kernel has, and gives equally many. Change the kernel or feature_groups."
        )
    made = window.results(lhs_sizes[2:], kernel_sizes[2:])
    if min(made) < 1:
        raise ValueError(
            f"{asked}: the padded operand is {window.padded(lhs_sizes[2:])} and the dilated kernel "
            f"{window.reached(kernel_sizes[2:])}, so the result has no coordinates. A kernel fits in at least once. "
            "Pad more."
        )
    modes = [lhs.shape._items[window.lhs_dims[0]], kernel.shape._items[window.kernel_dims[0]], *made]
    shape = Shape._of(tuple(modes[role] for role in _roles(window.output_dims)))
    layout = _layout_after(shape, window, lhs.layout, kernel.layout)
    plan = product_plan(call)
    return ResolvedInvocation(
        call,
        plan,
        (ResultSpec(plan.output, shape, layout),),
        saved_operands=(0, 1),
        memo={"shapes": (lhs.shape, kernel.shape, shape)},
    )


def _roles(dims: Ints) -> list[int]:
    """For every mode which role it has: the inverse of dims."""
    return sorted(range(len(dims)), key=dims.__getitem__)


def _layout_after(shape: Shape, window: Window, lhs: Layout, kernel: Layout) -> Layout:
    """The dense layout in which roles follow one another as in the left operand."""
    widths = [min(d for _, d in mode.leaves()) for mode in lhs]
    if any(d == 0 and mode.size > 1 for d, mode in zip(widths, lhs, strict=True)):
        return strides_dense(shape)
    after = -1
    keys: list[tuple[int, int]] = [(0, 0)] * len(widths)
    for k in reversed(range(len(widths))):
        # A mode of extent 1 has no order of its own: it goes with the mode after it.
        after = widths[k] if lhs[k].size > 1 else after
        keys[k] = (after, -k)
    order: list[int] = []
    first = list(itertools.accumulate((len(mode.leaves()) for mode in shape), initial=0))
    for k in sorted(range(len(keys)), key=keys.__getitem__):
        role = _roles(window.lhs_dims)[k]
        mode = window.output_dims[role]
        leaves = range(first[mode], first[mode + 1])
        inner = lhs[k] if role == 0 else kernel[window.kernel_dims[0]]
        strides = [d for _, d in inner.leaves()] if role < 2 else [0]
        order.extend(sorted(leaves, key=lambda leaf: (strides[leaf - leaves.start], leaf)))
    return dense_in_order(shape, order)


def _triples(window: Window, lhs: Shape, kernel: Shape, output: Shape) -> Iterator[tuple[int, int, int]]:
    """The ordinals of every value of the left operand, the kernel and the result that meet in one product."""
    steps = [
        [step for _, step in sorted(zip(_roles(dims), _mode_steps(shape), strict=True))]
        for dims, shape in ((window.lhs_dims, lhs), (window.kernel_dims, kernel), (window.output_dims, output))
    ]
    lhs_sizes, kernel_sizes = sizes_of(lhs, window.lhs_dims), sizes_of(kernel, window.kernel_dims)
    out_sizes = sizes_of(output, window.output_dims)
    per_group = kernel_sizes[0] // window.groups
    for n, o, i in itertools.product(range(out_sizes[0]), range(out_sizes[1]), range(kernel_sizes[1])):
        feature = o // per_group * kernel_sizes[1] + i
        for place in itertools.product(*map(range, out_sizes[2:])):
            for tap in itertools.product(*map(range, kernel_sizes[2:])):
                source = _source(window, place, tap, lhs_sizes[2:])
                if source is not None:
                    yield (
                        _ordinal(steps[0], (n, feature, *source)),
                        _ordinal(steps[1], (o, i, *tap)),
                        _ordinal(steps[2], (n, o, *place)),
                    )


def _source(window: Window, place: Ints, tap: Ints, sizes: Ints) -> Ints | None:
    """Where in the left operand a tap of the kernel lands; None on a zero."""
    found = []
    for k, (p, t, n) in enumerate(zip(place, tap, sizes, strict=True)):
        at, rest = divmod(
            p * window.strides[k] + t * window.kernel_dilation[k] - window.padding[k][0], window.lhs_dilation[k]
        )
        # A negative padding takes values away, also those that a zero between would hide.
        behind = p * window.strides[k] + t * window.kernel_dilation[k]
        if rest or not 0 <= at < n or not 0 <= behind < window.padded(sizes)[k]:
            return None
        found.append(at)
    return tuple(found)


def _mode_steps(shape: Shape) -> list[int]:
    return list(itertools.accumulate((mode.size for mode in shape), lambda a, b: a * b, initial=1))[:-1]


def _ordinal(steps: Sequence[int], coordinate: Sequence[int]) -> int:
    return sum(step * at for step, at in zip(steps, coordinate, strict=True))


def _reference(invocation: ResolvedInvocation) -> Sequence[Sequence[Scalar]]:
    """Which of left operand, kernel and result is asked for is the one that is no operand."""
    shapes: tuple[Shape, Shape, Shape] = invocation.memo["shapes"]
    asked = _ASKED[invocation.name]
    factors = _FACTORS[asked]
    columns = [invocation.values(k) for k in range(2)]
    terms: list[list[Scalar]] = [[] for _ in range(shapes[asked].size)]
    for triple in _triples(invocation.options["window"], *shapes):
        terms[triple[asked]].append(columns[0][triple[factors[0]]] * columns[1][triple[factors[1]]])
    return [[exact_sum(group) if group else 0 for group in terms]]


_ASKED = {"conv_general_lhs_gradient": 0, "conv_general_kernel_gradient": 1, "conv_general": 2}
_FACTORS = {0: (2, 1), 1: (2, 0), 2: (0, 1)}
"""For each of them, what the two operands are."""


def _vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    lhs, kernel = (operand.layout for operand in context.invocation.operands)
    window = context.options["window"]
    return (
        LHS_GRADIENT(g, context.operand(1), window=window, like=lhs) if context.needs[0] else None,
        KERNEL_GRADIENT(g, context.operand(0), window=window, like=kernel) if context.needs[1] else None,
    )


def _resolve_gradient(call: BoundOperationCall) -> ResolvedInvocation:
    g, other = call.operands
    like: Layout = call.options["like"]
    plan = product_plan(call)
    spec = ResultSpec(plan.output, like.shape, dense_like(like.shape, [like]))
    is_lhs = call.definition.name == "conv_general_lhs_gradient"
    shapes = (like.shape, other.shape, g.shape) if is_lhs else (other.shape, like.shape, g.shape)
    return ResolvedInvocation(call, plan, (spec,), memo={"shapes": shapes})


def _schema(first: str, second: str, options: Sequence[OptionSpec], *, differentiable: bool = False) -> OperationSchema:
    operands = [OperandSpec(n, OperandKind.TENSOR, differentiable=differentiable) for n in (first, second)]
    return OperationSchema(operands, options)


_GRADIENT_OPTIONS = (OptionSpec("window"), OptionSpec("like"))

CONV_GENERAL = define(
    "conv_general",
    _schema("lhs", "kernel", [OptionSpec("window")], differentiable=True),
    _resolve,
    _reference,
    _vjp,
)
LHS_GRADIENT = define(
    "conv_general_lhs_gradient",
    _schema("g", "kernel", _GRADIENT_OPTIONS),
    _resolve_gradient,
    _reference,
    NON_DIFFERENTIABLE,
)
KERNEL_GRADIENT = define(
    "conv_general_kernel_gradient",
    _schema("g", "lhs", _GRADIENT_OPTIONS),
    _resolve_gradient,
    _reference,
    NON_DIFFERENTIABLE,
)
