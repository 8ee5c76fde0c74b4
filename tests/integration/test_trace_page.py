"""The page of a trace: what it draws against what was recorded, that it needs nothing else, and a real browser."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import strideweave as sw
from strideweave.io.watching import Subject
from strideweave.tracing.page import page_of
from strideweave.tracing.page_style import STYLE
from strideweave.tracing.recording import Change, Recorder, TraceEvent
from strideweave.tracing.residency import Window, coverage, strips_of
from strideweave.tracing.trace import Recorded
from support.chromium import Browser, find_chromium
from support.html_page import Page, contrast
from support.tiled import experts, tiles

NASTY = """<script>alert(1)</script>&amp;"'><img src=http://example.invalid/x onerror=alert(2)>"""


def recorded() -> Recorded:
    """Real work on twelve tiles, of which five fit."""
    carrier, _, _, _ = experts(12, budget_tiles=5)
    draw = random.Random(0)
    with sw.trace() as t:
        for _ in range(30):
            with carrier.stream(tiles(*draw.sample(range(12), 3))) as stream:
                for _ in stream:
                    pass
    return t.recorded()


def nasty() -> Recorded:
    """Names that break pages, a grid of many layers, and events that were let go."""
    subject = Subject(NASTY, (3, 400), tile_nbytes=2**20, slots=9, snapshot=lambda register: register(()))
    subject.groups, subject.noun = [NASTY, "x" * 300, "layer 2"], NASTY
    recorder = Recorder(50)
    recorder.see(subject, (0, 4))
    for k in range(100):
        recorder.asked(subject, k, is_hit=k % 3 == 0)
        recorder.changed(subject, 10 + k, is_resident=True)
    wait = TraceEvent("wait", NASTY, subject, 7, 0, 10, 10**9, 1, True)
    other = TraceEvent("wait", NASTY * 3, None, -1, 0, 20, 10**10, 1, True)
    events, changes, lives, _ = recorder.frozen()
    return Recorded(0, 2 * 10**10, [*events, wait, other], changes, lives, {1: NASTY}, 12345, recorder.dropped_changes)


def empty() -> Recorded:
    return Recorded(0, 0)


MAKERS = pytest.mark.parametrize("make", [recorded, nasty, empty], ids=["recorded", "nasty", "empty"])


def test_coverage_is_what_a_sum_over_fine_steps_gives() -> None:
    draw = np.random.default_rng(0)
    begins = draw.uniform(-2, 9, 40)
    lengths = draw.uniform(0.01, 4, 40)
    amounts = draw.uniform(0, 5, 40)
    fine = (np.arange(8 * 2000) + 0.5) / 2000
    inside = (fine >= begins[:, None]) & (fine < (begins + lengths)[:, None])
    wanted = (inside * (amounts / lengths)[:, None]).sum(0).reshape(8, 2000).mean(1)
    found = coverage(begins.tolist(), (begins + lengths).tolist(), amounts.tolist(), 8)
    assert np.allclose(found, wanted, atol=0.02)
    assert coverage([], [], [], 3).tolist() == [0, 0, 0]


def test_strips_hold_each_tile_as_long_as_it_was_resident() -> None:
    subject = Subject("w", (2, 3), tile_nbytes=1, slots=4, snapshot=lambda register: register(()))
    recorder = Recorder(100)
    recorder.see(subject, (1,))
    (life,) = recorder.frozen()[2]
    # Of 100 ns: tile 1, at (1, 0), until 40; tile 4, at (0, 2), from 50 to 75 and again from 90 on.
    changes = [
        Change(40, subject, 1, False),
        Change(50, subject, 4, True),
        Change(75, subject, 4, False),
        Change(90, subject, 4, True),
    ]
    wait = TraceEvent("wait", "", subject, 4, 0, 80, 90, 1, True)
    read = TraceEvent("read", "", subject, 3, 0, 20, 30, 1, True)
    late = strips_of(Recorded(0, 100, [], changes, [life], None, 0, 9), life, Window(0, 100, 10))[1]
    assert not late.shares.any(), "where it was before the first change that is kept is not known"
    first, second = strips_of(Recorded(0, 100, [read, wait], changes, [life]), life, Window(0, 100, 10))
    assert (first.label, second.label) == ("tiles (0, *)", "tiles (1, *)")
    assert np.allclose(first.shares, [[0] * 10, [0] * 10, [0] * 5 + [1, 1, 0.5, 0, 1]])
    assert np.allclose(second.shares, [[1] * 4 + [0] * 6, [0] * 10, [0] * 10])
    assert (first.arrivals, first.departures) == ([(2, 5.0), (2, 9.0)], [(2, 7.5)])
    assert (second.arrivals, second.departures) == ([], [(0, 4.0)])
    assert first.waits == [(2, 8.0, 9.0)]
    assert (first.reads, second.reads, second.waits) == ([], [(1, 2.0, 3.0)], [])


