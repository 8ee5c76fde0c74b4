"""The benchmark of the card's engine: it runs what it names, right, and reports it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("spyre_engine")


def test_benchmark_of_the_engine_compares_every_program_with_torch(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark.main(["--quick", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)  # nothing else is on standard output
    assert report["nbytes"] == 2**20
    names = {row["program"].rsplit(" ", 1)[0] for row in report["ratios"]}
    assert names == {
        "add", "row broadcast", "column broadcast", "exp", "chain of 5", "sum(-1)", "sum(0)", "transpose", "matmul 128",
    }  # fmt: skip
    assert all(row["ratio"] > 0 and row["ratio_into"] > 0 for row in report["ratios"])
    assert len(report["overhead"]) == 8


def test_benchmark_of_the_engine_notices_a_wrong_result(benchmark: ModuleType) -> None:
    case = benchmark.matmul_case(64, benchmark.torch.float32)
    case.expected = lambda: case.theirs() + 1
    with pytest.raises(AssertionError, match="not close"):
        case.require_right(case.ours())
