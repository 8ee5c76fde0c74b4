"""The example of a third party's carrier: it keeps the contract, compresses, and serves as a secondary tier."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from strideweave import CPU, Carrier, DType, TiledEvictable, TileSelection
from strideweave.carriers.file_backed import read_all
from strideweave.dtype import StorageDType
from strideweave.testing import CarrierContract

pytest.importorskip("zstandard", reason="the example compresses with zstandard")


def _load() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "zstd_carrier.py"
    spec = importlib.util.spec_from_file_location("zstd_carrier", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = _load()


class TestZstdTiles(CarrierContract):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        carrier: Carrier = example.ZstdTiles(size, dtype=dtype, mutable=mutable)
        return carrier


def test_example_prints_its_ratio_and_what_came_back(capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    said = capsys.readouterr().out
    assert "two tiles came back equal: True" in said
    assert "in memory: 0 tiles" in said
    ratio = re.search(r"ratio of ([\d.]+)", said)
    assert ratio is not None
    assert float(ratio[1]) > 2


def test_example_as_secondary_tier_gives_back_what_was_evicted_and_written() -> None:
    dense = torch.arange(6.0 * 5000).sin()
    disk = example.ZstdTiles(0, dtype=DType.Float32)
    tiled = TiledEvictable(CPU.wrap(dense.clone()), disk, (6,), (5000,))
    every = TileSelection([range(6)])
    tiled.evict(every)
    tiled[7] = dense[7] = -3.0
    tiled.evict(every)
    assert disk.size() == 30000
    assert torch.equal(read_all(disk), dense)
    tiled.promote(every)
    assert [tiled[k] for k in (0, 7, 4999, 5000, 29999)] == dense[[0, 7, 4999, 5000, 29999]].tolist()
    tiled.release()


def test_example_that_is_rewritten_keeps_its_file_short() -> None:
    carrier = example.ZstdTiles(3 * example.TILE_SLOTS, dtype=DType.UInt8)
    source = torch.Generator().manual_seed(0)
    for _ in range(60):
        noise = torch.randint(0, 256, (carrier.size(),), dtype=torch.uint8, generator=source)
        carrier._write_runs([(0, noise)])
        assert carrier.tiles.file_nbytes <= 2 * carrier.tiles.live_nbytes + example.SLACK_NBYTES
    assert torch.equal(read_all(carrier), noise)
    carrier.tiles.compact()
    assert carrier.tiles.file_nbytes == carrier.tiles.live_nbytes
    assert torch.equal(read_all(carrier), noise)
    assert os.fstat(carrier.tiles._descriptor).st_size == carrier.tiles.file_nbytes
    carrier.release()


def test_example_whose_disk_is_full_keeps_the_tile_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    carrier = example.ZstdTiles(10000, dtype=DType.Int16)
    values = torch.arange(10000).to(torch.int16)
    carrier._write_runs([(0, values)])
    real, calls = os.pwrite, 0

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[: len(data) // 2], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        carrier[5] = 77
    monkeypatch.undo()
    assert (carrier[5], carrier.version) == (5, 0)
    assert torch.equal(read_all(carrier), values)
    carrier[5] = 77
    assert (carrier[5], carrier.version) == (77, 1)
    carrier.release()
