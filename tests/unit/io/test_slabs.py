from __future__ import annotations

import ctypes
import random
import re
import threading
from pathlib import Path

import pytest

from strideweave.io import SlabPool

MIB = 1 << 20


def resident_nbytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_take_returns_the_lowest_free_index() -> None:
    pool = SlabPool(10, 4)
    assert [pool.take() for _ in range(5)] == [0, 1, 2, 3, None]
    for index in (3, 1, 2):
        pool.give(index)
    assert [pool.take(), pool.take()] == [1, 2]
    assert (pool.free, pool.capacity) == (1, 4)


@pytest.mark.parametrize("index", [0, 1, -1, 2])
def test_give_what_is_not_out_is_our_own_mistake(index: int) -> None:
    pool = SlabPool(10, 2)
    pool.take()
    pool.give(0)
    with pytest.raises(AssertionError, match="given twice"):
        pool.give(index)
    assert pool.free == 2


@pytest.mark.parametrize(("slab", "stride"), [(1, 4096), (4096, 4096), (4097, 8192), (0, 4096)])
def test_slab_pool_small_slabs_are_page_aligned_and_exact(slab: int, stride: int) -> None:
    pool = SlabPool(slab, 3)
    assert pool.stride_nbytes == stride
    assert len(pool.buffer) == 3 * stride
    assert [len(pool.memory(k)) for k in range(3)] == [slab] * 3
    if slab:
        assert [address(pool.memory(k)) for k in range(3)] == [address(pool.buffer) + k * stride for k in range(3)]
        assert address(pool.buffer) % 4096 == 0


def test_slab_pool_large_starts_at_two_mebibytes() -> None:
    pools = [SlabPool(700_001, 4) for _ in range(3)]
    assert [address(pool.buffer) % (2 * MIB) for pool in pools] == [0, 0, 0]


def test_slab_pool_writes_stay_inside_their_slab() -> None:
    pool = SlabPool(5000, 3)
    for k in range(3):
        pool.memory(k)[:] = bytes([k + 1]) * 5000
    expected = b"".join(bytes([k + 1]) * 5000 + bytes(8192 - 5000) for k in range(3))
    assert bytes(pool.buffer) == expected


def test_slab_pool_untouched_costs_no_memory() -> None:
    before = resident_nbytes()
    pool = SlabPool(64 * MIB, 128)
    assert len(pool.buffer) == 8192 * MIB
    assert resident_nbytes() - before < 4 * MIB


def test_slab_pool_taken_written_and_given_stays_within_its_size() -> None:
    pool = SlabPool(MIB - 100, 24)
    before = resident_nbytes()
    rng, data = random.Random(1), b"\x55" * (MIB - 100)
    taken: list[int] = []
    sizes = []
    for _ in range(400):
        index = pool.take() if rng.random() < 0.6 else None
        if index is None and taken:
            pool.give(taken.pop(rng.randrange(len(taken))))
        elif index is not None:
            pool.memory(index)[:] = data
            taken.append(index)
        sizes.append(resident_nbytes() - before)
    assert max(sizes) <= 24 * MIB + MIB
    assert max(sizes[200:]) - min(sizes[200:]) < MIB


def test_slab_pool_closed_keeps_views_alive_and_then_returns_the_memory() -> None:
    pool = SlabPool(16 * MIB, 2)
    before = resident_nbytes()
    pool.buffer[:] = b"\x01" * (32 * MIB)
    view = pool.memory(1)
    pool.close()
    assert pool.take() is None
    assert view[-1] == 1
    assert resident_nbytes() - before > 30 * MIB
    del view
    assert resident_nbytes() - before < 4 * MIB


def test_slab_pool_from_many_threads_gives_each_slab_to_one() -> None:
    pool = SlabPool(8, 5)
    clashes = []

    def work(mark: int) -> None:
        for _ in range(500):
            index = pool.take()
            if index is None:
                continue
            memory = pool.memory(index)
            memory[:] = bytes([mark]) * 8
            if bytes(memory) != bytes([mark]) * 8:
                clashes.append(index)
            pool.give(index)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert pool.free == 5


def test_slab_pool_refuses_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="negative"):
        SlabPool(-1, 2)
    with pytest.raises(MemoryError, match="cannot map"):
        SlabPool(1 << 40, 1 << 20)
    with pytest.raises(IndexError, match="no slab 2"):
        SlabPool(1, 2).memory(2)
