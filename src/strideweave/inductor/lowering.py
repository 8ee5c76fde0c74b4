"""Lowerings that differ on the card: matrix products are reductions, so that they tile and divide like all others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, virtualized
from torch._inductor import lowering as stock
from torch._inductor.runtime.hints import ReductionHint

aten = torch.ops.aten


def register() -> None:
    """Put ours beside Inductor's own: chosen by the device of the operands."""
    for overload, own in (
        (aten.mm.default, _mm),
        (aten.bmm.default, _bmm),
        (aten.addmm.default, _addmm),
        (aten.baddbmm.default, _baddbmm),
    ):
        original = stock.lowerings[overload]
        stock.lowerings[overload] = _by_device(own, original)
    for overload in (aten.frexp.Tensor,):
        original = stock.lowerings[overload]
        elsewhere = stock.fallback_handler(overload, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
        stock.lowerings[overload] = _by_device(elsewhere, original)


def _by_device(own: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lowered(*args: Any, **kwargs: Any) -> Any:
        device = next((a.get_device() for a in args if isinstance(a, ir.IRNode) and a.get_device() is not None), None)
        return (own if device is not None and device.type == "spyre" else original)(*args, **kwargs)

    return lowered


def _product(a: Any, b: Any, *, out_dtype: torch.dtype | None = None) -> ir.TensorBox:
    """`a @ b` of equal ranks 2 or 3 as a Reduction of type "batchmatmul"."""
    a.realize()
    b.realize()
    batch = a.get_size()[:-2]
    rows, inner = a.get_size()[-2:]
    columns = b.get_size()[-1]
    load_a, load_b = a.make_loader(), b.make_loader()
    dtype = a.get_dtype() if out_dtype is None else out_dtype
    if inner == 0:
        size, device = [*batch, rows, columns], a.get_device()
        zeros: ir.TensorBox = stock.lowerings[aten.full.default](size, 0, dtype=dtype, device=device)
        return zeros

    def inner_fn(index: Any, reduction_index: Any) -> Any:
        *where, row, column = index
        (k,) = reduction_index
        return virtualized.ops.mul(load_a([*where, row, k]), load_b([*where, k, column]))

    # By the constructor: Reduction.create would unroll or split it, or make it pointwise where K is 1.
    reduction = ir.Reduction(
        device=a.get_device(),
        dtype=dtype,
        inner_fn=inner_fn,
        ranges=[*batch, rows, columns],
        reduction_ranges=[inner],
        reduction_type="batchmatmul",  # type: ignore[arg-type]  # Inductor only passes the name on
        src_dtype=a.get_dtype(),
        reduction_hint=ReductionHint.DEFAULT,
    )
    made = ir.TensorBox.create(reduction)
    made.realize()
    return made


def _mm(a: Any, b: Any, out_dtype: torch.dtype | None = None, *, layout: Any = None) -> ir.TensorBox:
    return _product(a, b, out_dtype=out_dtype)


def _bmm(a: Any, b: Any, out_dtype: torch.dtype | None = None, *, layout: Any = None) -> ir.TensorBox:
    return _product(a, b, out_dtype=out_dtype)


def _addmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, layout: Any = None) -> Any:
    return _plus(bias, _product(a, b), beta, alpha)


def _baddbmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _plus(bias, _product(a, b), beta, alpha)


def _plus(bias: Any, product: Any, beta: Any, alpha: Any) -> Any:
    lowerings = stock.lowerings
    if not product.get_dtype().is_floating_point:
        beta, alpha = int(beta), int(alpha)  # as torch takes them
    if alpha != 1:
        product = lowerings[aten.mul.Tensor](product, alpha)
    if beta == 0:
        return lowerings[aten.expand.default](product, product.get_size())
    if beta != 1:
        bias = lowerings[aten.mul.Tensor](bias, beta)
    return lowerings[aten.add.Tensor](bias, product)
