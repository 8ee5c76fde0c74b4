"""Random requests against a dense torch tensor and a dictionary of tile states; on lanes, and in any order at all."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import strideweave as sw
from strideweave import (
    CPU,
    LFU,
    LRU,
    BudgetExceeded,
    FileBacked,
    Layout,
    Pinned,
    ResidencyPlan,
    Schedule,
    Shape,
    Stride,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.carriers.tiled_evictable.tiles_as_modes import in_mode_dims
from strideweave.tensor.copying import values_of
from support.inline_lanes import InlineLanes
from support.scripted_carrier import ScriptedCarrier
from support.tiled import Coordinate, coordinates, situation

PATIENCE_S = 10.0

GEOMETRIES: list[tuple[tuple[int, ...], tuple[int, ...], Layout]] = [
    ((5,), (3,), Layout.column_major(15)),
    ((4, 1, 1), (1, 2, 3), Layout.row_major(4, 2, 3)),
    ((2, 3), (2, 2), Layout.column_major(4, 6)),
    ((2, 3), (2, 2), Layout.row_major(4, 6)),
    ((2, 2), (2, 2), Layout(Shape((2, 2), (2, 2)), Stride((1, 4), (2, 8)))),
    ((2, 2), (2, 2), Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8)))),
    ((3,), (3,), Layout.column_major(7)),
    ((2, 3), (4, 2), Layout.row_major(7, 5)),
    ((2, 2), (3, 2), Layout.column_major(5, 3)),
]
"""Grid, tile and layout; the last three with smaller tiles at their ends."""

HOSTILE = {"raises": KeyError, "another type": TypeError, "off grid": ValueError}
"""What a policy may do that a request must refuse, with the error; before anything has changed."""
ALLOWED = ["nothing", "evict required", "evict all", "promote all", "retain all", "promote and evict"]


class Hostile:
    """A policy that does what it likes."""

    mode = "nothing"

    def __init__(self, tiles: list[Coordinate]) -> None:
        self._all = TileSet(tiles)

    def plan(self, required: TileSet, purpose: str) -> Any:
        plans = {
            "evict required": {"evict": required},
            "evict all": {"evict": self._all},
            "promote all": {"promote": self._all},
            "retain all": {"retain": self._all},
            "off grid": {"promote": TileSet([tuple(99 for _ in self._all.coordinates[0])])},
        }
        if self.mode == "raises":
            raise KeyError("a policy of the user")
        if self.mode == "another type":
            return self.mode
        if self.mode == "promote and evict":
            half = len(self._all.coordinates) // 2
            return ResidencyPlan(
                promote=TileSet(self._all.coordinates[:half]), evict=TileSet(self._all.coordinates[half:])
            )
        return ResidencyPlan(**plans.get(self.mode, {}))


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
    selection: TileSelection | None = None
    compact: Tensor | None = None


class ResidencyMachine(RuleBasedStateMachine):
    is_inline = False
    lanes: InlineLanes | None = None
    """Jobs that run when and in which order hypothesis says; None for real threads."""

    @initialize(
        geometry=st.sampled_from(GEOMETRIES),
        start=st.sampled_from(["primary", "secondary", "checkpoint", "file"]),
        budget_tiles=st.one_of(st.none(), st.integers(1, 4)),
        policy=st.sampled_from(["none", "lru", "lfu", "pinned", "schedule", "hostile"]),
        order=st.randoms(use_true_random=False),
    )
    def start(self, geometry: Any, start: str, budget_tiles: int | None, policy: str, order: random.Random) -> None:
        self.patches = ExitStack()
        if self.is_inline:
            self.lanes = self.patches.enter_context(InlineLanes(order.randrange).installed())
        grid_shape, tile_shape, layout = geometry
        self.all = [c[::-1] for c in itertools.product(*(range(n) for n in grid_shape[::-1]))]
        self.hostile = Hostile(self.all) if policy == "hostile" else None
        policies: dict[str, Any] = {
            "none": None,
            "lru": LRU(),
            "lfu": LFU(),
            "hostile": self.hostile,
            "pinned": Pinned(TileSet(self.all[:1])),
            "schedule": Schedule([TileSet(self.all[:2]), TileSet(self.all[1:4]), TileSet(self.all[:1])]),
        }
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
            shape=_extents(layout),
            residency_policy=policies[policy],
        )
        self.tensor = Tensor(self.carrier, 0, layout)
        assert coordinates(self.carrier) == self.all
        has_room = budget_tiles is None or budget_tiles >= len(self.all)
        self.exact = has_room and policy in ("none", "lru", "lfu")
        at_start = start == "primary"
        self.states = {c: Expected("primary" if at_start else "secondary", stored=not at_start) for c in self.all}
        self.version = 0
        self.asks = policy in ("pinned", "schedule", "hostile")
        """Whether its policy asks for tiles: there may not be room for all of them, and others may have claimed one."""
        self.refusal = RuntimeError if self.asks else BudgetExceeded
        self.pending: list[Request] = []
        self.borrows: list[tuple[ExitStack, set[Coordinate]]] = []

    # -- choosing ------------------------------------------------------------------------------------------------

    def busy(self) -> set[Coordinate]:
        if self.asks and any(r.kind in ("project", "scatter") for r in self.pending):
            return set(self.all)  # what a policy promotes for a request is pinned with it
        return set().union(*(r.tiles for r in self.pending), *(tiles for _, tiles in self.borrows))

    def choose(self, data: st.DataObject, free_of: set[Coordinate]) -> list[Coordinate]:
        """Some tiles. What is drawn never depends on timing, so that a failure replays: the busy ones go afterwards."""
        drawn = data.draw(st.lists(st.sampled_from(self.all), max_size=4, unique=True))
        return [c for c in drawn if c not in free_of]

    def may_not_fit(self, wanted: set[Coordinate]) -> bool:
        return self.asks or len(self.busy() | wanted) > self.carrier.statistics().slots

    def gathered(self, selection: TileSelection, values: torch.Tensor | None = None) -> torch.Tensor:
        rows = [
            [c * t + k for c in axis for k in range(t) if c * t + k < extent]
            for axis, t, extent in zip(selection.per_axis, self.tile_shape, self.slots.shape, strict=True)
        ]
        return (self.flat if values is None else values)[torch.from_numpy(self.slots[np.ix_(*rows)])]

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
        except self.refusal:
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

    @rule(data=st.data())
    def prefetch(self, data: st.DataObject) -> None:
        """Never an error, and never in the way of what comes after it."""
        drawn = self.choose(data, self.busy() if self.exact else set())
        there = [c for c in drawn if self.carrier.tile_state(c).location == "secondary"]
        assert 0 <= self.carrier.prefetch(TileSet(drawn)) <= len(drawn)
        for coordinate in there if self.exact else ():  # there is room for all tiles: it comes, and stays
            self.arrive(coordinate)

    def claimed(self) -> set[Coordinate]:
        return set().union(*(r.tiles for r in self.pending if r.kind in ("promote", "evict")))

    @rule(data=st.data(), blocking=st.booleans())
    def flush(self, data: st.DataObject, blocking: bool) -> None:
        evicted = set().union(*(r.tiles for r in self.pending if r.kind == "evict"))
        wanted = set(self.choose(data, evicted))
        request = Request(self.carrier.flush_async(TileSet(wanted)), "flush", wanted)
        if blocking:
            self.finish(request)
        else:
            self.pending.append(request)

    @rule(number=st.integers(0, 7))
    def let_lanes_work(self, number: int) -> None:
        for _ in range(number if self.lanes is not None else 0):
            self.lanes.run_one()  # type: ignore[union-attr]

    # -- policies --------------------------------------------------------------------------------------------------

    @rule(mode=st.sampled_from(ALLOWED))
    def policy_wants(self, mode: str) -> None:
        if self.hostile is not None:
            self.hostile.mode = mode

    @rule(
        mode=st.sampled_from(list(HOSTILE)),
        kind=st.sampled_from(["project", "scatter", "borrow", "stream", "operation"]),
    )
    def hostile_plan_is_refused(self, mode: str, kind: str) -> None:
        if self.hostile is None or self.claimed():
            return
        one = TileSelection([[0] for _ in self.grid_shape])
        compact = sw.from_torch(self.gathered(one).clone())
        before = situation(self.carrier)
        kept, self.hostile.mode = self.hostile.mode, mode
        try:
            {
                "project": lambda: self.carrier.project(self.tensor, one),
                "scatter": lambda: self.carrier.scatter(compact, self.tensor, one),
                "borrow": lambda: self.carrier.borrow(one).__enter__(),
                "stream": lambda: self.carrier.stream(one),
                "operation": lambda: sw.reduce_sum(self.tensor),
            }[kind]()
        except HOSTILE[mode]:
            pass
        else:
            raise AssertionError(f"{kind} went on though its policy {mode}")
        finally:
            self.hostile.mode = kept
        assert not compact.carrier.is_owned()
        if self.lanes is not None:
            assert situation(self.carrier) == before

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """While values of fresh carriers are looked at, a hostile policy wants nothing."""
        if self.hostile is None:
            yield
            return
        kept, self.hostile.mode = self.hostile.mode, "nothing"
        try:
            yield
        finally:
            self.hostile.mode = kept

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
        expected = self.gathered(selection)
        destination = CPU(expected.numel() + 2) if given_destination else None
        try:
            handle = self.carrier.project(self.tensor, selection, destination)
        except self.refusal:
            assert self.asks
            return
        request = Request(handle, "project", wanted, expected)
        if blocking:
            self.finish(request)
        else:
            self.pending.append(request)

    def selection(self, data: st.DataObject) -> TileSelection:
        return TileSelection(
            [data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2, unique=True)) for n in self.grid_shape]
        )

    def dense(self) -> torch.Tensor:
        return self.flat[torch.from_numpy(self.slots)]

    def dense_of(self, tensor: Tensor) -> torch.Tensor:
        """The values of a tiled result, whose carrier ends with this."""
        with self.harmless():
            found = _in_modes(tensor.materialize())
        tensor.carrier.release()
        return found

    @rule(data=st.data(), reduction=st.sampled_from(["replace", "add"]), blocking=st.booleans())
    def scatter(self, data: st.DataObject, reduction: str, blocking: bool) -> None:
        selection = self.selection(data)
        wanted = set(selection.coordinates)
        if wanted & self.claimed():
            return
        before = self.gathered(selection)
        flat = torch.arange(200.0, 200.0 + before.numel()).reshape(before.shape)
        compact = sw.from_torch(flat)
        try:
            handle = self.carrier.scatter(compact, self.tensor, selection, reduction)
        except self.refusal:
            assert len(wanted) > self.carrier.statistics().slots or self.asks
            assert not compact.carrier.is_owned()
            return
        request = Request(
            handle, "scatter", wanted if reduction == "add" else set(), flat + before if reduction == "add" else flat
        )
        request.selection, request.compact = selection, compact
        if blocking:
            self.finish(request)
        else:
            self.pending.append(request)

    @rule(data=st.data(), kind=st.sampled_from(["project", "scatter", "reduce_sum", "mul", "square"]))
    def backward(self, data: st.DataObject, kind: str) -> None:
        if self.claimed():
            return
        selection = self.selection(data)
        x = Tensor(self.carrier, 0, self.carrier.layout).requires_grad_()
        dense = self.dense().clone().requires_grad_()
        ones = self.gathered(selection, torch.ones_like(self.flat))
        scattered: TiledEvictable | None = None
        with self.harmless():
            try:
                if kind == "project":
                    made = sw.mul(self.carrier.project(x, selection).wait(PATIENCE_S), 3.0)
                    expected = self.at(selection) * 3.0
                elif kind == "scatter":
                    full = self.carrier.scatter(sw.from_torch(ones), x, selection, "add").wait(PATIENCE_S)
                    scattered = full.carrier  # type: ignore[assignment]
                    made = full.carrier.project(full, selection).wait(PATIENCE_S)  # type: ignore[attr-defined]
                    expected = self.at(selection)
                else:
                    made = {
                        "reduce_sum": lambda: x,
                        "mul": lambda: sw.mul(x, -2.0),
                        "square": lambda: sw.mul(x, x),
                    }[kind]()
                    expected = {"reduce_sum": 1.0, "mul": -2.0, "square": 2 * dense.detach()}[kind] + 0 * dense.detach()
                result = sw.reduce_sum(made)
                result.backward()
            except self.refusal:
                assert self.asks or len(selection.coordinates) > self.carrier.statistics().slots
                return
        if self.exact:
            for tile in selection.coordinates if kind in ("project", "scatter") else self.all:
                self.arrive(tile)
        assert x.grad is not None
        assert torch.equal(self.dense_of(x.grad), expected)
        del result, made
        if scattered is not None:
            scattered.release()

    def at(self, selection: TileSelection) -> torch.Tensor:
        """One where a selected tile is, else zero."""
        found = torch.zeros(self.slots.shape)
        for tile in selection.coordinates:
            found[tuple(slice(c * t, (c + 1) * t) for c, t in zip(tile, self.tile_shape, strict=True))] = 1.0
        return found

    @rule(kind=st.sampled_from(["reduce_sum", "mul"]))
    def direct(self, kind: str) -> None:
        if self.claimed():
            return
        try:
            made = sw.reduce_sum(self.tensor) if kind == "reduce_sum" else sw.mul(self.tensor, self.tensor)
        except self.refusal:
            assert self.asks
            return
        if kind == "reduce_sum":
            assert made.torch().item() == self.flat.sum().item()
        else:
            assert torch.equal(_in_modes(made), self.dense() ** 2)
        if self.exact:
            for tile in self.all:
                self.arrive(tile)

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
        except self.refusal:
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
            except self.refusal:
                assert may_not_fit
                return
            assert set(views) == wanted
            for coordinate, view in views.items():
                assert torch.equal(_flatten(view), _flatten_block(self.block(coordinate), view))
                self.arrive(coordinate)
            if keep and len(self.borrows) < 2 and not self.asks:  # what a policy keeps meanwhile is pinned too
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
        except self.refusal:
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
        except self.refusal:
            assert may_not_fit
            return
        assert request.handle.done
        if request.kind == "project":
            assert torch.equal(value.torch(), request.result)
            assert not value.carrier.is_owned()
        elif request.kind == "scatter":
            self.check_scattered(request, value)
        else:
            assert value is None
        for tile in request.tiles:
            if request.kind == "evict":
                self.leave(tile)
            elif request.kind == "flush":
                state = self.states[tile]
                state.stored, state.dirty = True, False
            elif self.exact or request.kind == "promote":
                self.arrive(tile)

    def check_scattered(self, request: Request, value: Tensor) -> None:
        assert request.selection is not None
        assert request.compact is not None
        assert not request.compact.carrier.is_owned()
        carrier = value.carrier
        assert isinstance(carrier, TiledEvictable)
        wanted = TileSet(request.selection.coordinates)
        assert (carrier.valid_tiles, carrier.dirty_tiles, carrier.version) == (wanted, wanted, 1)
        with self.harmless():
            got = carrier.project(value, request.selection).wait(PATIENCE_S)
        assert torch.equal(got.torch(), request.result)
        carrier.release()

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
        if self.lanes is not None:
            self.lanes.run_all()
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
        try:
            if hasattr(self, "carrier"):
                self.end()
        finally:
            if hasattr(self, "patches"):
                self.patches.close()

    def end(self) -> None:
        if self.hostile is not None:
            self.hostile.mode = "nothing"
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


class InlineResidencyMachine(ResidencyMachine):
    is_inline = True


def _in_modes(tensor: Tensor) -> torch.Tensor:
    return in_mode_dims(values_of(tensor), tensor.layout)


def _extents(layout: Layout) -> tuple[int, ...]:
    return tuple(mode.size for mode in layout)


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
TestInlineResidencyMachine = InlineResidencyMachine.TestCase
TestInlineResidencyMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
