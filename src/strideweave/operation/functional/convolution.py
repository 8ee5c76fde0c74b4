"""Convolution as a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from strideweave.layout import Shape
from strideweave.operation.convolution import CONV_GENERAL, Ints, Pairs, Window, same_padding, sizes_of
from strideweave.tensor.tensor import Tensor

__all__ = ["conv_general"]


def conv_general(
    lhs: Tensor,
    kernel: Tensor,
    strides: int | Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    lhs_dilation: int | Sequence[int] | None = None,
    kernel_dilation: int | Sequence[int] | None = None,
    feature_groups: int = 1,
    lhs_dims: Sequence[int] | None = None,
    kernel_dims: Sequence[int] | None = None,
    output_dims: Sequence[int] | None = None,
) -> Tensor:
    """The convolution of `lhs` with `kernel`, which is not turned round: neural networks' and XLA's.

    Shapes: `lhs` is (batch, feature, spatial…), `kernel` (out feature, in feature, spatial…) and the result (batch,
    feature, spatial…), unless dims say otherwise. `lhs_dims` has the numbers of the batch mode, the feature mode and
    the spatial ones, in that order: (0, 3, 1, 2) for channels last; `kernel_dims` those of the out feature, in feature
    and spatial modes; `output_dims` those that batch, feature and spatial modes have in the result. Any number of
    spatial modes from one on. Modes may nest: batch and feature modes keep their nesting, spatial ones are counted
    first leaf fastest.

    `padding` is "valid" (none), "same" (the result has the size of the operand over the stride, an odd zero behind), or
    one (low, high) for every spatial mode; a negative number takes values away. `lhs_dilation` puts zeros between the
    values of `lhs`, which is a transposed convolution; `kernel_dilation` between those of the kernel. With
    `feature_groups` each group of features meets its own group of kernels.

    The result is dense, its modes in the order of the left operand's strides: channels last in, channels last out.
    Dtypes: as `matmul`. Errors: TypeError for what is no Tensor, int or padding; ValueError for sizes that do not fit.
    Source: XLA's ConvGeneralDilated.

    >>> import strideweave as sw
    >>> x, w = sw.tensor([[[1.0, 2.0, 3.0, 4.0]]]), sw.tensor([[[1.0, -1.0]]])
    >>> sw.to_list(sw.conv_general(x, w, 1, "valid"))
    [[[-1.0, -1.0, -1.0]]]
    >>> sw.to_list(sw.conv_general(x, w, 2, [(1, 0)]))
    [[[-1.0, -1.0]]]
    """
    for name, tensor in (("lhs", lhs), ("kernel", kernel)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"cannot conv_general with {name}={type(tensor).__name__}: it takes a Tensor. Pass one.")
    modes = len(lhs.layout)
    if modes < 3 or len(kernel.layout) != modes:
        raise ValueError(
            f"cannot conv_general shapes {lhs.shape} and {kernel.shape}: they have {modes} and {len(kernel.layout)} "
            "modes. Both have two and as many spatial ones, at least one. Unsqueeze or reshape them."
        )
    window = _window(
        lhs.shape,
        kernel.shape,
        _frozen(strides),
        _frozen(padding),
        1 if lhs_dilation is None else _frozen(lhs_dilation),
        1 if kernel_dilation is None else _frozen(kernel_dilation),
        feature_groups,
        (_frozen(lhs_dims), _frozen(kernel_dims), _frozen(output_dims)),
    )
    result: Tensor = CONV_GENERAL(lhs, kernel, window=window)
    return result


def _frozen(value: Any) -> Any:
    """The same entries, immutable, so that what they come to is kept."""
    if value.__class__ is int or value is None:
        return value
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(_frozen(entry) for entry in value)
    return value


@lru_cache(maxsize=1024, typed=True)
def _window(
    lhs: Shape,
    kernel: Shape,
    strides: int | Ints,
    padding: Any,
    lhs_dilation: int | Ints,
    kernel_dilation: int | Ints,
    feature_groups: int,
    dims: tuple[Ints | None, Ints | None, Ints | None],
) -> Window:
    modes = len(lhs)
    rank = modes - 2
    groups = _whole("feature_groups", feature_groups, 1)
    moves = _each("strides", strides, rank)
    spread = _each("lhs_dilation", lhs_dilation, rank)
    reach = _each("kernel_dilation", kernel_dilation, rank)
    places = [
        _dims(name, given, modes) for name, given in zip(("lhs_dims", "kernel_dims", "output_dims"), dims, strict=True)
    ]
    pairs = _padding(padding, rank)
    if pairs is None:
        lhs_sizes, kernel_sizes = sizes_of(lhs, places[0])[2:], sizes_of(kernel, places[1])[2:]
        pairs = same_padding(lhs_sizes, kernel_sizes, moves, spread, reach)
    return Window(moves, pairs, spread, reach, groups, *places)


def _whole(name: str, value: object, least: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"cannot conv_general with {name}={value!r}: it counts. Pass an int.")
    if least is not None and value < least:
        raise ValueError(f"cannot conv_general with {name}={value}: it is at least {least}. Pass {least} or more.")
    return value


def _each(name: str, value: int | Sequence[int], rank: int) -> Ints:
    """One entry for every spatial mode; a single int stands for all."""
    entries: tuple[Any, ...] = tuple(value) if isinstance(value, Iterable) else (value,) * rank
    if len(entries) != rank:
        raise ValueError(
            f"cannot conv_general with {name}={value!r}: there are {rank} spatial modes. It has one entry for each. "
            f"Pass {rank}."
        )
    return tuple(_whole(name, entry, 1) for entry in entries)


def _dims(name: str, dims: Sequence[int] | None, modes: int) -> Ints:
    if dims is None:
        return tuple(range(modes))
    entries = tuple(_whole(name, entry, None) for entry in dims)
    if sorted(entries) != list(range(modes)):
        raise ValueError(
            f"cannot conv_general with {name}={entries}: there are {modes} modes. It has the number of each once. "
            f"Pass a reordering of 0 to {modes - 1}."
        )
    return entries


def _padding(padding: str | Sequence[tuple[int, int]], rank: int) -> Pairs | None:
    """(low, high) of every spatial mode; None for "same"."""
    if isinstance(padding, str):
        if padding.lower() not in ("same", "valid"):
            raise ValueError(f'cannot conv_general with padding={padding!r}: it is "same", "valid" or pairs. Pass one.')
        return None if padding.lower() == "same" else ((0, 0),) * rank
    if isinstance(padding, int):
        raise TypeError(f"cannot conv_general with padding={padding!r}: it is a (low, high) for each spatial mode.")
    pairs = [tuple(pair) if isinstance(pair, Sequence) else (pair,) for pair in padding]
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"cannot conv_general with padding={padding!r}: there are {rank} spatial modes. It has a (low, high) for "
            "each. Pass as many pairs."
        )
    return tuple((_whole("padding", low, None), _whole("padding", high, None)) for low, high in pairs)
