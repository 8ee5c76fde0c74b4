"""Seed 000, requirement: Projection is an autograd-visible gather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pytest
import torch

import strideweave as sw
from strideweave import (
    CPU,
    DType,
    FileBacked,
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
from strideweave.carriers.tiled_evictable.reading import TileReader
from strideweave.operation.node import Operation
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, experts, locations, matrix, slots_of, tiles


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


def nodes_under(tensor: Tensor) -> list[str]:
    """The names of the nodes from a result down along its first operands."""
    found = []
    node = tensor.autograd_ctx
    while node is not None:
        found.append(node._operation_name)
        node = node.inputs()[0].autograd_ctx
    return found


def full(gradient: Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.materialize().torch()


def rows(dense: torch.Tensor, ordinals: Sequence[int], value: float | torch.Tensor = 1.0) -> torch.Tensor:
    """Zeros like `dense` with `value` at these experts."""
    expected = torch.zeros_like(dense)
    expected[list(ordinals)] = value
    return expected


class TestProjectionIsAnAutogradVisibleGather:
    def test_backpropagate_through_project_then_operation(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        compact = carrier.project(weight, picked(3, 1)).wait(5)
        loss = sw.reduce_sum(compact * compact)
        assert nodes_under(loss) == ["reduce_sum", "mul", "project"]
        loss.backward()
        assert torch.equal(full(weight.grad), rows(dense, [3, 1], 2 * dense[[3, 1]]))

    def test_accumulate_overlapping_projections(self) -> None:
        carrier, weight, dense, _ = experts(5)
        weight.requires_grad_()
        one = carrier.project(weight, picked(3, 1)).wait(5)
        two = carrier.project(weight, picked(0, 3)).wait(5)
        (sw.reduce_sum(one * 2.0) + sw.reduce_sum(two * two)).backward()
        expected = rows(dense, [1, 3], 2.0) + rows(dense, [0, 3], 2 * dense[[0, 3]])
        gradient = weight.grad
        assert gradient is not None
        where = locations(gradient.carrier)  # type: ignore[arg-type]
        assert {c for c in where if where[c] == "implicit"} == {(2, 0, 0), (4, 0, 0)}
        assert torch.equal(full(gradient), expected)

    # -- the node ------------------------------------------------------------------------------------------------

    def test_exactly_one_node_with_the_source_as_its_only_input(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        compact = carrier.project(weight, picked(3, 1)).wait(5)
        node = compact.autograd_ctx
        assert isinstance(node, Operation)
        assert node._operation_name == "project"
        assert compact.requires_grad
        (source,) = node.inputs()
        assert source is weight
        assert node.input_versions() == (0,)
        assert weight.autograd_ctx is None

    def test_no_node_without_grad_or_under_no_grad(self) -> None:
        carrier, weight, _, _ = experts()
        assert carrier.project(weight, picked(1)).wait(5).autograd_ctx is None
        weight.requires_grad_()
        with sw.no_grad():
            compact = carrier.project(weight, picked(1)).wait(5)
        assert (compact.autograd_ctx, compact.requires_grad) == (None, False)

    def test_grad_mode_of_initiation_decides(self) -> None:
        carrier, weight, _, secondary = experts()
        weight.requires_grad_()
        with secondary.hold_read():
            recorded = carrier.project(weight, picked(1))
            with sw.no_grad():
                plain = carrier.project(weight, picked(2))
        with sw.no_grad():
            assert recorded.wait(5).requires_grad
        assert not plain.wait(5).requires_grad

    def test_requires_grad_of_initiation_decides(self) -> None:
        carrier, weight, _, secondary = experts()
        with secondary.hold_read():
            handle = carrier.project(weight, picked(1))
            weight.requires_grad_()
        assert not handle.wait(5).requires_grad

    def test_materialize_records_nothing(self) -> None:
        _, weight, _, _ = experts()
        weight.requires_grad_()
        assert weight.materialize().autograd_ctx is None

    def test_failed_projection_leaves_no_node(self) -> None:
        carrier, weight, _, secondary = experts()
        weight.requires_grad_()
        target = CPU(6)
        secondary.fail_read(1, OSError("no"))
        handle = carrier.project(weight, picked(1), target)
        with pytest.raises(OSError):
            handle.wait(5)
        assert weight.autograd_ctx is None
        compact = carrier.project(weight, picked(1), target).wait(5)
        sw.reduce_sum(compact).backward()
        assert torch.equal(full(weight.grad)[1], torch.ones(2, 3))

    def test_handle_is_no_operand(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        handle = carrier.project(weight, picked(1))
        for call in (lambda: sw.reduce_sum(handle), lambda: sw.mul(handle, 2.0), lambda: sw.add(handle, handle)):
            with pytest.raises(TypeError, match="Tensor"):
                call()
        assert not hasattr(handle, "autograd_ctx")
        handle.wait(5)

    # -- the version ---------------------------------------------------------------------------------------------

    def test_write_after_projection_is_modified_in_place(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        loss = sw.reduce_sum(carrier.project(weight, picked(1)).wait(5))
        weight[2, 0, 0] = 5.0  # not even a selected tile: the version is that of the whole
        with pytest.raises(RuntimeError, match="modified in-place"):
            loss.backward()
        assert weight.grad is None

    def test_version_is_that_of_initiation(self) -> None:
        carrier, weight, dense, secondary = experts()
        weight.requires_grad_()
        with secondary.hold_read() as hold:
            handle = carrier.project(weight, picked(1))
            hold.wait_until_reached()  # else the write's own read may be the next one
            weight[2, 0, 0] = 5.0
        compact = handle.wait(5)
        assert torch.equal(compact.torch(), dense[[1]])
        with pytest.raises(RuntimeError, match="modified in-place"):
            sw.reduce_sum(compact).backward()

    def test_residency_is_no_modification(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        loss = sw.reduce_sum(carrier.project(weight, picked(1, 2)).wait(5))
        carrier.promote(every_tile(carrier))
        carrier.evict(every_tile(carrier))
        loss.backward()
        assert torch.equal(full(weight.grad), rows(dense, [1, 2]))
        assert carrier.primary_tiles == TileSet()

    def test_write_to_the_compact_result_is_no_modification_of_the_source(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        compact = carrier.project(weight, picked(1)).wait(5)
        loss = sw.reduce_sum(compact)
        compact[0, 0, 0] = 9.0
        loss.backward()
        assert torch.equal(full(weight.grad), rows(dense, [1]))

    def test_released_source_is_refused(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        loss = sw.reduce_sum(carrier.project(weight, picked(1)).wait(5))
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            loss.backward()

    # -- the gradient --------------------------------------------------------------------------------------------

    def test_gradient_is_a_fresh_carrier_like_that_of_the_source(self) -> None:
        carrier, weight, _, _ = experts(budget_tiles=3)
        weight.requires_grad_()
        sw.reduce_sum(carrier.project(weight, picked(2)).wait(5)).backward()
        gradient = weight.grad
        assert gradient is not None
        fresh = gradient.carrier
        assert type(fresh) is TiledEvictable
        assert fresh is not carrier
        assert (gradient.layout, gradient.offset, gradient.dtype()) == (weight.layout, weight.offset, weight.dtype())
        assert (fresh.grid_shape, fresh.tile_shape, fresh.layout) == (
            carrier.grid_shape,
            carrier.tile_shape,
            carrier.layout,
        )
        assert (type(fresh.primary), type(fresh.secondary)) == (CPU, ScriptedCarrier)
        assert fresh.statistics().budget_nbytes == carrier.statistics().budget_nbytes
        assert (gradient.requires_grad, gradient.autograd_ctx) == (False, None)

    def test_untouched_tiles_are_valid_implicit_zero(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        sw.reduce_sum(carrier.project(weight, picked(2)).wait(5)).backward()
        gradient = weight.grad
        assert gradient is not None
        fresh = gradient.carrier
        assert isinstance(fresh, TiledEvictable)
        assert locations(fresh) == {
            (0, 0, 0): "implicit",
            (1, 0, 0): "implicit",
            (2, 0, 0): "primary",
            (3, 0, 0): "implicit",
        }
        assert fresh.valid_tiles == every_tile(fresh)
        assert fresh.dirty_tiles == tiles(2)
        assert gradient[0, 1, 2] == 0.0
        assert fresh.statistics().resident_tiles == 1

    def test_zero_contributions_stay_implicit(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        compact = carrier.project(weight, picked(2, 0)).wait(5)
        mask = torch.zeros(2, 2, 3)
        mask[1] = 3.0
        sw.reduce_sum(compact * from_torch(mask)).backward()
        gradient = weight.grad
        assert gradient is not None
        assert isinstance(gradient.carrier, TiledEvictable)
        assert gradient.carrier.primary_tiles == tiles(0)

    def test_grad_accumulates_over_backwards(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        expected = torch.zeros_like(dense)
        for ordinals in ((1, 2), (2, 3), (2,)):
            before = weight.grad
            sw.reduce_sum(carrier.project(weight, picked(*ordinals)).wait(5)).backward()
            expected += rows(dense, ordinals)
            assert weight.grad is not None
            assert weight.grad is not before
            assert locations(weight.grad.carrier)[0, 0, 0] == "implicit"  # type: ignore[arg-type]
            assert torch.equal(full(weight.grad), expected)

    def test_one_projection_used_twice_sums_before_it_is_scattered(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        compact = carrier.project(weight, picked(1)).wait(5)
        (sw.reduce_sum(compact) + sw.reduce_sum(compact * 3.0)).backward()
        assert torch.equal(full(weight.grad), rows(dense, [1], 4.0))

    def test_grad_returns_the_gradient_and_leaves_none(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        loss = sw.reduce_sum(carrier.project(weight, picked(1)).wait(5))
        (gradient,) = sw.grad(loss, weight)
        assert weight.grad is None
        assert torch.equal(full(gradient), rows(dense, [1]))

    def test_two_tensors_over_one_carrier_have_gradients_of_their_own(self) -> None:
        carrier, one, dense, _ = experts()
        two = Tensor(carrier, 0, one.layout, requires_grad=True)
        one.requires_grad_()
        loss = sw.reduce_sum(carrier.project(one, picked(1)).wait()) + sw.reduce_sum(
            carrier.project(two, picked(2)).wait() * 5.0
        )
        loss.backward()
        assert torch.equal(full(one.grad), rows(dense, [1]))
        assert torch.equal(full(two.grad), rows(dense, [2], 5.0))

    def test_second_backward_needs_retain_graph(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        loss = sw.reduce_sum(carrier.project(weight, picked(1)).wait(5))
        loss.backward(retain_graph=True)
        loss.backward()
        assert torch.equal(full(weight.grad), rows(dense, [1], 2.0))
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    @pytest.mark.parametrize("budget_tiles", [1, 2])
    def test_gradient_larger_than_the_budget_spills(self, budget_tiles: int) -> None:
        carrier, weight, dense, _ = experts(6, budget_tiles=budget_tiles)
        weight.requires_grad_()
        for _ in range(2):
            compact = carrier.project(weight, picked(5, 0, 3, 2)).wait(5)
            sw.reduce_sum(compact * compact).backward()
        gradient = weight.grad
        assert gradient is not None
        assert isinstance(gradient.carrier, TiledEvictable)
        expected = rows(dense, [5, 0, 3, 2], 4 * dense[[5, 0, 3, 2]])
        assert torch.equal(slots_of(gradient.carrier), expected.reshape(-1))
        statistics = gradient.carrier.statistics()
        assert statistics.resident_tiles <= budget_tiles
        assert statistics.pinned_tiles == 0
        assert torch.equal(full(gradient), expected)

    def test_gradient_spills_though_the_policy_lets_no_tile_go(self) -> None:
        class Keeping:
            def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
                return ResidencyPlan()

            def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> Keeping:
                return self

            def use(self, tile: int) -> None: ...

            def arrive(self, tile: int) -> None: ...

            def forget(self, tile: int) -> None: ...

            def victims(self) -> Iterator[int]:
                return iter(())

        carrier, weight, dense, _ = experts(5, budget_tiles=2, residency_policy=Keeping())
        weight.requires_grad_()
        sw.reduce_sum(carrier.project(weight, picked(4, 0, 1, 3)).wait(5)).backward()
        assert torch.equal(full(weight.grad), rows(dense, [4, 0, 1, 3]))

    def test_failing_spill_publishes_no_gradient(self) -> None:
        carrier, weight, dense, secondary = experts(6, budget_tiles=1)
        weight.requires_grad_()
        compact = carrier.project(weight, picked(5, 0)).wait(5)
        loss = sw.reduce_sum(compact)

        class Full(OSError):
            pass

        make = secondary.allocate_like

        def failing(size: int, **options: object) -> ScriptedCarrier:
            child = make(size, **options)  # type: ignore[arg-type]
            child.fail_write(1, Full("disk full"))
            return child

        secondary.allocate_like = failing  # type: ignore[method-assign]
        with pytest.raises(Full):
            loss.backward(retain_graph=True)
        assert weight.grad is None
        secondary.allocate_like = make  # type: ignore[method-assign]
        loss.backward()
        assert torch.equal(full(weight.grad), rows(dense, [0, 5]))

    def test_backward_moves_no_tile_of_the_source(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        loss = sw.reduce_sum(carrier.project(weight, picked(1)).wait(5))
        before = (locations(carrier), carrier.statistics().bytes_read)
        loss.backward()
        assert (locations(carrier), carrier.statistics().bytes_read) == before

    @pytest.mark.parametrize(
        "layout",
        [Layout.column_major(4, 4), Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8)))],
        ids=["own", "turned"],
    )
    def test_gradient_follows_the_layout_of_the_source(self, layout: Layout) -> None:
        carrier, _, _ = matrix()
        source = Tensor(carrier, 0, layout, requires_grad=True)
        selection = TileSelection([[1, 0], [1]])
        weights = torch.arange(1.0, 9.0).reshape(4, 2)
        compact = carrier.project(source, selection).wait(5)
        sw.reduce_sum(compact * from_torch(weights)).backward()
        gradient = source.grad
        assert gradient is not None
        assert gradient.layout == layout
        expected = torch.zeros(4, 4)
        expected[:, 2:] = weights[[2, 3, 0, 1]]
        assert torch.equal(full(gradient), expected)

    @pytest.mark.parametrize("dtype", [DType.Float64, DType.BFloat16, DType.Float16])
    def test_gradient_has_the_dtype_of_the_source(self, dtype: DType) -> None:
        values = torch.linspace(-3, 3, 8).to(dtype.torch_dtype)
        carrier = TiledEvictable(CPU.wrap(values.clone()), FileBacked(dtype=dtype), (4,), (2,))
        source = Tensor(carrier, 0, Layout.column_major(8), requires_grad=True)
        compact = carrier.project(source, TileSelection([[3, 1]])).wait()
        sw.reduce_sum(compact * compact).backward()
        oracle = values.clone().requires_grad_()
        chosen = oracle.reshape(4, 2)[[3, 1]].reshape(-1)
        (chosen * chosen).sum().backward()
        assert torch.equal(full(source.grad), oracle.grad)  # type: ignore[arg-type]

    def test_whole_numbers_have_no_gradient(self) -> None:
        carrier = TiledEvictable(CPU.wrap(torch.arange(4)), FileBacked(dtype=DType.Int64), (2,), (2,))
        with pytest.raises(RuntimeError, match="not available"):
            Tensor(carrier, 0, Layout.column_major(4), requires_grad=True)

    # -- what becomes a grad -------------------------------------------------------------------------------------

    def test_grad_does_not_share_tiles_with_what_the_caller_gave(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        given = Tensor(carrier.allocate_like(carrier.size()), 0, weight.layout)
        given[1, 0, 0] = 4.0
        weight.backward(given)
        assert weight.grad is not None
        assert weight.grad.carrier is not given.carrier
        assert locations(weight.grad.carrier) == locations(given.carrier)  # type: ignore[arg-type]
        given[1, 0, 0] = 5.0
        assert weight.grad[1, 0, 0] == 4.0
        other = Tensor(carrier, 0, weight.layout, requires_grad=True)
        other.backward(weight.grad)
        weight.grad[1, 0, 0] = 6.0
        assert other.grad is not None
        assert other.grad[1, 0, 0] == 4.0

    def test_cotangent_with_an_invalid_tile_is_refused(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        given = carrier.scatter(from_torch(torch.ones(1, 2, 3)), weight.detach(), picked(1)).wait(5)
        with pytest.raises(RuntimeError, match="invalid"):
            weight.backward(given)
        assert weight.grad is None

    def test_cotangent_in_other_tiles_is_added_by_coordinate(self) -> None:
        carrier, tensor, dense = matrix()
        tensor.requires_grad_()
        sw.reduce_sum(carrier.project(tensor, TileSelection([[0, 1], [0]])).wait()).backward()
        otherwise = TiledEvictable(CPU.wrap(torch.arange(16.0)), ScriptedCarrier(), (4, 1), (1, 4))
        tensor.backward(Tensor(otherwise, 0, tensor.layout))
        expected = dense.clone()
        expected[:, :2] += 1.0
        assert torch.equal(full(tensor.grad), expected)
        assert tensor.grad is not None
        assert isinstance(tensor.grad.carrier, TiledEvictable)
        assert tensor.grad.carrier.grid_shape == (2, 2)

    def test_pending_request_over_a_grad_is_not_waited_for(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        sw.reduce_sum(carrier.project(weight, picked(1)).wait(5)).backward()
        gradient = weight.grad
        assert gradient is not None
        assert isinstance(gradient.carrier, TiledEvictable)
        below = gradient.carrier.secondary
        assert isinstance(below, ScriptedCarrier)
        with below.hold_write() as hold:
            pending = gradient.carrier.evict_async(tiles(1))
            hold.wait_until_reached()
            with pytest.raises(RuntimeError, match=r"wait\(\)"):
                sw.reduce_sum(carrier.project(weight, picked(1)).wait(5)).backward()
            assert weight.grad is gradient
        pending.wait(5)

    def test_grad_does_not_share_tiles_with_what_sw_grad_gave(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        (given,) = sw.grad(sw.reduce_sum(carrier.project(weight, picked(1)).wait(5)), weight)
        assert given is not None
        weight.backward(given)
        given[1, 0, 0] = 5.0
        assert weight.grad is not None
        assert weight.grad[1, 0, 0] == 1.0

    def test_sum_of_gradients_touches_no_tile_that_is_zero_in_both(self, monkeypatch: pytest.MonkeyPatch) -> None:
        carrier, weight, _, _ = experts(6)
        weight.requires_grad_()
        losses = [sw.reduce_sum(carrier.project(weight, picked(*k)).wait(5)) for k in ((1, 2), (2, 4))]
        read, touched = TileReader.tile, []

        def watched(self: TileReader, ordinal: int) -> AbstractContextManager[torch.Tensor]:
            touched.append(ordinal)
            return read(self, ordinal)

        monkeypatch.setattr(TileReader, "tile", watched)
        (losses[0] + losses[1]).backward()
        assert sorted(touched) == [1, 2, 2, 4]
