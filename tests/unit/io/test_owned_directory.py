from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strideweave.io import StorageError, cache_root, collect_garbage, hold, session_directory

SESSION = """
path = session_directory()
(path / "tile").write_bytes(bytes(100_000))
print(path, flush=True)
sys.stdin.readline()
"""


def here() -> dict[str, Any]:
    """What a living session of this very process tells of its owner."""
    told: dict[str, Any] = json.loads((session_directory() / "owner.json").read_text())
    return told


def make_session(owner: dict[str, Any] | None, *, name: str = "999-0123456789ab") -> Path:
    path = cache_root() / "tmp" / name
    path.mkdir(parents=True)
    (path / "tile").write_bytes(bytes(50_000))
    if owner is not None:
        (path / "owner.json").write_text(json.dumps(owner))
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STRIDEWEAVE_CACHE_DIR", "~/somewhere")
    assert cache_root() == Path("~/somewhere").expanduser()
    monkeypatch.delenv("STRIDEWEAVE_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "strideweave"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore such a value
    assert cache_root() == Path("~/.cache/strideweave").expanduser()


def test_session_directory_is_one_private_and_under_the_root(owned_cache: Path) -> None:
    path = session_directory()
    assert path == session_directory()
    assert path.parent == owned_cache / "tmp"
    assert path.name.startswith(f"{os.getpid()}-")
    assert path.stat().st_mode & 0o777 == 0o700


def test_session_directory_swept_away_is_made_again() -> None:
    first = session_directory()
    (first / "owner.json").unlink()
    first.rmdir()
    assert session_directory() != first
    assert session_directory().is_dir()


def test_session_directory_where_nothing_can_be_made_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STRIDEWEAVE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="STRIDEWEAVE_CACHE_DIR"):
        session_directory()


def test_session_directory_goes_at_exit(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(SESSION)
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    assert path.is_dir()
    process.communicate("\n", timeout=10)
    assert not path.exists()


def test_session_directory_goes_on_ctrl_c(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(SESSION)
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode != 0
    assert not path.exists()


def test_collect_garbage_removes_the_killed_and_keeps_the_living(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    living, killed = start(SESSION), start(SESSION)
    assert living.stdout is not None
    assert killed.stdout is not None
    kept, lost = Path(living.stdout.readline().strip()), Path(killed.stdout.readline().strip())
    mine = session_directory()
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # dead, and not asked for yet
    before = collect_garbage(dry_run=True)
    assert before.removed == (lost,)
    assert 100_000 <= before.nbytes < 150_000
    assert lost.exists()
    assert collect_garbage().removed == (lost,)
    assert not lost.exists()
    assert kept.exists()
    assert mine.exists()
    assert collect_garbage().removed == ()


def test_new_session_clears_away_dead_ones() -> None:
    owner = {**here(), "pid": 1 << 22}
    lost = make_session(owner)
    (session_directory() / "owner.json").unlink()
    session_directory().rmdir()
    session_directory()
    assert not lost.exists()


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({}, True),
        ({"start_ticks": 1}, False),
        ({"pid": 1 << 22}, False),
        ({"boot": "an earlier one"}, False),
        ({"boot": "another one", "host": "another machine"}, True),
        ({"pid_namespace": "pid:[1]"}, False),
    ],
    ids=["alive", "pid reused", "pid gone", "rebooted", "another machine", "another container"],
)
def test_collect_garbage_unlocked_session_is_judged_by_its_owner(change: dict[str, Any], is_kept: bool) -> None:
    path = make_session({**here(), **change})
    assert collect_garbage().removed == (() if is_kept else (path,))
    assert path.exists() == is_kept


def test_collect_garbage_locked_session_is_kept_whatever_it_tells() -> None:
    path = make_session({**here(), "pid": 1 << 22})
    with locked(path / "owner.json"):
        assert collect_garbage().removed == ()
    assert collect_garbage().removed == (path,)


def test_collect_garbage_untold_session_is_removed_only_when_old() -> None:
    path = make_session(None, name=f"{1 << 22}-0123456789ab")
    assert collect_garbage().removed == ()
    os.utime(path, (1, 1))
    assert collect_garbage().removed == (path,)


def test_collect_garbage_touches_nothing_else(owned_cache: Path) -> None:
    session_directory()
    others = [
        owned_cache / "demo" / "model.safetensors",
        owned_cache / "tmp" / "notes" / "a",
        owned_cache / "tmp" / "b",
    ]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"x")
        os.utime(other, (1, 1))
    assert collect_garbage().removed == ()
    assert all(other.exists() for other in others)


def test_collect_garbage_removes_partials_that_nobody_holds(owned_cache: Path) -> None:
    folder, file = owned_cache / "demo" / "big.partial", owned_cache / "one.partial"
    folder.mkdir(parents=True)
    (folder / "shard.safetensors").write_bytes(bytes(10_000))
    file.write_bytes(b"half")
    (owned_cache / "link.partial").symlink_to("demo")
    with hold(folder), hold(file):
        assert collect_garbage().removed == ()
    assert set(collect_garbage().removed) == {folder, file}
    assert (owned_cache / "demo").is_dir()


def test_hold_twice_is_refused(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(StorageError, match="another process"), hold(tmp_path):
        pass
    with pytest.raises(StorageError, match="cannot hold"), hold(tmp_path / "nothing"):
        pass


def test_collect_garbage_in_two_processes_at_once_removes_each_once(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    owner = {**here(), "pid": 1 << 22}
    lost = {str(make_session(owner, name=f"{k + 1}-0123456789ab")) for k in range(40)}
    collectors = [start("print(*collect_garbage().removed, sep='\\n')") for _ in range(2)]
    found = []
    for process in collectors:
        out, err = process.communicate(timeout=10)
        assert process.returncode == 0, err
        found += out.split()
    assert sorted(found) == sorted(lost)


def test_forked_child_lets_its_parents_session_be_collected(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("""
path = session_directory()
if not os.fork():
    print(path, flush=True)
    sys.stdin.readline()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    process.wait(10)
    session_directory()
    assert not path.exists()


def test_collect_garbage_of_what_was_replaced_before_it_was_locked_removes_nothing(
    owned_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, session = owned_cache / "one.partial", make_session({**here(), "pid": 1 << 22})
    partial.write_bytes(b"of the builder that ended")
    real = fcntl.flock

    def slow(descriptor: int, how: int) -> None:
        for path, content in ((partial, b"of the next builder"), (session / "owner.json", b"{}")):
            other = path.with_name("other")
            other.write_bytes(content)
            other.replace(path)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    assert collect_garbage().removed == ()
    assert partial.read_bytes() == b"of the next builder"
    with pytest.raises(StorageError, match="cannot hold"), hold(partial):
        pass
