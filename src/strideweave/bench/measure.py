"""What a benchmark measures from outside: memory, bytes, and who else is using the machine."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType


def anonymous_nbytes(pid: int | str = "self") -> int:
    """The anonymous memory that a process, this one unless given, has in RAM, from the kernel."""
    return _field(f"/proc/{pid}/status", "RssAnon") * 1024


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


def huge_page_nbytes() -> int:
    """The anonymous memory of this process that lies in huge pages; 0 where the kernel does not tell."""
    try:
        return _field("/proc/self/smaps_rollup", "AnonHugePages") * 1024
    except (OSError, LookupError):
        return 0
