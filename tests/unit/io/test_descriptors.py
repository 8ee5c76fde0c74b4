from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from strideweave.io import Descriptors


def null() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def open_numbers() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_borrow_twice_opens_once() -> None:
    few, opened = Descriptors(), []
    key = few.new_key()

    def opener() -> int:
        opened.append(null())
        return opened[-1]

    with few.borrow(key, opener) as one, few.borrow(key, opener) as two:
        assert one == two
    assert len(opened) == 1


def test_borrow_beyond_the_limit_closes_the_one_used_longest_ago() -> None:
    few = Descriptors(limit=2)
    a, b, c = few.new_key(), few.new_key(), few.new_key()
    numbers = {}
    for key in (a, b, a, c):
        with few.borrow(key, null) as numbers[key]:
            pass
    with few.borrow(a, lambda: pytest.fail("it was closed")):
        pass
    with few.borrow(c, lambda: pytest.fail("it was closed")):
        pass
    assert few.open_count == 2


def test_borrow_in_use_is_never_closed() -> None:
    few = Descriptors(limit=1)
    with few.borrow(few.new_key(), null) as first:
        for _ in range(5):
            with few.borrow(few.new_key(), null):
                os.fstat(first)
        few.close_idle()
        os.fstat(first)
    assert few.open_count <= 1


def test_forget_in_use_closes_at_the_end_of_the_use() -> None:
    before = open_numbers()
    few = Descriptors()
    key = few.new_key()
    with few.borrow(key, null) as descriptor:
        few.forget(key)
        os.fstat(descriptor)
    assert open_numbers() == before


def test_forget_inside_the_lock_waits_for_nobody() -> None:
    few = Descriptors()
    key = few.new_key()
    with few.borrow(key, null):
        pass
    with few._lock:  # as a finaliser does that runs while this thread holds the lock
        few.forget(key)
    assert few.open_count == 1
    with few.borrow(few.new_key(), null):
        pass
    assert few.open_count == 1


def test_borrow_without_a_descriptor_left_closes_idle_ones_and_tries_again() -> None:
    few = Descriptors()
    with few.borrow(few.new_key(), null):
        pass
    attempts = []

    def opener() -> int:
        attempts.append(few.open_count)
        if len(attempts) == 1:
            raise OSError(errno.EMFILE, "too many")
        return null()

    with few.borrow(few.new_key(), opener):
        pass
    assert attempts == [1, 0]


def test_borrow_whose_opener_fails_leaves_nothing() -> None:
    few, before = Descriptors(), open_numbers()
    with (
        pytest.raises(PermissionError),
        few.borrow(few.new_key(), lambda: (_ for _ in ()).throw(PermissionError())),
    ):
        pass
    assert (few.open_count, open_numbers()) == (0, before)


def test_borrow_from_many_threads_leaks_no_descriptor() -> None:
    before = open_numbers()
    few = Descriptors(limit=3)
    keys = [few.new_key() for _ in range(10)]

    def work(shift: int) -> None:
        for k in range(300):
            with few.borrow(keys[(k * shift) % 10], null) as descriptor:
                os.read(descriptor, 1)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in (1, 3, 7, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert few.open_count == 3
    few.close_idle()
    assert open_numbers() == before


def test_descriptors_limit_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Descriptors(limit=0)
