"""Facts, section a: layouts. What the unit tests say already is named here and not said twice.

    Shape, Stride                 unit/layout/test_shape.py
    Layout, injectivity           unit/layout/test_layout.py
    compose, complement, divide   unit/layout/test_algebra.py, property/test_layout_algebra.py
    Tree, Node, rearrange         unit/layout/test_tree.py
    broadcast_to, preimages       unit/layout/test_sections.py
    IndexMap and its kinds        unit/layout/test_index_maps.py

Decided otherwise in `tensors.md` and the issue: `repr` pastes back, and `compose` of Layouts raises where it is no
Layout, naming a tile that fits.
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_origin

import pytest

import strideweave as sw
from strideweave import layout as layouts
from strideweave.layout import (
    IndexMap,
    Layout,
    Permutation,
    Product,
    Shape,
    Stride,
    Swizzle,
    SwizzleStage,
    Tree,
)

A = Layout(Shape(4, (2, 3)), Stride(1, (4, 8)))
TILE = Layout.leaf(2, 1)

STATICS: dict[str, tuple[Any, ...]] = {
    "append": (A, TILE),
    "broadcast_to": (Layout.leaf(1, 1), Shape(5)),
    "choose": (A, 2),
    "coalesce": (A,),
    "coalesce_by_mode": (A, Tree(0, 1)),
    "complement": (TILE, 24),
    "compose": (A, TILE),
    "concat": (A, TILE),
    "divide": (A, TILE),
    "divide_tiler": (A, [TILE]),
    "extract_profile": (A, None),
    "flatten_layout": (A,),
    "modout": (A, 2),
    "permute": (A, 1, 0),
    "rearrange": (A, Tree(1, 2, 0)),
    "reverse_rearrange": (Tree(1, 0), Tree(0, 1)),
    "uniform_preimage_extent": (A, Shape(24)),
    "zipped_divide": (A, [TILE]),
}


@pytest.mark.parametrize("name", STATICS)
def test_every_part_of_the_algebra_is_reached_through_the_class(name: str) -> None:
    assert getattr(Layout, name)(*STATICS[name]) == getattr(layouts, name)(*STATICS[name])


def test_tiler_is_a_sequence_of_layouts() -> None:
    assert (get_origin(sw.Tiler), get_args(sw.Tiler)) == (collections.abc.Sequence, (Layout,))


def test_division_is_composition_with_the_tile_and_its_complement() -> None:
    a, tile = Layout(Shape(4, 2, 3), Stride(2, 1, 8)), Layout.leaf(4, 2)
    assert a.divide(tile) == a.compose(Layout.make_layout(tile, tile.complement(a.size)))


def test_a_plus_what_is_no_layout_is_refused() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        A + 3


@pytest.mark.parametrize(
    "made",
    [
        lambda: Stride(True),
        lambda: Layout.leaf(2, False),
        lambda: A[True],
        lambda: A.choose(True),
        lambda: A.modout(True),
        lambda: TILE.complement(True),
        lambda: Shape(2, 3).encode((True, 0)),
    ],
    ids=["stride", "leaf", "mode", "choose", "modout", "complement", "nested coordinate"],
)
def test_a_bool_is_no_integer(made: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        made()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Permutation([], 1.0), "ints"),  # type: ignore[arg-type]
        (lambda: Permutation([-1, "0"], 0), "ints"),  # type: ignore[list-item]
        (lambda: SwizzleStage(0, -1, True), "shift True"),
        (lambda: Swizzle(Shape(8), SwizzleStage(1, 0, 1), 3), "is a SwizzleStage"),  # type: ignore[arg-type]
        (lambda: Permutation([0, 1], 2).compose(Shape(3)), "no IndexMap"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_come_before_wrong_values(made: Callable[[], object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        made()


@pytest.mark.parametrize("kind", [Layout, Permutation, Swizzle, Product])
def test_every_kind_of_map_has_what_an_index_map_has(kind: type[IndexMap]) -> None:
    assert not inspect.isabstract(kind)
    for name in ("shape", "size", "codomain_size", "is_injective", "index", "__call__", "compose"):
        assert hasattr(IndexMap, name)
        assert hasattr(kind, name)


def test_a_chain_is_injective_false_with_its_inner_true_with_all_and_else_unknown() -> None:
    repeats, one_to_one = Layout(Shape(2, 2), Stride(1, 0)), Permutation([1, 0], 2)
    assert one_to_one.compose(repeats).is_injective is False
    assert Layout.leaf(2, 3).compose(one_to_one).is_injective is True
    assert Layout.leaf(4, 0).compose(Permutation([1, 0], 4)).is_injective is None
