"""What cannot work is refused before a weight is used, with the facts; what is interrupted leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from strideweave.checkpoint import (
    CheckpointError,
    GarbledHeader,
    MissingShards,
    MissingTensors,
    TruncatedShard,
)
from strideweave.integrations.transformers import PlanRefused, UnsupportedModel, from_pretrained, plan
from strideweave.io import ChangedFileError
from support.models import Family, generate


@pytest.fixture
def folder(mixtral: Family, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mixtral.path, tmp_path / "model"))


@pytest.fixture(autouse=True)
def no_weight_is_read(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A refusal at opening comes before any tensor byte."""
    if "opening" in request.node.name:
        monkeypatch.setattr(
            "strideweave.checkpoint.Checkpoint.read",
            lambda *a, **k: pytest.fail("a weight was read before the refusal"),
        )


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def test_opening_truncated_shard_names_file_and_bytes(folder: Path) -> None:
    shard = shards(folder)[2]
    size = shard.stat().st_size
    os.truncate(shard, size - 100)
    with pytest.raises(TruncatedShard) as refusal:
        from_pretrained(folder)
    for fact in (shard.name, str(size), str(size - 100)):
        assert fact in str(refusal.value)


def test_opening_garbled_header_is_refused(folder: Path) -> None:
    with shards(folder)[0].open("r+b") as file:
        file.seek(9)
        file.write(b"\xff\xfe")
    with pytest.raises(GarbledHeader, match=shards(folder)[0].name):
        from_pretrained(folder)


def test_opening_missing_shard_is_named(folder: Path) -> None:
    gone = shards(folder)[1]
    gone.unlink()
    with pytest.raises(MissingShards, match=gone.name):
        from_pretrained(folder)


def test_opening_missing_expert_is_listed(folder: Path) -> None:
    """Seed of silent random weights: one expert's matrix is neither in the index nor in its shard."""
    import safetensors.torch

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    key = next(k for k in index["weight_map"] if "layers.1" in k and "experts.5.w2" in k)
    shard = folder / index["weight_map"].pop(key)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tensors = safetensors.torch.load_file(shard)
    del tensors[key]
    safetensors.torch.save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(MissingTensors, match=r"layers\.1\.mlp\.experts\.down_proj of expert 5"):
        from_pretrained(folder)


def test_missing_dense_tensor_is_refused(folder: Path) -> None:
    import safetensors.torch

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    key = "model.layers.0.self_attn.q_proj.weight"
    shard = folder / index["weight_map"].pop(key)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tensors = safetensors.torch.load_file(shard)
    del tensors[key]
    safetensors.torch.save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(MissingTensors, match="q_proj"):
        from_pretrained(folder)


def test_opening_budget_below_one_expert_says_the_minimum(mixtral: Family) -> None:
    with pytest.raises(PlanRefused, match=f"{mixtral.tile_nbytes} bytes or more"):
        from_pretrained(mixtral.path, budget=mixtral.tile_nbytes - 1)


def test_opening_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        from_pretrained(tmp_path)
    with pytest.raises(CheckpointError):
        from_pretrained(tmp_path / "nowhere")


