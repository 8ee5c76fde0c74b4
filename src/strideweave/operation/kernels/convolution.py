"""Convolution kernels: torch's own up to three spatial modes of floats, tap by tap for whole numbers and more modes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from strideweave.operation.call import ResolvedInvocation
from strideweave.operation.convolution import Ints, Window, sizes_of
from strideweave.operation.torch_executor import kernel


@kernel("conv_general", by_mode=True)
def _conv(invocation: ResolvedInvocation, lhs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    window: Window = invocation.options["window"]
    x, w = _ordered(_widened(lhs), window.lhs_dims), _ordered(_widened(weights), window.kernel_dims)
    if not _is_torchs(x):
        made = _by_taps(window, _prepared(window, x), w)
    elif _is_transposed(window):
        made = _transposed(window, x, w)
    else:
        padding = _symmetric(window)
        source = x if padding is not None else _prepared(window, x)
        made = _convolution(window, source, w, padding or (0,) * (x.dim() - 2))
    return _ordered(made, _inverse(window.output_dims))


def _ordered(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    return x if list(order) == list(range(x.dim())) else x.permute(*order)


@kernel("conv_general_lhs_gradient", by_mode=True)
def _lhs_gradient(invocation: ResolvedInvocation, g: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    window: Window = invocation.options["window"]
    sizes = sizes_of(invocation.memo["shapes"][0], window.lhs_dims)
    g, w = _widened(g).permute(window.output_dims), _widened(weights).permute(window.kernel_dims)
    padding = _symmetric(window)
    padded = sizes if padding is not None else (*sizes[:2], *window.padded(sizes[2:]))
    if _is_torchs(g) and _is_transposed(window):
        made = _transposed_backward(window, g, g.new_empty(sizes), w, wanted=0)
        return made.permute(_inverse(window.lhs_dims))
    if _is_torchs(g):
        made = _backward(window, g, g.new_empty(padded), w, padding or (0,) * (g.dim() - 2), wanted=0)
    else:
        padding = None
        g, w = g.to(_summed(g)), w.to(_summed(w))
        made = g.new_zeros(*sizes[:2], *window.padded(sizes[2:]))
        for tap, part in _taps(window, made, w, g.size()[2:]):
            part += _grouped("ngop,goc->ngcp", window, g, tap).reshape(part.size())
    if padding is None:
        made = _unprepared(window, made)
    return made.permute(_inverse(window.lhs_dims))


@kernel("conv_general_kernel_gradient", by_mode=True)
def _kernel_gradient(invocation: ResolvedInvocation, g: torch.Tensor, lhs: torch.Tensor) -> torch.Tensor:
    window: Window = invocation.options["window"]
    sizes = sizes_of(invocation.memo["shapes"][1], window.kernel_dims)
    g, x = _widened(g).permute(window.output_dims), _widened(lhs).permute(window.lhs_dims)
    if _is_torchs(g) and _is_transposed(window):
        made = _transposed_backward(window, g, x, g.new_empty(sizes), wanted=1)
        return made.permute(_inverse(window.kernel_dims))
    padding = _symmetric(window) if _is_torchs(g) else None
    source = x if padding is not None else _prepared(window, x)
    if _is_torchs(g):
        made = _backward(window, g, source, g.new_empty(sizes), padding or (0,) * (g.dim() - 2), wanted=1)
    else:
        g, source = g.to(_summed(g)), source.to(_summed(source))
        made = g.new_empty(sizes)
        for tap, part in _taps(window, source, made, g.size()[2:]):
            tap.copy_(_grouped("ngop,ngcp->goc", window, g, part).reshape(tap.size()))
    return made.permute(_inverse(window.kernel_dims))


def _widened(t: torch.Tensor) -> torch.Tensor:
    """CPUs convolve Float16 far slower than Float32."""
    return t.float() if t.dtype is torch.float16 and t.device.type == "cpu" else t


def _is_torchs(t: torch.Tensor) -> bool:
    return t.is_floating_point() and t.dim() <= 5


def _symmetric(window: Window) -> Ints | None:
    """The padding that torch can do itself; None when the operand must be dilated, padded or cropped first."""
    if set(window.lhs_dilation) != {1} or any(low != high or low < 0 for low, high in window.padding):
        return None
    return tuple(low for low, _ in window.padding)


def _is_transposed(window: Window) -> bool:
    is_dilated = set(window.lhs_dilation) != {1} and set(window.strides) == {1}
    return is_dilated and all(low >= 0 and high >= 0 for low, high in window.padding)


def _convolution(window: Window, x: torch.Tensor, w: torch.Tensor, padding: Ints) -> torch.Tensor:
    rank = x.dim() - 2
    return torch.convolution(
        x, w, None, window.strides, padding, window.kernel_dilation, False, (0,) * rank, window.groups
    )


def _backward(
    window: Window, g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, padding: Ints, *, wanted: int
) -> torch.Tensor:
    zeros = [0] * (g.dim() - 2)
    mask = [wanted == 0, wanted == 1, False]
    found: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
        g, x, w, None, window.strides, padding, window.kernel_dilation, False, zeros, window.groups, mask
    )
    return found[wanted]


def _transposed(window: Window, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As torch's transposed convolution with the turned kernel: everything that it reaches, then the part asked for."""
    zeros = (0,) * (x.dim() - 2)
    turned = _turned(window, w)
    full = torch.convolution(
        x, turned, None, window.lhs_dilation, zeros, window.kernel_dilation, True, zeros, window.groups
    )
    return _padded(full, _around(window, w))


