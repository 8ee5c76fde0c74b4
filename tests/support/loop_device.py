"""A loop device over a sparse file, for as long as a test needs it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def loop_device(
    folder: Path, capacity_nbytes: int, *, sector_nbytes: int = 512, read_only: bool = False
) -> Iterator[str]:
    """The path of a fresh loop device of this size, detached at the end; skips, saying why, where there can be none."""
    tool = shutil.which("losetup") or shutil.which("losetup", path="/usr/sbin:/sbin")
    if tool is None:
        pytest.skip("a loop device needs losetup, which is not installed")
    file = folder / "loop.img"
    with file.open("wb") as content:
        content.truncate(capacity_nbytes)
    flags = ["--sector-size", str(sector_nbytes)] if sector_nbytes != 512 else []
    flags += ["--read-only"] if read_only else []
    made = subprocess.run([tool, "--find", "--show", *flags, str(file)], capture_output=True, text=True, timeout=30)
    path = made.stdout.strip()
    if made.returncode or not path:
        pytest.skip(f"a loop device may not be made here: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run([tool, "--detach", path], check=True, timeout=30)
