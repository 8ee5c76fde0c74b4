"""Headers that safetensors itself wrote, and headers that it would not have written."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from strideweave.checkpoint import CheckpointError, GarbledHeader, MissingShards, TruncatedShard, read_header
from strideweave.checkpoint.header import HeaderFingerprint
from strideweave.io import FileIdentity

KNOWN = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
}


def raw(path: Path, header: bytes | dict[str, Any], data: bytes = b"", *, length: int | None = None) -> Path:
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def one(dtype: Any = "U8", shape: Any = (1,), offsets: Any = (0, 1)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model-00003-of-00007.safetensors"


@pytest.mark.parametrize("dtype", KNOWN)
def test_header_of_every_known_dtype_equals_what_safetensors_wrote(file: Path, dtype: str) -> None:
    wanted = torch.arange(6).reshape(2, 3).to(KNOWN[dtype])
    save_file({"a": wanted}, file)
    entry = read_header(file).entries["a"]
    assert (entry.dtype, entry.shape, entry.nbytes) == (dtype, (2, 3), wanted.nbytes)
    lies = file.read_bytes()[entry.offset_nbytes : entry.end_nbytes]
    assert lies == bytes(wanted.view(torch.uint8).flatten().tolist())


def test_header_of_many_tensors_equals_safe_open(file: Path) -> None:
    tensors = {f"layer.{k}.weight": torch.rand(k, 3) for k in range(12)} | {"scalar": torch.tensor(4.0)}
    save_file(tensors, file, metadata={"format": "pt", "who": "naïve ☃"})
    header = read_header(file)
    with safe_open(file, "pt") as peer:
        assert set(header.entries) == set(peer.keys())
        assert header.metadata == peer.metadata()
        for name in peer.keys():  # noqa: SIM118 - no mapping
            entry = header.entries[name]
            lies = file.read_bytes()[entry.offset_nbytes : entry.end_nbytes]
            assert lies == peer.get_tensor(name).numpy().tobytes()
            assert list(entry.shape) == peer.get_slice(name).get_shape()


def test_header_facts_of_a_file_are_its_size_hash_and_identity(file: Path) -> None:
    save_file({"a": torch.zeros(5)}, file)
    header = read_header(file)
    content = file.read_bytes()
    assert header.path == file
    assert header.file_nbytes == len(content) == header.data_start_nbytes + 20
    assert header.sha256 == hashlib.sha256(content[: header.data_start_nbytes]).hexdigest()
    assert header.identity == FileIdentity.of(file)
    assert repr(header) == f"<Header of {file}: 1 tensors, {len(content)} bytes>"


def test_entries_of_a_file_come_in_the_order_of_their_bytes(file: Path) -> None:
    raw(file, {"z": one(offsets=(2, 3)), "a": one(offsets=(1, 2)), "m": one(offsets=(0, 1))}, b"abc")
    header = read_header(file)
    assert list(header.entries) == ["m", "a", "z"]
    assert [e.offset_nbytes - header.data_start_nbytes for e in header.entries.values()] == [0, 1, 2]


def test_b16_zero_size(file: Path) -> None:
    save_file(
        {
            "empty.a": torch.empty(0),
            "empty.b": torch.empty(0, 3),
            "filled": torch.ones(2),
            "empty.c": torch.empty(4, 0, 7, dtype=torch.int8),
            "scalar": torch.tensor(1.5),
        },
        file,
    )
    shapes = {name: (entry.shape, entry.nbytes) for name, entry in read_header(file).entries.items()}
    assert shapes == {
        "empty.a": ((0,), 0),
        "empty.b": ((0, 3), 0),
        "empty.c": ((4, 0, 7), 0),
        "filled": ((2,), 8),
        "scalar": ((), 4),
    }


def test_b16_zero_size_between_filled_tensors_is_legal_only_on_a_border(file: Path) -> None:
    filled, empty = one(shape=(2,), offsets=(0, 2)), one(shape=(0, 3), offsets=(2, 2))
    assert set(read_header(raw(file, {"empty": empty, "filled": filled}, b"ab")).entries) == {
        "empty",
        "filled",
    }
    inside = one(shape=(0, 3), offsets=(1, 1))
    with pytest.raises(GarbledHeader, match=r"'empty' begins at byte .* the one before it ends at"):
        read_header(raw(file, {"empty": inside, "filled": filled}, b"ab"))


def test_b16_zero_size_file_of_no_tensor_is_legal(file: Path) -> None:
    save_file({}, file)
    assert dict(read_header(file).entries) == {}


def test_b1_short_shard_is_refused_with_its_bytes(file: Path) -> None:
    save_file({"a": torch.zeros(1000)}, file)
    whole = file.stat().st_size
    os.truncate(file, whole - 301)
    with pytest.raises(TruncatedShard) as error:
        read_header(file, ordinal=(3, 7))
    assert f"shard 3 of 7, {file}" in str(error.value)
    assert f"take {whole} bytes, the file has {whole - 301}: 301 bytes are missing" in str(error.value)


def test_b1_long_shard_is_refused_with_its_bytes(file: Path) -> None:
    save_file({"a": torch.zeros(10)}, file)
    whole = file.stat().st_size
    os.truncate(file, whole + 5)
    with pytest.raises(GarbledHeader, match=f"take {whole} bytes, the file has {whole + 5}: 5 bytes too many"):
        read_header(file)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 60])
def test_b4_interrupted_download_names_file_shard_and_cure(file: Path, kept: int) -> None:
    save_file({"a": torch.zeros(10)}, file, metadata={"a long": "enough header"})
    os.truncate(file, kept)
    with pytest.raises(TruncatedShard) as error:
        read_header(file, ordinal=(3, 7))
    message = str(error.value)
    assert f"shard 3 of 7, {file}" in message
    assert f"the file has {kept}" in message
    assert "Re-download this file" in message


def test_b4_reserved_but_unwritten_file_is_garbled(file: Path) -> None:
    file.touch()
    os.truncate(file, 4096)
    with pytest.raises(GarbledHeader, match="announce a header of 0 bytes"):
        read_header(file)


def test_b4_git_lfs_pointer_is_told_from_a_broken_download(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 5\n")
    with pytest.raises(GarbledHeader, match="git lfs pull"):
        read_header(file)


BAD_HEADERS: dict[str, tuple[bytes | dict[str, Any], bytes, str]] = {
    "not_json": (b"{nope}", b"", "is not JSON"),
    "no_object": (b"[]", b"", "begins with"),
    "leading_space": (b' {"a":1}', b"", "begins with"),
    "trailing_nul": (b"{}\0\0", b"", "is not JSON"),
    "bad_utf8": (b'{"\xff":1}', b"", "is not JSON"),
    "too_deep": (b'{"a":' + b"[" * 100_000, b"", "is not JSON"),
    "huge_number": (b'{"a":' + b"9" * 5000 + b"}", b"", "is not JSON"),
    "nan": (b'{"a":NaN}', b"", "NaN is not JSON"),
    "repeated_tensor": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
        "the key 'a' appears twice",
    ),
    "repeated_field": (
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
        "the key 'dtype' appears twice",
    ),
    "entry_is_text": ({"a": "x"}, b"", "lacks its dtype, shape or two"),
    "entry_is_null": ({"a": None}, b"", "lacks its dtype, shape or two"),
    "no_shape": ({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, b"x", "lacks its dtype, shape or two"),
    "three_offsets": ({"a": one(offsets=(0, 1, 2))}, b"x", "lacks its dtype, shape or two"),
    "offsets_are_text": ({"a": {"dtype": "U8", "shape": [1], "data_offsets": "01"}}, b"x", "whole numbers"),
    "shape_is_text": (
        {"a": {"dtype": "U8", "shape": "1", "data_offsets": [0, 1]}},
        b"x",
        "a name and a list",
    ),
    "dtype_is_list": ({"a": one(dtype=["U8"])}, b"x", "a name and a list"),
    "float_extent": ({"a": one(shape=(1.0,))}, b"x", "whole numbers"),
    "true_extent": ({"a": one(shape=(True,))}, b"x", "whole numbers"),
    "negative_extents": ({"a": one(shape=(-1, -1))}, b"x", "whole numbers"),
    "huge_extent": ({"a": one(shape=(0, 2**64), offsets=(0, 0))}, b"", "whole numbers"),
    "negative_offset": ({"a": one(offsets=(-1, 0))}, b"", "whole numbers"),
    "backward_offsets": ({"a": one(offsets=(1, 0))}, b"x", r"hold -1"),
    "wrong_length": (
        {"a": one("F32", (2,), (0, 7))},
        b"x" * 7,
        r"takes 8 bytes, its data_offsets \[0, 7\] hold 7",
    ),
    "gap": ({"a": one(), "b": one(offsets=(2, 3))}, b"abc", "'b' begins at byte"),
    "late_start": ({"a": one(offsets=(1, 2))}, b"ab", "'a' begins at byte"),
    "overlap": (
        {"a": one(shape=(2,), offsets=(0, 2)), "b": one(shape=(2,), offsets=(1, 3))},
        b"abc",
        "'b' begins",
    ),
    "surrogate_name": (b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x", "not Unicode"),
    "metadata_number": ({"__metadata__": {"a": 1}}, b"", "no map from text to text"),
    "metadata_list": ({"__metadata__": ["a"]}, b"", "no map from text to text"),
    "metadata_surrogate": (b'{"__metadata__":{"a":"\\ud800"}}', b"", "no map from text to text"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_header_that_breaks_a_rule_is_refused_with_the_rule(file: Path, case: str) -> None:
    header, data, words = BAD_HEADERS[case]
    raw(file, header, data)
    with pytest.raises(GarbledHeader, match=words) as error:
        read_header(file, ordinal=(3, 7))
    assert str(error.value).startswith(f"cannot read shard 3 of 7, {file}: ")


def test_header_with_an_unknown_dtype_lists_the_known_ones(file: Path) -> None:
    raw(file, {"a": one("F4", (2,), (0, 1))}, b"x")
    with pytest.raises(CheckpointError, match=r"has dtype 'F4'. Known are F64 F32 .* BOOL"):
        read_header(file)


def test_header_with_extra_fields_and_null_metadata_is_read(file: Path) -> None:
    raw(file, {"__metadata__": None, "a": one() | {"note": "later writers"}}, b"x")
    header = read_header(file)
    assert dict(header.metadata) == {}
    assert header.entries["a"].shape == (1,)


def test_missing_file_is_told_by_name(file: Path) -> None:
    with pytest.raises(MissingShards, match=r"shard 3 of 7, .*: no such file"):
        read_header(file, ordinal=(3, 7))


def test_b13_dangling_link_names_its_target(file: Path) -> None:
    file.symlink_to("../blobs/4f2a")
    with pytest.raises(MissingShards, match=r"a link to \.\./blobs/4f2a, which does not exist"):
        read_header(file)


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_path_that_is_no_file_is_refused_at_once(file: Path, kind: str) -> None:
    file.mkdir() if kind == "folder" else os.mkfifo(file)
    with pytest.raises(CheckpointError, match="it is no regular file"):
        read_header(file)


def test_header_fingerprint_after_a_rewrite_in_place_differs(file: Path) -> None:
    save_file({"a": torch.zeros(10)}, file)
    header = read_header(file)
    fingerprint = HeaderFingerprint(header.data_start_nbytes, header.sha256)
    assert pickle.loads(pickle.dumps(fingerprint)) == fingerprint
    with file.open("r+b") as stream:
        assert fingerprint(stream.fileno())
        stream.seek(10)
        stream.write(b"b")
        stream.flush()
        assert not fingerprint(stream.fileno())
        stream.truncate(9)
        assert not fingerprint(stream.fileno())
