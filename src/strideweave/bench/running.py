"""What every benchmark does around its measurements: a folder that goes, rounds, and a word on how far it is."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeAlias

from strideweave.io import session_directory

Say: TypeAlias = Callable[[str], None]
"""Tells people how far it is; not part of the result."""


def silent(text: str) -> None:
    """Tells nobody."""


@contextmanager
def folder_of(name: str, directory: Path | None = None) -> Iterator[Path]:
    """An empty folder that is removed at the end, in `directory` or in the session directory of this process."""
    folder = (directory or session_directory()) / f"bench-{name}-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ended_cleanly() -> Iterator[None]:
    """While this lasts, SIGTERM ends the process as Ctrl-C does: what was made is removed then too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
