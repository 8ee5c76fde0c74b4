"""Reductions, many values to one, and running totals, over any of the leaves of a layout."""

from __future__ import annotations

import math
from collections.abc import Callable

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import DType
from strideweave.operation.call import BoundOperationCall, VJPContext
from strideweave.operation.definition import OperationDefinition
from strideweave.operation.pointwise import DIV
from strideweave.operation.promotion import computed_in, floating
from strideweave.operation.reducing import (
    Values,
    count_of,
    groupwise,
    kept_layout,
    kept_shape,
    measured_in,
    multiplied_in,
    reduction,
    single_at_least,
    spread,
    summed_dtype,
    through,
)
from strideweave.operation.schema import NON_DIFFERENTIABLE, OptionSpec
from strideweave.tensor.tensor import Tensor

# -- sums and means --------------------------------------------------------------------------------------------------


def total(values: Values) -> Scalar:
    """The sum: exact and rounded once for finite floats."""
    if values and isinstance(values[0], float) and all(map(math.isfinite, values)):
        try:
            return math.fsum(values)
        except OverflowError:  # beyond Float64 on the way
            pass
    return sum(values)


def _mean_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    shape = context.invocation.operands[0].shape
    return (spread(context, DIV(g, count_of(shape, context.options["leaves"]))),)


REDUCE_SUM = reduction(
    "reduce_sum",
    total,
    lambda context, g: (spread(context, g),),
    output=summed_dtype,
    options=[OptionSpec("accumulator_dtype", None)],
)
REDUCE_MEAN = reduction(
    "reduce_mean", lambda values: total(values) / len(values), _mean_vjp, output=floating, inner=measured_in
)


# -- products --------------------------------------------------------------------------------------------------------


def _others(g: Values, x: Values) -> Values:
    return [g[k] * math.prod([*x[:k], *x[k + 1 :]]) for k in range(len(x))]


REDUCE_PROD_BACKWARD = groupwise("reduce_prod_backward", ["g", "x"], _others, NON_DIFFERENTIABLE)
REDUCE_PROD = reduction(
    "reduce_prod", math.prod, through(REDUCE_PROD_BACKWARD), output=summed_dtype, inner=multiplied_in, saves=(0,)
)


# -- extremes --------------------------------------------------------------------------------------------------------


def is_same(a: Scalar, b: Scalar) -> bool:
    """Whether the two are equal, or both no number."""
    return a == b or (a != a and b != b)


def greatest(values: Values) -> Scalar:
    """The greatest value; NaN when there is one."""
    return next((v for v in values if v != v), None) or max(values)


def least(values: Values) -> Scalar:
    """The least value; NaN when there is one."""
    return next((v for v in values if v != v), None) or min(values)


def _shared(g: Values, x: Values, out: Values) -> Values:
    winners = [is_same(v, out[0]) for v in x]
    return [g[0] / sum(winners) if won else 0.0 for won in winners]


def _first(pick: Callable[[Values], Scalar]) -> Callable[[Values], Scalar]:
    def place(values: Values) -> Scalar:
        winner = pick(values)
        return next(k for k, v in enumerate(values) if is_same(v, winner))

    return place


# The gradient is split evenly among all that won, NaN among NaN.
REDUCE_EXTREME_BACKWARD = groupwise("reduce_extreme_backward", ["g", "x", "out"], _shared, NON_DIFFERENTIABLE)
REDUCE_MAX = reduction(
    "reduce_max", greatest, through(REDUCE_EXTREME_BACKWARD, takes_result=True), saves=(0,), adds=False
)
REDUCE_MIN = reduction("reduce_min", least, through(REDUCE_EXTREME_BACKWARD, takes_result=True), saves=(0,), adds=False)
ARGMAX = reduction("argmax", _first(greatest), NON_DIFFERENTIABLE, output=lambda dtype: DType.Int64, adds=False)
ARGMIN = reduction("argmin", _first(least), NON_DIFFERENTIABLE, output=lambda dtype: DType.Int64, adds=False)
REDUCE_ANY = reduction("reduce_any", any, NON_DIFFERENTIABLE, output=lambda dtype: DType.Bool, adds=False)
REDUCE_ALL = reduction("reduce_all", all, NON_DIFFERENTIABLE, output=lambda dtype: DType.Bool, adds=False)


# -- spread and size -------------------------------------------------------------------------------------------------


def _variance(values: Values, correction: float) -> float:
    mean = total(values) / len(values)
    return total([(v - mean) * (v - mean) for v in values]) / (len(values) - correction)


def _deviation(values: Values, correction: float) -> float:
    return math.sqrt(_variance(values, correction))


def _deviating(g: Values, x: Values, out: Values, correction: float, is_root: bool) -> Values:
    mean = total(x) / len(x)
    slope = 2.0 if not is_root else 0.0 if out[0] == 0 else 1 / out[0]
    return [slope * g[0] * (v - mean) / (len(x) - correction) for v in x]


