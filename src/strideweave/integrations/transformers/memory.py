"""How much memory this process may still take, by the machine and by its control group, and how much it took."""

from __future__ import annotations

import resource
from pathlib import Path

_UNLIMITED = 2**60


def available_nbytes() -> int:
    """The bytes that can still be allocated: MemAvailable, or what the control group leaves if that is less."""
    return min(_machine_available(), _group_available())


def reset_peak_rss() -> bool:
    """Start to measure the peak of resident memory from now on; False where the system does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_rss_nbytes() -> int:
    """The most resident memory that this process has had, files that it maps included, since the last reset."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rss_nbytes() -> int:
    """The resident memory of this process now; 0 where the system does not tell."""
    return _status("VmRSS")


def _status(name: str) -> int:
    for line in _lines("/proc/self/status"):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _machine_available() -> int:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _group_available() -> int:
    """What the memory control group leaves; its page cache counts as free, since it is given up first."""
    for limit, usage, cache in (
        (
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory.current",
            ("/sys/fs/cgroup/memory.stat", "file"),
        ),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            ("/sys/fs/cgroup/memory/memory.stat", "total_cache"),
        ),
    ):
        limits, used = _lines(limit), _lines(usage)
        if limits and used and limits[0] != "max":
            cached = [int(line.split()[1]) for line in _lines(cache[0]) if line.split()[0] == cache[1]]
            return int(limits[0]) - int(used[0]) + sum(cached)
    return _UNLIMITED


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
