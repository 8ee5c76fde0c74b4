"""Projection, scatter and the tiles they are made of against dense torch, over any geometry, layout and residency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import strideweave as sw
from property.test_geometry import Leafy, dense_layout, geometries, grid, is_compatible, slot_table
from strideweave import CPU, DType, Layout, Tensor, TiledEvictable, TileSelection, TileSet, from_torch
from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.reading import TileReader
from strideweave.carriers.tiled_evictable.tiles_as_modes import TilesAsModes
from strideweave.carriers.tiled_evictable.writing import TileWriter
from support.operations import dense as dense_of
from support.scripted_carrier import ScriptedCarrier

Drawn = tuple[Geometry, list[Leafy], list[int]]
WHOLE = geometries()


@dataclass(frozen=True, slots=True)
class Case:
    """A carrier somewhere between its tiers, a Tensor over it, and the same values as a dense torch leaf."""

    carrier: TiledEvictable
    tensor: Tensor
    oracle: torch.Tensor


def numbers(draw: st.DrawFn, shape: list[int]) -> torch.Tensor:
    """Small whole numbers, so that every sum and product is exact."""
    seed = draw(st.integers(0, 2**16))
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).double()


@st.composite
def layouts(draw: st.DrawFn, geometries: st.SearchStrategy[Drawn]) -> tuple[Geometry, Layout]:
    """The geometry of a carrier and the layout of a compatible Tensor."""
    geometry, axes, order = draw(geometries.filter(lambda drawn: drawn[0].extent <= 200))
    flags = [flag for axis in axes for flag in (*(True for _ in axis.inner), *(False for _ in axis.outer))]
    within = [p for p, k in enumerate(order) if flags[k]]
    other = list(order)
    for p, k in zip(within, draw(st.permutations([order[p] for p in within])), strict=True):
        other[p] = k
    layout = dense_layout(axes, other)
    if not is_compatible(geometry, 0, layout):
        layout = geometry.layout
    return geometry, layout


@st.composite
def cases(draw: st.DrawFn, drawn: st.SearchStrategy[Drawn] = WHOLE) -> Case:
    geometry, layout = draw(layouts(drawn))
    grid_shape, tile_shape = geometry.grid_shape, geometry.tile_shape
    parts: dict[str, Any] = {"shape": geometry.logical_shape, "layout": geometry.layout}
    flat = numbers(draw, [geometry.extent])
    tiles = math.prod(grid_shape)
    if draw(st.booleans()):
        carrier = TiledEvictable(
            CPU.wrap(flat.clone()), ScriptedCarrier(dtype=DType.Float64), grid_shape, tile_shape, **parts
        )
        gone = draw(st.sets(st.sampled_from(grid(grid_shape))))
        carrier.evict(TileSet(gone))
    else:
        budget = draw(st.integers(1, tiles))
        carrier = TiledEvictable(
            CPU(0, dtype=DType.Float64),
            ScriptedCarrier(flat),
            grid_shape,
            tile_shape,
            **parts,
            budget=budget * math.prod(tile_shape) * 8,
        )
        come = draw(st.lists(st.sampled_from(grid(grid_shape)), unique=True, max_size=budget))
        carrier.promote(TileSet(come))
    oracle = flat[torch.from_numpy(slot_table(layout))].requires_grad_()
    return Case(carrier, Tensor(carrier, 0, layout, requires_grad=True), oracle)


def selections(grid_shape: tuple[int, ...], most: int) -> st.SearchStrategy[TileSelection]:
    axes = [st.lists(st.integers(0, n - 1), min_size=1, unique=True) for n in grid_shape]
    return st.builds(TileSelection, st.tuples(*axes)).filter(lambda s: len(s.coordinates) <= most)


def region(values: torch.Tensor, selection: TileSelection, tile_shape: tuple[int, ...]) -> torch.Tensor:
    """The selected tiles of dense values, one after the other along every axis."""
    for k, (axis, t) in enumerate(zip(selection.per_axis, tile_shape, strict=True)):
        parts = values.split(t, k)
        values = torch.cat([parts[c] for c in axis], k)
    return values


def put(whole: torch.Tensor, selection: TileSelection, tile_shape: tuple[int, ...], held: torch.Tensor) -> torch.Tensor:
    """`held` at the selected region of `whole`."""
    flat = torch.arange(whole.numel()).reshape(whole.shape)
    at = region(flat, selection, tile_shape).reshape(-1)
    return whole.reshape(-1).index_put((at,), held.reshape(-1)).reshape(whole.shape)


def value_of(gradient: Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return dense_of(gradient.materialize() if isinstance(gradient.carrier, TiledEvictable) else gradient)


@given(cases(), st.data())
def test_gradients_of_any_program_equal_those_of_dense_torch(case: Case, data: st.DataObject) -> None:
    check_program(case, data)


def check_program(case: Case, data: st.DataObject) -> None:
    carrier, tile_shape = case.carrier, case.carrier.tile_shape
    capacity = carrier.statistics().slots
    losses: list[Tensor] = []
    expected: list[torch.Tensor] = []
    leaves: list[tuple[Tensor, torch.Tensor]] = []
    touched: set[tuple[int, ...]] = set()
    for _ in range(data.draw(st.integers(1, 3))):
        selection = data.draw(selections(carrier.grid_shape, capacity))
        kind = data.draw(st.sampled_from(["project", "square", "replace", "add"]))
        if kind in ("project", "square"):
            compact = carrier.project(case.tensor, selection).wait(5)
            chosen = region(case.oracle, selection, tile_shape)
            touched |= set(selection.coordinates)
        else:
            values = numbers(data.draw, list(region(case.oracle, selection, tile_shape).shape))
            mine, theirs = from_torch(values.clone()).requires_grad_(), values.clone().requires_grad_()
            leaves.append((mine, theirs))
            result = carrier.scatter(mine, case.tensor, selection, kind).wait(5)
            assert isinstance(result.carrier, TiledEvictable)
            again = TileSelection([data.draw(st.permutations(axis)) for axis in selection.per_axis])
            compact = result.carrier.project(result, again).wait(5)
            held = theirs + region(case.oracle, selection, tile_shape) if kind == "add" else theirs
            whole = put(torch.zeros_like(case.oracle.detach()), selection, tile_shape, held)
            chosen = region(whole, again, tile_shape)
            touched |= set(selection.coordinates) if kind == "add" else set()
        assert torch.equal(dense_of(compact), chosen.detach())
        weights = numbers(data.draw, list(chosen.shape))
        scaled = compact * compact if kind == "square" else compact
        losses.append(sw.reduce_sum(scaled * from_torch(weights)))
        expected.append(((chosen * chosen if kind == "square" else chosen) * weights).sum())
    if data.draw(st.booleans()):
        total, oracle_total = losses[0], expected[0]
        for loss, other in zip(losses[1:], expected[1:], strict=True):
            total, oracle_total = total + loss, oracle_total + other
        losses, expected = [total], [oracle_total]
    for loss, other in zip(losses, expected, strict=True):
        loss.backward()
        other.backward()
    if case.tensor.grad is None:
        assert case.oracle.grad is None
    else:
        gradient = case.tensor.grad.carrier
        assert isinstance(gradient, TiledEvictable)
        assert gradient.valid_tiles == TileSet(grid(carrier.grid_shape))
        where = {c: gradient.tile_state(c).location for c in grid(carrier.grid_shape)}
        assert {c for c in where if where[c] != "implicit"} <= touched
        assert gradient.statistics().resident_tiles <= capacity
        zeros = torch.zeros_like(case.oracle.detach())
        assert torch.equal(value_of(case.tensor.grad), zeros if case.oracle.grad is None else case.oracle.grad)
    for mine, theirs in leaves:
        assert theirs.grad is not None
        assert torch.equal(value_of(mine.grad), theirs.grad)
    assert carrier.statistics().pinned_tiles == 0
    carrier.release()


@given(cases(), st.randoms(use_true_random=False))
def test_tiles_as_modes_are_the_regions_of_the_dense_values(case: Case, random: object) -> None:
    check_tiles_as_modes(case, random)


def check_tiles_as_modes(case: Case, random: object) -> None:
    carrier, layout = case.carrier, case.tensor.layout
    dense = case.oracle.detach()
    reader = TileReader(case.tensor, carrier._geometry, "read")
    fresh = carrier.allocate_like(carrier.size(), empty=True)
    writer = TileWriter(fresh)
    order = grid(carrier.grid_shape)
    random.shuffle(order)  # type: ignore[attr-defined]
    for coordinate in order:
        wanted = region(dense, TileSelection([[c] for c in coordinate]), carrier.tile_shape)
        with reader.tile(carrier._geometry.ordinal(coordinate)) as found:
            assert torch.equal(found, wanted)
            writer.put(coordinate, found + 1, layout)
    written = Tensor(fresh, 0, layout)
    assert torch.equal(value_of(written), dense + 1)
    assert fresh.statistics().resident_tiles <= fresh.statistics().slots
    for coordinate in order:  # a second round over tiles that are primary or have been spilled
        writer.put(coordinate, region(dense, TileSelection([[c] for c in coordinate]), carrier.tile_shape), layout)
    assert torch.equal(value_of(written), dense)


@given(cases())
def test_tiles_picked_by_order_are_those_seen_as_boxes(case: Case) -> None:
    check_order_and_boxes(case)


def check_order_and_boxes(case: Case) -> None:
    engine, layout = case.carrier._engine, case.tensor.layout
    boxed, picked = TilesAsModes(engine, 0, layout), TilesAsModes(engine, 0, layout)
    assert None not in boxed._boxes
    picked._boxes = (None,) * len(boxed._boxes)
    for ordinal in range(engine.geometry.tiles):
        size = engine.geometry.elems_of(ordinal)
        packed, again = torch.arange(float(size), dtype=torch.float64), torch.empty(size, dtype=torch.float64)
        values = boxed.of_packed(ordinal, packed)
        assert torch.equal(values, picked.of_packed(ordinal, packed))
        picked.put_packed(ordinal, again, values)
        assert torch.equal(again, packed)
        slot = engine.tiles[ordinal].slot
        if slot is not None:
            assert torch.equal(picked.of_slot(ordinal, slot), boxed.of_slot(ordinal, slot))
            picked.put_slot(ordinal, slot, values)
            assert torch.equal(boxed.of_slot(ordinal, slot), values)


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda dtype: dtype.name)
def test_tiles_as_modes_write_and_read_every_dtype(dtype: DType) -> None:
    carrier = TiledEvictable(CPU(12, dtype=dtype), ScriptedCarrier(dtype=dtype), (2, 1), (3, 2))
    values = torch.tensor([[1, 0], [0, 1], [1, 1]]).to(dtype.torch_dtype)
    for is_box in (True, False):
        views = TilesAsModes(carrier._engine, 0, carrier.layout)
        if not is_box:
            views._boxes = (None,)
        packed = torch.zeros(6, dtype=dtype.torch_dtype)
        for ordinal in range(2):
            views.put_slot(ordinal, ordinal, values)
            views.put_packed(ordinal, packed, values)
            for found in (views.of_slot(ordinal, ordinal), views.of_packed(ordinal, packed)):
                assert torch.equal(found.contiguous().view(torch.uint8), values.contiguous().view(torch.uint8))
