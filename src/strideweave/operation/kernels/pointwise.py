"""Pointwise kernels: torch promotes the operands as our table does, so they are passed as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from strideweave.operation.arithmetic import whole_division_by_zero
from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.promotion import computed_in
from strideweave.operation.torch_executor import Kernel, kernel

_aten = torch.ops.aten


def _plain(name: str, function: Kernel) -> None:
    """Register a torch function that takes the operands and nothing else."""

    def run(invocation: ResolvedInvocation, *operands: Any) -> object:
        return function(*operands)

    kernel(name)(run)


_PLAIN: dict[str, Kernel] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "square": torch.square,
    "recip": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "logical_not": torch.logical_not,
    "isnan": torch.isnan,
    "isfinite": torch.isfinite,
    "zero": torch.zeros_like,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "elementwise_mul": torch.mul,
    "div": torch.true_divide,
    "pow": torch.pow,
    "select": torch.where,
}
for _name, _function in _PLAIN.items():
    _plain(_name, _function)


@kernel("convert")
def _convert(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return x.to(invocation.options["dtype"].torch_dtype, copy=True)


# -- operands that torch takes as tensors only -----------------------------------------------------------------------


def _tensors(invocation: ResolvedInvocation, *operands: Any) -> list[torch.Tensor]:
    """The operands with every scalar as a tensor of the promoted dtype, beside the others on their device."""
    device = next(o.device for o in operands if isinstance(o, torch.Tensor))
    dtype = computed_in(invocation.plan.output).torch_dtype
    return [o if isinstance(o, torch.Tensor) else torch.scalar_tensor(o, dtype=dtype, device=device) for o in operands]


def _tensors_only(name: str, function: Callable[..., torch.Tensor]) -> None:
    def run(invocation: ResolvedInvocation, *operands: Any) -> torch.Tensor:
        return function(*_tensors(invocation, *operands))

    kernel(name)(run)


_TENSORS_ONLY: dict[str, Kernel] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": torch.clamp,
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
}
for _name, _function in _TENSORS_ONLY.items():
    _tensors_only(_name, _function)


def _truths(name: str, function: Callable[..., torch.Tensor]) -> None:
    def run(invocation: ResolvedInvocation, x: Any, y: Any) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            x, y = y, x  # in either order the same
        return function(x, y if isinstance(y, torch.Tensor) else torch.scalar_tensor(bool(y), dtype=torch.bool))

    kernel(name)(run)


_TRUTHS: dict[str, Kernel] = {
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}
for _name, _function in _TRUTHS.items():
    _truths(_name, _function)


def _compared(name: str, function: Callable[..., torch.Tensor], turned: Callable[..., torch.Tensor]) -> None:
    """A comparison; `turned` is the one for operands in the other order."""

    def run(invocation: ResolvedInvocation, x: Any, y: Any) -> torch.Tensor:
        return function(x, y) if isinstance(x, torch.Tensor) else turned(y, x)

    kernel(name)(run)


_compared("eq", torch.eq, torch.eq)
_compared("ne", torch.ne, torch.ne)
_compared("lt", torch.lt, torch.gt)
_compared("le", torch.le, torch.ge)
_compared("gt", torch.gt, torch.lt)
_compared("ge", torch.ge, torch.le)


def _divides(name: str, function: Callable[..., torch.Tensor]) -> None:
    def run(invocation: ResolvedInvocation, x: Any, y: Any) -> torch.Tensor:
        try:
            return function(x, y)
        except RuntimeError as error:
            if "ZeroDivisionError" not in str(error):
                raise
            raise whole_division_by_zero(name) from error

    kernel(name)(run)


_divides("rem", torch.remainder)
_divides("floor_div", torch.floor_divide)


# -- activations with options ----------------------------------------------------------------------------------------


@kernel("gelu")
def _gelu(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=invocation.options["approximate"])


@kernel("gelu_backward")
def _gelu_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor) -> Any:
    return _aten.gelu_backward(g, x, approximate=invocation.options["approximate"])


@kernel("softplus")
def _softplus(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(x, invocation.options["beta"], invocation.options["threshold"])


@kernel("softplus_backward")
def _softplus_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor) -> Any:
    return _aten.softplus_backward(g, x, invocation.options["beta"], invocation.options["threshold"])


@kernel("elu")
def _elu(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.elu(x, invocation.options["alpha"])


@kernel("elu_backward")
def _elu_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor) -> Any:
    return _aten.elu_backward(g, invocation.options["alpha"], 1.0, 1.0, False, x)


@kernel("leaky_relu")
def _leaky_relu(invocation: ResolvedInvocation, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(x, invocation.options["negative_slope"])


@kernel("leaky_relu_backward")
def _leaky_relu_backward(invocation: ResolvedInvocation, g: torch.Tensor, x: torch.Tensor) -> Any:
    return _aten.leaky_relu_backward(g, x, invocation.options["negative_slope"], False)


# -- gradients: PyTorch's formulas, in its order of rounding ---------------------------------------------------------


def _erf_backward(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(x.square())).mul_(2 / math.sqrt(math.pi)) * g


def _pow_base_backward(g: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    if not isinstance(y, torch.Tensor):
        return torch.zeros_like(g) if y == 0 else g * (y * torch.pow(x, y - 1))
    y = y.to(g.dtype) if y.dtype == torch.bool else y
    return torch.where(y == 0.0, 0.0, g * (y * torch.pow(x, y - 1)))


def _pow_exponent_backward(g: torch.Tensor, x: Any, y: Any, result: torch.Tensor) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return torch.where(torch.logical_and(x == 0, y >= 0), 0.0, g * (result * x.to(result.dtype).log()))
    logarithm = math.log(x) if x > 0 else -math.inf if x == 0 else math.nan
    grown = g * (result * logarithm)
    return torch.where(y >= 0, 0.0, grown) if x == 0 else grown


def _maximum_backward(g: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    return torch.where(x < y, 0.0, torch.where(x == y, g / 2, g))


def _minimum_backward(g: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    return torch.where(x > y, 0.0, torch.where(x == y, g / 2, g))


_GRADIENTS: dict[str, Kernel] = {
    "div_backward": lambda g, y, quotient: -g * (quotient / y),
    "abs_backward": lambda g, x: g * x.sign(),
    "square_backward": lambda g, x: g * (x * 2),
    "recip_backward": lambda g, y: -g * (y * y),
    "sqrt_backward": lambda g, y: g / (2 * y),
    "rsqrt_backward": lambda g, y: -0.5 * g * y.pow(3),
    "exp2_backward": lambda g, y: g * y * math.log(2.0),
    "expm1_backward": lambda g, y: g * (y + 1),
    "log2_backward": lambda g, x: g / (x * math.log(2.0)),
    "log1p_backward": lambda g, x: g / (x + 1),
    "sin_backward": lambda g, x: g * x.cos(),
    "cos_backward": lambda g, x: g * x.sin().neg_(),
    "tan_backward": lambda g, y: g * (1 + y.square()),
    "tanh_backward": _aten.tanh_backward,
    "erf_backward": _erf_backward,
    "relu_backward": lambda g, y: _aten.threshold_backward(g, y, 0),
    "sigmoid_backward": _aten.sigmoid_backward,
    "silu_backward": _aten.silu_backward,
    "pow_base_backward": _pow_base_backward,
    "pow_exponent_backward": _pow_exponent_backward,
    "rem_backward": lambda g, x, y: -g * torch.div(x, y, rounding_mode="floor"),
    "maximum_backward": _maximum_backward,
    "minimum_backward": _minimum_backward,
    "clamp_backward": lambda g, x, lower, upper: torch.where(torch.logical_and(x >= lower, x <= upper), g, 0.0),
    "clamp_min_backward": lambda g, x, lower: torch.where(x >= lower, g, 0.0),
    "clamp_max_backward": lambda g, x, upper: torch.where(x <= upper, g, 0.0),
}
for _name, _function in _GRADIENTS.items():
    _plain(_name, _function)
