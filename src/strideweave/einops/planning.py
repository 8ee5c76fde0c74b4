"""What a description means for given shapes: which leaves stay, which are reduced, and in which order they come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from strideweave.einops.binding import Bound, assembled, bound, leaves_of, require_sizes, split_layout, split_shape
from strideweave.einops.references import LayoutReference
from strideweave.einops.specs import EinsumSpec, RearrangeSpec, ReduceSpec
from strideweave.layout import Layout, Shape
from strideweave.layout.nested import Level

Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""The sizes given by keyword, checked, as part of the key of a cache."""

_CACHED = 1024
"""How many plans of each kind are kept: a program has a few per description, one for each shape that it meets."""


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """A reduction by leaf numbers, which count the leaves of `source`, first mode first.

    >>> from strideweave.einops import parse_reduce, plan_reduce
    >>> from strideweave.layout import Shape
    >>> plan_reduce(parse_reduce("a b -> b"), Shape(2, 3))
    ReducePlan(source=Shape(2, 3), reduced=(0,), kept=(1,), shape=Shape(3))
    """

    source: Shape
    """The operand's shape with the leaves split that the description groups: equal to it when none are."""
    reduced: tuple[int, ...]
    """The leaves to reduce, ascending."""
    kept: tuple[int | None, ...]
    """For every leaf of the result the leaf that it was; None for a literal 1."""
    shape: Shape
    """The shape of the result."""


@dataclass(frozen=True, slots=True)
class EinsumPlan:
    """Products and sums by labels: leaves with equal labels run together, and a label that is not put out is summed.

    >>> from strideweave.einops import parse_einsum, plan_einsum
    >>> from strideweave.layout import Shape
    >>> plan = plan_einsum(parse_einsum("a (b c), c -> a"), [Shape(2, (3, 4)), Shape(4)])
    >>> plan.leaves_of(0, "c"), plan.contracted, plan.summed
    ((2,), ('c',), ('b',))
    """

    sources: tuple[Shape, ...]
    """Every operand's shape with the leaves split that the description groups: equal to it when none are."""
    labels: tuple[tuple[int, ...], ...]
    """For every operand, the label of each of its leaves."""
    output: tuple[int | None, ...]
    """For every leaf of the result its label; None for a literal 1."""
    symbols: tuple[tuple[str, tuple[int, ...]], ...]
    """The labels of every symbol, in the order in which the symbols first stand."""
    extents: tuple[int, ...]
    """The extent of every label."""
    batch: tuple[str, ...]
    """The symbols that several operands and the result have."""
    contracted: tuple[str, ...]
    """The symbols that several operands have and the result omits."""
    free: tuple[str, ...]
    """The symbols that one operand and the result have."""
    summed: tuple[str, ...]
    """The symbols that one operand has and the result omits."""
    shape: Shape
    """The shape of the result."""

    def leaves_of(self, operand: int, symbol: str) -> tuple[int, ...]:
        """The leaves of one operand that a symbol stands for; none where it does not have the symbol."""
        wanted = dict(self.symbols)[symbol]
        return tuple(leaf for leaf, label in enumerate(self.labels[operand]) if label in wanted)


def split_modes(layout: Layout, reference: LayoutReference, /, **sizes: int) -> Layout:
    """The layout nested like the reference: a leaf in the place of a group is split, first item fastest.

    Every ordinal reaches the same index; the same object when nothing is split. Its shape is the `source` of a plan.
    Errors: as for `rearranged`.

    >>> from strideweave.einops import parse_layout_ref, split_modes
    >>> from strideweave.layout import Layout
    >>> print(split_modes(Layout.row_major(8, 3), parse_layout_ref("(h d) b"), h=4))
    ((4,2),3):((3,12),1)
    """
    asked = f"cannot split {layout} like '{reference}'"
    require_sizes(asked, sizes, reference.symbols)
    return split_layout(asked, reference, layout, sizes)


