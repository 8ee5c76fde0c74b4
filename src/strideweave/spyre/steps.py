"""What the steps of a body do, in torch: one function for every name of Inductor's ops namespace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

Step = Callable[..., Any]


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name.

    >>> dtype_of("bfloat16")
    torch.bfloat16
    """
    found: torch.dtype = getattr(torch, name)
    return found


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def _floating(function: Step) -> Step:
    """A function of real numbers, which whole numbers become first."""

    def run(x: Any, *rest: Any) -> Any:
        x = _tensor(x)
        return function(x if x.is_floating_point() or x.is_complex() else x.to(torch.float32), *rest)

    return run


def _unary(function: Any) -> Step:
    def run(x: Any) -> Any:
        return function(_tensor(x))

    return run


def _binary(function: Any) -> Step:
    def run(a: Any, b: Any) -> Any:
        return function(_tensor(a), _tensor(b))

    return run


def _trunc_division(a: Any, b: Any) -> Any:
    return torch.div(_tensor(a), _tensor(b), rounding_mode="trunc")


def _floor_division(a: Any, b: Any) -> Any:
    return torch.div(_tensor(a), _tensor(b), rounding_mode="floor")


def _shift(function: Step) -> Step:
    def run(a: Any, b: Any) -> Any:
        return function(_tensor(a), _tensor(b))

    return run


def _where(condition: Any, a: Any, b: Any) -> torch.Tensor:
    return torch.where(_tensor(condition).to(torch.bool), _tensor(a), _tensor(b))


def _wrap_index(value: Any, extent: int) -> torch.Tensor:
    value = _tensor(value)
    return torch.where(value < 0, value + int(extent), value)


def _modified_bessel(name: str) -> Step:
    return _floating(getattr(torch.special, name))


def to_dtype(value: Any, name: str, *_: Any) -> torch.Tensor:
    """The values as another dtype, as torch converts them."""
    given: torch.Tensor = _tensor(value)
    dtype = dtype_of(name)
    return given if given.dtype == dtype else given.to(dtype)


def _bitcast(value: Any, name: str, source: str) -> torch.Tensor:
    bits: torch.Tensor = _tensor(value).to(dtype_of(source)).contiguous()
    return bits.view(dtype_of(name))


_UNARY: Final = {
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "signbit": torch.signbit,
    "bitwise_not": torch.bitwise_not,
    "logical_not": torch.logical_not,
    "square": torch.square,
    "relu": torch.relu,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
}
_REAL: Final = {
    name: getattr(torch, name)
    for name in [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "erfinv",
        "sigmoid",
        "lgamma",
        "digamma",
        "reciprocal",
    ]
}
_SPECIAL: Final = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "erfcx",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "log_ndtr",
    "ndtr",
    "ndtri",
    "spherical_bessel_j0",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
]
_SPECIAL_PAIRS: Final = [
    "gammainc",
    "gammaincc",
    "zeta",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
]
_PAIRS: Final = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "fmod": torch.fmod,
    "mod": torch.fmod,
    "remainder": torch.remainder,
    "truediv": torch.true_divide,
    "div_rn": torch.true_divide,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "and_": torch.bitwise_and,
    "or_": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "bitwise_left_shift": torch.bitwise_left_shift,
    "bitwise_right_shift": torch.bitwise_right_shift,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
}

STEPS: Final[dict[str, Step]] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _floating(function) for name, function in _REAL.items()},
    **{f"libdevice_{name}": _floating(_REAL[name]) for name in ("exp", "log", "sqrt", "abs") if name in _REAL},
    **{name: _modified_bessel(name) for name in _SPECIAL if hasattr(torch.special, name)},
    **{name: _binary(getattr(torch.special, name)) for name in _SPECIAL_PAIRS if hasattr(torch.special, name)},
    "igamma": _binary(torch.special.gammainc),
    "igammac": _binary(torch.special.gammaincc),
    "polygamma": lambda n, x: torch.polygamma(int(_tensor(n).reshape(-1)[0]), _tensor(x)),
    **{name: _binary(function) for name, function in _PAIRS.items()},
    "int_truediv": lambda a, b: torch.true_divide(_tensor(a), _tensor(b)),
    "truncdiv": _trunc_division,
    "floordiv": _floor_division,
    "where": _where,
    "masked": lambda mask, value, other: _where(mask, value, torch.as_tensor(other, dtype=_tensor(value).dtype)),
    "wrap_index": _wrap_index,
    "copy": lambda x: x,
    "identity": lambda x: x,
    "to_dtype": to_dtype,
    "to_dtype_bitcast": _bitcast,
    "fma": lambda a, b, c: torch.addcmul(_tensor(c), _tensor(a), _tensor(b)),
    "mul_rn": _binary(torch.mul),
    "ceil_to_int": lambda x, name: to_dtype(torch.ceil(_tensor(x)), name),
    "floor_to_int": lambda x, name: to_dtype(torch.floor(_tensor(x)), name),
    "trunc_to_int": lambda x, name: to_dtype(torch.trunc(_tensor(x)), name),
    "round_to_int": lambda x, name: to_dtype(torch.round(_tensor(x)), name),
    "round_decimal": lambda x, n: torch.round(_tensor(x), decimals=int(n)),
    "ldexp": _binary(torch.ldexp),
}
"""The functions by name."""

IN_PLACE: Final[dict[str, Step]] = {
    name: {**_UNARY, **_REAL, **_PAIRS}[name]
    for name in [
        "abs",
        "neg",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "asin",
        "acos",
        "atan",
        "erf",
        "erfc",
        "sigmoid",
        "floor",
        "ceil",
        "trunc",
        "reciprocal",
        "add",
        "sub",
        "mul",
        "maximum",
        "minimum",
        "truediv",
        "atan2",
        "fmod",
        "remainder",
        "pow",
        "square",
    ]
    if name not in ("relu",)
}
"""Functions that write straight into their place by `out=`, for operands of one floating dtype."""

_WITHOUT_OUT: Final = ("relu", "isnan", "isinf")
INTO: Final[dict[str, Step]] = {
    **{name: function for name, function in {**_UNARY, **_REAL, **_PAIRS}.items() if name not in _WITHOUT_OUT},
    "where": torch.where,
}
"""Functions that take `out=`, by name."""

INTO_FLOATS: Final = frozenset(_REAL)
"""Those that want floats."""

EXACT_WHEN_NARROW: Final = frozenset(
    {"add", "sub", "mul", "truediv", "maximum", "minimum", "neg", "abs", "sign", "square", "copy", "identity", "relu"}
    | {"floor", "ceil", "round", "trunc", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"}
    | {"tanh", "sigmoid", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erfc"}
)
"""Functions that torch computes for 16-bit floats in Float32, rounding once: as the steps around them say."""


def constant(value: Any, name: str) -> torch.Tensor:
    """A number as a tensor without dims; an infinity in a whole dtype is the dtype's end, as Inductor means it."""
    dtype = dtype_of(name)
    if isinstance(value, float) and math.isinf(value) and not dtype.is_floating_point and dtype != torch.bool:
        limits = torch.iinfo(dtype)
        value = limits.max if value > 0 else limits.min
    return torch.tensor(value, dtype=dtype)
