"""The steps of one running request: the last one that is over ends it."""

from __future__ import annotations

from collections.abc import Callable

from strideweave.carriers.tiled_evictable.engine import Engine


class Steps:
    """Counts what a request still waits for, on whatever lanes it happens, and keeps the first error.

    The start of the request is a step of its own, so that nothing ends before every step is counted. While steps are
    left the engine counts the request as work; `ended` is called once, outside the lock, and says `done` when every
    trace of the request is gone.
    """

    def __init__(self, engine: Engine, ended: Callable[[BaseException | None], None]) -> None:
        """Guarded, as `add` and `done` are."""
        self._engine = engine
        self._ended: Callable[[BaseException | None], None] | None = ended
        self._left = 1
        self._error: BaseException | None = None
        engine.work += 1

    def add(self) -> None:
        """One more step."""
        self._left += 1

    def over(self, error: BaseException | None) -> None:
        """One step is over (outside the lock)."""
        with self._engine.guard:
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        # A request has its steps, and these its end: whoever lets go of it lets go of its result's memory, at once.
        ended, self._ended = self._ended, None
        assert ended is not None, "a step is over after the last one"
        ended(self._error)

    def run(self, step: Callable[[], object]) -> None:
        """Take one step, on a lane; its exception is the request's."""
        error: BaseException | None = None
        try:
            step()
        except BaseException as e:
            error = e
        self.over(error)

    def done(self) -> None:
        """The request is no work any more."""
        self._engine.work -= 1
        self._engine.guard.notify_all()
