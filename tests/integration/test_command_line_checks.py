"""inspect, verify and doctor: what they find, in text and JSON, and the codes that they end with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from strideweave.tools.cli import app
from support.models import Family


def run(*words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, list(words))
    return ended.exit_code, ended.output


def run_json(*words: str) -> tuple[int, dict[str, Any]]:
    code, text = run(*words, "--json")
    return code, json.loads(text[text.index("{") :])


@pytest.fixture
def folder(mixtral: Family, tmp_path: Path) -> Path:
    return shutil.copytree(mixtral.path, tmp_path / "model")


def test_inspect_counts_what_headers_say(family: Family) -> None:
    code, found = run_json("inspect", str(family.path))
    nbytes = sum(t.nbytes for shard in family.path.glob("*.safetensors") for t in load_file(shard).values())
    assert code == 0
    assert (found["layers"], found["experts"], found["tile_nbytes"]) == (3, family.experts, family.tile_nbytes)
    assert found["nbytes"] == found["dtypes"]["BF16"] == nbytes
    assert found["dense_nbytes"] == nbytes - 3 * family.experts * family.tile_nbytes
    assert "3 layers x" in run("inspect", str(family.path))[1]


def test_inspect_of_a_single_file_says_why_there_are_no_experts(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3)}, tmp_path / "one.safetensors")
    code, found = run_json("inspect", str(tmp_path / "one.safetensors"))
    assert (code, found["tensors"], found["experts"]) == (0, 1, None)
    assert "no config.json" in found["refusal"]


def test_verify_writes_a_manifest_and_finds_one_changed_bit(folder: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "sums.json"
    code, found = run_json("verify", str(folder), "--manifest", str(manifest))
    assert (code, found["is_good"], found["compared"]) == (0, True, False)
    assert len(json.loads(manifest.read_text())) == found["tensors"]
    code, found = run_json("verify", str(folder), "--manifest", str(manifest))
    assert (code, found["compared"], found["differing"]) == (0, True, [])
    shard = sorted(folder.glob("*.safetensors"))[0]
    blob = np.fromfile(shard, np.uint8)
    blob[-1] ^= 1
    blob.tofile(shard)
    code, found = run_json("verify", str(folder), "--manifest", str(manifest))
    assert code == 1
    assert len(found["differing"]) == 1
    assert "DIFFERENT: 1 tensors" in run("verify", str(folder), "--manifest", str(manifest))[1].replace("\n", " ")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_verify_names_values_that_are_not_finite(folder: Path, value: float) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[[0, -1]] = value
    save_file(tensors, shard, metadata={"format": "pt"})
    code, found = run_json("verify", str(folder))
    assert (code, found["not_finite"]) == (1, {name: 2})


def test_verify_refuses_a_cut_shard_and_a_strange_manifest(folder: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange.json"
    strange.write_text("[1]")
    code, text = run("verify", str(folder), "--manifest", str(strange))
    assert code == 1
    assert "cannot compare" in text
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-10])
    code, text = run("verify", str(folder))
    assert code == 1
    assert shard.name in text.replace("\n", "")


def test_doctor_says_what_the_machine_has_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = run_json("doctor")
    assert code == 0
    assert found["versions"]["torch"].startswith("2.13")
    assert found["read_nbytes_per_s"] > 1e6
    assert found["available_nbytes"] > 0
    assert not list(Path(found["cache_directory"]).glob("**/doctor-*"))
    assert "huge pages" in run("doctor")[1]
