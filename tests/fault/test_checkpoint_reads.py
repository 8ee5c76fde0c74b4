"""Reads that fail or come short, by ordinal, and files that are damaged byte by byte."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import deserialize
from safetensors.torch import save, save_file

import strideweave.checkpoint.header as header_module
from strideweave.checkpoint import Checkpoint, CheckpointError, TruncatedShard, read_header

CONTENT = save({"w": torch.arange(3, dtype=torch.int16), "none": torch.empty(0), "s": torch.tensor(1.0)}, {"k": "v"})


def test_every_truncation_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for kept in range(len(CONTENT)):
        path.write_bytes(CONTENT[:kept])
        with pytest.raises(TruncatedShard, match=f"the file has {kept}:"):
            read_header(path)


def test_every_flip_of_every_bit_is_what_the_library_says_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    whole = read_header(path)
    refused = 0
    for where in range(len(CONTENT)):
        for bit in range(8):
            damaged = bytearray(CONTENT)
            damaged[where] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                header = read_header(path)
            except CheckpointError:
                assert where < whole.data_start_nbytes
                refused += 1
                continue
            if where >= whole.data_start_nbytes:
                assert header.entries == whole.entries
            peer = {name: (t["dtype"], t["shape"], len(t["data"])) for name, t in deserialize(bytes(damaged))}
            ours = {n: (e.dtype, list(e.shape), e.nbytes) for n, e in header.entries.items()}
            assert ours == peer
    assert refused > whole.data_start_nbytes * 4  # most flips of the header break it


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    wanted = read_header(path)
    real = os.pread
    monkeypatch.setattr(header_module.os, "pread", lambda fd, n, offset: real(fd, min(n, 3), offset))
    assert read_header(path) == wanted


def test_file_that_shrinks_after_its_size_was_taken_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    real = os.pread

    def shrinking(descriptor: int, nbytes: int, offset: int) -> bytes:
        os.truncate(path, 20)
        return real(descriptor, nbytes, offset)

    monkeypatch.setattr(header_module.os, "pread", shrinking)
    with pytest.raises(TruncatedShard, match="the file has 20:"):
        read_header(path)


@pytest.mark.parametrize("ordinal", range(1, 7))
def test_read_that_fails_names_the_shard_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordinal: int
) -> None:
    names = [f"model-{k}.safetensors" for k in (1, 2, 3)]
    for name in names:
        save_file({name: torch.zeros(2)}, tmp_path / name)
    index = {"weight_map": {name: name for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    real, calls = os.pread, 0

    def failing(descriptor: int, nbytes: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        if calls == ordinal:
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, nbytes, offset)

    monkeypatch.setattr(header_module.os, "pread", failing)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(CheckpointError) as error:
        Checkpoint.open(tmp_path)
    k = (ordinal + 1) // 2
    assert f"shard {k} of 3, {tmp_path / names[k - 1]}: Input/output error (errno {errno.EIO})" in str(error.value)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_file_that_may_not_be_opened_names_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)

    def refusing(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(header_module.os, "open", refusing)
    with pytest.raises(CheckpointError, match=r"shard 2 of 9, .*: Permission denied \(errno 13\)"):
        read_header(path, ordinal=(2, 9))
