"""The commands as a user calls them, on a tiny model with a real tokenizer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from strideweave.io import watching
from strideweave.tools.cli import app
from support.models import Family

WORDS = ["<unk>", "<s>", "</s>", "why", "is", "the", "sky", "blue"]


@pytest.fixture
def checkpoint(mixtral: Family, tmp_path: Path) -> Path:
    path = Path(shutil.copytree(mixtral.path, tmp_path / "model"))
    vocabulary = {word: k for k, word in enumerate(WORDS)} | {f"w{k}": k for k in range(len(WORDS), 128)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(path)
    return path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "160", "NO_COLOR": "1"})


def test_plan_prints_the_numbers_of_the_headers(checkpoint: Path, mixtral: Family) -> None:
    shown = json.loads(call("plan", str(checkpoint), "--budget", "100KiB", "--json").output)
    assert shown["tile_nbytes"] == mixtral.tile_nbytes
    assert shown["tiles_that_fit"] == 100 * 1024 // mixtral.tile_nbytes
    assert shown["expert_nbytes"] == 3 * 8 * mixtral.tile_nbytes
    assert shown["nbytes_per_token"] == 3 * 2 * mixtral.tile_nbytes
    text = call("plan", str(checkpoint), "--budget", "100KiB").output
    assert "3 layers x 8, top 2" in text
    assert "36.0 KiB" in text


def test_plan_refusal_is_one_message_and_code_1(checkpoint: Path, tmp_path: Path) -> None:
    refused = call("plan", str(checkpoint), "--budget", "1KB")
    assert refused.exit_code == 1
    assert "one expert is" in refused.output
    assert "Traceback" not in refused.output
    assert call("plan", str(tmp_path / "nowhere")).exit_code == 1
    assert call("plan", str(checkpoint), "--budget", "much").exit_code == 1
    assert call("plan").exit_code == 2


def test_run_answers_verifies_and_says_what_it_cost(checkpoint: Path, mixtral: Family) -> None:
    budget = str(6 * mixtral.tile_nbytes)
    done = call(
        "run",
        str(checkpoint),
        "--budget",
        budget,
        "--prompt",
        "why is the sky blue",
        "--max-new-tokens",
        "9",
        "--verify",
        "--json",
    )
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["verified_bit_equal"] is True
    assert 1 <= shown["new_tokens"] <= 9
    assert shown["text"]
    # Tiles that were read ahead are found too, so that no policy that only answers requests is a bound.
    assert 0 <= shown["hit_rate"] <= 1
    assert 0 < shown["optimal_hit_rate"] <= 1
    assert shown["resident_nbytes"] <= int(budget)
    assert shown["bytes_read"] >= shown["misses"] * mixtral.tile_nbytes
    assert shown["bytes_read"] % mixtral.tile_nbytes == 0
    assert shown["peak_rss_nbytes"] > 0


def test_run_as_text_streams_the_answer_and_draws_the_residency(checkpoint: Path, mixtral: Family) -> None:
    done = call("run", str(checkpoint), "--prompt", "why is the sky blue", "--max-new-tokens", "6")
    assert done.exit_code == 0, done.output
    for fact in ("tokens/s", "Belady", "peak RSS", "read per token"):
        assert fact in done.output
    picture = done.output[done.output.index("in memory, · on disk") :].splitlines()[1:4]
    assert sum(line.count("█") for line in picture) == 6, "a quarter of 24 experts is resident"


def test_run_that_differs_from_the_stock_model_fails(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strideweave.tools.generate._same_as_stock", lambda *a: False)
    done = call("run", str(checkpoint), "--prompt", "why", "--max-new-tokens", "2", "--verify")
    assert done.exit_code == 1
    assert "DIFFERENT" in done.output


def test_demo_uses_the_checkpoint_that_is_there(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strideweave.tools.upcycle.default_demo_path", lambda: checkpoint)
    done = call("demo", "--prompt", "why is the sky blue", "--max-new-tokens", "3", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["tiles_that_fit"] == 6
    assert shown["budget_nbytes"] * 4 == 24 * shown["tile_nbytes"]


def test_trace_writes_a_timeline_and_a_page_and_counts_layers(
    checkpoint: Path, mixtral: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    question = ["--prompt", "why is the sky blue", "--max-new-tokens", "8", "--budget", str(7 * mixtral.tile_nbytes)]
    done = call("trace", str(checkpoint), *question, "--out", "a.json", "--html", "a.html", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert [row["group"] for row in shown["layers"]] == ["layer 0", "layer 1", "layer 2"]
    for name in ("hits", "misses", "bytes_read"):
        assert sum(row[name] for row in shown["layers"]) == shown[name] > 0
    assert sum(row["stall_s"] for row in shown["layers"]) == pytest.approx(shown["stall_s"], abs=0.1)
    assert shown["hit_rate_over_optimal"] == pytest.approx(shown["hit_rate"] / shown["optimal_hit_rate"])
    assert shown["hit_rate_over_optimal"] > 0
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == shown["events"]
    assert sum(e["args"].get("nbytes", 0) for e in events if e.get("cat") == "read") == shown["bytes_read"]
    assert sum(e.get("cat") == "compute" for e in events) == shown["hits"] + shown["misses"]
    layers = [e for e in events if e["name"].startswith("operation experts of layer ")]
    assert len(layers) == 3 * shown["new_tokens"]
    inside = sum(e["dur"] for e in events if e.get("cat") in ("compute", "wait"))
    assert inside <= sum(e["dur"] for e in layers) <= shown["traced_s"] * 1e6
    most = max(e["args"]["nbytes"] for e in events if e["ph"] == "C" and "experts" in e["name"])
    assert most == 7 * mixtral.tile_nbytes
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    told = call("trace", str(checkpoint), *question).output
    assert "wrote trace.json" in told
    assert re.search(r"\d\.\d% of the best possible", told)
    again = call("run", str(checkpoint), *question, "--json")
    assert json.loads(again.stdout)["text"] == shown["text"], "looking changes nothing"


def test_trace_refuses_places_before_it_runs_and_leaves_nothing_when_interrupted(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    refused = call("trace", str(checkpoint), "--out", "nowhere/a.json")
    assert refused.exit_code == 1
    assert "there is no folder" in " ".join(refused.output.split())
    refused = call("trace", str(checkpoint), "--out", "a", "--html", "a")
    assert refused.exit_code == 1
    assert "they are two files" in refused.output

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("strideweave.tools.generate._generate", interrupt)
    stopped = call("trace", str(checkpoint), "--max-new-tokens", "4")
    assert stopped.exit_code == 130
    assert "nothing is left half-done" in stopped.output
    assert set(tmp_path.iterdir()) == before
    assert watching.watchers == []


def test_run_without_a_tokenizer_says_which_files_are_missing(mixtral: Family) -> None:
    refused = call("run", str(mixtral.path), "--prompt", "why")
    assert refused.exit_code == 1
    assert "tokenizer.json" in refused.output
    assert "Traceback" not in refused.output


def test_version_is_the_packages() -> None:
    import strideweave

    assert call("--version").output.strip() == f"strideweave {strideweave.__version__}"


def test_gc_removes_nothing_that_lives(owned_cache: Path) -> None:
    (owned_cache / "kept").write_text("x")
    shown = json.loads(call("gc", "--json").output)
    assert shown == {"removed": [], "nbytes": 0, "dry_run": False}
    assert (owned_cache / "kept").exists()


def test_module_prints_the_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strideweave"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert "torch  2.13" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo_from_nothing_is_bit_equal_to_the_stock_model(owned_cache: Path) -> None:
    """The whole main job on real input: build, answer, verify."""
    pytest.importorskip("gguf", reason="the demo model is a GGUF file")
    done = call("demo", "--prompt", "What is the capital of France?", "--max-new-tokens", "24", "--verify", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout[done.stdout.index("{") :])
    assert "Paris" in shown["text"]
    assert shown["verified_bit_equal"] is True
    assert shown["tiles_that_fit"] == 60
