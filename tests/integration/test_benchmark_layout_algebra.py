"""The benchmark of the layout algebra: it measures what it names, and extents cost nothing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strideweave.layout import Layout

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("layout_algebra")


def test_benchmark_of_the_layout_algebra_costs_the_same_at_every_size(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark.main(["--quick", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)  # nothing else is on standard output
    assert report["benchmark"] == "layout_algebra"
    assert report["sizes"] == [2**10, 2**20, 2**30, 2**40]
    for line in report["operations"].values():
        assert list(line["us"]) == [str(size) for size in report["sizes"]]
        assert line["ratio"] == max(line["us"].values()) / min(line["us"].values())
    assert report["largest_ratio"] < 5


def test_benchmark_operations_are_what_their_names_say(benchmark: ModuleType) -> None:
    for exponent, powers in benchmark.EXPONENTS.items():
        assert sum(powers) == exponent
        layout = Layout.row_major(*(2**k for k in powers))
        made = {name: operation() for name, operation in benchmark.operations(layout).items()}
        assert made["compose, modes in another order"] == layout.permute(5, 4, 3, 2, 1, 0)
        assert made["compose, one leaf split six times"][0].leaves() == layout.leaves()
        assert [m.size for m in made["compose, four tiles"]] == [2 ** (k - 1) for k in powers[:4]] + [
            2**k for k in powers[4:]
        ]
        assert made["divide by three modes"][0] == layout.permute(0, 2, 4, 1, 3, 5)[:3]
        zipped = made["zipped_divide by four tiles"]
        assert (zipped[0].leaves(), zipped[2:]) == (made["compose, four tiles"][:4].leaves(), layout[4:])


def test_benchmark_prints_a_table_helps_and_refuses_no_rounds(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = benchmark.show(benchmark.measure(1, 0.0)).splitlines()
    assert head.split()[-5:] == ["1e+03", "1e+06", "1e+09", "1e+12", "slowest/fastest"]
    assert len([row for row in rows if row.startswith(("compose", "divide", "zipped_divide"))]) == 5
    with pytest.raises(SystemExit):
        benchmark.main(["--help"])
    assert "    python benchmarks/layout_algebra.py --quick" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        benchmark.main(["--rounds", "0"])
    assert "--rounds is at least 1" in capsys.readouterr().err
