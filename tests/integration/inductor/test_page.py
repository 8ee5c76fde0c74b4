"""The page of a report: what it says, that it needs nothing else, and how it looks in a real browser."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from strideweave.inductor import explain
from strideweave.inductor.page_style import STYLE
from strideweave.inductor.report import OperandRow, OpRow, Report, mib
from strideweave.inductor.spans.plans import SpanAnalysis
from strideweave.spyre import config
from support.chromium import Browser, find_chromium
from support.html_page import Page, contrast

NASTY = """<script>alert(1)</script>&amp;"'><img src=http://example.invalid/x onerror=alert(2)>"""


def meta(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float16, device="meta")


def head(**rules: Any) -> Report:
    with config.patch({"ignore_span_overflow_hints": False, **rules}):
        return explain(F.linear, meta(1, 4096), meta(49159, 4096), plan_only=True)


def nasty() -> Report:
    long = "x" * 300
    operand = OperandRow(NASTY, True, NASTY, (4096,) * 12, (NASTY,), 3 * 2**28, None, False, True)
    known = OperandRow(long, False, "float16", (64, 64), ("c0",), 2**31, 2**20, True, False)
    spans = SpanAnalysis(NASTY, rejected=[(NASTY, NASTY), (long, long)], note=NASTY)
    row = OpRow(
        NASTY, NASTY, NASTY, NASTY, {"c0": 4}, {"c0": 64 * 10**12}, {"c0": 2}, (16,) * 7, tuple(range(7)),
        (operand, known), spans,
    )  # fmt: skip
    return Report([row], {NASTY: NASTY, long: long}, [NASTY * 40])


def test_page_tells_what_the_report_knows() -> None:
    report = head()
    page = Page(report.to_html("LM head"))
    assert len(page.all("article")) == len(report.rows) == 4
    for row in report.rows:
        assert row.op in page.words
        for operand in row.operands:
            window = f"{mib(operand.window_whole_nbytes)} → {mib(operand.window_nbytes)}"
            assert window in page.words
        assert row.spans is not None
        for candidate in row.spans.candidates:
            assert candidate.source in page.words
        for split, reason in row.spans.rejected:
            assert split in page.words
            assert reason in page.words
    assert "Tiles: dim 0 by 2 (tiles of 24640, the last one shorter), dim 1 by 2" in page.words
    assert "384.1 MiB, 1.5 times the limit" in page.words
    assert "c0=24640, c1=2048" in page.words
    assert page.words.count("13 rejected splits") == 1, "a plan is told once, however often its tiles are emitted"


def test_loops_are_boxes_in_boxes() -> None:
    report = head()
    text = report.to_html()
    overview = text[text.index('id="loops"') : text.index('id="operations"')]
    boxes = [(m[1] or "end", m[2]) for m in re.finditer(r'<li class="(loop|step)">|(</li>)', overview)]
    depth, told = 0, []
    for kind, _ in boxes:
        if kind == "step":
            told.append(depth)
        depth += -1 if kind == "end" else 1
    assert depth == 0
    assert told == [len(row.loops) for row in report.rows] == [2, 1, 1, 0]
    # The first copy and the first product share a loop: one box has both.
    assert overview.count('<li class="loop">') == len({k for row in report.rows for k in row.loop_ids}) == 3
    cards = text[text.index('id="operations"') :]
    assert cards.count('<li class="loop">') == sum(len(row.loops) for row in report.rows)


