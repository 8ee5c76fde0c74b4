"""Losses: each one operation, and its gradient one more."""

from __future__ import annotations

import math

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType
from strideweave.layout import Shape
from strideweave.operation.alignment import align, dense_like
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import define
from strideweave.operation.normalization import float_plan, log_softmax_of, tensor_spec
from strideweave.operation.pointwise import NEG
from strideweave.operation.promotion import floating, promote
from strideweave.operation.reducing import kept_layout, positions, single_at_least
from strideweave.operation.reduction import softmax_of, total
from strideweave.operation.schema import NON_DIFFERENTIABLE, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor


def out_of_range(target: int, classes: int) -> IndexError:
    """The refusal of a target that is no class."""
    return IndexError(
        f"cannot take the cross_entropy of target {target}: there are {classes} classes. A target is the number of a "
        f"class, or ignore_index. Pass 0 to {classes - 1}."
    )


def _resolve_cross_entropy(call: BoundOperationCall) -> ResolvedInvocation:
    logits, targets = call.operands[-2:]
    kept = kept_layout(logits.layout, call.options["leaves"], keepdims=False)
    if targets.dtype().is_floating or targets.dtype() is DType.Bool:
        raise TypeError(
            f"cannot take the cross_entropy of targets of {targets.dtype().name}: targets are the numbers of classes. "
            "Pass whole numbers, as Int64."
        )
    if targets.shape != kept.shape:
        raise ValueError(
            f"cannot take the cross_entropy of logits {logits.shape} and targets {targets.shape}: without the classes "
            f"the logits have shape {kept.shape}. Every target has its logits. Pass targets of that shape."
        )
    output = floating(logits.dtype())
    inner = single_at_least(logits.dtype())
    if call.definition is not CROSS_ENTROPY:
        spec = ResultSpec(output, logits.shape, dense_like(logits.shape, [logits.layout]))
        return ResolvedInvocation(call, float_plan(call, [inner, inner, DType.Int64], output), (spec,))
    shape = kept.shape if call.options["reduction"] == "none" else Shape()
    spec = ResultSpec(output, shape, dense_like(shape, [kept] if len(shape) else []))
    return ResolvedInvocation(call, float_plan(call, [inner, DType.Int64], output), (spec,), saved_operands=(0, 1))


def _cross_entropy_reference(invocation: ResolvedInvocation) -> list[list[Scalar]]:
    x, targets, options = invocation.values(0), invocation.values(1), invocation.options
    smoothing, losses = options["label_smoothing"], []
    for group, target in zip(positions(invocation.layout(0).shape, options["leaves"]), targets, strict=True):
        if target == options["ignore_index"]:
            losses.append(0.0)
            continue
        if not 0 <= target < len(group):
            raise out_of_range(int(target), len(group))
        logs = log_softmax_of([x[k] for k in group])
        spread = -total(logs) / len(group) if smoothing else 0.0
        losses.append(-(1 - smoothing) * logs[int(target)] + smoothing * spread)
    if options["reduction"] == "none":
        return [losses]
    counted = sum(target != options["ignore_index"] for target in targets)
    whole = total(losses)
    return [[whole if options["reduction"] == "sum" else whole / counted if counted else math.nan]]


def _cross_entropy_backward_reference(invocation: ResolvedInvocation) -> list[list[Scalar]]:
    g, x, targets, options = *(invocation.values(k) for k in range(3)), invocation.options
    out: list[Scalar] = [0.0] * len(x)
    counted = sum(target != options["ignore_index"] for target in targets)
    groups = positions(invocation.layout(1).shape, options["leaves"])
    for j, (group, target) in enumerate(zip(groups, targets, strict=True)):
        if target == options["ignore_index"]:
            continue
        scale = g[j] if options["reduction"] == "none" else g[0] / (counted if options["reduction"] == "mean" else 1)
        smoothing = options["label_smoothing"]
        for number, (k, p) in enumerate(zip(group, softmax_of([x[k] for k in group]), strict=True)):
            out[k] = scale * (p - smoothing / len(group) - (1 - smoothing if number == target else 0))
    return [out]


_CROSS_ENTROPY = [
    OptionSpec("leaves"),
    OptionSpec("reduction", "mean"),
    OptionSpec("ignore_index", -100),
    OptionSpec("label_smoothing", 0.0),
]
CROSS_ENTROPY_BACKWARD = define(
    "cross_entropy_backward",
    OperationSchema([tensor_spec(name, differentiable=False) for name in ("g", "logits", "targets")], _CROSS_ENTROPY),
    _resolve_cross_entropy,
    _cross_entropy_backward_reference,
    NON_DIFFERENTIABLE,
)
CROSS_ENTROPY = define(
    "cross_entropy",
    OperationSchema([tensor_spec("logits"), tensor_spec("targets", differentiable=False)], _CROSS_ENTROPY),
    _resolve_cross_entropy,
    _cross_entropy_reference,
    lambda context, g: (
        CROSS_ENTROPY_BACKWARD(g, context.operand(0), context.operand(1), **context.options),
        None,
    ),
)


def _resolve_mse(call: BoundOperationCall) -> ResolvedInvocation:
    *cotangent, x, y = call.operands
    shape, aligned = align([x.layout, y.layout], name="take the mse_loss of")
    common = promote([(x.dtype(), True), (y.dtype(), True)])
    output, inner = floating(common), single_at_least(common)
    plan = float_plan(call, [inner] * len(call.operands), output)
    if cotangent:
        spec = ResultSpec(output, shape, dense_like(shape, aligned))
        return ResolvedInvocation(call, plan, (spec,), aligned=(None, *aligned))
    whole = call.options["reduction"] != "none"
    spec = ResultSpec(
        output, Shape() if whole else shape, dense_like(Shape() if whole else shape, () if whole else aligned)
    )
    return ResolvedInvocation(call, plan, (spec,), saved_operands=(0, 1), aligned=aligned)


def _mse_reference(invocation: ResolvedInvocation) -> list[list[Scalar]]:
    squares = [(a - b) * (a - b) for a, b in zip(invocation.values(0), invocation.values(1), strict=True)]
    reduction = invocation.options["reduction"]
    if reduction == "none":
        return [squares]
    return [[total(squares) / (len(squares) if reduction == "mean" else 1)]]


def _mse_backward_reference(invocation: ResolvedInvocation) -> list[list[Scalar]]:
    g, x, y = (invocation.values(k) for k in range(3))
    reduction = invocation.options["reduction"]
    scale = 2 / len(x) if reduction == "mean" else 2
    return [
        [(a - b) * scale * (g[k] if reduction == "none" else g[0]) for k, (a, b) in enumerate(zip(x, y, strict=True))]
    ]


def _mse_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    made = MSE_LOSS_BACKWARD(g, context.operand(0), context.operand(1), **context.options)
    return made, NEG(made) if context.needs[1] else None


MSE_LOSS_BACKWARD = define(
    "mse_loss_backward",
    OperationSchema([tensor_spec(name, differentiable=False) for name in ("g", "x", "y")], [OptionSpec("reduction")]),
    _resolve_mse,
    _mse_backward_reference,
    NON_DIFFERENTIABLE,
)
MSE_LOSS = define(
    "mse_loss",
    OperationSchema([tensor_spec("x"), tensor_spec("y")], [OptionSpec("reduction", "mean")]),
    _resolve_mse,
    _mse_reference,
    _mse_vjp,
)

__all__ = ["CROSS_ENTROPY", "MSE_LOSS", "out_of_range"]
