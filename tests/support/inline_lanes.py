"""Lanes without threads: jobs wait until somebody picks one, in any order; who waits for them runs them meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from strideweave.carriers.handle import AwaitResult
from strideweave.carriers.tiled_evictable import carrier as carrier_module
from strideweave.carriers.tiled_evictable.engine import Engine
from strideweave.io import Priority

_IDLE_WAITS = 50
_PATIENCE_S = 5.0


class InlineJob:
    """Stands in for `strideweave.io.Job`."""

    def __init__(self, waiting: list[InlineJob], call: Callable[[], None]) -> None:
        self._waiting = waiting
        self.call = call

    def cancel(self) -> bool:
        """Whether it waited; it does no longer."""
        if self not in self._waiting:
            return False
        self._waiting.remove(self)
        return True

    def hurry(self, priority: Priority = Priority.DEMAND) -> bool:
        """Whether it waits. `choose` decides the order anyway."""
        return self in self._waiting


class InlineLanes:
    """Stands in for `strideweave.io.Lanes`: `choose(n)` says which of n waiting jobs is next."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._jobs: list[InlineJob] = []

    def submit(self, job: Callable[[], None], priority: Priority = Priority.DEMAND) -> InlineJob:
        """The job waits."""
        made = InlineJob(self._jobs, job)
        self._jobs.append(made)
        return made

    def run_one(self) -> bool:
        """Run one job; False when none waits."""
        if not self._jobs:
            return False
        self._jobs.pop(self._choose(len(self._jobs)) if len(self._jobs) > 1 else 0).call()
        return True

    def run_all(self) -> None:
        """Run all jobs, and those that they submit."""
        while self.run_one():
            pass

    @contextmanager
    def installed(self) -> Iterator[InlineLanes]:
        """Tiled carriers that are made meanwhile use these lanes, and whatever waits for a request runs its jobs."""
        lanes, make, wait = self, Engine.__init__, AwaitResult.wait

        def init(engine: Engine, *args: Any, **options: Any) -> None:
            make(engine, *args, **options)
            engine.guard = _Guard(lanes)

        def pump(handle: AwaitResult[Any], timeout: float | None = None) -> Any:
            while not handle.done and lanes.run_one():
                pass
            return wait(handle, timeout or _PATIENCE_S)  # for a move on real lanes; a tiled request is done by now

        with (
            mock.patch.object(carrier_module, "default_lanes", return_value=lanes),
            mock.patch.object(Engine, "__init__", init),
            mock.patch.object(AwaitResult, "wait", pump),
        ):
            yield self


class _Guard(threading.Condition):
    """Whose `wait` runs a job. When none is left, nobody could ever wake the waiting thread."""

    def __init__(self, lanes: InlineLanes) -> None:
        super().__init__(threading.Lock())
        self._lanes = lanes
        self._idle = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.release()
        try:
            ran = self._lanes.run_one()
        finally:
            self.acquire()
        self._idle = 0 if ran else self._idle + 1
        assert ran or (timeout is not None and self._idle < _IDLE_WAITS), "a deadlock: nothing is left to do"
        return ran