def test_many_tiles_share_rows_and_the_time_in_memory_is_kept() -> None:
    subject = Subject("w", (500, 7), tile_nbytes=1, slots=3500, snapshot=lambda register: register(()))
    recorder = Recorder(100)
    recorder.see(subject, range(0, 3500, 2))
    (life,) = recorder.frozen()[2]
    (strip,) = strips_of(Recorded(0, 100, [], [], [life]), life, Window(0, 100, 10))
    rows = strip.shares.shape[0]
    assert rows <= 1200
    inside = [min(3, 3500 - 3 * row) for row in range(rows)]
    assert np.allclose((strip.shares.mean(1) * inside).sum(), 1750)


def test_page_tells_what_was_recorded() -> None:
    found = recorded()
    page = Page(page_of(found, "A trace"))
    (life,) = (life for life in found.lives if life.tallies)
    hits = sum(tally.hits for tally in life.tallies.values())
    assert f"{hits / 90:.1%}" in page.words
    assert life.optimal_hits is not None
    assert f"{hits / life.optimal_hits:.1%}" in page.words
    arrivals = [change for change in found.changes if change.is_resident]
    (drawn,) = (a["aria-label"] for a in page.all("svg") if "arrivals" in a.get("aria-label", ""))
    assert f"tiles: {hits}/90 hits" in drawn
    assert f"{len(arrivals)} arrivals, {len(found.changes) - len(arrivals)} departures" in drawn
    marks = [a["d"] for a in page.all("path", "load") if a["d"].endswith("h1v.9h-1z")]
    assert 0.5 * len(arrivals) <= marks[0].count("M") <= len(arrivals)
    assert "strideweave-lane-0" in page.words


def test_carriers_are_told_apart() -> None:
    (one, _, _, _), (two, _, _, _) = experts(4, budget_tiles=2), experts(3, budget_tiles=2)
    with sw.trace() as t:
        for carrier in (one, two):
            with carrier.stream(tiles(0, 1, 2)) as stream:
                for _ in stream:
                    pass
    page = Page(page_of(t.recorded(), "Two"))
    assert len(page.all("article")) == 2
    for carrier in (one, two):
        assert f"{carrier._name()}: tiles" in page.words


def test_what_was_let_go_is_said_and_odd_names_are_only_names() -> None:
    page = Page(page_of(nasty(), NASTY))
    assert f"{12345 + 50} earlier events were let go" in page.words
    assert "not known" in page.words
    assert not page.all("script")
    assert not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.words.count("<script>alert(1)</script>&amp;\"'>") > 5


@MAKERS
def test_page_needs_nothing_else_and_can_be_read_without_seeing_it(make: Callable[[], Recorded]) -> None:
    text = page_of(make(), "A trace")
    page = Page(text)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
    assert "url(" not in text
    assert "@import" not in text
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a} <= set(ids)
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    for picture in page.all("svg"):
        assert picture.get("aria-hidden") == "true" or (picture["role"] == "img" and picture["aria-label"])
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.all("html") == [{"lang": "en"}]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_marks_stand_out(scheme: int) -> None:
    colors: dict[str, str] = {}
    for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[scheme::2]:
        colors |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for mark in ("after", "load", "leave", "over"):
        assert contrast(colors[mark], colors["track"]) >= 3, mark


@pytest.fixture(scope="module")
def chromium() -> str:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium or Chrome on this machine")
    return program


@MAKERS
@pytest.mark.parametrize(("width", "dark"), [(360, False), (1200, True)])
def test_page_in_a_browser_is_as_wide_as_the_screen_and_silent(
    chromium: str, make: Callable[[], Recorded], width: int, dark: bool, tmp_path: Path
) -> None:
    path = tmp_path / "trace.html"
    path.write_text(page_of(make(), "A trace"), encoding="utf-8")
    with Browser(chromium, path.as_uri(), width=width, dark=dark) as browser:
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        beyond = """Array.from(document.querySelectorAll('main *')).filter(e => {
            const box = e.getBoundingClientRect();
            return !e.closest('svg') && box.width && (box.right > innerWidth + 1 || box.left < -1);
        }).map(e => e.tagName + ' ' + e.className.toString())"""
        assert browser.evaluate(beyond) == []
        if make is recorded:
            tall = "Array.from(document.querySelectorAll('.card svg')).map(e => e.getBoundingClientRect().height)"
            assert browser.evaluate(tall) == [12 * 5]
            for kind in ("resident", "reading", "load", "leave"):
                shown = f"document.querySelector('.card path.{kind}').getBoundingClientRect()"
                assert browser.evaluate(f"(b => b.width > 20 && b.height > 20)({shown})"), kind
        assert browser.console == []
        assert browser.requests == [path.as_uri()], "nothing but the page itself is asked for"
