"""A limit on memory that binds from outside: a control group of ours."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex


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
