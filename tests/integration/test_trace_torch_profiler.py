"""What a user's own torch.profiler trace shows of tiles: computations and waits, and on request what lanes do."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

import strideweave as sw
from strideweave import Tensor, TiledEvictable
from strideweave.integrations.transformers import from_pretrained
from support.models import Family
from support.tiled import experts, tiles


def work(carrier: TiledEvictable, tensor: Tensor) -> torch.Tensor:
    with carrier.stream(tiles(*range(12))) as stream:
        for _ in stream:
            pass
    return sw.reduce_sum(tensor).torch()


def profiled(path: Path, *, all_threads: bool, also: AbstractContextManager[Any]) -> tuple[list[Any], TiledEvictable]:
    """Our events of an exported trace, of work inside another block, and the carrier that was used."""
    carrier, tensor, dense, _ = experts(12, budget_tiles=3)
    config = _ExperimentalConfig(profile_all_threads=True) if all_threads else None
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as p, also:
        total = work(carrier, tensor)
    assert total.item() == dense.sum()
    p.export_chrome_trace(str(path))
    work(carrier, tensor)  # heard by nobody
    found = json.loads(path.read_text())["traceEvents"]
    return [e for e in found if e["name"].startswith("strideweave.")], carrier


def test_computations_and_waits_of_the_caller_are_ranges(tmp_path: Path) -> None:
    shown, _ = profiled(tmp_path / "trace.json", all_threads=False, also=nullcontext())
    computed = [e["name"] for e in shown if e["name"].startswith("strideweave.compute")]
    assert sorted(computed) == sorted(f"strideweave.compute tile ({k}, 0, 0)" for k in range(12))
    assert any(e["name"].startswith("strideweave.wait tile (") for e in shown)
    assert {e["ph"] for e in shown} == {"X"}
    assert len({e["tid"] for e in shown}) == 1


def test_reads_on_lanes_are_ranges_where_torch_profiles_all_threads(tmp_path: Path) -> None:
    t = sw.trace()
    shown, carrier = profiled(tmp_path / "trace.json", all_threads=True, also=t)
    reads = [e for e in shown if e["name"].startswith("strideweave.read tile (")]
    ours = [event for event in t.events() if event.kind == "read"]
    assert sorted(e["name"] for e in reads) == sorted(f"strideweave.{event.title}" for event in ours)
    assert len(reads) == t.rows()[0].bytes_read // carrier.tile_nbytes >= 12
    assert {e["tid"] for e in reads} == {event.thread_id for event in ours}, "threads have the same numbers"


def test_experts_of_a_model_are_ranges(mixtral: Family, tmp_path: Path) -> None:
    model = from_pretrained(mixtral.path, 4 * mixtral.tile_nbytes)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as p, model.strideweave.record_routes() as routes:
        model(mixtral.ids)
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    shown = [e["name"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    wanted = [f"strideweave.compute layer {layer} expert {expert}" for route in routes for layer, expert in route]
    assert sorted(name for name in shown if name.startswith("strideweave.compute")) == sorted(wanted)
    model.strideweave.close()


def test_nothing_is_a_range_while_the_profiler_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a range was made")

    monkeypatch.setattr(torch.autograd.profiler, "record_function", refuse)
    carrier, tensor, _, _ = experts(12, budget_tiles=3)
    work(carrier, tensor)
    with sw.trace():
        work(carrier, tensor)
