"""Tiny real models, saved once a session as sharded safetensors by transformers itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

SHARED = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


@dataclass(frozen=True)
class Family:
    """A checkpoint of a family, and what the stock model answers."""

    path: Path
    layers: int
    experts: int
    tile_nbytes: int
    ids: torch.Tensor
    logits: torch.Tensor
    generated: torch.Tensor


def mixtral_config(**changes: Any) -> MixtralConfig:
    return MixtralConfig(**{**SHARED, "intermediate_size": 96, "num_local_experts": 8, **changes})


def qwen3_config(**changes: Any) -> Qwen3MoeConfig:
    own = {
        "intermediate_size": 96,
        "moe_intermediate_size": 48,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "head_dim": 16,
    }
    return Qwen3MoeConfig(**{**SHARED, **own, **changes})


def save(model: Any, path: Path, *, seed: int = 0, shard: str = "300KB") -> Path:
    torch.manual_seed(seed)
    model.to(torch.bfloat16).save_pretrained(path, max_shard_size=shard)
    return path


def eager(path: Path, **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, experts_implementation="eager", **{"dtype": "auto", **kwargs})


def generate(model: Any, ids: torch.Tensor, n: int = 12, **kwargs: Any) -> Any:
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, do_sample=False, **kwargs)


def _family(path: Path, config: Any, cls: Any, experts: int, tile_nbytes: int) -> Family:
    torch.manual_seed(0)
    save(cls(config), path)
    model = eager(path)
    ids = torch.randint(3, 128, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return Family(path, 3, experts, tile_nbytes, ids, model(ids).logits, generate(model, ids))


@pytest.fixture(scope="session")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Family:
    path = tmp_path_factory.mktemp("mixtral")
    return _family(path, mixtral_config(), MixtralForCausalLM, 8, 3 * 64 * 96 * 2)


@pytest.fixture(scope="session")
def qwen3_moe(tmp_path_factory: pytest.TempPathFactory) -> Family:
    path = tmp_path_factory.mktemp("qwen3_moe")
    return _family(path, qwen3_config(), Qwen3MoeForCausalLM, 16, 3 * 64 * 48 * 2)


@pytest.fixture(params=["mixtral", "qwen3_moe"])
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.getfixturevalue(request.param)
    return chosen
