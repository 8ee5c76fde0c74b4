"""Softmax and normalisation: each one operation, and its gradient one more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Shape
from strideweave.operation.alignment import dense_like
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import OperationDefinition, define
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.pointwise import CONVERT
from strideweave.operation.promotion import floating, promote
from strideweave.operation.reducing import (
    DTypeRule,
    Values,
    groupwise,
    kept_shape,
    measured_in,
    positions,
    single_at_least,
)
from strideweave.operation.reduction import greatest, softmax_of, total
from strideweave.operation.schema import NON_DIFFERENTIABLE, OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.tensor import Tensor

OPTIONAL = (OperandKind.TENSOR, OperandKind.STRUCTURAL)
"""The kind of an operand that may be None."""


def tensor_spec(name: str, *, differentiable: bool = True) -> OperandSpec:
    """An operand that is a Tensor."""
    return OperandSpec(name, OperandKind.TENSOR, differentiable=differentiable)


def float_plan(call: BoundOperationCall, inner: Sequence[StorageDType], output: StorageDType) -> OperationPlan:
    """Every tensor operand is computed in its dtype of `inner`."""
    operands = tuple(
        OperandPlan(OperandRole.TENSOR, own, None if wanted is own else wanted)
        for own, wanted in zip(call.dtypes, inner, strict=True)
    )
    double = inner[0] is DType.Float64
    return OperationPlan(
        call.definition.name,
        operands,
        Arithmetic.BINARY64 if double else Arithmetic.BINARY32,
        Accumulation.BINARY64 if double else Accumulation.BINARY32,
        None,
        output,
    )


# -- softmax ---------------------------------------------------------------------------------------------------------


def log_softmax_of(values: Values) -> list[float]:
    """The logarithms of `softmax_of`, exact where that is 0."""
    top = greatest(values)
    if not math.isfinite(top):
        return [math.nan] * len(values)
    shift = math.log(math.fsum(math.exp(v - top) for v in values))
    return [v - top - shift for v in values]


def _softmax_backward(g: Values, y: Values) -> list[float]:
    met = total([a * b for a, b in zip(g, y, strict=True)])
    return [b * (a - met) for a, b in zip(g, y, strict=True)]


def _log_softmax_backward(g: Values, y: Values) -> list[float]:
    met = total(g)
    return [a - math.exp(b) * met for a, b in zip(g, y, strict=True)]


SOFTMAX_BACKWARD = groupwise("softmax_backward", ["g", "y"], _softmax_backward, NON_DIFFERENTIABLE)
LOG_SOFTMAX_BACKWARD = groupwise("log_softmax_backward", ["g", "y"], _log_softmax_backward, NON_DIFFERENTIABLE)


def _through_result(context: VJPContext, g: Tensor, adjoint: OperationDefinition) -> tuple[Tensor | None, ...]:
    """By the result; where it was rounded to 16 bits or fewer by one of Float32, which is computed once more."""
    leaves, result = context.options["leaves"], context.outputs[0]
    if 0 in context.invocation.saved_operands:
        single = CONVERT(context.operand(0), dtype=DType.Float32)
        result = context.invocation.definition(single, leaves=leaves)
    return (adjoint(g, result, leaves=leaves),)


def _saved(dtype: StorageDType) -> Sequence[int]:
    return (0,) if dtype.is_floating and dtype.bits < 32 else ()


SOFTMAX = groupwise(
    "softmax",
    ["x"],
    softmax_of,
    lambda context, g: _through_result(context, g, SOFTMAX_BACKWARD),
    output=floating,
    saves=_saved,
)
LOG_SOFTMAX = groupwise(
    "log_softmax",
    ["x"],
    log_softmax_of,
    lambda context, g: _through_result(context, g, LOG_SOFTMAX_BACKWARD),
    output=floating,
    saves=_saved,
)


# -- normalisation: over some leaves, with a weight and a bias for each of their coordinates -------------------------


def normalised_shape(shape: Shape, leaves: Sequence[int]) -> Shape:
    """The shape of the leaves over which is normalised: that of the weight and the bias."""
    others = [k for k in range(len(shape.leaves())) if k not in set(leaves)]
    return kept_shape(shape, others, keepdims=False)


def _normalised_in(call: BoundOperationCall, several: DTypeRule) -> list[StorageDType]:
    """One dtype for all operands: `several` of it when they agree, else one that keeps them all to one rounding."""
    dtypes = call.dtypes
    if all(dtype is dtypes[0] for dtype in dtypes):
        return [several(dtypes[0])] * len(dtypes)
    return [single_at_least(promote([(dtype, True) for dtype in dtypes]))] * len(dtypes)


def _resolve_norm(call: BoundOperationCall, several: DTypeRule) -> ResolvedInvocation:
    x, *parameters = call.operands
    shape = normalised_shape(x.shape, call.options["leaves"])
    for spec, parameter in zip(call.definition.schema.operands[1:], parameters, strict=True):
        if parameter is None:
            continue
        if not isinstance(parameter, Tensor):
            raise TypeError(
                f"cannot {call.definition.name} with {spec.name}={parameter!r}: it is a Tensor, or None for none. Pass "
                "one of these."
            )
        if parameter.shape != shape:
            raise ValueError(
                f"cannot {call.definition.name} {x.shape} with {spec.name} of {parameter.shape}: the modes that are "
                f"normalised have shape {shape}. The {spec.name} has that shape. Pass such a one."
            )
    output = floating(x.dtype())
    return ResolvedInvocation(
        call,
        float_plan(call, _normalised_in(call, several), output),
        (ResultSpec(output, x.shape, dense_like(x.shape, [x.layout])),),
        saved_operands=(0, 1) if parameters[0] is not None else (0,),
    )


def _resolve_norm_backward(call: BoundOperationCall) -> ResolvedInvocation:
    """One result for every dtype in option `wanted` that is not None: of the operand, the weight, the bias."""
    _, x, weight = call.operands
    wanted = call.options["wanted"]
    shape = normalised_shape(x.shape, call.options["leaves"])
    results = [ResultSpec(wanted[0], x.shape, dense_like(x.shape, [x.layout]))] if wanted[0] is not None else []
    layout = dense_like(shape, [] if weight is None else [weight.layout])
    results += [ResultSpec(dtype, shape, layout) for dtype in wanted[1:] if dtype is not None]
    return ResolvedInvocation(
        call, float_plan(call, _normalised_in(call, single_at_least), results[0].dtype), tuple(results)
    )


def _affine(invocation: ResolvedInvocation, k: int, default: float, count: int) -> Sequence[Scalar]:
    return [default] * count if invocation.operands[k] is None else invocation.values(k)


def _standardised(values: Values, eps: float, *, centred: bool) -> tuple[list[float], float]:
    """The values less their mean, over their root mean square; and one over that."""
    mean = total(values) / len(values) if centred else 0.0
    scale = 1 / math.sqrt(total([(v - mean) * (v - mean) for v in values]) / len(values) + eps)
    return [(v - mean) * scale for v in values], scale


def _norm_reference(invocation: ResolvedInvocation, *, centred: bool) -> list[list[Scalar]]:
    x, leaves = invocation.values(0), invocation.options["leaves"]
    out: list[Scalar] = [0.0] * len(x)
    for group in positions(invocation.layout(0).shape, leaves):
        weight = _affine(invocation, 1, 1.0, len(group))
        bias = _affine(invocation, 2, 0.0, len(group)) if centred else [0.0] * len(group)
        made, _ = _standardised([x[k] for k in group], invocation.options["eps"], centred=centred)
        for k, v, a, b in zip(group, made, weight, bias, strict=True):
            out[k] = v * a + b
    return [out]


def _norm_backward_reference(invocation: ResolvedInvocation, *, centred: bool) -> list[list[Scalar]]:
    g, x, leaves = invocation.values(0), invocation.values(1), invocation.options["leaves"]
    groups = positions(invocation.layout(1).shape, leaves)
    count = len(groups[0])
    weight = _affine(invocation, 2, 1.0, count)
    of_x: list[Scalar] = [0.0] * len(x)
    of_weight: list[list[Scalar]] = [[] for _ in range(count)]
    of_bias: list[list[Scalar]] = [[] for _ in range(count)]
    for group in groups:
        made, scale = _standardised([x[k] for k in group], invocation.options["eps"], centred=centred)
        slopes = [g[k] * w for k, w in zip(group, weight, strict=True)]
        mean = total(slopes) / count if centred else 0.0
        along = total([s * v for s, v in zip(slopes, made, strict=True)]) / count
        for j, k in enumerate(group):
            of_x[k] = scale * (slopes[j] - mean - made[j] * along)
            of_weight[j].append(g[k] * made[j])
            of_bias[j].append(g[k])
    results = [of_x, [total(v) for v in of_weight], [total(v) for v in of_bias]]
    wanted = invocation.options["wanted"]
    return [values for values, dtype in zip(results, wanted, strict=False) if dtype is not None]


def _norm_vjp(adjoint: Any) -> Any:
    """The gradients that are wanted, by one operation."""

    def vjp(context: VJPContext, g: Tensor) -> Sequence[Tensor | None]:
        operands = context.invocation.operands
        wanted = tuple(o.dtype() if needed else None for o, needed in zip(operands, context.needs, strict=True))
        weight = context.operand(1)
        chosen = {**context.options, "wanted": wanted}
        made = adjoint(g, context.operand(0), weight, **chosen)
        found = iter(made if isinstance(made, tuple) else (made,))
        return [next(found) if dtype is not None else None for dtype in wanted]

    return vjp


_NORM_BACKWARD = OperationSchema(
    [tensor_spec("g", differentiable=False), tensor_spec("x", differentiable=False), OperandSpec("weight", OPTIONAL)],
    [OptionSpec("leaves"), OptionSpec("eps"), OptionSpec("wanted")],
)
LAYER_NORM_BACKWARD = define(
    "layer_norm_backward",
    _NORM_BACKWARD,
    _resolve_norm_backward,
    lambda invocation: _norm_backward_reference(invocation, centred=True),
    NON_DIFFERENTIABLE,
)
RMS_NORM_BACKWARD = define(
    "rms_norm_backward",
    _NORM_BACKWARD,
    _resolve_norm_backward,
    lambda invocation: _norm_backward_reference(invocation, centred=False),
    NON_DIFFERENTIABLE,
)
LAYER_NORM = define(
    "layer_norm",
    OperationSchema(
        [
            tensor_spec("x"),
            OperandSpec("weight", OPTIONAL, differentiable=True),
            OperandSpec("bias", OPTIONAL, differentiable=True),
        ],
        [OptionSpec("leaves"), OptionSpec("eps", 1e-5)],
    ),
    lambda call: _resolve_norm(call, measured_in),
    lambda invocation: _norm_reference(invocation, centred=True),
    _norm_vjp(LAYER_NORM_BACKWARD),
)
RMS_NORM = define(
    "rms_norm",
    OperationSchema(
        [tensor_spec("x"), OperandSpec("weight", OPTIONAL, differentiable=True)],
        [OptionSpec("leaves"), OptionSpec("eps")],
    ),
    lambda call: _resolve_norm(call, single_at_least),
    lambda invocation: _norm_reference(invocation, centred=False),
    _norm_vjp(RMS_NORM_BACKWARD),
)

__all__ = ["LAYER_NORM", "LOG_SOFTMAX", "RMS_NORM", "SOFTMAX", "log_softmax_of", "normalised_shape"]