def _norm(values: Values, ord: float) -> float:
    sizes = [abs(v) for v in values]
    if ord == 2:
        return math.sqrt(total([v * v for v in sizes]))
    return float(total(sizes) if ord == 1 else greatest(sizes))


def _norm_backward(g: Values, x: Values, out: Values, ord: float) -> Values:
    if ord == 2:
        return [0.0 if out[0] == 0 else g[0] * v / out[0] for v in x]
    signs = [v if v != v else float((v > 0) - (v < 0)) for v in x]
    if ord == 1:
        return [g[0] * sign for sign in signs]
    shares = _shared(g, [abs(v) for v in x], out)
    return [sign * share for sign, share in zip(signs, shares, strict=True)]


def _logsumexp(values: Values) -> float:
    top = greatest(values)
    if not math.isfinite(top):
        return top
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def softmax_of(values: Values) -> list[float]:
    """The exponentials over their sum; no number where the greatest value is none, or infinite."""
    top = greatest(values)
    if not math.isfinite(top):
        return [math.nan] * len(values)
    powers = [math.exp(v - top) for v in values]
    whole = math.fsum(powers)
    return [power / whole for power in powers]


def _require_more(call: BoundOperationCall) -> None:
    count, correction = count_of(call.operands[0].shape, call.options["leaves"]), call.options["correction"]
    if count <= correction:
        raise ValueError(
            f"cannot {call.definition.name} over {count} values with correction {correction}: it divides by the number "
            "of values less the correction, which is not positive. Reduce more values, or pass correction=0."
        )


VAR_BACKWARD = groupwise(
    "var_backward",
    ["g", "x", "out"],
    _deviating,
    NON_DIFFERENTIABLE,
    options=[OptionSpec("correction"), OptionSpec("is_root")],
)
VAR = reduction(
    "var",
    _variance,
    through(VAR_BACKWARD, takes_result=True, is_root=False),
    output=floating,
    inner=measured_in,
    saves=(0,),
    options=[OptionSpec("correction", 1)],
    require=_require_more,
)
STD = reduction(
    "std",
    _deviation,
    through(VAR_BACKWARD, takes_result=True, is_root=True),
    output=floating,
    inner=measured_in,
    saves=(0,),
    options=[OptionSpec("correction", 1)],
    require=_require_more,
)
NORM_BACKWARD = groupwise(
    "norm_backward", ["g", "x", "out"], _norm_backward, NON_DIFFERENTIABLE, options=[OptionSpec("ord")]
)
NORM = reduction(
    "norm",
    _norm,
    through(NORM_BACKWARD, takes_result=True),
    output=floating,
    inner=measured_in,
    saves=(0,),
    options=[OptionSpec("ord", 2)],
)
LOGSUMEXP_BACKWARD = groupwise(
    "logsumexp_backward", ["g", "x"], lambda g, x: [g[0] * p for p in softmax_of(x)], NON_DIFFERENTIABLE
)
LOGSUMEXP = reduction(
    "logsumexp", _logsumexp, through(LOGSUMEXP_BACKWARD), output=floating, inner=single_at_least, saves=(0,)
)


# -- running totals --------------------------------------------------------------------------------------------------


def _running(values: Values, reverse: bool) -> Values:
    ordered = values[::-1] if reverse else values
    sums = [total(ordered[: k + 1]) for k in range(len(ordered))]
    return sums[::-1] if reverse else sums


def _running_products(values: Values) -> Values:
    return [math.prod(values[: k + 1]) for k in range(len(values))]


def _running_products_backward(g: Values, x: Values) -> Values:
    return [total([g[i] * math.prod([*x[:k], *x[k + 1 : i + 1]]) for i in range(k, len(x))]) for k in range(len(x))]


def _cumsum_vjp(context: VJPContext, g: Tensor) -> tuple[Tensor | None, ...]:
    return (CUMSUM(g, leaves=context.options["leaves"], reverse=not context.options["reverse"]),)


CUMSUM: OperationDefinition = groupwise(
    "cumsum",
    ["x"],
    _running,
    _cumsum_vjp,
    output=summed_dtype,
    inner=computed_in,
    options=[OptionSpec("reverse", False)],
)
CUMPROD_BACKWARD = groupwise("cumprod_backward", ["g", "x"], _running_products_backward, NON_DIFFERENTIABLE)
CUMPROD = groupwise(
    "cumprod",
    ["x"],
    _running_products,
    lambda context, g: (CUMPROD_BACKWARD(g, context.operand(0), leaves=context.options["leaves"]),),
    output=summed_dtype,
    inner=multiplied_in,
    saves=(0,),
)

__all__ = ["REDUCE_SUM", "kept_layout", "kept_shape", "spread", "summed_dtype"]
