"""What does not run on the card is said, once for each; what each pass did can be read; compiled graphs are kept."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from strideweave.inductor import explain, logs, report
from support.compiled import check, compiled


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    told: set[str] = set()
    monkeypatch.setattr(report, "_told", told)
    return told


def test_operation_without_lowering_is_told_once_with_why(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x + 3 * torch.eye(4, device=x.device)) * 2

    with caplog.at_level(logging.WARNING, logger="strideweave.inductor"):
        check(function, torch.randn(4, 4), atol=1e-4, rtol=1e-4)
        torch._dynamo.reset()
        check(function, torch.randn(4, 4), atol=1e-4, rtol=1e-4)
    said = [r.getMessage() for r in caplog.records if "linalg_inv" in r.getMessage()]
    assert len(said) == 1
    assert "no lowering" in said[0]


def test_explain_names_what_runs_elsewhere_and_what_does_not() -> None:
    found = explain(lambda x: torch.cumprod(x * 2, 0) + 1, torch.randn(5, 40))
    assert list(found.fallbacks) == ["aten.cumprod.default"]
    assert {row.op for row in found.rows} == {"mul", "add"}
    assert "aten.cumprod.default runs elsewhere" in str(found)


def test_other_devices_in_a_graph_run_there(told: set[str]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + 1).cpu() * y.cpu().exp()

    x, y = torch.randn(3, 40), torch.randn(3, 40)
    found = compiled(function)(x.to("spyre"), y)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, function(x, y))
    assert any("exp" in name for name in told)


def test_a_pass_that_is_asked_for_tells_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="strideweave.inductor.insert_restickify"):
        check(lambda x, y: x + y.t(), torch.randn(70, 70), torch.randn(70, 70))
    (record,) = [r for r in caplog.records if r.name.endswith("insert_restickify")]
    assert "insert_restickify took" in record.getMessage()
    assert "[3, 70, 32]" in record.getMessage()
    assert not [r for r in caplog.records if r.name.endswith("coarse_tile")]


def test_environment_names_passes() -> None:
    script = (
        "import torch, strideweave.inductor\n"
        "torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(3, device='spyre'))\n"
    )
    environment = {**os.environ, "STRIDEWEAVE_LOGS": "coarse_tile", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert "[strideweave.inductor.coarse_tile] coarse_tile took" in found.stderr
    assert "insert_restickify took" not in found.stderr
    assert logs.ROOT == "strideweave.inductor"


CACHED = """
import sys
import torch
import strideweave.inductor
from strideweave.inductor import spyre_hint
from strideweave.spyre import config
from torch._dynamo.utils import counters

def plain(x):
    return (x * 2).sum(0)

def hinted(x):
    with spyre_hint(named_dims=["r", "c"]), spyre_hint(num_tiles_per_dim={"r": 2}):
        y = x * 2
    return y.sum(0)

with config.patch(max_span_bytes=int(sys.argv[2]), sencores=int(sys.argv[3])):
    x = torch.arange(12.0).reshape(4, 3).to("spyre")
    found = torch.compile(plain if sys.argv[1] == "plain" else hinted, dynamic=False)(x)
print(found.cpu().tolist(), counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def test_compiled_graphs_are_kept_under_hints_and_switches(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        environment.pop("TORCHINDUCTOR_FORCE_DISABLE_CACHES", None)
        command = [sys.executable, "-W", "ignore", "-c", CACHED, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout.strip()

    values = "[36.0, 44.0, 52.0]"
    assert run("plain", "268435456", "32") == f"{values} 0 1"
    assert run("plain", "268435456", "32") == f"{values} 1 0", "a second process finds it"
    assert run("hinted", "268435456", "32") == f"{values} 0 1", "a hint is not seen in the code of the graph"
    assert run("plain", "1048576", "4") == f"{values} 0 1", "another limit, and other cores"


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_other_shapes_and_numbers_are_compiled_anew(dynamic: bool | None) -> None:
    function = torch.compile(lambda x, k: (x[:k] * k).sum(0), dynamic=dynamic)
    for rows, k in ((3, 2), (5, 3), (9, 4), (9, 2)):
        x = torch.randn(rows, 40)
        torch.testing.assert_close(function(x.to("spyre"), k).cpu(), (x[:k] * k).sum(0))


def test_other_shapes_in_host_memory_are_compiled_anew() -> None:
    function = torch.compile(lambda x: x * 2, dynamic=True, backend="spyre")
    for rows in (2, 3, 4):
        x = torch.randn(rows, 40)
        torch.testing.assert_close(function(x), x * 2)
