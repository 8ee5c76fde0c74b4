"""`explain`: rows with what the planner found, and plans of shapes that have no memory."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from strideweave.inductor import Unsupported, explain, name_tensor_dims, spyre_hint
from strideweave.inductor.report import Report
from strideweave.spyre import config

AUTOMATIC = {"ignore_span_overflow_hints": False}


def meta(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def told(report: Report) -> str:
    """All of a report that does not depend on how it was made."""
    return json.dumps(report.to_json(), sort_keys=True)


def test_plan_without_memory_is_that_of_a_run() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x, w), -1)

    x, w = torch.randn(4, 128), torch.randn(256, 128)
    with config.patch({**AUTOMATIC, "max_span_bytes": 16384}):
        real = explain(run, x, w)
        assert any(row.loops for row in real.rows)
        assert told(explain(run, x, w, plan_only=True)) == told(real)
        assert told(explain(run, x.to("spyre"), w.to("meta"), plan_only=True)) == told(real)


def test_plan_without_memory_keeps_names_strides_and_closures() -> None:
    layer = torch.nn.Linear(64, 32).to("spyre")

    def run(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"rows": 4}):
            return layer(x)

    x = name_tensor_dims(torch.randn(64, 8).T, ["rows", None])
    report = explain(run, x, plan_only=True)
    assert [row.loops for row in report.rows if row.op == "batchmatmul"] == [(4,)]
    assert (1, 64, 32) in [o.device_size for row in report.rows for o in row.operands if o.name == "primals_3"]
    assert told(explain(run, x)) == told(report)


def test_plan_without_memory_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from strideweave.inductor import runtime

    def fail(*_: object) -> None:
        raise AssertionError("a program was prepared")

    monkeypatch.setattr(runtime, "prepare", fail)
    with pytest.raises(AssertionError, match="a program was prepared"):
        explain(torch.relu, torch.zeros(4, 64))
    with config.patch(AUTOMATIC):
        report = explain(torch.relu, meta(2**20, 2**20), plan_only=True)
    assert report.rows[0].operands[0].window_whole_nbytes == 2**41


def test_values_cannot_be_asked_for_while_nothing_runs() -> None:
    def run(x: torch.Tensor) -> float:
        return float(torch.relu(x).sum().item())

    with pytest.raises(Unsupported, match=r"cannot plan run without running it: .*Leave plan_only out"):
        explain(run, torch.zeros(4), plan_only=True)
    assert explain(run, torch.zeros(4)).rows


def test_rows_carry_candidates_rejections_and_the_plan() -> None:
    # 3 columns of 1000 sticks of 128 bytes.
    with config.patch({**AUTOMATIC, "max_span_bytes": 32768, "sencores": 1}):
        report = explain(torch.add, meta(1000, 192), meta(1000, 192), plan_only=True)
    (row,) = report.rows
    assert row.spans is not None
    assert row.spans.plan is not None
    assert {c.source for c in row.spans.candidates} == {"output", "input:arg0_1", "input:arg1_1"}
    assert {c.chunking_info.per_core_span for c in row.spans.candidates} == {3 * 1000 * 128, 1000 * 128}
    levels = [(level.selected_host_dim, level.split_count) for level in row.spans.plan.levels]
    assert tuple(count for _, count in levels) == row.loops
    assert row.widest_nbytes is not None
    assert row.widest_nbytes <= 32768
    shown = report.to_json()["operations"][0]
    assert [(level["selected_host_dim"], level["split_count"]) for level in shown["spans"]["plan"]["levels"]] == levels
    assert all(set(entry) == {"split", "reason"} for entry in shown["spans"]["rejected"])
    assert {"split": "dim 1 by 192", "reason": "host dim 1 of 192 in 192 tiles cuts sticks of 64 elements"} in shown[
        "spans"
    ]["rejected"]
    assert shown["spans"]["candidates"][0]["chunking_info"]["per_core_span"] > 32768
    assert shown["notes"] == row.spans.lines()
    assert all(line in str(report) for line in row.spans.lines())


def test_rows_say_which_loops_they_share_and_what_they_are_for() -> None:
    with config.patch({**AUTOMATIC, "max_span_bytes": 65536, "sencores": 1}):
        report = explain(lambda x: torch.softmax(x, -1), meta(64, 2048, dtype=torch.float32), plan_only=True)
    loops = {row.loop_ids for row in report.rows if row.loops}
    assert len(loops) > 1, "a softmax has two sums, and each ends a loop"
    for row in report.rows:
        assert len(row.loops) == len(row.loop_ids)
        assert row.name.startswith(row.buffer)
        assert row.is_result == (row.name == row.buffer)
    parts = [row for row in report.rows if not row.is_result]
    assert {row.name.removeprefix(row.buffer) for row in parts} <= {"_tile", "_part", "_total"}
    by_buffer = {row.buffer: row.spans for row in report.rows if row.is_result}
    assert all(row.spans is by_buffer[row.buffer] for row in parts)
    planned = [line for line in str(report).splitlines() if "planned" in line]
    assert len(planned) == sum(spans is not None and spans.plan is not None for spans in by_buffer.values())


def test_limit_is_that_under_which_the_report_was_made() -> None:
    with config.patch({"max_span_bytes": 8192, "sencores": 3}):
        report = explain(torch.relu, torch.zeros(4, 64))
    assert (report.to_json()["limit_nbytes"], report.to_json()["cores"]) == (8192, 3)
    assert "at most 8192 B, 3 cores" in str(report)
    assert "8192 B" in report.to_html()
