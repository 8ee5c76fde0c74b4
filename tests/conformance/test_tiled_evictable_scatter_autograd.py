"""Seed 000, requirement: Scatter participates in autograd."""

from __future__ import annotations

import pytest
import torch

import strideweave as sw
from strideweave import CPU, FileBacked, Layout, Shape, Stride, Tensor, TiledEvictable, TileSelection, from_torch
from strideweave.operation.node import Operation
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, experts, locations, matrix, tiles


def picked(*ordinals: int) -> TileSelection:
    return TileSelection([ordinals, [0], [0]])


def leaf(count: int = 2) -> Tensor:
    return from_torch(torch.arange(100.0, 100.0 + 6 * count).reshape(count, 2, 3)).requires_grad_()


def full(gradient: Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.materialize().torch()


def ones_like(tensor: Tensor) -> Tensor:
    """A full cotangent of ones in every tile, over a carrier of its own."""
    assert isinstance(tensor.carrier, TiledEvictable)
    return Tensor(tensor.carrier.new_like([1.0] * tensor.carrier.size()), tensor.offset, tensor.layout)


class TestScatterParticipatesInAutograd:
    @pytest.mark.parametrize("reduction", ["replace", "add"])
    def test_differentiate_replace_scatter(self, reduction: str) -> None:
        carrier, weight, dense, _ = experts()
        values = leaf()
        result = carrier.scatter(values, weight, picked(3, 1), reduction).wait(5)
        back = result.carrier.project(result, picked(1, 3)).wait(5)
        sw.reduce_sum(back * back).backward()
        held = values.detach().torch() + (dense[[3, 1]] if reduction == "add" else 0.0)
        assert values.grad is not None
        assert type(values.grad.carrier) is CPU
        assert torch.equal(values.grad.torch(), 2 * held)
        assert weight.grad is None

    # -- the node ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    @pytest.mark.parametrize("wanted", ["compact", "template", "both"])
    def test_exactly_one_node_with_compact_and_template(self, reduction: str, wanted: str) -> None:
        carrier, weight, _, _ = experts()
        values = leaf().requires_grad_(wanted != "template")
        weight.requires_grad_(wanted != "compact")
        result = carrier.scatter(values, weight, picked(3, 1), reduction).wait(5)
        node = result.autograd_ctx
        assert isinstance(node, Operation)
        assert node._operation_name == "scatter"
        one, two = node.inputs()
        assert one is values
        assert two is weight
        assert result.requires_grad
        assert (values.autograd_ctx, weight.autograd_ctx) == (None, None)

    def test_no_node_when_nobody_wants_a_gradient(self) -> None:
        carrier, weight, _, _ = experts()
        values = leaf()
        assert carrier.scatter(values.detach(), weight, picked(3, 1)).wait(5).autograd_ctx is None
        with sw.no_grad():
            result = carrier.scatter(values, weight.requires_grad_(), picked(3, 1)).wait(5)
        assert (result.autograd_ctx, result.requires_grad) == (None, False)

    def test_grad_mode_of_initiation_decides(self) -> None:
        carrier, weight, _, secondary = experts()
        with secondary.hold_read():
            handle = carrier.scatter(leaf(), weight, picked(3, 1), "add")
        with sw.no_grad():
            assert handle.wait(5).requires_grad

    def test_handle_is_no_node(self) -> None:
        carrier, weight, _, _ = experts()
        handle = carrier.scatter(leaf(), weight, picked(3, 1))
        assert not hasattr(handle, "autograd_ctx")
        with pytest.raises(TypeError, match="Tensor"):
            sw.add(handle, handle)
        assert handle.wait(5).autograd_ctx is not None

    def test_failed_scatter_leaves_no_node(self) -> None:
        carrier, weight, _, secondary = experts()
        values = leaf()
        secondary.fail_read(2, OSError("no"))
        handle = carrier.scatter(values, weight, picked(3, 1), "add")
        with pytest.raises(OSError):
            handle.wait(5)
        assert (values.autograd_ctx, weight.autograd_ctx) == (None, None)
        result = carrier.scatter(values, weight, picked(3, 1), "add").wait(5)
        result.backward(ones_like(weight))
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), torch.ones(2, 2, 3))

    # -- the gradient of compact ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("reduction", ["replace", "add"])
    def test_compact_gets_the_cotangent_in_the_order_of_the_selection(self, reduction: str) -> None:
        carrier, weight, dense, _ = experts()
        values = leaf()
        result = carrier.scatter(values, weight, picked(3, 1), reduction).wait(5)
        cotangent = Tensor(carrier.new_like((dense * 10).reshape(-1).tolist()), 0, weight.layout)
        result.backward(cotangent)
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), dense[[3, 1]] * 10)
        assert values.grad.layout == values.layout

    def test_implicit_tiles_of_the_cotangent_are_zero(self) -> None:
        carrier, weight, _, _ = experts()
        values = leaf(3)
        result = carrier.scatter(values, weight, picked(3, 1, 0)).wait(5)
        sw.reduce_sum(result.carrier.project(result, picked(1)).wait(5)).backward()
        expected = torch.zeros(3, 2, 3)
        expected[1] = 1.0
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), expected)

    def test_layouts_of_compact_and_template_may_differ(self) -> None:
        carrier, _, _ = matrix()
        template = Tensor(carrier, 0, Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8))))
        values = from_torch(torch.arange(8.0).reshape(4, 2)).requires_grad_()
        selection = TileSelection([[1, 0], [1]])
        result = carrier.scatter(values, template, selection).wait(5)
        weights = torch.arange(1.0, 9.0).reshape(4, 2)
        back = result.carrier.project(result, selection).wait(5)
        sw.reduce_sum(back * from_torch(weights)).backward()
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), weights)

    # -- the gradient of template --------------------------------------------------------------------------------

    def test_replace_passes_no_gradient_to_template(self) -> None:
        """Neither from selected tiles, which were overwritten, nor from others, of which the result retains nothing."""
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        result = carrier.scatter(leaf(), weight, picked(3, 1)).wait(5)
        result.backward(ones_like(weight))
        assert weight.grad is not None
        assert set(locations(weight.grad.carrier).values()) == {"implicit"}  # type: ignore[arg-type]
        assert torch.equal(full(weight.grad), torch.zeros_like(dense))

    def test_add_passes_the_selected_cotangent_to_both(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        values = leaf()
        result = carrier.scatter(values, weight, picked(3, 1), "add").wait(5)
        result.backward(ones_like(weight))
        expected = torch.zeros_like(dense)
        expected[[3, 1]] = 1.0
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), torch.ones(2, 2, 3))
        assert weight.grad is not None
        gradient = weight.grad.carrier
        assert isinstance(gradient, TiledEvictable)
        assert (gradient.grid_shape, gradient.tile_shape, weight.grad.layout) == ((4, 1, 1), (1, 2, 3), weight.layout)
        assert gradient.valid_tiles == every_tile(carrier)
        assert gradient.primary_tiles == tiles(1, 3)
        assert torch.equal(full(weight.grad), expected)

    def test_template_gradient_is_a_carrier_of_its_own(self) -> None:
        """A cotangent that is passed on is copied: what the caller gave stays apart from what became a grad."""
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        result = carrier.scatter(leaf(), weight, picked(3, 1), "add").wait(5)
        cotangent = ones_like(weight)
        result.retain_grad()
        result.backward(cotangent)
        assert weight.grad is not None
        assert result.grad is not None
        assert len({id(t.carrier) for t in (weight.grad, result.grad, cotangent)}) == 3
        cotangent[3, 0, 0] = 9.0
        result.grad[3, 0, 0] = 8.0
        assert weight.grad[3, 0, 0] == 1.0

    def test_scatter_of_a_projection_sums_both_ways(self) -> None:
        carrier, weight, dense, _ = experts()
        weight.requires_grad_()
        moved = carrier.project(weight, picked(0, 3)).wait(5)
        result = carrier.scatter(moved, weight, picked(3, 1), "add").wait(5)
        back = result.carrier.project(result, picked(1, 3)).wait(5)
        sw.reduce_sum(back * back).backward()
        oracle = dense.clone().requires_grad_()
        held = oracle[[1, 3]] + oracle[[3, 0]]
        (held * held).sum().backward()
        assert torch.equal(full(weight.grad), oracle.grad)  # type: ignore[arg-type]

    # -- versions, policies, room --------------------------------------------------------------------------------

    def test_values_are_not_saved_so_that_inputs_may_change(self) -> None:
        """The gradient of an assignment and of a sum needs no value, as that of `add` needs none."""
        carrier, weight, _, _ = experts()
        values = leaf()
        result = carrier.scatter(values, weight, picked(3, 1), "add").wait(5)
        weight[3, 0, 0] = 5.0
        values.detach()[0, 0, 0] = 5.0
        result.backward(ones_like(weight))
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), torch.ones(2, 2, 3))

    def test_backward_asks_no_policy_and_reads_no_template(self) -> None:
        asked = []

        class Policy:
            def plan(self, required: sw.TileSet, purpose: str) -> sw.ResidencyPlan:
                asked.append(purpose)
                return sw.ResidencyPlan()

        carrier, weight, _, secondary = experts(residency_policy=Policy())
        weight.requires_grad_()
        result = carrier.scatter(leaf(), weight, picked(3, 1), "add").wait(5)
        before, reads = list(asked), secondary.reads
        result.backward(ones_like(weight))
        assert before == ["scatter"]
        assert (asked, secondary.reads) == (before, reads)

    def test_second_backward_needs_retain_graph(self) -> None:
        carrier, weight, _, _ = experts()
        values = leaf()
        result = carrier.scatter(values, weight, picked(3, 1)).wait(5)
        result.backward(ones_like(weight), retain_graph=True)
        result.backward(ones_like(weight))
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), torch.full((2, 2, 3), 2.0))
        with pytest.raises(RuntimeError, match="second time"):
            result.backward(ones_like(weight))

    def test_template_gradient_spills_beyond_the_budget(self) -> None:
        carrier, weight, dense, _ = experts(6, budget_tiles=2)
        weight.requires_grad_()
        losses = [carrier.scatter(leaf(), weight, picked(*pair), "add").wait(5) for pair in ((0, 5), (1, 3), (5, 2))]
        for result, pair in zip(losses, ((0, 5), (1, 3), (5, 2)), strict=True):
            assert isinstance(result.carrier, TiledEvictable)
            sw.reduce_sum(result.carrier.project(result, picked(*pair)).wait(5)).backward()
        expected = torch.zeros_like(dense)
        for k in (0, 5, 1, 3, 5, 2):
            expected[k] += 1.0
        assert torch.equal(full(weight.grad), expected)

    def test_template_over_a_full_primary(self) -> None:
        flat = torch.arange(8.0)
        carrier = TiledEvictable(CPU.wrap(flat), FileBacked(), (4,), (2,))
        template = Tensor(carrier, 0, Layout.column_major(8), requires_grad=True)
        values = from_torch(torch.ones(4)).requires_grad_()
        result = carrier.scatter(values, template, TileSelection([[0, 2]]), "add").wait()
        assert isinstance(result.carrier, TiledEvictable)
        back = result.carrier.project(result, TileSelection([[0, 2]])).wait()
        sw.reduce_sum(back * back).backward()
        held = 2 * (flat.reshape(4, 2)[[0, 2]].reshape(-1) + 1)
        assert values.grad is not None
        assert torch.equal(values.grad.torch(), held)
        assert torch.equal(full(template.grad), torch.cat((held[:2], torch.zeros(2), held[2:], torch.zeros(2))))

    def test_scripted_secondary_gives_the_gradient_its_class(self) -> None:
        carrier, weight, _, _ = experts()
        weight.requires_grad_()
        carrier.scatter(leaf(), weight, picked(3, 1), "add").wait(5).backward(ones_like(weight))
        assert weight.grad is not None
        assert isinstance(weight.grad.carrier, TiledEvictable)
        assert type(weight.grad.carrier.secondary) is ScriptedCarrier
