"""Running a piece of Python in a process of its own that knows `strideweave.io` and nothing above it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strideweave.io

PACKAGE = Path(strideweave.io.__file__).parents[1]

# The package's own __init__ imports torch, which takes a second; io must work without.
PRELUDE = f"""
import sys, types
package = types.ModuleType("strideweave")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["strideweave"] = package
import os, signal, threading, time
from pathlib import Path
from strideweave.io import *
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(owned_cache: Path) -> Iterator[Start]:
    """Start `code` with arguments; its first line of output is awaited if `until` says so."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *args: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "STRIDEWEAVE_CACHE_DIR": str(owned_cache)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(start: Start) -> Callable[..., str]:
    """What `code` prints; it must end well within 20 seconds."""

    def finish(code: str, *args: object) -> str:
        process = start(code, *args)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        return out.strip()

    return finish
