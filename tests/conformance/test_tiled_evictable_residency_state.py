"""Seed 000, requirement: Residency state is independent of executable selection shape."""

from __future__ import annotations

import pytest
import torch

from strideweave import CPU, FileBacked, Layout, Tensor, TiledEvictable, TileSelection, TileSet, TileState
from support.tiled import coordinates, every_tile, experts, locations, matrix, situation, tiles


class TestResidencyStateIsIndependentOfExecutableSelectionShape:
    def test_cache_unrelated_tiles(self) -> None:
        carrier, tensor, dense = matrix()
        carrier.evict(every_tile(carrier))
        odd = TileSet([(0, 0), (1, 0), (0, 1)])
        carrier.promote(odd)
        assert carrier.primary_tiles == odd
        assert carrier.secondary_tiles == TileSet([(1, 1)])
        assert torch.equal(
            carrier.project(tensor, TileSelection([[1, 0], [1, 0]])).wait().torch()[:2, :2], dense[2:, 2:]
        )

    def test_state_names_location_validity_and_dirt(self) -> None:
        carrier, _, _ = matrix()
        assert carrier.tile_state((1, 0)) == TileState("primary", valid=True, dirty=False)
        carrier[2] = 9.0
        assert carrier.tile_state((1, 0)) == TileState("primary", valid=True, dirty=True)
        assert carrier.dirty_tiles == TileSet([(1, 0)])
        carrier.evict(TileSet([(1, 0)]))
        assert carrier.tile_state((1, 0)) == TileState("secondary", valid=True, dirty=False)
        assert carrier.dirty_tiles == TileSet()
        assert carrier.valid_tiles == every_tile(carrier)

    def test_state_of_no_coordinate_is_refused(self) -> None:
        carrier, _, _ = matrix()
        for wrong in (3, None, "ab", (0, 0.5)):
            with pytest.raises(TypeError):
                carrier.tile_state(wrong)  # type: ignore[arg-type]
        for wrong_value in ((0, -1), (0,), (2, 0)):
            with pytest.raises(ValueError):
                carrier.tile_state(wrong_value)

    def test_promotion_keeps_the_clean_copy_so_that_eviction_writes_nothing(self) -> None:
        carrier, _, _, secondary = experts()
        carrier.promote(every_tile(carrier))
        carrier.evict(every_tile(carrier))
        assert secondary.writes == 0
        assert carrier.statistics().bytes_written == 0
        assert carrier.statistics().evictions == 4

    def test_read_through_promotes_nothing(self) -> None:
        carrier, _, dense, _ = experts()
        assert carrier[7] == dense.reshape(-1)[7]
        assert carrier.primary_tiles == TileSet()

    def test_write_promotes_dirties_and_counts_once(self) -> None:
        carrier, weight, dense, _ = experts()
        weight[3, 1, 2] = -5.0
        assert weight.version == 1
        assert carrier.primary_tiles == carrier.dirty_tiles == tiles(3)
        expected = dense.clone()
        expected[3, 1, 2] = -5.0
        assert torch.equal(weight.materialize().torch(), expected)

    @pytest.mark.parametrize("value", ["a", None])
    def test_failed_write_changes_nothing_visible(self, value: object) -> None:
        carrier, weight, dense, _ = experts()
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            weight[3, 1, 2] = value  # type: ignore[assignment]
        assert carrier.version == 0
        assert carrier.dirty_tiles == TileSet()
        assert carrier.statistics().pinned_tiles == 0
        assert torch.equal(weight.materialize().torch(), dense)

    @pytest.mark.parametrize("index", [-1, 24, 10**9])
    def test_slot_outside_is_refused(self, index: int) -> None:
        carrier, *_ = experts()
        before = situation(carrier)
        with pytest.raises(IndexError):
            carrier[index]
        with pytest.raises(IndexError):
            carrier[index] = 1.0
        with pytest.raises(TypeError):
            carrier[1.5]  # type: ignore[index]
        assert situation(carrier) == before


