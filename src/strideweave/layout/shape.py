"""The extents of the modes, and the ordinal of every coordinate."""

from __future__ import annotations

from math import prod
from typing import TypeAlias

from strideweave.layout.nested import Level, NestedInts, flat

Coordinate: TypeAlias = "int | tuple[Coordinate, ...] | list[Coordinate]"
"""An ordinal, or one Coordinate for every mode."""


class Shape(NestedInts):
    """The extents of the modes; the first mode varies fastest, at every level, when coordinates are counted.

    Errors: TypeError for what is no integer; ValueError for an extent below 1. `Shape()` has rank 0 and size
    1. Immutable.

    >>> from strideweave.layout import Shape
    >>> s = Shape(2, (3, 4))
    >>> s.size, len(s), s[1]
    (24, 2, Shape(3, 4))
    >>> s.decode(9), s.encode((1, (1, 1)))
    ((1, (1, 1)), 9)
    """

    __slots__ = ()

    _least = 1
    _rule = "Shape value must be positive"

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return prod(flat(self._items))

    @property
    def logical_size(self) -> int:
        """How many coordinates there are: `size`, under the name that nested levels use."""
        return self.size

    def concat(self, other: Shape) -> Shape:
        """The modes of this shape, then those of the other.

        >>> from strideweave.layout import Shape
        >>> Shape(2).concat(Shape(3, 4)), Shape.append(Shape(2), Shape(3, 4))
        (Shape(2, 3, 4), Shape(2, (3, 4)))
        """
        return Shape._of(self._items + _require_shape(other)._items)

    def append(self, mode: Shape) -> Shape:
        """The modes of this shape, then the other as one mode: a leaf stays a leaf."""
        items = _require_shape(mode)._items
        return Shape._of((*self._items, items[0] if mode.is_int else items))

    def encode(self, coordinate: object) -> int:
        """The ordinal of a coordinate; any nested mode may be given as its own ordinal.

        Errors: TypeError for what is no int, tuple or list; ValueError for a coordinate outside of the shape.

        >>> from strideweave.layout import Shape
        >>> Shape(2, (3, 4)).encode((1, 4))
        9
        """
        return _encode(self._items, coordinate, self)

    def decode(self, index: int) -> tuple[Coordinate, ...]:
        """The coordinate of an ordinal, nested like the shape: the inverse of `encode`.

        Errors: TypeError for what is no int; ValueError for an ordinal outside of the shape.

        >>> from strideweave.layout import Shape
        >>> Shape(2, (3, 4)).decode(23), Shape().decode(0)
        ((1, (2, 3)), ())
        """
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"cannot decode {index!r} in {self!r}: Shape index must be an integer. Pass an int.")
        if not 0 <= index < self.size:
            raise ValueError(
                f"cannot decode {index} in {self!r}: it has {self.size} coordinates. Index is not in "
                f"domain of shape. Pass 0 to {self.size - 1}."
            )
        return _decode(self._items, index)[0]


def _require_shape(other: object) -> Shape:
    if not isinstance(other, Shape):
        raise TypeError(f"cannot join a Shape with {other!r}: it is no Shape. Pass one.")
    return other


def _encode(items: Level, coordinate: object, whole: Shape) -> int:
    if isinstance(coordinate, int) and not isinstance(coordinate, bool):
        size = prod(flat(items))
        if not 0 <= coordinate < size:
            raise ValueError(
                f"cannot encode {coordinate} in {whole!r}: its mode has {size} coordinates. "
                f"Coordinate is not in domain of shape. Pass 0 to {size - 1}."
            )
        return coordinate
    if not isinstance(coordinate, tuple | list):
        raise TypeError(
            f"cannot encode {coordinate!r} in {whole!r}: a coordinate is an int, a tuple or a list. Pass one of these."
        )
    if len(coordinate) == 0 and not items:
        return 0
    if len(coordinate) != len(items):
        raise ValueError(
            f"cannot encode {coordinate!r} in {whole!r}: {len(coordinate)} entries for {len(items)} modes. "
            "Coordinate does not match shape hierarchy. Pass one entry per mode."
        )
    ordinal, step = 0, 1
    for item, part in zip(items, coordinate, strict=True):
        # A leaf is counted, never entered: a tuple in its place does not match.
        if isinstance(item, int) and isinstance(part, tuple | list):
            raise ValueError(
                f"cannot encode {coordinate!r} in {whole!r}: {part!r} stands for the leaf {item}. "
                "Coordinate does not match shape hierarchy. Pass an int there."
            )
        level = (item,) if isinstance(item, int) else item
        ordinal += step * _encode(level, part, whole)
        step *= prod(flat(level))
    return ordinal


def _decode(items: Level, index: int) -> tuple[tuple[Coordinate, ...], int]:
    """The coordinate of `index` within these modes, and what is left of it for the modes after them."""
    parts: list[Coordinate] = []
    for item in items:
        if isinstance(item, int):
            index, digit = divmod(index, item)
            parts.append(digit)
        else:
            nested, index = _decode(item, index)
            parts.append(nested)
    return tuple(parts), index
