"""A process killed at every write of an eviction and of a flush: each tile is wholly old or wholly new afterwards.

Children are forked, not started: they find torch imported. The last tests fail the same writes without a kill.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from strideweave import CPU, DType, FileBacked, Layout, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable.tile_format import MAGIC
from strideweave.io import Lanes, StorageError, lanes, positioned, writable_file
from support.tiled import coordinates, every_tile

TILES = 3


@dataclass(frozen=True)
class Tiling:
    """How 1920 values make three tiles."""

    shape: tuple[int, int, int]
    tile_shape: tuple[int, int, int]

    @property
    def tile_elems(self) -> int:
        return math.prod(self.tile_shape)


WHOLE = Tiling((TILES, 16, 40), (1, 16, 40))
RAGGED = Tiling((24, 8, 10), (9, 8, 10))  # 720, 720 and 480 values
OLD = torch.arange(1920.0) + 1.0
NEW = -OLD
WORDS = {"old": OLD, "new": NEW}

Moment = Literal["before", "half", "after"]
Work = Callable[[Path, Callable[[str], None]], None]

tiling = WHOLE
"""Of the running test; a fixture sets it."""


def over(path: Path, values: torch.Tensor) -> TiledEvictable:
    """All tiles in primary with these values, over the store at the path, or over a new one."""
    secondary = FileBacked.open(path, dtype=DType.Float32, size=0) if path.exists() else FileBacked(path)
    return TiledEvictable(
        CPU.wrap(values.clone()),
        secondary,
        (TILES, 1, 1),
        tiling.tile_shape,
        shape=tiling.shape,
        layout=Layout.row_major(*tiling.shape),
    )


def found(carrier: TiledEvictable) -> dict[tuple[int, ...], str]:
    """What each tile is: 'old', 'new' or 'invalid'; anything else fails."""
    out = {}
    for k, coordinate in enumerate(coordinates(carrier)):
        state = carrier.tile_state(coordinate)
        if not state.valid:
            out[coordinate] = "invalid"
            continue
        assert (state.location, state.dirty) == ("secondary", False)
        with carrier.borrow(TileSet([coordinate])) as views:
            value = views[coordinate].reshape(-1).clone()
        names = [name for name, whole in WORDS.items() if torch.equal(value, whole.split(tiling.tile_elems)[k])]
        assert names, f"tile {coordinate} is torn: {value.sign().unique().tolist()}"
        out[coordinate] = names[0]
    return out


class Killer:
    """Counts writes and syncs, and ends the process at the n-th."""

    def __init__(self, nth: int, moment: Moment) -> None:
        self.left, self.moment = nth, moment
        self.pwritev, self.fsync = positioned._pwritev, writable_file._fsync

    def install(self) -> None:
        positioned._pwritev, writable_file._fsync = self._write, self._sync

    def _write(self, descriptor: int, views: list[memoryview], offset: int) -> int:
        def half() -> None:
            data = b"".join(views)
            self.pwritev(descriptor, [memoryview(data)[: len(data) // 2]], offset)

        return self._at(lambda: self.pwritev(descriptor, views, offset), half)

    def _sync(self, descriptor: int) -> None:
        self._at(lambda: self.fsync(descriptor), lambda: None)

    def _at(self, whole: Callable[[], Any], half: Callable[[], None]) -> Any:
        self.left -= 1
        if self.left:
            return whole()
        if self.moment == "half":
            half()
        elif self.moment == "after":
            whole()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("not reached")


def killed(work: Work, path: Path, nth: int, moment: Moment, lane_count: int) -> tuple[bool, list[str]]:
    """Do the work in a child that dies at its n-th write; whether it died, and what it had told until then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            lanes._default = Lanes(lane_count)
            Killer(nth, moment).install()
            work(path, lambda word: os.write(writer, word.encode() + b"\n") and None)
            os._exit(0)
        except BaseException as e:
            os.write(writer, f"failed: {e!r}\n".encode())
        finally:
            os._exit(3)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read().split("\n")[:-1]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, told
    return os.WIFSIGNALED(status), told