def _transposed_backward(
    window: Window, g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *, wanted: int
) -> torch.Tensor:
    zeros = [0] * (g.dim() - 2)
    full = _padded(g, [(-low, -high) for low, high in _around(window, w)])
    found: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
        full,
        x,
        _turned(window, w),
        None,
        window.lhs_dilation,
        zeros,
        window.kernel_dilation,
        True,
        zeros,
        window.groups,
        [wanted == 0, wanted == 1, False],
    )
    return _turned(window, found[1]) if wanted else found[0]


def _turned(window: Window, w: torch.Tensor) -> torch.Tensor:
    """The kernel of the transposed convolution: features in each other's place, taps in reverse; its own inverse."""
    grouped = w.reshape(window.groups, -1, *w.size()[1:])
    return grouped.transpose(1, 2).flatten(0, 1).flip(tuple(range(2, w.dim())))


def _around(window: Window, w: torch.Tensor) -> list[tuple[int, int]]:
    """How much wider than all that a transposed convolution reaches the result is, before and behind."""
    around = [n - 1 for n in window.reached(w.size()[2:])]
    return [(low - a, high - a) for (low, high), a in zip(window.padding, around, strict=True)]


def _padded(x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    if not any(n for pair in pairs for n in pair):
        return x
    return torch.nn.functional.pad(x, [n for pair in reversed(pairs) for n in pair])


def _prepared(window: Window, x: torch.Tensor) -> torch.Tensor:
    """Dilated, then padded and cropped."""
    if set(window.lhs_dilation) != {1}:
        spread = [(n - 1) * d + 1 for n, d in zip(x.size()[2:], window.lhs_dilation, strict=True)]
        dilated = x.new_zeros(*x.size()[:2], *spread)
        dilated[_every(window.lhs_dilation)] = x
        x = dilated
    return _padded(x, window.padding)


def _unprepared(window: Window, g: torch.Tensor) -> torch.Tensor:
    """The adjoint of `_prepared`."""
    return _padded(g, [(-low, -high) for low, high in window.padding])[_every(window.lhs_dilation)]


def _every(steps: Ints) -> tuple[Any, ...]:
    return (slice(None), slice(None), *(slice(None, None, d) for d in steps))


def _by_taps(window: Window, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, w = x.to(_summed(x)), w.to(_summed(w))
    reached = window.reached(w.size()[2:])
    sizes = [(n - k) // s + 1 for n, k, s in zip(x.size()[2:], reached, window.strides, strict=True)]
    made = x.new_zeros(x.size(0), w.size(0), *sizes)
    for tap, part in _taps(window, x, w, sizes):
        made += _grouped("ngcp,goc->ngop", window, part, tap).reshape(made.size())
    return made


def _summed(x: torch.Tensor) -> torch.dtype:
    return torch.float32 if x.dtype is torch.bfloat16 else x.dtype


def _taps(
    window: Window, padded: torch.Tensor, w: torch.Tensor, sizes: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For every tap of the kernel its (out, in) values, and the part of the padded operand that it meets."""
    for tap in itertools.product(*map(range, w.size()[2:])):
        begins = [t * d for t, d in zip(tap, window.kernel_dilation, strict=True)]
        part = [
            slice(begin, begin + (n - 1) * s + 1, s) for begin, n, s in zip(begins, sizes, window.strides, strict=True)
        ]
        kept: list[Any] = [slice(None), slice(None)]
        yield w[tuple(kept + list(tap))], padded[tuple(kept + part)]


def _grouped(text: str, window: Window, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The einsum with features split into groups and places run together: kernels are `goc`, the rest `ng?p`."""
    sides = [
        t.reshape(window.groups, -1, t.size(1))
        if t.dim() == 2
        else t.reshape(t.size(0), window.groups, t.size(1) // window.groups, -1)
        for t in (a, b)
    ]
    return torch.einsum(text, *sides)


def _inverse(dims: Ints) -> list[int]:
    return sorted(range(len(dims)), key=dims.__getitem__)
