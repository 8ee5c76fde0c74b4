"""Indexing and assembling operations as functions."""

from __future__ import annotations

from collections.abc import Sequence

from strideweave.carriers.carrier import Scalar
from strideweave.operation import assembling, indexing
from strideweave.tensor.tensor import Tensor

__all__ = [
    "chunk",
    "concatenate",
    "embedding",
    "flip",
    "gather",
    "index_add",
    "one_hot",
    "pad",
    "repeat",
    "scatter",
    "scatter_add",
    "split",
    "stack",
    "take",
    "tile",
    "tril",
    "triu",
]


def mode_of(x: Tensor, axis: int, *, name: str, beyond: int = 0) -> int:
    """The number of the top-level mode that `axis` names; a negative one counts from the last.

    `beyond` is 1 where a place behind the last mode counts too. Errors: TypeError for no Tensor or no int; ValueError
    for a mode that is not there.
    """
    require_tensor(x, name=name)
    require_int(axis, "axis", name=name)
    rank = len(x.layout) + beyond
    if not -rank <= axis < rank:
        there = f"Axes are {-rank} to {rank - 1}" if rank else "It has rank 0, and so no axis"
        raise ValueError(
            f"cannot {name} {x.shape} along axis {axis}: there is no such mode. {there}. Choose among them."
        )
    return axis % rank


def require_tensor(x: object, *, name: str) -> None:
    """Nothing, for a Tensor. Errors: TypeError for anything else."""
    if not isinstance(x, Tensor):
        raise TypeError(f"cannot {name} {type(x).__name__}: it takes a Tensor. Pass one, as from_torch makes them.")


