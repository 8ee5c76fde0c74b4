"""Ragged last tiles in every call of a tiled carrier: a 5 x 7 matrix in tiles of 2 x 3."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import strideweave as sw
from strideweave import (
    CPU,
    LRU,
    BudgetExceeded,
    CheckpointFile,
    DType,
    FileBacked,
    Layout,
    Shape,
    Stride,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.carriers.checkpoint_file import Piece
from strideweave.carriers.tiled_evictable import Pinned
from strideweave.carriers.tiled_evictable.compatibility import _is_alike
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.io import SourceFile
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, locations, slots_of

GRID, TILE, SHAPE = (3, 3), (2, 3), (5, 7)
DENSE = torch.arange(1.0, 36.0).reshape(SHAPE)
ROW_MAJOR = Layout.row_major(*SHAPE)
EVERY = TileSelection([range(3), range(3)])


def ragged(
    primary: Any = None, secondary: Any = None, *, layout: Layout = ROW_MAJOR, **options: Any
) -> tuple[TiledEvictable, Tensor]:
    """The matrix over these tiers, all of it in primary unless one is given."""
    carrier = TiledEvictable(
        CPU.wrap(slots(layout)) if primary is None else primary,
        ScriptedCarrier() if secondary is None else secondary,
        GRID,
        TILE,
        shape=SHAPE,
        layout=layout,
        **options,
    )
    return carrier, Tensor(carrier, 0, layout)


def slots(layout: Layout = ROW_MAJOR) -> torch.Tensor:
    """The values as they lie in a full tier."""
    flat = torch.empty(35)
    flat.as_strided(SHAPE, [mode.leaves()[0][1] for mode in layout]).copy_(DENSE)
    return flat


def block(coordinate: tuple[int, ...]) -> torch.Tensor:
    (i, j), (m, n) = coordinate, TILE
    return DENSE[i * m : i * m + m, j * n : j * n + n]


def value_of(tensor: Tensor) -> torch.Tensor:
    return tensor.materialize().torch()


# -- making one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid_shape", "tile_shape", "shape", "error", "words"),
    [
        ((3, 3), (2, 3), (4, 7), ValueError, r"shape \(4, 7\).*it takes \(2, 3\) tiles.*rounded up"),
        ((3, 3), (2, 3), (7, 7), ValueError, r"shape \(7, 7\).*it takes \(4, 3\) tiles"),
        ((3, 3), (2, 3), (5,), ValueError, "ranks are 1 and 2"),
        ((3,), (2,), (0,), ValueError, "0 in shape: extents must be positive"),
        ((3,), (2,), (5.0,), TypeError, "5.0 in shape: extents must be integers"),
        ((3,), (2,), 5, TypeError, "shape from 5: it must be a finite iterable"),
    ],
)
def test_shape_that_the_grid_does_not_cover_is_refused(
    grid_shape: Any, tile_shape: Any, shape: Any, error: type[Exception], words: str
) -> None:
    primary, secondary = CPU(0), ScriptedCarrier()
    with pytest.raises(error, match=words):
        TiledEvictable(primary, secondary, grid_shape, tile_shape, shape=shape)
    assert not primary.is_owned()
    assert not secondary.is_owned()


def test_layout_and_full_tiers_are_of_the_shape_without_padding() -> None:
    with pytest.raises(ValueError, match=r"sizes \(6, 9\) and the logical shape .* is \(5, 7\)"):
        TiledEvictable(CPU(0), ScriptedCarrier(), GRID, TILE, shape=SHAPE, layout=Layout.row_major(6, 9))
    with pytest.raises(ValueError, match=r"as primary: it has 54 slots and the tiles have 35"):
        TiledEvictable(CPU(54), ScriptedCarrier(), GRID, TILE, shape=SHAPE)
    carrier, _ = ragged()
    assert (carrier.logical_shape, carrier.tile_shape, carrier.size()) == (SHAPE, TILE, 35)
    assert carrier.layout == ROW_MAJOR
    assert repr(carrier).startswith("<TiledEvictable(5, 7) of ")
    assert "9 of 9 tiles (24 B each)" in repr(carrier)


def test_mode_whose_leaves_the_tiles_cut_is_refused_and_says_so() -> None:
    nested = Layout(Shape(2, (3, 3)), Stride(3, (1, 6)))
    with pytest.raises(ValueError, match=r"2 leaves after coalescing.*count 3 coordinates, and tiles of 4 cut through"):
        TiledEvictable(CPU(0), ScriptedCarrier(), (1, 3), (2, 4), shape=(2, 9), layout=nested)
    on_leaves = TiledEvictable(
        CPU.wrap(torch.arange(18.0)), ScriptedCarrier(), (1, 2), (2, 6), shape=(2, 9), layout=nested
    )
    weight = Tensor(on_leaves, 0, nested)
    last = on_leaves.project(weight, TileSelection([[0], [1]])).wait()
    assert last.torch().tolist() == [[12.0, 13.0, 14.0], [15.0, 16.0, 17.0]]
    coalesced = Layout(Shape((5,), (7,)), Stride((7,), (1,)))
    assert ragged(layout=coalesced)[0].size() == 35


def test_kinds_of_tiles_are_a_handful_whatever_the_grid() -> None:
    geometry = Geometry.make((200, 300), (3, 4), shape=(599, 1199))
    assert [f.extents for f in geometry.footprints] == [(3, 4), (2, 4), (3, 3), (2, 3)]
    assert len(Geometry.make((200, 300), (3, 4), shape=(599, 1200)).footprints) == 2
    assert len(Geometry.make((1, 300), (3, 4), shape=(2, 1200)).footprints) == 1, "one tile, cut, is no second kind"
    assert not Geometry.make((2,), (3,), shape=(6,)).is_ragged


def test_axis_whose_last_tile_steps_otherwise_is_not_taken_for_alike() -> None:
    """Then every tile is compared on its own, and not one for all of its kind."""
    whole = [0, 1, 5, 6]
    assert _is_alike(np.array([*whole, 10, 11, 15, 16, 20, 21]), 4)
    assert not _is_alike(np.array([*whole, 10, 11, 15, 16, 20, 22]), 4)
    assert not _is_alike(np.array([*whole, 10, 11, 14, 16, 20, 21]), 4)


# -- residency and tiers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [ROW_MAJOR, Layout.column_major(*SHAPE)], ids=["row", "column"])
def test_evicted_and_promoted_tiles_keep_their_values(layout: Layout) -> None:
    carrier, weight = ragged(layout=layout)
    carrier.evict(every_tile(carrier))
    assert carrier.statistics().bytes_written == 35 * 4, "a ragged tile is as long as its slots"
    assert torch.equal(slots_of(carrier), slots(layout))
    carrier.promote(TileSet([(2, 2), (0, 0), (1, 2)]))
    assert locations(carrier)[2, 2] == "primary"
    assert torch.equal(value_of(weight), DENSE)
    carrier.release()


@pytest.mark.parametrize("budget_tiles", [1, 2, 9])
@pytest.mark.parametrize("layout", [ROW_MAJOR, Layout.column_major(*SHAPE)], ids=["row", "column"])
def test_full_secondary_is_read_where_it_lies_and_written_there(layout: Layout, budget_tiles: int) -> None:
    secondary = ScriptedCarrier(slots(layout))
    carrier, weight = ragged(CPU(0), secondary, layout=layout, budget=24 * budget_tiles)
    assert torch.equal(value_of(weight), DENSE)
    assert carrier.statistics().bytes_read == 35 * 4
    weight[4, 6] = -1.0
    weight[2, 6] = -2.0
    carrier.flush()
    expected = slots(layout)
    expected[layout.index((4, 6))] = -1.0
    expected[layout.index((2, 6))] = -2.0
    assert [secondary[k] for k in range(35)] == expected.tolist()
    assert carrier.statistics().bytes_written in (4 + 8, 8 + 4)
    carrier.release()


def test_budget_counts_whole_tiles_and_refuses_what_does_not_fit() -> None:
    carrier, _ = ragged(CPU(0), ScriptedCarrier(slots()), budget=100)
    assert (carrier.tile_nbytes, carrier.statistics().slots) == (24, 4)
    with pytest.raises(BudgetExceeded, match=r"5 tiles \(120 B\)"):
        carrier.promote(TileSet([(2, 2), (2, 1), (2, 0), (0, 2), (1, 2)]))
    carrier.promote(TileSet([(2, 2), (2, 1), (2, 0), (0, 2)]))
    with pytest.raises(ValueError, match="at least one tile"):
        ragged(CPU(0), budget=23)
    carrier.release()


def test_slot_of_a_ragged_tile_serves_a_whole_one_next() -> None:
    carrier, weight = ragged(CPU(0), ScriptedCarrier(slots()), budget=24)
    for coordinate in ((2, 2), (0, 0), (2, 0), (0, 2), (0, 0)):
        carrier.promote(TileSet([coordinate]))
        with carrier.borrow(TileSet([coordinate])) as views:
            assert torch.equal(views[coordinate], block(coordinate))
    assert torch.equal(value_of(weight), DENSE)
    carrier.release()


@pytest.mark.parametrize("make", [FileBacked, ScriptedCarrier, lambda: CPU(0)], ids=["file", "runs", "memory"])
def test_empty_secondary_of_any_kind_takes_exactly_the_extent(make: Callable[[], Any]) -> None:
    secondary = make()
    carrier, weight = ragged(None, secondary)
    carrier.evict(TileSet([(2, 2), (1, 1), (2, 0)]))
    assert secondary.size() == 35
    carrier.evict(every_tile(carrier))
    assert torch.equal(value_of(weight), DENSE)
    carrier.release()


def test_checkpoint_is_read_and_its_changed_tiles_go_to_an_overlay(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(slots().numpy().tobytes())
    checkpoint = CheckpointFile([Piece(SourceFile(path), 0, 140)], dtype=DType.Float32)
    carrier, weight = ragged(CPU(0), checkpoint, budget=24)
    expected = DENSE.clone()
    for i, j in ((4, 6), (0, 0), (4, 0), (0, 6)):
        weight[i, j] = -1.0
        expected[i, j] = -1.0
    assert torch.equal(value_of(weight), expected)
    assert path.read_bytes() == slots().numpy().tobytes()
    carrier.release()


# -- values in and out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_axis", list(itertools.product(([2], [2, 0], [1, 2, 0], [0, 1]), repeat=2)), ids=repr)
@pytest.mark.parametrize("where", ["primary", "secondary", "through"])
def test_project_of_a_ragged_tile_at_any_place_is_torch_indexing(per_axis: Any, where: str) -> None:
    if where == "through":
        carrier, weight = ragged(CPU(0), ScriptedCarrier(slots()), budget=24)
    else:
        carrier, weight = ragged()
    if where == "secondary":
        carrier.evict(every_tile(carrier))
    rows, columns = (
        torch.cat([torch.arange(n).split(t)[c] for c in axis]) for axis, t, n in zip(per_axis, TILE, SHAPE, strict=True)
    )
    compact = carrier.project(weight, TileSelection(per_axis)).wait()
    assert torch.equal(compact.torch(), DENSE[rows][:, columns])
    assert compact.layout == Layout.row_major(len(rows), len(columns))
    carrier.release()


def test_project_of_one_ragged_row_of_tiles_needs_only_its_extent_in_the_destination() -> None:
    carrier, weight = ragged()
    corner = TileSelection([[2], [2]])
    assert carrier.project(weight, corner, CPU(1)).wait().torch().tolist() == [[35.0]]
    with pytest.raises(ValueError, match="too small"):
        carrier.project(weight, TileSelection([[2], [1]]), CPU(2))
    carrier.release()


@pytest.mark.parametrize("reduction", ["replace", "add"])
def test_scatter_puts_a_compact_of_ragged_extents_back(reduction: str) -> None:
    carrier, weight = ragged()
    selection = TileSelection([[2, 0], [1, 2]])
    with pytest.raises(ValueError, match=r"compact shape is .*3.*4"):
        carrier.scatter(sw.from_torch(torch.ones(4, 6)), weight, selection)
    values = torch.arange(12.0).reshape(3, 4)
    result = carrier.scatter(sw.from_torch(values), weight, selection, reduction).wait()
    before = carrier.project(weight, selection).wait().torch()
    found = result.carrier.project(result, selection).wait().torch()
    assert torch.equal(found, values + before if reduction == "add" else values)
    assert result.carrier.logical_shape == SHAPE
    assert {c for c, where in locations(result.carrier).items() if where == "primary"} == set(selection.coordinates)
    assert result.carrier.dirty_tiles == selection.tile_set


def test_gradient_of_projections_is_ragged_and_equal_to_torch() -> None:
    carrier, weight = ragged(CPU(0), ScriptedCarrier(slots()), budget=48)
    weight.requires_grad_()
    dense = DENSE.clone().requires_grad_()
    one = carrier.project(weight, TileSelection([[2, 0], [2]])).wait()
    other = carrier.project(weight, TileSelection([[2], [2, 1]])).wait()
    (sw.reduce_sum(one * one) + sw.reduce_sum(other * 3.0)).backward()
    ((dense[[4, 0, 1]][:, 6:] ** 2).sum() + (dense[4:, [6, 3, 4, 5]] * 3.0).sum()).backward()
    assert weight.grad is not None
    gradient = weight.grad.carrier
    assert isinstance(gradient, TiledEvictable)
    assert (gradient.logical_shape, gradient.grid_shape) == (SHAPE, GRID)
    assert {c for c, w in locations(gradient).items() if w != "implicit"} == {(2, 2), (0, 2), (2, 1)}
    assert torch.equal(value_of(weight.grad), dense.grad)
    (sw.reduce_sum(carrier.project(weight, EVERY).wait()) * 2.0).backward()
    assert torch.equal(value_of(weight.grad), dense.grad + 2.0)
    carrier.release()


def test_borrowed_and_streamed_views_have_the_tiles_own_extents() -> None:
    carrier, _ = ragged(CPU(0), ScriptedCarrier(slots()), budget=48)
    with carrier.borrow(TileSet([(2, 2), (0, 2)])) as views:
        assert {c: tuple(view.shape) for c, view in views.items()} == {(2, 2): (1, 1), (0, 2): (2, 1)}
        assert all(torch.equal(view, block(c)) for c, view in views.items())
    with carrier.stream(every_tile(carrier)) as stream:
        seen = {c: view.clone() for c, view in stream}
    assert len(seen) == 9
    assert all(torch.equal(view, block(c)) for c, view in seen.items())
    with pytest.raises(RuntimeError, match="read-only"), carrier.borrow(TileSet([(2, 2)])) as views:
        views[2, 2].zero_()
    assert carrier[34] == 35.0
    carrier.release()


def test_elements_are_read_and_written_at_every_slot() -> None:
    for layout in (ROW_MAJOR, Layout.column_major(*SHAPE)):
        carrier, weight = ragged(CPU(0), ScriptedCarrier(slots(layout)), layout=layout, budget=24)
        for i, j in itertools.product(range(5), range(7)):
            weight[i, j] = 100.0 + weight[i, j]
        assert torch.equal(value_of(weight), DENSE + 100.0)
        assert carrier.version == 35
        with pytest.raises(IndexError, match="35 slots"):
            carrier[35]
        carrier.release()


def test_tensor_over_padding_or_out_of_its_tile_is_refused() -> None:
    carrier, _ = ragged(layout=Layout.column_major(*SHAPE))
    for layout in (ROW_MAJOR, Layout.column_major(6, 9)):
        with pytest.raises((ValueError, IndexError)):
            carrier.project(Tensor(carrier, 0, layout), EVERY)
    carrier.release()


def test_tensor_that_permutes_within_ragged_tiles_is_compatible() -> None:
    # Axis 0 is whole in every tile, and runs in another order than in the carrier's own layout.
    carrier = TiledEvictable(CPU.wrap(torch.arange(20.0)), ScriptedCarrier(), (1, 3), (4, 2), shape=(4, 5))
    turned = Tensor(carrier, 0, Layout(Shape((2, 2), 5), Stride((2, 1), 4)))
    expected = torch.tensor([[4.0 * j + 2 * (i % 2) + i // 2 for j in range(5)] for i in range(4)])
    for selection in ([[0], [2, 0]], [[0], [2]], [[0], [1, 2]]):
        columns = [k for c in selection[1] for k in range(2 * c, min(2 * c + 2, 5))]
        found = carrier.project(turned, TileSelection(selection)).wait()
        assert torch.equal(found.torch().reshape(4, -1), expected[:, columns])
    carrier.release()


# -- others like it, and the file --------------------------------------------------------------------------------------


def test_carriers_made_like_it_have_the_same_ragged_tiles() -> None:
    carrier, _ = ragged(CPU(0), ScriptedCarrier(slots()), budget=48)
    zeros = carrier.allocate_like(35)
    full = carrier.new_like(slots().tolist())
    for made in (zeros, full):
        assert (made.logical_shape, made.tile_shape, made.layout, made.size()) == (SHAPE, TILE, ROW_MAJOR, 35)
    assert zeros.statistics().slots == 2
    assert torch.equal(value_of(Tensor(zeros, 0, ROW_MAJOR)), torch.zeros(SHAPE))
    assert torch.equal(value_of(Tensor(full, 0, ROW_MAJOR)), DENSE)
    with pytest.raises(ValueError, match="35"):
        carrier.allocate_like(54)
    carrier.release()


@pytest.mark.parametrize("policy", [None, LRU(), Pinned(TileSet([(2, 2)]))], ids=["none", "lru", "pinned"])
def test_policies_see_ragged_tiles_as_tiles(policy: Any) -> None:
    carrier, weight = ragged(CPU(0), ScriptedCarrier(slots()), budget=48, residency_policy=policy)
    for _ in range(2):
        assert torch.equal(value_of(weight), DENSE)
    carrier.release()


def test_store_of_ragged_tiles_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "weights.tiles"
    carrier, _ = ragged(None, FileBacked(path))
    carrier.flush()
    assert carrier.statistics().bytes_written == 140
    carrier.release()
    again = TiledEvictable.open(path, budget=24)
    assert (again.logical_shape, again.grid_shape, again.tile_shape, again.layout) == (SHAPE, GRID, TILE, ROW_MAJOR)
    weight = Tensor(again, 0, ROW_MAJOR)
    assert torch.equal(value_of(weight), DENSE)
    assert again.statistics().bytes_read == 140
    weight[4, 6] = -1.0
    again.flush()
    again.release()
    with pytest.raises(ValueError, match=r"tile \(2, 3\), shape \(6, 9\).*it holds .*shape \(5, 7\)"):
        TiledEvictable(CPU(0), FileBacked.open(path, dtype=DType.Float32, size=0), GRID, TILE)
    found = TiledEvictable.open(path)
    assert found[34] == -1.0
    assert found[33] == 34.0
    found.release()


def test_pickled_ragged_carriers_are_opened_again(tmp_path: Path) -> None:
    stored, plain = tmp_path / "weights.tiles", tmp_path / "weights.bin"
    plain.write_bytes(slots().numpy().tobytes())
    for primary, secondary in (
        (None, FileBacked(stored)),
        (CPU(0), FileBacked.open(plain, dtype=DType.Float32)),
    ):
        carrier, weight = ragged(primary, secondary)
        carrier.flush()
        copied = pickle.loads(pickle.dumps(weight))
        assert copied.carrier.logical_shape == SHAPE
        assert torch.equal(value_of(copied), DENSE)
        carrier.release()
        copied.carrier.release()


def test_forked_child_reads_ragged_tiles() -> None:
    carrier, weight = ragged()
    carrier.evict(TileSet([(2, 2), (0, 1)]))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        clean = carrier.project(weight, TileSelection([[2], [2]])).wait().torch().tolist()
        os.write(writer, repr((clean, carrier[34])).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "([[35.0]], 35.0)"
    assert os.waitpid(child, 0)[1] == 0
    carrier.release()


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda dtype: dtype.name)
def test_ragged_tiles_of_every_dtype_go_out_and_come_back(dtype: Any) -> None:
    values = (torch.arange(35) % 2).to(dtype.torch_dtype)
    carrier = TiledEvictable(
        CPU.wrap(values.clone()), FileBacked(dtype=dtype), GRID, TILE, shape=SHAPE, layout=ROW_MAJOR
    )
    carrier.evict(every_tile(carrier))
    found = value_of(Tensor(carrier, 0, ROW_MAJOR)).reshape(-1)
    assert torch.equal(found.view(torch.uint8), values.view(torch.uint8))
    carrier.release()
