"""Maps applied one after another, where no single map is known to be their composition."""

from __future__ import annotations

from dataclasses import dataclass

from strideweave.layout.index_map import IndexMap
from strideweave.layout.shape import Shape


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Composed(IndexMap):
    """The last child first, then the one before it, to the first; its keys are those of the last child.

    A child that is itself Composed is replaced by its children. Errors: TypeError for what is no IndexMap;
    ValueError for fewer than two, or when the codomain of a child exceeds the domain before it.

    >>> from strideweave.layout import Composed, Layout, Permutation
    >>> a = Composed(Layout.leaf(3, 10), Permutation([2, 0, 1], 3))
    >>> [a(i) for i in range(3)], a.codomain_size, a.is_injective
    ([20, 0, 10], 21, True)
    """

    children: tuple[IndexMap, ...]
    """The maps, the one applied last first; none is Composed."""

    def __init__(self, *children: IndexMap) -> None:
        if len(children) < 2:
            raise ValueError(f"cannot compose {children!r}: {len(children)} given. It takes two or more. Pass them.")
        chain: list[IndexMap] = []
        for child in children:
            if chain:
                require_composable(chain[-1], child)
            elif not isinstance(child, IndexMap):
                raise TypeError(f"cannot compose {child!r}: it is no IndexMap. Pass one.")
            chain += child.children if isinstance(child, Composed) else (child,)
        object.__setattr__(self, "children", tuple(chain))

    @property
    def shape(self) -> Shape:
        """The coordinates of the last child."""
        return self.children[-1].shape

    @property
    def codomain_size(self) -> int:
        """The bound of the first child."""
        return self.children[0].codomain_size

    @property
    def is_injective(self) -> bool | None:
        """True if all children are, False if the last is not; None where the others decide."""
        if self.children[-1].is_injective is False:
            return False
        return True if all(child.is_injective for child in self.children) else None

    def index(self, key: object) -> int:
        """The index that the children reach from a key, one after another; nothing is kept in between.

        Errors: those of the last child for a key outside.
        """
        reached = self.children[-1].index(key)
        for child in reversed(self.children[:-1]):
            reached = child.index(reached)
        return reached

    def compose(self, inner: IndexMap, /) -> IndexMap:
        """The map that takes a coordinate through `inner` first and then through this one."""
        return compose_maps(self, inner)

    def __repr__(self) -> str:
        return f"Composed({', '.join(map(repr, self.children))})"


def compose_maps(outer: IndexMap, inner: IndexMap) -> IndexMap:
    """`inner` first, then `outer`, with `inner`'s keys; the other operand itself where one changes nothing.

    Errors: as for `require_composable`.
    """
    kept = unchanged(outer, inner)
    return Composed(outer, inner) if kept is None else kept


def unchanged(outer: IndexMap, inner: IndexMap) -> IndexMap | None:
    """The operand that is the composition already, as the other one changes nothing; None if there is none.

    Errors: as for `require_composable`.
    """
    require_composable(outer, inner)
    if outer.is_identity:
        return inner
    return outer if inner.is_identity and inner.shape == outer.shape else None


def require_composable(outer: IndexMap, inner: object) -> None:
    """Errors: TypeError unless `inner` is an IndexMap; ValueError when its codomain exceeds the outer domain."""
    if not isinstance(inner, IndexMap):
        raise TypeError(f"cannot compose {outer!r} with {inner!r}: the inner map is no IndexMap. Pass one.")
    if inner.codomain_size > outer.size:
        raise ValueError(
            f"cannot compose {outer!r} with {inner!r}: it reaches up to {inner.codomain_size} indices, and the "
            f"outer map takes {outer.size}. The inner codomain exceeds the outer domain. Use an inner map with a "
            f"codomain of {outer.size} at most."
        )
