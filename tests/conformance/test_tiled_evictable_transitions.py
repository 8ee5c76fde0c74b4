"""Seed 000, requirement: Residency transitions have asynchronous and blocking forms."""

from __future__ import annotations

import pytest
import torch

import strideweave as sw
from strideweave import CPU, AwaitResidency, BudgetExceeded, FileBacked, Tensor, TileSelection, TileSet, from_torch
from strideweave.carriers import tiled_evictable
from support.direct import CALLS, SHEET, Recorded, in_background, sheet, values
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, experts, locations, matrix, situation, slots_of, tiles


class TestResidencyTransitionsHaveAsynchronousAndBlockingForms:
    def test_prefetch_without_changing_autograd(self) -> None:
        carrier, weight, dense, _ = experts()
        selection = TileSelection([[3, 1], [0], [0]])
        weight.requires_grad_()
        before = weight.layout, weight.carrier, weight.version, weight.autograd_ctx, weight.is_leaf
        handle = carrier.promote_async(selection)
        assert type(handle) is AwaitResidency
        assert handle.wait(5) is None
        assert carrier.primary_tiles == tiles(1, 3)
        assert (weight.layout, weight.carrier, weight.version, weight.autograd_ctx, weight.is_leaf) == before
        read = carrier.statistics().bytes_read
        compact = carrier.project(weight, selection).wait(5)
        assert torch.equal(compact.detach().torch(), dense[[3, 1]])
        assert compact.autograd_ctx.inputs() == (weight,)
        assert carrier.statistics().bytes_read == read
        assert carrier.statistics().hits == 2

    def test_evict_a_selected_dirty_tile_set(self) -> None:
        carrier, _, dense = matrix(secondary=FileBacked())
        flat = dense.T.reshape(-1).clone()
        for slot in (0, 2, 15):
            carrier[slot] = flat[slot] = -float(slot) - 1
        assert carrier.evict(TileSet([(0, 0), (1, 1)])) is None
        assert carrier.secondary_tiles == TileSet([(0, 0), (1, 1)])
        assert carrier.dirty_tiles == TileSet([(1, 0)])
        assert torch.equal(slots_of(carrier), flat)
        assert carrier.statistics().bytes_written == 32

    def test_dirty_set_commits_together(self) -> None:
        carrier, _, _, secondary = experts()
        for slot in (0, 6):
            carrier[slot] = -1.0
        with secondary.hold_write(2) as hold:
            handle = carrier.evict_async(tiles(0, 1))
            hold.wait_until_reached()
            assert not handle.done
            assert carrier.dirty_tiles == carrier.primary_tiles == tiles(0, 1)
        handle.wait(5)
        assert carrier.primary_tiles == TileSet()
        assert carrier.dirty_tiles == TileSet()

    def test_promoted_set_commits_together(self) -> None:
        carrier, _, _, secondary = experts()
        with secondary.hold_read(2) as hold:
            handle = carrier.promote_async(tiles(0, 1))
            hold.wait_until_reached()
            assert not handle.done
            assert carrier.primary_tiles == TileSet()
        handle.wait(5)
        assert carrier.primary_tiles == tiles(0, 1)

    @pytest.mark.parametrize(
        "request_name",
        [
            "project",
            "promote",
            "promote_async",
            "evict",
            "evict_async",
            "write",
            "stream",
            "borrow",
            "scatter",
            "operation",
            "operation second",
            "operation on two",
            "backward",
        ],
    )
    @pytest.mark.parametrize("pending", ["evict", "promote"])
    def test_refuse_hidden_waiting_on_external_transition(self, request_name: str, pending: str) -> None:
        carrier, weight, dense, secondary = experts()
        other = from_torch(torch.ones(4, 2, 3)).requires_grad_()
        _, second, _, _ = experts()
        if pending == "evict":
            carrier[0] = 1.0
        loss = sw.reduce_sum(sw.mul(weight, other))
        if pending == "evict":
            hold = secondary.hold_write()
            handle = carrier.evict_async(tiles(0))
        else:
            carrier.evict(tiles(0, 1, 2, 3))  # the operation has kept what it found room for
            hold = secondary.hold_read()
            handle = carrier.promote_async(tiles(0))
        with hold:
            hold.wait_until_reached()
            before = situation(carrier)
            with pytest.raises(RuntimeError, match=r"wait\(\)"):
                {
                    "project": lambda: carrier.project(weight, TileSelection([[1, 0], [0], [0]])),
                    "promote": lambda: carrier.promote(tiles(0, 1)),
                    "promote_async": lambda: carrier.promote_async(tiles(0, 1)),
                    "evict": lambda: carrier.evict(tiles(0, 1)),
                    "evict_async": lambda: carrier.evict_async(tiles(0, 1)),
                    "write": lambda: weight.__setitem__((0, 0, 1), 2.0),
                    "stream": lambda: carrier.stream(tiles(0, 1)),
                    "borrow": lambda: carrier.borrow(tiles(0, 1)).__enter__(),
                    "scatter": lambda: carrier.scatter(
                        from_torch(torch.ones(1, 2, 3)), weight, TileSelection([[0], [0], [0]]), "add"
                    ),
                    "operation": lambda: sw.reduce_sum(weight),
                    "operation second": lambda: sw.mul(other, weight),
                    "operation on two": lambda: sw.add(second, weight),
                    "backward": lambda: loss.backward(retain_graph=True),
                }[request_name]()
            assert situation(carrier) == before
            assert other.grad is None
            assert not handle.done
        handle.wait(5)
        if request_name == "backward":
            loss.backward()
            assert torch.equal(other.grad.torch(), dense)
        assert torch.equal(carrier.project(weight, TileSelection([[1, 0], [0], [0]])).wait(5).torch(), dense[[1, 0]])

    def test_clean_read_meanwhile_is_no_conflict(self) -> None:
        carrier, weight, dense, secondary = experts()
        carrier[0] = 7.0
        with secondary.hold_write() as hold:
            handle = carrier.evict_async(tiles(0))
            hold.wait_until_reached()
            assert carrier[0] == 7.0
            assert torch.equal(carrier.project(weight, TileSelection([[2], [0], [0]])).wait(5).torch(), dense[[2]])
        handle.wait(5)
        assert carrier[0] == 7.0

    def test_satisfied_requests_are_idempotent(self) -> None:
        carrier, *_ = experts()
        carrier.promote(tiles(1, 2))
        before = situation(carrier)
        again = carrier.promote_async(tiles(1, 2))
        assert again.done
        assert again.wait() is None
        assert situation(carrier) == before
        carrier.evict(tiles(1, 2))
        before = situation(carrier)
        again = carrier.evict_async(tiles(1, 2))
        assert again.done
        assert again.wait() is None
        assert situation(carrier) == before

    def test_partly_satisfied_request_moves_only_the_rest(self) -> None:
        carrier, _, _, secondary = experts()
        carrier.promote(tiles(1))
        reads = secondary.reads
        carrier.promote(tiles(0, 1, 2))
        assert secondary.reads == reads + 2
        assert carrier.primary_tiles == tiles(0, 1, 2)

    # -- what is refused, and in which order ---------------------------------------------------------------------

    @pytest.mark.parametrize("name", ["promote", "promote_async", "evict", "evict_async"])
    def test_released_comes_before_type(self, name: str) -> None:
        carrier, *_ = experts()
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            getattr(carrier, name)(None)

    @pytest.mark.parametrize("name", ["promote", "promote_async", "evict", "evict_async", "stream"])
    @pytest.mark.parametrize("wrong", [None, [(9, 9)], (0, 0, 0), 3, {(0, 0, 0)}])
    def test_wrong_type_is_refused(self, name: str, wrong: object) -> None:
        carrier, *_ = experts()
        before = situation(carrier)
        with pytest.raises(TypeError, match="TileSet or a TileSelection"):
            getattr(carrier, name)(wrong)
        assert situation(carrier) == before

    @pytest.mark.parametrize("name", ["promote", "promote_async", "evict", "evict_async"])
    def test_complete_set_is_validated_before_any_of_it_moves(self, name: str) -> None:
        carrier, *_ = experts()
        carrier.promote(tiles(1))
        before = situation(carrier)
        with pytest.raises(ValueError, match="outside"):
            getattr(carrier, name)(tiles(0, 1, 4))
        with pytest.raises(ValueError, match="rank"):
            getattr(carrier, name)(TileSet([(0, 0)]))
        assert situation(carrier) == before

    def test_range_comes_before_conflict(self) -> None:
        carrier, _, _, secondary = experts()
        with secondary.hold_read():
            handle = carrier.promote_async(tiles(0))
            with pytest.raises(ValueError, match="outside"):
                carrier.evict(tiles(0, 9))
        handle.wait(5)

    def test_promotion_beyond_the_budget_is_refused_whole(self) -> None:
        carrier, *_ = experts(budget_tiles=2)
        carrier.promote(tiles(3))
        before = situation(carrier)
        with pytest.raises(BudgetExceeded, match="3 tiles"):
            carrier.promote(tiles(0, 1, 2))
        assert situation(carrier) == before
        carrier.promote(tiles(0, 1))
        assert carrier.primary_tiles == tiles(0, 1)

    def test_promotion_never_makes_room_with_its_own_tiles(self) -> None:
        carrier, *_ = experts(budget_tiles=2)
        carrier.promote(tiles(0))
        carrier.promote(tiles(1))
        carrier.promote(tiles(0, 2))
        assert carrier.primary_tiles == tiles(0, 2)
        before = situation(carrier)
        with pytest.raises(BudgetExceeded):
            carrier.promote(tiles(0, 1, 3))
        assert situation(carrier) == before

    def test_promotion_writes_dirty_tiles_back_to_make_room(self) -> None:
        carrier, _, dense, secondary = experts(budget_tiles=1)
        carrier[0] = -1.0
        carrier.promote(tiles(2))
        assert carrier.primary_tiles == tiles(2)
        assert locations(carrier)[(0, 0, 0)] == "secondary"
        assert carrier.dirty_tiles == TileSet()
        assert carrier[0] == -1.0
        assert secondary.storage[0] == -1.0
        assert carrier[1] == dense[0, 0, 1]

    def test_immutable_secondary_is_never_written(self) -> None:
        values = torch.arange(16.0)
        secondary = ScriptedCarrier(values, mutable=False)
        carrier, tensor, dense = matrix(CPU(0), secondary)
        carrier[3] = -4.0
        carrier.evict(every_tile(carrier))
        assert secondary.writes == 0
        assert torch.equal(secondary.storage, values)
        assert carrier[3] == -4.0
        carrier.promote(every_tile(carrier))
        expected = dense.clone()
        expected[3, 0] = -4.0
        assert torch.equal(tensor.materialize().torch(), expected)

    def test_transition_creates_no_tensor(self) -> None:
        carrier, *_ = experts()
        assert not isinstance(carrier.promote_async(tiles(0)).wait(5), Tensor)
        with pytest.raises(TypeError, match="created by the framework"):
            AwaitResidency()

    # -- the facet -----------------------------------------------------------------------------------------------

    def test_facet_has_the_four_methods_and_takes_the_carrier_first(self) -> None:
        carrier, _, _, _ = experts()
        kind = tiled_evictable.TiledResidencyFacet
        facet = carrier.require_facet(kind)
        assert sw.TiledResidencyFacet is kind
        assert type(facet) is kind
        assert facet.promote(carrier, tiles(0, 2)) is None
        assert carrier.primary_tiles == tiles(0, 2)
        handle = facet.promote_async(carrier, TileSelection([[1], [0], [0]]))
        assert type(handle) is AwaitResidency
        handle.wait(5)
        assert facet.evict(carrier, tiles(0)) is None
        assert facet.evict_async(carrier, tiles(1)).wait(5) is None
        assert carrier.primary_tiles == tiles(2)
        with pytest.raises(TypeError):
            facet.promote(carrier, [(0, 0, 0)])
        assert CPU(1).facet(kind) is None

    # -- work of one's own is no conflict ------------------------------------------------------------------------

    def test_movement_of_the_same_operation_is_no_conflict(self) -> None:
        policy = Recorded(lambda required: sw.ResidencyPlan(promote=required))
        carrier, x, _ = sheet(residency_policy=policy)
        x.requires_grad_()
        for call in CALLS:
            result, _ = call.with_ordinary(x, wants=True)
            assert torch.equal(values(result), call.expected())
            carrier.evict(every_tile(carrier))
            sw.reduce_sum(result).backward()
            carrier.evict(every_tile(carrier))

    def test_projection_on_its_way_is_no_conflict_for_an_operation(self) -> None:
        carrier, x, secondary = sheet(budget_tiles=2)
        with secondary.hold_read() as hold:
            handle = carrier.project(x, TileSelection([[0, 1], [0]]))
            hold.wait_until_reached()
            with in_background(lambda: sw.add(x, x), hold) as running:
                hold.let_go()
            assert torch.equal(values(running.result()), SHEET + SHEET)
        assert torch.equal(handle.wait(5).torch(), SHEET[:, :3])

    def test_transition_of_a_disjoint_carrier_is_no_conflict(self) -> None:
        _, x, _ = sheet()
        other, _, secondary = sheet()
        with secondary.hold_read() as hold:
            handle = other.promote_async(every_tile(other))
            hold.wait_until_reached()
            assert torch.equal(values(sw.relu(x)), SHEET.relu())
        handle.wait(5)
