"""Random requests against a dense torch tensor and a dictionary of tile states."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strideweave import (
    CPU,
    LRU,
    BudgetExceeded,
    FileBacked,
    Layout,
    Shape,
    Stride,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from support.scripted_carrier import ScriptedCarrier
from support.tiled import Coordinate, coordinates

PATIENCE_S = 10.0

GEOMETRIES: list[tuple[tuple[int, ...], tuple[int, ...], Layout]] = [
    ((5,), (3,), Layout.column_major(15)),
    ((4, 1, 1), (1, 2, 3), Layout.row_major(4, 2, 3)),
    ((2, 3), (2, 2), Layout.column_major(4, 6)),
    ((2, 3), (2, 2), Layout.row_major(4, 6)),
    ((2, 2), (2, 2), Layout(Shape((2, 2), (2, 2)), Stride((1, 4), (2, 8)))),
    ((2, 2), (2, 2), Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8)))),
]


@dataclass
class Expected:
    """What is known of a tile. `location` is exact while there is room for every tile."""

    location: str
    dirty: bool = False
    stored: bool = False


@dataclass
class Request:
    """A pending handle: the tiles it covers, and what it should give."""

    handle: Any
    kind: str
    tiles: set[Coordinate]
    result: torch.Tensor | None = None


class ResidencyMachine(RuleBasedStateMachine):
    @initialize(
        geometry=st.sampled_from(GEOMETRIES),
        start=st.sampled_from(["primary", "secondary", "checkpoint", "file"]),
        budget_tiles=st.one_of(st.none(), st.integers(1, 4)),
        lru=st.booleans(),
    )
    def start(self, geometry: Any, start: str, budget_tiles: int | None, lru: bool) -> None:
        grid_shape, tile_shape, layout = geometry
        self.grid_shape, self.tile_shape = grid_shape, tile_shape
        self.flat = torch.arange(1.0, layout.size + 1)
        self.original = self.flat.clone()
        self.slots = _slot_table(layout)
        self.secondary: ScriptedCarrier | FileBacked
        if start == "primary":
            self.secondary = ScriptedCarrier()
            budget_tiles = None
        elif start == "file":
            self.secondary = FileBacked(size=layout.size)
            self.secondary._write_runs([(0, self.flat)])
        else:
            self.secondary = ScriptedCarrier(self.flat, mutable=start == "secondary")
        self.checkpoint = self.secondary if start == "checkpoint" else None
        tile_elems = int(np.prod(tile_shape))
        self.carrier = TiledEvictable(
            CPU.wrap(self.flat.clone()) if start == "primary" else CPU(0),
            self.secondary,
            grid_shape,
            tile_shape,
            layout=layout,
            budget=None if budget_tiles is None else budget_tiles * tile_elems * 4,
            residency_policy=LRU() if lru else None,
        )
        self.tensor = Tensor(self.carrier, 0, layout)
        self.all = coordinates(self.carrier)
        self.exact = budget_tiles is None or budget_tiles >= len(self.all)
        at_start = start == "primary"
        self.states = {c: Expected("primary" if at_start else "secondary", stored=not at_start) for c in self.all}
        self.version = 0
        self.pending: list[Request] = []
        self.borrows: list[tuple[ExitStack, set[Coordinate]]] = []

    # -- choosing ------------------------------------------------------------------------------------------------

    def busy(self) -> set[Coordinate]:
        return set().union(*(r.tiles for r in self.pending), *(tiles for _, tiles in self.borrows))

    def choose(self, data: st.DataObject, free_of: set[Coordinate]) -> list[Coordinate]:
        """Some tiles. What is drawn never depends on timing, so that a failure replays: the busy ones go afterwards."""
        drawn = data.draw(st.lists(st.sampled_from(self.all), max_size=4, unique=True))
        return [c for c in drawn if c not in free_of]

    def may_not_fit(self, wanted: set[Coordinate]) -> bool:
        return len(self.busy() | wanted) > self.carrier.statistics().slots

    def block(self, tile: Coordinate) -> torch.Tensor:
        corner = tuple(slice(c * t, (c + 1) * t) for c, t in zip(tile, self.tile_shape, strict=True))
        return self.flat[torch.from_numpy(self.slots[corner].copy())]

    def leave(self, tile: Coordinate) -> None:
        state = self.states[tile]
        if state.location == "primary":
            state.location, state.dirty, state.stored = "secondary", False, True

    def arrive(self, tile: Coordinate) -> None:
        self.states[tile].location = "primary"

    # -- residency -----------------------------------------------------------------------------------------------

    @rule(data=st.data(), blocking=st.booleans())
    def promote(self, data: st.DataObject, blocking: bool) -> None:
        wanted = set(self.choose(data, self.claimed()))
        may_not_fit = self.may_not_fit(wanted)
        try:
            handle = self.carrier.promote_async(TileSet(wanted))
        except BudgetExceeded:
            assert may_not_fit
            return
        assert len(wanted) <= self.carrier.statistics().slots
        self.pending.append(Request(handle, "promote", wanted))
        if blocking:
            self.finish(self.pending.pop(), may_not_fit)

    @rule(data=st.data(), blocking=st.booleans())
    def evict(self, data: st.DataObject, blocking: bool) -> None:
        wanted = set(self.choose(data, self.busy()))
        request = Request(self.carrier.evict_async(TileSet(wanted)), "evict", wanted)
        if blocking:
            self.finish(request)
        else:
            self.pending.append(request)

    def claimed(self) -> set[Coordinate]:
        return set().union(*(r.tiles for r in self.pending if r.kind != "project"))

    # -- use -----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), blocking=st.booleans(), given_destination=st.booleans())
    def project(self, data: st.DataObject, blocking: bool, given_destination: bool) -> None:
        per_axis = [
            data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3, unique=True)) for n in self.grid_shape
        ]
        selection = TileSelection(per_axis)
        wanted = set(selection.coordinates)
        if wanted & self.claimed():
            return
        rows = [[c * t + k for c in axis for k in range(t)] for axis, t in zip(per_axis, self.tile_shape, strict=True)]
        expected = self.flat[torch.from_numpy(self.slots[np.ix_(*rows)])]
        destination = CPU(expected.numel() + 2) if given_destination else None
        request = Request(self.carrier.project(self.tensor, selection, destination), "project", wanted, expected)
        if blocking:
            self.finish(request)
        else:
            self.pending.append(request)

    @rule(data=st.data(), leave_after=st.integers(0, 5))
    def stream(self, data: st.DataObject, leave_after: int) -> None:
        wanted = set(self.choose(data, self.claimed()))
        may_not_fit = self.may_not_fit(wanted) and self.may_not_fit({(-1,)})
        seen: list[Coordinate] = []
        try:
            with self.carrier.stream(TileSet(wanted)) as stream:
                for coordinate, view in stream:
                    assert torch.equal(_flatten(view), _flatten_block(self.block(coordinate), view))
                    seen.append(coordinate)
                    if len(seen) > leave_after:
                        break
        except BudgetExceeded:
            assert may_not_fit
        assert len(set(seen)) == len(seen)
        if self.exact:
            for coordinate in wanted:
                self.arrive(coordinate)
        assert leave_after < 5 or may_not_fit or set(seen) == wanted

    @rule(data=st.data(), keep=st.booleans())
    def borrow(self, data: st.DataObject, keep: bool) -> None:
        wanted = set(self.choose(data, self.claimed()))
        may_not_fit = self.may_not_fit(wanted)
        with ExitStack() as stack:
            try:
                views = stack.enter_context(self.carrier.borrow(TileSet(wanted)))
            except BudgetExceeded:
                assert may_not_fit
                return
            assert set(views) == wanted
            for coordinate, view in views.items():
                assert torch.equal(_flatten(view), _flatten_block(self.block(coordinate), view))
                self.arrive(coordinate)
            if keep and len(self.borrows) < 2:
                self.borrows.append((stack.pop_all(), wanted))

    @rule()
    def give_back(self) -> None:
        if self.borrows:
            self.borrows.pop()[0].close()

    @rule(data=st.data(), value=st.integers(-99, -1))
    def write(self, data: st.DataObject, value: int) -> None:
        slot = data.draw(st.integers(0, self.flat.numel() - 1))
        tile = self.owner(slot)
        if tile in self.busy():
            return
        may_not_fit = self.may_not_fit({tile})
        try:
            self.carrier[slot] = float(value)
        except BudgetExceeded:
            assert may_not_fit
            return
        self.flat[slot] = float(value)
        self.version += 1
        self.states[tile].location, self.states[tile].dirty = "primary", True

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        slot = data.draw(st.integers(0, self.flat.numel() - 1))
        assert self.carrier[slot] == self.flat[slot]

    def owner(self, slot: int) -> Coordinate:
        (place,) = np.argwhere(self.slots == slot)
        return tuple(int(c) // t for c, t in zip(place, self.tile_shape, strict=True))

    # -- waiting -------------------------------------------------------------------------------------------------

    def finish(self, request: Request, may_not_fit: bool = False) -> None:
        try:
            value = request.handle.wait(PATIENCE_S)
        except BudgetExceeded:
            assert may_not_fit
            return
        assert request.handle.done
        if request.kind == "project":
            assert torch.equal(value.torch(), request.result)
            assert not value.carrier.is_owned()
        else:
            assert value is None
        for tile in request.tiles:
            if request.kind == "evict":
                self.leave(tile)
            elif self.exact or request.kind == "promote":
                self.arrive(tile)

    @rule(number=st.integers(0, 11))
    def wait(self, number: int) -> None:
        if self.pending:
            self.finish(self.pending.pop(number % len(self.pending)), may_not_fit=not self.exact)

    # -- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def primary_stays_within_its_slots(self) -> None:
        statistics = self.carrier.statistics()
        assert statistics.resident_tiles >= 0
        assert statistics.in_flight_tiles >= 0
        assert statistics.resident_tiles + statistics.in_flight_tiles <= statistics.slots
        assert self.carrier.version == self.version

    @invariant()
    def dirty_tiles_are_primary_and_valid(self) -> None:
        for coordinate in self.all:
            state = self.carrier.tile_state(coordinate)
            assert state.valid
            assert not state.dirty or state.location == "primary"
            assert not state.dirty or self.states[coordinate].dirty, "a tile is dirty that nobody wrote"

    @invariant()
    def checkpoint_is_never_written(self) -> None:
        if self.checkpoint is not None:
            assert torch.equal(self.checkpoint.storage, self.original)
            assert self.checkpoint.writes == 0

    @invariant()
    def nothing_is_left_over_when_idle(self) -> None:
        if self.pending:
            return
        deadline = time.monotonic() + PATIENCE_S
        while (now := self.carrier.statistics()).in_flight_tiles and time.monotonic() < deadline:
            time.sleep(0.0005)
        assert now.in_flight_tiles == 0
        assert now.pinned_tiles == len(set().union(*(tiles for _, tiles in self.borrows)))
        if not self.exact:
            return
        for coordinate in self.all:
            state, expected = self.carrier.tile_state(coordinate), self.states[coordinate]
            assert (state.location, state.dirty) == (expected.location, expected.dirty), coordinate

    def teardown(self) -> None:
        if not hasattr(self, "carrier"):
            return
        for stack, _ in self.borrows:
            stack.close()
        self.borrows.clear()
        for request in self.pending:
            self.finish(request, may_not_fit=not self.exact)
        self.pending.clear()
        self.nothing_is_left_over_when_idle()
        assert torch.equal(
            self.tensor.materialize().torch().reshape(self.slots.shape), self.flat[torch.from_numpy(self.slots)]
        )
        self.carrier.evict(TileSet(self.all))
        assert self.carrier.statistics().resident_tiles == 0
        assert [self.carrier[k] for k in range(self.flat.numel())] == self.flat.tolist(), "a written value was lost"
        self.carrier.release()


def _slot_table(layout: Layout) -> np.ndarray:
    table = np.zeros((1,) * len(layout), dtype=np.int64)
    for k in range(len(layout)):
        leaves = layout[k].leaves()
        axis = [
            sum(c * d for c, (_, d) in zip(reversed(digits), leaves, strict=True))
            for digits in itertools.product(*(range(n) for n, _ in reversed(leaves)))
        ]
        shape = [1] * len(layout)
        shape[k] = -1
        table = table + np.array(axis).reshape(shape)
    return table


def _flatten(view: torch.Tensor) -> torch.Tensor:
    """The values of a view, its first dim fastest."""
    return view.permute(*reversed(range(view.dim()))).reshape(-1)


def _flatten_block(block: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    assert block.numel() == view.numel()
    return block.permute(*reversed(range(block.dim()))).reshape(-1)


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
