"""Any header that safetensors writes is read as safetensors reads it; any damage is a CheckpointError."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.torch import save

from strideweave.checkpoint import CheckpointError, GarbledHeader, Header, TruncatedShard, read_header
from strideweave.checkpoint.header import HEADER_CAP_NBYTES, ITEM_NBYTES

TORCH = {"F64": torch.float64, "BF16": torch.bfloat16, "F8_E5M2": torch.float8_e5m2, "U8": torch.uint8}
TORCH |= {"BOOL": torch.bool, "I32": torch.int32, "U64": torch.uint64, "F16": torch.float16}

names = st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
tables = st.dictionaries(names, st.tuples(shapes, st.sampled_from(sorted(TORCH))), max_size=6)
# No empty map: safetensors 0.8 writes `{},"__metadata__":{}}` for it, which it cannot read itself.
texts = st.text(st.characters(codec="utf-8"), max_size=12)
metadatas = st.none() | st.dictionaries(texts, texts, min_size=1, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers")


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return path


def with_header_of(length: int, data: bytes = b"") -> bytes:
    """A file whose header has exactly `length` bytes, filled up with spaces as writers do."""
    header: dict[str, Any] = {}
    if data:
        header["a"] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    return length.to_bytes(8, "little") + text.ljust(length) + data


def facts(header: Header, content: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        name: (entry.dtype, list(entry.shape), content[entry.offset_nbytes : entry.end_nbytes])
        for name, entry in header.entries.items()
    }


def peer_facts(content: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    return {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in deserialize(content)}


@given(tables, metadatas)
def test_header_of_any_saved_tensors_equals_the_librarys(
    folder: Path, table: dict[str, tuple[tuple[int, ...], str]], metadata: dict[str, str] | None
) -> None:
    tensors = {
        name: torch.randint(0, 2, shape, dtype=torch.uint8).to(TORCH[dtype]) for name, (shape, dtype) in table.items()
    }
    content = save(tensors, metadata)
    path = write(folder, content)
    header = read_header(path)
    assert facts(header, content) == peer_facts(content)
    with safe_open(path, "np") as peer:
        assert dict(header.metadata) == (peer.metadata() or {})
    end = header.data_start_nbytes
    for entry in header.entries.values():
        assert entry.offset_nbytes == end
        end = entry.end_nbytes
    assert end == len(content)


@given(tables, st.data())
def test_header_with_any_bit_flipped_is_what_the_library_says_or_refused(
    folder: Path, table: dict[str, tuple[tuple[int, ...], str]], data: st.DataObject
) -> None:
    content = bytearray(save({name: torch.zeros(s, dtype=TORCH[d]) for name, (s, d) in table.items()}))
    before = read_header(write(folder, bytes(content)))
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] ^= 1 << data.draw(st.integers(0, 7))
    damaged = bytes(content)
    path = write(folder, damaged)
    if where >= before.data_start_nbytes:
        assert read_header(path).entries == before.entries
        return
    try:
        header = read_header(path)
    except CheckpointError:
        return
    # A flip may turn one legal header into another (a letter of a name): then the library reads the same one.
    assert facts(header, damaged) == peer_facts(damaged)


@given(tables.filter(bool), st.data())
def test_header_of_a_file_cut_anywhere_is_refused(
    folder: Path, table: dict[str, tuple[tuple[int, ...], str]], data: st.DataObject
) -> None:
    content = save({name: torch.zeros(s, dtype=TORCH[d]) for name, (s, d) in table.items()})
    path = write(folder, content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(TruncatedShard, match="bytes are missing"):
        read_header(path)


@given(st.binary(max_size=200))
def test_header_of_any_bytes_is_what_the_library_says_or_refused(folder: Path, junk: bytes) -> None:
    content = len(junk).to_bytes(8, "little") + junk
    try:
        header = read_header(write(folder, content))
    except CheckpointError:
        return
    assert facts(header, content) == peer_facts(content)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(sorted(ITEM_NBYTES)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
entry_values = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32", "Q4"]) | json_values,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 9), min_size=2, max_size=2) | json_values,
    }
)


@given(st.dictionaries(st.text(max_size=4) | st.just("__metadata__"), entry_values | json_values, max_size=3))
def test_header_of_any_json_is_what_the_library_says_or_refused(folder: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(4)
    try:
        header = read_header(write(folder, content))
    except CheckpointError:
        return
    assert facts(header, content) == peer_facts(content)


B3_LENGTHS = [2, 3, 7, 8, 9, *range(100_000 - 8, 100_000 + 9)]


@pytest.mark.parametrize("length", B3_LENGTHS)
def test_b3_header_length(folder: Path, length: int) -> None:
    data = b"xyz" if length > 60 else b""
    content = with_header_of(length, data)
    header = read_header(write(folder, content))
    assert header.data_start_nbytes == 8 + length
    assert facts(header, content) == peer_facts(content)


@pytest.mark.parametrize("length", [n for n in B3_LENGTHS if n > 60])
@pytest.mark.parametrize("change", [-1, 1])
def test_b3_header_length_off_by_one_is_refused_as_by_the_library(folder: Path, length: int, change: int) -> None:
    content = bytearray(with_header_of(length, b"xyz"))
    content[:8] = (length + change).to_bytes(8, "little")
    with pytest.raises(SafetensorError):
        deserialize(bytes(content))
    with pytest.raises(CheckpointError):
        read_header(write(folder, bytes(content)))


@pytest.mark.parametrize("length", [0, 1])
def test_b3_header_length_below_the_smallest_is_refused(folder: Path, length: int) -> None:
    with pytest.raises(GarbledHeader, match="shortest header has 2 bytes"):
        read_header(write(folder, length.to_bytes(8, "little") + b"{}"))


def test_b3_header_length_at_the_cap_is_read_and_one_above_is_refused(folder: Path) -> None:
    path = folder / "cap.safetensors"
    for length, words in ((HEADER_CAP_NBYTES, "begins with"), (HEADER_CAP_NBYTES + 1, "at most 100000000")):
        path.write_bytes(length.to_bytes(8, "little"))
        os.truncate(path, 8 + length)  # sparse: zeros, which begin no header
        with pytest.raises(GarbledHeader, match=words):
            read_header(path)


def test_b3_header_length_at_the_cap_of_a_file_that_ends_is_truncated(folder: Path) -> None:
    path = write(folder, HEADER_CAP_NBYTES.to_bytes(8, "little") + b"{}")
    with pytest.raises(TruncatedShard, match="take 100000008 bytes, the file has 10"):
        read_header(path)


@pytest.mark.slow
def test_b3_header_length_at_the_cap_filled_with_spaces_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cap.safetensors"
    with path.open("wb") as stream:
        stream.write(with_header_of(HEADER_CAP_NBYTES, b"xyz"))
    entry = read_header(path).entries["a"]
    assert (entry.offset_nbytes, entry.nbytes) == (8 + HEADER_CAP_NBYTES, 3)
    with safe_open(path, "np") as peer:
        assert peer.get_tensor("a").tobytes() == b"xyz"
