"""The nested integers that Shape and Stride are made of, immutable and compared by value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import index as exact_int
from typing import ClassVar, Self, SupportsIndex, TypeAlias, TypeGuard, overload

Level: TypeAlias = "tuple[int | Level, ...]"
"""The modes of one level, first mode first: an int for a leaf, a Level for a nested mode."""


put = object.__setattr__
"""How the fields of an immutable value are set once, by those who make it."""


class NestedInts:
    """An immutable tree of integers; `len`, indexing and iteration see its top-level modes.

    One iterable argument stands for its items, so `Shape([2, [3, 4]]) == Shape(2, [3, 4])`.
    """

    __slots__ = ("_hash", "_items")

    _items: Level
    _hash: int  # set by the first hash: a value is the key of caches, and hashed far more often than made
    _least: ClassVar[int]
    _rule: ClassVar[str]

    def __init__(self, *items: object) -> None:
        if len(items) == 1 and not _is_int(items[0]):
            items = (items[0]._items,) if isinstance(items[0], NestedInts) else items
            items = tuple(_iterate(items[0], type(self)))
        object.__setattr__(self, "_items", tuple(_parse(item, type(self)) for item in items))

    @classmethod
    def _of(cls, items: Level) -> Self:
        """The tree over items that are known to be good: nothing is checked again."""
        made = cls.__new__(cls)
        put(made, "_items", items)
        return made

    @property
    def top_level(self) -> tuple[int | Self, ...]:
        """The top-level modes, first mode first: an int for a leaf, a tree for a nested mode."""
        return tuple(item if isinstance(item, int) else self._of(item) for item in self._items)

    @property
    def is_int(self) -> bool:
        """Whether the tree is a single leaf."""
        return len(self._items) == 1 and isinstance(self._items[0], int)

    @property
    def depth(self) -> int:
        """How many levels lie above the deepest leaf: 0 for a leaf or for rank 0, 1 for a flat tree."""
        return 0 if self.is_int else level_depth(self._items)

    def leaves(self) -> tuple[int, ...]:
        """Every leaf, first mode first."""
        return flat(self._items)

    def __int__(self) -> int:
        if not self.is_int:
            raise ValueError(f"cannot read {self!r} as an int: it is not a single leaf. Take one of its leaves.")
        return self.leaves()[0]

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Self: ...
    @overload
    def __getitem__(self, key: slice) -> Self: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Self:
        return self._of(pick(self._items, key))

    def __iter__(self) -> Iterator[Self]:
        return (self[k] for k in range(len(self._items)))

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._items == other._items)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((type(self), self._items)))
            return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name!r} of {self!r}: a {type(self).__name__} is immutable. Make a new one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"cannot delete {name!r} of {self!r}: a {type(self).__name__} is immutable. Make a new one."
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[Level]]:
        return type(self), (self._items,)

    def __str__(self) -> str:
        return str(self._items[0]) if self.is_int else _level_text(self._items)

    def __repr__(self) -> str:
        # A lone nested mode keeps its own parentheses: one iterable argument stands for its items.
        if len(self._items) == 1 and not self.is_int:
            return f"{type(self).__name__}({self._items!r})"
        return f"{type(self).__name__}({', '.join(map(repr, self._items))})"


def flat(items: Level) -> tuple[int, ...]:
    """The leaves of a level, first mode first."""
    for item in items:
        if type(item) is tuple:
            break
    else:
        return items  # type: ignore[return-value]  # what is no level is a leaf
    out: list[int] = []
    for item in items:
        if type(item) is tuple:
            out += flat(item)
        else:
            out.append(item)  # type: ignore[arg-type]  # what is no level is a leaf
    return tuple(out)


def same_tree(a: Level, b: Level) -> bool:
    """Whether two levels differ at most in the values of their leaves."""
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, int) or isinstance(y, int):
            if not (isinstance(x, int) and isinstance(y, int)):
                return False
        elif not same_tree(x, y):
            return False
    return True


def refill(items: Level, leaves: Iterator[int | Level]) -> Level:
    """The same level with its leaves replaced in order; a leaf may become a nested mode."""
    return tuple(next(leaves) if isinstance(item, int) else refill(item, leaves) for item in items)


def pick(items: Level, key: SupportsIndex | slice) -> Level:
    """The level of one mode (a leaf becomes a level of one), or of a slice of the modes."""
    if isinstance(key, slice):
        return items[key]
    if isinstance(key, bool) or not hasattr(key, "__index__"):
        raise TypeError(f"cannot take mode {key!r}: a mode is named by an int or a slice. Pass one of these.")
    if not -len(items) <= key.__index__() < len(items):
        raise IndexError(
            f"cannot take mode {key}: there are {len(items)}. Modes are numbered from 0. Pass a smaller one."
        )
    item = items[key]
    return (item,) if isinstance(item, int) else item


def level_depth(items: Level) -> int:
    """How many levels the deepest leaf lies under, this one included; 0 for an empty level."""
    return max((1 if isinstance(item, int) else 1 + level_depth(item) for item in items), default=0)


def _is_int(value: object) -> TypeGuard[SupportsIndex]:
    return hasattr(value, "__index__") and not isinstance(value, NestedInts)


def _iterate(value: object, kind: type[NestedInts]) -> Iterable[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(
            f"cannot make a {kind.__name__} with {value!r}: a mode is an int or an iterable of modes. Pass "
            "one of these."
        )
    return value


def _parse(item: object, kind: type[NestedInts]) -> int | Level:
    if isinstance(item, NestedInts):
        if not isinstance(item, kind):
            raise TypeError(
                f"cannot make a {kind.__name__} with {item!r}: its modes are {kind.__name__}s. Pass ints "
                f"or {kind.__name__}s."
            )
        return item._items[0] if item.is_int else item._items
    if not _is_int(item):
        return tuple(_parse(part, kind) for part in _iterate(item, kind))
    if isinstance(item, bool):
        raise TypeError(f"cannot make a {kind.__name__} with {item!r}: a bool is no extent or stride. Pass an int.")
    value = exact_int(item)
    if value < kind._least:
        raise ValueError(f"cannot make a {kind.__name__} with {value}: {kind._rule}. Pass {kind._least} or more.")
    return int(value)


def _level_text(items: Level) -> str:
    parts = [str(item) if isinstance(item, int) else _level_text(item) for item in items]
    return f"({parts[0]},)" if len(parts) == 1 else f"({','.join(parts)})"
