from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from strideweave.io import StorageError, atomic, collect_garbage
from strideweave.io.atomic import publish


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_publish_new_file_appears_whole_when_the_block_ends(tmp_path: Path) -> None:
    with publish(tmp_path / "a") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.name.endswith(".partial")
        temporary.write_bytes(b"new")
        assert not (tmp_path / "a").exists()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_publish_over_a_file_leaves_the_old_one_to_its_readers(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    with target.open("rb") as reader:
        with publish(target) as temporary:
            temporary.write_bytes(b"new!")
        assert reader.read() == b"old"
    assert target.read_bytes() == b"new!"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_publish_interrupted_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")

    def write_half() -> None:
        with publish(target) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert names(tmp_path) == ["a"]
    assert target.read_bytes() == b"old"


def test_publish_from_another_directory_uses_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with publish(tmp_path / "a", tmp_path / "work") as temporary:
        assert temporary.parent == tmp_path / "work"
        temporary.write_bytes(b"x")
    assert names(tmp_path) == ["a", "work"]
    assert names(tmp_path / "work") == []


def test_publish_folder_appears_whole(tmp_path: Path) -> None:
    with publish(tmp_path / "model", is_folder=True) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "shard").write_bytes(b"s")
        assert not (tmp_path / "model").exists()
    assert (tmp_path / "model" / "sub" / "shard").read_bytes() == b"s"
    assert names(tmp_path) == ["model"]


def test_publish_where_it_cannot_end_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    cases = [
        (tmp_path / "full", None, True),
        (tmp_path / "full", None, False),
        (tmp_path / "no" / "a", None, False),
    ]
    if Path("/dev/shm").is_dir() and Path("/dev/shm").stat().st_dev != tmp_path.stat().st_dev:
        cases.append((tmp_path / "a", Path("/dev/shm"), False))
    for target, directory, is_folder in cases:
        with (
            pytest.raises(StorageError, match="cannot publish"),
            publish(target, directory, is_folder=is_folder),
        ):
            pytest.fail("the work was done")
    assert names(tmp_path) == ["full"]


def test_publish_writes_through_the_file_before_the_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []

    def fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def rename(source: Path, target: Path) -> None:
        steps.append("rename")
        source.replace(target)

    monkeypatch.setattr(atomic, "_fsync", fsync)
    monkeypatch.setattr(atomic, "_replace", rename)
    with publish(tmp_path / "a") as temporary:
        temporary.write_bytes(b"x")
    assert steps == ["file", "rename", "folder"]
    steps.clear()
    with publish(tmp_path / "m", is_folder=True) as temporary:
        (temporary / "shard").write_bytes(b"x")
    assert steps == ["file", "folder", "rename", "folder"]


def test_publish_in_progress_is_no_garbage(owned_cache: Path) -> None:
    with publish(owned_cache / "a") as temporary:
        temporary.write_bytes(b"x")
        assert collect_garbage().removed == ()
    assert (owned_cache / "a").exists()


def test_publish_on_ctrl_c_leaves_what_was_there(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    (tmp_path / "a").write_bytes(b"old")
    process = start(
        """
with publish(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half")
    print("half", flush=True)
    time.sleep(60)
""",
        tmp_path / "a",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
