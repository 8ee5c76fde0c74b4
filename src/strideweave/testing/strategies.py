"""Strategies for hypothesis, which the `testing` extra brings: shapes, layouts, dtypes and tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

try:
    from hypothesis import strategies as st
except ImportError as missing:
    raise ImportError(
        "cannot import strideweave.testing.strategies: hypothesis is not installed. The strategies are made with it. "
        "Install strideweave[testing]."
    ) from missing

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.cpu import CPU
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout, Shape, Stride
from strideweave.layout.nested import refill
from strideweave.tensor import Tensor
from strideweave.testing.rules import special_values

MOST = 3000
"""How many coordinates a drawn shape has at most, unless another number is given."""


@st.composite
def shapes(draw: st.DrawFn, most: int = MOST, least_rank: int = 0) -> Shape:
    """Hierarchical shapes of rank up to 4 and size up to `most`.

    >>> from hypothesis import given, settings
    >>> from strideweave.testing.strategies import shapes
    >>> @settings(max_examples=10)
    ... @given(shapes(most=100))
    ... def check(shape):
    ...     assert shape.encode(shape.decode(shape.size - 1)) == shape.size - 1 < 100
    >>> check()
    """
    leaf = st.integers(1, 8)
    tree = st.recursive(leaf, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4)
    shape = Shape(tuple(draw(st.lists(tree, min_size=least_rank, max_size=4))))
    capped, size = [], 1
    for extent in shape.leaves():  # cut down rather than thrown away: hypothesis learns nothing from what is refused
        capped.append(extent if size * extent <= most else 1)
        size *= capped[-1]
    return _shape_like(shape, capped)


@st.composite
def layouts(draw: st.DrawFn, most: int = MOST, *, injective: bool | None = None) -> Layout:
    """Layouts over `shapes`: of any strides, overlapping ones too; or injective ones only; or none of these.

    >>> from hypothesis import given, settings
    >>> from strideweave.testing.strategies import layouts
    >>> @settings(max_examples=10)
    ... @given(layouts(most=100, injective=True))
    ... def check(layout):
    ...     assert len({layout(k) for k in range(layout.size)}) == layout.size
    >>> check()
    """
    if injective is True:
        return draw(injective_layouts(most))
    if injective is False:
        return draw(broadcast_layouts(most))
    shape = draw(shapes(most))
    strides = [draw(st.integers(0, 40)) for _ in shape.leaves()]
    return _layout(shape, strides)


@st.composite
def dense_layouts(draw: st.DrawFn, most: int = MOST, least_rank: int = 0) -> Layout:
    """Bijections onto 0 .. size - 1: the leaves in any order of strides.

    >>> from hypothesis import given, settings
    >>> from strideweave.testing.strategies import dense_layouts
    >>> @settings(max_examples=10)
    ... @given(dense_layouts(most=100))
    ... def check(layout):
    ...     assert sorted(layout(k) for k in range(layout.size)) == list(range(layout.size))
    >>> check()
    """
    shape = draw(shapes(most, least_rank=least_rank))
    return _layout(shape, _strides(draw, shape, gap=st.just(0)))


@st.composite
def injective_layouts(draw: st.DrawFn, most: int = MOST) -> Layout:
    """Layouts that reach no slot twice and may leave some out: dense ones with gaps.

    >>> from hypothesis import given, settings
    >>> from strideweave.testing.strategies import injective_layouts
    >>> @settings(max_examples=10)
    ... @given(injective_layouts(most=100))
    ... def check(layout):
    ...     assert layout.is_injective
    >>> check()
    """
    shape = draw(shapes(most))
    return _layout(shape, _strides(draw, shape, gap=st.integers(0, 3)))


@st.composite
def broadcast_layouts(draw: st.DrawFn, most: int = MOST) -> Layout:
    """Layouts with at least one leaf of several coordinates and stride 0; what the others reach is apart.

    >>> from hypothesis import given, settings
    >>> from strideweave.testing.strategies import broadcast_layouts
    >>> @settings(max_examples=10)
    ... @given(broadcast_layouts(most=100))
    ... def check(layout):
    ...     assert not layout.is_injective
    >>> check()
    """
    shape = draw(shapes(most // 2, least_rank=1))
    if shape.size == 1:
        shape = _shape_like(shape, [2, *shape.leaves()[1:]])
    wide = [k for k, extent in enumerate(shape.leaves()) if extent > 1]
    chosen = draw(st.lists(st.sampled_from(wide), min_size=1, unique=True))
    strides = _strides(draw, shape, gap=st.integers(0, 3))
    return _layout(shape, [0 if k in chosen else stride for k, stride in enumerate(strides)])


def dtypes(
    *, floating: bool | None = None, among: Sequence[StorageDType] | None = None
) -> st.SearchStrategy[StorageDType]:
    """The storage dtypes, or only the floating ones, or only the others.

    >>> from strideweave.testing.strategies import dtypes
    >>> dtypes(floating=True)
    sampled_from([DType.Float64, DType.Float32, DType.BFloat16, DType.Float16, DType.E4M3, DType.E5M2])
    """
    known = DType.registered() if among is None else among
    return st.sampled_from([d for d in known if floating is None or d.is_floating is floating])


@st.composite
def tensors(
    draw: st.DrawFn,
    *,
    layout: st.SearchStrategy[Layout] | None = None,
    dtype: st.SearchStrategy[StorageDType] | None = None,
    make: Callable[[torch.Tensor], Carrier] = CPU.wrap,
) -> Tensor:
    """Tensors of small whole numbers with special values among them, at any offset of a carrier with slots to spare.

    `make` gets the values of all slots and gives the carrier; in memory unless another is given.

    >>> from hypothesis import given, settings
    >>> from strideweave.testing.strategies import dtypes, layouts, tensors
    >>> @settings(max_examples=10)
    ... @given(tensors(layout=layouts(100), dtype=dtypes(floating=False)))
    ... def check(tensor):
    ...     assert tensor.offset + tensor.layout.cosize <= tensor.carrier.size()
    >>> check()
    """
    chosen = draw(layouts(300) if layout is None else layout)
    kind = draw(dtypes() if dtype is None else dtype)
    offset, rest = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    seed = draw(st.integers(0, 2**16))
    return Tensor(make(_values(offset + chosen.cosize + rest, kind, seed)), offset, chosen)


def _values(size: int, dtype: StorageDType, seed: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    least = 0 if dtype in (DType.UInt8, DType.Bool) else -7
    values = torch.randint(least, 2 if dtype is DType.Bool else 8, (size,), generator=source).to(dtype.torch_dtype)
    special = special_values(dtype)
    places = torch.randint(0, size, (seed % 4,), generator=source)
    for place in places.tolist():
        values[place] = special[int(torch.randint(0, special.numel(), (), generator=source))]
    return values


def _strides(draw: st.DrawFn, shape: Shape, *, gap: st.SearchStrategy[int]) -> list[int]:
    """Strides that keep the leaves apart, in any order, with gaps between them."""
    extents = shape.leaves()
    strides, step = [0] * len(extents), 1
    for k in draw(st.permutations(range(len(extents)))):
        step += draw(gap)
        strides[k] = step
        step *= extents[k]
    return strides


def _shape_like(shape: Shape, extents: Sequence[int]) -> Shape:
    return Shape(refill(shape._items, iter(extents)))


def _layout(shape: Shape, strides: Sequence[int]) -> Layout:
    return Layout(shape, Stride(refill(shape._items, iter(strides))))
