"""Seed 000, requirement: Residency requests use arbitrary immutable tile sets."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strideweave import ResidencyPlan, TileSelection, TileSet
from support.tiled import locations, matrix, situation

A, B = TileSet([(0, 1)]), TileSet([(1, 0)])


class TestResidencyRequestsUseArbitraryImmutableTileSets:
    def test_represent_a_non_product_cache_set(self) -> None:
        wanted = TileSet([(0, 0), (0, 1), (1, 0)])
        assert wanted.coordinates == ((0, 0), (1, 0), (0, 1))
        carrier, _, _ = matrix()
        carrier.evict(TileSet([(1, 1)]))
        assert carrier.primary_tiles == wanted

    @given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))))
    def test_coordinates_are_sorted_by_their_reverse(self, tiles: set[tuple[int, int, int]]) -> None:
        assert TileSet(tiles).coordinates == tuple(sorted(tiles, key=lambda t: t[::-1]))
        assert TileSet(reversed(list(tiles))) == TileSet(tiles)
        assert len(TileSet(tiles)) == len(tiles)
        assert all(tile in TileSet(tiles) for tile in tiles)

    @pytest.mark.parametrize(
        ("coordinates", "words"),
        [
            (5, "coordinates must be a finite iterable"),
            ("ab", "coordinates must be a finite iterable"),
            ([5], r"coordinates\[0\] must be a finite iterable"),
            ([(0, 0), None], r"coordinates\[1\] must be a finite iterable"),
            ([(0, 1.0)], "components must be integers"),
            ([(0, False)], "components must be integers"),
            ([(0, "1")], "components must be integers"),
        ],
    )
    def test_wrong_type_is_refused(self, coordinates: object, words: str) -> None:
        with pytest.raises(TypeError, match=words):
            TileSet(coordinates)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("coordinates", "words"),
        [
            ([(0, 0), (0,)], "same rank"),
            ([(0, -1)], "non-negative"),
            ([(0, 1), (1, 0), (0, 1)], "duplicate"),
        ],
    )
    def test_wrong_value_is_refused(self, coordinates: list[tuple[int, ...]], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            TileSet(coordinates)

    def test_type_comes_before_value(self) -> None:
        with pytest.raises(TypeError):
            TileSet([(-1, 0), (-1, 0), (0,), (0.5,)])  # type: ignore[list-item]

    def test_empty_set_is_valid_on_any_grid(self) -> None:
        assert TileSet().coordinates == ()
        assert TileSet([]) == TileSet()
        carrier, _, _ = matrix()
        before = situation(carrier)
        assert carrier.promote(TileSet()) is None
        assert carrier.evict(TileSet()) is None
        assert situation(carrier) == before

    def test_set_is_an_immutable_value(self) -> None:
        source = [[0, 1]]
        wanted = TileSet(source)
        source[0][0] = 7
        source.append([3, 3])
        assert wanted.coordinates == ((0, 1),)
        assert wanted == A
        assert hash(wanted) == hash(A)
        with pytest.raises(FrozenInstanceError):
            wanted.coordinates = ()  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("tile", "words"), [((0,), "rank"), ((0, 0, 0), "rank"), ((), "rank"), ((2, 0), "outside"), ((0, 2), "outside")]
    )
    def test_binding_to_a_grid_it_does_not_fit_is_refused(self, tile: tuple[int, ...], words: str) -> None:
        carrier, _, _ = matrix()
        before = situation(carrier)
        for request in (carrier.promote_async, carrier.evict_async, carrier.promote, carrier.evict, carrier.stream):
            with pytest.raises(ValueError, match=words):
                request(TileSet([tile]))
        with pytest.raises(ValueError, match=words), carrier.borrow(TileSet([tile])):
            pass
        with pytest.raises(ValueError, match=words):
            carrier.tile_state(tile)
        assert situation(carrier) == before

    def test_selection_is_accepted_as_its_tile_set(self) -> None:
        carrier, _, _ = matrix()
        carrier.evict(TileSelection([[1, 0], [0]]))
        assert locations(carrier) == {(0, 0): "secondary", (1, 0): "secondary", (0, 1): "primary", (1, 1): "primary"}

    def test_plan_exposes_three_tile_sets(self) -> None:
        plan = ResidencyPlan(A, evict=B)
        assert plan.promote is A
        assert plan.retain == TileSet()
        assert plan.evict is B
        assert ResidencyPlan() == ResidencyPlan(None, None, None) == ResidencyPlan(TileSet(), TileSet(), TileSet())

    @pytest.mark.parametrize("field", ["promote", "retain", "evict"])
    @pytest.mark.parametrize("value", [[(0, 1)], (), TileSelection([[0], [1]]), 0])
    def test_plan_of_another_type_is_refused(self, field: str, value: object) -> None:
        with pytest.raises(TypeError, match=f"{field} must be a TileSet"):
            ResidencyPlan(**{field: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "fields", [{"promote": A, "retain": A}, {"promote": A, "evict": A}, {"retain": A, "evict": A}]
    )
    def test_plan_with_a_tile_in_two_fields_is_refused(self, fields: dict[str, TileSet]) -> None:
        with pytest.raises(ValueError, match="must be disjoint"):
            ResidencyPlan(**fields)

    def test_plan_type_comes_before_value(self) -> None:
        with pytest.raises(TypeError):
            ResidencyPlan(A, A, 3)  # type: ignore[arg-type]

    def test_plan_is_an_immutable_value(self) -> None:
        assert ResidencyPlan(A) == ResidencyPlan(TileSet([(0, 1)]))
        assert hash(ResidencyPlan(A)) == hash(ResidencyPlan(TileSet([(0, 1)])))
        with pytest.raises(FrozenInstanceError):
            ResidencyPlan().promote = A  # type: ignore[misc]
