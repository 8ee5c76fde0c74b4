"""A defined class as the secondary tier of tiled and evictable carriers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strideweave import CPU, DType, Layout, Tensor, TiledEvictable, TileSelection, TileSet
from strideweave.carriers.evictable import Evictable
from support.defined import defined, list_storage, run_storage


@pytest.mark.parametrize("storage", [list_storage, run_storage])
@pytest.mark.parametrize("layout", [Layout.row_major(4, 6), Layout.column_major(4, 6)])
def test_tiles_rest_in_a_defined_carrier(storage: Any, layout: Layout) -> None:
    values = torch.arange(24.0)
    secondary = defined(storage())(0, dtype=DType.Float32)
    tiled = TiledEvictable(CPU.wrap(values.clone()), secondary, (2, 3), (2, 2), layout=layout)
    x = Tensor(tiled, 0, layout)
    every = TileSelection([range(2), range(3)])
    tiled.evict(every)
    assert len(tiled.primary_tiles.coordinates) == 0
    assert secondary.size() == 24
    before = [x[k] for k in range(24)]
    assert before == [values[layout.index(k)].item() for k in range(24)]
    x[5] = -1.0
    tiled.evict(every)
    assert x[5] == -1.0
    picked = tiled.project(x, TileSelection([[1, 0], [2]])).wait()
    assert picked.shape.size == 8
    tiled.promote(TileSet([(0, 0)]))
    tiled.release()
    assert secondary.is_released()


def test_tiles_are_read_from_a_full_defined_carrier() -> None:
    cls = defined(run_storage())
    secondary = cls(8, dtype=DType.Float32)
    secondary._write_runs([(0, torch.arange(8.0))])
    tiled = TiledEvictable(CPU(0), secondary, (4,), (2,))
    assert [tiled[k] for k in range(8)] == list(range(8))
    tiled[3] = 9.0
    tiled.evict(TileSet([(1,)]))
    assert secondary.values[3] == 9.0


def test_failed_write_of_a_tile_leaves_it_in_primary() -> None:
    armed = {"on": True}
    plain = list_storage()

    def write(carrier: Any, i: int, value: Any) -> None:
        if armed["on"] and i == 3:
            raise OSError("bad sector")
        plain.write(carrier, i, value)

    tiled = TiledEvictable(
        CPU.wrap(torch.arange(4.0)), defined(list_storage(write=write))(0, dtype=DType.Float32), (2,), (2,)
    )
    with pytest.raises(OSError, match="bad sector"):
        tiled.evict(TileSet([(1,)]))
    assert tiled.tile_state((1,)).location == "primary"
    armed["on"] = False
    tiled.evict(TileSet([(1,)]))
    assert (tiled[3], tiled.tile_state((1,)).location) == (3.0, "secondary")


@pytest.mark.parametrize("storage", [list_storage, run_storage])
def test_whole_value_rests_in_a_defined_carrier(storage: Any) -> None:
    carrier = Evictable(CPU.wrap(torch.arange(3.0)), defined(storage())(0, dtype=DType.Float32))
    carrier.evict()
    carrier[1] = 7.0
    carrier.promote()
    assert [carrier[k] for k in range(3)] == [0.0, 7.0, 2.0]


def test_defined_carrier_is_a_primary_that_keeps_its_storage() -> None:
    primary = defined(run_storage())(2, dtype=DType.Float32)
    carrier = Evictable(primary, CPU(0))
    carrier[0] = 4.0
    carrier.evict()
    assert primary.size() == 0
    carrier.promote()
    assert (carrier[0], primary.size()) == (4.0, 2)
