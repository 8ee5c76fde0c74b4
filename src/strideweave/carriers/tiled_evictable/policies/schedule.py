"""A future that is known: what is needed last goes first."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from strideweave.carriers.tiled_evictable.policies.numbering import numbers_of
from strideweave.carriers.tiled_evictable.policies.ranking import Ranking
from strideweave.carriers.tiled_evictable.policy import EvictionOrder
from strideweave.carriers.tiled_evictable.selection import Coordinate, ResidencyPlan, TileSelection, TileSet

Places: TypeAlias = npt.NDArray[np.int64]

_REACH_STEPS = 16  # an announced use that comes this much before its turn counts as that use
_PATIENCE_USES = 4  # so many early uses are waited through before the step that they overtook is given up
_RECENT_USES = 16  # by so many uses a place in the schedule is recognised, and judged
_ALIKE_USES = 10  # of them must agree


@final
class Schedule:
    """Gives up the tile whose announced next use is farthest away: with an exact schedule no order hits more often.

    `sequence` has one step after the other: a tile coordinate, or a TileSet or TileSelection whose tiles are used in
    any order. Every use advances it; a promotion does not. Each carrier counts through it on its own.

    Uses that were not announced change nothing but the hit rate, and the schedule finds its place again. A tile that is
    used up to 16 steps early has had that use. A step is given up, its unused tiles with it, once four such early uses
    have overtaken it. When most of the last 16 uses were not those of their step, these are looked for in the whole
    schedule, and where 10 of them fit it goes on, ahead or back: after a leap, or when all begins anew. Tiles that it
    does not name again go before all others, the least recently used one first; so it is LRU after its end.

    It does not bring tiles ahead of time: a plan's promotions hold up the very request that asks for them. Let
    `promote_async` of the next tiles run beside the work instead; it takes the places of the tiles needed last.

    Errors: TypeError, ValueError for what is no such step, or for steps of mixed ranks. A carrier refuses, with
    ValueError, a schedule that leaves its grid.
    Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2),
    1966.

    >>> from strideweave import TileSet
    >>> from strideweave.carriers.tiled_evictable import Schedule
    >>> policy = Schedule([(0,), (1,), TileSet([(2,), (3,)]), (1,), (0,)])
    >>> order = policy.eviction_order((8,), 4)
    >>> for tile in (0, 1, 3):
    ...     order.use(tile)
    ...     order.arrive(tile)
    >>> list(order.victims())
    [3, 0, 1]
    """

    def __init__(self, sequence: Iterable[TileSet | TileSelection | Sequence[int]]) -> None:
        if isinstance(sequence, str | bytes | TileSet | TileSelection) or not isinstance(sequence, Iterable):
            raise TypeError(
                f"cannot schedule {sequence!r}: a schedule is a sequence of steps. Pass a list of TileSets or of tile "
                "coordinates."
            )
        steps = [step if isinstance(step, TileSet | TileSelection) else TileSet([step]) for step in sequence]
        self.steps = tuple(step.coordinates for step in steps)
        """The tiles of each step."""
        ranks = sorted({len(tile) for tile in chain.from_iterable(self.steps)})
        if len(ranks) > 1:
            raise ValueError(
                f"cannot schedule tiles of ranks {ranks}: tiles have the same rank. Name full coordinates."
            )
        self._every = TileSet(set(chain.from_iterable(self.steps)))
        self._announced: tuple[tuple[int, ...], Announced] | None = None

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        """An empty plan."""
        return ResidencyPlan()

    def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> EvictionOrder:
        """A fresh order for one carrier, at the beginning. Errors: ValueError for tiles outside the grid."""
        known = self._announced  # read and replaced as a whole: carriers may be made in any thread
        if known is None or known[0] != grid_shape:
            self._every._validate_grid_shape(grid_shape)
            known = self._announced = (grid_shape, Announced.of(self.steps, grid_shape))
        return ScheduleOrder(known[1])

    def __repr__(self) -> str:
        return f"<Schedule of {len(self.steps)} steps over {len(self._every)} tiles>"


@dataclass(frozen=True, slots=True)
class Announced:
    """The same schedule in tile numbers. Carriers of one grid share it; nobody changes it."""

    steps: list[list[int]]
    """The tiles of each step."""
    turns: dict[int, list[int]]
    """For each tile the steps in which it is used, ascending."""
    places: dict[int, Places]
    """For each tile where it stands when all steps are written one after the other, ascending."""
    ends: Places
    """Where each step ends there."""

    @staticmethod
    def of(steps: Sequence[Sequence[Coordinate]], grid_shape: tuple[int, ...]) -> Announced:
        """Number every tile."""
        flat = np.array(numbers_of(list(chain.from_iterable(steps)), grid_shape), dtype=np.int64)
        ends = np.cumsum([len(step) for step in steps], dtype=np.int64)
        tiles, firsts = np.unique(np.sort(flat), return_index=True)
        places = dict(zip(tiles.tolist(), np.split(np.argsort(flat, kind="stable"), firsts[1:]), strict=False))
        step_of = np.repeat(np.arange(len(steps)), np.diff(ends, prepend=0))
        turns = {tile: step_of[where].tolist() for tile, where in places.items()}
        return Announced([step.tolist() for step in np.split(flat, ends[:-1])], turns, places, ends)

    def next_turn(self, tile: int, begin: int) -> float:
        """The first step from `begin` on that has the tile; infinity when none has."""
        turns = self.turns.get(tile, ())
        k = bisect_left(turns, begin)
        return turns[k] if k < len(turns) else math.inf

    def locate(self, recent: Sequence[int]) -> int | None:
        """The step that comes after the announced uses `recent`; None when too few of them are found together."""
        after = np.concatenate([self.places[tile] + len(recent) - k for k, tile in enumerate(recent)])
        # Uses that belong together nearly agree on where they lead: not quite, when some are missing or out of order.
        blocks = after // max(4, int(np.diff(self.ends, prepend=0).max()))
        votes = np.bincount(blocks, minlength=2)
        pairs = votes[:-1] + votes[1:]
        best = int(pairs.argmax())
        if pairs[best] < _ALIKE_USES:
            return None
        place = int(np.median(after[(blocks == best) | (blocks == best + 1)]))
        return int(np.searchsorted(self.ends, place, side="right"))


@final
class ScheduleOrder:
    """Gives up the tile that is needed last; O(log n) a use on average, over a schedule that is walked through once."""

    def __init__(self, announced: Announced) -> None:
        self._announced = announced
        self._uses = 0
        self._last: dict[int, int] = {}
        self._ranking = Ranking()
        self._now = -1
        """The step that is under way."""
        self._left: set[int] = set()
        """Its tiles that have not been used."""
        self._had: dict[int, int] = {}
        """For each tile the last step whose use has been."""
        self._early = 0
        """Uses that have been and belong to steps after this one."""
        self._recent: deque[int] = deque(maxlen=_RECENT_USES)
        """The last announced uses."""
        self._strays = 0
        """How many uses since the last judgement were not of the step under way."""
        self._judged = 0
        """How many uses there have been since then."""
        self._interval = _RECENT_USES
        """After how many the next one is due."""
        self._go_on()

    def use(self, tile: int) -> None:
        """The schedule goes on."""
        self._uses += 1
        self._last[tile] = self._uses
        if tile in self._announced.turns:
            self._recent.append(tile)
            if tile in self._left:
                self._left.remove(tile)
                self._had[tile] = self._now
                self._go_on()
            else:
                self._strays += 1
                self._stray(tile)
            self._judged += 1
            if self._judged >= self._interval:
                self._judge()
        self._rank(tile)

    def arrive(self, tile: int) -> None:
        """A candidate, by its next announced use."""
        if tile not in self._ranking:
            self._ranking.put(tile, self._rank_of(tile))

    def forget(self, tile: int) -> None:
        """No candidate any more."""
        self._ranking.drop(tile)

    def victims(self) -> Iterator[int]:
        """The primary tiles, the one that is needed last first."""
        return iter(self._ranking)

    # -- where the schedule stands -----------------------------------------------------------------------------------

    def _stray(self, tile: int) -> None:
        """A use that the step under way does not have, or has had."""
        had = self._had.get(tile)
        turn = self._next_turn(tile)
        # Not when it is more likely the last announced use over again.
        if turn - self._now <= _REACH_STEPS and (had is None or abs(self._now - had) >= turn - self._now):
            self._had[tile] = int(turn)
            self._early += 1
            self._go_on()

    def _judge(self) -> None:
        """Look where the last uses stand in the schedule, if most of them were astray; ever more seldom in vain."""
        is_lost = 2 * self._strays > self._judged
        self._strays = self._judged = 0
        if not is_lost:
            self._interval = _RECENT_USES
            return
        step = self._announced.locate(self._recent)
        if step is None or abs(step - self._now) <= _PATIENCE_USES:
            self._interval *= 2
        else:
            self._interval = _RECENT_USES
            self._jump(step)

    def _go_on(self) -> None:
        """Past what is over, and past what so many uses have overtaken that it will not come."""
        while self._now < len(self._announced.steps) and (not self._left or self._early >= _PATIENCE_USES):
            given_up, self._left = self._left, set()
            self._enter(self._now + 1)
            for tile in given_up:
                self._rank(tile)

    def _enter(self, step: int) -> None:
        self._now = step
        tiles = self._announced.steps[step] if step < len(self._announced.steps) else []
        self._left = {tile for tile in tiles if self._had.get(tile, -1) < step}
        self._early -= len(tiles) - len(self._left)

    def _jump(self, step: int) -> None:
        """To a step anywhere: of what has been and what has not, nothing is known there."""
        self._had.clear()
        self._early = 0
        self._enter(step)
        self._go_on()
        for tile in self._ranking.tiles():
            self._rank(tile)

    # -- ranks -------------------------------------------------------------------------------------------------------

    def _next_turn(self, tile: int) -> float:
        return self._announced.next_turn(tile, max(self._now, self._had.get(tile, -1) + 1))

    def _rank_of(self, tile: int) -> tuple[float, int]:
        return -self._next_turn(tile), self._last.get(tile, 0)

    def _rank(self, tile: int) -> None:
        if tile in self._ranking:
            self._ranking.put(tile, self._rank_of(tile))
