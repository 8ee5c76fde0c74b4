"""`save_pretrained` of a model whose experts are tiles: bit for bit, in little memory, whole or not there."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from strideweave.checkpoint import Checkpoint
from strideweave.integrations.transformers import from_pretrained, saving
from strideweave.integrations.transformers.memory import peak_rss_nbytes, reset_peak_rss, rss_nbytes
from strideweave.io import StorageError, positioned
from support.models import Family, eager, mixtral_config, save

MIB = 2**20


def opened(family: Family, **kwargs: Any) -> Any:
    return from_pretrained(family.path, budget=family.tile_nbytes, **kwargs)


def tensors_of(folder: Path) -> dict[str, bytes]:
    checkpoint = Checkpoint.open(folder)
    found = {}
    for name, located in checkpoint.tensors.items():
        out = bytearray(located.entry.nbytes)
        checkpoint.read(name, memoryview(out))
        found[name] = bytes(out)
    return found


def test_every_tensor_has_its_name_and_its_bytes(family: Family, tmp_path: Path) -> None:
    model = opened(family)
    model.save_pretrained(tmp_path / "one", max_shard_size="5GB")
    assert (tmp_path / "one" / "model.safetensors").exists()
    assert tensors_of(tmp_path / "one") == tensors_of(family.path)
    before = model.strideweave.statistics()
    model.save_pretrained(tmp_path / "many", max_shard_size=20_000)
    assert tensors_of(tmp_path / "many") == tensors_of(family.path)
    read = model.strideweave.statistics().since(before).bytes_read
    assert read <= family.layers * family.experts * family.tile_nbytes, "each expert is read once"
    model.strideweave.close()


def test_model_of_another_dtype_is_saved_in_it(family: Family, tmp_path: Path) -> None:
    model = opened(family, dtype=torch.float32)
    model.save_pretrained(tmp_path / "wide")
    stock = eager(tmp_path / "wide")
    assert stock.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(stock(family.ids).logits, model(family.ids).logits)
    model.strideweave.close()


def test_copied_model_saves_itself(mixtral: Family, tmp_path: Path) -> None:
    model = opened(mixtral)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    other.save_pretrained(tmp_path / "copy")
    with torch.no_grad():
        assert not eager(tmp_path / "copy").lm_head.weight.any()
    model.strideweave.close()


@pytest.mark.parametrize("nth", range(1, 40, 3))
def test_failing_write_leaves_nothing_and_the_next_try_works(
    mixtral: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    model = opened(mixtral)
    calls = 0

    def failing(descriptor: int, views: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.ENOSPC, "full")
        return os.pwritev(descriptor, views, offset)

    with monkeypatch.context() as patch:
        patch.setattr(positioned, "_pwritev", failing)
        with pytest.raises(StorageError, match="No space left"):
            model.save_pretrained(tmp_path / "saved", max_shard_size=50_000)
    assert not list(tmp_path.iterdir())
    assert model.strideweave.statistics().pinned_tiles == 0
    if nth == 1:
        model.save_pretrained(tmp_path / "saved")
        assert tensors_of(tmp_path / "saved") == tensors_of(mixtral.path)
    model.strideweave.close()


def test_what_cannot_be_followed_is_refused_before_anything_is_written(
    mixtral: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(mixtral)
    with pytest.raises(ValueError, match="there is something in it"):
        model.save_pretrained(mixtral.path)
    with pytest.raises(TypeError, match="push_to_hub=True"):
        model.save_pretrained(tmp_path / "saved", push_to_hub=True)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(StorageError, match="has 1000 B left"):
        model.save_pretrained(tmp_path / "saved")
    assert not list(tmp_path.iterdir())
    model.strideweave.close()


def test_state_without_experts_is_told(mixtral: Family) -> None:
    model = opened(mixtral)
    with pytest.warns(UserWarning, match=r"no experts: 24 of them, .* Use save_pretrained"):
        state = model.state_dict()
    assert "lm_head.weight" in state
    model.strideweave.close()


def test_memory_of_saving_is_a_few_tiles(tmp_path: Path) -> None:
    from transformers import MixtralForCausalLM

    torch.manual_seed(0)
    config = mixtral_config(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_local_experts=16)
    path = save(MixtralForCausalLM(config), tmp_path / "large", shard="50MB")
    model = from_pretrained(path, budget="3MiB")
    assert model.strideweave.plan.expert_nbytes > 180 * MIB
    model.save_pretrained(tmp_path / "first")
    base = rss_nbytes()
    if not reset_peak_rss():
        pytest.skip("the system does not let the peak of resident memory be measured anew")
    model.save_pretrained(tmp_path / "second")
    assert peak_rss_nbytes() - base < 30 * MIB
    model.strideweave.close()
