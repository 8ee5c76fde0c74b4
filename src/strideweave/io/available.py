"""How much memory this process may still take, by the machine and by its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 2**60


def available_nbytes() -> int:
    """The bytes that can still be allocated: MemAvailable, or what the tightest control group leaves if that is less.

    Page cache counts as free, since it is given up first.

    >>> available_nbytes() > 0
    True
    """
    return min(_machine_available(), *map(_group_available, _groups()))


def _machine_available() -> int:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _groups() -> Iterator[Path]:
    """The folders of this process' memory control groups and of all that they are in; some may not be there."""
    yield Path("/sys/fs/cgroup/memory")
    yield Path("/sys/fs/cgroup")
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") or not controllers:
            root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
            own = root / path.lstrip("/")
            while own != root:
                yield own
                own = own.parent


def _group_available(group: Path) -> int:
    for limit, usage, cached in (
        ("memory.max", "memory.current", "file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        limits, used = _lines(group / limit), _lines(group / usage)
        if limits and used and limits[0] != "max":
            cache = [int(line.split()[1]) for line in _lines(group / "memory.stat") if line.split()[0] == cached]
            return int(limits[0]) - int(used[0]) + sum(cache)
    return _UNLIMITED


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
