"""Seed 000, requirement: Scatter is the asynchronous projection counterpart."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch

import strideweave as sw
from strideweave import (
    CPU,
    AwaitMove,
    BudgetExceeded,
    DType,
    FileBacked,
    Generic,
    Layout,
    ResidencyPlan,
    Shape,
    Stride,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
    from_torch,
)
from strideweave.carriers.tiled_evictable import TileState
from strideweave.carriers.tiled_evictable.tiles_as_modes import TilesAsModes
from support.operations import dense as dense_of
from support.operations import variants
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, experts, locations, matrix, situation, slots_of, tiles

WRITTEN = TileState(location="primary", valid=True, dirty=True)
INVALID = TileState(location="invalid", valid=False, dirty=False)


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


def compact(count: int = 2, start: float = 100.0) -> Tensor:
    return from_torch(torch.arange(start, start + 6 * count).reshape(count, 2, 3))


@contextmanager
def busy_lanes() -> Iterator[None]:
    """No lane is free until the block ends."""
    blockers = [experts(1) for _ in range(8)]
    with ExitStack() as held:
        requests = []
        for carrier, _, _, secondary in blockers:
            held.enter_context(secondary.hold_read())
            requests.append(carrier.promote_async(tiles(0)))
        yield
    for request in requests:
        request.wait(5)


class Recorded:
    def __init__(self, answer: object = None) -> None:
        self.answer = ResidencyPlan() if answer is None else answer
        self.asked: list[tuple[TileSet, str]] = []

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        self.asked.append((required, purpose))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


class TestScatterIsTheAsynchronousProjectionCounterpart:
    def test_scatter_a_compact_result(self) -> None:
        carrier, weight, _, _ = experts(5)
        values = compact(3)
        handle = carrier.scatter(values, weight, picked(4, 0, 2))
        assert type(handle) is AwaitMove
        result = handle.wait(5)
        assert handle.wait() is result
        states = {c: result.carrier.tile_state(c) for c in [(k, 0, 0) for k in range(5)]}
        assert {c for c, state in states.items() if state == WRITTEN} == {(4, 0, 0), (0, 0, 0), (2, 0, 0)}
        assert {c for c, state in states.items() if state == INVALID} == {(1, 0, 0), (3, 0, 0)}
        assert torch.equal(result.carrier.project(result, picked(4, 0, 2)).wait().torch(), values.torch())

    @pytest.mark.parametrize("budget_tiles", [None, 2, 3])
    @pytest.mark.parametrize("ordinals", [(3,), (2, 0), (1, 3)])
    def test_project_after_replace_scatter(self, ordinals: tuple[int, ...], budget_tiles: int | None) -> None:
        carrier, weight, _, _ = experts(budget_tiles=budget_tiles)
        values = compact(len(ordinals))
        result = carrier.scatter(values, weight, picked(*ordinals)).wait(5)
        assert torch.equal(result.carrier.project(result, picked(*ordinals)).wait(5).torch(), values.torch())
        result.carrier.evict(picked(*ordinals))
        assert torch.equal(result.carrier.project(result, picked(*ordinals)).wait(5).torch(), values.torch())

    @pytest.mark.parametrize(
        "shape", [(3, 2, 3), (2, 3, 2), (2, 2, 3, 1), (12,), (2, 6), (1, 2, 3), ((2, 1), 2, 3)], ids=str
    )
    @pytest.mark.parametrize("reduction", ["replace", "add"])
    def test_reject_a_compact_shape_mismatch(self, shape: tuple[int, ...], reduction: str) -> None:
        carrier, weight, _, secondary = experts()
        layout = sw.row_major(*shape)
        values = Tensor(CPU(layout.cosize), 0, layout)
        before, reads = situation(carrier), secondary.reads
        with pytest.raises(ValueError, match="shape must match"):
            carrier.scatter(values, weight, picked(0, 2), reduction)
        assert situation(carrier) == before
        assert secondary.reads == reads
        assert (values.version, values.carrier.is_owned(), values.carrier.is_released()) == (0, False, False)

    # -- what comes out ------------------------------------------------------------------------------------------

    def test_result_is_fresh_and_like_the_template(self) -> None:
        policy = Recorded()
        carrier, weight, _, _ = experts(budget_tiles=3, residency_policy=policy)
        result = carrier.scatter(compact(), weight, picked(1, 3)).wait(5)
        fresh = result.carrier
        assert type(fresh) is TiledEvictable
        assert fresh is not carrier
        assert (result.shape, result.layout, result.offset) == (weight.shape, weight.layout, weight.offset)
        assert (fresh.dtype(), fresh.grid_shape, fresh.tile_shape, fresh.layout) == (
            carrier.dtype(),
            carrier.grid_shape,
            carrier.tile_shape,
            carrier.layout,
        )
        assert (type(fresh.primary), type(fresh.secondary)) == (CPU, ScriptedCarrier)
        assert fresh.statistics().budget_nbytes == carrier.statistics().budget_nbytes
        assert fresh.residency_policy is policy

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    @pytest.mark.parametrize("ordinals", [(2,), (3, 0, 1)])
    def test_version_of_the_result_is_exactly_one(self, reduction: str, ordinals: tuple[int, ...]) -> None:
        carrier, weight, _, _ = experts()
        result = carrier.scatter(compact(len(ordinals)), weight, picked(*ordinals), reduction).wait(5)
        assert result.version == 1
        assert weight.version == 0

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    def test_inputs_are_neither_released_nor_changed(self, reduction: str) -> None:
        carrier, weight, dense, _ = experts()
        values = compact()
        kept = values.torch().clone()
        carrier.scatter(values, weight, picked(1, 3), reduction).wait(5)
        assert torch.equal(values.torch(), kept)
        assert torch.equal(slots_of(carrier), dense.reshape(-1))
        for tensor in (values, weight):
            assert (tensor.version, tensor.carrier.is_released(), tensor.carrier.is_owned()) == (0, False, False)
        assert carrier.dirty_tiles == TileSet()
        values[0, 0, 0] = 1.0
        weight[0, 0, 0] = 1.0

    def test_result_does_not_share_memory_with_either_input(self) -> None:
        carrier, weight, _, _ = experts()
        values = compact(1)
        result = carrier.scatter(values, weight, picked(1)).wait(5)
        values.torch().fill_(-1.0)
        weight[1, 0, 0] = -2.0
        assert result[1, 0, 0] == 100.0

    def test_unselected_tile_is_invalid_though_the_template_has_it(self) -> None:
        carrier, weight, _, _ = experts()
        carrier.promote(every_tile(carrier))
        for reduction in ("replace", "add"):
            result = carrier.scatter(compact(1), weight, picked(1), reduction).wait(5)
            assert result.carrier.valid_tiles == tiles(1)
            with pytest.raises(RuntimeError, match="invalid"):
                result[0, 0, 0]
            with pytest.raises(RuntimeError, match="invalid"):
                result.carrier.project(result, picked(0, 1))

    @pytest.mark.parametrize("resident", [(), (1,), (0, 1, 2, 3)])
    @pytest.mark.parametrize("budget_tiles", [None, 2, 4])
    def test_add_sums_with_what_the_template_has_wherever_it_is(
        self, resident: tuple[int, ...], budget_tiles: int | None
    ) -> None:
        carrier, weight, dense, _ = experts(budget_tiles=budget_tiles)
        for k in resident:
            carrier.promote(tiles(k))
        values = compact()
        result = carrier.scatter(values, weight, picked(3, 1), "add").wait(5)
        found = result.carrier.project(result, picked(3, 1)).wait(5).torch()
        assert torch.equal(found, dense[[3, 1]] + values.torch())

    def test_add_to_implicit_zero_is_the_compact_values(self) -> None:
        carrier, weight, _, _ = experts()
        zeros = carrier.allocate_like(carrier.size())
        template = Tensor(zeros, 0, weight.layout)
        template[0, 0, 0] = 7.0
        result = zeros.scatter(compact(), template, picked(2, 0), "add").wait(5)
        expected = compact().torch().clone()
        expected[1, 0, 0] += 7.0
        assert torch.equal(result.carrier.project(result, picked(2, 0)).wait().torch(), expected)
        assert zeros.tile_state((1, 0, 0)).location == "implicit"

    @pytest.mark.parametrize(
        "dtype", [DType.BFloat16, DType.Float16, DType.E4M3, DType.Int8, DType.UInt8, DType.Bool, DType.Float64]
    )
    def test_add_is_the_central_addition_in_every_dtype(self, dtype: DType) -> None:
        drawn = (torch.rand(2, 8, generator=torch.Generator().manual_seed(3)) * 100).to(dtype.torch_dtype)
        carrier = TiledEvictable(CPU.wrap(drawn[0].clone()), FileBacked(dtype=dtype), (4,), (2,))
        result = carrier.scatter(
            from_torch(drawn[1]), Tensor(carrier, 0, Layout.column_major(8)), TileSelection([[2, 0, 3, 1]]), "add"
        ).wait(5)
        chosen = drawn[0].view(torch.uint8).reshape(4, -1)[[2, 0, 3, 1]].reshape(-1).view(drawn.dtype)
        expected = sw.add(from_torch(chosen.clone()), from_torch(drawn[1])).torch()
        found = result.carrier.project(result, TileSelection([[2, 0, 3, 1]])).wait().torch()
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))

    def test_replace_keeps_every_bit(self) -> None:
        bits = torch.tensor([0x7FC00001, -0x7FFFFF, 0x00000001, -0x80000000], dtype=torch.int32)
        carrier = TiledEvictable(CPU(0), FileBacked(), (4,), (2,))
        template = Tensor(carrier, 0, Layout.column_major(8))
        selection = TileSelection([[3, 1]])
        result = carrier.scatter(from_torch(bits.view(torch.float32)), template, selection).wait()
        found = result.carrier.project(result, selection).wait().torch()
        assert found.view(torch.int32).tolist() == bits.tolist()

    def test_replace_of_zeros_is_valid_and_dirty(self) -> None:
        carrier, weight, _, _ = experts()
        result = carrier.scatter(from_torch(torch.zeros(1, 2, 3)), weight, picked(2)).wait()
        assert result.carrier.tile_state((2, 0, 0)) == WRITTEN
        assert result[2, 1, 1] == 0.0

    def test_replace_needs_no_value_of_the_template(self) -> None:
        carrier = TiledEvictable(CPU(0), FileBacked(), (4, 1, 1), (1, 2, 3), layout=Layout.row_major(4, 2, 3))
        template = Tensor(carrier, 0, carrier.layout)
        assert carrier.valid_tiles == TileSet()
        result = carrier.scatter(compact(), template, picked(3, 1)).wait(5)
        assert result.carrier.valid_tiles == tiles(1, 3)
        assert carrier.valid_tiles == TileSet()

    def test_replace_reads_nothing_from_the_template(self) -> None:
        carrier, weight, _, secondary = experts()
        reads = secondary.reads
        carrier.scatter(compact(), weight, picked(3, 1)).wait(5)
        assert secondary.reads == reads
        assert set(locations(carrier).values()) == {"secondary"}

    def test_every_layout_of_compact_gives_the_same_result(self) -> None:
        carrier, weight, _, _ = experts()
        values = torch.arange(12.0).reshape(2, 2, 3)
        for label, tensor in variants(values):
            if label == "nested":
                with pytest.raises(ValueError, match="shape"):
                    carrier.scatter(tensor, weight, picked(2, 0))
                continue
            result = carrier.scatter(tensor, weight, picked(2, 0)).wait(5)
            assert torch.equal(result.carrier.project(result, picked(2, 0)).wait().torch(), values), label

    def test_template_layout_places_values_within_tiles(self) -> None:
        carrier, _, _ = matrix()
        permuted = Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8)))
        template = Tensor(carrier, 0, permuted)
        selection = TileSelection([[1], [1, 0]])
        values = from_torch(torch.arange(50.0, 58.0).reshape(2, 4))
        result = carrier.scatter(values, template, selection).wait()
        assert result.layout == permuted
        assert torch.equal(result.carrier.project(result, selection).wait().torch(), values.torch())
        # The same slots seen through the carrier's own layout: mode 0 counts strides 4, 2 and mode 1 strides 1, 8.
        assert [result.carrier[2 + 8 + s] for s in (0, 4, 1, 5)] == [50.0, 54.0, 51.0, 55.0]
        summed = carrier.scatter(values, template, selection, "add").wait()
        before = carrier.project(template, selection).wait().torch()
        found = summed.carrier.project(summed, selection).wait().torch()
        assert torch.equal(found, before + values.torch())

    # -- how it runs ---------------------------------------------------------------------------------------------

    def test_reduction_is_positional_or_keyword_and_defaults_to_replace(self) -> None:
        parameters = inspect.signature(TiledEvictable.scatter).parameters
        assert list(parameters) == ["self", "compact", "template", "selection", "reduction"]
        assert parameters["reduction"].default == "replace"
        carrier, weight, dense, _ = experts()
        values = compact(1)
        by_position = carrier.scatter(values, weight, picked(1), "add").wait()
        by_name = carrier.scatter(compact=values, template=weight, selection=picked(1), reduction="add").wait()
        default = carrier.scatter(values, weight, picked(1)).wait()
        assert by_position[1, 0, 0] == by_name[1, 0, 0] == 100.0 + dense[1, 0, 0].item()
        assert default[1, 0, 0] == 100.0

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    def test_scatter_returns_before_bytes_move(self, reduction: str) -> None:
        carrier, weight, _, _ = experts()
        carrier.promote(every_tile(carrier))
        values = compact()
        with busy_lanes():
            handle = carrier.scatter(values, weight, picked(0, 2), reduction)
            assert not handle.done
        assert handle.wait(5).version == 1

    def test_scatter_starts_eagerly(self) -> None:
        carrier, weight, _, secondary = experts()
        with secondary.hold_read() as hold:
            handle = carrier.scatter(compact(), weight, picked(0, 2), "add")
            hold.wait_until_reached()
            assert not handle.done
        handle.wait(5)

    def test_compact_is_owned_and_template_tiles_are_pinned_meanwhile(self) -> None:
        carrier, weight, _, secondary = experts()
        carrier.promote(tiles(0))
        values = compact()
        with secondary.hold_read() as hold:
            handle = carrier.scatter(values, weight, picked(0, 2), "add")
            hold.wait_until_reached()
            with pytest.raises(RuntimeError, match="owned"):
                values[0, 0, 0] = 1.0
            with pytest.raises(RuntimeError, match="owned"):
                values.carrier.release()
            with pytest.raises(RuntimeError, match="owned"):
                carrier.scatter(values, weight, picked(1, 3))
            with pytest.raises(RuntimeError, match="pinned"):
                weight[0, 0, 0] = 1.0
            with pytest.raises(RuntimeError, match="pinned"):
                carrier.evict_async(tiles(0))
            with pytest.raises(RuntimeError, match="pending"):
                carrier.release()
            assert torch.equal((values + values).torch(), values.torch() * 2)
        handle.wait(5)
        values[0, 0, 0] = 1.0
        weight[0, 0, 0] = 1.0
        carrier.release()

    def test_replace_pending_keeps_the_carrier_from_release(self) -> None:
        carrier, weight, _, _ = experts()
        with busy_lanes():
            handle = carrier.scatter(compact(), weight, picked(0, 2))
            with pytest.raises(RuntimeError, match="pending"):
                carrier.release()
        handle.wait(5)
        carrier.release()

    def test_dropped_handle_ends_all_the_same(self) -> None:
        carrier, weight, _, secondary = experts()
        values = compact()
        with secondary.hold_read():
            carrier.scatter(values, weight, picked(0, 2), "add")
            assert values.carrier.is_owned()
        done = threading.Event()
        for _ in range(500):
            if not values.carrier.is_owned() and not carrier.statistics().pinned_tiles:
                break
            done.wait(0.01)
        assert not values.carrier.is_owned()
        carrier.release()

    def test_handle_is_no_operand(self) -> None:
        carrier, weight, _, _ = experts()
        handle = carrier.scatter(compact(), weight, picked(0, 2))
        with pytest.raises(TypeError, match="Tensor"):
            sw.add(handle, compact())
        with pytest.raises(TypeError, match="Tensor"):
            sw.reduce_sum(handle)
        with pytest.raises(TypeError, match="must be a Tensor"):
            carrier.scatter(handle, weight, picked(0, 2))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="takes a Tensor"):
            carrier.scatter(compact(), handle, picked(0, 2))  # type: ignore[arg-type]
        handle.wait(5)

    def test_scatters_of_disjoint_and_equal_tiles_run_together(self) -> None:
        carrier, weight, dense, secondary = experts()
        with secondary.hold_read():
            handles = [carrier.scatter(compact(1), weight, picked(k), "add") for k in (0, 0, 1)]
        for k, handle in zip((0, 0, 1), handles, strict=True):
            assert handle.wait(5)[k, 0, 0] == 100.0 + dense[k, 0, 0].item()

    # -- what is refused, and in which order ---------------------------------------------------------------------

    @pytest.mark.parametrize("reduction", ["sum", "", "ADD", None, 3, True])
    def test_other_reductions_come_before_everything(self, reduction: object) -> None:
        carrier, _, _, _ = experts()
        before = situation(carrier)
        with pytest.raises(ValueError, match="reduction"):
            carrier.scatter(None, None, None, reduction)  # type: ignore[arg-type]
        assert situation(carrier) == before

    def test_released_carrier_comes_before_the_operands(self) -> None:
        carrier, _, _, _ = experts()
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            carrier.scatter(None, None, None)  # type: ignore[arg-type]

    def test_template_comes_before_selection_before_compact(self) -> None:
        carrier, weight, _, _ = experts()
        _, other_weight, _, _ = experts()
        before = situation(carrier)
        with pytest.raises(TypeError, match="takes a Tensor"):
            carrier.scatter(None, torch.ones(4, 2, 3), None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="backed by this very carrier"):
            carrier.scatter(None, other_weight, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="backed by this very carrier"):
            carrier.scatter(None, compact(4), None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="tile footprints"):
            carrier.scatter(None, Tensor(carrier, 0, Layout.column_major(4, 2, 3)), None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="TileSelection"):
            carrier.scatter(None, weight, tiles(0))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="rank"):
            carrier.scatter(None, weight, TileSelection([[0]]))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="outside"):
            carrier.scatter(None, weight, picked(4))  # type: ignore[arg-type]
        assert situation(carrier) == before

    def test_compact_kind_comes_before_its_life_before_dtype_before_shape(self) -> None:
        carrier, weight, _, _ = experts()
        wrong = Layout.column_major(5)
        before = situation(carrier)

        def on(storage: sw.Carrier, *, released: bool = False) -> Tensor:
            tensor = Tensor(storage, 0, wrong)
            if released:
                storage.release()
            return tensor

        tiled = TiledEvictable(CPU(5, dtype=DType.Int8), FileBacked(dtype=DType.Int8), (5,), (1,))
        refused: list[tuple[object, type[Exception], str]] = [
            (torch.ones(2, 2, 3), TypeError, "must be a Tensor"),
            (on(tiled, released=True), TypeError, "made of others"),
            (on(FileBacked(size=5, dtype=DType.Int8), released=True), TypeError, "exactly a CPU"),
            (on(Generic([0] * 5, dtype=DType.Int8)), TypeError, "exactly a CPU"),
            (on(CPU(5, dtype=DType.Int8), released=True), RuntimeError, "released"),
            (on(CPU(5, dtype=DType.Int8)), TypeError, "dtype must match"),
            (on(CPU(5)), ValueError, "shape must match"),
        ]
        for value, error, words in refused:
            with pytest.raises(error, match=words):
                carrier.scatter(value, weight, picked(0, 2), "add")  # type: ignore[arg-type]
            assert situation(carrier) == before

    def test_owned_compact_comes_before_its_dtype(self) -> None:
        full = CPU(24, dtype=DType.Int8)
        owner = TiledEvictable(full, FileBacked(dtype=DType.Int8), (4,), (6,))
        carrier, weight, _, _ = experts()
        with pytest.raises(RuntimeError, match="owned"):
            carrier.scatter(Tensor(full, 0, Layout.column_major(5)), weight, picked(0, 2))
        owner.release()

    def test_add_to_an_invalid_tile_comes_before_the_policy(self) -> None:
        policy = Recorded(ValueError("never asked"))
        carrier = TiledEvictable(
            CPU(0), FileBacked(), (4, 1, 1), (1, 2, 3), layout=Layout.row_major(4, 2, 3), residency_policy=policy
        )
        before = situation(carrier)
        values = compact()
        with pytest.raises(RuntimeError, match="invalid"):
            carrier.scatter(values, Tensor(carrier, 0, carrier.layout), picked(0, 2), "add")
        assert situation(carrier) == before
        assert policy.asked == []
        assert not values.carrier.is_owned()

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    def test_more_tiles_than_the_budget_holds_are_refused_before_anything(self, reduction: str) -> None:
        policy = Recorded()
        carrier, weight, _, secondary = experts(budget_tiles=2, residency_policy=policy)
        values = compact(3)
        before, reads = situation(carrier), secondary.reads
        with pytest.raises(BudgetExceeded, match="cannot scatter 3 tiles"):
            carrier.scatter(values, weight, picked(0, 2, 3), reduction)
        assert situation(carrier) == before
        assert (secondary.reads, policy.asked, values.carrier.is_owned()) == (reads, [], False)
        assert carrier.scatter(compact(2), weight, picked(0, 3), reduction).wait(5).carrier.primary_tiles == tiles(0, 3)

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    @pytest.mark.parametrize("request_name", ["promote_async", "evict_async"])
    def test_overlap_with_a_pending_request_is_refused(self, reduction: str, request_name: str) -> None:
        carrier, weight, _, secondary = experts()
        if request_name == "evict_async":
            weight[2, 0, 0] = 5.0
            hold = secondary.hold_write()
        else:
            hold = secondary.hold_read()
        values = compact()
        with hold:
            pending = getattr(carrier, request_name)(tiles(2))
            before = situation(carrier)
            with pytest.raises(RuntimeError, match=r"wait\(\)"):
                carrier.scatter(values, weight, picked(0, 2), reduction)
            assert situation(carrier) == before
            assert not values.carrier.is_owned()
            disjoint = carrier.scatter(values, weight, picked(0, 1), reduction)
        pending.wait(5)
        disjoint.wait(5)
        carrier.scatter(values, weight, picked(0, 2), reduction).wait(5)

    # -- the policy ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    def test_policy_is_asked_once_with_the_selected_tiles(self, reduction: str) -> None:
        policy = Recorded(ResidencyPlan(promote=tiles(3), evict=tiles(0)))
        carrier, weight, _, _ = experts(residency_policy=policy)
        carrier.promote(tiles(0))
        result = carrier.scatter(compact(), weight, picked(2, 0), reduction).wait(5)
        assert policy.asked == [(tiles(0, 2), "scatter")]
        assert locations(carrier)[3, 0, 0] == "primary"
        assert locations(carrier)[0, 0, 0] == "secondary"
        assert result.carrier.primary_tiles == tiles(0, 2)

    @pytest.mark.parametrize(
        ("answer", "error"), [(3, TypeError), (ResidencyPlan(promote=tiles(9)), ValueError), (OSError("no"), OSError)]
    )
    def test_failing_policy_changes_nothing(self, answer: object, error: type[Exception]) -> None:
        carrier, weight, _, secondary = experts(residency_policy=Recorded(answer))
        before, reads = situation(carrier), secondary.reads
        values = compact()
        with pytest.raises(error):
            carrier.scatter(values, weight, picked(0, 2), "add")
        assert situation(carrier) == before
        assert (secondary.reads, values.carrier.is_owned()) == (reads, False)

    # -- failure -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    @pytest.mark.parametrize("budget_tiles", [None, 3])
    def test_failing_read_publishes_nothing_and_leaves_both_usable(
        self, ordinal: int, budget_tiles: int | None
    ) -> None:
        carrier, weight, dense, secondary = experts(budget_tiles=budget_tiles)
        values = compact(3)
        kept = values.torch().clone()
        error = OSError("the disk said no")
        secondary.fail_read(ordinal, error)
        handle = carrier.scatter(values, weight, picked(3, 0, 1), "add")
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                handle.wait(5)
            assert caught.value is error
        assert (values.version, values.carrier.is_owned(), weight.version) == (0, False, 0)
        assert carrier.statistics().pinned_tiles == 0
        assert torch.equal(values.torch(), kept)
        assert torch.equal(slots_of(carrier), dense.reshape(-1))
        result = carrier.scatter(values, weight, picked(3, 0, 1), "add").wait(5)
        found = result.carrier.project(result, picked(3, 0, 1)).wait().torch()
        assert torch.equal(found, dense[[3, 0, 1]] + kept)
        carrier.release()

    @pytest.mark.parametrize("ordinal", [1, 2])
    def test_failing_replace_publishes_nothing_and_leaves_both_usable(
        self, ordinal: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        carrier, weight, dense, _ = experts()
        values = compact()
        put, calls = TilesAsModes.put_slot, []

        def failing(self: TilesAsModes, *arguments: object) -> None:
            calls.append(arguments)
            if len(calls) == ordinal:
                raise MemoryError("no memory")
            put(self, *arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(TilesAsModes, "put_slot", failing)
            handle = carrier.scatter(values, weight, picked(3, 0))
            with pytest.raises(MemoryError, match="no memory"):
                handle.wait(5)
        assert not values.carrier.is_owned()
        assert torch.equal(slots_of(carrier), dense.reshape(-1))
        assert carrier.scatter(values, weight, picked(3, 0)).wait(5).version == 1
        carrier.release()

    def test_failing_allocation_of_the_result_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        carrier, weight, _, secondary = experts()
        values = compact()
        before = situation(carrier)

        def failing(*arguments: object, **options: object) -> None:
            raise OSError("no file")

        monkeypatch.setattr(ScriptedCarrier, "allocate_like", failing)
        with pytest.raises(OSError, match="no file"):
            carrier.scatter(values, weight, picked(3, 0), "add")
        assert situation(carrier) == before
        assert not values.carrier.is_owned()
        assert secondary.reads == 0

    def test_full_primary_template_and_uneven_mode_order(self) -> None:
        carrier, tensor, dense = matrix()
        selection = TileSelection([[1, 0], [1]])
        values = from_torch(torch.arange(20.0, 28.0).reshape(4, 2))
        result = carrier.scatter(values, tensor, selection, "add").wait(5)
        expected = torch.cat((dense[2:, 2:], dense[:2, 2:])) + values.torch()
        assert torch.equal(dense_of(result.carrier.project(result, selection).wait()), expected)
        assert result.carrier.valid_tiles == TileSet([(0, 1), (1, 1)])
