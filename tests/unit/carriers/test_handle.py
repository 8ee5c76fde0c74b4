"""AwaitResult: one outcome, seen by every waiter."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from strideweave import AwaitProjection, AwaitResidency, AwaitResult


@pytest.mark.parametrize("kind", [AwaitResult, AwaitProjection, AwaitResidency])
def test_handle_cannot_be_constructed(kind: type[AwaitResult[object]]) -> None:
    with pytest.raises(TypeError, match="created by the framework"):
        kind()


def test_handle_gives_the_same_object_every_time() -> None:
    handle: AwaitResult[list[int]] = AwaitResult._pending("a test")
    assert not handle.done
    assert "pending" in repr(handle)
    value = [1]
    handle._succeed(value)
    assert handle.done
    assert handle.wait() is handle.wait(0) is value
    assert "done" in repr(handle)


def test_handle_raises_the_same_exception_with_the_same_trace() -> None:
    handle: AwaitResult[None] = AwaitResult._pending("a test")
    error = OSError("no")
    handle._fail(error)
    lengths = set()
    for _ in range(3):
        with pytest.raises(OSError) as caught:
            handle.wait()
        assert caught.value is error
        trace, count = caught.value.__traceback__, 0
        while trace is not None:
            trace, count = trace.tb_next, count + 1
        lengths.add(count)
    assert len(lengths) == 1
    assert handle.done
    assert "failed" in repr(handle)


def test_handle_timeout_leaves_the_work_and_the_handle() -> None:
    handle: AwaitResult[int] = AwaitResult._pending("a slow test")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"a slow test.*0\.02 s"):
        handle.wait(0.02)
    assert time.monotonic() - began >= 0.02
    handle._succeed(3)
    assert handle.wait(0) == 3


def test_handle_wakes_every_waiter_with_the_same_object() -> None:
    handle: AwaitResult[object] = AwaitResult._pending("a test")
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(handle.wait(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    value = object()
    handle._succeed(value)
    for thread in threads:
        thread.join()
    assert [v is value for v in seen] == [True] * 4


def test_handle_completes_once() -> None:
    handle: AwaitResult[int] = AwaitResult._pending("a test")
    handle._succeed(1)
    with pytest.raises(AssertionError, match="twice"):
        handle._succeed(2)
    with pytest.raises(AssertionError, match="twice"):
        handle._fail(OSError())
    assert handle.wait() == 1


def test_handle_is_weakly_referenceable_and_not_awaitable() -> None:
    handle: AwaitResult[int] = AwaitResult._pending("a test")
    gone = weakref.ref(handle)
    assert not hasattr(handle, "__await__")
    del handle
    gc.collect()
    assert gone() is None
