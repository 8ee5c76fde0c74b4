"""BlockDevice on a real loop device, which the tests attach to a sparse file and detach again."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strideweave.carriers.block_device import BlockDevice, BlockDeviceCarrier
from strideweave.carriers.cpu import CPU
from strideweave.carriers.file_backed import read_all
from strideweave.dtype import DType, StorageDType
from strideweave.io import StorageError, block_node
from support.loop_device import loop_device

CAPACITY = 64 * 1024


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with loop_device(tmp_path_factory.mktemp("loop"), CAPACITY) as path:
        yield path


@pytest.fixture
def device(node: str) -> Iterator[BlockDevice]:
    device = BlockDevice(node)
    yield device
    device.close()


def contents(node: str) -> bytes:
    """What is on the device, seen by another opener."""
    return Path(node).read_bytes()


class TestOpening:
    def test_sizes_are_those_that_the_kernel_tells(self, device: BlockDevice, node: str) -> None:
        queue = Path("/sys/block", Path(node).name)
        assert device.path == node
        assert device.capacity_bytes == CAPACITY == 512 * int(Path(queue, "size").read_text())
        assert device.logical_block_size == int(Path(queue, "queue/logical_block_size").read_text())
        assert device.physical_block_size == int(Path(queue, "queue/physical_block_size").read_text())
        assert device.allocation_alignment == max(device.logical_block_size, device.physical_block_size)
        assert (device.is_closed(), device.is_faulted()) == (False, False)
        assert node in repr(device)

    def test_larger_blocks_align_extents(self, tmp_path: Path) -> None:
        with loop_device(tmp_path, CAPACITY, sector_nbytes=4096) as path, BlockDevice(path) as wide:
            assert (wide.logical_block_size, wide.allocation_alignment) == (4096, 4096)
            one, two = wide.allocate(1), wide.allocate(1025)
            assert [(c.device_offset_bytes, c.extent_bytes) for c in (one, two)] == [(0, 4096), (4096, 8192)]
            del one, two

    def test_device_in_use_is_refused_and_opens_once_it_is_free(self, device: BlockDevice, node: str) -> None:
        with pytest.raises(StorageError, match=r"(?i)busy.*mounted file system"):
            BlockDevice(node)
        device.close()
        BlockDevice(node).close()

    def test_regular_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"precious")
        with pytest.raises(ValueError, match="it is a regular file"):
            BlockDevice(path)
        assert path.read_bytes() == b"precious"

    @pytest.mark.parametrize(("path", "kind"), [("/dev/null", "a character device"), ("/", "a directory")])
    def test_other_kinds_of_files_are_refused(self, path: str, kind: str) -> None:
        with pytest.raises(ValueError, match=kind):
            BlockDevice(path)

    def test_pipe_is_refused_without_waiting_for_it(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="pipe"):
            BlockDevice(tmp_path / "pipe")

    def test_missing_device_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no such device"):
            BlockDevice(tmp_path / "none")

    @pytest.mark.parametrize("path", [None, 3, True])
    def test_what_is_no_path_is_refused(self, path: object) -> None:
        with pytest.raises(TypeError, match="no path"):
            BlockDevice(path)  # type: ignore[arg-type]

    @pytest.mark.parametrize("platform", ["darwin", "win32"])
    def test_other_systems_are_refused(self, monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
        monkeypatch.setattr(block_node.sys, "platform", platform)
        with pytest.raises(NotImplementedError, match=f"on Linux, and this is {platform}"):
            BlockDevice("/dev/null")

    def test_symlink_names_the_device_behind_it(self, node: str, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(node)
        with BlockDevice(tmp_path / "link") as device:
            assert device.path == node

    def test_device_that_is_only_readable_is_refused(self, tmp_path: Path) -> None:
        with (
            loop_device(tmp_path, CAPACITY, read_only=True) as path,
            pytest.raises(StorageError, match=r"it is read-only.*blockdev --setrw"),
        ):
            BlockDevice(path)


class TestAllocation:
    def test_extents_are_aligned_lowest_first_and_joined_when_they_come_back(self, device: BlockDevice) -> None:
        step = device.allocation_alignment
        carriers = [device.allocate(n, dtype=DType.UInt8) for n in (1, step, step + 1, 5)]
        assert [c.device_offset_bytes for c in carriers] == [0, step, 2 * step, 4 * step]
        assert [c.extent_bytes for c in carriers] == [step, step, 2 * step, step]
        carriers[0].release()
        carriers[1].release()
        joined = device.allocate(2 * step, dtype=DType.UInt8)
        assert (joined.device_offset_bytes, joined.extent_bytes) == (0, 2 * step)
        carriers[2].release()
        low = device.allocate(1)
        assert low.device_offset_bytes == 2 * step

    def test_extent_of_a_dropped_carrier_is_free_again(self, device: BlockDevice) -> None:
        whole = device.allocate(CAPACITY, dtype=DType.Int8)
        assert whole.extent_bytes == CAPACITY
        del whole
        assert device.allocate(CAPACITY, dtype=DType.Int8).device_offset_bytes == 0

    def test_no_room_names_the_sizes_and_takes_nothing(self, device: BlockDevice) -> None:
        step = device.allocation_alignment
        kept = [device.allocate(step, dtype=DType.Int8) for _ in range(CAPACITY // step)]
        for k in (3, 5, 6):
            kept[k].release()
        with pytest.raises(MemoryError, match="no aligned extent") as caught:
            device.allocate(3 * step - 1, dtype=DType.Int8)
        for number in (3 * step - 1, 3 * step, CAPACITY):
            assert f"{number} bytes" in str(caught.value)
        assert f"at most {2 * step} in one extent" in str(caught.value)
        assert device.allocate(2 * step, dtype=DType.Int8).device_offset_bytes == 5 * step
        assert not device.is_faulted()

    def test_failed_allocation_keeps_no_carrier_alive(self, device: BlockDevice) -> None:
        with pytest.raises(MemoryError) as caught:
            device.allocate(CAPACITY)
        device.close()
        assert "no aligned extent" in str(caught.value)

    def test_fresh_extent_reads_as_zero_where_something_was(self, device: BlockDevice, node: str) -> None:
        first = device.allocate(CAPACITY, dtype=DType.UInt8, empty=True)
        first._write_runs([(0, torch.full((CAPACITY,), 255, dtype=torch.uint8))])
        first.release()
        step = device.allocation_alignment
        zero = device.allocate(step + 1, dtype=DType.UInt8)
        kept = device.allocate(3, dtype=DType.UInt8, empty=True)
        assert read_all(zero).tolist() == [0] * (step + 1)
        assert read_all(kept).tolist() == [255] * 3
        assert contents(node) == bytes(2 * step) + b"\xff" * (CAPACITY - 2 * step)

    def test_extent_longer_than_one_stretch_of_zeros_is_zero(
        self, device: BlockDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("strideweave.carriers.block_device._ZEROS_NBYTES", 1000)
        device.allocate(CAPACITY, dtype=DType.UInt8)._write_runs([(0, torch.ones(CAPACITY, dtype=torch.uint8))])
        assert not read_all(device.allocate(2500, dtype=DType.UInt8)).any()

    @pytest.mark.parametrize("size", [-1, 1.0, True, "3"])
    def test_bad_size_is_refused(self, device: BlockDevice, size: object) -> None:
        with pytest.raises((TypeError, ValueError), match="size"):
            device.allocate(size)  # type: ignore[arg-type]

    @pytest.mark.parametrize("flag", ["mutable", "empty"])
    @pytest.mark.parametrize("value", [1, None, np.True_], ids=str)
    def test_flag_that_is_no_exact_bool_is_refused(self, device: BlockDevice, flag: str, value: object) -> None:
        with pytest.raises(TypeError, match=f"{flag} must be a bool"):
            device.allocate(1, **{flag: value})  # type: ignore[arg-type]

    def test_what_is_no_dtype_is_refused(self, device: BlockDevice) -> None:
        with pytest.raises(TypeError, match="dtype must be a DType"):
            device.allocate(1, dtype="Float32")  # type: ignore[arg-type]

    def test_direct_construction_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"use BlockDevice\.allocate"):
            BlockDeviceCarrier(3)


class TestValues:
    @pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
    def test_every_bit_of_every_dtype_is_kept(self, device: BlockDevice, dtype: StorageDType) -> None:
        raw = torch.arange(16, dtype=torch.uint8) % (2 if dtype is DType.Bool else 255)
        values = raw.view(dtype.torch_dtype)
        carrier = device.allocate(values.numel(), dtype=dtype)
        assert carrier._write_runs([(0, values)]) == 16
        assert torch.equal(read_all(carrier).view(torch.uint8), raw)

    # One device for all examples: each starts from a fresh carrier of zeros.
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 190), st.integers(1, 10)), max_size=6))
    def test_runs_at_any_byte_touch_no_neighbour(self, device: BlockDevice, writes: list[tuple[int, int, int]]) -> None:
        carriers = [device.allocate(200, dtype=DType.Int16) for _ in range(3)]
        models = [np.zeros(200, dtype=np.int16) for _ in carriers]
        for k, (which, start, length) in enumerate(writes):
            carriers[which]._write_runs([(start, torch.full((length,), k + 1, dtype=torch.int16))])
            models[which][start : start + length] = k + 1
        on_device = contents(device.path)
        for carrier, model in zip(carriers, models, strict=True):
            assert read_all(carrier).tolist() == model.tolist()
            begin = carrier.device_offset_bytes
            assert on_device[begin : begin + carrier.extent_bytes] == model.tobytes().ljust(carrier.extent_bytes, b"\0")
            out = [torch.empty(n, dtype=torch.int16) for _, _, n in writes]
            carrier._read_runs([(start, o) for (_, start, _), o in zip(writes, out, strict=True)])
            assert [o.tolist() for o in out] == [model[s : s + n].tolist() for _, s, n in writes]

    @pytest.mark.parametrize("start", [-1, 3, 4, 10**12])
    def test_run_outside_the_slots_is_refused_though_the_device_goes_on(self, device: BlockDevice, start: int) -> None:
        carrier, neighbour = device.allocate(4), device.allocate(4)
        for move in (carrier._read_runs, carrier._write_runs):
            with pytest.raises(IndexError, match="out of range"):
                move([(start, torch.ones(2))])
        assert read_all(neighbour).tolist() == [0.0] * 4
        assert not device.is_faulted()

    def test_elements_count_and_immutable_ones_do_not_change(self, device: BlockDevice) -> None:
        carrier, fixed = device.allocate(3), device.allocate(2, mutable=False)
        carrier[1] = 2.5
        assert ([carrier[k] for k in range(3)], carrier.version) == ([0.0, 2.5, 0.0], 1)
        with pytest.raises((TypeError, ValueError)):
            carrier[0] = "x"  # type: ignore[assignment]
        with pytest.raises(RuntimeError, match="not mutable"):
            fixed[0] = 1.0
        assert (carrier.version, fixed.version) == (1, 0)

    def test_others_are_made_on_the_same_device_after_release_too(self, device: BlockDevice) -> None:
        carrier = device.allocate(3, dtype=DType.Int32)
        carrier.release()
        assert (carrier.size(), carrier.extent_bytes, carrier.device) == (0, 0, device)
        made = carrier.new_like([1, None, 3])
        assert isinstance(made, BlockDeviceCarrier)
        assert (made.device, read_all(made).tolist(), made.dtype()) == (device, [1, 0, 3], DType.Int32)
        assert carrier.allocate_like(2, dtype=DType.Bool).device_offset_bytes == device.allocation_alignment

    def test_empty_carrier_is_allocated_once_and_gives_back_what_it_has(self, device: BlockDevice) -> None:
        first = device.allocate(1)
        carrier = device.allocate(0)
        assert (carrier.size(), carrier.extent_bytes) == (0, 0)
        carrier._allocate(200)
        assert (carrier.size(), carrier.device_offset_bytes) == (200, device.allocation_alignment)
        carrier._write_runs([(0, torch.arange(200.0))])
        assert carrier[199] == 199.0
        carrier._free()
        first.release()
        assert device.allocate(CAPACITY, dtype=DType.Int8).extent_bytes == CAPACITY

    def test_it_cannot_be_seen_as_memory(self, device: BlockDevice) -> None:
        with pytest.raises(BufferError, match="materialize"):
            device.allocate(1)._flat()

    def test_repr_names_the_place(self, device: BlockDevice) -> None:
        assert repr(device.allocate(2)) == f"<BlockDeviceCarrier of 2 x Float32 at byte 0 of {device.path!r}>"

    def test_threads_share_a_device(self, device: BlockDevice) -> None:
        def work(k: int) -> None:
            for round in range(10):
                carrier = device.allocate(300, dtype=DType.Int32, empty=True)
                values = torch.full((300,), 100 * k + round, dtype=torch.int32)
                carrier._write_runs([(0, values)])
                results.append(torch.equal(read_all(carrier), values))

        results: list[bool] = []
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 40
        assert device.allocate(CAPACITY, dtype=DType.Int8).device_offset_bytes == 0


class TestClosing:
    def test_close_is_refused_while_a_carrier_object_exists_released_or_not(self, device: BlockDevice) -> None:
        carrier, other = device.allocate(3), device.allocate(2)
        with pytest.raises(RuntimeError, match=r"a Carrier object exists on it, 2 in all"):
            device.close()
        carrier[0] = 1.0
        other.release()
        del other
        carrier.release()
        with pytest.raises(RuntimeError, match="Carrier object exists"):
            device.close()
        del carrier
        device.close()
        device.close()
        assert device.is_closed()
        assert device.capacity_bytes == CAPACITY
        assert "closed" in repr(device)

    def test_carrier_in_a_dead_cycle_is_nobodys(self, device: BlockDevice) -> None:
        cycle: list[object] = [device.allocate(1)]
        cycle.append(cycle)
        del cycle
        device.close()
        assert device.is_closed()

    @pytest.mark.parametrize("use", [lambda d: d.allocate(1), lambda d: d.allocate(0)])
    def test_closed_device_is_not_used(self, device: BlockDevice, use: Callable[[BlockDevice], object]) -> None:
        device.close()
        with pytest.raises(RuntimeError, match="device is closed"):
            use(device)

    def test_block_closes_and_refuses_like_close(self, node: str) -> None:
        with BlockDevice(node) as device:
            pass
        assert device.is_closed()
        kept = []
        with pytest.raises(RuntimeError, match="Carrier object exists"), BlockDevice(node) as device:
            kept.append(device.allocate(1))
        kept.clear()
        device.close()

    def test_error_in_the_block_is_the_one_that_comes_out(self, node: str) -> None:
        device = BlockDevice(node)
        carrier = device.allocate(1)
        with pytest.raises(KeyError), device:
            raise KeyError("first")
        assert not device.is_closed()
        del carrier
        with pytest.raises(KeyError), device:
            raise KeyError("second")
        assert device.is_closed()

    def test_dropped_device_is_let_go_of(self, node: str) -> None:
        carrier = BlockDevice(node).allocate(1)
        assert carrier[0] == 0.0
        with pytest.raises(StorageError, match=r"(?i)busy"):
            BlockDevice(node)
        del carrier
        BlockDevice(node).close()

    def test_forked_child_neither_uses_nor_holds_the_device(self, device: BlockDevice, node: str) -> None:
        carrier = device.allocate(1)
        ready, go = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            os.close(go[1])  # so that the parent's end is the only one, and its death ends the wait
            status = 1
            try:
                carrier[0]
            except RuntimeError as error:
                status = 0 if "belongs to process" in str(error) else 2
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(status)
        try:
            os.read(ready[0], 1)
            del carrier
            device.close()
            BlockDevice(node).close()  # while the child lives on
        finally:
            for end in (*go, *ready):
                os.close(end)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0


def test_mounted_device_is_refused(tmp_path: Path) -> None:
    """What the exclusive open is for; skipped where file systems cannot be made or mounted."""
    with loop_device(tmp_path, 4 * 2**20) as path:
        point = tmp_path / "mounted"
        point.mkdir()
        steps = (["mkfs.ext4", "-q", path], ["mount", "-t", "ext4", path, str(point)])
        for step in steps:
            try:
                subprocess.run(step, check=True, capture_output=True, timeout=30)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"cannot mount a file system here: {error}")
        try:
            with pytest.raises(StorageError, match="mounted"):
                BlockDevice(path)
        finally:
            subprocess.run(["umount", str(point)], check=True)
        BlockDevice(path).close()


def test_values_of_a_memory_carrier_come_and_go(device: BlockDevice) -> None:
    source, target = CPU.wrap(torch.arange(50.0)), CPU(50)
    stored = device.allocate(50, empty=True)
    stored._write_runs([(0, source._flat())])
    stored._read_runs([(0, target._flat())])
    assert torch.equal(source._flat(), target._flat())