def test_opening_another_family_lists_what_is_supported(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=32,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="mixtral, olmoe"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("argument", ["quantization_config", "experts_implementation", "state_dict"])
def test_opening_with_an_argument_that_contradicts_tiling_is_refused(mixtral: Family, argument: str) -> None:
    with pytest.raises(TypeError, match=argument):
        from_pretrained(mixtral.path, **{argument: object()})
    with pytest.raises(TypeError, match="device_map"):
        from_pretrained(mixtral.path, device_map="disk")


def test_opening_what_memory_cannot_hold_is_refused_with_numbers(
    mixtral: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    plan_module = importlib.import_module("strideweave.integrations.transformers.plan")
    numbers = plan(mixtral.path, budget="1MiB")
    monkeypatch.setattr(plan_module, "available_nbytes", lambda: numbers.dense_nbytes)
    with pytest.raises(PlanRefused, match="dense part"):
        from_pretrained(mixtral.path)
    monkeypatch.setattr(plan_module, "available_nbytes", lambda: numbers.peak_nbytes - 1)
    with pytest.raises(PlanRefused, match="Lower the budget"):
        from_pretrained(mixtral.path, budget="1MiB")
    monkeypatch.setattr(plan_module, "available_nbytes", lambda: numbers.peak_nbytes + 1)
    with pytest.warns(UserWarning, match="leaves less than 10%"):
        plan(mixtral.path, budget="1MiB")


def test_refused_load_leaves_the_family_as_it_was(folder: Path, mixtral: Family) -> None:
    from support.models import eager

    with pytest.raises(PlanRefused):
        from_pretrained(folder, budget=1)
    with torch.no_grad():
        assert torch.equal(eager(mixtral.path)(mixtral.ids).logits, mixtral.logits)


def test_file_that_changes_under_a_running_model_is_an_error_and_no_new_values(folder: Path, mixtral: Family) -> None:
    model = from_pretrained(folder, budget=mixtral.tile_nbytes)
    for shard in shards(folder):
        blob = bytearray(shard.read_bytes())
        blob[-64:] = bytes(64)
        shard.write_bytes(blob)
    with torch.no_grad(), pytest.raises(ChangedFileError, match="safetensors"):
        model(mixtral.ids)
    statistics = model.strideweave.statistics()
    assert statistics.in_flight_tiles == statistics.pinned_tiles == 0
    model.strideweave.close()


def test_closed_store_and_backward_are_refused(mixtral: Family) -> None:
    model = from_pretrained(mixtral.path, budget=mixtral.tile_nbytes)
    with pytest.raises(RuntimeError, match="forward only"):
        model(mixtral.ids).logits.float().sum().backward()
    model.strideweave.close()
    model.strideweave.close()
    with torch.no_grad(), pytest.raises(RuntimeError, match="released"):
        model(mixtral.ids)


def test_nothing_is_written_beside_the_checkpoint(folder: Path, mixtral: Family) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    model = from_pretrained(folder, budget=mixtral.tile_nbytes)
    generate(model, mixtral.ids, 3)
    model.strideweave.close()
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


def lanes() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("strideweave-lane")]


def test_interrupted_generation_leaves_no_pin_and_no_thread(mixtral: Family) -> None:
    model = from_pretrained(mixtral.path, budget=2 * mixtral.tile_nbytes)
    calls = 0

    class Impatient:
        def put(self, value: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyboardInterrupt

        def end(self) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        generate(model, mixtral.ids[:1], 20, streamer=Impatient())
    statistics = model.strideweave.statistics()
    assert statistics.pinned_tiles == 0
    assert torch.equal(generate(model, mixtral.ids), mixtral.generated), "the next attempt works"
    model.strideweave.close()
    deadline = time.monotonic() + 5
    while lanes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not lanes()


def test_ctrl_c_ends_a_run_of_the_command_with_130(folder: Path, tmp_path: Path) -> None:
    """The signal comes while the model is generating, in a process of its own."""
    script = textwrap.dedent(
        """
        import sys, threading, os, signal, time
        from strideweave.tools import generate
        from strideweave.tools.cli import app
        class Tokenizer:
            chat_template = None; pad_token_id = 2; eos_token_id = 2
            def __call__(self, text, return_tensors):
                import torch
                return {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
            def decode(self, ids, **kw): return " ".join(map(str, map(int, ids))) + " "
        generate.AutoTokenizer.from_pretrained = lambda path: Tokenizer()
        seen = 0
        def write(text):
            global seen
            seen += 1
            if seen == 3: os.kill(os.getpid(), signal.SIGINT)
        from strideweave.tools import cli
        cli._write = write
        app(["run", sys.argv[1], "--max-new-tokens", "400", "--prompt", "x"])
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "STRIDEWEAVE_CACHE_DIR": str(tmp_path / "cache"),
        },
    )
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr
