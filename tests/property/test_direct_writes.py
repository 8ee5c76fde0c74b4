"""Direct writes: the file holds what plain writes would have left there, and no block beside them has changed."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strideweave.io import SourceFile, StorageError, WritableFile, positioned

KIB = 1 << 10
DATA = random.Random(11).randbytes(1500 * KIB)
BEFORE = bytes([0xA5]) * (2048 * KIB + 333)


@pytest.fixture(autouse=True)
def needs_direct_io(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("probe") / "file"
    file.touch()
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_DIRECT))
    except (AttributeError, OSError):
        pytest.skip("the file system of the temporary folder has no direct I/O")


@st.composite
def wanted(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Spans as (offset, length, distance of the memory from a whole block): end to end, apart, or over each other."""
    found, at = [], draw(st.integers(0, 5000))
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.one_of(st.integers(1, 9000), st.integers(200 * KIB, 600 * KIB)))
        found.append((at, length, draw(st.sampled_from([at % 4096, 0, 8, 4095]))))
        at = max(0, at + length + draw(st.sampled_from([0, 0, -4096, -5, 1, 4096, 100_000])))
    return found


def placed(spans: list[tuple[int, int, int]]) -> list[tuple[int, memoryview]]:
    """Memory for each span, with values of its own."""
    found = []
    for k, (offset, length, shift) in enumerate(spans):
        view = memoryview(mmap.mmap(-1, length + 4096))[shift : shift + length]
        view[:] = DATA[k : k + length]
        found.append((offset, view))
    return found


@given(spans=wanted(), is_cached=st.booleans())
@settings(deadline=None)
def test_direct_writes_leave_what_plain_writes_would(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, int]], is_cached: bool
) -> None:
    path = tmp_path_factory.mktemp("writes") / "tiles"
    path.write_bytes(BEFORE)
    expected = bytearray(BEFORE)
    memory = placed(spans)
    for offset, view in memory:
        expected[len(expected) : offset] = bytes(max(0, offset - len(expected)))
        expected[offset : offset + len(view)] = view
    with WritableFile(path) as file:
        if not is_cached:
            file.drop_page_cache()
        assert file.write_from(memory) == sum(len(view) for _, view in memory)
        assert path.read_bytes() == expected
        for (offset, view), (_, length, _) in zip(memory, spans, strict=True):
            back = memoryview(mmap.mmap(-1, length))
            file.read_into([(offset, back)])
            assert back == expected[offset : offset + length]
            assert len(view) == length
    path.unlink()


class Script:
    """Stands in for `pwritev`: the n-th call does something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int, fault: Callable[..., int] | OSError) -> None:
        self.calls: list[tuple[int, int]] = []
        self.nth, self.fault = nth, fault
        monkeypatch.setattr(positioned, "_pwritev", self)

    def __call__(self, descriptor: int, views: list[memoryview], offset: int) -> int:
        self.calls.append((offset, sum(map(len, views))))
        if len(self.calls) == self.nth:
            if isinstance(self.fault, OSError):
                raise self.fault
            return self.fault(descriptor, views, offset)
        return os.pwritev(descriptor, views, offset)


def whole() -> list[tuple[int, memoryview]]:
    """Bytes 4096 - 100 to 4096 + 1000 KiB + 50, of which the middle is aligned."""
    return placed([(4096 - 100, 1000 * KIB + 150, 4096 - 100)])


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(
    "fault",
    [
        InterruptedError(errno.EINTR, "interrupted"),
        lambda fd, views, at: os.pwritev(fd, [views[0][: min(len(views[0]), 8192)]], at),
    ],
    ids=["EINTR", "short"],
)
def test_nth_write_short_or_interrupted_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int, fault: Callable[..., int] | OSError
) -> None:
    path = tmp_path / "tiles"
    path.write_bytes(BEFORE)
    script = Script(monkeypatch, nth, fault)
    ((offset, view),) = memory = whole()
    with WritableFile(path) as file:
        assert file.write_from(memory) == len(view)
    assert (4096, 1000 * KIB) in script.calls, "the middle goes straight"
    assert path.read_bytes() == BEFORE[:offset] + view + BEFORE[offset + len(view) :]


def test_write_that_stops_inside_a_block_goes_on_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiles"
    path.write_bytes(BEFORE)

    def stops(descriptor: int, views: list[memoryview], offset: int) -> int:
        os.pwritev(descriptor, [views[0][:4096]], offset)
        return 1000

    Script(monkeypatch, 2, stops)
    ((offset, view),) = memory = whole()
    with WritableFile(path) as file:
        assert file.write_from(memory) == len(view)
        assert path.read_bytes() == BEFORE[:offset] + view + BEFORE[offset + len(view) :]
        assert not file._past_cache.is_refused


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_second_write_that_fails_names_file_offset_and_length_and_the_next_try_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "tiles"
    path.write_bytes(BEFORE)
    Script(monkeypatch, 2, OSError(number, "no"))
    ((offset, view),) = memory = whole()
    with WritableFile(path) as file:
        with pytest.raises(StorageError, match=os.strerror(number)) as raised:
            file.write_from(memory)
        error = raised.value
        assert (error.path, error.errno) == (str(path), number)
        assert (error.offset_nbytes, error.length_nbytes) == (4096, 1000 * KIB)
        assert file.write_from(memory) == len(view)
    assert path.read_bytes() == BEFORE[:offset] + view + BEFORE[offset + len(view) :]


@pytest.mark.parametrize(("switch", "straight"), [("0", 0), ("1", 1), ("auto", 1)])
def test_switch_says_whether_writes_go_straight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, straight: int
) -> None:
    monkeypatch.setenv("STRIDEWEAVE_DIRECT_IO", switch)
    flags: list[int] = []
    opened = os.open

    def note(name: str, how: int, *more: int) -> int:
        flags.append(how)
        return opened(name, how, *more)

    monkeypatch.setattr(os, "open", note)
    with WritableFile(tmp_path / "tiles") as file:
        file.write_from(whole())
    assert sum(bool(how & os.O_DIRECT) for how in flags) == straight


def test_file_system_that_refuses_is_written_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, 2, OSError(errno.EINVAL, "no"))
    memory = whole()
    with WritableFile(tmp_path / "tiles") as file:
        for _ in range(2):
            file.write_from(memory)
        assert file._past_cache.is_refused
    assert script.calls[1:3] == [(4096, 1000 * KIB)] * 2, "tried once, and then the usual way"
    (offset, view) = memory[0]
    assert (tmp_path / "tiles").read_bytes() == bytes(offset) + view


def test_reader_of_the_same_file_sees_what_was_written_straight(tmp_path: Path) -> None:
    path = tmp_path / "tiles"
    path.write_bytes(BEFORE)
    path.read_bytes()  # its pages are cached, and must not be seen again
    ((offset, view),) = memory = whole()
    with WritableFile(path) as file:
        file.write_from(memory)
    back = bytearray(len(view))
    SourceFile(path).read_into([(offset, memoryview(back))])
    assert back == view
