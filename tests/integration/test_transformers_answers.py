"""A model whose experts are on disk answers as the stock model does, to the last bit."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MixtralForCausalLM

from strideweave import TileSet
from strideweave.integrations.transformers import from_pretrained
from support.models import Family, eager, generate, mixtral_config, save

BUDGETS = {"one expert": 1, "two experts": 2, "everything": 10_000}


@pytest.mark.parametrize("tiles", BUDGETS.values(), ids=BUDGETS.keys())
def test_logits_at_any_budget_are_bit_equal_to_eager(family: Family, tiles: int) -> None:
    model = from_pretrained(family.path, budget=tiles * family.tile_nbytes)
    with torch.no_grad():
        assert torch.equal(model(family.ids).logits, family.logits)
    statistics = model.strideweave.statistics()
    assert statistics.resident_tiles <= min(tiles, family.layers * family.experts)
    assert statistics.pinned_tiles == statistics.in_flight_tiles == 0
    model.strideweave.close()


@pytest.mark.parametrize("first", [1, 2, 3])
def test_experts_that_are_there_first_do_not_change_the_sum(family: Family, first: int) -> None:
    """Some experts of every layer are in memory, so they are computed before smaller ones that must be read."""
    model = from_pretrained(family.path, budget=10_000 * family.tile_nbytes)
    resident = [(layer, expert, 0) for layer in range(3) for expert in range(first, family.experts, first + 1)]
    model.strideweave.carrier.promote(TileSet(resident))
    with model.strideweave.record_routes() as routes, torch.no_grad():
        assert torch.equal(model(family.ids).logits, family.logits)
    assert any(list(route) != sorted(route) for route in routes), "experts were used out of order"
    there = {(layer, expert) for layer, expert, _ in resident}
    for route in routes:
        assert list(route) == sorted(route, key=lambda tile: (tile not in there, tile))
    model.strideweave.close()


@pytest.mark.parametrize("tiles", BUDGETS.values(), ids=BUDGETS.keys())
def test_generation_with_a_cache_is_bit_equal_to_eager(family: Family, tiles: int) -> None:
    model = from_pretrained(family.path, budget=tiles * family.tile_nbytes)
    assert torch.equal(generate(model, family.ids), family.generated)
    model.strideweave.close()


def test_model_is_of_its_normal_class_and_keeps_its_settings(mixtral: Family) -> None:
    model = from_pretrained(mixtral.path, budget="1MiB")
    stock = eager(mixtral.path)
    assert type(model) is type(stock)
    assert model.name_or_path == stock.name_or_path
    assert model.generation_config.to_diff_dict() == stock.generation_config.to_diff_dict()
    assert not model.training
    assert model.strideweave.layers == tuple(f"model.layers.{k}.mlp.experts" for k in range(3))
    model.strideweave.close()


def test_another_dtype_is_the_stock_models_in_that_dtype(family: Family) -> None:
    model = from_pretrained(family.path, budget=2 * family.tile_nbytes, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(model(family.ids).logits, eager(family.path, dtype=torch.float32)(family.ids).logits)
    model.strideweave.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_experts_stored_in_other_dtypes_are_bit_equal(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    MixtralForCausalLM(mixtral_config()).to(dtype).save_pretrained(tmp_path)
    ids = torch.randint(3, 128, (2, 11))
    model = from_pretrained(tmp_path, budget="300KB")
    with torch.no_grad():
        got = model(ids).logits
        assert torch.equal(got, eager(tmp_path)(ids).logits)
    assert got.dtype == dtype
    model.strideweave.close()


@pytest.mark.parametrize(("hidden", "inner"), [(36, 20), (52, 31), (64, 33)])
def test_odd_sizes_are_bit_equal_too(tmp_path: Path, hidden: int, inner: int) -> None:
    config = mixtral_config(hidden_size=hidden, intermediate_size=inner, num_attention_heads=2, num_key_value_heads=1)
    torch.manual_seed(3)
    save(MixtralForCausalLM(config), tmp_path)
    ids = torch.randint(3, 128, (3, 29))
    model = from_pretrained(tmp_path, budget=3 * 3 * hidden * inner * 2)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, eager(tmp_path)(ids).logits)
    model.strideweave.close()


def test_fused_checkpoint_is_read_in_place(mixtral: Family, tmp_path: Path) -> None:
    import safetensors.torch

    stock = eager(mixtral.path)
    safetensors.torch.save_file(
        {k: v.contiguous() for k, v in stock.state_dict().items()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    stock.config.save_pretrained(tmp_path)
    model = from_pretrained(tmp_path, budget=2 * mixtral.tile_nbytes)
    with torch.no_grad():
        assert torch.equal(model(mixtral.ids).logits, mixtral.logits)
    model.strideweave.close()


class _Allocations(TorchDispatchMode):
    """Every tensor with storage that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self.largest = max(self.largest, tensor.numel())
        return out


def test_load_never_makes_a_fused_expert_tensor(mixtral: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    # One thread, so that the monitor (which is per thread) sees the whole load.
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    fused = 8 * 64 * 96  # down_proj, the smaller of the two fused parameters
    with _Allocations() as seen:
        model = from_pretrained(mixtral.path, budget=mixtral.tile_nbytes)
    assert 0 < seen.largest < fused
    assert not [name for name, _ in model.named_parameters() if "experts" in name]
    model.strideweave.close()
    with _Allocations() as stock:
        eager(mixtral.path)
    assert stock.largest >= fused, "the monitor sees what the stock loader makes"


def test_two_threads_share_one_expert_of_memory(mixtral: Family) -> None:
    model = from_pretrained(mixtral.path, budget=mixtral.tile_nbytes)
    answers: list[torch.Tensor] = []

    def ask() -> None:
        with torch.no_grad():
            answers.append(model(mixtral.ids).logits)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 2
    assert all(torch.equal(answer, mixtral.logits) for answer in answers)
    model.strideweave.close()


def test_copied_model_shares_the_experts(mixtral: Family) -> None:
    model = from_pretrained(mixtral.path, budget=mixtral.tile_nbytes)
    store, model.strideweave = model.strideweave, None
    twin = copy.deepcopy(model)
    with torch.no_grad():
        assert torch.equal(twin(mixtral.ids).logits, mixtral.logits)
    store.close()


def test_routes_are_recorded_in_the_order_of_use(mixtral: Family) -> None:
    model = from_pretrained(mixtral.path, budget=mixtral.tile_nbytes)
    with model.strideweave.record_routes() as routes, torch.no_grad():
        model(mixtral.ids[:1, :1])
    assert [layer for route in routes for layer in {layer for layer, _ in route}] == [0, 1, 2]
    assert all(len(set(route)) == 2 for route in routes)
    with torch.no_grad():
        model(mixtral.ids[:1, :1])
    assert len(routes) == 3, "nothing is recorded after the block"
    model.strideweave.close()
