"""The benchmark of compiling for the card: it runs what it names, right, and reports it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_benchmark_of_compiling_reports_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("spyre_compile")
    assert benchmark.main(["--quick", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(report["ratios"]) == 11
    assert all(row["ratio"] > 0 and row["limit"] for row in report["ratios"])
    assert [row["operations"] for row in report["overhead"]] == [1, 10, 50]
    assert [row["operations"] for row in report["compiling"]] == [1, 4]
    assert all(0 < row["ours_ms"] < row["ms"] for row in report["compiling"])
