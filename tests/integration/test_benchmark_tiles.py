"""The benchmark of tiles: it measures what it names, and what it promises holds, by far, in its quick mode."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import strideweave as sw

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tiles")


def test_benchmark_of_tiles_holds_its_limits_by_far(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A shared machine may be several times slower for a moment; what grows with bytes or tiles grows far more."""
    assert benchmark.main(["--quick", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)  # nothing else is on standard output
    assert report["benchmark"] == "tiles"
    sizes = [str(nbytes) for nbytes in benchmark.QUICK.return_tile_nbytes]
    for row in report["returns"]:
        assert list(row["us"]) == sizes
        assert row["ratio"] < 20, row  # of bytes it is 4096
    for row in report["footprints"]:
        assert row["first_ms"] < 20, row  # a list of the slots of one tile takes more than 200
        assert row["cached_us"] < 50, row
    for row in report["overhead"]:
        assert row["ratio"] < 5, row  # with quadratic work it is 8
        if "one at a time" not in row["request"]:
            assert max(row["us"].values()) < 10 * benchmark.OVERHEAD_LIMIT_US, row
    compared = [row for row in report["copies"] if row["peer"]]
    assert len(compared) == 4
    for row in compared:
        assert row["ratio"] < 10, row


def test_benchmark_of_tiles_prints_tables_and_helps(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = benchmark.Size((2**10,), 1, 12, (4, 8), 1, (8,), 1)
    monkeypatch.setattr(benchmark, "QUICK", small)
    assert benchmark.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    for words in ("project, from disk", "nested within tiles", "evict, dirty", "8 of 12 tiles of 0 KiB"):
        assert words in printed
    with pytest.raises(SystemExit):
        benchmark.main(["--help"])
    assert "    python benchmarks/tiles.py --quick" in capsys.readouterr().out


def test_benchmark_layouts_keep_to_the_tiles_and_differ(benchmark: ModuleType) -> None:
    layouts = benchmark.footprint_layouts()
    carrier = sw.TiledEvictable(
        sw.CPU(0, dtype=sw.DType.Bool),
        sw.CPU(0, dtype=sw.DType.Bool),
        (128, 1, 1),
        (1, 1536, 2048),
        layout=layouts["the carrier's own"],
    )
    assert len(set(layouts.values())) == 3
    for layout in layouts.values():
        assert [mode.size for mode in layout] == [128, 1536, 2048]
        carrier._geometry.require_compatible(0, layout)
    carrier.release()


@pytest.mark.parametrize("where", ["slots", "memory", "disk"])
def test_benchmark_tiles_begin_where_it_says(benchmark: ModuleType, where: str) -> None:
    with benchmark.in_tiles(torch.arange(8.0), 4, where=where) as tensor:
        carrier = tensor.carrier
        assert len(carrier.primary_tiles) == (4 if where == "slots" else 0)
        assert type(carrier.secondary) is (sw.FileBacked if where == "disk" else sw.CPU)
        picked = carrier.project(tensor, sw.TileSelection([[3, 0]])).wait()
        assert sw.to_list(picked) == [6.0, 7.0, 0.0, 1.0]
