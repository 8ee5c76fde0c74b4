"""Every request of a tiled carrier, each of its transfers and allocations failing, falling short or waiting in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import (
    CPU,
    Carrier,
    Layout,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
    from_torch,
)
from strideweave.dtype import StorageDType
from strideweave.testing import FaultScript, FaultyCarrier
from support.direct import SHEET, Background, sheet, values
from support.tiled import situation

COUNT = 5
LAYOUT = Layout.row_major(COUNT, 2, 3)
PICKED = TileSelection([[3, 0, 2], [0], [0]])
SOME = PICKED.tile_set
PATIENCE_S = 10.0
CALLS = ("read", "write", "allocate")


class Scripted(FaultyCarrier):
    """A faulty carrier whose children follow the same script, so that no transfer is out of its reach."""

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Scripted:
        if size and (fault := self.script.begin("allocate")) is not None:
            fault.run()
        kind = (dtype or self._dtype).torch_dtype
        return Scripted(torch.zeros(size, dtype=kind), mutable=mutable, script=self.script)


@dataclass
class World:
    """A carrier of five tiles, two of them dirty in primary, and what may be asked of it."""

    carrier: TiledEvictable
    tensor: Tensor
    dense: torch.Tensor
    script: FaultScript
    others: list[Carrier] = field(default_factory=list)
    """Carriers of the caller that a request takes hold of for a while."""
    made: Any = None
    """What a backward starts from."""
    leaves: list[Tensor] = field(default_factory=list)


def world(budget_tiles: int | None, *, start: str = "full", runs: bool = False, wants: bool = False) -> World:
    dense = torch.arange(1.0, 6 * COUNT + 1).reshape(COUNT, 2, 3)
    script = FaultScript()
    if start == "full":
        secondary, primary = Scripted(dense.reshape(-1), script=script), Scripted(script=script) if runs else CPU(0)
    elif start == "checkpoint":
        secondary, primary = Scripted(dense.reshape(-1), mutable=False, script=script), CPU(0)
    else:
        secondary, primary = Scripted(script=script), CPU.wrap(dense.reshape(-1).clone())
        budget_tiles = None
    budget = None if budget_tiles is None else budget_tiles * 24
    carrier = TiledEvictable(primary, secondary, (COUNT, 1, 1), (1, 2, 3), layout=LAYOUT, budget=budget)
    tensor = Tensor(carrier, 0, LAYOUT)
    for k in (4, 1):
        tensor[k, 0, 1] = dense[k, 0, 1] = -float(k)
    tensor.requires_grad_(wants)
    return World(carrier, tensor, dense, script)


@dataclass(frozen=True)
class Request:
    name: str
    run: Callable[[World], Any]
    check: Callable[[World, Any], None]
    prepare: Callable[[World], None] = lambda w: None
    budgets: tuple[int | None, ...] = (None, 2)
    starts: tuple[str, ...] = ("full",)
    runs: tuple[bool, ...] = (False,)
    wants: bool = False
    is_set: bool = False
    """Whether a failure leaves the place of every tile as it was, where there is room for all."""
    effect: Callable[[World], None] = lambda w: None
    """What success does to the dense values."""


def _project(w: World) -> Any:
    return w.carrier.project(w.tensor, PICKED).wait(PATIENCE_S)


def _project_into(w: World) -> Any:
    return w.carrier.project(w.tensor, PICKED, w.others[0]).wait(PATIENCE_S)


def _destination(w: World) -> None:
    if isinstance(w.carrier.primary, CPU):
        w.others.append(CPU.wrap(torch.full((20,), 7.0)))
    else:
        w.others.append(Scripted(torch.full((20,), 7.0), script=w.script))


def _compact(w: World) -> None:
    flat = torch.arange(100.0, 118.0)
    held = CPU.wrap(flat) if isinstance(w.carrier.primary, CPU) else Scripted(flat, script=w.script)
    w.others.append(held)


def _scatter(reduction: str) -> Callable[[World], Any]:
    def run(w: World) -> Any:
        compact = Tensor(w.others[0], 0, Layout.row_major(3, 2, 3))
        return w.carrier.scatter(compact, w.tensor, PICKED, reduction).wait(PATIENCE_S)

    return run


def _is_scattered(reduction: str) -> Callable[[World, Any], None]:
    def check(w: World, made: Any) -> None:
        expected = torch.arange(100.0, 118.0).reshape(3, 2, 3) + (w.dense[[3, 0, 2]] if reduction == "add" else 0)
        got = made.carrier.project(made, PICKED).wait(PATIENCE_S)
        assert torch.equal(read(got), expected)
        assert made.carrier.version == 1
        assert made.carrier.valid_tiles == SOME

    return check


def _borrow(w: World) -> Any:
    with w.carrier.borrow(TileSet([(0, 0, 0), (3, 0, 0)])) as views:
        return {c: v.clone() for c, v in views.items()}


def _stream(w: World) -> Any:
    with w.carrier.stream(SOME) as stream:
        return {c: v.clone() for c, v in stream}


def _are_tiles(w: World, found: Any) -> None:
    assert all(torch.equal(v.reshape(2, 3), w.dense[c[0]]) for c, v in found.items())


def _set(w: World) -> None:
    w.tensor[0, 1, 2] = 55.0


def _is_set(w: World) -> None:
    w.dense[0, 1, 2] = 55.0


OTHER = torch.arange(6.0 * COUNT).reshape(COUNT, 2, 3).flip(0) - 11
RIGHT = torch.arange(12.0).reshape(3, 4) - 5
DIRECT: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "add": (sw.add, torch.add, (OTHER,)),
    "elementwise_mul": (sw.elementwise_mul, torch.mul, (OTHER,)),
    "mul": (sw.mul, torch.mul, (OTHER,)),
    "relu": (sw.relu, torch.relu, ()),
    "reduce_sum": (sw.reduce_sum, torch.sum, ()),
    "matmul": (sw.matmul, torch.matmul, (RIGHT,)),
}


def _direct(name: str) -> Request:
    call, oracle, others = DIRECT[name]
    return Request(
        name,
        lambda w: call(w.tensor, *(from_torch(o.clone()) for o in others)),
        lambda w, made: _same(read(made), oracle(w.dense, *others)),
    )


def _backward(
    name: str,
    forward: Callable[[World], tuple[Tensor, list[Tensor]]],
    oracle: Callable[..., Any],
    budgets: tuple[int | None, ...] = (None, 2),
) -> Request:
    def prepare(w: World) -> None:
        made, leaves = forward(w)
        w.made, w.leaves = made, [w.tensor, *leaves]

    def run(w: World) -> list[Tensor]:
        for leaf in w.leaves:
            leaf.grad = None
        w.made.backward(retain_graph=True)
        return [leaf.grad for leaf in w.leaves]

    def check(w: World, found: list[Tensor]) -> None:
        for got, expected in zip(found, oracle(w.dense), strict=True):
            _same(read(got), expected)

    return Request(f"backward of {name}", run, check, prepare, budgets, wants=True)


def _direct_backward(name: str) -> Request:
    call, oracle, others = DIRECT[name]

    def forward(w: World) -> tuple[Tensor, list[Tensor]]:
        leaves = [from_torch(o.clone()).requires_grad_() for o in others]
        made = call(w.tensor, *leaves)
        return (made if name == "reduce_sum" else sw.reduce_sum(made)), leaves

    def expected(dense: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in (dense, *others)]
        oracle(*leaves).sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    return _backward(name, forward, expected)


def _project_forward(w: World) -> tuple[Tensor, list[Tensor]]:
    return sw.reduce_sum(_project(w)), []


def _project_gradient(dense: torch.Tensor) -> list[torch.Tensor]:
    expected = torch.zeros_like(dense)
    expected[[3, 0, 2]] = 1.0
    return [expected]


def _scatter_forward(w: World) -> tuple[Tensor, list[Tensor]]:
    compact = from_torch(torch.arange(18.0).reshape(3, 2, 3)).requires_grad_()
    made = w.carrier.scatter(compact, w.tensor, PICKED, "add").wait(PATIENCE_S)
    carrier = made.carrier
    assert isinstance(carrier, TiledEvictable)
    return sw.reduce_sum(carrier.project(made, PICKED).wait(PATIENCE_S)), [compact]


def _scatter_gradient(dense: torch.Tensor) -> list[torch.Tensor]:
    return [*_project_gradient(dense), torch.ones(3, 2, 3)]


def _nothing(w: World, made: Any) -> None:
    assert made is None


def _at(place: str) -> Callable[[World, Any], None]:
    def check(w: World, made: Any) -> None:
        assert made is None
        assert all(w.carrier.tile_state(c).location == place for c in SOME.coordinates)

    return check


def _clean(w: World, made: Any) -> None:
    assert w.carrier.dirty_tiles == TileSet()


EVERY = TileSet([(k, 0, 0) for k in range(COUNT)])
REQUESTS = [
    Request(
        "project",
        _project,
        lambda w, made: _same(read(made), w.dense[[3, 0, 2]]),
        budgets=(None, 1, 2),
        runs=(False, True),
    ),
    Request(
        "project into",
        _project_into,
        lambda w, made: _same(read(made), w.dense[[3, 0, 2]]),
        _destination,
        runs=(False, True),
    ),
    Request(
        "scatter replace",
        _scatter("replace"),
        _is_scattered("replace"),
        _compact,
        budgets=(None, 3),
        runs=(False, True),
    ),
    Request("scatter add", _scatter("add"), _is_scattered("add"), _compact, budgets=(None, 3), runs=(False, True)),
    Request(
        "promote", lambda w: w.carrier.promote(SOME), _at("primary"), budgets=(None, 3), runs=(False, True), is_set=True
    ),
    Request(
        "evict",
        lambda w: w.carrier.evict(EVERY),
        _at("secondary"),
        starts=("full", "checkpoint", "empty"),
        runs=(False, True),
        is_set=True,
    ),
    Request(
        "flush",
        lambda w: w.carrier.flush(),
        _clean,
        starts=("full", "checkpoint", "empty"),
        runs=(False, True),
        is_set=True,
    ),
    Request("borrow", _borrow, _are_tiles),
    Request("stream", _stream, _are_tiles, budgets=(None, 1, 2)),
    Request(
        "get_value", lambda w: w.tensor[2, 1, 1], lambda w, made: _same(made, w.dense[2, 1, 1]), runs=(False, True)
    ),
    Request("set_value", _set, _nothing, budgets=(None, 1, 2), runs=(False, True), effect=_is_set),
    *map(_direct, DIRECT),
    *map(_direct_backward, DIRECT),
    _backward("project", _project_forward, _project_gradient),
    _backward("scatter", _scatter_forward, _scatter_gradient, budgets=(None, 3)),
]


def _same(got: Any, expected: torch.Tensor) -> None:
    assert torch.equal(torch.as_tensor(got), expected)


def read(tensor: Tensor) -> torch.Tensor:
    """The values of a result, wherever they are."""
    if isinstance(tensor.carrier, CPU | TiledEvictable):
        return values(tensor)
    return torch.as_tensor(sw.to_list(tensor))


def cases() -> Iterator[Any]:
    for request in REQUESTS:
        for start in request.starts:
            for budget in request.budgets if start != "empty" else request.budgets[:1]:
                for runs in request.runs if start == "full" else (False,):
                    label = f"{request.name}-{start}-{budget}{'-runs' if runs else ''}"
                    yield pytest.param(request, budget, start, runs, id=label)


class Trial:
    """One request in a world of its own, with one thing that goes wrong."""

    def __init__(self, request: Request, budget: int | None, start: str, runs: bool) -> None:
        self.request = request
        self.world = world(budget, start=start, runs=runs, wants=request.wants)
        request.prepare(self.world)
        self.has_room = budget is None
        self.script = self.world.script
        self.idle()
        self.before = situation(self.world.carrier)
        self.counts = self.now()

    def now(self) -> dict[str, int]:
        return {call: self.script.count(call) for call in CALLS}  # type: ignore[arg-type]

    def idle(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (now := self.world.carrier.statistics()).in_flight_tiles or now.pinned_tiles:
            assert time.monotonic() < deadline, f"never idle: {now}"
            time.sleep(0.0005)

    def made(self) -> dict[str, int]:
        """How many calls the request has made so far."""
        now = self.now()
        return {call: now[call] - self.counts[call] for call in CALLS}

    def run(self) -> Any:
        return self.request.run(self.world)

    def unchanged(self) -> None:
        """What a failure leaves: values, version, ownership, the caller's carriers; nothing pinned or on its way."""
        self.idle()
        self.script.clear()
        w = self.world
        after = situation(w.carrier)
        assert after.version == self.before.version
        assert (after.owned, after.released) == (self.before.owned, self.before.released)
        assert all(state.valid for state in after.states.values())
        assert set(w.carrier.dirty_tiles.coordinates) <= self.dirty_before()
        if self.request.is_set and self.has_room:
            assert after.states == self.before.states
        for carrier in w.others:
            assert not carrier.is_owned()
            assert carrier.version == 0
            if carrier.size() == 20:
                assert [carrier[k] for k in range(20)] == [7.0] * 20
        self.has_values()

    def dirty_before(self) -> Any:
        return {c for c, state in self.before.states.items() if state.dirty}

    def has_values(self) -> None:
        carrier = self.world.carrier
        got = torch.tensor([carrier[k] for k in range(carrier.size())])
        assert torch.equal(got, self.world.dense.reshape(-1))

    def succeeds(self, result: Any) -> None:
        self.idle()
        self.script.clear()
        self.request.effect(self.world)
        self.request.check(self.world, result)
        self.idle()
        self.has_values()
        for carrier in self.world.others:
            assert not carrier.is_owned()

    def ends(self) -> None:
        """Every value outlives an eviction of all, and the carrier can be released."""
        self.world.carrier.evict(EVERY)
        self.has_values()
        self.idle()
        self.world.carrier.release()


