"""Views as functions: nothing is copied, the result shares the operand's storage; and `copy`, which does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from strideweave.einops import parse_rearrange
from strideweave.layout import Layout, Shape, Stride, Tree
from strideweave.operation import views as definitions
from strideweave.tensor import ports
from strideweave.tensor.tensor import Tensor

__all__ = [
    "as_strided",
    "broadcast_in_dim",
    "broadcast_to",
    "copy",
    "flatten_modes",
    "permute",
    "rearrange",
    "reshape",
    "squeeze",
    "transpose",
    "unsqueeze",
]


def slice_(x: Tensor, keys: tuple[object, ...]) -> Tensor:
    """`x[keys]`: the part that one int or slice for every top-level mode takes."""
    for key in keys:
        if isinstance(key, bool) or not isinstance(key, int | slice | None | type(Ellipsis)):
            raise TypeError(f"cannot slice a Tensor with {key!r}: a key is an int or a slice. Pass one of these.")
    # Slices cannot be hashed, and resolutions are kept by their options.
    how = tuple((key.start, key.stop, key.step) if isinstance(key, slice) else key for key in keys)
    result: Tensor = definitions.SLICE(x, how=how)
    return result


def permute(x: Tensor, *order: int) -> Tensor:
    """The same values with top-level mode `order[k]` at place k; a nested mode moves whole.

    Errors: TypeError for what is no int; ValueError unless the order must reorder every layout mode once.

    >>> import strideweave as sw
    >>> sw.permute(sw.tensor([[1, 2, 3]]), 1, 0).shape
    Shape(3, 1)
    """
    result: Tensor = definitions.PERMUTE(x, how=order)
    return result


def transpose(x: Tensor, i: int, j: int) -> Tensor:
    """The same values with modes `i` and `j` in each other's place.

    >>> import strideweave as sw
    >>> sw.transpose(sw.tensor([[1, 2, 3]]), 0, 1).shape
    Shape(3, 1)
    """
    result: Tensor = definitions.TRANSPOSE(x, how=(i, j))
    return result


def reshape(x: Tensor, shape: Shape | int | Sequence[Any], *, order: Literal["F", "C"] = "F") -> Tensor:
    """The same values at the same ordinals under another shape, as a view; one -1 is inferred.

    `order` says how ordinals count, in numpy's letters: "F" first mode fastest, as everywhere here; "C" last mode
    fastest, as torch and numpy reshape. A row-major tensor reshapes freely in "C", a column-major one in "F".

    Errors: ValueError for another size, or when the ordinal sequence has no constant stride, so that only a copy could
    have that shape: `copy(x, layout)` first.

    >>> import strideweave as sw
    >>> x = sw.tensor([[1, 2, 3], [4, 5, 6]])
    >>> sw.to_list(sw.reshape(x, (3, 2), order="C"))
    [[1, 2], [3, 4], [5, 6]]
    """
    if order not in ("F", "C"):
        raise ValueError(f"cannot reshape in order {order!r}: ordinals count first mode ('F') or last ('C') fastest.")
    extents = shape._items if isinstance(shape, Shape) else (shape,) if isinstance(shape, int) else tuple(shape)
    result: Tensor = definitions.RESHAPE(x, how=(_hashable(extents), order))
    return result


def as_strided(x: Tensor, shape: Shape | Sequence[Any], stride: Stride | Sequence[Any], offset: int = 0) -> Tensor:
    """The values that a selector over the *ordinals* of `x` picks: at coordinate c, ordinal `offset + c . stride`.

    Errors: ValueError for a selector that is not injective or leaves the domain, or that no single stride can follow.

    >>> import strideweave as sw
    >>> sw.to_list(sw.as_strided(sw.arange(6), (2, 2), (1, 3)))
    [[0, 3], [1, 4]]
    """
    how = (_hashable(shape), stride if isinstance(stride, Stride) else _hashable(stride), offset)
    result: Tensor = definitions.AS_STRIDED(x, how=how)
    return result


def broadcast_to(x: Tensor, shape: Shape | Sequence[Any]) -> Tensor:
    """The same values repeated along every leaf of extent 1 that `shape` widens, with stride 0.

    Errors: ValueError for a shape of another profile ("same shape profile"), or a leaf that is not 1.

    >>> import strideweave as sw
    >>> sw.to_list(sw.broadcast_to(sw.tensor([[1], [2]]), (2, 3)))
    [[1, 1, 1], [2, 2, 2]]
    """
    result: Tensor = definitions.BROADCAST_TO(x, how=_hashable(shape))
    return result


def broadcast_in_dim(x: Tensor, target_shape: Shape | Sequence[Any], broadcast_dimensions: Sequence[int]) -> Tensor:
    """The same values with mode k at place `broadcast_dimensions[k]` of the target, repeated along the others.

    Source: StableHLO, broadcast_in_dim.

    >>> import strideweave as sw
    >>> sw.to_list(sw.broadcast_in_dim(sw.tensor([1, 2]), (2, 3), (0,)))
    [[1, 1, 1], [2, 2, 2]]
    """
    result: Tensor = definitions.BROADCAST_IN_DIM(x, how=(_hashable(target_shape), tuple(broadcast_dimensions)))
    return result


def squeeze(x: Tensor, dim: int) -> Tensor:
    """The same values without mode `dim`, which has one coordinate.

    >>> import strideweave as sw
    >>> sw.squeeze(sw.tensor([[1, 2]]), 0).shape
    Shape(2)
    """
    result: Tensor = definitions.SQUEEZE(x, how=dim)
    return result


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """The same values with a mode of extent 1 before mode `dim`; a negative place counts from behind the last.

    >>> import strideweave as sw
    >>> sw.unsqueeze(sw.tensor([1, 2]), -1).shape
    Shape(2, 1)
    """
    result: Tensor = definitions.UNSQUEEZE(x, how=dim)
    return result


def flatten_modes(x: Tensor, start: int, stop: int) -> Tensor:
    """The same values with modes `start` up to, not including, `stop` as one nested mode.

    >>> import strideweave as sw
    >>> sw.flatten_modes(sw.zeros(2, 3, 4), 1, 3).shape
    Shape(2, (3, 4))
    """
    result: Tensor = definitions.FLATTEN_MODES(x, how=(start, stop))
    return result


def rearrange(x: Tensor, output: str | Tree, selection: Tree | None = None, **sizes: int) -> Tensor:
    """The same values with their modes reordered, grouped or split, as a description or a pair of Trees says.

    In a description a group of the input names a nested mode, or splits a leaf by `sizes`; the first symbol of a group
    varies fastest.

    >>> import strideweave as sw
    >>> sw.rearrange(sw.zeros(8, 3), "(h d) b -> h b d", h=2).shape
    Shape(2, 3, 4)
    """
    result: Tensor
    if isinstance(output, str):
        if selection is not None:
            raise TypeError("cannot rearrange by a description and a selection: the description names both. Drop one.")
        result = definitions.REARRANGE(x, how=(parse_rearrange(output), tuple(sorted(sizes.items()))))
        return result
    if not isinstance(output, Tree):
        raise TypeError(f"cannot rearrange by {output!r}: it is a description or a Tree. Pass one.")
    if sizes:
        raise TypeError(f"cannot rearrange by a Tree with sizes {sorted(sizes)}: only descriptions take sizes.")
    result = definitions.REARRANGE(x, how=(output, selection))
    return result


def copy(x: Tensor, layout: Layout | None = None) -> Tensor:
    """The same values in fresh storage, placed as `layout` says: dense in the order of `x` unless given.

    Errors: ValueError for a layout of another shape, or one in which coordinates share slots.

    >>> import strideweave as sw
    >>> sw.copy(sw.tensor([[1, 2], [3, 4]]), sw.Layout.column_major(2, 2)).layout
    Layout(Shape(2, 2), Stride(1, 2))
    """
    if layout is not None:
        if not isinstance(layout, Layout):
            raise TypeError(f"cannot copy into {layout!r}: it takes a Layout. Pass one.")
        if isinstance(x, Tensor) and (layout.shape != x.shape or not layout.is_injective):
            raise ValueError(
                f"cannot copy {x.layout!r} into {layout!r}: a copy has the same shape, and a slot for every "
                "coordinate. Pass such a layout."
            )
    result: Tensor = definitions.COPY(x, layout=layout)
    return result


def _hashable(shape: Any) -> Any:
    """A shape as it was written, its lists made into tuples."""
    if isinstance(shape, Shape | int):
        return shape
    return tuple(_hashable(item) for item in shape)


ports.bind({"slice": slice_})
