"""Shards written one tensor at a time are what safetensors would have read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from strideweave.checkpoint import ShardPlan, TensorEntry, read_header, write_shard

TENSORS = {
    "naïve.weight": torch.arange(6000, dtype=torch.int16).reshape(60, 100),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.5),
}
NAMES = {torch.int16: "I16", torch.float32: "F32"}
PLAN = ShardPlan.of(
    "model.safetensors", [(n, NAMES[t.dtype], tuple(t.shape)) for n, t in TENSORS.items()], {"format": "pt"}
)


def value(entry: TensorEntry) -> memoryview:
    return memoryview(TENSORS[entry.name].numpy().tobytes())


def test_shard_as_planned_is_read_by_safetensors_and_by_us(tmp_path: Path) -> None:
    written: list[str] = []
    write_shard(PLAN, tmp_path, value, after=lambda entry: written.append(entry.name))
    path = tmp_path / "model.safetensors"
    loaded = load_file(path)
    assert set(loaded) == set(TENSORS)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())
    with safe_open(path, "pt") as peer:
        assert peer.metadata() == {"format": "pt"}
    header = read_header(path)
    assert dict(header.entries) == {entry.name: entry for entry in PLAN.entries}
    assert (header.file_nbytes, header.data_start_nbytes) == (PLAN.file_nbytes, 4096)
    assert written == list(TENSORS)


def test_shard_of_no_tensor_is_legal(tmp_path: Path) -> None:
    write_shard(ShardPlan.of("none.safetensors", []), tmp_path, value)
    assert load_file(tmp_path / "none.safetensors") == {}


@pytest.mark.parametrize("ordinal", range(3))
def test_shard_whose_kth_value_fails_leaves_nothing(tmp_path: Path, ordinal: int) -> None:
    def failing(entry: TensorEntry) -> memoryview:
        if entry == PLAN.entries[ordinal]:
            raise KeyboardInterrupt
        return value(entry)

    with pytest.raises(KeyboardInterrupt):
        write_shard(PLAN, tmp_path, failing)
    assert list(tmp_path.iterdir()) == []


def test_shard_value_of_another_size_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'naïve\.weight' .* got 3 bytes, 12000 are planned"):
        write_shard(PLAN, tmp_path, lambda _: memoryview(b"abc"))
    assert list(tmp_path.iterdir()) == []
