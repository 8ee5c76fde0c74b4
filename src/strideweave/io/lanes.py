"""A few threads that move bytes, most urgent first."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import Final, final

_PATIENCE_S: Final = 1.0
"""How long the end of the interpreter waits for jobs that run."""


class Priority(IntEnum):
    """How urgent a job is; a smaller number goes first."""

    DEMAND = 0
    """Somebody waits for it."""
    WRITE_BACK = 1
    """It makes room."""
    PREFETCH = 2
    """Somebody may want it."""


@final
class Job:
    """A job that was submitted: as long as it waits it can be called off, or made more urgent.

    >>> lanes, heard = Lanes(1), []
    >>> guess = lanes.submit(lambda: heard.append("guess"), Priority.PREFETCH)
    >>> lanes.close()
    >>> guess.cancel(), guess.hurry(), heard
    (False, False, ['guess'])
    """

    __slots__ = ("_call", "_lanes", "_priority")

    def __init__(self, lanes: Lanes, call: Callable[[], None], priority: Priority) -> None:
        self._lanes = lanes
        self._call: Callable[[], None] | None = call  # None once it was taken or called off
        self._priority = priority

    @property
    def priority(self) -> Priority:
        """How urgent it is, or was when it was taken."""
        return self._priority

    def cancel(self) -> bool:
        """Whether it was called off: it had not been taken, and never runs."""
        return self._lanes._withdraw(self)

    def hurry(self, priority: Priority = Priority.DEMAND) -> bool:
        """Whether it waits and is now at least this urgent; it goes behind those that already were."""
        return self._lanes._hurry(self, priority)


@final
class Lanes:
    """Up to `count` daemon threads that run jobs: by priority, first in first out within one.

    Threads start when jobs come and end after `idle_s` seconds without any, so nothing stays behind. A job
    should not raise; one that does is reported through `threading.excepthook`, and its lane goes on. A forked
    child starts with no jobs and no threads.

    Units: `idle_s` in seconds. Errors: RuntimeError when a job is submitted after `close`.

    >>> lanes, heard = Lanes(1), []
    >>> _ = lanes.submit(lambda: heard.append("bytes"))
    >>> lanes.close()
    >>> heard, lanes.idle
    (['bytes'], True)
    """

    def __init__(self, count: int, *, idle_s: float = 1.0) -> None:
        if count < 1:
            raise ValueError(f"cannot run {count} lanes: at least 1 is needed. Name a count of 1 or more.")
        self.count = count
        self._idle_s = idle_s
        self._is_closed = False
        self._is_ending = False
        self._start_afresh()
        _living.add(self)

    def _start_afresh(self) -> None:
        # Guards all that follows. Reentrant: a finaliser that submits may interrupt a thread inside it.
        self._changed = threading.Condition(threading.RLock())
        self._queues: dict[Priority, OrderedDict[Job, None]] = {p: OrderedDict() for p in Priority}
        self._threads: dict[int, threading.Thread] = {}
        self._waiting = 0
        self._running = 0

    @property
    def idle(self) -> bool:
        """Whether no job waits and none runs."""
        with self._changed:
            return not self._queued and not self._running

    @property
    def is_closed(self) -> bool:
        """Whether jobs are refused."""
        return self._is_closed

    @property
    def _queued(self) -> int:
        return sum(map(len, self._queues.values()))

    def submit(self, call: Callable[[], None], priority: Priority = Priority.DEMAND) -> Job:
        """The job will run, once, on a lane, unless it is called off before. Returns at once."""
        job = Job(self, call, priority)
        with self._changed:
            if self._is_closed:
                raise RuntimeError("cannot submit a job: the lanes are closed. Submit before close().")
            if self._is_ending:
                return job  # nobody is left to want it
            if self._queued >= self._waiting and len(self._threads) < self.count:
                self._start_thread()
            self._queues[priority][job] = None
            self._changed.notify()
            return job

    def _withdraw(self, job: Job) -> bool:
        with self._changed:
            if self._queues[job._priority].pop(job, job) is job:
                return False
            job._call = None
            return True

    def _hurry(self, job: Job, priority: Priority) -> bool:
        with self._changed:
            queue = self._queues[job._priority]
            if job not in queue:
                return False
            if priority < job._priority:
                del queue[job]
                job._priority = priority
                self._queues[priority][job] = None
            return True

    def close(self, wait: bool = True) -> None:
        """No job is accepted any more; those that were are run, before this returns if `wait`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = list(self._threads.values())
        if not wait:
            return
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _end(self, patience_s: float) -> None:
        """The interpreter ends: no job is begun any more, and those that run may finish.

        A thread that is cut off inside torch takes the process down with an abort.
        """
        deadline = time.monotonic() + patience_s
        with self._changed:
            self._is_ending = True
            for queue in self._queues.values():
                queue.clear()
            while self._running and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _start_thread(self) -> None:
        number = next(k for k in range(self.count) if k not in self._threads)
        thread = threading.Thread(target=self._work, args=(number,), name=f"strideweave-lane-{number}", daemon=True)
        self._threads[number] = thread
        try:
            thread.start()
        except RuntimeError:  # no thread to be had; those that run will do
            del self._threads[number]
            if not self._threads:
                raise

    def _work(self, number: int) -> None:
        while True:
            job = self._next_job(number)
            if job is None:
                return
            try:
                job()
            except BaseException:
                _report()
            finally:
                del job  # what it holds must not live until the next one comes
                with self._changed:
                    self._running -= 1
                    if self._is_ending:
                        self._changed.notify_all()

    def _next_job(self, number: int) -> Callable[[], None] | None:
        with self._changed:
            while not self._queued:
                self._waiting += 1
                try:
                    was_told = not self._is_closed and self._changed.wait(self._idle_s)
                finally:
                    self._waiting -= 1
                if not was_told and not self._queued:
                    del self._threads[number]
                    return None
            self._running += 1
            job, _ = next(queue for queue in self._queues.values() if queue).popitem(last=False)
            call, job._call = job._call, None
            return call

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Lanes {state}, {len(self._threads)} of {self.count} threads, {self._queued} jobs waiting>"


def _report() -> None:
    kind, value, traceback = sys.exc_info()
    assert kind is not None
    try:
        threading.excepthook(threading.ExceptHookArgs((kind, value, traceback, threading.current_thread())))
    except BaseException:  # the hook is the user's; a lane outlives its mistakes
        sys.__excepthook__(*sys.exc_info())


def default_lanes() -> Lanes:
    """The lanes of this process: STRIDEWEAVE_LANES of them, or 4.

    Errors: ValueError when the variable is not a whole number of 1 or more.

    >>> default_lanes() is default_lanes()
    True
    """
    global _default
    with _default_lock:
        if _default is None or _default.is_closed:
            _default = Lanes(_configured_count())
        return _default


def _configured_count() -> int:
    text = os.environ.get("STRIDEWEAVE_LANES", "").strip() or "4"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"cannot run STRIDEWEAVE_LANES={text!r} lanes: it is no whole number of 1 or more. Lanes are "
            "threads. Set it to a number such as 4, or unset it."
        )
    return int(text)


_living: weakref.WeakSet[Lanes] = weakref.WeakSet()
_default: Lanes | None = None
_default_lock = threading.Lock()  # guards _default


def _start_afresh_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for lanes in list(_living):
        lanes._start_afresh()


def _end_all() -> None:
    for lanes in list(_living):
        lanes._end(_PATIENCE_S)


os.register_at_fork(after_in_child=_start_afresh_in_child)
atexit.register(_end_all)