def rearranged(layout: Layout, spec: RearrangeSpec, /, **sizes: int) -> Layout:
    """The layout with the modes that the description names, in its order and nesting: a view, nothing moves.

    A symbol takes a mode whole, a group of the input names the modes of a nested one, a group of the output makes a
    nested mode, and a 1 drops or adds a mode of one coordinate. A group that stands for a leaf splits it by the sizes
    given; one size may be left out. **The first symbol of a group varies fastest**, here as wherever ordinals are
    counted; in einops it is the last one, so `"(h d) -> h d"` there is `"(d h) -> h d"` here.
    Errors: TypeError for a size that is no int; ValueError for a layout with other modes, or sizes that do not fit.

    >>> from strideweave.einops import parse_rearrange, rearranged
    >>> from strideweave.layout import Layout
    >>> print(rearranged(Layout.row_major(8, 3), parse_rearrange("(h d) b -> h (d b) 1"), h=4))
    (4,(2,3),1):(3,(12,1),0)
    """
    asked = f"cannot rearrange {layout} by '{spec}'"
    require_sizes(asked, sizes, spec.input.symbols)
    source = split_layout(asked, spec.input, layout, sizes)
    modes = bound(spec.input, source.shape)
    strides = _strides(spec.input, source.stride._items)
    extents: Mapping[str, int | Level] = {symbol: mode.extent for symbol, mode in modes.items()}
    made = Layout._of(assembled(spec.output, extents, 1), assembled(spec.output, strides, 0))
    return layout if made == layout else made


def plan_reduce(spec: ReduceSpec, shape: Shape, /, **sizes: int) -> ReducePlan:
    """The plan of a reduction over an operand of this shape. Groups and sizes mean what they mean in `rearranged`.

    The same object for the same arguments, as long as it is cached. Errors: as for `rearranged`.

    >>> from strideweave.einops import parse_reduce, plan_reduce
    >>> from strideweave.layout import Shape
    >>> plan = plan_reduce(parse_reduce("a (b c) -> c 1 a"), Shape(2, (3, 4)))
    >>> plan.reduced, plan.kept, plan.shape
    ((1,), (2, None, 0), Shape(4, 1, 2))
    """
    if sizes:
        require_sizes(f"cannot reduce {shape} by '{spec}'", sizes, spec.input.symbols)
    return _plan_reduce(spec, shape, tuple(sizes.items()))


@lru_cache(maxsize=_CACHED)
def _plan_reduce(spec: ReduceSpec, shape: Shape, sizes: Sizes) -> ReducePlan:
    asked = f"cannot reduce {shape} by '{spec}'"
    source = split_shape(asked, spec.input, shape, dict(sizes))
    modes = bound(spec.input, source)
    made = Shape._of(assembled(spec.output, {symbol: mode.extent for symbol, mode in modes.items()}, 1))
    kept = _put_out(spec.output, {symbol: tuple(mode.leaves) for symbol, mode in modes.items()})
    reduced = tuple(leaf for leaf in range(len(source.leaves())) if leaf not in kept)
    return ReducePlan(source, reduced, kept, made)


def plan_einsum(spec: EinsumSpec, shapes: Sequence[Shape], /, **sizes: int) -> EinsumPlan:
    """The plan of products and sums over operands of these shapes.

    Groups and sizes mean what they mean in `rearranged`. Errors: as for `rearranged`; ValueError for another number of
    operands, or a symbol with two sizes.

    >>> from strideweave.einops import parse_einsum, plan_einsum
    >>> from strideweave.layout import Shape
    >>> plan = plan_einsum(parse_einsum("b i k, b k j -> b i j"), [Shape(2, 3, 4), Shape(2, 4, 5)])
    >>> plan.labels, plan.output, plan.shape
    (((0, 1, 2), (0, 2, 3)), (0, 1, 3), Shape(2, 3, 5))
    """
    if sizes:
        require_sizes(f"cannot einsum {', '.join(map(str, shapes))} by '{spec}'", sizes, spec.symbols)
    return _plan_einsum(spec, tuple(shapes), tuple(sizes.items()))


