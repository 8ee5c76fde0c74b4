"""`strideweave bench io`: it reads and writes what it says, right, and leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from strideweave.bench.disk import Access, RawFile
from strideweave.bench.io import reads, run
from strideweave.bench.io.data import BEGIN_NBYTES, Size, write_data
from strideweave.tools.cli import app

SMALL = Size(32 * 2**20, 16 * 2**20, 32 * 2**20, rounds=2, blocks_nbytes=(2**18, 2**22), tiles_nbytes=(2**18, 2**22))


def test_bench_io_counts_every_byte_and_all_contestants_read_the_same(owned_cache: Path) -> None:
    report = run.measure(of=SMALL)
    assert report.is_equal
    found = report.to_json()
    assert [row["tile_nbytes"] for row in found["reads"]] == [2**18, 2**22]
    for row in found["reads"]:
        assert row["read_nbytes"] == 2 * SMALL.pass_nbytes
        assert len(row["rates"]) == len(row["raw_rates"]) == 2
    assert list(found["reads"][0]["peers"]) == ["memmap", "from_file"]
    assert list(found["reads"][1]["peers"]) == ["memmap", "from_file", "get_tensor"]
    assert len(found["raw"]) == 2 * 2 * 2
    assert found["writes"]["written_nbytes"] == 2 * found["writes"]["nbytes"]
    assert [target["name"] for target in found["targets"]] == [
        "tiles of 4 MiB: promote_async / raw",
        "reads beside a Python loop / alone",
    ]
    assert not list(owned_cache.rglob("bench-*"))


def test_bench_io_notices_a_wrong_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = iter(range(100))
    right = reads.checksum
    monkeypatch.setattr(reads, "checksum", lambda blocks: right(blocks) + next(sums))
    report = run.measure(of=SMALL, rounds=1)
    assert not report.is_equal
    assert "NOT EQUAL" in str(report)


def test_bench_io_prints_json_markdown_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "QUICK", SMALL)

    def printed(*options: str) -> str:
        result = CliRunner().invoke(app, ["bench", "io", "--quick", "--rounds", "1", *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert json.loads(printed("--json"))["benchmark"] == "io"
    assert "| tile | promote_async | raw |" in printed("--markdown")
    text = printed()
    for words in ("read-ahead", "in huge pages", "random, 4 threads", "flush of dirty tiles", "checksums: equal"):
        assert words in text


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_raw_reads_meet_every_block_once(tmp_path: Path, order: str) -> None:
    path = tmp_path / "data"
    write_data(path, 8 * 2**20)
    access = Access(2**20, 3, order)  # type: ignore[arg-type]
    places = access.places(BEGIN_NBYTES, 8 * 2**20, seed=1)
    assert sorted(places) == [BEGIN_NBYTES + k * 2**20 for k in range(8)]
    assert (places == sorted(places)) == (order == "sequential")
    with RawFile(path) as raw:
        assert raw.read(places, access).nbytes == 8 * 2**20


def test_raw_writes_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(np.ones(2**20, np.uint8).tobytes())
    access = Access(2**16, 2, "sequential")
    with RawFile(path, writes=True) as raw:
        assert raw.write(access.places(0, 2**19, seed=0), access).nbytes == 2**19
    found = np.fromfile(path, np.uint8)
    blocks = found[: 2**19].reshape(8, 2**16)
    assert (blocks == blocks[1]).all()  # the same memory each time
    assert len(set(blocks[1])) == 256
    assert (found[2**19 :] == 1).all()
