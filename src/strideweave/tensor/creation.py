"""Tensors from values, extents and random numbers, and Tensors as nested lists and scalars.

One rule says which mode is fastest. Where only extents are given there is no order to keep, and the first mode is the
fastest one, as it is wherever an ordinal counts. Data that arrives in an order keeps it: nested lists are read row by
row, and so are row-major, and the copy of an array keeps which of its dims is fastest. `layout=` overrides both.

The dtypes are PyTorch's where the values tell them: Bool for bools, Int64 for ints, Float32 for floats.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from strideweave.carriers.carrier import Scalar
from strideweave.carriers.cpu import CPU
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout
from strideweave.tensor.dense import Extents, choose_layout, column_major, dense_like, require_injective, row_major
from strideweave.tensor.tensor import Tensor
from strideweave.tensor.values import filled, item, require_dtype, tensor, to_list

__all__ = [
    "arange",
    "column_major",
    "empty",
    "eye",
    "full",
    "full_like",
    "item",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "randn",
    "row_major",
    "tensor",
    "to_list",
    "zeros",
    "zeros_like",
]

Source: TypeAlias = "torch.Generator | random.Random | int | None"
"""Where random numbers come from: a generator, a seed, or None for torch's own generator."""


def full(
    *extents: Extents,
    value: Scalar,
    dtype: StorageDType | None = None,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A Tensor in which every slot is `value`; the dtype is that of the value unless given.

    Errors: TypeError for no number or no extents; ValueError for an extent below 1, or a layout of another shape;
    OverflowError for a value beyond the dtype.

    >>> from strideweave.tensor.creation import full
    >>> full(2, 3, value=7).layout, full(2, 3, value=7)[1, 2]
    (Layout(Shape(2, 3), Stride(1, 2)), 7)
    """
    chosen = _infer(value)[1] if dtype is None else require_dtype(dtype)
    made = empty(*extents, dtype=chosen, layout=layout, requires_grad=requires_grad)
    _fill(made.carrier._flat(), value, chosen)
    return made


def zeros(
    *extents: Extents,
    dtype: StorageDType = DType.Float32,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A Tensor of zeros. Errors: as `full`.

    >>> from strideweave.tensor.creation import to_list, zeros
    >>> to_list(zeros((2, 2)))
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return full(*extents, value=0, dtype=dtype, layout=layout, requires_grad=requires_grad)


def ones(
    *extents: Extents,
    dtype: StorageDType = DType.Float32,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A Tensor of ones. Errors: as `full`.

    >>> from strideweave.tensor.creation import ones, to_list
    >>> to_list(ones(3))
    [1.0, 1.0, 1.0]
    """
    return full(*extents, value=1, dtype=dtype, layout=layout, requires_grad=requires_grad)


def empty(
    *extents: Extents,
    dtype: StorageDType = DType.Float32,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A Tensor of unspecified values. Errors: as `full`.

    >>> from strideweave.tensor.creation import empty
    >>> empty(2, (3, 4)).layout
    Layout(Shape(2, (3, 4)), Stride(1, (2, 6)))
    """
    chosen = choose_layout(extents, layout)
    return Tensor(CPU(chosen.cosize, dtype=require_dtype(dtype), empty=True), 0, chosen, requires_grad=requires_grad)


def full_like(
    like: Tensor, *, value: Scalar, dtype: StorageDType | None = None, layout: Layout | None = None
) -> Tensor:
    """A Tensor of `value` in the shape and dtype of `like`, dense in the order of its strides, on the same device.

    What is not in memory gives a Tensor on a CPU carrier. Errors: as `full`.

    >>> from strideweave.layout import Layout
    >>> from strideweave.tensor.creation import full_like, zeros
    >>> full_like(zeros(layout=Layout.row_major(2, 3)), value=2).layout
    Layout(Shape(2, 3), Stride(3, 1))
    """
    chosen = dense_like(like.layout) if layout is None else choose_layout((like.shape,), layout)
    storage = like.dtype() if dtype is None else require_dtype(dtype)
    if isinstance(like.carrier, TorchStorage):
        made = Tensor(like.carrier.allocate_like(chosen.cosize, dtype=storage, empty=True), 0, chosen)
    else:
        made = empty(layout=chosen, dtype=storage)
    _fill(made.carrier._flat(), value, storage)
    return made


def zeros_like(like: Tensor, *, dtype: StorageDType | None = None, layout: Layout | None = None) -> Tensor:
    """A Tensor of zeros in the shape and dtype of `like`. Errors: as `full_like`.

    >>> from strideweave.tensor.creation import to_list, tensor, zeros_like
    >>> to_list(zeros_like(tensor([4, 5])))
    [0, 0]
    """
    return full_like(like, value=0, dtype=dtype, layout=layout)


def ones_like(like: Tensor, *, dtype: StorageDType | None = None, layout: Layout | None = None) -> Tensor:
    """A Tensor of ones in the shape and dtype of `like`. Errors: as `full_like`.

    >>> from strideweave.tensor.creation import ones_like, tensor, to_list
    >>> to_list(ones_like(tensor([4, 5])))
    [1, 1]
    """
    return full_like(like, value=1, dtype=dtype, layout=layout)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: StorageDType | None = None,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """The numbers from `start` (from 0 when it stands alone) up to and without `stop`, in the order of the ordinals.

    Int64 for ints, Float32 otherwise, unless a dtype is given.
    Errors: ValueError for a step of 0, for no numbers at all, and for a layout of another size.

    >>> from strideweave.layout import Layout
    >>> from strideweave.tensor.creation import arange, to_list
    >>> to_list(arange(3)), to_list(arange(1.0, 2.0, 0.5))
    ([0, 1, 2], [1.0, 1.5])
    >>> to_list(arange(6, layout=Layout.row_major(2, 3)))
    [[0, 2, 4], [1, 3, 5]]
    """
    begin, end = (0, start) if stop is None else (start, stop)
    begin, end, step = (_infer(number)[0] for number in (begin, end, step))
    if step == 0 or (end - begin) / step <= 0:
        raise ValueError(
            f"cannot count from {begin} to {end} by {step}: there are no numbers on that way. A Layout has extents of "
            "at least 1. Turn the step around, or widen the range."
        )
    whole = all(isinstance(number, int) for number in (begin, end, step))
    chosen = (DType.Int64 if whole else DType.Float32) if dtype is None else require_dtype(dtype)
    counted = torch.arange(begin, end, step, dtype=torch.int64 if whole else torch.float64)
    return _counted(counted.to(chosen.torch_dtype), layout, requires_grad=requires_grad)


def linspace(
    start: float,
    stop: float,
    steps: int,
    *,
    dtype: StorageDType = DType.Float32,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers at equal distances, the first `start` and the last `stop`, in the order of the ordinals.

    Errors: ValueError for fewer than one step, and for a layout of another size.

    >>> from strideweave.tensor.creation import linspace, to_list
    >>> to_list(linspace(0, 1, 5))
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"cannot take {steps!r} steps: a Layout has extents of at least 1. Pass an int of 1 or more.")
    spaced = torch.linspace(float(start), float(stop), steps, dtype=torch.float64)
    return _counted(spaced.to(require_dtype(dtype).torch_dtype), layout, requires_grad=requires_grad)


def eye(
    rows: int, columns: int | None = None, *, dtype: StorageDType = DType.Float32, layout: Layout | None = None
) -> Tensor:
    """A Tensor of two modes, one where both coordinates are equal and zero elsewhere. Errors: as `full`.

    >>> from strideweave.tensor.creation import eye, to_list
    >>> to_list(eye(2, 3))
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    made = zeros(rows, rows if columns is None else columns, dtype=dtype, layout=layout)
    require_injective(made.layout)
    made.torch().diagonal().fill_(1)
    return made


def rand(
    *extents: Extents,
    rng: Source = None,
    dtype: StorageDType = DType.Float32,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Random numbers, equally likely from 0 up to and without 1, drawn in the order of the ordinals.

    So one seed gives the same values at the same coordinates in every layout. `rng` is a torch Generator, a
    `random.Random`, an int seed, or None for torch's own generator.

    Errors: TypeError for another `rng`; ValueError for whole numbers or a layout that is not injective; as `full`.

    >>> from strideweave.layout import Layout
    >>> from strideweave.tensor.creation import rand, to_list
    >>> to_list(rand(2, 3, rng=7)) == to_list(rand(rng=7, layout=Layout.row_major(2, 3)))
    True
    """
    return _drawn(torch.rand, extents, rng=rng, dtype=dtype, layout=layout, requires_grad=requires_grad)


def randn(
    *extents: Extents,
    rng: Source = None,
    dtype: StorageDType = DType.Float32,
    layout: Layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Random numbers of the standard normal distribution, drawn in the order of the ordinals. Errors: as `rand`.

    >>> from strideweave.tensor.creation import randn
    >>> randn(2, 3, rng=7).layout
    Layout(Shape(2, 3), Stride(1, 2))
    """
    return _drawn(torch.randn, extents, rng=rng, dtype=dtype, layout=layout, requires_grad=requires_grad)


def _infer(value: object) -> tuple[Scalar, StorageDType]:
    """The plain number, and the dtype that it tells."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool):
        return plain, DType.Bool
    if isinstance(plain, int):
        return plain, DType.Int64
    if isinstance(plain, float):
        return plain, DType.Float32
    raise TypeError(f"cannot fill with {value!r}: a value must be a real number. Pass an int, a float or a bool.")


def _fill(flat: torch.Tensor, value: Scalar, dtype: StorageDType) -> None:
    plain, _ = _infer(value)
    try:
        # A tensor of one value first: torch checks the range of that one for every dtype.
        flat.copy_(torch.full((), plain, dtype=dtype.torch_dtype))
    except (RuntimeError, OverflowError) as error:
        raise OverflowError(
            f"cannot fill with {value!r} as {dtype.name}: it is beyond the dtype. Choose a wider one."
        ) from error


def _counted(values: torch.Tensor, layout: Layout | None, *, requires_grad: bool) -> Tensor:
    if layout is None:
        return filled(Layout.column_major(values.numel()), values, requires_grad=requires_grad)
    if require_injective(layout).size != values.numel():
        raise ValueError(
            f"cannot place {values.numel()} values by {layout!r}: it has {layout.size} coordinates. Every coordinate "
            "takes one value. Pass a layout of that size."
        )
    return filled(layout, values, requires_grad=requires_grad)


def _drawn(
    draw: Callable[..., torch.Tensor],
    extents: tuple[Extents, ...],
    *,
    rng: Source,
    dtype: StorageDType,
    layout: Layout | None,
    requires_grad: bool,
) -> Tensor:
    chosen = require_injective(choose_layout(extents, layout))
    if not require_dtype(dtype).is_floating:
        raise ValueError(f"cannot draw {dtype.name}: these numbers are fractions. Choose a floating dtype.")
    wide = torch.float64 if dtype is DType.Float64 else torch.float32
    drawn = draw(chosen.size, generator=_generator(rng), dtype=wide)
    return filled(chosen, drawn.to(dtype.torch_dtype), requires_grad=requires_grad)


def _generator(rng: Source) -> torch.Generator | None:
    if rng is None or isinstance(rng, torch.Generator):
        return rng
    if isinstance(rng, random.Random):
        return torch.Generator().manual_seed(rng.getrandbits(63))
    if isinstance(rng, int) and not isinstance(rng, bool):
        return torch.Generator().manual_seed(rng)
    raise TypeError(
        f"cannot draw with {rng!r}: it is no source of random numbers. Pass a torch.Generator, a random.Random or an "
        "int seed."
    )
