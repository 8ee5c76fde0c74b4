from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strideweave.io import (
    ChangedFileError,
    Descriptors,
    StorageError,
    WritableFile,
    positioned,
    session_directory,
)

SIZE = 20_000


def read(file: WritableFile, offset: int, length: int) -> bytes:
    out = bytearray(length)
    assert file.read_into([(offset, memoryview(out))]) == length
    return bytes(out)


@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, 6000)), max_size=6), max_size=4),
    caps=st.lists(st.integers(1, 3000), max_size=20),
    seed=st.integers(0, 99),
)
def test_write_from_random_spans_and_short_writes_equals_a_bytearray(
    batches: list[list[tuple[int, int]]], caps: list[int], seed: int
) -> None:
    rng, oracle, remaining = random.Random(seed), bytearray(SIZE), list(caps)

    def short(descriptor: int, views: list[memoryview], offset: int) -> int:
        return (
            os.pwrite(descriptor, views[0][: remaining.pop()], offset)
            if remaining
            else os.pwritev(descriptor, views, offset)
        )

    with WritableFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(positioned, "_pwritev", short)
        file.reserve(SIZE)
        for batch in batches:
            spans = []
            for offset, length in batch:
                data = rng.randbytes(min(length, SIZE - offset))
                oracle[offset : offset + len(data)] = data
                spans.append((offset, memoryview(data)))
            assert file.write_from(spans) == sum(len(view) for _, view in spans)
        assert read(file, 0, SIZE) == oracle


def test_write_from_touching_spans_takes_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(positioned, "_pwritev", lambda *a: calls.append(len(a[1])) or os.pwritev(*a))
    with WritableFile() as file:
        file.write_from([(4, memoryview(b"efgh")), (0, memoryview(b"abcd")), (8, memoryview(b"ij"))])
        assert calls == [3]
        assert read(file, 0, 10) == b"abcdefghij"


def test_write_from_beyond_the_end_leaves_zeros_between() -> None:
    with WritableFile() as file:
        file.write_from([(10, memoryview(b"x"))])
        assert (file.size_nbytes, read(file, 0, 11)) == (11, bytes(10) + b"x")


def test_read_into_past_the_end_is_an_error_with_the_place() -> None:
    with WritableFile() as file:
        file.reserve(100)
        with pytest.raises(StorageError, match="ends after 10 of them") as caught:
            read(file, 90, 20)
        assert (caught.value.path, caught.value.offset_nbytes, caught.value.length_nbytes) == (
            file.path,
            90,
            20,
        )


def test_anonymous_file_lives_in_the_session_and_goes_with_close() -> None:
    file = WritableFile()
    path = Path(file.path)
    assert path.parent == session_directory()
    assert path.stat().st_mode & 0o777 == 0o600
    file.close()
    file.close()
    assert not path.exists()
    with pytest.raises(ValueError, match="closed"):
        file.read_into([])
    assert "closed" in repr(file)


def test_anonymous_file_goes_with_the_last_reference() -> None:
    file = WritableFile()
    path = Path(file.path)
    del file
    gc.collect()
    assert not path.exists()


def test_anonymous_files_in_any_number_use_few_descriptors() -> None:
    few = Descriptors(limit=2)
    files = [WritableFile(descriptors=few) for _ in range(20)]
    for k, file in enumerate(files):
        file.write_from([(0, memoryview(bytes([k])))])
    assert [read(file, 0, 1)[0] for file in files] == list(range(20))
    assert few.open_count == 2
    for file in files:
        file.close()
    assert few.open_count == 0


def test_named_file_is_made_kept_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "values"
    with WritableFile(path) as file:
        file.write_from([(0, memoryview(b"12345"))])
        file.sync()
    assert path.read_bytes() == b"12345"
    with WritableFile(path) as file:
        file.write_from([(1, memoryview(b"x"))])
        assert read(file, 0, 5) == b"1x345"
    assert not file.is_anonymous


def test_named_file_in_no_directory_or_at_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open"):
        WritableFile(tmp_path / "nowhere" / "values")
    with pytest.raises(StorageError, match="cannot open"):
        WritableFile(tmp_path)


def test_named_file_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    program = tmp_path / "sleep"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    running = subprocess.Popen([program, "30"])  # a program that runs cannot be written, not even by root
    try:
        with WritableFile(program) as file:
            assert not file.is_writable
            assert read(file, 1, 3) == b"ELF"
            for change in (lambda: file.write_from([(0, memoryview(b"x"))]), lambda: file.reserve(1 << 20)):
                with pytest.raises(StorageError, match="reading only"):
                    change()
    finally:
        running.kill()
        running.wait()


def test_file_replaced_behind_us_is_refused_when_it_is_opened_again(tmp_path: Path) -> None:
    few = Descriptors(limit=1)
    file = WritableFile(tmp_path / "values", descriptors=few)
    file.write_from([(0, memoryview(b"ours"))])
    few.close_idle()
    (tmp_path / "other").write_bytes(b"theirs")
    (tmp_path / "other").replace(tmp_path / "values")
    with pytest.raises(ChangedFileError, match="replaced"):
        file.write_from([(0, memoryview(b"ours"))])
    assert (tmp_path / "values").read_bytes() == b"theirs"


def test_reserve_lengthens_with_zeros_and_never_cuts(tmp_path: Path) -> None:
    with WritableFile(tmp_path / "values") as file:
        file.write_from([(0, memoryview(b"abc"))])
        file.reserve(8192)
        assert read(file, 0, 8192) == b"abc" + bytes(8189)
        assert Path(file.path).stat().st_blocks * 512 >= 8192
        file.reserve(10)
        file.reserve(0)
        assert file.size_nbytes == 8192
        with pytest.raises(ValueError, match="0 or more"):
            file.reserve(-1)


def test_write_beyond_the_limit_of_file_sizes_says_how_much_is_missing(run: Callable[..., str]) -> None:
    out = run("""
import resource
file = WritableFile()
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
file.write_from([(0, memoryview(bytes(9_000)))])
for change in (lambda: file.write_from([(8_000, memoryview(bytes(5_000)))]), lambda: file.reserve(1 << 20)):
    try:
        change()
    except StorageError as e:
        print(e.errno, str(e).split(", ")[1].split(".")[0], file.size_nbytes)
""")
    assert out.splitlines() == ["27 3000 bytes are missing 10000", "27 1038576 bytes are missing 10000"]


def test_forked_child_shares_the_bytes_and_removes_nothing(run: Callable[..., str]) -> None:
    out = run("""
import gc
file = WritableFile()
file.write_from([(0, memoryview(b"parent"))])
pid = os.fork()
if not pid:
    out = bytearray(6)
    file.read_into([(0, memoryview(out))])
    own = session_directory()
    other = WritableFile()
    assert own != Path(file.path).parent and Path(other.path).parent == own
    path = Path(file.path)
    del file
    gc.collect()
    assert path.exists()
    sys.exit(0 if out == b"parent" else 1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(code, Path(file.path).exists(), len(list(session_directory().parent.iterdir())))
""")
    assert out == "0 True 1"
