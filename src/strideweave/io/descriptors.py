"""A few open file descriptors for any number of files."""

from __future__ import annotations

import errno
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from threading import Lock


class _Open:
    __slots__ = ("descriptor", "is_doomed", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 1
        self.is_doomed = False


class Descriptors:
    """At most `limit` descriptors stay open between uses; the one used longest ago is closed first.

    A descriptor in use is never closed, so more than `limit` are open only while more are in use.
    Threads may share it. After a fork the child starts with none open.

    Errors: whatever `opener` raises; when the process has no descriptor left, idle ones are closed and it is
    tried once more.

    >>> import os
    >>> few = Descriptors(limit=2)
    >>> key = few.new_key()
    >>> with few.borrow(key, lambda: os.open(os.devnull, os.O_RDONLY)) as descriptor:
    ...     os.read(descriptor, 1)
    b''
    >>> few.open_count
    1
    >>> few.forget(key)
    >>> few.open_count
    0
    """

    def __init__(self, limit: int = 64) -> None:
        if limit < 1:
            raise ValueError(f"cannot keep {limit} descriptors: at least 1 is needed. Name a limit of 1 or more.")
        self.limit = limit
        self._keys = count()
        self._forgotten: deque[int] = deque()  # appended to without the lock: a finaliser may run inside it
        self._start_afresh()
        _living.add(self)

    def _start_afresh(self) -> None:
        self._lock = Lock()  # guards _open and every _Open in it
        self._open: OrderedDict[int, _Open] = OrderedDict()  # the one used longest ago first

    def new_key(self) -> int:
        """A name for one file that no other file has."""
        return next(self._keys)

    @property
    def open_count(self) -> int:
        """How many descriptors are open now."""
        return len(self._open)

    @contextmanager
    def borrow(self, key: int, opener: Callable[[], int]) -> Iterator[int]:
        """The open descriptor of a file, made by `opener` if there is none; it stays open in the block."""
        opened = self._reuse(key)
        if opened is None:
            # Outside the lock: a slow file must not hold up the others. Two threads may both open; one wins.
            opened = self._adopt(key, self._call(opener))
        try:
            yield opened.descriptor
        finally:
            self._give_back(opened)

    def forget(self, key: int) -> None:
        """The file's descriptor is closed, now or when its last use ends. A finaliser may call it."""
        self._forgotten.append(key)
        # Never wait here: a finaliser may have interrupted this very thread inside the lock. Its holder
        # reaps then.
        self._reap()

    def close_idle(self) -> int:
        """No descriptor out of use is open; returns how many were closed."""
        with self._lock:
            idle = [self._open.pop(key).descriptor for key in [k for k, o in self._open.items() if not o.users]]
        _close_all(idle)
        return len(idle)

    def _reuse(self, key: int) -> _Open | None:
        with self._lock:
            opened = self._open.get(key)
            if opened is None:
                return None
            opened.users += 1
            self._open.move_to_end(key)
            return opened

    def _call(self, opener: Callable[[], int]) -> int:
        try:
            return opener()
        except OSError as e:
            if e.errno not in (errno.EMFILE, errno.ENFILE) or not self.close_idle():
                raise
        return opener()

    def _adopt(self, key: int, descriptor: int) -> _Open:
        surplus = []
        with self._lock:
            opened = self._open.get(key)
            if opened is not None:
                opened.users += 1
                surplus.append(descriptor)
            else:
                opened = self._open[key] = _Open(descriptor)
                surplus += self._trim()
        _close_all(surplus)
        return opened

    def _trim(self) -> list[int]:
        excess = len(self._open) - self.limit
        if excess <= 0:
            return []
        idle = [key for key, opened in self._open.items() if not opened.users][:excess]
        return [self._open.pop(key).descriptor for key in idle]

    def _give_back(self, opened: _Open) -> None:
        with self._lock:
            opened.users -= 1
            done = [opened.descriptor] if opened.is_doomed and not opened.users else self._trim()
        _close_all(done)
        self._reap()

    def _reap(self) -> None:
        while self._forgotten and self._lock.acquire(blocking=False):
            done: list[int] = []
            try:
                # Out of the table before it is closed: a fork in between must not find a stale number.
                opened = self._open.pop(self._forgotten.popleft(), None)
                if opened is not None and opened.users:
                    opened.is_doomed = True
                elif opened is not None:
                    done.append(opened.descriptor)
            except IndexError:
                return  # another thread was faster
            finally:
                self._lock.release()
                _close_all(done)

    def _after_fork(self) -> None:
        inherited = [opened.descriptor for opened in self._open.values()]
        self._start_afresh()  # the lock may have been held by a thread that the child does not have
        self._forgotten.clear()
        _close_all(inherited)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


_living: weakref.WeakSet[Descriptors] = weakref.WeakSet()


def _start_afresh_in_child() -> None:
    for descriptors in list(_living):
        descriptors._after_fork()


os.register_at_fork(after_in_child=_start_afresh_in_child)

DEFAULT_DESCRIPTORS = Descriptors()
"""The descriptors of this process, shared by every file."""
