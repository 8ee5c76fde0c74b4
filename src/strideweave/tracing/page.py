"""A trace as one page of HTML that needs nothing else: where tiles were over time, and who waited for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import Final

import numpy as np

from strideweave.carriers.tiled_evictable.budget import format_nbytes
from strideweave.tracing.page_style import STYLE
from strideweave.tracing.recording import Life, TraceEvent
from strideweave.tracing.residency import Shares, Strip, Window, coverage, strips_of
from strideweave.tracing.trace import Recorded, TraceRow, rows_of

_WAITS: Final = 12
_CARRIERS: Final = 8
_BARS: Final = 300
_LEVELS: Final = (("few", 0.0, 1 / 3), ("some", 1 / 3, 0.8), ("resident", 0.8, 2.0))
_TICKS: Final = 4

_PAGE: Final = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<a class="skip" href="#residency">Skip to the tiles</a>
<main>
<header>
<h1>$title</h1>
$figures
$notes
</header>
<section aria-labelledby="time">
<h2 id="time">Over time</h2>
$time
</section>
<section aria-labelledby="residency">
<h2 id="residency">Where tiles were</h2>
<p class="soft small">A row is a tile, and time runs to the right. A wait is marked at the tile that was waited
for.</p>
$legend
$carriers
</section>
<section aria-labelledby="counts">
<h2 id="counts">Counts</h2>
$counts
</section>
<section aria-labelledby="waits">
<h2 id="waits">Longest waits</h2>
$waits
</section>
<section aria-labelledby="threads">
<h2 id="threads">Threads</h2>
$threads
</section>
</main>
</body>
</html>
"""
)

_LEGEND: Final = (
    '<ul class="legend small">'
    + "".join(
        f'<li><svg aria-hidden="true"><rect class="{kind}" width="100%" height="100%"/></svg>{words}</li>'
        for kind, words in (
            ("resident", "in memory"),
            ("reading", "is read"),
            ("load", "arrives"),
            ("leave", "leaves"),
            ("wait", "a caller waits for it"),
        )
    )
    + "</ul>"
)


def page_of(recorded: Recorded, title: str) -> str:
    """The page: figures, the course of time, every carrier's tiles, counts, waits and threads.

    >>> page_of(Recorded(0, 10), "Nothing").startswith("<!doctype html>")
    True
    """
    window = Window.of(recorded)
    lives = sorted((life for life in recorded.lives if _is_used(recorded, life)), key=lambda life: life.subject.number)
    rows = rows_of(lives)
    return _PAGE.substitute(
        title=escape(title),
        style=STYLE,
        figures=_figures(recorded, lives, rows, window),
        notes=_notes(recorded, lives),
        time=_time(recorded, lives, window),
        legend=_LEGEND,
        carriers="\n".join(_carrier(recorded, life, window) for life in lives[:_CARRIERS])
        or '<p class="soft">No tile was asked for.</p>',
        counts=_counts(rows, several=len(lives) > 1),
        waits=_waits(recorded, window),
        threads=_threads(recorded),
    )


def _is_used(recorded: Recorded, life: Life) -> bool:
    return bool(life.tallies) or any(change.subject is life.subject for change in recorded.changes)


# -- what happened, in numbers ---------------------------------------------------------------------------------------


def _figures(recorded: Recorded, lives: Sequence[Life], rows: Sequence[TraceRow], window: Window) -> str:
    hits, asked = sum(row.hits for row in rows), sum(row.hits + row.misses for row in rows)
    optimal = [life.optimal_hits for life in lives]
    best = sum(n or 0 for n in optimal)
    known = None not in optimal and best > 0
    figures = {
        "traced": seconds(recorded.duration_s),
        "drawn": seconds(window.duration_s),
        "hits": f"{hits / asked:.1%}" if asked else "none asked",
        "of the best possible": f"{hits / best:.1%}" if known else "not known",
        "read": format_nbytes(sum(row.bytes_read for row in rows)),
        "written": format_nbytes(sum(row.bytes_written for row in rows)),
        "waited for tiles": seconds(sum(row.stall_s for row in rows)),
    }
    told = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in figures.items())
    return f'<dl class="figures">{told}</dl>'


def _notes(recorded: Recorded, lives: Sequence[Life]) -> str:
    notes = []
    if dropped := recorded.dropped_events + recorded.dropped_changes:
        notes.append(
            f"{dropped} earlier events were let go, to stay within memory. Counts include them, "
            "and drawings begin after them."
        )
    if len(lives) > _CARRIERS:
        notes.append(f"{len(lives) - _CARRIERS} more carriers are counted, and not drawn.")
    return "".join(f'<p class="soft small">{note}</p>' for note in notes)


