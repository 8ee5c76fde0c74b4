"""Every family that is supported: bit-equal to eager at budgets of one expert, two and all, and complete or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from strideweave.checkpoint import MissingTensors
from strideweave.integrations.transformers import _compat, from_pretrained, plan
from support.models import SHARED, eager, generate, save

SMALL: dict[str, Any] = {**SHARED, "hidden_size": 32, "num_hidden_layers": 2, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"intermediate_size": 24, "num_local_experts": 4},
    "qwen2_moe": {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 6},
    "qwen3_moe": {"moe_intermediate_size": 24, "num_experts": 6, "head_dim": 8},
    "deepseek_v3": {
        **LATENT, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "intermediate_size": 40, "num_hidden_layers": 3,
    },
    "gpt_oss": {"intermediate_size": 24, "num_local_experts": 4, "head_dim": 8, "sliding_window": 8},
    "olmoe": {"intermediate_size": 24, "num_experts": 6, "num_key_value_heads": 4},
    "granitemoe": {"intermediate_size": 24, "num_local_experts": 4},
    "glm4_moe": {
        "moe_intermediate_size": 24, "n_routed_experts": 6, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "intermediate_size": 40, "num_hidden_layers": 3, "head_dim": 8,
    },
    "phimoe": {"intermediate_size": 24, "num_local_experts": 4},
    "minimax_m2": {"intermediate_size": 24, "num_local_experts": 4, "head_dim": 8, "rotary_dim": 8},
}  # fmt: skip
IDS = torch.randint(3, 128, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def made(name: str) -> Path:
        torch.manual_seed(3)
        config = AutoConfig.for_model(name, **{**SMALL, **FAMILIES[name]})
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if key.endswith("bias"):
                    parameter.normal_(std=0.3)
        return save(model, tmp_path_factory.mktemp(name), shard="20KB")

    return made


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("budget", ["one", "two", "all"])
def test_logits_and_generation_are_bit_equal_to_eager(
    checkpoint: Callable[[str], Path], name: str, budget: str
) -> None:
    path = checkpoint(name)
    numbers = plan(path)
    tiles = {"one": 1, "two": 2, "all": numbers.layers * numbers.experts}[budget]
    stock = eager(path)
    model = from_pretrained(path, budget=tiles * numbers.tile_nbytes)
    try:
        assert type(model) is type(stock)
        with torch.no_grad():
            before = model.strideweave.statistics()
            assert torch.equal(model(IDS).logits, stock(IDS).logits)
            read = model.strideweave.statistics().since(before)
            assert read.bytes_read == read.misses * numbers.tile_nbytes, "a tile is read once a step"
            assert read.misses <= numbers.layers * numbers.experts
            assert torch.equal(generate(model, IDS, 6), generate(stock, IDS, 6))
    finally:
        model.strideweave.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_model_is_the_same_in_stock_transformers_and_here(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    path = checkpoint(name)
    stock = eager(path)
    model = from_pretrained(path, budget=plan(path).tile_nbytes)
    with torch.no_grad():
        parameter = next(model.parameters())
        parameter.mul_(1.5)
        next(stock.parameters()).mul_(1.5)
        model.save_pretrained(tmp_path / "saved", max_shard_size="15KB")
        wanted = stock(IDS).logits
        again = eager(tmp_path / "saved")
        assert torch.equal(again(IDS).logits, wanted)
        ours = from_pretrained(tmp_path / "saved", budget="1MB")
        assert torch.equal(ours(IDS).logits, wanted)
    assert set(load_index(path)["weight_map"]) == set(load_index(tmp_path / "saved")["weight_map"])
    assert "strideweave" not in (tmp_path / "saved" / "config.json").read_text()
    for opened in (model, ours):
        opened.strideweave.close()


def load_index(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "model.safetensors.index.json").read_text())
    return found


def test_every_family_that_is_told_to_be_supported_is_tried() -> None:
    assert set(FAMILIES) == set(_compat.FAMILIES)


@pytest.mark.parametrize("name", ["gpt_oss", "granitemoe", "phimoe", "deepseek_v3"])
def test_missing_expert_is_refused_before_anything_is_loaded(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint(name), tmp_path / name)
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    lost = next(key for key in sorted(index["weight_map"]) if "expert" in key or "input_linear" in key)
    shard = folder / index["weight_map"].pop(lost)
    kept = {key: value for key, value in load_file(shard).items() if key != lost}
    if kept:
        save_file(kept, shard, metadata={"format": "pt"})
    else:
        shard.unlink()
    index_file.write_text(json.dumps(index))
    with pytest.raises(MissingTensors, match="expert parameters have no source"):
        from_pretrained(folder)
