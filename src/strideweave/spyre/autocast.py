"""Autocast on the card: `torch.autocast("spyre")` computes products in 16 bits, and sums and losses in float32."""

from __future__ import annotations

from typing import Any, Final

import torch

from strideweave.spyre.kernels import DEVICE_NAME, aten, implement, untraced

_NARROW: Final = (
    "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "addbmm", "matmul", "linear", "einsum", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution",
    "scaled_dot_product_attention", "prelu", "chain_matmul", "linalg_multi_dot", "linalg_vecdot",
)  # fmt: skip
_WIDE: Final = (
    "exp", "expm1", "log", "log10", "log2", "log1p", "rsqrt", "reciprocal", "pow.Tensor_Scalar", "pow.Tensor_Tensor",
    "pow.Scalar", "softplus", "layer_norm", "group_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "softmax.int", "log_softmax.int", "cumsum", "cumprod", "sum", "sum.dim_IntList", "prod",
    "prod.dim_int",
)  # fmt: skip
_PROMOTED: Final = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "tensordot", "scatter_add",
    "cat", "stack",
)  # fmt: skip

_KEY: Final[Any] = torch._C._parse_dispatch_key("AutocastPrivateUse1")
_KEYS: Final = torch._C.DispatchKeySet(_KEY)


def register(library: Any, everything: Any) -> None:
    """The lists above are in force under autocast; every other operation runs as it is."""
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, kernel in ((_NARROW, _narrow), (_WIDE, _wide), (_PROMOTED, _promoted)):
        for name in names:
            implement(library, name, kernel(name), "AutocastPrivateUse1")


def _narrow(name: str) -> Any:
    @untraced
    def kernel(*arguments: Any, **named: Any) -> Any:
        dtype = torch.get_autocast_dtype(DEVICE_NAME)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return aten(name)(*_cast(arguments, dtype), **_cast_named(named, dtype))

    return kernel


def _wide(name: str) -> Any:
    @untraced
    def kernel(*arguments: Any, **named: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return aten(name)(*_cast(arguments, torch.float32), **_cast_named(named, torch.float32))

    return kernel


def _promoted(name: str) -> Any:
    @untraced
    def kernel(*arguments: Any, **named: Any) -> Any:
        dtype = torch.get_autocast_dtype(DEVICE_NAME)
        if any(t.dtype is torch.float32 for t in _tensors(arguments)):
            dtype = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return aten(name)(*_cast(arguments, dtype), **named)

    return kernel


def _tensors(values: Any) -> Any:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _cast(values: Any, dtype: torch.dtype) -> list[Any]:
    return [_cast_one(value, dtype) for value in values]


def _cast_named(values: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {name: _cast_one(value, dtype) for name, value in values.items()}


def _cast_one(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        is_cast = value.is_floating_point() and value.device.type == DEVICE_NAME and value.dtype is not torch.float64
        return value.to(dtype) if is_cast and value.dtype is not dtype else value
    if isinstance(value, list | tuple):
        return [_cast_one(part, dtype) for part in value]
    return value