def _counts(rows: Sequence[TraceRow], *, several: bool) -> str:
    heads = ("hits", "misses", "read", "waited")
    body = "".join(
        f'<tr><th scope="row">{escape(_name(row, several))}</th><td>{row.hits}</td><td>{row.misses}</td>'
        f"<td>{format_nbytes(row.bytes_read)}</td><td>{seconds(row.stall_s)}</td></tr>"
        for row in rows
    )
    return _table("counts", ("tiles", *heads), body)


def _name(row: TraceRow, several: bool) -> str:
    return f"{row.carrier}: {row.group}" if several else row.group


def _waits(recorded: Recorded, window: Window) -> str:
    waits = sorted((e for e in recorded.events if e.kind == "wait"), key=lambda e: -e.duration_ns)[:_WAITS]
    if not waits:
        return '<p class="soft">Nobody waited.</p>'
    names = recorded.threads or {}
    body = "".join(
        f'<tr><th scope="row">{seconds(e.duration_ns / 1e9)}</th>'
        f"<td>at {seconds((e.begin_ns - window.begin_ns) / 1e9)}, {escape(names.get(e.thread_id, '?'))} for "
        f"{escape(_awaited(e))}</td></tr>"
        for e in waits
    )
    return _table("waits", ("waited", "who, and for what"), body)


def _awaited(event: TraceEvent) -> str:
    if event.subject is None or event.ordinal < 0:
        return event.name
    return f"{event.subject.label(event.ordinal)} of {event.subject.name}"


def _threads(recorded: Recorded) -> str:
    kinds = ("read", "write", "wait", "compute")
    busy: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in recorded.events:
        busy[event.thread_id][event.kind] += event.duration_ns / 1e9
    names = recorded.threads or {}
    body = "".join(
        f'<tr><th scope="row">{escape(names.get(thread_id, "?"))}</th>'
        + "".join(f"<td>{seconds(busy[thread_id][kind])}</td>" for kind in kinds)
        + "</tr>"
        for thread_id in sorted(busy, key=lambda t: names.get(t, ""))
    )
    return _table("counts", ("thread", *kinds), body)


def _table(kind: str, heads: Sequence[str], body: str) -> str:
    head = "".join(f'<th scope="col"{" class=when" if k == 0 else ""}>{name}</th>' for k, name in enumerate(heads))
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


# -- the course of time ----------------------------------------------------------------------------------------------


def _time(recorded: Recorded, lives: Sequence[Life], window: Window) -> str:
    coarse = Window(window.begin_ns, window.end_ns, _BARS)
    column_s = window.duration_s / _BARS
    read = _spread(recorded.events, ("read",), coarse, by_nbytes=True)
    written = _spread(recorded.events, ("write",), coarse, by_nbytes=True)
    waited = _spread(recorded.events, ("wait",), coarse) / column_s
    computed = _spread(recorded.events, ("compute",), coarse) / column_s
    charts = [_resident(recorded, life, coarse) for life in lives[:_CARRIERS]]
    for amounts, what, kind in ((read, "read", "load"), (written, "written", "leave")):
        if amounts.any():
            most = f"at most {format_nbytes(amounts.max() / column_s)} a second"
            charts.append(_chart(amounts, amounts.max(), f"Bytes {what}: {most}", kind))
    for shares, what, kind in ((waited, "waiting", "wait"), (computed, "computing", "resident")):
        if shares.any():
            label = f"Threads {what}: {shares.mean():.2f} on average, at most {shares.max():.2f}"
            charts.append(_chart(shares, max(1.0, shares.max()), label, kind))
    return "\n".join([*charts, _axis(window)])


def _spread(events: Iterable[TraceEvent], kinds: tuple[str, ...], window: Window, *, by_nbytes: bool = False) -> Shares:
    """The bytes, or the seconds, of events of some kinds by column."""
    found = [e for e in events if e.kind in kinds]
    return coverage(
        [window.at(e.begin_ns) for e in found],
        [window.at(e.end_ns) for e in found],
        [float(e.nbytes) if by_nbytes else e.duration_ns / 1e9 for e in found],
        window.columns,
    )


def _resident(recorded: Recorded, life: Life, window: Window) -> str:
    tiles = np.zeros(window.columns)
    tiles[int(window.at(recorded.known_ns)) :] = len(life.resident_first)
    for change in recorded.changes:
        if change.subject is life.subject:
            tiles[int(window.at(change.time_ns)) :] += 1 if change.is_resident else -1
    nbytes = tiles * life.subject.tile_nbytes
    room = life.subject.slots * life.subject.tile_nbytes
    label = f"Resident, {life.subject.name}: at most {format_nbytes(nbytes.max())} of {format_nbytes(room)}"
    return _chart(nbytes, max(room, nbytes.max(), 1), label, "resident")


