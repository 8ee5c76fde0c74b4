"""Reports of benchmarks: verdicts follow from values, and every form tells the same."""

from __future__ import annotations

import pytest

from strideweave.bench.report import Report, Table, Target, busy_note


@pytest.mark.parametrize(
    ("value", "bounds", "is_met"),
    [
        (0.9, {"at_least": 0.9}, True),
        (0.89, {"at_least": 0.9}, False),
        (1.15, {"at_most": 1.15}, True),
        (1.16, {"at_most": 1.15}, False),
        (None, {"at_least": 1.0}, None),
    ],
)
def test_target_is_met_within_its_bounds(value: float | None, bounds: dict[str, float], is_met: bool | None) -> None:
    assert Target("rate", value, **bounds).is_met is is_met


def test_target_says_when_others_computed() -> None:
    assert Target("rate", 1.0, at_least=1.0, others_cores=0.31).cells()[-1] == "met, others used 0.3 cores"
    assert Target("rate", 1.0, at_least=1.0, others_cores=0.3).cells()[-1] == "met"
    assert busy_note(0.3) == []
    assert "1.5 cores" in busy_note(1.5)[0]


def test_report_tells_the_same_as_text_markdown_and_json() -> None:
    table = Table("GB/s", [["tile", "ours"], ["4 MiB", "2.50"]])
    target = Target("ours / raw", 0.5, at_least=0.9)
    report = Report(["a head"], [table], [target], {"benchmark": "x"}, ["a note"], is_equal=False)
    assert str(report).splitlines() == [
        "a head",
        "",
        "GB/s",
        "tile   ours",
        "4 MiB  2.50",
        "",
        "targets, as ratios within this run",
        "target      measured  must be",
        "ours / raw       0.5   >= 0.9  missed",
        "",
        "a note",
    ]
    assert "| 4 MiB | 2.50 |" in report.to_markdown()
    assert "| ours / raw | 0.5 | >= 0.9 | missed |" in report.to_markdown()
    assert report.to_json() == {
        "benchmark": "x",
        "targets": [
            {
                "name": "ours / raw",
                "value": 0.5,
                "at_least": 0.9,
                "at_most": None,
                "is_met": False,
                "others_cores": 0.0,
            }
        ],
        "is_equal": False,
    }
