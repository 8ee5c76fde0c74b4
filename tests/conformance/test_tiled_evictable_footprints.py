"""Seed 000, requirement: Tensor Layout compatibility preserves exact carrier tile footprints."""

from __future__ import annotations

import pytest
import torch

import strideweave as sw
from strideweave import Layout, Shape, Stride, Tensor, TileSelection, TileSet, from_torch
from strideweave.operation.alignment import strides_dense
from support.operations import dense as dense_of
from support.operations import place
from support.tiled import every_tile, matrix, situation, slots_of

PERMUTED = Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8)))
SPANNING = Layout(Shape((2, 2), (2, 2)), Stride((1, 2), (8, 4)))
REMAPPED = Layout(Shape(4, 4), Stride(4, 1))
ALIASING = Layout(Shape(4, 4), Stride(1, 0))
OMITTING = Layout(Shape((2, 2), (2, 2)), Stride((1, 8), (2, 4)))


def beside(tensor: Tensor, values: torch.Tensor) -> Tensor:
    """The values on the compute carrier, their modes nested as in `tensor`."""
    return place(values, strides_dense(tensor.shape))


def assert_refused_before_anything(layout: Layout) -> None:
    carrier, _, dense = matrix()
    carrier.evict(every_tile(carrier))
    tensor = Tensor(carrier, 0, layout)
    before = situation(carrier)
    with pytest.raises(ValueError, match="tile footprints"):
        carrier.project(tensor, TileSelection([[0, 1], [1]]))
    with pytest.raises(ValueError, match="tile footprints"):
        tensor.materialize()
    other = beside(tensor, torch.ones(4, 4))
    for request in (
        lambda: carrier.scatter(from_torch(torch.ones(2, 2)), tensor, TileSelection([[0], [1]])),
        lambda: sw.add(tensor, other),
        lambda: sw.elementwise_mul(other, tensor),
        lambda: sw.mul(tensor, 2.0),
        lambda: sw.mul(2.0, tensor),
        lambda: sw.relu(tensor),
        lambda: sw.reduce_sum(tensor),
        lambda: sw.reduce_sum(tensor, axis=0),
        lambda: sw.matmul(tensor, other),
        lambda: sw.matmul(other, tensor),
        lambda: sw.add(Tensor(carrier, 0, other.layout), tensor),
    ):
        with pytest.raises(ValueError, match="tile footprints"):
            request()
    assert not other.carrier.is_owned()
    assert other.version == 0
    assert situation(carrier) == before
    assert torch.equal(slots_of(carrier), dense.T.reshape(-1))


class TestTensorLayoutCompatibilityPreservesExactCarrierTileFootprints:
    def test_accept_a_within_tile_permutation(self) -> None:
        carrier, _, dense = matrix()
        flat = dense.T.reshape(-1)
        tensor = Tensor(carrier, 0, PERMUTED)
        # Mode 0 counts through strides 4 then 2, mode 1 through 1 then 8.
        expected = flat.as_strided((2, 2, 2, 2), (2, 4, 8, 1)).reshape(4, 4)
        for _ in range(2):
            assert torch.equal(carrier.project(tensor, TileSelection([[0, 1], [0, 1]])).wait().torch(), expected)
            swapped = carrier.project(tensor, TileSelection([[1], [1, 0]])).wait().torch()
            assert torch.equal(swapped, torch.cat((expected[2:, 2:], expected[2:, :2]), dim=1))
            carrier.evict(every_tile(carrier))

    def test_accept_a_within_tile_permutation_in_direct_operations_and_backward(self) -> None:
        other = torch.arange(16.0).reshape(4, 4) - 7
        for layout, modes in ((PERMUTED, (2, 4, 8, 1)), (Layout.column_major(4, 4), (2, 1, 8, 4))):
            carrier, _, dense = matrix()
            expected = dense.T.reshape(-1).as_strided((2, 2, 2, 2), modes).reshape(4, 4).clone().requires_grad_()
            tensor = Tensor(carrier, 0, layout, requires_grad=True)
            for operation, oracle in (
                (lambda t: sw.add(t, beside(t, other)), lambda d: d + other),
                (lambda t: sw.mul(t, beside(t, other)), lambda d: d * other),
                (lambda t: sw.elementwise_mul(beside(t, other), t), lambda d: d * other),
                (lambda t: sw.mul(t, -3.0), lambda d: d * -3.0),
                (sw.relu, torch.relu),
                (lambda t: sw.reduce_sum(t, axis=1), lambda d: d.sum(1)),
                (lambda t: sw.matmul(t, beside(t, other)), lambda d: d @ other),
                (lambda t: sw.matmul(beside(t, other), t), lambda d: other @ d),
            ):
                carrier.evict(TileSet([(0, 1), (1, 0)]))
                result = operation(tensor)
                assert torch.equal(dense_of(result), oracle(expected).detach())
                weights = torch.arange(float(result.layout.size)).reshape(oracle(expected).shape) - 2
                carrier.evict(every_tile(carrier))
                sw.reduce_sum(sw.mul(result, beside(result, weights))).backward()
                (oracle(expected) * weights).sum().backward()
            assert tensor.grad is not None
            assert tensor.grad.layout == layout
            assert torch.equal(dense_of(tensor.grad.materialize()), expected.grad)

    def test_reject_one_logical_tile_spanning_physical_tiles(self) -> None:
        assert_refused_before_anything(SPANNING)

    def test_reject_aliasing_or_incomplete_tile_coverage_where_a_slot_repeats(self) -> None:
        assert_refused_before_anything(ALIASING)

    def test_reject_aliasing_or_incomplete_tile_coverage_where_a_slot_is_missing(self) -> None:
        assert_refused_before_anything(OMITTING)

    def test_reject_tile_coordinate_remapping(self) -> None:
        assert_refused_before_anything(REMAPPED)

    def test_reject_an_offset_that_leaves_the_footprint(self) -> None:
        carrier, _, _ = matrix()
        before = situation(carrier)
        with pytest.raises(ValueError, match="sizes"):
            carrier.project(Tensor(carrier, 4, Layout.column_major(4, 3)), TileSelection([[0], [0]]))
        assert situation(carrier) == before

    def test_reject_a_tensor_of_another_rank(self) -> None:
        carrier, _, _ = matrix()
        before = situation(carrier)
        with pytest.raises(ValueError, match="sizes"):
            carrier.project(Tensor(carrier, 0, Layout.column_major(16)), TileSelection([[0], [0]]))
        assert situation(carrier) == before

    def test_both_orders_of_the_same_slots_are_compatible(self) -> None:
        carrier, tensor, dense = matrix()
        across = Tensor(carrier, 0, Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8))))
        straight = Tensor(carrier, 0, Layout(Shape((2, 2), (2, 2)), Stride((1, 2), (4, 8))))
        pick = TileSelection([[1], [0]])
        one = carrier.project(tensor, pick).wait().torch()
        assert torch.equal(carrier.project(straight, pick).wait().torch(), one)
        assert torch.equal(carrier.project(across, pick).wait().torch(), one.T)
        assert torch.equal(one, dense[2:, :2])

    def test_element_access_follows_the_tensors_own_layout(self) -> None:
        carrier, _, dense = matrix()
        tensor = Tensor(carrier, 0, PERMUTED)
        carrier.evict(every_tile(carrier))
        flat = dense.T.reshape(-1)
        assert tensor[(1, 0), (0, 1)] == flat[4 + 8]
        tensor[(1, 0), (0, 1)] = -3.0
        carrier.evict(every_tile(carrier))
        assert tensor[(1, 0), (0, 1)] == -3.0
        assert carrier[12] == -3.0