def _chart(amounts: Shares, most: float, label: str, kind: str) -> str:
    heights = 20 * amounts / most
    path = "".join(f"M{x} 20h{w}v-{h:.2f}h-{w}z" for x, w, h in _runs(np.round(heights, 2)) if h > 0)
    return _strip(label, path and f'<path class="{kind}" d="{path}"/>', len(amounts), 20, 40, label)


def _runs(values: Shares) -> list[tuple[int, int, float]]:
    """Where equal values begin, how many there are, and the value."""
    begins = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    ends = [*begins[1:], len(values)]
    return [(a, b - a, float(values[a])) for a, b in zip(begins, ends, strict=True)]


def _axis(window: Window) -> str:
    marks = "".join(f"<span>{seconds(window.duration_s * k / _TICKS)}</span>" for k in range(_TICKS + 1))
    return f'<div class="axis">{marks}</div>'


# -- tiles -----------------------------------------------------------------------------------------------------------


def _carrier(recorded: Recorded, life: Life, window: Window) -> str:
    subject = life.subject
    rows = {row.group: row for row in rows_of([life])}
    strips = "\n".join(_tiles(strip, rows.get(strip.label)) for strip in strips_of(recorded, life, window))
    facts = (
        f"grid {' × '.join(map(str, subject.grid_shape))}, {format_nbytes(subject.tile_nbytes)} each, "
        f"room for {subject.slots}"
    )
    return (
        f'<article class="card"><h3>{escape(subject.name)} <span class="soft small">{escape(facts)}</span></h3>\n'
        f"{_axis(window)}\n{strips}\n{_axis(window)}</article>"
    )


def _tiles(strip: Strip, row: TraceRow | None) -> str:
    rows, columns = strip.shares.shape
    drawn = [_level(strip.shares, kind, low, high) for kind, low, high in _LEVELS]
    drawn += [
        _intervals(strip.reads, "reading"),
        _marks(strip.departures, "leave"),
        _marks(strip.arrivals, "load"),
        _intervals(strip.waits, "wait"),
    ]
    told = strip.label
    if row is not None:
        asked = row.hits + row.misses
        told += f": {row.hits}/{asked} hits, {format_nbytes(row.bytes_read)}, waited {seconds(row.stall_s)}"
    height = rows * (7 if rows <= 8 else 5 if rows <= 16 else 3 if rows <= 64 else 2)
    label = f"{told}; {len(strip.arrivals)} arrivals, {len(strip.departures)} departures"
    return _strip(told, "".join(drawn), columns, rows, height, label)


def _strip(told: str, drawn: str, columns: int, rows: int, height: int, label: str) -> str:
    return (
        f'<figure class="strip"><figcaption>{escape(told)}</figcaption>'
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" '
        f'height="{max(height, 8)}">{drawn}</svg></figure>'
    )


def _level(shares: Shares, kind: str, low: float, high: float) -> str:
    """The cells whose share is above `low`, and at most `high`, as boxes along the rows."""
    path = []
    for row, values in enumerate(shares):
        inside = ((values > low + 1e-9) & (values <= high + 1e-9)).astype(np.float64)
        path += [f"M{x} {row}h{w}v.9h-{w}z" for x, w, v in _runs(inside) if v]
    return f'<path class="{kind}" d="{"".join(path)}"/>' if path else ""


def _marks(places: Sequence[tuple[int, float]], kind: str) -> str:
    """A narrow mark at each place; one where several would lie on each other."""
    apart = dict.fromkeys((row, round(column, 1)) for row, column in places)
    path = "".join(f"M{column:g} {row}h1v.9h-1z" for row, column in apart)
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def _intervals(places: Sequence[tuple[int, float, float]], kind: str) -> str:
    """A mark as long as each interval, and never too narrow to be seen."""
    apart = dict.fromkeys((row, round(a, 1), round(max(b - a, 0.6), 1)) for row, a, b in places)
    path = "".join(f"M{a:g} {row}h{w:g}v.9h-{w:g}z" for row, a, w in apart)
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def seconds(value: float) -> str:
    """A duration in words.

    >>> seconds(0.0123), seconds(12.34), seconds(0)
    ('12.3 ms', '12.3 s', '0 s')
    """
    if value == 0:
        return "0 s"
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
