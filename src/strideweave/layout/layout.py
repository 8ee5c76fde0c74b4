"""Layout: the index that every coordinate reaches, as a shape and a stride."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import SupportsIndex, overload

from strideweave.layout import injectivity
from strideweave.layout.composition import merged
from strideweave.layout.index_map import IndexMap
from strideweave.layout.nested import Level, flat, pick, put, same_tree
from strideweave.layout.shape import Shape
from strideweave.layout.stride import Stride
from strideweave.layout.tree import Node, Tree


class Layout(IndexMap):
    """The index of every coordinate; ordinals are colexicographic: first mode fastest, at every level.

    The index of a coordinate is the sum of every entry times its stride. Errors: ValueError when shape and
    stride do not have the same tree. Immutable, hashable, compared by value; `a + b` has the modes of both.

    >>> from strideweave.layout import Layout, Shape, Stride
    >>> a = Layout(Shape(2, 3), Stride(1, 4))
    >>> a.size, a.cosize, a((1, 2)), a(5)
    (6, 10, 9, 9)
    >>> print(a)
    (2,3):(1,4)
    """

    __slots__ = ("_hash", "_leaves", "_shape", "_stride")

    _shape: Shape
    _stride: Stride
    _leaves: tuple[tuple[int, int], ...]
    _hash: int  # set by the first hash

    def __init__(self, shape: Shape, stride: Stride) -> None:
        if not isinstance(shape, Shape) or not isinstance(stride, Stride):
            raise ValueError(
                f"cannot make a Layout of {shape!r} and {stride!r}: it takes a Shape and a Stride. Wrap "
                "them, in that order."
            )
        if not same_tree(shape._items, stride._items):
            raise ValueError(
                f"cannot make a Layout of {shape!r} and {stride!r}: they do not match in Structure. "
                "Nest both the same way, one stride per extent."
            )
        object.__setattr__(self, "_shape", shape)
        object.__setattr__(self, "_stride", stride)
        object.__setattr__(self, "_leaves", tuple(zip(shape.leaves(), stride.leaves(), strict=True)))

    @classmethod
    def _of(cls, extents: Level, strides: Level) -> Layout:
        """The layout over two levels known to be good and alike."""
        made = cls.__new__(cls)
        put(made, "_shape", Shape._of(extents))
        put(made, "_stride", Stride._of(strides))
        # Not strict: they are alike, and every result of the algebra is made here.
        put(made, "_leaves", tuple(zip(flat(extents), flat(strides))))  # noqa: B905
        return made

    # -- making one ------------------------------------------------------------------------------------------

    @staticmethod
    def leaf(extent: int, stride: int) -> Layout:
        """The layout of one leaf."""
        return Layout(Shape(extent), Stride(stride))

    @staticmethod
    def empty() -> Layout:
        """The layout of rank 0: one coordinate, which reaches index 0."""
        return Layout._of((), ())

    @staticmethod
    def make_layout(*layouts: Layout) -> Layout:
        """The layout with one mode for each of these: a leaf stays a leaf, any other becomes a nested mode.

        >>> from strideweave.layout import Layout
        >>> print(Layout.make_layout(Layout.leaf(2, 1), Layout.column_major(3, 4)))
        (2,(3,4)):(1,(1,3))
        """
        for part in layouts:
            if not isinstance(part, Layout):
                raise TypeError(f"cannot make a Layout with mode {part!r}: a mode is a Layout. Pass Layouts.")
        return Layout._of(
            tuple(as_mode(part._shape._items) for part in layouts),
            tuple(as_mode(part._stride._items) for part in layouts),
        )

    @staticmethod
    def column_major(*extents: int) -> Layout:
        """The dense layout of a flat shape, first mode fastest.

        >>> from strideweave.layout import Layout
        >>> Layout.column_major(2, 3, 4)
        Layout(Shape(2, 3, 4), Stride(1, 2, 6))
        """
        shape = _flat_shape(extents)
        strides, step = [], 1
        for n in shape.leaves():
            strides.append(step)
            step *= n
        return Layout(shape, Stride._of(tuple(strides)))

    @staticmethod
    def row_major(*extents: int) -> Layout:
        """The dense layout of a flat shape, last mode fastest.

        >>> from strideweave.layout import Layout
        >>> Layout.row_major(2, 3, 4)
        Layout(Shape(2, 3, 4), Stride(12, 4, 1))
        """
        shape = _flat_shape(extents)
        strides, step = [], 1
        for n in reversed(shape.leaves()):
            strides.append(step)
            step *= n
        return Layout(shape, Stride._of(tuple(reversed(strides))))

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """The extents of the modes."""
        return self._shape

    @property
    def stride(self) -> Stride:
        """The steps of the modes, nested like the shape."""
        return self._stride

    @property
    def size(self) -> int:
        """How many coordinates there are, whether or not they share indices."""
        size = 1
        for n, _ in self._leaves:
            size *= n
        return size

    @property
    def cosize(self) -> int:
        """One more than the greatest index that is reached: what a carrier must hold from the offset on."""
        greatest = 0
        for n, d in self._leaves:
            greatest += (n - 1) * d
        return greatest + 1

    @property
    def codomain_size(self) -> int:
        """The same as `cosize`."""
        return self.cosize

    @property
    def is_injective(self) -> bool:
        """Whether no two coordinates reach the same index; exact, and never lists a large domain.

        >>> from strideweave.layout import Layout, Shape, Stride
        >>> Layout.row_major(10**6, 10**6).is_injective, Layout(Shape(3, 2), Stride(1, 2)).is_injective
        (True, False)
        """
        return injectivity.is_injective(self._leaves)

    @property
    def is_identity(self) -> bool:
        """Whether every ordinal reaches itself."""
        return merged(self._leaves) in ([], [(self.size, 1)])

    @property
    def profile(self) -> list[Node]:
        """The markers of the shape's tree read in order, without those around the top level."""
        return modes.profile(self)

    @property
    def is_leaf(self) -> bool:
        """Whether the layout is a single leaf."""
        return self._shape.is_int

    @property
    def depth(self) -> int:
        """How many levels lie above the deepest leaf: 0 for a leaf or for rank 0, 1 for a flat layout."""
        return self._shape.depth

    def leaves(self) -> tuple[tuple[int, int], ...]:
        """Extent and stride of every leaf, first mode first, however the layout nests."""
        return self._leaves

    def infix(self) -> list[tuple[int, int]]:
        """Extent and stride of every leaf, first mode first, as a list."""
        return list(self._leaves)

    # -- indices ---------------------------------------------------------------------------------------------

    def index(self, key: object) -> int:
        """The index that a coordinate reaches; an int is an ordinal, also in place of a nested mode.

        Errors: ValueError for any key that names no coordinate of the shape.

        >>> from strideweave.layout import Layout, Shape, Stride
        >>> a = Layout(Shape(2, (3, 4)), Stride(12, (4, 1)))
        >>> a.index((1, (2, 3))), a.index((1, 11)), a.index(23)
        (23, 23, 23)
        """
        try:
            ordinal = self._shape.encode(key)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"cannot index {self} with {key!r}: Key is not in domain of shape {self._shape}. "
                f"Pass an ordinal below {self.size}, or a coordinate nested like the shape."
            ) from error
        total = 0
        for n, d in self._leaves:
            ordinal, digit = divmod(ordinal, n)
            total += digit * d
        return total

    @staticmethod
    def get_index(layout: Layout, key: object) -> int:
        """The index that `key` reaches in `layout`. Errors: ValueError for no Layout, or a key not in it."""
        if not isinstance(layout, Layout):
            raise ValueError(f"cannot index {layout!r}: it is not a Layout. Pass one.")
        return layout.index(key)

    def grid(self) -> str:
        """The index of every coordinate of a rank-2 layout as text: first mode down, second mode across.

        Errors: ValueError for another rank.

        >>> from strideweave.layout import Layout, Shape, Stride
        >>> print(Layout(Shape(2, (2, 2)), Stride(1, (8, 2))).grid())
        0  8  2  10
        1  9  3  11
        """
        if len(self) != 2:
            raise ValueError(f"cannot draw {self}: it has {len(self)} modes. A grid has two. Group them into two.")
        rows, columns = self[0], self[1]
        down = [rows.index(i) for i in range(rows.size)]
        across = [columns.index(j) for j in range(columns.size)]
        widths = [len(str(down_most + j)) for down_most in [max(down)] for j in across]
        return "\n".join("  ".join(str(i + j).rjust(w) for j, w in zip(across, widths, strict=True)) for i in down)

    # -- modes -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._shape)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Layout: ...
    @overload
    def __getitem__(self, key: slice) -> Layout: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Layout:
        return Layout._of(pick(self._shape._items, key), pick(self._stride._items, key))

    def __iter__(self) -> Iterator[Layout]:
        return (self[k] for k in range(len(self)))

    def __add__(self, other: object) -> Layout:
        return self.concat(other) if isinstance(other, Layout) else NotImplemented

    # -- algebra: the functions of strideweave.layout, as methods and as Layout.<name>(layout, ...) ----------

    def concat(self, other: Layout) -> Layout:
        """The modes of this layout, then those of the other."""
        return algebra.concat(self, other)

    def append(self, mode: Layout) -> Layout:
        """The modes of this layout, then the other as one mode."""
        return algebra.append(self, mode)

    def permute(self, *order: int) -> Layout:
        """The same modes in another order."""
        return algebra.permute(self, *order)

    def coalesce(self) -> Layout:
        """The same function of the ordinal with the fewest leaves, flat."""
        return algebra.coalesce(self)

    @overload
    def compose(self, B: Layout | Shape | Sequence[Layout]) -> Layout: ...
    @overload
    def compose(self, *, inner: Layout | Shape | Sequence[Layout]) -> Layout: ...
    @overload
    def compose(
        self,
        B: IndexMap | Shape | Sequence[Layout] | None = None,
        *,
        inner: IndexMap | Shape | Sequence[Layout] | None = None,
    ) -> IndexMap: ...
    def compose(
        self,
        B: IndexMap | Shape | Sequence[Layout] | None = None,
        *,
        inner: IndexMap | Shape | Sequence[Layout] | None = None,
    ) -> IndexMap:
        """The map that takes a coordinate through the inner one first and then through this: a Layout of Layouts."""
        if B is not None and inner is not None:
            raise TypeError(f"cannot compose {self!r} with {B!r} and {inner!r}: got both B and inner. Pass one.")
        return algebra.compose(self, B if inner is None else inner)

    def complement(self, cotarget: int) -> Layout:
        """The layout that reaches, together with this one, every index below `cotarget` once."""
        return algebra.complement(self, cotarget)

    def divide(self, tile: Layout) -> Layout:
        """Two modes: within the tile, and over the tiles."""
        return algebra.divide(self, tile)

    def divide_tiler(self, tiles: Sequence[Layout]) -> Layout:
        """Every leading mode divided by its own tile."""
        return algebra.divide_tiler(self, tiles)

    def zipped_divide(self, tiles: Sequence[Layout]) -> Layout:
        """The tile parts of all modes, then the rest parts, then the untouched modes."""
        return algebra.zipped_divide(self, tiles)

    def product(self, grid: Layout) -> Layout:
        """This layout, and the places where it repeats, in the order of the grid."""
        return repetition.product(self, grid)

    def right_inverse(self) -> Layout:
        """The ordinals that reach 0, 1, 2, ..., as far as a layout can tell."""
        return inverse.right_inverse(self)

    def broadcast_to(self, shape: Shape) -> Layout:
        """The layout of this shape in which widened leaves of extent 1 repeat."""
        return broadcasting.broadcast_to(self, shape)

    def uniform_preimage_extent(self, target_shape: Shape) -> int | None:
        """How many coordinates reach each index of the target; None when that is not one number."""
        return preimage.uniform_preimage_extent(self, target_shape)

    def flatten_layout(self) -> Layout:
        """The same leaves as modes of one flat level."""
        return modes.flatten_layout(self)

    def coalesce_by_mode(self, tree: Tree) -> Layout:
        """The layout nested like the tree, every part at one of its leaves coalesced alone."""
        return modes.coalesce_by_mode(self, tree)

    def extract_profile(self, tree: Tree | None = None) -> list[Layout]:
        """The parts that a tree names, by number; every leaf when there is no tree."""
        return modes.extract_profile(self, tree)

    def rearrange(self, output: Tree, selection: Tree | None = None) -> Layout:
        """The parts that the selection names, in the order and nesting of the output."""
        return rearranging.rearrange(self, output, selection)

    @staticmethod
    def reverse_rearrange(output: Tree, selection: Tree) -> tuple[Tree, Tree]:
        """The output and the selection that undo a rearrangement by these."""
        return rearranging.reverse_rearrange(output, selection)

    def choose(self, d: int) -> Layout:
        """Every `d`-th ordinal, flat."""
        return sections.choose(self, d)

    def modout(self, s: int) -> Layout:
        """The first `s` ordinals, flat."""
        return sections.modout(self, s)

    # -- value -----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Layout):
            return False
        return self._shape._items == other._shape._items and self._stride._items == other._stride._items

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self._shape._items, self._stride._items)))
            return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name!r} of {self}: a Layout is immutable. Make a new one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name!r} of {self}: a Layout is immutable. Make a new one.")

    def __copy__(self) -> Layout:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Layout:
        return self

    def __reduce__(self) -> tuple[type[Layout], tuple[Shape, Stride]]:
        return Layout, (self._shape, self._stride)

    def __str__(self) -> str:
        return f"{self._shape}:{self._stride}"

    def __repr__(self) -> str:
        return f"Layout({self._shape!r}, {self._stride!r})"


def as_mode(items: Level) -> int | Level:
    """What a whole level becomes as one mode of a larger one: a single leaf stays a leaf."""
    return items[0] if len(items) == 1 and isinstance(items[0], int) else items


def _flat_shape(extents: tuple[int, ...]) -> Shape:
    shape = Shape(*extents)
    if shape.depth > 1:
        raise ValueError(f"cannot make a dense layout of {shape!r}: it nests. The extents are ints. Pass them flat.")
    return shape


# Last, because the algebra is made of Layouts.
from strideweave.layout import (  # noqa: E402
    algebra,
    broadcasting,
    inverse,
    modes,
    preimage,
    rearranging,
    repetition,
    sections,
)
