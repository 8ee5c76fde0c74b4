"""The contestants of `bench moe` that are ours: one tile an expert, used in different ways."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import torch

from strideweave.bench.moe.peers import Counters, Racer
from strideweave.bench.moe.work import Routes, Work, layer_steps, run_expert
from strideweave.checkpoint import Checkpoint
from strideweave.public import (
    CPU,
    AwaitProjection,
    AwaitResidency,
    BudgetExceeded,
    CheckpointFile,
    DType,
    Layout,
    Piece,
    ResidencyPolicy,
    Schedule,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)

_PROJECTED_AHEAD = 4
_LEAST_PRECISION = 0.85
"""Guesses that are right less often cost more bytes than they hide."""
_JUDGED_GUESSES = 16
_TRIED_AGAIN_STEPS = 64

Expert = tuple[int, int, int]
"""The coordinate of the tile of an expert."""
Waiting = dict[int, torch.Tensor]
"""The rows of tokens for each expert of a layer."""


@contextmanager
def carrier_of(work: Work, path: Path, policy: ResidencyPolicy | None = None) -> Iterator[TiledEvictable]:
    """The experts of a safetensors file, one tile each, under the budget of the work."""
    tensors = Checkpoint.open(path).tensors
    located = [
        tensors[work.name(layer, expert, matrix)]
        for layer, expert, matrix in product(range(work.layers), range(work.experts), work.matrices)
    ]
    grid = (work.layers, work.experts)
    carrier = TiledEvictable(
        CPU(0, dtype=DType.BFloat16),
        CheckpointFile(
            [Piece(at.file, at.entry.offset_nbytes, at.entry.nbytes) for at in located], dtype=DType.BFloat16
        ),
        grid_shape=(*grid, 1),
        tile_shape=(1, 1, work.expert_elements),
        layout=Layout.row_major(*grid, work.expert_elements),
        budget=work.budget_nbytes,
        residency_policy=policy,
    )
    try:
        yield carrier
    finally:
        carrier.release()


def counted(carrier: TiledEvictable) -> Counters:
    """What a carrier counts of itself."""
    statistics = carrier.statistics()
    names = ("hits", "misses", "hit_rate", "bytes_read", "stall_s", "slots")
    return {name: getattr(statistics, name) for name in names}


def streamed(work: Work, carrier: TiledEvictable, layer: int, inputs: Waiting) -> Iterator[tuple[int, torch.Tensor]]:
    """Views of tiles, used in place: those that are resident first, the others as they land."""
    for (_, expert, _), tile in carrier.stream(TileSet([(layer, expert, 0) for expert in inputs])):
        yield expert, run_expert(inputs[expert], *work.split(tile))


@contextmanager
def views(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """`stream` with the default policy."""
    with carrier_of(work, path) as carrier:
        yield partial(streamed, work, carrier), partial(counted, carrier)


@contextmanager
def resident(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """`stream` over a budget for every expert, all of which have come before the first step."""
    with carrier_of(work, path) as carrier:
        carrier.promote(TileSet(product(range(work.layers), range(work.experts), [0])))
        yield partial(streamed, work, carrier), partial(counted, carrier)


@contextmanager
def scheduled(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """`stream` with `Schedule` of all routes: the fewest reads that are possible, none of them ahead of its step."""
    with carrier_of(work, path, schedule_of(routes)) as carrier:
        yield partial(streamed, work, carrier), partial(counted, carrier)


def schedule_of(routes: Routes) -> Schedule:
    """All uses, step by step."""
    return Schedule([TileSet((layer, expert, 0) for expert in experts) for layer, experts in layer_steps(routes)])


# -- projections -----------------------------------------------------------------------------------------------------


@contextmanager
def projected(work: Work, path: Path, routes: Routes, *, recycles: bool) -> Iterator[Racer]:
    """`project` of one expert at a time, some of a layer begun ahead, and used as they land.

    With `recycles` into carriers of its own that are used again, else into fresh ones.
    """
    with carrier_of(work, path) as carrier:
        full = Tensor(carrier, 0, carrier.layout)
        spare: list[CPU] = []

        def begin(layer: int, expert: int) -> tuple[CPU | None, AwaitProjection]:
            into = None
            if recycles:
                into = spare.pop() if spare else CPU(work.expert_elements, dtype=DType.BFloat16)
            return into, carrier.project(full, TileSelection([[layer], [expert], [0]]), into)

        def run_layer(layer: int, inputs: Waiting) -> Iterator[tuple[int, torch.Tensor]]:
            left = deque(inputs)
            coming: dict[int, tuple[CPU | None, AwaitProjection]] = {}
            while left or coming:
                while left and len(coming) < _PROJECTED_AHEAD:
                    expert = left.popleft()
                    coming[expert] = begin(layer, expert)
                landed = (expert for expert, (_, handle) in coming.items() if handle.done)
                expert = next(landed, next(iter(coming)))
                into, handle = coming.pop(expert)
                yield expert, run_expert(inputs[expert], *work.split(handle.wait().torch()))
                if into is not None:
                    spare.append(into)

        yield run_layer, partial(counted, carrier)


# -- look-ahead ------------------------------------------------------------------------------------------------------


class LookAhead:
    """Promotes what the next layer of the schedule is guessed to use, while this one is computed.

    Guesses are right with probability `precision`; a wrong one is any expert of the layer. With `adapts` they are
    given up while fewer than 0.85 of those that ended were used, and tried again a while later.
    """

    def __init__(self, work: Work, carrier: TiledEvictable, routes: Routes, *, precision: float, adapts: bool) -> None:
        self._work = work
        self._carrier = carrier
        self._steps = layer_steps(routes)
        self._precision = precision
        self._adapts = adapts
        self._random = random.Random(work.seed)
        self._number = 0
        self._coming: dict[Expert, AwaitResidency] = {}
        self._guessed: set[Expert] = set()
        self._quiet_until = 0
        self._window: list[bool] = []
        self.issued = self.right = 0

    def run_layer(self, layer: int, inputs: Waiting) -> Iterator[tuple[int, torch.Tensor]]:
        """The layer that is due; what was promised for it comes last, when it has had the most time."""
        used = {(layer, expert, 0) for expert in inputs}
        self._judge(used)
        self._coming = {tile: handle for tile, handle in self._coming.items() if not handle.done}
        late = [tile for tile in self._coming if tile in used]
        stream = self._carrier.stream(TileSet(used.difference(late)))
        self._number += 1
        self._guess(used)
        for (_, expert, _), tile in stream:
            yield expert, run_expert(inputs[expert], *self._work.split(tile))
        for at in late:
            self._coming.pop(at).wait()
            yield from streamed(self._work, self._carrier, layer, {at[1]: inputs[at[1]]})

    def _judge(self, used: set[Expert]) -> None:
        hit = len(self._guessed & used)
        self.right += hit
        self._window += [True] * hit + [False] * (len(self._guessed) - hit)
        self._guessed = set()
        recent = self._window[-2 * _JUDGED_GUESSES :]
        if self._adapts and len(recent) >= _JUDGED_GUESSES and sum(recent) < _LEAST_PRECISION * len(recent):
            self._quiet_until = self._number + _TRIED_AGAIN_STEPS
            self._window.clear()

    def _guess(self, used: set[Expert]) -> None:
        if self._number < self._quiet_until or self._number >= len(self._steps):
            return
        layer, experts = self._steps[self._number]
        for expert in experts:
            if self._random.random() >= self._precision:
                expert = self._random.randrange(self._work.experts)
            tile = (layer, expert, 0)
            if tile in used or tile in self._coming or self._carrier.tile_state(tile).location == "primary":
                continue
            try:
                self._coming[tile] = self._carrier.promote_async(TileSet([tile]))
            except BudgetExceeded:  # running work needs every slot
                return
            self._guessed.add(tile)
            self.issued += 1

    def close(self) -> None:
        """What is on its way has come."""
        for handle in self._coming.values():
            handle.wait()


@contextmanager
def looking_ahead(
    work: Work, path: Path, routes: Routes, *, precision: float, adapts: bool = False, knows: bool = False
) -> Iterator[Racer]:
    """`stream`, with promotions one layer ahead; the default order of eviction, or with `knows` that of `Schedule`."""
    with carrier_of(work, path, schedule_of(routes) if knows else None) as carrier:
        ahead = LookAhead(work, carrier, routes, precision=precision, adapts=adapts)

        def counters() -> Counters:
            precise = ahead.right / ahead.issued if ahead.issued else None
            return {**counted(carrier), "guesses": ahead.issued, "precision": precise}

        try:
            yield ahead.run_layer, counters
        finally:
            ahead.close()