def runs(work: Work, start: Path, tmp_path: Path, lane_count: int = 1) -> Iterator[tuple[Path, list[str]]]:
    """The file after the child was killed at each write in turn, each way, until one run gets through."""
    nth, died = 0, True
    while died:
        nth += 1
        for moment in ("before", "half", "after"):
            path = tmp_path / f"{nth}-{moment}.tiles"
            if start.exists():
                shutil.copyfile(start, path)
            died, told = killed(work, path, nth, moment, lane_count)
            yield path, told
            path.unlink(missing_ok=True)
            if not died:
                return


def goes_on(path: Path) -> None:
    """The store takes an eviction and a flush after all, and is found with them."""
    with_new = over(path, NEW)
    with_new.evict(TileSet([(1, 0, 0)]))
    with_new.flush()
    with_new.release()
    again = TiledEvictable.open(path)
    assert set(found(again).values()) == {"new"}
    again.release()


@pytest.fixture
def tiled_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles of the test: whole ones, unless it asks for others."""
    monkeypatch.setattr(sys.modules[__name__], "tiling", getattr(request, "param", WHOLE))


@pytest.fixture
def start(tiled_as: None, tmp_path: Path) -> Path:
    """A store with the old values, flushed."""
    path = tmp_path / "start.tiles"
    carrier = over(path, OLD)
    carrier.flush()
    carrier.release()
    return path


def evict_all(path: Path, tell: Callable[[str], None]) -> None:
    carrier = over(path, NEW)
    carrier.evict(every_tile(carrier))
    tell("evicted")


def flush_all(path: Path, tell: Callable[[str], None]) -> None:
    carrier = over(path, NEW)
    carrier.flush()
    tell("flushed")
    assert not carrier.dirty_tiles.coordinates


def many_times(path: Path, tell: Callable[[str], None]) -> None:
    """Evictions over evictions, so that slots and places are used again, with a flush between them."""
    for values in (NEW, OLD, NEW, OLD):
        carrier = over(path, values)
        carrier.evict(TileSet([(0, 0, 0), (2, 0, 0)]))
        carrier.evict(every_tile(carrier))
        if values is OLD:
            carrier.flush()
        carrier.release()
    tell("ended")


@pytest.mark.parametrize("tiled_as", [WHOLE, RAGGED], ids=["whole", "ragged"], indirect=True)
@pytest.mark.parametrize("lane_count", [1, 4])
@pytest.mark.parametrize("work", [evict_all, flush_all])
def test_kill_at_every_write_leaves_each_tile_old_or_new(
    work: Work, lane_count: int, start: Path, tmp_path: Path
) -> None:
    seen, count = set(), 0
    for path, told in runs(work, start, tmp_path, lane_count):
        carrier = TiledEvictable.open(path)
        tiles = found(carrier)
        carrier.release()
        assert set(tiles.values()) <= {"old", "new"}
        if told:
            assert set(tiles.values()) == {"new"}
        seen.add(tuple(tiles.values()))
        count += 1
        if count % 4 == 1:
            goes_on(path)
    assert count > 3 * 2 * TILES, "every tile is a write of data and one of its record, killed in three ways"
    assert seen >= {("old",) * TILES, ("new",) * TILES}
    assert len(seen) > 2, "some kill fell between two tiles"


def test_kill_at_every_write_of_evictions_over_evictions_leaves_each_tile_old_or_new(
    start: Path, tmp_path: Path
) -> None:
    for number, (path, _) in enumerate(runs(many_times, start, tmp_path)):
        carrier = TiledEvictable.open(path)
        assert set(found(carrier).values()) <= {"old", "new"}
        carrier.release()
        if number % 10 == 0:
            goes_on(path)


def test_kill_while_the_store_is_made_leaves_none_or_whole_tiles(tmp_path: Path) -> None:
    outcomes = set()
    for path, told in runs(flush_all, tmp_path / "none", tmp_path):
        refusal = ""
        try:
            carrier = TiledEvictable.open(path)
        except ValueError as e:
            refusal = str(e)
        if refusal:
            assert str(path) in refusal
            assert not told
            outcomes.add("refused")
            continue
        tiles = found(carrier)
        assert set(tiles.values()) <= {"invalid", "new"}
        if told:
            assert set(tiles.values()) == {"new"}
        outcomes.add("found")
        carrier.release()
    assert outcomes == {"refused", "found"}


def test_killed_writer_leaves_no_lock(start: Path, tmp_path: Path) -> None:
    path = shutil.copyfile(start, tmp_path / "one.tiles")
    died, _ = killed(evict_all, path, 2, "after", 1)
    assert died
    goes_on(path)


# -- the same writes, failing -----------------------------------------------------------------------------------------


class Failing:
    """The n-th write fails after some of its bytes; later ones go well."""

    def __init__(self, nth: int, moved: int, number: int) -> None:
        self.left, self.moved, self.number = nth, moved, number
        self.failed: tuple[int, int] | None = None
        self.is_over = False
        self._real = positioned._pwritev

    def __call__(self, descriptor: int, views: list[memoryview], offset: int) -> int:
        self.left -= 1
        if self.left == 0:
            self.failed = offset, sum(map(len, views))
            if self.moved:
                return self._real(descriptor, [memoryview(b"".join(views))[: self.moved]], offset)
        if self.failed is not None and not self.is_over and offset == self.failed[0] + self.moved:
            self.is_over = True
            raise OSError(self.number, os.strerror(self.number))
        return self._real(descriptor, views, offset)


@pytest.mark.parametrize("request_name", ["evict", "flush"])
@pytest.mark.parametrize(("moved", "number"), [(0, errno.EIO), (5, errno.ENOSPC)])
@pytest.mark.parametrize("nth", range(1, 2 * TILES + 1))
def test_write_that_fails_leaves_every_tile_dirty_and_in_primary(
    nth: int, moved: int, number: int, request_name: str, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = over(start, OLD)
    for k in range(TILES):
        carrier[640 * k] = -1.0
    ask = {"evict": lambda: carrier.evict(every_tile(carrier)), "flush": carrier.flush}[request_name]
    before = {c: carrier.tile_state(c) for c in coordinates(carrier)}
    failing = Failing(nth, moved, number)
    monkeypatch.setattr(positioned, "_pwritev", failing)
    with pytest.raises(StorageError) as caught:
        ask()
    assert failing.failed is not None
    offset, length = failing.failed
    assert (caught.value.path, caught.value.offset_nbytes, caught.value.length_nbytes) == (str(start), offset, length)
    assert str(offset) in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert {c: carrier.tile_state(c) for c in coordinates(carrier)} == before
    assert carrier.statistics().pinned_tiles == 0
    ask()
    store = carrier._engine.secondary.tile_store
    assert store is not None
    store.sync()
    assert store.slots_in_use == TILES
    carrier.release()
    again = TiledEvictable.open(start)
    expected = OLD.clone()
    expected[::640] = -1.0
    with again.borrow(every_tile(again)) as views:
        assert torch.equal(torch.cat([views[c].reshape(-1) for c in coordinates(again)]), expected)
    again.release()


@pytest.mark.parametrize("tiled_as", [WHOLE, RAGGED], ids=["whole", "ragged"], indirect=True)
@pytest.mark.parametrize("nth", [1, 2])
def test_sync_that_fails_leaves_tiles_dirty_and_the_next_flush_writes_them_again(
    nth: int, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier = over(start, NEW)
    carrier[0] = 7.0
    carrier.evict(TileSet([(1, 0, 0)]))
    calls = {"left": nth}
    real = writable_file._fsync

    def fsync(descriptor: int) -> None:
        calls["left"] -= 1
        if calls["left"] == 0:
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(writable_file, "_fsync", fsync)
    with pytest.raises(StorageError, match=r"cannot sync .*start.tiles.*Input/output error"):
        carrier.flush()
    assert carrier.tile_state((0, 0, 0)).dirty
    written = carrier.statistics().bytes_written
    carrier.flush()
    last = 1920 - 2 * tiling.tile_elems
    assert carrier.statistics().bytes_written - written == 4 * (tiling.tile_elems + last)
    assert not carrier.dirty_tiles.coordinates
    carrier.release()
    again = TiledEvictable.open(start)
    assert again[0] == 7.0
    assert [again[k] for k in range(1, 1920, 97)] == NEW[1::97].tolist()
    assert start.read_bytes().startswith(MAGIC)
    again.release()