def require_int(value: object, what: str, *, name: str) -> None:
    """Nothing, for an int. Errors: TypeError for anything else, bool too."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"cannot {name} with {what} {value!r}: {what} must be an integer. Pass an int.")


# -- one value for every index ----------------------------------------------------------------------------------------


def gather(t: Tensor, idx: Tensor, axis: int) -> Tensor:
    """The values of `t` at the coordinates of `idx`, with the index found there along `axis`.

    A nested mode counts its coordinates first mode fastest, so that an index into it is an ordinal.

    Shapes: `idx` has as many modes as `t`, none longer but the axis; the result has the shape of `idx`.
    Errors: IndexError for an index below 0 or beyond the extent, on a CPU before anything is computed; TypeError for
    indices that are neither Int64 nor Int32; ValueError for other shapes or an axis that is not there.
    Source: torch.gather.

    >>> import strideweave as sw
    >>> sw.to_list(sw.gather(sw.tensor([[1, 2], [3, 4]]), sw.tensor([[0, 0], [1, 0]]), 1))
    [[1, 1], [4, 3]]
    """
    result: Tensor = indexing.GATHER(t, idx, axis=mode_of(t, axis, name="gather"))
    return result


def scatter(base: Tensor, idx: Tensor, updates: Tensor | Scalar, axis: int) -> Tensor:
    """`base` with each of the updates in the place of the value at its coordinate, the index along `axis`.

    Of several updates for one place the last along the axis stays, and only it has a gradient. A number updates every
    place.

    Shapes: `idx` as for `gather`; `updates` has the shape of `idx`; the result that of `base`.
    Errors: as `gather`; TypeError too for updates of another dtype than the base.
    Source: torch.scatter, which leaves open which update stays.

    >>> import strideweave as sw
    >>> sw.to_list(sw.scatter(sw.tensor([1, 2, 3]), sw.tensor([2, 0, 2]), sw.tensor([7, 8, 9]), 0))
    [8, 2, 9]
    """
    result: Tensor = indexing.SCATTER(base, idx, updates, axis=mode_of(base, axis, name="scatter"))
    return result


def scatter_add(base: Tensor, idx: Tensor, updates: Tensor, axis: int) -> Tensor:
    """`base` with each of the updates added to the value at its coordinate, the index along `axis`.

    Floats below Float32 are summed in that and rounded once. Arguments and errors as `scatter`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.scatter_add(sw.tensor([1, 2, 3]), sw.tensor([2, 0, 2]), sw.tensor([7, 8, 9]), 0))
    [9, 2, 19]
    """
    result: Tensor = indexing.SCATTER_ADD(base, idx, updates, axis=mode_of(base, axis, name="scatter_add"))
    return result


# -- a whole slice for every index ------------------------------------------------------------------------------------


def take(t: Tensor, idx: Tensor, axis: int) -> Tensor:
    """The slices of `t` at the indices along `axis`, the modes of `idx` in the place of the axis.

    Errors: as `gather`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.take(sw.tensor([[1, 2, 3], [4, 5, 6]]), sw.tensor([2, 0]), 1))
    [[3, 1], [6, 4]]
    """
    result: Tensor = indexing.TAKE(t, idx, axis=mode_of(t, axis, name="take"))
    return result


def embedding(weight: Tensor, idx: Tensor) -> Tensor:
    """The rows of `weight` at the indices: `take` along mode 0.

    >>> import strideweave as sw
    >>> sw.embedding(sw.zeros(10, 4), sw.tensor([[3, 1, 9]])).shape
    Shape(1, 3, 4)
    """
    return take(weight, idx, 0)


def index_add(base: Tensor, idx: Tensor, updates: Tensor, axis: int) -> Tensor:
    """`base` with each slice of the updates added to the slice at its index along `axis`.

    Shapes: `updates` as `take(base, idx, axis)`. Errors: as `scatter_add`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.index_add(sw.tensor([[1, 1], [2, 2]]), sw.tensor([1, 1]), sw.tensor([[3, 4], [5, 6]]), 0))
    [[1, 1], [10, 12]]
    """
    result: Tensor = indexing.INDEX_ADD(base, idx, updates, axis=mode_of(base, axis, name="index_add"))
    return result


def one_hot(idx: Tensor, n: int) -> Tensor:
    """1 where the coordinate along a new last mode of extent `n` is the index, else 0, in Int64.

    Errors: as `gather`; ValueError too for `n` below 1.

    >>> import strideweave as sw
    >>> sw.to_list(sw.one_hot(sw.tensor([1, 0]), 3))
    [[0, 1, 0], [1, 0, 0]]
    """
    require_int(n, "n", name="one_hot")
    if n < 1:
        raise ValueError(f"cannot one_hot with n={n}: a mode has an extent of at least 1. Pass the number of classes.")
    result: Tensor = indexing.ONE_HOT(idx, n=n)
    return result


# -- joining and cutting ----------------------------------------------------------------------------------------------


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one behind the other along `axis`, in the dtype that they promote to.

    Shapes: equal but for the axis, which is one leaf in the result. Errors: TypeError for no sequence of Tensors;
    ValueError for no tensors, other shapes, or an axis that is not there.

    >>> import strideweave as sw
    >>> sw.to_list(sw.concatenate([sw.tensor([1, 2]), sw.tensor([3])]))
    [1, 2, 3]
    """
    many = _many(tensors, name="concatenate")
    result: Tensor = assembling.CONCATENATE(*many, axis=mode_of(many[0], axis, name="concatenate"))
    return result


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, side by side along a new mode `axis`; each lies together in memory.

    Errors: as `concatenate`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.stack([sw.tensor([1, 2]), sw.tensor([3, 4])], axis=1))
    [[1, 3], [2, 4]]
    """
    many = _many(tensors, name="stack")
    result: Tensor = assembling.STACK(*many, axis=mode_of(many[0], axis, name="stack", beyond=1))
    return result


def _many(tensors: Sequence[Tensor], *, name: str) -> tuple[Tensor, ...]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"cannot {name} {type(tensors).__name__}: it takes a list or tuple of Tensors. Pass one.")
    if not tensors:
        raise ValueError(f"cannot {name} no tensors: it takes one or more. Pass at least one.")
    return tuple(tensors)


def split(t: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts along `axis`: of these sizes, or of one size each with the rest in the last.

    Errors: ValueError for sizes below 1 or that do not add up to the extent, and for a nested mode.

    >>> import strideweave as sw
    >>> [sw.to_list(part) for part in sw.split(sw.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    k = mode_of(t, axis, name="split")
    if isinstance(sizes, int):
        sizes = _equal_sizes(t.layout[k].size, sizes, "size")
    sizes = tuple(sizes)
    for size in sizes:
        _require_positive(size, "size")
    results: Tensor | tuple[Tensor, ...] = assembling.SPLIT(t, axis=k, sizes=sizes)
    return (results,) if isinstance(results, Tensor) else results


def chunk(t: Tensor, count: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Views of at most `count` consecutive parts along `axis`, all of one size but the last. Errors: as `split`.

    >>> import strideweave as sw
    >>> [sw.to_list(part) for part in sw.chunk(sw.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    k = mode_of(t, axis, name="split")
    _require_positive(count, "count")
    return split(t, -(-t.layout[k].size // count), k)


def _require_positive(value: int, what: str) -> None:
    require_int(value, what, name="split")
    if value < 1:
        raise ValueError(
            f"cannot split with {what} {value}: a part has an extent of at least 1. Pass {what} 1 or more."
        )


def _equal_sizes(extent: int, size: int, what: str) -> tuple[int, ...]:
    _require_positive(size, what)
    return tuple(min(size, extent - begin) for begin in range(0, extent, size))


# -- framing, turning, repeating --------------------------------------------------------------------------------------


def pad(t: Tensor, widths: Sequence[tuple[int, int]], value: Scalar = 0) -> Tensor:
    """`t` in a frame of `value`: for every top-level mode a pair of widths, before and behind.

    Errors: TypeError for a value that the dtype does not hold; ValueError for another number of pairs, negative widths,
    or a frame around a nested mode.

    >>> import strideweave as sw
    >>> sw.to_list(sw.pad(sw.tensor([[1, 2]]), [(1, 0), (0, 2)], 9))
    [[9, 9, 9, 9], [1, 2, 9, 9]]
    """
    pairs = tuple(tuple(pair) for pair in widths)
    for pair in pairs:
        for width in pair:
            require_int(width, "width", name="pad")
        if len(pair) != 2 or min(pair) < 0:
            raise ValueError(
                f"cannot pad by {pair}: widths are a pair (before, behind) of 0 or more. Pass such; a slice takes away."
            )
    result: Tensor = assembling.PAD(t, value, widths=pairs)
    return result


def flip(t: Tensor, axis: int | Sequence[int]) -> Tensor:
    """The values in the opposite order along one or more modes, as a copy.

    >>> import strideweave as sw
    >>> sw.to_list(sw.flip(sw.tensor([1, 2, 3]), 0))
    [3, 2, 1]
    """
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    chosen = tuple(mode_of(t, one, name="flip") for one in axes)
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"cannot flip {t.shape} along axes {axes}: one occurs twice. Pass each once.")
    result: Tensor = assembling.FLIP(t, axes=chosen)
    return result


def tril(t: Tensor, diagonal: int = 0) -> Tensor:
    """The values on and below a diagonal of the last two modes, 0 above; `diagonal` counts upwards from the main one.

    Errors: ValueError for fewer than two modes.

    >>> import strideweave as sw
    >>> sw.to_list(sw.tril(sw.tensor([[1, 2], [3, 4]])))
    [[1, 0], [3, 4]]
    """
    require_int(diagonal, "diagonal", name="tril")
    result: Tensor = assembling.TRIL(t, diagonal=diagonal)
    return result


def triu(t: Tensor, diagonal: int = 0) -> Tensor:
    """The values on and above a diagonal of the last two modes, 0 below; the rest as `tril`.

    >>> import strideweave as sw
    >>> sw.to_list(sw.triu(sw.tensor([[1, 2], [3, 4]])))
    [[1, 2], [0, 4]]
    """
    require_int(diagonal, "diagonal", name="triu")
    result: Tensor = assembling.TRIU(t, diagonal=diagonal)
    return result


def tile(t: Tensor, counts: Sequence[int]) -> Tensor:
    """`t` as a whole, `counts[k]` times along mode k, as a copy; a nested mode that is repeated becomes one leaf.

    `broadcast_to` repeats without a copy. Errors: ValueError for another number of counts, or one below 1.

    >>> import strideweave as sw
    >>> sw.to_list(sw.tile(sw.tensor([1, 2]), [2]))
    [1, 2, 1, 2]
    """
    require_tensor(t, name="tile")
    counts = tuple(counts)
    if len(counts) != len(t.layout):
        raise ValueError(
            f"cannot tile {t.shape} by {counts}: there are {len(counts)} counts for {len(t.layout)} modes. Pass one "
            "for each."
        )
    for count in counts:
        _require_count(count, name="tile")
    result: Tensor = assembling.TILE(t, counts=counts)
    return result


def repeat(t: Tensor, count: int, axis: int) -> Tensor:
    """Each slice along `axis` `count` times in a row, as a copy; a nested mode becomes one leaf.

    Errors: ValueError for a count below 1, or an axis that is not there. Source: torch.repeat_interleave.

    >>> import strideweave as sw
    >>> sw.to_list(sw.repeat(sw.tensor([1, 2]), 2, 0))
    [1, 1, 2, 2]
    """
    k = mode_of(t, axis, name="repeat")
    _require_count(count, name="repeat")
    result: Tensor = assembling.REPEAT(t, counts=tuple(count if j == k else 1 for j in range(len(t.layout))))
    return result


def _require_count(count: int, *, name: str) -> None:
    require_int(count, "count", name=name)
    if count < 1:
        raise ValueError(f"cannot {name} {count} times: a mode has an extent of at least 1. Pass 1 or more.")
