"""What a tensor gets on the card when nothing else is asked for: a function of its size, strides and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from strideweave.spyre.tensor_layout import MAX_RANK, SpyreTensorLayout


def layout_for(size: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> SpyreTensorLayout:
    """The layout on the card of a host tensor of that size and strides: every offset of it has exactly one place.

    Elements that fill their storage without gap or overlap get the generic stick layout, dims by decreasing stride, so
    that sticks run along the dim of stride 1. All others, and more than six dims, are kept as one flat dim over
    the host's whole extent. The strides of dims of extent 1 do not matter. Cached.

    Errors: TypeError for a dtype without a format, ValueError for a size and strides that do not match.

    >>> import torch
    >>> from strideweave.spyre.default_layout import layout_for
    >>> layout_for((1024, 256), (1, 1024), torch.float16)
    SpyreTensorLayout((16, 256, 64), (64, 1024, 1), DataFormat.SEN169_FP16, ElementArrangement.STANDARD, (0, 1, 0))
    >>> layout_for((2, 100), (128, 1), torch.float16).device_size
    (4, 64)
    """
    return _layout_for(tuple(size), tuple(strides), dtype)


@lru_cache(maxsize=8192)
def _layout_for(size: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> SpyreTensorLayout:
    if len(size) != len(strides) or any(n < 0 for n in size) or any(s < 0 for s in strides):
        raise ValueError(
            f"cannot lay out size {size} with strides {strides}: there is one of each per dim, none below 0. Pass what "
            "tensor.size() and tensor.stride() say."
        )
    if len(size) > MAX_RANK or not is_dense(size, strides):
        return SpyreTensorLayout((host_extent(size, strides),), dtype)
    return SpyreTensorLayout(size, strides, dtype, dim_order(size, strides))


def host_extent(size: Sequence[int], strides: Sequence[int]) -> int:
    """One more than the largest offset that a tensor of that size and strides has; 0 for one without elements.

    >>> from strideweave.spyre.default_layout import host_extent
    >>> host_extent((2, 100), (128, 1))
    228
    """
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, strides, strict=True))


def is_dense(size: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their storage without gap or overlap, dims in whatever order.

    >>> from strideweave.spyre.default_layout import is_dense
    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (4, 1))
    (True, False)
    """
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(size, strides, strict=True) if n != 1):
        if stride != step:
            return False
        step *= extent
    return 0 not in size


def dim_order(size: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dims by decreasing stride; those of extent 1 in their own places where the others are in order.

    Where the others are not in order, a dim of extent 1 stands just outside the dim after it, or outermost: then no
    stick runs along it.

    >>> from strideweave.spyre.default_layout import dim_order
    >>> dim_order((4, 3, 1), (3, 1, 7)), dim_order((4, 3, 1), (1, 4, 7))
    ((0, 1, 2), (2, 1, 0))
    """
    order = sorted((d for d in range(len(size)) if size[d] != 1), key=lambda d: -strides[d])
    if order == sorted(order):
        return tuple(range(len(size)))
    for d in reversed(range(len(size))):
        if size[d] == 1:
            order.insert(order.index(d + 1) if d + 1 < len(size) else 0, d)
    return tuple(order)