@lru_cache(maxsize=_CACHED)
def _plan_einsum(spec: EinsumSpec, shapes: tuple[Shape, ...], sizes: Sizes) -> EinsumPlan:
    asked = f"cannot einsum {', '.join(map(str, shapes))} by '{spec}'"
    if len(shapes) != len(spec.operands):
        raise ValueError(
            f"{asked}: it describes {len(spec.operands)} operands, and there are {len(shapes)}. Every operand has its "
            "modes between commas. Pass as many."
        )
    sources = tuple(
        split_shape(asked, reference, shape, {s: n for s, n in sizes if s in reference.symbols})
        for reference, shape in zip(spec.operands, shapes, strict=True)
    )
    operands = [bound(reference, source) for reference, source in zip(spec.operands, sources, strict=True)]
    modes = _agreed(asked, operands)
    extents: list[int] = []
    symbols: dict[str, tuple[int, ...]] = {}
    for symbol in spec.symbols:
        leaves = leaves_of(modes[symbol].extent)
        symbols[symbol] = tuple(range(len(extents), len(extents) + len(leaves)))
        extents += leaves
    labels: list[tuple[int, ...]] = []
    for source, operand in zip(sources, operands, strict=True):
        of_leaf = {
            leaf: label for s, mode in operand.items() for leaf, label in zip(mode.leaves, symbols[s], strict=True)
        }
        own: list[int] = []
        for leaf, extent in enumerate(source.leaves()):
            if leaf not in of_leaf:  # a literal 1: a label of its own, that nobody puts out
                of_leaf[leaf] = len(extents)
                extents.append(extent)
            own.append(of_leaf[leaf])
        labels.append(tuple(own))
    return EinsumPlan(
        sources=sources,
        labels=tuple(labels),
        output=_put_out(spec.output, symbols),
        symbols=tuple(symbols.items()),
        extents=tuple(extents),
        batch=spec.batch,
        contracted=spec.contracted,
        free=spec.free,
        summed=spec.summed,
        shape=Shape._of(assembled(spec.output, {symbol: mode.extent for symbol, mode in modes.items()}, 1)),
    )


def _agreed(asked: str, operands: list[dict[str, Bound]]) -> dict[str, Bound]:
    """What every symbol stands for in the first operand that has it. Errors: ValueError where another differs."""
    first: dict[str, tuple[int, Bound]] = {}
    for number, operand in enumerate(operands):
        for symbol, mode in operand.items():
            before, known = first.setdefault(symbol, (number, mode))
            if mode.size != known.size:
                raise ValueError(
                    f"{asked}: symbol {symbol!r} has size {known.size} in operand {before} and {mode.size} in operand "
                    f"{number}. A symbol has one size. Use another symbol, or broadcast."
                )
            if leaves_of(mode.extent) != leaves_of(known.extent):
                raise ValueError(
                    f"{asked}: symbol {symbol!r} has leaves {leaves_of(known.extent)} in operand {before} and "
                    f"{leaves_of(mode.extent)} in operand {number}. A symbol has the same leaves everywhere. Write "
                    "it as a group with sizes, which splits the leaf."
                )
    return {symbol: mode for symbol, (_, mode) in first.items()}


def _strides(reference: LayoutReference, strides: Level) -> dict[str, int | Level]:
    found: dict[str, int | Level] = {}
    for item, stride in zip(reference.items, strides, strict=True):
        if isinstance(item, str):
            found[item] = stride
        elif isinstance(item, LayoutReference) and not isinstance(stride, int):
            found.update(_strides(item, stride))
    return found


def _put_out(reference: LayoutReference, leaves: Mapping[str, tuple[int, ...]]) -> tuple[int | None, ...]:
    """The leaves that the result is made of, in its order; None for a literal 1."""
    out: list[int | None] = []
    for item in reference.items:
        if isinstance(item, LayoutReference):
            out += _put_out(item, leaves)
        elif isinstance(item, str):
            out += leaves[item]
        else:
            out.append(None)
    return tuple(out)
