"""Folders as people have them: whole, half-downloaded, linked, read-only, ambiguous."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import strideweave.checkpoint.header as header_module
from strideweave.checkpoint import (
    Checkpoint,
    CheckpointError,
    GarbledHeader,
    MissingShards,
    MissingTensors,
    TruncatedShard,
)
from strideweave.io import ChangedFileError

INDEX = "model.safetensors.index.json"


def shard_name(k: int, count: int) -> str:
    return f"model-{k:05d}-of-{count:05d}.safetensors"


def write_sharded(folder: Path, count: int, *, tensors: int = 3, extent: int = 4) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    for k in range(1, count + 1):
        held = {f"layers.{k}.experts.{j}.w1.weight": torch.rand(extent, 2) for j in range(tensors)}
        save_file(held, folder / shard_name(k, count), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(held, shard_name(k, count))
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Any, name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def read(checkpoint: Checkpoint, name: str) -> bytes:
    out = bytearray(checkpoint.tensors[name].entry.nbytes)
    checkpoint.read(name, memoryview(out))
    return bytes(out)


def peer_bytes(path: str, name: str) -> bytes:
    with safe_open(path, "np") as peer:
        return bytes(peer.get_tensor(name).tobytes())


def test_checkpoint_of_a_sharded_folder_reads_what_safetensors_reads(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path, 4)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.index_map == weight_map
    assert set(checkpoint.tensors) == set(weight_map)
    assert [h.path.name for h in checkpoint.shards] == [shard_name(k, 4) for k in range(1, 5)]
    for name, file in weight_map.items():
        assert read(checkpoint, name) == peer_bytes(str(tmp_path / file), name)
    assert checkpoint.nbytes == 4 * 3 * 4 * 2 * 4
    assert checkpoint.config is None
    assert repr(checkpoint) == f"<Checkpoint {tmp_path}: 4 shards, 12 tensors, 0.00 GiB>"


@pytest.mark.parametrize("opened", ["folder", "file"])
def test_checkpoint_of_one_file_reads_what_safetensors_reads(tmp_path: Path, opened: str) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.rand(3), "none": torch.empty(0, 2)}, file)
    checkpoint = Checkpoint.open(tmp_path if opened == "folder" else file)
    assert checkpoint.index_map is None
    assert read(checkpoint, "a") == peer_bytes(str(file), "a")
    assert read(checkpoint, "none") == b""


def test_checkpoint_config_beside_the_weights_is_kept(tmp_path: Path) -> None:
    save_file({"a": torch.rand(3)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "mixtral"}')
    assert Checkpoint.open(str(tmp_path)).config == {"model_type": "mixtral"}


def test_checkpoint_open_from_a_relative_path_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sharded(tmp_path / "model", 1)
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint.open("model")
    monkeypatch.chdir("/")
    assert len(read(checkpoint, "layers.1.experts.0.w1.weight")) == 32


def test_checkpoint_open_of_100_shards_reads_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sharded(tmp_path, 100, tensors=24, extent=512)
    sizes: list[int] = []
    real = os.pread

    def counting(descriptor: int, nbytes: int, offset: int) -> bytes:
        part = real(descriptor, nbytes, offset)
        sizes.append(len(part))
        return part

    monkeypatch.setattr(header_module.os, "pread", counting)
    checkpoint = Checkpoint.open(tmp_path)
    assert sum(sizes) == sum(shard.data_start_nbytes for shard in checkpoint.shards)
    assert len(sizes) == 200
    took_s = []
    for _ in range(5):
        start = time.perf_counter()
        Checkpoint.open(tmp_path)
        took_s.append(time.perf_counter() - start)
    assert min(took_s) < 0.05


def test_a13_missing_shards(tmp_path: Path) -> None:
    write_sharded(tmp_path, 30)
    for k in range(16, 31):
        (tmp_path / shard_name(k, 30)).unlink()
    with pytest.raises(MissingShards) as error:
        Checkpoint.open(tmp_path)
    message = str(error.value)
    assert "15 of 30 shards" in message
    for k in range(1, 31):
        assert (shard_name(k, 30) in message) == (k > 15)
    assert "holds 3 tensors: layers.30.experts.0.w1.weight, layers.30.experts.1.w1.weight" in message


def test_b1_short_shard(tmp_path: Path) -> None:
    write_sharded(tmp_path, 3)
    bad = tmp_path / shard_name(2, 3)
    os.truncate(bad, bad.stat().st_size - 1)
    with pytest.raises(TruncatedShard, match=f"shard 2 of 3, {bad}: .* 1 bytes are missing"):
        Checkpoint.open(tmp_path)


def test_b4_interrupted_download(tmp_path: Path) -> None:
    write_sharded(tmp_path, 3)
    bad = tmp_path / shard_name(3, 3)
    os.truncate(bad, 5)
    with pytest.raises(TruncatedShard, match=f"shard 3 of 3, {bad}: .* Re-download this file"):
        Checkpoint.open(tmp_path)


@pytest.fixture
def read_only_folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "snapshot"
    write_sharded(folder, 2)
    (folder / "config.json").write_text("{}")
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def test_b12_read_only_folder(read_only_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so permissions alone prove nothing: every open is watched too.
    flags: list[int] = []
    real = os.open

    def watching(path: Any, how: int, *rest: Any, **named: Any) -> int:
        flags.append(how)
        return real(path, how, *rest, **named)

    monkeypatch.setattr(os, "open", watching)
    before = {p: p.stat().st_mtime_ns for p in [read_only_folder, *read_only_folder.iterdir()]}
    checkpoint = Checkpoint.open(read_only_folder)
    for name in checkpoint.tensors:
        read(checkpoint, name)
    checkpoint.check_unchanged()
    assert {p: p.stat().st_mtime_ns for p in [read_only_folder, *read_only_folder.iterdir()]} == before
    assert len(flags) >= 4
    assert all(how & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) == 0 for how in flags)


def cache_with_links(root: Path) -> Path:
    """A hub cache: snapshots/<revision>/<name> -> ../../blobs/<hash>."""
    snapshot, blobs = root / "snapshots" / "0f1e", root / "blobs"
    write_sharded(snapshot, 2)
    blobs.mkdir()
    for k, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / f"hash{k}")
        file.symlink_to(Path("../../blobs") / f"hash{k}")
    return snapshot


def test_b13_symlinked_blobs(tmp_path: Path) -> None:
    snapshot = cache_with_links(tmp_path)
    checkpoint = Checkpoint.open(snapshot)
    located = checkpoint.tensors["layers.1.experts.0.w1.weight"]
    assert str(located.file.path) == str((tmp_path / "blobs" / "hash0").resolve())
    wanted = peer_bytes(str(located.file.path), located.entry.name)
    for link in snapshot.iterdir():
        link.unlink()  # the links were resolved once: the blobs are what is read
    assert read(checkpoint, located.entry.name) == wanted


def test_b13_dangling_link(tmp_path: Path) -> None:
    snapshot = cache_with_links(tmp_path)
    (tmp_path / "blobs" / "hash1").unlink()
    with pytest.raises(MissingShards) as error:
        Checkpoint.open(snapshot)
    assert "1 of 2 shards" in str(error.value)
    assert f"{shard_name(2, 2)} (a link to ../../blobs/hash1, which does not exist)" in str(error.value)


@pytest.mark.parametrize("name", [INDEX, "model.safetensors"])
def test_b13_dangling_link_of_the_only_file_is_not_taken_for_an_empty_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("../blobs/gone")
    with pytest.raises(MissingShards, match=r"a link to \.\./blobs/gone, which does not exist"):
        Checkpoint.open(tmp_path)


def test_b16_zero_size(tmp_path: Path) -> None:
    save_file({"a": torch.empty(0), "b": torch.empty(3, 0), "c": torch.tensor(7)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    assert [read(checkpoint, name) for name in "abc"] == [b"", b"", (7).to_bytes(8, "little")]
    assert checkpoint.nbytes == 8


def test_d12_single_file_beside_an_index_wins_with_a_warning(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2)
    save_file({"alone": torch.rand(2)}, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match=r"holds both .*: model\.safetensors wins"):
        checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint.tensors) == {"alone"}


def test_d12_warning_points_at_the_caller(tmp_path: Path) -> None:
    write_sharded(tmp_path, 2)
    save_file({"alone": torch.rand(2)}, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match="wins") as caught:
        Checkpoint.open(tmp_path)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("named", "expected"),
    [(INDEX, 6), ("model.safetensors", 1), ("ema.safetensors", 1), ("sub/ema.safetensors.index.json", 3)],
)
def test_d12_config_transformers_weights_decides_without_a_warning(tmp_path: Path, named: str, expected: int) -> None:
    write_sharded(tmp_path, 2)
    write_sharded(tmp_path / "sub", 1)
    (tmp_path / "sub" / INDEX).rename(tmp_path / "sub" / "ema.safetensors.index.json")
    for name in ("model.safetensors", "ema.safetensors"):
        save_file({"alone": torch.rand(2)}, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": named}))
    assert len(Checkpoint.open(tmp_path).tensors) == expected


def test_d12_two_indexes_of_other_names_are_listed_and_open_by_path(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path, 1)
    (tmp_path / INDEX).unlink()
    for variant in ("fp16", "ema"):
        write_index(tmp_path, weight_map, f"model.{variant}.safetensors.index.json")
    with pytest.raises(CheckpointError, match=r"by its own path: model-.*, model\.ema\..*, model\.fp16\."):
        Checkpoint.open(tmp_path)
    assert len(Checkpoint.open(tmp_path / "model.ema.safetensors.index.json").tensors) == 3


@pytest.mark.parametrize("named", ["../model.safetensors", "/etc/model.safetensors", "pytorch_model.bin", 3, ""])
def test_config_transformers_weights_outside_or_of_another_kind_is_refused(tmp_path: Path, named: Any) -> None:
    save_file({"alone": torch.rand(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": named}))
    with pytest.raises(CheckpointError, match="transformers_weights="):
        Checkpoint.open(tmp_path)


def test_folder_of_pytorch_files_says_what_was_found_and_how_to_convert(tmp_path: Path) -> None:
    for name in ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"holds pytorch_model-00001-of-00002\.bin, .*save_pretrained"):
        Checkpoint.open(tmp_path)


def test_folder_without_weights_and_path_of_nothing_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointError, match="it holds 1 files, none of them weights"):
        Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match="nothing is there"):
        Checkpoint.open(tmp_path / "mistralai" / "Mixtral-8x7B")
    with pytest.raises(CheckpointError, match="it is a file of another kind"):
        Checkpoint.open(tmp_path / "notes.txt")
    with pytest.raises(MissingShards, match="no such file"):
        Checkpoint.open(tmp_path / "gone.safetensors")


BAD_INDEXES: dict[str, tuple[str, str]] = {
    "not_json": ("{", "holds one JSON object"),
    "list": ("[]", "it is a list"),
    "no_map": ("{}", "weight_map is NoneType"),
    "empty_map": ('{"weight_map": {}}', "weight_map is dict, empty"),
    "repeated": ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "the key 'a' appears twice"),
    "escape": ('{"weight_map": {"a": "../x.safetensors"}}', "below the folder"),
    "absolute": ('{"weight_map": {"a": "/x.safetensors"}}', "below the folder"),
    "number": ('{"weight_map": {"a": 3}}', "below the folder"),
    "pickle": ('{"weight_map": {"a": "x.bin"}}', "below the folder"),
}


@pytest.mark.parametrize("case", BAD_INDEXES)
def test_index_that_breaks_a_rule_is_refused(tmp_path: Path, case: str) -> None:
    text, words = BAD_INDEXES[case]
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=words):
        Checkpoint.open(tmp_path)


def test_config_that_is_not_json_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path, 1)
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"config\.json: .* one JSON object"):
        Checkpoint.open(tmp_path)


def test_index_entry_that_its_shard_lacks_is_listed(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path, 2)
    write_index(tmp_path, weight_map | {"layers.9.w1": shard_name(2, 2)})
    with pytest.raises(MissingTensors, match=f"1 of 7 tensors .*: layers.9.w1 in {shard_name(2, 2)}"):
        Checkpoint.open(tmp_path)


def test_tensor_in_two_shards_lives_where_the_index_says(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"both": torch.rand(2), name: torch.rand(1)}, tmp_path / name)
    write_index(tmp_path, {"a.safetensors": "a.safetensors", "both": "b.safetensors"})
    located = Checkpoint.open(tmp_path).tensors["both"]
    assert Path(located.file.path).name == "b.safetensors"


def test_tensor_in_two_shards_that_the_index_does_not_name_is_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"both": torch.rand(2), name: torch.rand(1)}, tmp_path / name)
    write_index(tmp_path, {"a.safetensors": "a.safetensors", "b.safetensors": "b.safetensors"})
    with pytest.raises(GarbledHeader, match=r"tensor 'both' is in .* and the index names neither"):
        Checkpoint.open(tmp_path)


def test_tensor_that_the_index_forgot_is_still_there(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path, 1)
    forgotten = weight_map.popitem()[0]
    write_index(tmp_path, weight_map)
    assert forgotten in Checkpoint.open(tmp_path).tensors


def test_read_of_an_unknown_name_or_into_wrong_memory_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.rand(3)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(MissingTensors, match=r"cannot read 'b' from .*: it has 1 tensors"):
        checkpoint.read("b", memoryview(bytearray(12)))
    with pytest.raises(ValueError, match="into 11 writable bytes: it has 12 bytes"):
        checkpoint.read("a", memoryview(bytearray(11)))
    with pytest.raises(ValueError, match="into 12 read-only bytes"):
        checkpoint.read("a", memoryview(bytes(12)))


def test_read_into_memory_of_another_format_fills_it(tmp_path: Path) -> None:
    wanted = torch.rand(3)
    save_file({"a": wanted}, tmp_path / "model.safetensors")
    out = torch.zeros(3)
    Checkpoint.open(tmp_path).read("a", memoryview(out.numpy()))
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("was_read", [False, True])
@pytest.mark.parametrize("change", ["longer", "rewritten", "replaced", "gone"])
def test_file_that_changed_after_open_is_refused_not_read(tmp_path: Path, change: str, was_read: bool) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.rand(3)}, file)
    checkpoint = Checkpoint.open(tmp_path)
    if was_read:
        read(checkpoint, "a")  # a descriptor of the old file is open from now on
    content = file.read_bytes()
    if change == "longer":
        file.write_bytes(content + b"x")
    elif change == "rewritten":
        file.write_bytes(content[:-4] + b"abcd")
        os.utime(file, ns=(1, 1))
    elif change == "replaced":
        facts = file.stat()
        other = tmp_path / "other"
        other.write_bytes(content)
        os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        other.replace(file)
    else:
        file.unlink()
    with pytest.raises(ChangedFileError):
        checkpoint.check_unchanged()
    with pytest.raises(ChangedFileError):
        read(checkpoint, "a")


def test_located_tensor_after_pickle_reads_the_same(tmp_path: Path) -> None:
    save_file({"a": torch.rand(3)}, tmp_path / "model.safetensors")
    located = Checkpoint.open(tmp_path).tensors["a"]
    again = pickle.loads(pickle.dumps(located))
    out = bytearray(12)
    again.file.read_into([(again.entry.offset_nbytes, memoryview(out))])
    assert bytes(out) == peer_bytes(str(tmp_path / "model.safetensors"), "a")
