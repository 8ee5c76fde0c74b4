"""Completion handles: what an asynchronous request returns."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Generic, Self, TypeVar, cast, final

from strideweave.io import watching

T = TypeVar("T")


class AwaitResult(Generic[T]):
    """The one outcome of a request that was started eagerly: a value or an exception, seen by every waiter.

    A handle is created by the request that it stands for. It completes exactly once. Dropping it neither waits
    for the work nor cancels it.

    >>> import strideweave as sw
    >>> handle = sw.move_async(sw.tensor([1.0]), sw.FileBacked())
    >>> isinstance(handle, sw.AwaitResult), handle.wait() is handle.wait(timeout=5)
    (True, True)
    """

    __slots__ = ("__weakref__", "_error", "_finished", "_label", "_trace", "_value")

    _label: str
    _finished: threading.Event
    _value: T | None
    _error: BaseException | None
    _trace: TracebackType | None

    def __init__(self) -> None:
        raise TypeError(
            f"cannot construct {type(self).__name__}: handles are created by the framework. Call the method that "
            "starts the work, and keep what it returns."
        )

    @classmethod
    def _pending(cls, label: str) -> Self:
        handle = cls.__new__(cls)
        handle._label = label
        handle._finished = threading.Event()
        handle._value = None
        handle._error = None
        handle._trace = None
        return handle

    @property
    def done(self) -> bool:
        """Whether the outcome is there, so that `wait` returns (or raises) at once."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> T:
        """The value, once it is there; the same object at every call.

        Units: `timeout` in seconds; None waits as long as it takes.
        Errors: the exception of the failed request, the same object at every call; TimeoutError when the time is up
        first (the work goes on, and a later wait can still see it).
        """
        if not self._finished.is_set():
            with watching.event("wait", self._label):
                self._finished.wait(timeout)
        if not self._finished.is_set():
            raise TimeoutError(
                f"cannot wait any longer for {self._label}: {timeout} s are over and it is still running. "
                "The work goes on. Wait again, or with a longer timeout."
            )
        if self._error is not None:
            # Without the first traceback restored, every wait would make the shared exception's trace longer.
            raise self._error.with_traceback(self._trace)
        return cast(T, self._value)

    def _finish(self, value: T | None, error: BaseException | None) -> None:
        """The outcome: `error` when there is one, else `value`."""
        if error is None:
            self._succeed(cast(T, value))
        else:
            self._fail(error)

    def _succeed(self, value: T) -> None:
        assert not self._finished.is_set(), f"{self._label} completed twice"
        self._value = value
        self._finished.set()

    def _fail(self, error: BaseException) -> None:
        assert not self._finished.is_set(), f"{self._label} completed twice"
        self._error = error
        self._trace = error.__traceback__
        self._finished.set()

    def __repr__(self) -> str:
        state = "pending" if not self.done else "failed" if self._error is not None else "done"
        return f"<{type(self).__name__} of {self._label}: {state}>"


@final
class AwaitMove(AwaitResult[T]):
    """The outcome of a move: `wait()` returns the Tensor over the destination, the same object every time.

    It is no Tensor itself, so no operation takes it as an operand.

    >>> import strideweave as sw
    >>> handle = sw.move_async(sw.tensor([1.0, 2.0]), sw.FileBacked())
    >>> handle.wait()[1], handle.done
    (2.0, True)
    """

    __slots__ = ()
