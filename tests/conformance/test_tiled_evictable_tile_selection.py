"""Seed 000, requirement: TileSelection is an ordered Cartesian product."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strideweave import Shape, TileSelection, TileSet
from support.tiled import experts, matrix, situation


class TestTileSelectionIsAnOrderedCartesianProduct:
    def test_select_three_experts_in_router_order(self) -> None:
        selection = TileSelection([[2, 7, 19], [0], [0]])
        assert selection.coordinates == ((2, 0, 0), (7, 0, 0), (19, 0, 0))
        assert selection.compact_grid_shape == (3, 1, 1)

    def test_include_every_recombined_corner(self) -> None:
        assert set(TileSelection([[0, 1], [0, 1]]).coordinates) == {(0, 0), (0, 1), (1, 0), (1, 1)}

    def test_enumerate_a_multi_axis_selection_first_mode_fastest(self) -> None:
        assert TileSelection([[7, 2], [4, 9]]).coordinates == ((7, 4), (2, 4), (7, 9), (2, 9))

    @given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), min_size=1, max_size=4))
    def test_coordinates_are_what_shape_decode_says(self, per_axis: list[list[int]]) -> None:
        selection = TileSelection(per_axis)
        shape = Shape(*selection.compact_grid_shape)
        decoded = [shape.decode(k) for k in range(shape.size)]
        flat = [c if isinstance(c, tuple) else (c,) for c in decoded]
        assert selection.coordinates == tuple(tuple(per_axis[i][c[i]] for i in range(selection.rank)) for c in flat)
        assert selection.rank == len(per_axis)
        assert selection.per_axis == tuple(map(tuple, per_axis))
        assert selection.compact_grid_shape == tuple(map(len, per_axis))

    def test_iterables_are_consumed_once_and_kept_in_order(self) -> None:
        def axes() -> Iterator[Iterator[int]]:
            yield iter([3, 1])
            yield iter([2])

        selection = TileSelection(axes())
        assert selection.per_axis == ((3, 1), (2,))
        assert selection.coordinates == ((3, 2), (1, 2))

    def test_selection_is_immutable_and_keeps_nothing_of_its_input(self) -> None:
        axis = [2, 0]
        selection = TileSelection([axis])
        axis[0] = 9
        assert selection.per_axis == ((2, 0),)
        with pytest.raises(FrozenInstanceError):
            selection.per_axis = ((1,),)  # type: ignore[misc]

    def test_selection_is_a_value(self) -> None:
        assert TileSelection([[2, 7], [4]]) == TileSelection(((2, 7), (4,)))
        assert hash(TileSelection([[2, 7], [4]])) == hash(TileSelection(((2, 7), (4,))))
        assert TileSelection([[2, 7]]) != TileSelection([[7, 2]])
        assert repr(TileSelection([[2, 7], [4]])) == "TileSelection(per_axis=((2, 7), (4,)))"

    def test_numpy_integers_are_integers(self) -> None:
        chosen = TileSelection([np.array([2, 0])]).per_axis
        assert chosen == ((2, 0),)
        assert type(chosen[0][0]) is int

    @pytest.mark.parametrize(
        ("per_axis", "words"),
        [
            (3, "per_axis must be a finite iterable"),
            (None, "per_axis must be a finite iterable"),
            ("12", "per_axis must be a finite iterable"),
            ([3], r"per_axis\[0\] must be a finite iterable"),
            ([[0], None], r"per_axis\[1\] must be a finite iterable"),
            ([[0], "1"], r"per_axis\[1\] must be a finite iterable"),
            ([[True]], "tile coordinates must be integers"),
            ([[1.0]], "tile coordinates must be integers"),
            ([["1"]], "tile coordinates must be integers"),
            ([[np.float32(1)]], "tile coordinates must be integers"),
        ],
    )
    def test_wrong_type_is_refused(self, per_axis: object, words: str) -> None:
        with pytest.raises(TypeError, match=words):
            TileSelection(per_axis)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("per_axis", "words"),
        [
            ([], "no axes"),
            ([[0], []], r"per_axis\[1\] empty"),
            ([[0, -1]], "non-negative"),
            ([[0], [4, 2, 4]], "duplicate"),
        ],
    )
    def test_wrong_value_is_refused(self, per_axis: list[list[int]], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            TileSelection(per_axis)

    def test_type_comes_before_value(self) -> None:
        with pytest.raises(TypeError):
            TileSelection([[], [-1, -1], [1.5]])  # type: ignore[list-item]

    @pytest.mark.parametrize(
        ("per_axis", "words"),
        [([[0]], "rank"), ([[0], [0], [0]], "rank"), ([[0], [2]], "outside"), ([[2], [0]], "outside")],
    )
    def test_binding_to_a_grid_it_does_not_fit_is_refused(self, per_axis: list[list[int]], words: str) -> None:
        carrier, tensor, _ = matrix()
        before = situation(carrier)
        selection = TileSelection(per_axis)
        for request in (
            lambda: carrier.project(tensor, selection),
            lambda: carrier.promote(selection),
            lambda: carrier.evict(selection),
            lambda: carrier.stream(selection),
            lambda: carrier.borrow(selection).__enter__(),
        ):
            with pytest.raises(ValueError, match=words):
                request()
        assert situation(carrier) == before

    def test_tile_set_holds_its_coordinates(self) -> None:
        selection = TileSelection([[7, 2], [4, 9]])
        assert selection.tile_set == TileSet(selection.coordinates)

    def test_no_index_map_and_no_sparse_constructor_is_public(self) -> None:
        public = {name for name in dir(TileSelection([[0]])) if not name.startswith("_")}
        assert public == {"compact_grid_shape", "coordinates", "per_axis", "rank", "tile_set"}
        assert list(inspect.signature(TileSelection).parameters) == ["per_axis"]

    def test_selection_takes_tiles_from_the_named_axis(self) -> None:
        carrier, weight, dense, _ = experts(4)
        picked = carrier.project(weight, TileSelection([[2, 0], [0], [0]])).wait().torch()
        assert picked.tolist() == dense[[2, 0]].tolist()
