"""Seed 000: Project eagerly returns a completion handle, and Gather preserves public TileSelection ordering."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import strideweave
from strideweave import (
    CPU,
    AwaitProjection,
    AwaitResult,
    DType,
    FileBacked,
    Layout,
    Tensor,
    TileSelection,
    TileSet,
)
from strideweave.carriers import tiled_evictable
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, experts, locations, matrix, situation, slots_of, tiles


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


class TestProjectEagerlyReturnsACompletionHandleForACompactTensor:
    def test_overlap_projection_with_computation(self) -> None:
        carrier, weight, dense, secondary = experts()
        with secondary.hold_read() as hold:
            handle = carrier.project(weight, picked(2, 0))
            assert type(handle) is AwaitProjection
            assert not handle.done
            hold.wait_until_reached()
            assert secondary.reads >= 1
            unrelated = (torch.ones(3) * 2).sum().item()
            assert unrelated == 6.0
            assert not handle.done
        assert torch.equal(handle.wait(5).torch(), dense[[2, 0]])
        assert handle.done

    def test_observe_a_completed_projection_repeatedly(self) -> None:
        carrier, weight, _, _ = experts()
        handle = carrier.project(weight, picked(1))
        seen: list[Tensor] = []
        threads = [threading.Thread(target=lambda: seen.append(handle.wait(5))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {id(t) for t in seen} == {id(handle.wait())}

    def test_keep_the_full_tensor_unchanged(self) -> None:
        carrier, weight, dense, _ = experts()
        before = weight.layout, weight.carrier, weight.offset, weight.version, id(weight)
        carrier.project(weight, picked(3, 1, 0)).wait()
        assert (weight.layout, weight.carrier, weight.offset, weight.version, id(weight)) == before
        assert torch.equal(slots_of(carrier), dense.reshape(-1))
        assert carrier.primary_tiles == tiles(0, 1, 3)

    def test_result_is_an_ordinary_dense_tensor_of_the_compute_carrier(self) -> None:
        carrier, weight, _, _ = experts()
        result = carrier.project(weight, picked(3, 1)).wait()
        assert type(result) is Tensor
        assert result.carrier_type() is CPU
        assert result.dtype() is DType.Float32
        assert result.layout.cosize == result.layout.size == 12
        assert result.layout.is_injective
        assert not result.carrier.is_owned()
        assert result.carrier is not carrier.primary
        result[0] = -1.0
        assert carrier[18] != -1.0

    def test_handle_is_no_tensor(self) -> None:
        carrier, weight, _, _ = experts()
        handle = carrier.project(weight, picked(3))
        assert not isinstance(handle, Tensor)
        assert isinstance(handle, AwaitResult)
        with pytest.raises(TypeError, match="takes a Tensor"):
            carrier.project(handle, picked(0))  # type: ignore[arg-type]
        handle.wait()
        with pytest.raises(TypeError, match="created by the framework"):
            AwaitProjection()

    def test_default_destination_is_fresh_each_time(self) -> None:
        carrier, weight, _, _ = experts()
        one, two = (carrier.project(weight, picked(0)).wait() for _ in range(2))
        assert one.carrier is not two.carrier

    def test_project_returns_before_bytes_move_from_primary(self) -> None:
        """Returning costs the tiles, not the bytes: nothing waits even when every lane is busy."""
        carrier, weight, dense, _ = experts()
        carrier.promote(every_tile(carrier))
        blockers, busy = [experts(1) for _ in range(8)], []
        holds = [blocker[3].hold_read() for blocker in blockers]
        try:
            busy = [blocker[0].promote_async(tiles(0)) for blocker in blockers]
            began = time.perf_counter()
            handle = carrier.project(weight, picked(0, 1, 2, 3))
            assert time.perf_counter() - began < 1.0
            assert not handle.done
        finally:
            for hold in holds:
                hold.let_go()
        assert torch.equal(handle.wait(5).torch(), dense)
        for request in busy:
            request.wait(5)

    def test_wait_can_give_up_and_come_back(self) -> None:
        carrier, weight, dense, secondary = experts()
        with secondary.hold_read():
            handle = carrier.project(weight, picked(1))
            with pytest.raises(TimeoutError):
                handle.wait(0.01)
        assert torch.equal(handle.wait(5).torch(), dense[[1]])

    def test_inputs_may_change_after_return(self) -> None:
        carrier, weight, dense, secondary = experts()
        chosen = [[2, 0], [0], [0]]
        with secondary.hold_read():
            handle = carrier.project(weight, TileSelection(chosen))
            chosen[0].reverse()
            chosen.clear()
        assert torch.equal(handle.wait(5).torch(), dense[[2, 0]])

    # -- what is refused, and in which order ---------------------------------------------------------------------

    def test_released_carrier_comes_before_everything(self) -> None:
        carrier, _, _, _ = experts()
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            carrier.project(None, None, 3)  # type: ignore[arg-type]

    def test_tensor_comes_before_selection(self) -> None:
        carrier, _, _, _ = experts()
        other, other_weight, _, _ = experts()
        before, other_before = situation(carrier), situation(other)
        with pytest.raises(TypeError, match="takes a Tensor"):
            carrier.project(torch.ones(4, 2, 3), [[0], [0], [0]])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="backed by this very carrier"):
            carrier.project(other_weight, [[0], [0], [0]])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="backed by this very carrier"):
            carrier.project(Tensor(CPU(24), 0, Layout.row_major(4, 2, 3)), picked(0))
        assert (situation(carrier), situation(other)) == (before, other_before)

    @pytest.mark.parametrize("selection", [TileSet([(0, 0, 0)]), [[0], [0], [0]], None, 3])
    def test_selection_of_another_type_comes_before_destination(self, selection: object) -> None:
        carrier, weight, _, _ = experts()
        before = situation(carrier)
        with pytest.raises(TypeError, match="TileSelection"):
            carrier.project(weight, selection, 3)  # type: ignore[arg-type]
        assert situation(carrier) == before

    @pytest.mark.parametrize(("selection", "words"), [(TileSelection([[0]]), "rank"), (picked(4), "outside")])
    def test_selection_outside_the_grid_comes_before_destination(self, selection: TileSelection, words: str) -> None:
        carrier, weight, _, _ = experts()
        before = situation(carrier)
        with pytest.raises(ValueError, match=words):
            carrier.project(weight, selection, 3)  # type: ignore[arg-type]
        assert situation(carrier) == before

    @pytest.mark.parametrize(
        ("destination", "error", "words"),
        [
            (lambda: 3, TypeError, "must be a Carrier"),
            (lambda: torch.empty(6), TypeError, "must be a Carrier"),
            (lambda: experts()[0], TypeError, "exactly a CPU"),
            (lambda: FileBacked(size=6), TypeError, "exactly a CPU"),
            (lambda: ScriptedCarrier(torch.zeros(6)), TypeError, "exactly a CPU"),
            (lambda: CPU(6, mutable=False), RuntimeError, "not mutable"),
            (lambda: CPU(6, dtype=DType.Float64), TypeError, "dtype must match"),
            (lambda: CPU(5), ValueError, "too small"),
        ],
    )
    def test_unfit_destination_is_refused(self, destination, error: type[Exception], words: str) -> None:  # type: ignore[no-untyped-def]
        carrier, weight, _, _ = experts()
        target = destination()
        before = situation(carrier)
        with pytest.raises(error, match=words):
            carrier.project(weight, picked(1), target)
        assert situation(carrier) == before
        assert not getattr(target, "is_owned", lambda: False)()

    def test_destination_class_comes_before_its_life_before_dtype_before_extent(self) -> None:
        carrier, weight, _, _ = experts()
        released_file, released = FileBacked(size=6), CPU(1, dtype=DType.Int8)
        released_file.release()
        released.release()
        fixed = CPU(1, dtype=DType.Int8, mutable=False)
        with pytest.raises(TypeError, match="exactly a CPU"):
            carrier.project(weight, picked(1), released_file)
        with pytest.raises(RuntimeError, match="released"):
            carrier.project(weight, picked(1), released)
        with pytest.raises(RuntimeError, match="not mutable"):
            carrier.project(weight, picked(1), fixed)
        with pytest.raises(TypeError, match="dtype"):
            carrier.project(weight, picked(1), CPU(1, dtype=DType.Int8))

    def test_owned_destination_is_refused(self) -> None:
        carrier, weight, _, _ = experts()
        before = situation(carrier)
        with pytest.raises(RuntimeError, match="owned"):
            carrier.project(weight, picked(1), carrier.primary)
        assert situation(carrier) == before

    def test_destination_receives_the_values_and_is_owned_meanwhile(self) -> None:
        carrier, weight, dense, secondary = experts()
        target = CPU(20)
        with secondary.hold_read():
            handle = carrier.project(weight, picked(1, 3), target)
            assert target.is_owned()
            with pytest.raises(RuntimeError, match="owned"):
                target[0] = 1.0
            with pytest.raises(RuntimeError, match="owned"):
                target.release()
            with pytest.raises(RuntimeError, match="owned"):
                carrier.project(weight, picked(0), target)
        result = handle.wait(5)
        assert result.carrier is target
        assert not target.is_owned()
        assert torch.equal(result.torch(), dense[[1, 3]])
        target[0] = 1.0

    def test_empty_destination_is_allocated(self) -> None:
        carrier, weight, dense, _ = experts()
        target = CPU(0)
        result = carrier.project(weight, picked(1, 3), target).wait()
        assert result.carrier is target
        assert target.size() == 12
        assert torch.equal(result.torch(), dense[[1, 3]])

    @pytest.mark.parametrize("name", ["AwaitProjection", "AwaitResidency"])
    def test_handle_is_importable_from_both_places(self, name: str) -> None:
        assert getattr(strideweave, name) is getattr(tiled_evictable, name)


class TestGatherPreservesPublicTileSelectionOrdering:
    def test_gather_a_permuted_selection(self) -> None:
        carrier, weight, dense, _ = experts(20)
        result = carrier.project(weight, picked(7, 2, 19)).wait()
        assert torch.equal(result.torch(), dense[[7, 2, 19]])

    def test_gather_a_multi_axis_selection(self) -> None:
        flat = torch.arange(8.0 * 10 * 6)
        carrier = tiled_evictable.TiledEvictable(CPU.wrap(flat), FileBacked(), (8, 10), (2, 3))
        dense = flat.reshape(30, 16).T
        tensor = Tensor(carrier, 0, Layout.column_major(16, 30))
        selection = TileSelection([[7, 2], [4, 9]])
        assert selection.coordinates == ((7, 4), (2, 4), (7, 9), (2, 9))
        compact = carrier.project(tensor, selection).wait().torch()
        assert compact.shape == (4, 6)
        for k, (i, j) in enumerate(selection.coordinates):
            place = compact[k % 2 * 2 : k % 2 * 2 + 2, k // 2 * 3 : k // 2 * 3 + 3]
            assert torch.equal(place, dense[2 * i : 2 * i + 2, 3 * j : 3 * j + 3])

    @pytest.mark.parametrize("budget_tiles", [None, 1, 2])
    @pytest.mark.parametrize("resident", [(), (1,), (0, 1, 2, 3)])
    def test_gather_is_the_same_wherever_the_tiles_are(
        self, budget_tiles: int | None, resident: tuple[int, ...]
    ) -> None:
        carrier, weight, dense, _ = experts(budget_tiles=budget_tiles)
        for k in resident:
            carrier.promote(tiles(k))
        assert torch.equal(carrier.project(weight, picked(3, 0, 1)).wait(5).torch(), dense[[3, 0, 1]])
        statistics = carrier.statistics()
        assert statistics.resident_tiles <= statistics.slots
        assert (statistics.in_flight_tiles, statistics.pinned_tiles) == (0, 0)

    def test_gather_keeps_every_bit(self) -> None:
        bits = torch.tensor([0x7FC00001, -0x7FFFFF, 0x00000001, -0x80000000], dtype=torch.int32)
        carrier = tiled_evictable.TiledEvictable(CPU(0), ScriptedCarrier(bits.view(torch.float32)), (2,), (2,))
        result = carrier.project(Tensor(carrier, 0, Layout.column_major(4)), TileSelection([[1, 0]])).wait()
        assert result.torch().view(torch.int32).tolist() == bits[[2, 3, 0, 1]].tolist()

    def test_gather_moves_only_the_selected_tiles(self) -> None:
        carrier, weight, _, _ = experts()
        carrier.project(weight, picked(2)).wait()
        assert locations(carrier)[(2, 0, 0)] == "primary"
        assert carrier.statistics().bytes_read == 24
        assert carrier.statistics().misses == 1

    def test_materialize_is_the_whole_tensor(self) -> None:
        carrier, tensor, dense = matrix()
        carrier.evict(TileSet([(0, 1)]))
        assert torch.equal(tensor.materialize().torch(), dense)
