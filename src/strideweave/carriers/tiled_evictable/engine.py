"""The state of every tile and the only code that changes it: slots, pins, claims, loads and write-backs.

One lock guards it all (`Engine.guard`). Requests plan under the lock and hand the moving of bytes to the lanes; a lane
takes the lock only to record what has happened. A lane never waits for another lane's work.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

import torch

from strideweave.carriers.handle import AwaitResult
from strideweave.carriers.tiled_evictable.budget import BudgetExceeded, format_nbytes
from strideweave.carriers.tiled_evictable.observe import Location, Statistics
from strideweave.io import Priority, watching

if TYPE_CHECKING:
    from strideweave.carriers.tiled_evictable.geometry import Geometry
    from strideweave.carriers.tiled_evictable.memory_tiers import PrimaryTier
    from strideweave.carriers.tiled_evictable.policy import EvictionOrder
    from strideweave.carriers.tiled_evictable.tiers import SecondaryTier
    from strideweave.io import Job, Lanes

_BATCH_NBYTES = 2 * 2**20  # one read of it is as fast as the disk

Landed: TypeAlias = "Callable[[BaseException | None], None]"


class Tile:
    """What is known of one tile. Every field is guarded by the engine's lock."""

    __slots__ = ("claim", "dirty", "guessed", "implicit", "load", "ordinal", "pins", "slot", "stored")

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.slot: int | None = None
        """Where it is in primary; None while it is not there (also while it is on its way)."""
        self.stored = False
        """Whether secondary has a value: the current one unless `dirty`."""
        self.implicit = False
        """Whether its value is zero by declaration."""
        self.dirty = False
        """Whether primary holds its only good copy."""
        self.pins = 0
        """How many running requests and borrowed views need it to stay."""
        self.claim: AwaitResult[None] | None = None
        """The pending promotion or eviction that will decide where it is."""
        self.load: Load | None = None
        """Its way into primary, while it is on it."""
        self.guessed = False
        """Whether it is there, or on its way, because somebody may want it, and nobody has yet."""

    @property
    def valid(self) -> bool:
        """Whether there is a value to read."""
        return self.slot is not None or self.stored or self.implicit

    @property
    def location(self) -> Location:
        """Where the value is."""
        if self.slot is not None:
            return "primary"
        if self.stored:
            return "secondary"
        return "implicit" if self.implicit else "invalid"

    @property
    def has_backing(self) -> bool:
        """Whether primary may let it go without writing."""
        return not self.dirty and (self.stored or self.implicit)


@dataclass(eq=False, slots=True)
class Load:
    """One tile's way into primary."""

    tile: Tile
    slot: int | None
    """None until a lane has made room by writing a dirty tile back."""
    commits: bool
    """Whether the tile is primary as soon as it lands, or when the whole request has landed."""
    landed: list[Landed] = field(default_factory=list)
    error: BaseException | None = None
    """Why it failed; set in the same step that ends it."""
    job: Job | None = None
    """What brings it; None only before it is submitted."""


class Pin:
    """The tiles that one request needs to stay; dropped one by one or all at once, under the lock."""

    __slots__ = ("_engine", "label", "thread", "tiles")

    def __init__(self, engine: Engine, label: str, *, in_thread: bool = False) -> None:
        self._engine = engine
        self.label = label
        self.thread = threading.get_ident() if in_thread else None
        """The thread that must go on for the pin to go; None when the lanes see to it."""
        self.tiles: dict[int, Tile] = {}
        engine.pins.add(self)

    def add(self, tile: Tile) -> None:
        """Keep the tile."""
        if tile.ordinal not in self.tiles:
            self.tiles[tile.ordinal] = tile
            tile.pins += 1

    def drop(self, tile: Tile) -> None:
        """The tile is not needed any more."""
        if self.tiles.pop(tile.ordinal, None) is not None:
            tile.pins -= 1
            self._engine.guard.notify_all()
            if not tile.pins and (leave := self._engine.deferred.pop(tile.ordinal, None)) is not None:
                self._engine.lanes.submit(leave, Priority.WRITE_BACK)

    def close(self) -> None:
        """Nothing is needed any more."""
        for tile in list(self.tiles.values()):
            self.drop(tile)
        self._engine.pins.discard(self)
        self._engine.guard.notify_all()


