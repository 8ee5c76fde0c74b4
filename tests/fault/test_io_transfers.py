"""Reads and writes that fail, by ordinal: the n-th call of the seam is short, is interrupted or raises."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strideweave.io import (
    DEFAULT_DESCRIPTORS,
    SourceFile,
    StorageError,
    WritableFile,
    positioned,
    writable_file,
)

CONTENT = random.Random(3).randbytes(10_000)


class Nth:
    """A call that does something else the first, second, ... time, and what it should at all others."""

    def __init__(self, real: Callable[..., Any], faults: dict[int, OSError | int]) -> None:
        self.real, self.faults, self.calls = real, faults, 0

    def __call__(self, descriptor: int, views: list[memoryview], offset: int) -> int:
        self.calls += 1
        fault = self.faults.get(self.calls)
        if isinstance(fault, OSError):
            raise fault
        if fault == 0:
            return 0
        moved: int = self.real(descriptor, views if fault is None else [views[0][:fault]], offset)
        return moved


@pytest.fixture
def source(tmp_path: Path) -> SourceFile:
    path = tmp_path / "weights.bin"
    path.write_bytes(CONTENT)
    return SourceFile(path)


def spans(out: bytearray) -> list[tuple[int, memoryview]]:
    """Two runs: bytes 0..3000 in two views and 5000..6000 in one."""
    view = memoryview(out)
    return [(5000, view[3000:]), (0, view[:1000]), (1000, view[1000:3000])]


EXPECTED = CONTENT[:3000] + CONTENT[5000:6000]


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("fault", [1, 999, InterruptedError(errno.EINTR, "interrupted")], ids=["1", "999", "EINTR"])
def test_nth_preadv_short_or_interrupted_goes_on(
    source: SourceFile, monkeypatch: pytest.MonkeyPatch, nth: int, fault: OSError | int
) -> None:
    faulty = Nth(os.preadv, {1: 700, nth: fault})
    monkeypatch.setattr(positioned, "_preadv", faulty)
    out = bytearray(4000)
    assert source.read_into(spans(out)) == 4000
    assert out == EXPECTED
    assert faulty.calls > 2


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nth_preadv_raises_eio_names_the_place_and_the_next_read_works(
    source: SourceFile, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    faulty = Nth(os.preadv, {1: 700, nth: OSError(errno.EIO, "i/o")})
    monkeypatch.setattr(positioned, "_preadv", faulty)
    out = bytearray(4000)
    with pytest.raises(StorageError, match=os.strerror(errno.EIO)) as caught:
        source.read_into(spans(out))
    error = caught.value
    assert (error.path, error.errno) == (source.path, errno.EIO)
    assert (error.offset_nbytes, error.length_nbytes) == ((0, 3000) if nth < 3 else (5000, 1000))
    assert isinstance(error.__cause__, OSError)
    assert source.read_into(spans(out)) == 4000
    assert out == EXPECTED


def test_second_preadv_finds_the_end_says_how_much_there_was(
    source: SourceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positioned, "_preadv", Nth(os.preadv, {1: 700, 2: 0}))
    with pytest.raises(StorageError, match="ends after 700 of them") as caught:
        source.read_into(spans(bytearray(4000)))
    assert (caught.value.offset_nbytes, caught.value.length_nbytes) == (0, 3000)


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("fault", [1, 999, InterruptedError(errno.EINTR, "interrupted")], ids=["1", "999", "EINTR"])
def test_nth_pwritev_short_or_interrupted_goes_on(
    monkeypatch: pytest.MonkeyPatch, nth: int, fault: OSError | int
) -> None:
    monkeypatch.setattr(positioned, "_pwritev", Nth(os.pwritev, {1: 700, nth: fault}))
    with WritableFile() as file:
        data = bytearray(CONTENT[:4000])
        assert file.write_from(spans(data)) == 4000
        assert Path(file.path).read_bytes() == data[:3000] + bytes(2000) + data[3000:]


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "Free 2300 bytes"), (errno.EDQUOT, "quota"), (errno.EIO, "disk")]
)
def test_second_pwritev_raises_says_how_many_bytes_are_missing(
    monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    monkeypatch.setattr(positioned, "_pwritev", Nth(os.pwritev, {1: 700, 2: OSError(number, "no")}))
    with WritableFile() as file:
        with pytest.raises(StorageError, match=f"2300 bytes are missing.*{advice}") as caught:
            file.write_from(spans(bytearray(CONTENT[:4000])))
        error = caught.value
        assert (error.path, error.offset_nbytes, error.length_nbytes, error.errno) == (
            file.path,
            0,
            3000,
            number,
        )
        assert file.write_from(spans(bytearray(CONTENT[:4000]))) == 4000


def test_second_pwritev_writes_nothing_does_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positioned, "_pwritev", Nth(os.pwritev, {1: 700, 2: 0}))
    with WritableFile() as file, pytest.raises(StorageError, match="2300 bytes are missing"):
        file.write_from(spans(bytearray(4000)))


def test_reserve_without_room_keeps_length_and_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(descriptor: int, offset: int, nbytes: int) -> None:
        os.ftruncate(descriptor, nbytes // 2)
        raise OSError(errno.ENOSPC, "no room")

    with WritableFile() as file:
        file.write_from([(0, memoryview(b"kept"))])
        monkeypatch.setattr(writable_file, "_posix_fallocate", half)
        with pytest.raises(StorageError, match=r"9996 bytes are missing.*Free 9996 bytes") as caught:
            file.reserve(10_000)
        assert caught.value.errno == errno.ENOSPC
        assert Path(file.path).read_bytes() == b"kept"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_reserve_where_room_cannot_be_promised_gives_the_length(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*args: int) -> None:
        raise OSError(number, "not here")

    monkeypatch.setattr(writable_file, "_posix_fallocate", refuse)
    with WritableFile() as file:
        file.reserve(5000)
        file.reserve(100)
        assert Path(file.path).read_bytes() == bytes(5000)


def test_sync_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "i/o")

    monkeypatch.setattr(writable_file, "_fsync", refuse)
    with WritableFile() as file, pytest.raises(StorageError, match="may be lost") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO


def test_first_open_out_of_descriptors_closes_idle_ones_and_goes_on(
    source: SourceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SourceFile(source.path)
    other.read_into([(0, memoryview(bytearray(1)))])
    real, calls = os.open, []

    def scarce(*args: Any) -> int:
        calls.append(DEFAULT_DESCRIPTORS.open_count)
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "too many")
        return real(*args)

    monkeypatch.setattr(os, "open", scarce)
    out = bytearray(10)
    source.read_into([(0, memoryview(out))])
    assert out == CONTENT[:10]
    assert calls[0] > calls[1] == 0
