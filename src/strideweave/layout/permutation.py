"""A finite injective map, given by its values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strideweave.layout.composed import compose_maps, unchanged
from strideweave.layout.index_map import IndexMap
from strideweave.layout.shape import Shape


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Permutation(IndexMap):
    """The map that takes k to `values[k]`, each value once; its domain may be smaller than its codomain.

    Errors: TypeError for what are no ints; ValueError for no values, for one that stands twice or lies
    outside of the codomain, and for a codomain below 1.

    >>> from strideweave.layout import Permutation
    >>> p = Permutation([2, 0, 1], 3)
    >>> p(0), p.compose(p)
    (2, Permutation((1, 2, 0), 3))
    """

    values: tuple[int, ...]
    """The index of every ordinal."""
    codomain_size: int
    """The bound of the values."""

    def __init__(self, values: Iterable[int], codomain_size: int) -> None:
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise TypeError(f"cannot permute by {values!r}: the values are an iterable of ints. Pass a list.")
        values = tuple(values)
        for value in (*values, codomain_size):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"cannot permute by {value!r}: values and the codomain size are ints. Pass ints.")
        if codomain_size < 1:
            raise ValueError(f"cannot permute into {codomain_size} indices: a codomain is positive. Pass 1 or more.")
        if not values:
            raise ValueError("cannot permute by no values: a map has an index for at least one ordinal. Pass one.")
        seen: set[int] = set()
        for value in values:
            if not 0 <= value < codomain_size:
                raise ValueError(
                    f"cannot permute by value {value}: the codomain has {codomain_size} indices, and it is out of "
                    f"range. Pass 0 to {codomain_size - 1}."
                )
            if value in seen:
                raise ValueError(
                    f"cannot permute by value {value} twice: a duplicate makes the map not injective. Pass it once."
                )
            seen.add(value)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "codomain_size", codomain_size)

    @property
    def shape(self) -> Shape:
        """One mode, of as many coordinates as there are values."""
        return Shape(len(self.values))

    @property
    def is_injective(self) -> bool:
        """True."""
        return True

    @property
    def is_identity(self) -> bool:
        """Whether every index of the codomain is reached by itself."""
        return self.values == tuple(range(self.codomain_size))

    def index(self, key: object) -> int:
        """The value at an ordinal or coordinate. Errors: as for `Shape.encode`."""
        return self.values[self.shape.encode(key)]

    def compose(self, inner: IndexMap, /) -> IndexMap:
        """`inner` first, then this one: a Permutation if `inner` is one."""
        if not isinstance(inner, Permutation):
            return compose_maps(self, inner)
        kept = unchanged(self, inner)
        if kept is not None:
            return kept
        return Permutation((self.values[value] for value in inner.values), self.codomain_size)

    def __repr__(self) -> str:
        return f"Permutation({self.values!r}, {self.codomain_size})"
