"""`strideweave bench stream`: every contestant computes the same, and what torch computes; nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from strideweave.bench.stream import run
from strideweave.bench.stream.contestants import ENTRIES, numpy_memmap, raw, reader, strideweave
from strideweave.bench.stream.work import OPERATIONS, Operation, Work, checksum, mapped, write_operands
from strideweave.bench.workers import Run, Workers
from strideweave.tools.cli import app

SMALL = Work(rows=1024, columns=1024, tile_rows=64, narrow=8)  # 4 MiB each


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_operands(SMALL, tmp_path)
    return tmp_path


def expected(folder: Path, operation: Operation) -> torch.Tensor:
    a, b = (torch.from_numpy(np.array(mapped(SMALL, folder / name))) for name in ("a.bin", "b.bin"))
    if operation == "add_relu":
        return torch.relu(a + b)
    if operation == "matmul":
        return a @ torch.from_numpy(SMALL.right())
    return a.sum(int(operation[-1]))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("contestant", [strideweave, numpy_memmap])
def test_contestant_computes_what_torch_does(folder: Path, contestant: Any, operation: Operation) -> None:
    with contestant(SMALL, folder, operation) as compute:
        found = compute()
    if isinstance(found, Path):
        found = mapped(SMALL, found)
    assert np.array_equal(np.asarray(found), expected(folder, operation).numpy())


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("contestant", [raw, reader])
def test_contestant_without_arithmetic_moves_as_many_bytes(folder: Path, contestant: Any, operation: Operation) -> None:
    with contestant(SMALL, folder, operation) as compute:
        compute()
    if operation == "add_relu":
        assert (folder / "result.bin").stat().st_size == SMALL.nbytes


def test_bench_stream_of_all_contestants_is_equal_within_its_budget_and_leaves_nothing(owned_cache: Path) -> None:
    report = run.measure(of=SMALL, rounds=1)
    assert report.is_equal, str(report)
    found = report.to_json()
    assert list(found["operations"]) == list(OPERATIONS)
    for operation, part in found["operations"].items():
        lines = part["contestants"]
        assert list(lines) == list(ENTRIES)
        took_part = [name for name, line in lines.items() if "skipped" not in line]
        assert {"raw", "ram", "reader", "strideweave", "memmap"} <= set(took_part)
        sums = {tuple(lines[name]["checksums"]) for name in took_part if ENTRIES[name].computes}
        assert len(sums) == 1, operation
        assert len(lines["strideweave"]["run_s"]) == 1
    budgets = [target for target in found["targets"] if "peak memory" in target["name"]]
    assert len(budgets) == 4
    assert all(target["is_met"] for target in budgets)
    assert not list(owned_cache.rglob("bench-*"))


def test_bench_stream_notices_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = Workers.run

    def run_wrong(self: Workers, function: str, **options: Any) -> Run:
        found = genuine(self, function, **options)
        if options["contestant"] == "memmap" and found.told is not None:
            found.told["checksum"] = "0" * 16
        return found

    monkeypatch.setattr(Workers, "run", run_wrong)
    report = run.measure(of=SMALL, rounds=1, operations=["sum0"], contestants=["strideweave", "memmap"])
    assert not report.is_equal
    assert "NOT EQUAL" in str(report)


def test_bench_stream_tells_a_contestant_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "write_operands", lambda work, folder: None)
    report = run.measure(of=SMALL, rounds=1, operations=["sum1"], contestants=["strideweave"])
    assert not report.is_equal
    assert "failed with exit status 1: FileNotFoundError" in str(report)


def test_bench_stream_prints_json_and_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Work, "quick", staticmethod(lambda: SMALL))
    options = ["bench", "stream", "--quick", "--operations", "sum1", "--contestants", "reader,strideweave"]
    shown = CliRunner().invoke(app, [*options, "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["operations"]["sum1"]["is_equal"]
    assert "| strideweave |" in CliRunner().invoke(app, [*options, "--markdown"]).stdout
    refused = CliRunner().invoke(app, ["bench", "stream", "--operations", "mean"])
    assert refused.exit_code == 1
    assert "the operations are sum0, sum1, matmul, add_relu" in refused.output


def test_checksum_sees_every_value_and_no_sign_of_zero() -> None:
    values = np.arange(6, dtype=np.float32)
    assert checksum([values]) == checksum([values[:2], values[2:]])
    assert checksum([values]) != checksum([values[::-1]])
    assert checksum([np.float32([0.0])]) == checksum([np.float32([-0.0])])
