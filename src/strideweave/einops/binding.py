"""Names bound to modes: which part of a shape every symbol of a reference stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul

from strideweave.einops.references import Item, LayoutReference
from strideweave.layout import Layout, Shape
from strideweave.layout.nested import Level, flat, refill


@dataclass(frozen=True, slots=True)
class Bound:
    """The mode that a symbol stands for, whole."""

    extent: int | Level
    """An int for a leaf, a level for a nested mode."""
    leaves: range
    """The numbers of its leaves within the whole shape, first mode first."""

    @property
    def size(self) -> int:
        """How many coordinates it has."""
        return prod(leaves_of(self.extent))


def leaves_of(item: int | Level) -> tuple[int, ...]:
    """The leaves of one mode."""
    return (item,) if isinstance(item, int) else flat(item)


def require_sizes(asked: str, sizes: Mapping[str, int], symbols: tuple[str, ...]) -> None:
    """Errors: TypeError for a size that is no int; ValueError for one below 1, or of a symbol that nobody names."""
    for symbol, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{asked}: the size of {symbol!r} is {size!r}. A size is a count. Pass an int.")
        if size < 1:
            raise ValueError(f"{asked}: the size of {symbol!r} is {size}. A mode has coordinates. Pass 1 or more.")
        if symbol not in symbols:
            raise ValueError(
                f"{asked}: there is a size for {symbol!r}, which the input does not name. A size belongs to a "
                f"symbol of the input. Pass one of {', '.join(symbols) or 'none'}."
            )


def split_shape(asked: str, reference: LayoutReference, shape: Shape, sizes: Mapping[str, int]) -> Shape:
    """The shape nested like the reference: a leaf in the place of a group is split, first item fastest.

    The same object when nothing is split. Errors: ValueError for a shape with other modes than the reference, a
    literal 1 for more coordinates, or sizes that are missing or do not make the extent.
    """
    if len(reference) != len(shape):
        raise ValueError(
            f"{asked}: '{reference}' names {len(reference)} modes, and {shape} has {len(shape)}. Every mode has one "
            "symbol, 1 or group. Name them all."
        )
    split = _split_level(asked, reference, shape._items, sizes)
    return shape if split == shape._items else Shape._of(split)


def split_layout(asked: str, reference: LayoutReference, layout: Layout, sizes: Mapping[str, int]) -> Layout:
    """The layout with its leaves split like `split_shape` splits them: every ordinal reaches the same index."""
    shape = split_shape(asked, reference, layout.shape, sizes)
    if shape is layout.shape:
        return layout
    return Layout._of(shape._items, _split_strides(layout.shape._items, shape._items, layout.stride._items))


def bound(reference: LayoutReference, shape: Shape) -> dict[str, Bound]:
    """What every symbol stands for in a shape that nests like the reference."""
    found: dict[str, Bound] = {}
    _bind(reference, shape._items, 0, found)
    return found


def assembled(reference: LayoutReference, modes: Mapping[str, int | Level], one: int) -> Level:
    """A level nested like the reference, with the mode of every symbol, and `one` for a literal 1."""
    return tuple(
        assembled(item, modes, one)
        if isinstance(item, LayoutReference)
        else modes[item]
        if isinstance(item, str)
        else one
        for item in reference.items
    )


def _split_level(asked: str, reference: LayoutReference, extents: Level, sizes: Mapping[str, int]) -> Level:
    return tuple(_split_mode(asked, item, n, sizes) for item, n in zip(reference.items, extents, strict=True))


def _split_mode(asked: str, item: Item, extent: int | Level, sizes: Mapping[str, int]) -> int | Level:
    size = prod(leaves_of(extent))
    if isinstance(item, str):
        if sizes.get(item, size) != size:
            raise ValueError(
                f"{asked}: the size of {item!r} is {sizes[item]}, and its mode has {size} coordinates. They agree. "
                f"Pass {size}, or leave it out."
            )
        return extent
    if not isinstance(item, LayoutReference):
        if size != 1:
            raise ValueError(f"{asked}: a literal 1 stands for a mode of {size}. It has one coordinate. Name the mode.")
        return extent
    if isinstance(extent, int):
        known = _inferred(asked, item, extent, sizes)
        return assembled(item, known, 1)
    if len(extent) != len(item):
        raise ValueError(
            f"{asked}: group '({item})' has {len(item)} items, and the mode {Shape._of(extent)} nests {len(extent)}. A "
            "group names every mode of a nested one. Name them all."
        )
    return _split_level(asked, item, extent, sizes)


def _inferred(asked: str, group: LayoutReference, extent: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """The size of every symbol of a group that splits a leaf; one may be left out."""
    known = {symbol: sizes[symbol] for symbol in group.symbols if symbol in sizes}
    missing = [symbol for symbol in group.symbols if symbol not in sizes]
    if len(missing) > 1:
        raise ValueError(
            f"{asked}: group '({group})' stands for a leaf of {extent}, and the sizes of {', '.join(missing)} are "
            "unknown. A leaf is split by sizes, all but one. Pass them by keyword."
        )
    rest = prod(known.values())
    if extent % rest or (not missing and extent != rest):
        raise ValueError(
            f"{asked}: group '({group})' stands for a leaf of {extent}, and its sizes make {rest}. They split the leaf "
            "into equal parts. Pass others."
        )
    return {**known, **dict.fromkeys(missing, extent // rest)}


def _split_strides(extents: Level, split: Level, strides: Level) -> Level:
    out: list[int | Level] = []
    for n, parts, d in zip(extents, split, strides, strict=True):
        if isinstance(parts, tuple) and isinstance(d, int):
            # A leaf that is a nested mode now: its parts follow one another, first one fastest.
            out.append(refill(parts, iter(accumulate(flat(parts), mul, initial=d))))
        elif isinstance(parts, tuple) and isinstance(n, tuple) and isinstance(d, tuple):
            out.append(_split_strides(n, parts, d))
        else:
            out.append(d)
    return tuple(out)


def _bind(reference: LayoutReference, extents: Level, place: int, found: dict[str, Bound]) -> None:
    for item, extent in zip(reference.items, extents, strict=True):
        count = len(leaves_of(extent))
        if isinstance(item, str):
            found[item] = Bound(extent, range(place, place + count))
        elif isinstance(item, LayoutReference) and not isinstance(extent, int):
            _bind(item, extent, place, found)
        place += count
