"""What a Layout and every other map from coordinates to indices have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from strideweave.layout.shape import Shape


class IndexMap(ABC):
    """A function from the coordinates of `shape` to the indices below `codomain_size`.

    >>> from strideweave.layout import IndexMap, Layout
    >>> issubclass(Layout, IndexMap)
    True
    """

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The coordinates that the map takes."""

    @property
    @abstractmethod
    def codomain_size(self) -> int:
        """A bound that no index reaches."""

    @property
    @abstractmethod
    def is_injective(self) -> bool | None:
        """Whether no two coordinates reach the same index; None when nobody has proven it either way."""

    @abstractmethod
    def index(self, key: object) -> int:
        """The index that an ordinal or a coordinate reaches. Errors: ValueError for a key outside."""

    @abstractmethod
    def compose(self, inner: IndexMap, /) -> IndexMap:
        """The map that takes a coordinate through `inner` first and then through this one."""

    @property
    def is_identity(self) -> bool:
        """Whether every ordinal is known to reach itself, and all of the codomain is reached."""
        return False

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return self.shape.size

    def __call__(self, key: object) -> int:
        """The same as `index`."""
        return self.index(key)
