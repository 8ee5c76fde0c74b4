"""Indices whose bits are mixed: every stage adds one field of bits to another without a carry."""

from __future__ import annotations

from dataclasses import dataclass

from strideweave.layout.composed import compose_maps, unchanged
from strideweave.layout.index_map import IndexMap
from strideweave.layout.shape import Shape


@dataclass(frozen=True, slots=True, repr=False)
class SwizzleStage:
    """One exclusive-or of two fields of `bits` bits that do not meet: its own inverse.

    The fields begin at bit `base` and at bit `base + abs(shift)`. A positive shift changes the lower field by
    the higher one, a negative shift the higher by the lower. Errors: TypeError for what is no int; ValueError
    for bits below 1, a base below 0, or a shift shorter than the field.

    >>> from strideweave.layout import SwizzleStage
    >>> SwizzleStage(2, 0, 3)(0b11_001), SwizzleStage(2, 0, -3)(0b11_001)
    (26, 17)
    """

    bits: int
    """How many bits each field has."""
    base: int
    """The first bit of the lower field."""
    shift: int
    """How far the higher field lies above the lower one, and by its sign which of them changes."""

    def __post_init__(self) -> None:
        for name, value in (("bits", self.bits), ("base", self.base), ("shift", self.shift)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"cannot swizzle with {name} {value!r}: a stage is three ints. Pass an int.")
        asked = f"cannot swizzle by {self!r}"
        if self.bits < 1:
            raise ValueError(f"{asked}: {self.bits} bits change nothing. A field has bits. Pass 1 or more.")
        if self.base < 0:
            raise ValueError(f"{asked}: there is no bit {self.base}. Bits count from 0. Pass 0 or more.")
        if abs(self.shift) < self.bits:
            raise ValueError(
                f"{asked}: fields of {self.bits} bits, {abs(self.shift)} apart, share bits. The shift is not 0 and "
                f"no shorter than a field. Pass {self.bits} or more, or {-self.bits} or less."
            )

    @property
    def end(self) -> int:
        """The first bit above both fields."""
        return self.base + abs(self.shift) + self.bits

    def __call__(self, index: int) -> int:
        """The index with the one field changed by the other."""
        low = ((1 << self.bits) - 1) << self.base
        return index ^ ((index >> self.shift) & low if self.shift > 0 else (index & low) << -self.shift)

    def __repr__(self) -> str:
        return f"SwizzleStage({self.bits}, {self.base}, {self.shift})"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Swizzle(IndexMap):
    """The ordinal of every coordinate with its bits mixed by the stages, first stage first: a bijection.

    Errors: TypeError for what is no Shape or SwizzleStage; ValueError for a size that is no power of two, or
    a stage with a field outside of the bits of an ordinal.

    >>> from strideweave.layout import Shape, Swizzle, SwizzleStage
    >>> s = Swizzle(Shape(4, 4), SwizzleStage(2, 0, 2))
    >>> [[s((i, j)) for i in range(4)] for j in range(4)]
    [[0, 1, 2, 3], [5, 4, 7, 6], [10, 11, 8, 9], [15, 14, 13, 12]]
    >>> s.compose(s)
    Swizzle(Shape(4, 4))
    """

    shape: Shape
    """The coordinates that the map takes; their count is a power of two."""
    stages: tuple[SwizzleStage, ...]
    """The stages, the one applied first first."""

    def __init__(self, shape: Shape, *stages: SwizzleStage) -> None:
        if not isinstance(shape, Shape):
            raise TypeError(f"cannot swizzle {shape!r}: the first argument is a Shape. Pass one.")
        if shape.size.bit_count() != 1:
            raise ValueError(
                f"cannot swizzle {shape}: it has {shape.size} coordinates, and bits mix only where their number is a "
                "power of two. Pad the shape."
            )
        width = shape.size.bit_length() - 1
        for stage in stages:
            if not isinstance(stage, SwizzleStage):
                raise TypeError(f"cannot swizzle {shape} by {stage!r}: a stage is a SwizzleStage. Pass one.")
            if stage.end > width:
                raise ValueError(
                    f"cannot swizzle {shape} by {stage!r}: its fields end at bit {stage.end}, an ordinal has {width}. "
                    "All fields lie inside the ordinal's bits. Use a lower base or a shorter shift."
                )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stages", stages)

    @property
    def codomain_size(self) -> int:
        """The size: every index below it is reached."""
        return self.shape.size

    @property
    def is_injective(self) -> bool:
        """True."""
        return True

    @property
    def is_identity(self) -> bool:
        """Whether no stage is left once equal neighbours are cancelled."""
        return not _cancelled(self.stages)

    def index(self, key: object) -> int:
        """The mixed ordinal of a key. Errors: as for `Shape.encode`."""
        index = self.shape.encode(key)
        for stage in self.stages:
            index = stage(index)
        return index

    def compose(self, inner: IndexMap, /) -> IndexMap:
        """`inner` first, then this one: a Swizzle if `inner` is one of the same size; equal neighbours cancel."""
        if not isinstance(inner, Swizzle) or inner.size != self.size:
            return compose_maps(self, inner)
        kept = unchanged(self, inner)
        if kept is not None:
            return kept
        return Swizzle(inner.shape, *_cancelled(inner.stages + self.stages))

    def __repr__(self) -> str:
        return f"Swizzle({', '.join(map(repr, (self.shape, *self.stages)))})"


def _cancelled(stages: tuple[SwizzleStage, ...]) -> tuple[SwizzleStage, ...]:
    """The same function without equal neighbours: a stage undoes itself."""
    left: list[SwizzleStage] = []
    for stage in stages:
        if left and left[-1] == stage:
            left.pop()
        else:
            left.append(stage)
    return tuple(left)
