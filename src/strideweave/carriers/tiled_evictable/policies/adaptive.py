"""Several orders at once: each is tried on paper, and the one that hits most decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from strideweave.carriers.tiled_evictable.policies.lru import LRU
from strideweave.carriers.tiled_evictable.policies.rounds import Rounds
from strideweave.carriers.tiled_evictable.policy import EvictionOrder
from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSet

_FADE: Final = 0.998  # of what a hit counts, with every use: the last thousand uses or so decide


@final
class Adaptive:
    """Gives up what the best of its `policies` would give up; the default for the experts of a model.

    No order is best for all work: where favourites drift LRU hits most, where every layer has its steady ones `Rounds`
    does. For each policy a cache of as many slots is kept on paper, which tiles it would hold and no values, and the
    one with most hits of late chooses what leaves.

    Errors: ValueError when there is no policy; TypeError for one without an eviction order of its own.

    >>> from strideweave.carriers.tiled_evictable import LFU
    >>> Adaptive([LFU(), Rounds()])
    Adaptive(LFU(), Rounds())
    """

    def __init__(self, policies: Sequence[Any] | None = None) -> None:
        self.policies = tuple((LRU(), Rounds()) if policies is None else policies)
        if not self.policies:
            raise ValueError("cannot choose among no policies: at least one is needed. Name some, or leave them out.")
        for policy in self.policies:
            if not hasattr(policy, "eviction_order"):
                raise TypeError(
                    f"cannot try {policy!r}: it has no eviction_order(grid_shape, slots), which is what is compared. "
                    "Name policies that have one."
                )

    def plan(self, required: TileSet, purpose: str) -> ResidencyPlan:
        """An empty plan."""
        return ResidencyPlan()

    def eviction_order(self, grid_shape: tuple[int, ...], slots: int) -> EvictionOrder:
        """A fresh order for one carrier."""
        return AdaptiveOrder([_Trial(policy, grid_shape, slots) for policy in self.policies])

    def __repr__(self) -> str:
        return f"Adaptive({', '.join(map(repr, self.policies))})"


class _Trial:
    """One policy: its order of the tiles that are there, and a cache on paper that only it manages."""

    def __init__(self, policy: Any, grid_shape: tuple[int, ...], slots: int) -> None:
        self.order: EvictionOrder = policy.eviction_order(grid_shape, slots)
        self.score = 0.0
        self._paper: EvictionOrder = policy.eviction_order(grid_shape, slots)
        self._slots = slots
        self._held: set[int] = set()

    def use(self, tile: int) -> None:
        self.order.use(tile)
        self._paper.use(tile)
        self.score = self.score * _FADE + (tile in self._held)
        if tile not in self._held and len(self._held) >= self._slots:
            victim = next(self._paper.victims(), None)
            if victim is None:
                return
            self._held.discard(victim)
            self._paper.forget(victim)
        self._held.add(tile)
        self._paper.arrive(tile)


@final
class AdaptiveOrder:
    """The order of the trial with the highest score, the first of equal ones."""

    def __init__(self, trials: Sequence[_Trial]) -> None:
        self._trials = trials

    def use(self, tile: int) -> None:
        """A use in every trial."""
        for trial in self._trials:
            trial.use(tile)

    def arrive(self, tile: int) -> None:
        """A candidate of every order."""
        for trial in self._trials:
            trial.order.arrive(tile)

    def forget(self, tile: int) -> None:
        """A candidate of none."""
        for trial in self._trials:
            trial.order.forget(tile)

    def victims(self) -> Iterator[int]:
        """What the best trial would give up."""
        return max(self._trials, key=lambda trial: trial.score).order.victims()
