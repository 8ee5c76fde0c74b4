"""What this machine has for tensors that do not fit, and what would be slow, and why."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from strideweave.carriers.tiled_evictable.budget import format_nbytes
from strideweave.io import SlabPool, available_nbytes, cache_root, session_directory

_PROBE_NBYTES: Final = 64 << 20
_BLOCK_NBYTES: Final = 4 << 20
_SLOW_NBYTES_PER_S: Final = 500e6
_PACKAGES: Final = ("torch", "transformers", "safetensors", "numpy", "peft", "accelerate")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found. Units: bytes, bytes a second."""

    python: str
    system: str
    cores: int
    versions: dict[str, str]
    """Of the packages that are installed."""
    available_nbytes: int
    """Memory that can still be taken, by the machine and its control groups."""
    cache_directory: str
    disk_free_nbytes: int
    has_direct_io: bool
    """Whether files in the cache directory can be read past the page cache."""
    read_nbytes_per_s: float
    """Of a file of 64 MiB in the cache directory, 4 MiB at a time, past the page cache where that works."""
    huge_pages: str
    """What the kernel does with memory that asks for huge pages: always, madvise, never, or unknown."""
    advice: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with names that stay."""
        return asdict(self)


def diagnose() -> Diagnosis:
    """Look at the machine; takes a second. Errors: StorageError, OSError when nothing can be written to the cache."""
    rate, is_direct = _probe()
    found = Diagnosis(
        python=platform.python_version(),
        system=platform.platform(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        versions=_versions(),
        available_nbytes=available_nbytes(),
        cache_directory=str(cache_root()),
        disk_free_nbytes=_free(cache_root()),
        has_direct_io=is_direct,
        read_nbytes_per_s=rate,
        huge_pages=_huge_pages(),
    )
    found.advice.extend(_advice(found))
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _free(path: Path) -> int:
    facts = os.statvfs(next(p for p in (path, *path.parents) if p.exists()))
    return facts.f_bavail * facts.f_frsize


def _probe() -> tuple[float, bool]:
    path = session_directory() / f"doctor-{os.getpid()}"
    memory = SlabPool(_BLOCK_NBYTES, 1).memory(0)
    try:
        with path.open("wb") as file:
            for _ in range(_PROBE_NBYTES // _BLOCK_NBYTES):
                file.write(memory)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for flag in (getattr(os, "O_DIRECT", 0), 0):
            try:
                descriptor = os.open(path, os.O_RDONLY | flag)
            except OSError:
                continue
            try:
                began = time.perf_counter()
                for offset in range(0, _PROBE_NBYTES, _BLOCK_NBYTES):
                    os.preadv(descriptor, [memory], offset)
                return _PROBE_NBYTES / (time.perf_counter() - began), bool(flag)
            except OSError:
                continue
            finally:
                os.close(descriptor)
    finally:
        path.unlink(missing_ok=True)
    return 0.0, False


def _huge_pages() -> str:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or "unknown"


def _advice(found: Diagnosis) -> list[str]:
    told = []
    if not found.has_direct_io:
        told.append("Files in the cache directory cannot be read directly: every byte is copied once more.")
    if found.read_nbytes_per_s < _SLOW_NBYTES_PER_S:
        told.append(
            f"The disk reads {format_nbytes(int(found.read_nbytes_per_s))} a second: experts that are not resident "
            "cost most of the time. Use a larger budget, or a checkpoint on a faster disk."
        )
    if found.huge_pages == "never":
        told.append("Huge pages are off: slots cost more page faults. `madvise` is enough.")
    if found.cores < 2:
        told.append("There is one core: reading and computing take turns.")
    if found.available_nbytes < 2 << 30:
        told.append("Less than 2 GiB of memory are left: torch and the dense part of a model need most of it.")
    needed = ("torch", "transformers", "safetensors")
    return [*told, *(f"{name} is not installed." for name in needed if name not in found.versions)]
