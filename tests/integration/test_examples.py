"""The examples do what they say, with the numbers that they claim."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_train_mlp_reaches_the_accuracy_of_torch_with_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    example = loaded(ROOT / "examples" / "train_mlp.py")
    assert example.main(["--epochs", "12", "--lr", "0.003", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ours, theirs = told["strideweave"], told["torch"]
    assert theirs["accuracy"] > 0.9
    assert abs(ours["accuracy"] - theirs["accuracy"]) <= 0.005
    assert ours["final_loss"] == pytest.approx(theirs["final_loss"], rel=1e-3)


def test_operations_benchmark_compares_every_operation_with_torch(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = loaded(ROOT / "benchmarks" / "operations.py")
    assert benchmark.main(["--quick", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["operation"] for row in told["overhead"]} >= {"add", "reduce_sum, all", "matmul", "mul, sum, backward"}
    # Not the claims, which need a quiet machine, but what no machine is too busy for.
    assert all(row["overhead_us"] < 1000 for row in told["overhead"])
    assert all(0.2 < row["ratio"] < 20 for row in told["ratios"])