def test_bars_end_at_their_share_of_the_limit_and_overflow_is_marked() -> None:
    with config.patch({"ignore_span_overflow_hints": False, "sencores": 1}):
        (row,) = (report := explain(torch.relu, meta(98000, 4096), plan_only=True)).rows
    page = Page(report.to_html())
    whole, tiled = row.operands[0].window_whole_nbytes, row.operands[0].window_nbytes
    assert whole is not None
    assert tiled is not None
    (limit,) = {float(a["x1"].rstrip("%")) for a in page.all("line", "limit")}
    drawn = {
        kind: [float(a["width"].rstrip("%")) for a in page.all("rect", kind) if a["width"] != "100%"]
        for kind in ("before", "after", "over")
    }
    assert drawn["before"] == [limit, limit]
    assert drawn["over"][0] / limit == pytest.approx(whole / 2**28 - 1, rel=1e-3)
    assert drawn["after"][0] / limit == pytest.approx(tiled / 2**28, rel=1e-3)
    labels = [a["aria-label"] for a in page.all("svg") if a.get("role") == "img"]
    assert labels[0] == (
        "Window of arg0_1: 765.6 MiB, 2.99 times the limit before, 191.4 MiB, 74.8 % of the limit after."
    )
    assert "log scale" not in page.words
    with config.patch({"max_span_bytes": 2**28}):
        small = Page(explain(torch.relu, meta(4, 64), plan_only=True).to_html())
    assert "log scale" in small.words
    bars = [float(a["width"].rstrip("%")) for a in small.all("rect", "after") if a["width"] != "100%"]
    assert all(1 < bar < 50 for bar in bars), "windows a millionth of the limit are still seen"


def test_texts_are_escaped_everywhere() -> None:
    page = Page(nasty().to_html(NASTY))
    assert not page.all("script")
    assert not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.words.count("<script>alert(1)</script>&amp;\"'>") > 10


@pytest.mark.parametrize("make", [head, nasty, Report], ids=["head", "nasty", "empty"])
def test_page_needs_nothing_else(make: Any) -> None:
    text = make().to_html()
    page = Page(text)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
    assert "url(" not in text
    assert "@import" not in text
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("make", [head, nasty, Report], ids=["head", "nasty", "empty"])
def test_page_can_be_read_without_seeing_it(make: Any) -> None:
    page = Page(make().to_html())
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = {a["href"].removeprefix("#") for a in page.all("a")}
    labels = {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert links | labels <= set(ids)
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    for picture in page.all("svg"):
        assert picture.get("aria-hidden") == "true" or (picture["role"] == "img" and picture["aria-label"])
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.all("html") == [{"lang": "en"}]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colors_stand_out(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    for ink in ("ink", "soft", "link"):
        for under in ("page", "card", "loop", "track"):
            assert contrast(colors[ink], colors[under]) >= 4.5, (ink, under)
    assert contrast(colors["good"], colors["good-page"]) >= 4.5
    assert contrast(colors["good"], colors["loop"]) >= 4.5
    assert contrast(colors["bad"], colors["bad-page"]) >= 4.5
    for bar in ("after", "over", "limit"):
        assert contrast(colors[bar], colors["track"]) >= 3, bar


@pytest.fixture(scope="module")
def chromium() -> str:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium or Chrome on this machine")
    return program


@pytest.fixture(params=["head", "nasty", "softmax"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "softmax":
        with config.patch({"ignore_span_overflow_hints": False}):
            report = explain(lambda x: torch.softmax(x, -1), meta(200704, 4096), plan_only=True)
    else:
        report = {"head": head, "nasty": nasty}[request.param]()
    path = tmp_path / "page.html"
    path.write_text(report.to_html("A page"), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1200, False)])
def test_page_in_a_browser_is_as_wide_as_the_screen_and_silent(
    chromium: str, address: str, width: int, dark: bool, tmp_path: Path
) -> None:
    with Browser(chromium, address, width=width, dark=dark) as browser:
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        beyond = """Array.from(document.querySelectorAll('main *')).filter(e => {
            const box = e.getBoundingClientRect();
            return box.width && (box.right > innerWidth + 1 || box.left < -1);
        }).map(e => e.tagName + ' ' + e.className.toString())"""
        assert browser.evaluate(beyond) == []
        assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(15, 21, 27)") is dark
        assert browser.evaluate("document.querySelectorAll('rect.after').length") >= 2
        bar = "(e => e.getBoundingClientRect().width)(document.querySelector('.windows rect.after'))"
        assert browser.evaluate(bar) > 0
        assert browser.console == []
        assert browser.requests == [address], "nothing but the page itself is asked for"
        picture = tmp_path / "page.png"
        browser.screenshot(picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
