"""Maps side by side: each takes its own mode, and the results are packed into one index."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from strideweave.layout.composed import compose_maps, unchanged
from strideweave.layout.index_map import IndexMap
from strideweave.layout.layout import as_mode
from strideweave.layout.shape import Shape


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Product(IndexMap):
    """Child k applied to mode k; the results are the coordinate of the index in `target_shape`.

    Shapes: one mode per child, a leaf where its shape is one, else nested like its shape. Errors: TypeError
    for what is no IndexMap; ValueError for fewer than two.

    >>> from strideweave.layout import Permutation, Product
    >>> p = Product(Permutation([1, 0], 2), Permutation([2, 0, 1], 4))
    >>> p((0, 2)), p.target_shape, p.codomain_size
    (3, Shape(2, 4), 8)
    """

    children: tuple[IndexMap, ...]
    """The maps, the one of the first mode first."""

    def __init__(self, *children: IndexMap) -> None:
        for child in children:
            if not isinstance(child, IndexMap):
                raise TypeError(f"cannot make a Product with {child!r}: it is no IndexMap. Pass one.")
        if len(children) < 2:
            raise ValueError(f"cannot make a Product of {len(children)} maps: it takes two or more. Pass them.")
        object.__setattr__(self, "children", children)

    @property
    def shape(self) -> Shape:
        """One mode per child."""
        return Shape._of(tuple(as_mode(child.shape._items) for child in self.children))

    @property
    def target_shape(self) -> Shape:
        """The codomain sizes of the children, nested where a child is itself a Product."""
        return Shape._of(
            tuple(
                child.target_shape._items if isinstance(child, Product) else child.codomain_size
                for child in self.children
            )
        )

    @property
    def codomain_size(self) -> int:
        """The size of `target_shape`."""
        return prod(child.codomain_size for child in self.children)

    @property
    def is_injective(self) -> bool | None:
        """True if all children are, False if one is not, else None."""
        known = [child.is_injective for child in self.children]
        if False in known:
            return False
        return None if None in known else True

    @property
    def is_identity(self) -> bool:
        """Whether every child is known to change nothing."""
        return all(child.is_identity for child in self.children)

    def index(self, key: object) -> int:
        """The packed results for an ordinal or coordinate. Errors: as for `Shape.encode`."""
        ordinal = self.shape.encode(key)
        index, step = 0, 1
        for child in self.children:
            ordinal, part = divmod(ordinal, child.size)
            index += step * child.index(part)
            step *= child.codomain_size
        return index

    def compose(self, inner: IndexMap, /) -> IndexMap:
        """`inner` first, then this one: child by child if `inner` is a Product that packs what this one unpacks."""
        kept = unchanged(self, inner)
        if kept is not None:
            return kept
        if not isinstance(inner, Product) or inner.target_shape != self.shape:
            return compose_maps(self, inner)
        pairs = zip(self.children, inner.children, strict=True)
        # Two layouts here are a leaf and what it takes: they always compose to a layout.
        return Product(*(mine.compose(its) for mine, its in pairs))

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.children))})"
