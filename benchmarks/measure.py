"""What a benchmark measures from outside: memory, bytes, the disk itself, and who else is using the machine.

Only the standard library: a contestant enters its memory limit before it imports anything large.
"""

from __future__ import annotations

import mmap
import os
import random
import resource
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from types import TracebackType

PROBE_NBYTES = 4 * 2**20
"""One read of the raw probe: large enough for the full rate of the disk."""


class PeakAnonymous:
    """The most anonymous memory that this process had while the block ran. Units: bytes."""

    def __init__(self, interval_s: float = 0.01) -> None:
        self.nbytes = 0
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-anonymous", daemon=True)

    def _sample(self) -> None:
        while True:
            self.nbytes = max(self.nbytes, anonymous_nbytes())
            if self._done.wait(self._interval_s):
                return

    def __enter__(self) -> PeakAnonymous:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.nbytes = max(self.nbytes, anonymous_nbytes())


def anonymous_nbytes() -> int:
    """The anonymous memory that this process has in RAM, from the kernel."""
    return _field("/proc/self/status", "RssAnon") * 1024


def disk_read_nbytes() -> int:
    """The bytes that this process made the disk read, page faults of mappings included."""
    return _field("/proc/self/io", "read_bytes")


def _field(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise LookupError(f"{path} has no {name}")


class BusyCores:
    """What this process and the rest of the machine computed while the block ran. Units: seconds, cores."""

    own_s = 0.0
    """User and system time of all threads of this process."""
    others_cores = 0.0
    """How many cores all other processes kept busy."""

    def __enter__(self) -> BusyCores:
        self._began = (time.perf_counter(), _machine_busy_s(), _own_busy_s())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        began_s, machine_s, own_s = self._began
        self.own_s = _own_busy_s() - own_s
        others_s = _machine_busy_s() - machine_s - self.own_s
        self.others_cores = max(0.0, others_s / (time.perf_counter() - began_s))


def _machine_busy_s() -> float:
    user, nice, system, _idle, _iowait, irq, softirq = map(int, _first_line("/proc/stat").split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_busy_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _first_line(path: str) -> str:
    return Path(path).read_text().split("\n", 1)[0]


def drop_page_cache(paths: Iterable[Path]) -> None:
    """No page of the files is cached: the next read of each byte comes from the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # only clean pages can be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement of the disk without us. Units: bytes, seconds."""

    nbytes: int
    seconds: float
    is_direct: bool
    """Whether the page cache was bypassed; else the pages were dropped first."""

    @property
    def nbytes_per_s(self) -> float:
        return self.nbytes / self.seconds


def probe_disk(path: Path, *, reads: int, seed: int) -> Probe:
    """The rate of one thread that reads 4 MiB at a time from random places of the file."""
    blocks = path.stat().st_size // PROBE_NBYTES
    if not blocks:
        raise ValueError(
            f"cannot probe {path}: it has {path.stat().st_size} bytes. A probe reads {PROBE_NBYTES} at once. "
            "Use a larger file."
        )
    chosen = random.Random(seed).choices(range(blocks), k=reads)
    with mmap.mmap(-1, PROBE_NBYTES) as memory:
        memory.write(bytes(PROBE_NBYTES))  # its page faults are not the disk's
        try:
            return _probe(path, os.O_DIRECT, memory, chosen)
        except OSError:  # a file system without direct reads
            drop_page_cache([path])
            return _probe(path, 0, memory, chosen)


def _probe(path: Path, flags: int, memory: mmap.mmap, blocks: list[int]) -> Probe:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        began = time.perf_counter()
        nbytes = sum(os.preadv(descriptor, [memory], block * PROBE_NBYTES) for block in blocks)
        return Probe(nbytes, time.perf_counter() - began, flags != 0)
    finally:
        os.close(descriptor)


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


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on anonymous memory and page cache together that processes can enter, or why there is none."""

    group: Path | None
    reason: str = ""

    def enter(self) -> None:
        """This process counts against the limit from now on."""
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def memory_limit(nbytes: int) -> Iterator[MemoryLimit]:
    """A control group of ours with a memory limit while the block runs, below the group we are in.

    Where none may be made, the limit says so and binds nobody.
    """
    reason = "no memory controller is mounted"
    for home, settings in _homes(nbytes):
        group = home / f"strideweave-{os.getpid()}-{token_hex(4)}"
        try:
            group.mkdir()
        except OSError as error:
            reason = f"cannot make a control group: {error.strerror}"
            continue
        try:
            try:
                for name, value in settings.items():
                    (group / name).write_text(str(value))
            except OSError as error:
                reason = f"cannot limit the memory of a control group: {error.strerror}"
                continue
            yield MemoryLimit(group)
            return
        finally:
            _remove(group)
    yield MemoryLimit(None, reason)


def _homes(nbytes: int) -> Iterator[tuple[Path, dict[str, int]]]:
    """Each group that may hold ours, nearest first, with what limits the memory there."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            own = Path("/sys/fs/cgroup/memory", path.lstrip("/"))
            home = own if own.is_dir() else Path("/sys/fs/cgroup/memory")  # a container sees its own as the root
            yield home, {"memory.limit_in_bytes": nbytes, "memory.swappiness": 0}
        elif not controllers:  # version 2: children of a group are limited if it hands the controller down
            own = Path("/sys/fs/cgroup", path.lstrip("/"))
            for home in (own, *own.parents[: len(own.parts) - 4]):
                with suppress(OSError):
                    if "memory" in (home / "cgroup.subtree_control").read_text().split():
                        yield home, {"memory.max": nbytes, "memory.swap.max": 0}


def _remove(group: Path) -> None:
    for _ in range(100):  # a process that has just ended leaves its group a moment later
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"cannot remove the control group {group}: something still runs in it. Remove it by hand.")
