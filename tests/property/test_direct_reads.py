"""Direct reads: the bytes of the file, whatever the offsets, lengths and addresses, and nothing beside them."""

from __future__ import annotations

import errno
import mmap
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strideweave.io import Descriptors, SourceFile, StorageError, WritableFile, direct, positioned

KIB = 1 << 10
CONTENT = random.Random(7).randbytes(3 * 1024 * KIB + 777)
CANARY = 0xA5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("direct") / "weights.bin"
    file.write_bytes(CONTENT)
    return file


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDEWEAVE_DIRECT_IO", "1")


def needs_direct_io(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except (AttributeError, OSError):
        pytest.skip("the file system of the temporary folder has no direct I/O")


@st.composite
def wanted(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Spans of a file as (offset, length, distance of the memory from a whole block); some lie end to end."""
    found, at = [], draw(st.integers(0, 5000))
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.one_of(st.integers(1, 9000), st.integers(100 * KIB, 900 * KIB)))
        length = min(length, len(CONTENT) - at)
        if length < 1:
            break
        found.append((at, length, draw(st.sampled_from([at % 4096, 0, 8, 4095]))))
        at += length + draw(st.sampled_from([0, 0, 1, 4096, 100_000]))
    return found


@given(spans=wanted(), whole=st.booleans())
@settings(deadline=None)
def test_direct_reads_are_the_bytes_and_no_neighbour_is_touched(
    path: Path, spans: list[tuple[int, int, int]], whole: bool
) -> None:
    needs_direct_io(path)
    sources: list[Any] = [SourceFile(path), WritableFile(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDEWEAVE_DIRECT_IO", "1")
        for source in sources:
            room = mmap.mmap(-1, sum(length + 3 * 4096 for _, length, _ in spans) + 4096)
            memory = memoryview(room)
            memory[:] = bytes([CANARY]) * len(memory)
            placed, at = [], 4096
            for offset, length, shift in spans:
                placed.append((offset, memory[at + shift : at + shift + length]))
                at += -(-(length + shift) // 4096) * 4096 + 4096
            nbytes = source.read_into(placed)
            assert nbytes == sum(length for _, length, _ in spans)
            for offset, view in placed:
                assert view == CONTENT[offset : offset + len(view)]
                view[:] = bytes([CANARY]) * len(view)
            assert memory == bytes([CANARY]) * len(memory), "a byte beside the spans was written"
            source.close()


def one(length: int) -> memoryview:
    return memoryview(mmap.mmap(-1, length))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("offset", [0, 4096, 13])
def test_every_call_that_is_short_or_interrupted_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    needs_direct_io(path)
    calls = 0

    def faulty(descriptor: int, views: list[memoryview], at: int) -> int:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise InterruptedError(errno.EINTR, "interrupted")
        return os.preadv(descriptor, [views[0][: 4096 * calls]], at)

    monkeypatch.setattr(positioned, "_preadv", faulty)
    out = one(1500 * KIB)
    assert SourceFile(path).read_into([(offset, out)]) == len(out)
    assert out == CONTENT[offset : offset + len(out)]
    assert calls > 10


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("nth", [1, 2])
def test_failing_call_names_the_place_and_the_next_read_works(
    path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    needs_direct_io(path)
    calls = 0

    def faulty(descriptor: int, views: list[memoryview], at: int) -> int:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.EIO, "no")
        return os.preadv(descriptor, views, at)

    monkeypatch.setattr(positioned, "_preadv", faulty)
    source, out = SourceFile(path), one(2500 * KIB)
    with pytest.raises(StorageError, match=r"cannot read 2560000 bytes at byte 13 of .*Input/output error") as raised:
        source.read_into([(13, out)])
    assert (raised.value.offset_nbytes, raised.value.length_nbytes, raised.value.errno) == (13, 2500 * KIB, errno.EIO)
    source.read_into([(13, out)])
    assert out == CONTENT[13 : 13 + len(out)]


@pytest.mark.usefixtures("always")
def test_file_that_ends_early_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_direct_io(path)
    monkeypatch.setattr(
        positioned, "_preadv", lambda fd, views, at: os.preadv(fd, [views[0][:8192]], at) if at < 8192 else 0
    )
    with pytest.raises(StorageError, match="the file ends at byte 8192"):
        SourceFile(path).read_into([(0, one(200 * KIB))])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("where", ["open", "read"])
def test_file_system_without_it_is_read_as_usual(path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    needs_direct_io(path)
    opened = os.open
    directly: list[int] = []

    def refusing(name: Any, flags: int, *more: Any, **others: Any) -> int:
        if not flags & os.O_DIRECT:
            return opened(name, flags, *more, **others)
        if where == "open":
            raise OSError(errno.EINVAL, "no")
        directly.append(opened(name, flags & ~os.O_DIRECT, *more, **others))
        return directly[-1]

    def read(descriptor: int, views: list[memoryview], at: int) -> int:
        if descriptor in directly:
            raise OSError(errno.EINVAL, "no")
        return os.preadv(descriptor, views, at)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(positioned, "_preadv", read)
    source, out = SourceFile(path, descriptors=Descriptors()), one(300 * KIB)
    for _ in range(2):
        source.read_into([(5, out)])
        assert out == CONTENT[5 : 5 + len(out)]
    assert len(directly) == (where == "read"), "it is tried once"


def test_what_is_cached_is_taken_from_the_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_direct_io(path)
    monkeypatch.setattr(direct._page_cache, "has_room", lambda: False)
    source, out = SourceFile(path), one(1024 * KIB)
    descriptor = os.open(path, os.O_RDONLY)
    path.read_bytes()
    if direct.cached_nbytes(descriptor, 0, len(out)) is None:
        pytest.skip("the kernel does not tell what is cached (Linux 6.5 and later do)")
    whole = direct.cached_nbytes(descriptor, 0, len(out))
    opened: list[int] = []
    monkeypatch.setattr(direct, "_read", lambda fd, run, path: opened.append(fd))
    source.read_into([(0, out)])
    assert not opened
    assert out == CONTENT[: len(out)]
    source.drop_page_cache()
    if direct.cached_nbytes(descriptor, 0, len(out)) == whole:
        pytest.skip("the pages of this file system cannot be dropped")
    monkeypatch.setattr(direct, "_read", lambda fd, run, path: opened.append(fd) or run.length_nbytes)
    source.read_into([(0, out)])
    assert opened
    monkeypatch.setenv("STRIDEWEAVE_DIRECT_IO", "0")
    source.read_into([(0, out)])
    assert len(opened) == 1
    os.close(descriptor)


def test_other_values_of_the_switch_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDEWEAVE_DIRECT_IO", "yes")
    with pytest.raises(ValueError, match="STRIDEWEAVE_DIRECT_IO='yes'"):
        SourceFile(path).read_into([(0, one(200 * KIB))])


@pytest.mark.usefixtures("always")
def test_forked_child_reads_on(path: Path) -> None:
    needs_direct_io(path)
    source, out = SourceFile(path), one(300 * KIB)
    source.read_into([(7, out)])
    child = os.fork()
    if not child:
        again = one(300 * KIB)
        source.read_into([(7, again)])
        os._exit(0 if again == out else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def uncached(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nothing is ever found in the page cache; the list has the number of each read that was direct."""
    needs_direct_io(path)
    opened: list[int] = []
    monkeypatch.setattr(direct, "cached_nbytes", lambda *_: 0)
    monkeypatch.setattr(direct, "_page_cache", direct._PageCache())
    monkeypatch.setattr(direct, "_read", lambda fd, run, path: opened.append(fd) or run.length_nbytes)
    return opened


@pytest.mark.parametrize(
    ("available", "direct_reads"),
    [(8 << 30, [1, 1, 1, 0, *[1] * 6, 0, *[1] * 12, 0]), (3 << 20, [1] * 24)],
    ids=["room", "no room"],
)
def test_place_that_is_read_often_is_given_to_a_page_cache_that_has_room(
    path: Path, monkeypatch: pytest.MonkeyPatch, uncached: list[int], available: int, direct_reads: list[int]
) -> None:
    source, out = SourceFile(path), one(1024 * KIB)
    monkeypatch.setattr(direct, "available_nbytes", lambda: available)
    found = []
    for _ in direct_reads:
        before = len(uncached)
        source.read_into([(0, out)])
        found.append(len(uncached) - before)
    assert found == direct_reads


def test_places_that_are_read_once_are_never_given_to_the_page_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch, uncached: list[int]
) -> None:
    source, out = SourceFile(path), one(200 * KIB)
    monkeypatch.setattr(direct, "available_nbytes", lambda: 8 << 30)
    for k in range(10):
        source.read_into([(k * 200 * KIB, out)])
    assert len(uncached) == 10


@pytest.mark.parametrize(("available", "direct_reads"), [(8 << 30, 0), (3 << 20, 1)])
def test_where_the_kernel_does_not_tell_what_is_cached_room_decides(
    path: Path, monkeypatch: pytest.MonkeyPatch, uncached: list[int], available: int, direct_reads: int
) -> None:
    source, out = SourceFile(path), one(1024 * KIB)
    monkeypatch.setattr(direct, "available_nbytes", lambda: available)
    monkeypatch.setattr(direct, "cached_nbytes", lambda *_: None)
    source.read_into([(0, out)])
    assert len(uncached) == direct_reads
