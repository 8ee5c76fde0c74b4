from __future__ import annotations

import os
import pickle
import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strideweave.io import (
    ChangedFileError,
    Descriptors,
    FileIdentity,
    MissingFileError,
    SourceFile,
    StorageError,
    positioned,
)

CONTENT = random.Random(7).randbytes(50_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "weights.bin"
    file.write_bytes(CONTENT)
    return file


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SourceFile:
    file = tmp_path_factory.mktemp("source") / "weights.bin"
    file.write_bytes(CONTENT)
    return SourceFile(file)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of buffers of each preadv call."""
    seen: list[int] = []

    def spy(descriptor: int, views: list[memoryview], offset: int) -> int:
        seen.append(len(views))
        return os.preadv(descriptor, views, offset)

    monkeypatch.setattr(positioned, "_preadv", spy)
    return seen


def read(source: SourceFile, offset: int, length: int) -> bytes:
    out = bytearray(length)
    assert source.read_into([(offset, memoryview(out))]) == length
    return bytes(out)


@st.composite
def span_lists(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Spans in any order: far apart, touching in chains, overlapping, empty, at both ends of the file."""
    spans: list[tuple[int, int]] = []
    for start in draw(st.lists(st.integers(0, len(CONTENT)), max_size=6)):
        for length in draw(st.lists(st.sampled_from([0, 1, 2, 511, 512, 513, 4095, 4096, 4097, 9000]), max_size=5)):
            length = min(length, len(CONTENT) - start)
            spans.append((start, length))
            start += length
    return draw(st.permutations(spans))


@given(spans=span_lists(), caps=st.lists(st.integers(1, 5000), max_size=20))
def test_read_into_random_spans_and_short_reads_equals_plain_read_and_keeps_canaries(
    source: SourceFile, spans: list[tuple[int, int]], caps: list[int]
) -> None:
    canary, gap = 0xA5, 64
    arena = bytearray([canary]) * (gap + sum(length + gap for _, length in spans))
    places, at = [], gap
    for _, length in spans:
        places.append(at)
        at += length + gap
    memory = memoryview(arena)
    expected = bytearray(arena)
    for (offset, length), place in zip(spans, places, strict=True):
        expected[place : place + length] = CONTENT[offset : offset + length]

    remaining = list(caps)

    def short(descriptor: int, views: list[memoryview], offset: int) -> int:
        cap = remaining.pop() if remaining else 1 << 30
        cut = []
        for view in views:
            cut.append(view[:cap])
            cap -= len(cut[-1])
            if not cap:
                break
        return os.preadv(descriptor, cut, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positioned, "_preadv", short)
        moved = source.read_into(
            [(offset, memory[p : p + length]) for (offset, length), p in zip(spans, places, strict=True)]
        )
    assert moved == sum(length for _, length in spans)
    assert arena == expected


def test_read_into_touching_spans_in_any_order_takes_one_call(source: SourceFile, calls: list[int]) -> None:
    cuts = [100, 200, 201, 700, 4096, 9000]
    outs = {a: bytearray(b - a) for a, b in pairwise(cuts)}
    order = [700, 100, 4096, 201, 200]
    source.read_into([(a, memoryview(outs[a])) for a in order])
    assert calls == [5]
    assert b"".join(outs[a] for a in sorted(outs)) == CONTENT[100:9000]


def test_read_into_spans_with_a_gap_reads_nothing_of_the_gap(source: SourceFile, calls: list[int]) -> None:
    one, two = bytearray(10), bytearray(10)
    assert source.read_into([(0, memoryview(one)), (11, memoryview(two))]) == 20
    assert calls == [1, 1]


def test_read_into_more_buffers_than_one_call_takes_is_split(source: SourceFile, calls: list[int]) -> None:
    out = bytearray(2500)
    view = memoryview(out)
    source.read_into([(k, view[k : k + 1]) for k in range(2500)])
    assert bytes(out) == CONTENT[:2500]
    limit = os.sysconf("SC_IOV_MAX")
    assert len(calls) == -(-2500 // limit)
    assert max(calls) <= limit


def test_read_into_nothing_reads_nothing(source: SourceFile, calls: list[int]) -> None:
    assert source.read_into([]) == 0
    assert source.read_into([(3, memoryview(bytearray()))]) == 0
    assert calls == []


def test_read_into_typed_memory_fills_its_bytes(source: SourceFile) -> None:
    import array

    numbers = array.array("i", [0] * 8)
    source.read_into([(16, memoryview(numbers))])
    assert numbers.tobytes() == CONTENT[16:48]


@pytest.mark.parametrize(
    ("offset", "memory"),
    [(-1, memoryview(bytearray(4))), (0, memoryview(b"1234")), (0, memoryview(bytearray(8))[::2])],
    ids=["negative", "readonly", "strided"],
)
def test_read_into_bad_memory_is_refused_before_a_byte_moves(
    source: SourceFile, calls: list[int], offset: int, memory: memoryview
) -> None:
    good = bytearray(4)
    with pytest.raises(ValueError, match="must be one run"):
        source.read_into([(0, memoryview(good)), (offset, memory)])
    assert calls == []
    assert good == bytes(4)


def test_read_into_past_the_end_names_file_offset_and_length(source: SourceFile, calls: list[int]) -> None:
    with pytest.raises(StorageError, match="1 too few") as caught:
        read(source, len(CONTENT) - 9, 10)
    error = caught.value
    assert (error.path, error.offset_nbytes, error.length_nbytes) == (source.path, len(CONTENT) - 9, 10)
    assert calls == []


def test_source_file_opened_is_advised_random(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *args: advice.append(args[1:]))
    read(SourceFile(path), 0, 1)
    assert advice == [(0, 0, os.POSIX_FADV_RANDOM)]


def test_source_file_through_links_has_the_real_path(path: Path, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("weights.bin")
    (tmp_path / "two").symlink_to("one")
    source = SourceFile(tmp_path / "two")
    assert source.path == os.path.realpath(path)
    (tmp_path / "one").unlink()
    assert read(source, 5, 5) == CONTENT[5:10]


def test_source_file_at_a_dangling_link_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "snapshot").symlink_to("blobs/abc")
    with pytest.raises(MissingFileError, match=r"link leads to '.*blobs/abc'"):
        SourceFile(tmp_path / "snapshot")


def test_source_file_at_a_circular_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(MissingFileError, match="link"):
        SourceFile(tmp_path / "a")


def test_source_file_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot find"):
        SourceFile(tmp_path / "nothing")
    with pytest.raises(StorageError, match="no regular file"):
        SourceFile(tmp_path)


def test_source_file_opens_no_descriptor_until_it_reads(path: Path) -> None:
    few = Descriptors()
    source = SourceFile(path, descriptors=few)
    source.check_unchanged()
    assert few.open_count == 0
    read(source, 0, 1)
    assert few.open_count == 1
    source.close()
    assert few.open_count == 0
    assert read(source, 1, 1) == CONTENT[1:2]
    del source
    assert few.open_count == 0


# -- a file that changes ------------------------------------------------------------------------------------


def change_size(path: Path) -> None:
    with path.open("ab") as f:
        f.write(b"x")


def change_time(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def replace_file(path: Path) -> None:
    facts = path.stat()
    other = path.with_name("other")
    other.write_bytes(CONTENT[::-1])
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [change_size, change_time, replace_file, Path.unlink])
def test_check_unchanged_after_a_change_names_old_and_new(path: Path, change: object) -> None:
    source = SourceFile(path)
    source.check_unchanged()
    change(path)  # type: ignore[operator]
    with pytest.raises(ChangedFileError) as caught:
        source.check_unchanged()
    assert source.path in str(caught.value)
    expected = str(FileIdentity.of(path)) if path.exists() else "it is gone"
    assert expected in str(caught.value)


def test_source_file_with_a_stale_identity_is_refused_at_once(path: Path) -> None:
    identity = FileIdentity.of(path)
    change_size(path)
    with pytest.raises(ChangedFileError):
        SourceFile(path, identity)


def test_read_into_after_the_descriptor_was_closed_checks_identity_before_any_byte(path: Path, tmp_path: Path) -> None:
    few = Descriptors(limit=1)
    other = tmp_path / "another"
    other.write_bytes(b"abc")
    source = SourceFile(path, descriptors=few)
    read(source, 0, 4)
    read(SourceFile(other, descriptors=few), 0, 1)  # pushes the first one out
    replace_file(path)
    out = bytearray(4)
    with pytest.raises(ChangedFileError):
        source.read_into([(0, memoryview(out))])
    assert out == bytes(4)


def test_read_into_a_file_cut_short_under_it_is_a_change(path: Path) -> None:
    source = SourceFile(path)
    read(source, 0, 1)
    os.truncate(path, 100)
    with pytest.raises(ChangedFileError, match="size_nbytes=100"):
        read(source, 90, 20)


def header_is_recorded(descriptor: int) -> bool:
    return os.pread(descriptor, 64, 0) == CONTENT[:64]


def test_check_unchanged_in_place_rewrite_with_restored_time_is_found_by_fingerprint(path: Path) -> None:
    source = SourceFile(path, FileIdentity.of(path), header_is_recorded)
    source.check_unchanged()
    facts = path.stat()
    with path.open("r+b") as f:
        f.write(bytes(64))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert FileIdentity.of(path) == source.identity
    with pytest.raises(ChangedFileError, match="header is not the recorded one"):
        source.check_unchanged()


def test_check_unchanged_after_chmod_looks_at_the_header_once(path: Path) -> None:
    looks = []

    def fingerprint(descriptor: int) -> bool:
        looks.append(descriptor)
        return header_is_recorded(descriptor)

    source = SourceFile(path, FileIdentity.of(path), fingerprint)
    read(source, 0, 1)
    source.check_unchanged()
    assert len(looks) == 1  # when it was opened
    path.chmod(0o444)
    source.check_unchanged()
    assert len(looks) == 2
    source.check_unchanged()
    assert len(looks) == 2


def test_read_into_looks_at_the_header_each_time_the_file_is_opened(path: Path) -> None:
    answers = [True, False]
    source = SourceFile(path, fingerprint=lambda descriptor: answers.pop(0))
    read(source, 0, 1)
    read(source, 0, 1)
    source.close()
    with pytest.raises(ChangedFileError, match="header"):
        read(source, 0, 1)


def test_check_unchanged_costs_one_stat(source: SourceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    source.check_unchanged()
    looked = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path: looked.append(path) or real(path))
    monkeypatch.setattr(os, "open", None)
    source.check_unchanged()
    assert looked == [source.path]


# -- threads, pickle, fork ----------------------------------------------------------------------------------


def test_read_into_from_many_threads_over_few_descriptors_is_exact(tmp_path: Path) -> None:
    few = Descriptors(limit=2)
    sources = []
    for k in range(6):
        file = tmp_path / str(k)
        file.write_bytes(CONTENT[k:] + CONTENT[:k])
        sources.append(SourceFile(file, descriptors=few))
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(150):
                k, offset = rng.randrange(6), rng.randrange(40_000)
                if read(sources[k], offset, 64) != (CONTENT[k:] + CONTENT[:k])[offset : offset + 64]:
                    wrong.append((k, offset))
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert few.open_count <= 2


def test_source_file_pickled_reads_the_same(path: Path) -> None:
    source = pickle.loads(pickle.dumps(SourceFile(path, fingerprint=header_is_recorded)))
    assert read(source, 10, 10) == CONTENT[10:20]


def test_source_file_read_in_a_forked_child_opens_anew(path: Path, run: object) -> None:
    out = run(  # type: ignore[operator]
        """
source, one = SourceFile(sys.argv[1]), bytearray(4)
source.read_into([(0, memoryview(one))])
held = threading.Event()
def hold():
    with DEFAULT_DESCRIPTORS._lock:
        held.set()
        time.sleep(30)
threading.Thread(target=hold, daemon=True).start()
held.wait()
pid = os.fork()
if not pid:
    assert DEFAULT_DESCRIPTORS.open_count == 0
    two = bytearray(4)
    source.read_into([(0, memoryview(two))])
    os._exit(0 if one == two else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        path,
    )
    assert out == "0"


def test_drop_page_cache_keeps_the_content(path: Path) -> None:
    source = SourceFile(path)
    source.drop_page_cache()
    assert read(source, 0, len(CONTENT)) == CONTENT
