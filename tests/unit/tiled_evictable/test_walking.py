"""Walks over tiles: what is seen in place, what passes through scratch, and what is on its way meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import strideweave as sw
from strideweave import CPU, Layout, Shape, Stride, Tensor, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable.engine import Pin
from strideweave.carriers.tiled_evictable.walking import Walk
from support.direct import SHEET, sheet
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile

COUNT = 12
SCRATCH_TILES = 3  # what is promised, whatever the code says


def strip(budget_tiles: int) -> tuple[TiledEvictable, Tensor, ScriptedCarrier]:
    """Twelve tiles of two values each, all in secondary."""
    secondary = ScriptedCarrier(torch.arange(2.0 * COUNT))
    carrier = TiledEvictable(CPU(0), secondary, (COUNT,), (2,), budget=8 * budget_tiles)
    return carrier, Tensor(carrier, 0, Layout.column_major(2 * COUNT)), secondary


@contextmanager
def walking(carrier: TiledEvictable, tensor: Tensor) -> Iterator[Walk]:
    """A walk while all tiles are pinned."""
    engine = carrier._engine
    with engine.guard:
        pin = Pin(engine, "a walk", in_thread=True)
        for tile in engine.tiles:
            pin.add(tile)
    walk = Walk(engine, tensor)
    try:
        yield walk
    finally:
        walk.close()
        with engine.guard:
            pin.close()


def value_of(k: int) -> list[float]:
    return [2.0 * k, 2.0 * k + 1]


def test_walk_sees_a_resident_tile_where_it_lies() -> None:
    carrier, x, secondary = strip(2)
    carrier.promote(TileSet([(3,)]))
    reads = secondary.reads
    with walking(carrier, x) as walk:
        seen = walk.view(3)
        assert seen.tolist() == value_of(3)
        slot = carrier._engine.tiles[3].slot
        assert slot is not None
        packed = carrier._engine.primary.packed(slot)
        assert packed is not None
        assert seen.data_ptr() == packed.data_ptr()
    assert secondary.reads == reads
    carrier.release()


def test_walk_fills_free_slots_and_leaves_resident_tiles_alone() -> None:
    carrier, x, _ = strip(3)
    carrier.promote(TileSet([(7,)]))
    with walking(carrier, x) as walk:
        assert [walk.view(k).tolist() for k in range(COUNT)] == [value_of(k) for k in range(COUNT)]
    assert carrier.primary_tiles == TileSet([(0,), (1,), (7,)])
    carrier.release()


def test_walk_reads_every_tile_once_and_in_order() -> None:
    carrier, x, secondary = strip(1)
    with walking(carrier, x) as walk:
        for k in range(COUNT):
            walk.expect(range(k, COUNT))
            assert walk.view(k).tolist() == value_of(k)
            assert walk._made <= SCRATCH_TILES
    assert secondary.reads == COUNT
    assert carrier.statistics().bytes_read == 8 * COUNT
    carrier.release()


def test_next_tiles_are_on_their_way_while_one_is_looked_at() -> None:
    carrier, x, secondary = strip(1)
    carrier.promote(TileSet([(11,)]))
    holds = [secondary.hold_read(2), secondary.hold_read(3)]
    with walking(carrier, x) as walk:
        walk.expect(range(COUNT))
        assert walk.view(0).tolist() == value_of(0)
        for hold in holds:
            hold.wait_until_reached()
        assert walk._made == SCRATCH_TILES, "no more than the one that is looked at and two that come"
        for hold in holds:
            hold.let_go()
        assert walk.view(1).tolist() == value_of(1)
    carrier.release()


def test_tile_that_is_looked_at_keeps_its_scratch() -> None:
    carrier, x, _ = strip(1)
    carrier.promote(TileSet([(11,)]))
    with walking(carrier, x) as walk:
        seen = walk.view(0)
        walk.expect(range(1, COUNT))
        walk.expect(range(4, COUNT))
        assert seen.tolist() == value_of(0)
    carrier.release()


def test_failed_read_is_raised_when_its_tile_is_looked_at_and_not_before() -> None:
    carrier, x, secondary = strip(1)
    carrier.promote(TileSet([(11,)]))
    secondary.fail_read(2, OSError("a bad sector"))
    with walking(carrier, x) as walk:
        walk.expect(range(COUNT))
        assert walk.view(0).tolist() == value_of(0)
        with pytest.raises(OSError, match="a bad sector"):
            walk.view(1)
    assert carrier.statistics().pinned_tiles == 0
    carrier.evict(every_tile(carrier))
    carrier.release()


def test_failed_load_into_a_free_slot_gives_the_slot_back() -> None:
    carrier, x, secondary = strip(2)
    secondary.fail_read(1, OSError("a bad sector"))
    with walking(carrier, x) as walk, pytest.raises(OSError, match="a bad sector"):
        walk.view(0)
    assert carrier.statistics().resident_tiles == 0
    with walking(carrier, x) as walk:
        assert walk.view(0).tolist() == value_of(0)
    carrier.release()


def test_close_waits_for_what_is_on_its_way() -> None:
    carrier, x, secondary = strip(1)
    carrier.promote(TileSet([(11,)]))
    with walking(carrier, x) as walk:
        walk.expect(range(COUNT))
    assert secondary.reads == 1 + SCRATCH_TILES
    carrier.release()
    assert carrier.is_released()


def test_operand_that_is_there_twice_is_read_once() -> None:
    carrier, x, secondary = sheet(budget_tiles=1)
    for result, expected in ((sw.mul(x, x), SHEET * SHEET), (sw.add(x, x), SHEET + SHEET)):
        reads = secondary.reads
        assert torch.equal(result.torch(), expected)
        assert secondary.reads == reads
    carrier.evict(every_tile(carrier))
    reads = secondary.reads
    sw.mul(x, x)
    assert secondary.reads == reads + 4
    carrier.release()


def test_one_carrier_in_two_layouts_is_two_operands() -> None:
    values = torch.arange(24.0)
    carrier = TiledEvictable(CPU(0), CPU.wrap(values.clone()), (6,), (4,), budget=16)
    shape = Shape([(2, 2, 6)])
    x, y = (Tensor(carrier, 0, Layout(shape, Stride([strides]))) for strides in ((1, 2, 4), (2, 1, 4)))
    turned = values.reshape(6, 2, 2).transpose(1, 2).reshape(-1)
    assert torch.equal(sw.mul(x, y).materialize().torch().permute(2, 1, 0).reshape(-1), values * turned)
    carrier.release()