class Engine:
    """Tiles, their slots and their movement. Methods marked *guarded* are called with `guard` held."""

    def __init__(
        self,
        geometry: Geometry,
        primary: PrimaryTier,
        secondary: SecondaryTier,
        order: EvictionOrder,
        lanes: Lanes,
        dtype: torch.dtype,
        name: str,
    ) -> None:
        self.geometry = geometry
        self.primary = primary
        self.secondary = secondary
        self.lanes = lanes
        self.dtype = dtype
        self.tile_nbytes = geometry.tile_elems * dtype.itemsize
        self.name = name
        self.guard = threading.Condition(threading.Lock())  # guards all that follows, and every Tile
        self.tiles = [Tile(k) for k in range(geometry.tiles)]
        self.pins: set[Pin] = set()
        self.written_back: set[int] = set()
        """Tiles that a lane is writing back to make room: pinned, and by nobody that a caller could wait for."""
        self._perhaps_backed: set[int] = set()
        """Every primary tile that has backing, and others that nobody has looked at since they had none any more."""
        self.left_in_parent: set[int] = set()
        """Tiles that were dirty when this process was forked: their values are the parent's."""
        self.deferred: dict[int, Callable[[], None]] = {}
        """For tiles that a policy wants gone and somebody still pins: how they leave when nobody does."""
        self.policy_claims: set[AwaitResult[None]] = set()
        """The pending evictions among the claims that a policy has asked for."""
        self.closed = False
        self.abandoned: deque[Pin] = deque()  # appended to without the lock, which the collector may not take
        self.order = order
        self.work = 0
        """Requests that are not terminal yet."""
        self.hits = self.misses = self.evictions = 0
        self.bytes_read = self.bytes_written = self.failed_policy_evictions = 0
        self.loads = 0
        """Tiles on their way into primary."""
        self.unslotted = 0
        """Those of them that have no slot yet: a dirty tile is written back for each."""
        self.guesses: dict[int, Load] = {}
        """Those of them that nobody has asked for, by tile."""
        self.prefetched = self.prefetched_used = self.prefetched_unused = 0
        self.passing: dict[int, None] = {}
        """Tiles that a scan has brought and is done with: they go before all others, the oldest first."""
        self.stall_s = 0.0
        self._gathered: list[Load] | None = None
        """Where loads wait until all of a request are known."""
        self._scratch = threading.Lock()  # one bounce tile at a time
        self.subject = watching.Subject(
            name,
            geometry.grid_shape,
            tile_nbytes=self.tile_nbytes,
            slots=primary.capacity,
            snapshot=partial(_snapshot, weakref.ref(self)),
        )

    # -- looking (guarded) -----------------------------------------------------------------------------------------

    def require_unclaimed(self, tiles: Sequence[Tile], what: str) -> None:
        """Raise when the carrier has ended, or a pending promotion or eviction covers one of the tiles."""
        if self.closed:
            raise RuntimeError(
                f"cannot {what} tiles of {self.name}: the carrier is released. It holds no values. Make a new one."
            )
        # Nobody could wait for an eviction of the policy, whose handle no caller has: it is one write, at most.
        while any(tile.claim in self.policy_claims for tile in tiles):
            self.guard.wait()
        for tile in tiles:
            if tile.claim is not None:
                raise RuntimeError(
                    f"cannot {what} tile {self.geometry.coordinate(tile.ordinal)} of {self.name}: {tile.claim!r} "
                    "covers it and is pending. Independent requests over the same tiles conflict. Call wait() on "
                    "that handle first."
                )

    def require_valid(self, tiles: Iterable[Tile], what: str) -> None:
        """Raise when one of the tiles has no value."""
        for tile in tiles:
            if not tile.valid and tile.ordinal in self.left_in_parent:
                raise RuntimeError(
                    f"cannot {what} tile {self.geometry.coordinate(tile.ordinal)} of {self.name} in a child after "
                    "fork: it was dirty in the parent. A dirty tile belongs to the process that wrote it. Call "
                    "flush() in the parent before the fork."
                )
            if not tile.valid:
                raise RuntimeError(
                    f"cannot {what} tile {self.geometry.coordinate(tile.ordinal)} of {self.name}: it is invalid, no "
                    "tier holds a value. A tile needs initialization before it is read. Scatter into it, or start "
                    "from a full carrier."
                )

    def collect_abandoned(self) -> None:
        """Give back the pins of streams that were dropped without being closed."""
        while self.abandoned:
            self.abandoned.popleft().close()

    def require_room(self, count: int, what: str) -> None:
        """Raise BudgetExceeded unless `count` more tiles can be in primary at once."""
        self.collect_abandoned()
        # What nobody has asked for lands soon, or is given up, and makes room then.
        free = self.primary.free + sum(not load.tile.pins for load in self.guesses.values())
        if count + self.unslotted <= free:
            return
        short = count + self.unslotted - free
        if count and sum(1 for _ in islice(self._leaving(), short)) < short:
            raise self.no_room(count, what)

    def no_room(self, count: int, what: str) -> BudgetExceeded:
        """The error that says what is asked, what is free, and what pins the rest."""
        size = self.tile_nbytes
        holders = ", ".join(
            sorted(f"{pin.label} pins {format_nbytes(len(pin.tiles) * size)}" for pin in self.pins if pin.tiles)
        )
        free = sum(map(self._can_leave, self.tiles)) + self.primary.free
        return BudgetExceeded(
            f"cannot {what} of {self.name}: it needs room for {count} tiles ({format_nbytes(count * size)}), {free} "
            f"tiles ({format_nbytes(free * size)}) are free of {self.primary.capacity} "
            f"({format_nbytes(self.primary.capacity * size)}). {holders or 'Nothing is pinned'}. Ask for fewer tiles "
            "at once, wait for that work, or raise the budget."
        )

    def has_leaving(self) -> bool:
        """Whether some primary tile could make room, by a write if need be."""
        return next(self._leaving(), None) is not None

    def can_progress(self, waiting: Pin) -> bool:
        """Whether somebody else than the waiting thread will give a slot back."""
        self.collect_abandoned()
        mine = threading.get_ident()
        return bool(self.work or self.loads) or any(
            pin.tiles and pin.thread not in (None, mine) for pin in self.pins if pin is not waiting
        )

    def _leaving(self) -> Iterator[Tile]:
        """The tiles that can leave, the best first; after all others those that the order would keep for good."""
        offered: set[int] = set()
        for k in self.order.victims():
            if k not in offered and self._can_leave(self.tiles[k]):
                offered.add(k)
                yield self.tiles[k]
        yield from (tile for tile in self.tiles if tile.ordinal not in offered and self._can_leave(tile))

    @staticmethod
    def _can_leave(tile: Tile) -> bool:
        return tile.pins == 0 and tile.claim is None and tile.slot is not None

    def statistics(self) -> Statistics:
        """A snapshot."""
        with self.guard:
            self.collect_abandoned()
            return Statistics(
                tile_nbytes=self.tile_nbytes,
                budget_nbytes=self.primary.capacity * self.tile_nbytes,
                slots=self.primary.capacity,
                resident_tiles=self.primary.capacity - self.primary.free - (self.loads - self.unslotted),
                in_flight_tiles=self.loads - self.unslotted,
                pinned_tiles=len({k for pin in self.pins for k in pin.tiles}),
                hits=self.hits,
                misses=self.misses,
                evictions=self.evictions,
                bytes_read=self.bytes_read,
                bytes_written=self.bytes_written,
                stall_s=self.stall_s,
                failed_policy_evictions=self.failed_policy_evictions,
                prefetched=self.prefetched,
                prefetched_used=self.prefetched_used,
                prefetched_unused=self.prefetched_unused,
            )

    # -- slots (guarded) -------------------------------------------------------------------------------------------

    def reserve(self, tile: Tile) -> int | None:
        """A slot for a tile, taken from the tile that should go first if none is free; None when that needs a write."""
        self.collect_abandoned()
        slot = self.primary.take(tile.ordinal)
        if slot is not None:
            return slot
        if self._has_backed():
            for k in chain(self.passing, self.order.victims()):
                victim = self.tiles[k]
                if self._can_leave(victim) and victim.has_backing:
                    self.drop(victim)
                    return self.primary.take(tile.ordinal)
        return self.primary.take(tile.ordinal) if self.give_up_guess() else None

    def _has_backed(self) -> bool:
        """Whether some primary tile has backing; O(1) on average, so that none need be looked for among dirty ones."""
        while self._perhaps_backed:
            tile = self.tiles[next(iter(self._perhaps_backed))]
            if tile.slot is not None and tile.has_backing:
                return True
            self._perhaps_backed.discard(tile.ordinal)
        return False

    def drop(self, tile: Tile) -> None:
        """The tile leaves primary; its value is elsewhere or not needed."""
        assert tile.slot is not None
        self.primary.give(tile.slot)
        tile.slot = None
        self._count_unused(tile)
        self.passing.pop(tile.ordinal, None)
        self.order.forget(tile.ordinal)
        self.evictions += 1
        if watching.watchers:
            watching.changed(self.subject, tile.ordinal, is_resident=False)
        self.guard.notify_all()

    def settle(self, tile: Tile, slot: int) -> None:
        """The tile is primary from now on."""
        if watching.watchers and tile.slot is None:
            watching.changed(self.subject, tile.ordinal, is_resident=True)
        tile.slot = slot
        self._perhaps_backed.add(tile.ordinal)
        self.order.arrive(tile.ordinal)
        self.guard.notify_all()

    def use(self, tile: Tile) -> None:
        """Somebody uses the tile."""
        self._count_used(tile)
        self.passing.pop(tile.ordinal, None)
        self.order.use(tile.ordinal)

    def let_pass(self, tile: Tile) -> None:
        """A scan that has brought the tile is done with it."""
        if tile.slot is not None:
            self.passing[tile.ordinal] = None

    # -- guesses (guarded) -----------------------------------------------------------------------------------------

    def guess(self, tile: Tile) -> bool:
        """Send a tile on its way that somebody may want; False when it is there, or moves, or has no slot to go to.

        A slot is free, or a clean tile gives it that nobody pins: nothing is written back for a guess.
        """
        if self.closed or tile.slot is not None or tile.load or tile.claim or not tile.stored:
            return False
        slot = self.primary.take(tile.ordinal)
        if slot is None and self._has_backed():
            victim = next((v for v in self._leaving() if v.has_backing), None)
            if victim is not None:
                self.drop(victim)
                slot = self.primary.take(tile.ordinal)
        if slot is None:
            return False
        tile.guessed = True
        self.prefetched += 1
        self.guesses[tile.ordinal] = self.start_load(tile, slot, commits=True, landed=None, priority=Priority.PREFETCH)
        return True

    def joined(self, tile: Tile) -> Load:
        """The load of a tile that is on its way, for somebody who wants it: a guess is urgent from now on."""
        load = tile.load
        assert load is not None
        if self.guesses.pop(tile.ordinal, None) is not None:
            assert load.job is not None
            load.job.hurry()
        self._count_used(tile)
        return load

    def give_up_guess(self, tile: Tile | None = None) -> bool:
        """One guess that no lane has begun is given up, and its slot free: that of the tile, or the latest one."""
        chosen = reversed(self.guesses.values()) if tile is None else [self.guesses.get(tile.ordinal)]
        for load in chosen:
            if load is not None and load.job is not None and not load.tile.pins and load.job.cancel():
                self.finish_load(load, settle=False)
                self._count_unused(load.tile)
                return True
        return False

    def _count_used(self, tile: Tile) -> None:
        self.prefetched_used += tile.guessed
        tile.guessed = False

    def _count_unused(self, tile: Tile) -> None:
        self.prefetched_unused += tile.guessed
        tile.guessed = False

    # -- loading ---------------------------------------------------------------------------------------------------

    def start_load(
        self,
        tile: Tile,
        slot: int | None,
        *,
        commits: bool,
        landed: Landed | None,
        priority: Priority = Priority.DEMAND,
    ) -> Load:
        """Send a tile on its way into primary (guarded); `landed` hears the outcome on a lane, outside the lock."""
        load = Load(tile, slot, commits, [] if landed is None else [landed])
        tile.load = load
        self.loads += 1
        self.unslotted += slot is None
        if self._gathered is not None and slot is not None and priority is Priority.DEMAND:
            self._gathered.append(load)
        else:
            load.job = self.lanes.submit(lambda: self._perform(load), priority)
        return load

    @contextmanager
    def together(self) -> Iterator[None]:
        """Loads that are started in the block go on their way when it ends, small ones in batches (guarded).

        One read for tiles that touch costs what one for each tile does, and so does a lane's turn.
        """
        assert self._gathered is None, "loads are gathered already"
        gathered = self._gathered = []
        try:
            yield
        finally:
            self._gathered = None
            each = self.batch_tiles
            for k in range(0, len(gathered), each):
                batch = gathered[k : k + each]
                job = self.lanes.submit(partial(self._perform_all, batch))
                for load in batch:
                    load.job = job

    @property
    def batch_tiles(self) -> int:
        """How many tiles one lane reads at once."""
        return max(1, _BATCH_NBYTES // max(1, self.tile_nbytes)) if self.secondary.joins_reads else 1

    def finish_load(self, load: Load, *, settle: bool) -> None:
        """The way is over (guarded): the tile is primary, or its slot is free again."""
        load.tile.load = None
        self.guesses.pop(load.tile.ordinal, None)
        self.loads -= 1
        if load.slot is None:
            self.unslotted -= 1
        elif settle:
            self.settle(load.tile, load.slot)
        else:
            self.primary.give(load.slot)
        self.guard.notify_all()

    def _perform_all(self, loads: Sequence[Load]) -> None:
        """Bring several tiles by one read; where that fails, one by one, so that each has an outcome of its own."""
        try:
            moved = self._fetch_all(loads) if len(loads) > 1 else None
        except BaseException:
            moved = None
        if moved is None:
            for load in loads:
                self._perform(load)
            return
        landed: list[Landed] = []
        with self.guard:
            for load, nbytes in zip(loads, moved, strict=True):
                self.bytes_read += nbytes
                if load.commits:
                    self.finish_load(load, settle=True)
                landed += load.landed
            self.guard.notify_all()
        for tell in landed:
            tell(None)

    def _fetch_all(self, loads: Sequence[Load]) -> list[int] | None:
        """The bytes that were read for each; None where not all of them lie in memory, or in storage."""
        places = [None if load.slot is None else self.primary.packed(load.slot) for load in loads]
        packed = [place for place in places if place is not None]
        if len(packed) < len(loads) or not all(load.tile.stored for load in loads):
            return None
        with ExitStack() as stack:
            events = [watching.event("read", "", self.subject, load.tile.ordinal) for load in loads]
            for event in events:
                stack.enter_context(event)
            moved = self.secondary.read_all([load.tile.ordinal for load in loads], packed)
            for event, nbytes in zip(events, moved, strict=True):
                event.nbytes = nbytes
        return moved

    def _perform(self, load: Load) -> None:
        error: BaseException | None = None
        nbytes = 0
        try:
            if load.slot is None:
                self._make_room(load)
            assert load.slot is not None
            nbytes = self._fetch(load.tile, load.slot)
        except BaseException as e:
            error = e
        with self.guard:
            load.error = error
            self.bytes_read += nbytes
            if error is not None:
                self._count_unused(load.tile)
            if error is not None or load.commits:
                self.finish_load(load, settle=error is None)
            landed = list(load.landed)
            self.guard.notify_all()
        for tell in landed:
            tell(error)

    def _fetch(self, tile: Tile, slot: int) -> int:
        packed = self.primary.packed(slot)
        if packed is not None:
            return self.fetch_packed(tile, packed)
        with self.bounce(tile.ordinal) as scratch:
            nbytes = self.fetch_packed(tile, scratch)
            self.primary.write(slot, scratch)
        return nbytes

    def _make_room(self, load: Load) -> None:
        """Write the tile back that should go first, and take its slot."""
        while True:
            with self.guard:
                load.slot = self.reserve(load.tile)
                if load.slot is not None:
                    self.unslotted -= 1
                    return
                victim = next(self._leaving(), None)
                if victim is None and self.guesses:
                    self.guard.wait()  # a lane has begun every one of them, and ends it by itself
                    continue
                if victim is None:
                    raise self.no_room(1, "bring a tile into primary")
                if victim.has_backing:
                    self.drop(victim)
                    continue
                pin = Pin(self, "a write-back")
                pin.add(victim)
                self.written_back.add(victim.ordinal)
            try:
                self.write_back(victim)
                with self.guard:
                    self.stored(victim)
            finally:
                with self.guard:
                    self.written_back.discard(victim.ordinal)
                    pin.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    def await_write_back(self, tiles: Iterable[Tile]) -> None:
        """Wait while a lane writes one of the tiles back, or takes it out for the policy (guarded).

        That is one write, of which no caller knows.
        """
        while any(tile.ordinal in self.written_back or tile.claim in self.policy_claims for tile in tiles):
            self.guard.wait()

    def write_back(self, tile: Tile) -> None:
        """Copy a pinned or claimed primary tile to secondary (on a lane, outside the lock)."""
        assert tile.slot is not None
        packed = self.primary.packed(tile.slot)
        with watching.event("write", "", self.subject, tile.ordinal) as event:
            if packed is not None:
                nbytes = self.secondary.write(tile.ordinal, packed)
            else:
                with self.bounce(tile.ordinal) as scratch:
                    self.primary.read(tile.slot, scratch)
                    nbytes = self.secondary.write(tile.ordinal, scratch)
            event.nbytes = nbytes
        with self.guard:
            self.bytes_written += nbytes

    def stored(self, tile: Tile) -> None:
        """Secondary has the current value (guarded)."""
        tile.stored = True
        tile.dirty = False
        tile.implicit = False
        self._perhaps_backed.add(tile.ordinal)

    # -- memory of a tile --------------------------------------------------------------------------------------------

    def view(self, slot: int) -> torch.Tensor:
        """The tile in a slot, one dim per leaf of the carrier's own layout within a tile."""
        return self.primary.view(slot, self.geometry.own_box(self.primary.ordinal_of(slot)))

    def fetch_packed(self, tile: Tile, out: torch.Tensor) -> int:
        """Bring a tile that is not primary straight to a packed place (on a lane, outside the lock); the bytes read."""
        if tile.stored:
            with watching.event("read", "", self.subject, tile.ordinal) as event:
                event.nbytes = nbytes = self.secondary.read(tile.ordinal, out)
            return nbytes
        out.zero_()
        return 0

    @contextmanager
    def bounce(self, ordinal: int) -> Iterator[torch.Tensor]:
        """Scratch memory for a packed tile; one at a time, so that scratch never grows beyond one tile."""
        with self._scratch:
            yield torch.empty(self.geometry.elems_of(ordinal), dtype=self.dtype)


def _snapshot(engine_of: weakref.ref[Engine], register: watching.Register) -> None:
    engine = engine_of()
    if engine is None:
        return
    with engine.guard:
        register([tile.ordinal for tile in engine.tiles if tile.slot is not None])
