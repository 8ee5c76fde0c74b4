"""Device memory: sticks, coalescing, poison, live ranges, threads, forks, exhaustion."""

from __future__ import annotations

import gc
import os
import random
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strideweave.spyre import SpyreTensorLayout, config
from strideweave.spyre.memory import POISON, DeviceMemory, memory
from strideweave.spyre.ranges import FreeRanges

MIB = 2**20


@pytest.fixture
def small() -> DeviceMemory:
    return DeviceMemory(segments=2, segment_nbytes=16 * MIB)


def test_allocate_any_size_is_whole_sticks(small: DeviceMemory) -> None:
    for asked, given_nbytes in ((0, 128), (1, 128), (128, 128), (129, 256), (5 * MIB + 1, 5 * MIB + 128)):
        address = small.allocate(asked)
        assert address % 128 == 0
        assert small.nbytes_at(address) == given_nbytes


def test_allocate_negative_raises(small: DeviceMemory) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        small.allocate(-1)


def test_segments_are_seven_of_16_gib_and_lazy() -> None:
    assert memory().segment_nbytes == 16 * 2**30
    assert memory().capacity % (16 * 2**30) == 0
    assert memory().bytes.numel() == memory().capacity


def test_new_small_block_is_poison_in_every_float(small: DeviceMemory) -> None:
    address = small.allocate(256)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        start = address // dtype.itemsize
        assert small.view(dtype)[start : start + 256 // dtype.itemsize].isnan().all()


@pytest.mark.parametrize("nbytes", [128, 4096, MIB, 3 * MIB])
def test_freed_block_is_poison(small: DeviceMemory, nbytes: int) -> None:
    address = small.allocate(nbytes)
    small.bytes[address : address + nbytes] = 7
    small.free(address)
    assert (small.bytes[address : address + nbytes] == POISON).all()


@pytest.mark.parametrize("nbytes", [256, 3 * MIB])
def test_poison_off_leaves_freed_bytes(small: DeviceMemory, nbytes: int) -> None:
    with config.patch({"poison": False}):
        address = small.allocate(nbytes)
        small.bytes[address : address + nbytes] = 7
        small.free(address)
        assert (small.bytes[address : address + nbytes] == 7).all()


def test_block_freed_without_poison_is_poison_when_poison_is_on_again(small: DeviceMemory) -> None:
    with config.patch({"poison": False}):
        address = small.allocate(256)
        small.bytes[address : address + 256] = 7
        small.free(address)
    again = small.allocate(256)
    assert again == address
    assert (small.bytes[again : again + 256] == POISON).all()


def test_free_twice_raises(small: DeviceMemory) -> None:
    address = small.allocate(10)
    small.free(address)
    with pytest.raises(ValueError, match="no live block"):
        small.free(address)
    with pytest.raises(ValueError, match="no live block"):
        small.free(address + 128)


def test_freed_neighbours_join(small: DeviceMemory) -> None:
    blocks = [small.allocate(4 * MIB) for _ in range(8)]
    assert {b // (16 * MIB) for b in blocks} == {0, 1}
    with pytest.raises(torch.OutOfMemoryError):
        small.allocate(4 * MIB)
    for block in (blocks[1], blocks[3], blocks[2]):
        small.free(block)
    assert small.allocate(12 * MIB) == blocks[1]


def test_no_block_crosses_a_segment(small: DeviceMemory) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"17\.0 MiB.*32\.0 MiB.*largest free range has 16\.0 MiB"):
        small.allocate(17 * MIB)
    first, second = small.allocate(16 * MIB), small.allocate(16 * MIB)
    small.free(first)
    small.free(second)
    with pytest.raises(torch.OutOfMemoryError):
        small.allocate(17 * MIB)


def test_out_of_memory_names_the_request_and_what_is_free(small: DeviceMemory) -> None:
    small.allocate(12 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"20971520 bytes.*12\.0 MiB of 32\.0 MiB.*20\.0 MiB are free"):
        small.allocate(20 * MIB)
    small.allocate(16 * MIB)


def test_small_blocks_do_not_stay_in_the_way_of_a_large_one(small: DeviceMemory) -> None:
    blocks = [small.allocate(32 * 1024) for _ in range(1024)]
    with pytest.raises(torch.OutOfMemoryError):
        small.allocate(128)
    for block in blocks:
        small.free(block)
    assert small.allocate(16 * MIB) == 0


def test_large_frees_beyond_what_is_kept_go_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strideweave.spyre.memory._KEPT_LARGE_NBYTES", 4 * MIB)
    device = DeviceMemory(segments=1, segment_nbytes=32 * MIB)
    a, b = device.allocate(3 * MIB), device.allocate(8 * MIB)
    device.bytes[b : b + 8 * MIB] = 7
    device.free(a)
    device.free(b)
    assert device.reserved == 3 * MIB
    assert (device.bytes[b : b + 8 * MIB] == 0).all()
    device.trim()
    assert device.reserved == 0


def test_statistics_follow_allocation_and_peak(small: DeviceMemory) -> None:
    a, b = small.allocate(1000), small.allocate(2 * MIB)
    small.free(a)
    assert small.allocated_bytes == 2 * MIB
    assert small.peak == 2 * MIB + 1024
    small.free(b)
    found = small.statistics()
    assert (found.allocated_nbytes, found.allocation_count, found.allocations_ever) == (0, 0, 2)
    assert found.reserved_nbytes >= 2 * MIB
    small.reset_peak()
    assert small.peak == 0


def test_layouts_live_with_their_block(small: DeviceMemory) -> None:
    layout = SpyreTensorLayout((5, 100), torch.float16)
    address = small.allocate(layout.nbytes)
    assert small.layout_at(address) is None
    small.describe(address, layout)
    assert small.layout_at(address) == layout
    assert small.block_around(address + 130) == (address, layout.nbytes)
    assert small.live_ranges() == [(address, layout.nbytes)]
    small.free(address)
    assert small.layout_at(address) is None
    assert small.block_around(address) is None
    with pytest.raises(ValueError, match="no live block"):
        small.describe(address, layout)


def test_describe_too_small_a_block_raises(small: DeviceMemory) -> None:
    address = small.allocate(128)
    with pytest.raises(ValueError, match="the block has 128"):
        small.describe(address, SpyreTensorLayout((5, 100), torch.float16))


def test_windows_of_a_view_are_the_arena(small: DeviceMemory) -> None:
    address = small.allocate(512)
    window = torch.as_strided(small.view(torch.float32), (2, 3), (32, 1), address // 4)
    window.copy_(torch.arange(6.0).reshape(2, 3))
    assert small.view(torch.float32)[address // 4 + 34] == 5
    assert small.view(torch.float32) is small.view(torch.float32)


def test_poison_outside_memory_raises(small: DeviceMemory) -> None:
    with pytest.raises(ValueError, match="memory ends"):
        small.poison(32 * MIB - 128, 256)


def test_threads_get_disjoint_blocks() -> None:
    device = DeviceMemory(segments=1, segment_nbytes=64 * MIB)
    failures: list[str] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        held: list[tuple[int, int]] = []
        for _ in range(300):
            if held and draw.random() < 0.5:
                address, nbytes = held.pop(draw.randrange(len(held)))
                if not (device.bytes[address : address + nbytes] == seed).all():
                    failures.append(f"{address} of {seed} was overwritten")
                device.free(address)
            else:
                nbytes = draw.choice([128, 1024, 4096, 2 * MIB])
                address = device.allocate(nbytes)
                device.bytes[address : address + nbytes] = seed
                held.append((address, nbytes))
            if len(held) > 6:
                device.free(held.pop(0)[0])
        for address, _ in held:
            device.free(address)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert device.allocated_bytes == 0


def test_free_from_a_finalizer_inside_the_lock_waits(small: DeviceMemory) -> None:
    address = small.allocate(128)
    with small._lock:
        small.free(address)
    gc.collect()
    assert small.allocated_bytes == 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_fork_has_memory_of_its_own() -> None:
    device = memory()
    address = device.allocate(256)
    device.bytes[address : address + 256] = 1
    child = os.fork()
    if child == 0:
        ok = bool((device.bytes[address : address + 256] == 1).all())
        device.bytes[address : address + 256] = 2
        device.free(address)
        os._exit(0 if ok and device.allocate(256) == address else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (device.bytes[address : address + 256] == 1).all()
    device.free(address)


@given(st.lists(st.tuples(st.integers(0, 63), st.booleans()), max_size=60))
def test_free_ranges_equal_a_set_of_bytes(steps: list[tuple[int, bool]]) -> None:
    ranges, free = FreeRanges(16), set()
    for position, is_add in steps:
        if is_add and position not in free:
            ranges.add(position, 1)
            free.add(position)
        elif not is_add:
            wanted = position % 5 + 1
            runs = [
                p
                for p in range(64)
                if p // 16 == (p + wanted - 1) // 16 and all(q in free for q in range(p, p + wanted))
            ]
            assert ranges.take(wanted) == (runs[0] if runs else None)
            if runs:
                free -= set(range(runs[0], runs[0] + wanted))
        assert ranges.total_nbytes == len(free)
        assert {p for start, n in ranges for p in range(start, start + n)} == free