class TestInvalidTilesAreNotReadable:
    def test_every_way_to_read_is_refused_and_nothing_changes(self) -> None:
        carrier = TiledEvictable(CPU(0), FileBacked(), (2, 2), (2, 2))
        tensor = Tensor(carrier, 0, Layout.column_major(4, 4))
        before = situation(carrier)
        one = TileSet([(1, 1)])
        with pytest.raises(RuntimeError, match="invalid"):
            carrier.project(tensor, TileSelection([[1], [1]]))
        with pytest.raises(RuntimeError, match="invalid"):
            carrier.promote(one)
        with pytest.raises(RuntimeError, match="invalid"), carrier.borrow(one):
            pass
        with pytest.raises(RuntimeError, match="invalid"):
            carrier.stream(one)
        with pytest.raises(RuntimeError, match="initialization"):
            carrier[3]
        with pytest.raises(RuntimeError, match="initialization"):
            carrier[3] = 1.0
        with pytest.raises(RuntimeError, match="invalid"):
            tensor.materialize()
        assert situation(carrier) == before

    def test_evicting_an_invalid_tile_is_already_satisfied(self) -> None:
        carrier = TiledEvictable(CPU(0), FileBacked(), (2,), (2,))
        before = situation(carrier)
        carrier.evict(every_tile(carrier))
        assert situation(carrier) == before

    def test_empty_allocation_is_invalid(self) -> None:
        carrier, _, _ = matrix()
        fresh = carrier.allocate_like(16, empty=True)
        assert set(locations(fresh).values()) == {"invalid"}


class TestImplicitTilesAreZero:
    def test_implicit_tiles_are_valid_zeros_in_no_tier(self) -> None:
        carrier, _, _ = matrix()
        fresh = carrier.allocate_like(16)
        assert {fresh.tile_state(c) for c in coordinates(fresh)} == {TileState("implicit", valid=True, dirty=False)}
        assert fresh[5] == 0.0
        assert fresh.statistics().resident_tiles == 0

    def test_promotion_makes_an_implicit_zero_primary_without_reading(self) -> None:
        carrier, _, _ = matrix()
        fresh = carrier.allocate_like(16)
        fresh.promote(TileSet([(1, 0)]))
        assert fresh.tile_state((1, 0)) == TileState("primary", valid=True, dirty=False)
        assert fresh.statistics().bytes_read == 0
        fresh.evict(TileSet([(1, 0)]))
        assert fresh.tile_state((1, 0)).location == "implicit"
        assert fresh.statistics().bytes_written == 0

    @pytest.mark.parametrize("budget", [None, 16])
    def test_projection_of_implicit_tiles_is_zero(self, budget: int | None) -> None:
        source = TiledEvictable(CPU(0), FileBacked(size=16), (2, 2), (2, 2), budget=budget)
        fresh = source.allocate_like(16)
        fresh[15] = 4.0
        result = fresh.project(Tensor(fresh, 0, Layout.column_major(4, 4)), TileSelection([[0, 1], [0, 1]])).wait()
        assert result.torch().sum() == 4.0
        assert result[15] == 4.0
        assert fresh.statistics().resident_tiles <= fresh.statistics().slots

    def test_written_implicit_tile_survives_eviction(self) -> None:
        carrier, _, _ = matrix()
        fresh = carrier.allocate_like(16)
        fresh[0] = 3.0
        fresh.evict(every_tile(fresh))
        assert fresh.tile_state((0, 0)).location == "secondary"
        assert [fresh[k] for k in range(16)] == [3.0] + [0.0] * 15

    def test_new_like_holds_values_and_zeros_for_none(self) -> None:
        carrier, _, _ = matrix()
        fresh = carrier.new_like([None, 2.0] * 8)
        assert [fresh[k] for k in range(16)] == [0.0, 2.0] * 8
        assert fresh.grid_shape == carrier.grid_shape

    def test_other_extents_are_refused(self) -> None:
        carrier, _, _ = matrix()
        for size in (0, 15, 17):
            with pytest.raises(ValueError, match="16"):
                carrier.allocate_like(size)
        for wrong in (16.0, True, None):
            with pytest.raises(TypeError, match="integer"):
                carrier.allocate_like(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="16"):
            carrier.new_like([1.0])
