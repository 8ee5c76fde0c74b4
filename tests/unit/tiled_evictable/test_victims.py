"""How far the order is searched for a tile to give up: not through every dirty tile, for each tile that comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import strideweave as sw
from strideweave.carriers.tiled_evictable.policies.lru import LRU, LRUOrder

TILES, SLOTS = 400, 200


class CountedOrder:
    """LRU that counts the tiles it names."""

    def __init__(self) -> None:
        self._order = LRUOrder()
        self.use, self.arrive, self.forget = self._order.use, self._order.arrive, self._order.forget
        self.named = 0

    def victims(self) -> Iterator[int]:
        for tile in self._order.victims():
            self.named += 1
            yield tile


class Counted(LRU):
    """Makes such orders, and keeps them."""

    def __init__(self) -> None:
        self.orders: list[CountedOrder] = []

    def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> CountedOrder:
        self.orders.append(CountedOrder())
        return self.orders[-1]


@pytest.fixture
def gradient() -> tuple[sw.Tensor, Counted]:
    """A gradient of twice its budget: primary is full of dirty tiles, the other half is in secondary."""
    policy = Counted()
    carrier = sw.TiledEvictable(
        sw.CPU(0), sw.CPU.wrap(torch.ones(TILES * 4)), (TILES,), (4,), budget=SLOTS * 16, residency_policy=policy
    )
    tensor = sw.Tensor(carrier, 0, carrier.layout, requires_grad=True)
    picked = carrier.project(tensor, sw.TileSelection([range(TILES)])).wait()
    picked.backward(sw.from_torch(torch.arange(TILES * 4.0) + 1))
    assert tensor.grad is not None
    assert len(tensor.grad.carrier.dirty_tiles) == SLOTS
    return tensor.grad, policy


def test_gradient_beyond_the_budget_looks_at_few_tiles_for_each_that_it_writes(
    gradient: tuple[sw.Tensor, Counted],
) -> None:
    assert gradient[1].orders[-1].named < 4 * TILES


@pytest.mark.parametrize(
    "request_of",
    [
        lambda tensor, tiles: tensor.carrier.project(tensor, sw.TileSelection([[k for (k,) in tiles.coordinates]])),
        lambda tensor, tiles: tensor.carrier.promote_async(tiles),
    ],
    ids=["project", "promote"],
)
def test_request_past_dirty_tiles_looks_at_few_of_them_for_each_that_comes(
    gradient: tuple[sw.Tensor, Counted], request_of: Callable[[sw.Tensor, sw.TileSet], sw.AwaitResult[object]]
) -> None:
    tensor, policy = gradient
    order, before = policy.orders[-1], policy.orders[-1].named
    request_of(tensor, tensor.carrier.secondary_tiles).wait()
    assert order.named - before < 20 * SLOTS  # a search through all for each is more than 200 * SLOTS


def test_clean_tile_behind_dirty_ones_is_still_found_and_goes_first() -> None:
    carrier = sw.TiledEvictable(sw.CPU(0), sw.CPU.wrap(torch.ones(24)), (6,), (4,), budget=4 * 16)
    carrier.promote(sw.TileSet((k,) for k in range(4)))
    for k in (0, 1):
        carrier[4 * k] = 5.0
    carrier.project(sw.Tensor(carrier, 0, carrier.layout), sw.TileSelection([[2, 3]])).wait()  # now 0 and 1 are oldest
    carrier.promote(sw.TileSet([(4,)]))
    assert carrier.primary_tiles == sw.TileSet([(0,), (1,), (3,), (4,)])
    carrier.flush(sw.TileSet([(0,)]))  # clean again, and the oldest
    carrier.promote(sw.TileSet([(5,)]))
    assert carrier.primary_tiles == sw.TileSet([(1,), (3,), (4,), (5,)])
    assert carrier[0] == 5.0


def test_tile_that_a_flush_made_clean_goes_before_all_dirty_ones(gradient: tuple[sw.Tensor, Counted]) -> None:
    carrier = gradient[0].carrier
    clean = TILES - SLOTS // 2
    carrier.flush(sw.TileSet([(clean,)]))
    written = carrier.statistics().bytes_written
    carrier.promote(sw.TileSet([(0,)]))
    assert (clean,) not in carrier.primary_tiles
    assert carrier.statistics().bytes_written == written
