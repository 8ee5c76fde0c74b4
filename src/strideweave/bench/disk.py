"""The disk itself: its raw rate without us, measured beside everything else, and what it is called."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from strideweave.bench.measure import drop_page_cache
from strideweave.io import SlabPool

PROBE_NBYTES: Final = 4 * 2**20
"""One read of the short probe: large enough for the full rate of the disk."""
Order = Literal["random", "sequential"]


@dataclass(frozen=True, slots=True)
class Access:
    """How a file is read or written. Units: bytes."""

    block_nbytes: int
    threads: int = 1
    order: Order = "random"

    def places(self, begin_nbytes: int, nbytes: int, seed: int) -> list[int]:
        """Where every whole block within a part of a file begins, each once, in the order of the access."""
        places = list(range(begin_nbytes, begin_nbytes + nbytes - self.block_nbytes + 1, self.block_nbytes))
        if self.order == "random":
            random.Random(seed).shuffle(places)
        return places


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement of the disk without us. Units: bytes, seconds."""

    nbytes: int
    seconds: float
    is_direct: bool
    """Whether the page cache was bypassed; else the pages were dropped first."""

    @property
    def nbytes_per_s(self) -> float:
        """The rate."""
        return self.nbytes / self.seconds


class RawFile:
    """A file that is read and written past the page cache, into memory of huge pages that has been touched.

    Where the file system has no direct I/O, pages are dropped before every measurement instead. Offsets and sizes are
    multiples of 4096 bytes.
    """

    def __init__(self, path: Path, *, threads: int = 4, block_nbytes: int = 16 * 2**20, writes: bool = False) -> None:
        self._path = path
        self._pool = SlabPool(block_nbytes, threads)
        self._writes = writes
        access = os.O_RDWR if writes else os.O_RDONLY
        try:
            self._descriptor = os.open(path, access | os.O_DIRECT)
            self.is_direct = _reads(self._descriptor, self._pool.memory(0)[:4096])
        except OSError:  # a file system without direct I/O
            self._descriptor = os.open(path, access)
            self.is_direct = False
        # Touched, since its page faults are not the disk's; with bytes that no disk takes for nothing.
        noise = random.Random(0).randbytes(self._pool.stride_nbytes)
        for number in range(threads):
            self._pool.memory(number)[:] = noise[:block_nbytes]

    def read(self, places: Sequence[int], access: Access) -> Probe:
        """Every block at `places`, spread over the threads."""
        if not self.is_direct:
            drop_page_cache([self._path])
        return self._measure(os.preadv, places, access)

    def write(self, places: Sequence[int], access: Access) -> Probe:
        """Every block at `places`, spread over the threads, and on the disk at the end."""
        return self._measure(os.pwritev, places, access, finish=lambda: os.fdatasync(self._descriptor))

    def _measure(
        self,
        move: Callable[[int, list[memoryview], int], int],
        places: Sequence[int],
        access: Access,
        finish: Callable[[], None] = lambda: None,
    ) -> Probe:
        moved = [0] * access.threads
        failures: list[BaseException] = []

        def work(number: int) -> None:
            memory = [self._pool.memory(number)[: access.block_nbytes]]
            try:
                moved[number] = sum(move(self._descriptor, memory, at) for at in places[number :: access.threads])
            except OSError as error:
                failures.append(error)

        others = [threading.Thread(target=work, args=(number,)) for number in range(1, access.threads)]
        began = time.perf_counter()
        for thread in others:
            thread.start()
        work(0)
        for thread in others:
            thread.join()
        finish()
        seconds = time.perf_counter() - began
        if failures:
            raise failures[0]
        return Probe(sum(moved), seconds, self.is_direct)

    def __enter__(self) -> RawFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
        self._pool.close()


def _reads(descriptor: int, memory: memoryview) -> bool:
    try:
        os.preadv(descriptor, [memory], 0)
    except OSError:
        os.close(descriptor)
        raise
    return True


def probe_disk(path: Path, *, reads: int, seed: int) -> Probe:
    """The rate of one thread that reads 4 MiB at a time from random places of the file, some more than once."""
    blocks = path.stat().st_size // PROBE_NBYTES
    if not blocks:
        raise ValueError(
            f"cannot probe {path}: it has {path.stat().st_size} bytes. A probe reads {PROBE_NBYTES} at once. "
            "Use a larger file."
        )
    chosen = random.Random(seed).choices(range(blocks), k=reads)
    with RawFile(path, threads=1, block_nbytes=PROBE_NBYTES) as raw:
        return raw.read([block * PROBE_NBYTES for block in chosen], Access(PROBE_NBYTES))


@dataclass(frozen=True, slots=True)
class Disk:
    """Where a file lies."""

    filesystem: str
    device: str
    read_ahead_kib: int | None
    """None where the kernel does not tell."""

    @staticmethod
    def of(path: Path) -> Disk:
        """The disk below a path, as the kernel's tables of mounts and block devices tell it."""
        number = os.stat(path).st_dev  # noqa: PTH116
        device = f"{os.major(number)}:{os.minor(number)}"
        filesystem, source = "unknown", device
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == device:
                filesystem, source = after.split()[:2]
                break
        block = Path("/sys/dev/block", device)
        for queue in (block / "queue", block.resolve().parent / "queue"):  # a partition's is its disk's
            with suppress(OSError):
                return Disk(filesystem, source, int((queue / "read_ahead_kb").read_text()))
        return Disk(filesystem, source, None)
