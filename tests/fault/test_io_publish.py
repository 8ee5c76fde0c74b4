"""Publishing that fails or is killed at its n-th step leaves the old file or the new one, never half."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import strideweave.io
from strideweave.io import StorageError, atomic, publish

KILLED = """
import sys, types
package = types.ModuleType("strideweave")
package.__path__ = [sys.argv[1]]
sys.modules["strideweave"] = package
import os, signal
from pathlib import Path
from strideweave.io import atomic, publish
steps = 0
def killing(real):
    def step(*args):
        global steps
        steps += 1
        if steps == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return step
atomic._fsync, atomic._replace = killing(os.fsync), killing(os.replace)
with publish(sys.argv[2]) as temporary:
    with temporary.open("wb", buffering=0) as f:
        for part in (b"new " * 1000, b"whole"):
            killing(f.write)(part)
"""


@pytest.mark.parametrize(
    ("nth", "content"),
    [
        (1, b"old"),
        (2, b"old"),
        (3, b"old"),
        (4, b"old"),
        (5, b"new " * 1000 + b"whole"),
        (6, b"new " * 1000 + b"whole"),
    ],
)
def test_publish_killed_at_its_nth_step_leaves_old_or_new(tmp_path: Path, nth: int, content: bytes) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    package = Path(strideweave.io.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", KILLED, package, target, str(nth)], timeout=20, check=False)
    assert done.returncode == (-9 if nth < 6 else 0)
    assert target.read_bytes() == content


@pytest.mark.parametrize("seam", ["_fsync", "_replace"])
def test_publish_first_step_raises_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "a"
    target.write_bytes(b"old")
    monkeypatch.setattr(atomic, seam, refuse)
    with pytest.raises(StorageError, match="No space left") as caught, publish(target) as temporary:
        temporary.write_bytes(b"new")
    assert (caught.value.errno, caught.value.path) == (errno.ENOSPC, str(target))
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