def others() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if not t.name.startswith("strideweave-lane-")}


@pytest.mark.parametrize(("request_", "budget", "start", "runs"), list(cases()))
class TestEveryOrdinal:
    def test_fails_and_then_works(self, request_: Request, budget: int | None, start: str, runs: bool) -> None:
        threads = others()
        for call, ordinal in ordinals(request_, budget, start, runs):
            for torn in (False, True):
                trial = Trial(request_, budget, start, runs)
                error = OSError(f"{call} {ordinal}")
                trial.script.fail(call, ordinal, error, torn=torn)
                try:
                    result = trial.run()
                except OSError as caught:
                    is_the_one = caught is error
                    trial.unchanged()
                    assert is_the_one, f"{call} {ordinal} raised another error"
                    result = trial.run()
                trial.succeeds(result)
                trial.ends()
        assert others() == threads

    def test_falls_short_and_then_works(self, request_: Request, budget: int | None, start: str, runs: bool) -> None:
        for call, ordinal in ordinals(request_, budget, start, runs):
            trial = Trial(request_, budget, start, runs)
            trial.script.shorten(call, ordinal)
            try:
                result = trial.run()
            except (OSError, RuntimeError):
                trial.unchanged()
                result = trial.run()
            trial.succeeds(result)
            trial.ends()

    def test_waits_and_then_works(self, request_: Request, budget: int | None, start: str, runs: bool) -> None:
        for call, ordinal in ordinals(request_, budget, start, runs):
            trial = Trial(request_, budget, start, runs)
            with trial.script.hold(call, ordinal) as hold:
                running = Background(trial.run)
                while not hold.is_reached and not running.is_over:
                    time.sleep(0.0002)
                # Allocations of a result, and single values of a primary that is no memory, are under the lock.
                if hold.is_reached and not (runs and (call == "allocate" or request_.name == "set_value")):
                    now = situation(trial.world.carrier)
                    assert now.version == trial.before.version
                    assert all(state.valid for state in now.states.values())
            trial.succeeds(running.result())
            trial.ends()


def ordinals(request: Request, budget: int | None, start: str, runs: bool) -> list[tuple[Any, int]]:
    """Every call that the request makes when nothing goes wrong."""
    trial = Trial(request, budget, start, runs)
    result = trial.run()
    trial.idle()
    made = trial.made()
    trial.succeeds(result)
    trial.ends()
    return [(call, k) for call in CALLS for k in range(1, made[call] + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_what_a_stream_fails_to_bring_a_direct_operation_reads_itself(count: int) -> None:
    carrier, x, secondary = sheet()
    with secondary.hold_read() as hold:
        hold.error = OSError("theirs")
        carrier.stream(TileSet([(0, 0), (1, 0), (0, 1), (1, 1)][:count])).close()
        hold.wait_until_reached()
        summing = Background(lambda: sw.reduce_sum(x))
        while carrier.statistics().pinned_tiles < 4:
            time.sleep(0.001)
        time.sleep(0.05)  # until it waits for that very tile
    assert values(summing.result()) == SHEET.sum()
    carrier.release()
