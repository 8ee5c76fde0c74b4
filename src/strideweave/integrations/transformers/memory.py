"""How much memory this process took."""

from __future__ import annotations

import resource
from pathlib import Path


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


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
