"""A report as one page of HTML that needs nothing else: no script, no font, nothing from a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Final

from strideweave.inductor.page_style import STYLE
from strideweave.inductor.report import OperandRow, OpRow, Report, mib
from strideweave.inductor.spans.plans import SpanAnalysis, describe

_LINEAR_UP_TO: Final = 40
"""Windows that differ by more than this factor are drawn on a log scale."""

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
<a class="skip" href="#operations">Skip to the operations</a>
<main>
<header>
<h1>$title</h1>
$figures
</header>
<section aria-labelledby="loops">
<h2 id="loops">Loops</h2>
$loops
</section>
<section aria-labelledby="operations">
<h2 id="operations">Operations</h2>
<p class="soft small">A bar is a window: the bytes from the lowest to the highest address that a core touches in one
tensor. The dashed line is the limit, $limit. Windows of very different sizes are drawn on a logarithmic scale.</p>
$legend
$cards
</section>
$rest
</main>
</body>
</html>
"""
)


def page_of(report: Report, title: str) -> str:
    """The page: an overview of all loops, then every operation with its windows and what the planner found.

    >>> from strideweave.inductor.report import Report
    >>> page_of(Report(), "Nothing").startswith("<!doctype html>")
    True
    """
    places = {id(row): k for k, row in enumerate(report.rows)}
    owners: dict[tuple[str, str], int] = {}
    for k, row in enumerate(report.rows):
        if row.is_result:
            owners.setdefault((row.program, row.buffer), k)
    cards = [
        _card(row, k, owners.get((row.program, row.buffer)), report.limit_nbytes) for k, row in enumerate(report.rows)
    ]
    return _PAGE.substitute(
        title=escape(title),
        style=STYLE,
        figures=_figures(report),
        loops=_overview(report, places),
        limit=mib(report.limit_nbytes),
        legend=_LEGEND,
        cards="\n".join(cards) or '<p class="soft">Nothing runs on the card.</p>',
        rest=_fallbacks(report) + _programs(report),
    )


# -- bars ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a number of bytes is drawn, the same for all operands of an operation. Units: per cent of the width."""

    limit: int
    low: float
    high: float
    is_log: bool

    @classmethod
    def over(cls, row: OpRow, limit: int) -> _Scale:
        windows = [w for o in row.operands for w in (o.window_whole_nbytes, o.window_nbytes)]
        known = [limit, *(w for w in windows if w)]
        is_log = max(known) > _LINEAR_UP_TO * min(known)
        return cls(limit, min(known) / 2 if is_log else 0, max(known) * (1.3 if is_log else 1.05), is_log)

    def at(self, nbytes: float) -> float:
        """The place of so many bytes."""
        if not self.is_log:
            return round(100 * nbytes / self.high, 2)
        whole = math.log(self.high / self.low)
        return round(100 * max(0.0, math.log(max(nbytes, self.low) / self.low)) / whole, 2)


_LEGEND: Final = """<ul class="legend small">
<li><svg aria-hidden="true"><rect class="before" width="100%" height="100%"/></svg>undivided, untiled</li>
<li><svg aria-hidden="true"><rect class="after" width="100%" height="100%"/></svg>one core in one tile</li>
<li><svg aria-hidden="true"><rect class="over" width="100%" height="100%"/></svg>beyond the limit</li>
</ul>"""


def _bars(operand: OperandRow, scale: _Scale) -> str:
    limit = scale.at(scale.limit)
    drawn = _bar(operand.window_whole_nbytes, "before", 0, scale) + _bar(operand.window_nbytes, "after", 11, scale)
    label = (
        f"Window of {operand.name}: {_against(operand.window_whole_nbytes, scale.limit)} before, "
        f"{_against(operand.window_nbytes, scale.limit)} after."
    )
    return (
        f'<svg role="img" aria-label="{escape(label)}" height="24">'
        f'<rect class="track" width="100%" height="20" rx="3"/>{drawn}'
        f'<line class="limit" x1="{limit}%" x2="{limit}%" y1="-3" y2="23"/></svg>'
    )


def _bar(nbytes: int | None, kind: str, top: int, scale: _Scale) -> str:
    if nbytes is None:
        return ""
    width, limit = scale.at(nbytes), scale.at(scale.limit)
    bar = f'<rect class="{kind}" y="{top}" width="{min(width, limit)}%" height="9" rx="2"/>'
    if nbytes > scale.limit:
        bar += f'<rect class="over" x="{limit}%" y="{top}" width="{round(width - limit, 2)}%" height="9" rx="2"/>'
    return bar


def _axis(scale: _Scale) -> str:
    """The words over the limit line."""
    at = scale.at(scale.limit)
    anchor = "end" if at > 60 else "start" if at < 40 else "middle"
    kind = ", log scale" if scale.is_log else ""
    return (
        f'<svg height="13" aria-hidden="true"><text class="mark" x="{at}%" y="11" text-anchor="{anchor}">'
        f"limit {mib(scale.limit)}{kind}</text></svg>"
    )


def _against(nbytes: int | None, limit: int) -> str:
    """Bytes, and what part of the limit, or how many times the limit, they are."""
    if nbytes is None:
        return "not known"
    ratio = nbytes / limit
    times = f"{ratio:.3g} times" if ratio > 1 else f"{100 * ratio:.3g} % of" if ratio >= 1e-4 else "far below"
    return f"{mib(nbytes)}, {times} the limit"


# -- operations ------------------------------------------------------------------------------------------------------


def _card(row: OpRow, place: int, owner: int | None, limit: int) -> str:
    scale = _Scale.over(row, limit)
    exceeds = any(operand.exceeds for operand in row.operands)
    chip = '<span class="chip exceeds">above the limit</span>' if exceeds else '<span class="chip fits">fits</span>'
    facts = {
        "iterates": _ranges(row.whole_ranges),
        "in a tile": _ranges(row.ranges) if row.loops else "",
        "on cores": ", ".join(f"{s} over {n}" for s, n in row.cores.items()),
        "runs": f"{row.tiles} times" if row.loops else "",
        "for": "" if row.is_result else row.buffer,
    }
    told = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    nest = ""
    if row.loops:
        nest = f"<h4>Loop nest</h4>{_nest([row], 0, {})}"
    rows = "".join(_operand(operand, scale) for operand in row.operands)
    planner = ""
    if row.spans is not None:
        planner = _planner(row.spans, limit) if owner == place else _elsewhere(row, owner)
    return f"""<article class="card" id="op-{place}" aria-labelledby="name-{place}">
<h3 id="name-{place}"><code>{escape(row.name)}</code> <span class="op">{escape(row.op)}</span> {chip}</h3>
<dl class="facts small">{told}</dl>
{nest}
<h4>Windows</h4>
<table class="windows">
<thead><tr><th scope="col" class="who">operand</th>
<th scope="col">{_axis(scale)}window, before and after</th></tr></thead>
<tbody>{rows}</tbody>
</table>
{planner}
</article>"""


def _operand(operand: OperandRow, scale: _Scale) -> str:
    where = "scratch of the loop" if operand.is_scratch else "whole buffer"
    size = " × ".join(map(str, operand.device_size))
    verb = "reads" if operand.is_input else "writes"
    flag = " <b>Above the limit.</b>" if operand.exceeds else ""
    return (
        f'<tr><th scope="row"><span class="verb">{verb}</span> <code>{escape(operand.name)}</code>'
        f"<small>{escape(operand.dtype)}, {size}</small><small>{where}</small></th>"
        f'<td>{_bars(operand, scale)}<p class="values">{mib(operand.window_whole_nbytes)} → '
        f"<b>{mib(operand.window_nbytes)}</b>{flag}</p></td></tr>"
    )


def _planner(spans: SpanAnalysis, limit: int) -> str:
    """What overflowed, what was not taken, and what was."""
    parts = ["<h4>Plan</h4>", f"<p>{escape(_plan(spans))}</p>"]
    if spans.candidates:
        rows = "".join(
            f'<tr><th scope="row">{escape(c.source)}</th><td>{c.chunking_info.selected_host_dim}</td>'
            f"<td>{_against(c.chunking_info.per_core_span, limit)}</td></tr>"
            for c in spans.candidates
        )
        parts.append(
            '<table class="found small"><caption>Candidates: what overflows, and the output dim that can shrink it'
            '</caption><thead><tr><th scope="col">where</th><th scope="col" class="narrow">output dim</th>'
            f'<th scope="col">span</th></tr></thead><tbody>{rows}</tbody></table>'
        )
    if spans.rejected:
        rows = "".join(
            f'<tr><th scope="row">{escape(split)}</th><td>{escape(reason)}</td></tr>'
            for split, reason in spans.rejected
        )
        parts.append(
            f'<details><summary>{_count(len(spans.rejected), "rejected split")}</summary><table class="found small">'
            '<thead><tr><th scope="col" class="number">split</th><th scope="col">why not</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></details>"
        )
    return "\n".join(parts)


def _plan(spans: SpanAnalysis) -> str:
    if spans.plan is None:
        return f"No tiles: {spans.note or 'none are needed'}."
    note = f" ({spans.note})" if spans.note else ""
    return f"Tiles: {describe(spans.plan.levels)}{note}. Why: {spans.plan.reason}."


def _elsewhere(row: OpRow, owner: int | None) -> str:
    if owner is None:
        return ""
    return f'<p class="small">Planned with <a href="#op-{owner}"><code>{escape(row.buffer)}</code></a>.</p>'


# -- loops -----------------------------------------------------------------------------------------------------------


def _overview(report: Report, places: dict[int, int]) -> str:
    parts = []
    for program in dict.fromkeys(row.program for row in report.rows):
        rows = [row for row in report.rows if row.program == program]
        parts.append(f"<h3><code>{escape(program)}</code></h3>{_nest(rows, 0, places)}")
    return "\n".join(parts) or '<p class="soft">No program was made.</p>'


def _nest(rows: Sequence[OpRow], depth: int, places: dict[int, int]) -> str:
    """Rows as nested lists, a box for every loop; those with a place are links."""
    items = []
    k = 0
    while k < len(rows):
        row = rows[k]
        if len(row.loop_ids) == depth:
            name = f"<code>{escape(row.name)}</code> {escape(row.op)}"
            if id(row) in places:
                name = f'<a href="#op-{places[id(row)]}">{name}</a>'
            items.append(f'<li class="step">{name} <span class="soft small">{escape(_ranges(row.ranges))}</span></li>')
            k += 1
            continue
        end = k
        while end < len(rows) and rows[end].loop_ids[depth : depth + 1] == row.loop_ids[depth : depth + 1]:
            end += 1
        turns = f'<span class="turns">loop, {_count(row.loops[depth], "turn")}</span>'
        items.append(f'<li class="loop">{turns}{_nest(rows[k:end], depth + 1, places)}</li>')
        k = end
    return f'<ul class="nest">{"".join(items)}</ul>'


# -- the rest --------------------------------------------------------------------------------------------------------


def _figures(report: Report) -> str:
    windows = [row.widest_nbytes for row in report.rows]
    widest = None if None in windows else max((w or 0 for w in windows), default=0)
    tiled = sum(bool(row.loops) for row in report.rows)
    figures = {
        "operations": str(len(report.rows)),
        "of them in loops": str(tiled),
        "widest window": mib(widest),
        "limit of a window": mib(report.limit_nbytes),
        "cores": str(report.cores),
    }
    told = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    return f'<dl class="figures">{told}</dl>'


def _fallbacks(report: Report) -> str:
    if not report.fallbacks:
        return ""
    rows = "".join(f"<li><code>{escape(op)}</code>: {escape(why)}</li>" for op, why in report.fallbacks.items())
    return f'<section aria-labelledby="elsewhere"><h2 id="elsewhere">Runs elsewhere</h2><ul>{rows}</ul></section>'


def _programs(report: Report) -> str:
    if not report.programs:
        return ""
    texts = "".join(
        f"<details><summary>Program {k}</summary><pre>{escape(text)}</pre></details>"
        for k, text in enumerate(report.programs)
    )
    return f'<section aria-labelledby="programs"><h2 id="programs">Programs as text</h2>{texts}</section>'


def _ranges(ranges: dict[str, int]) -> str:
    return ", ".join(f"{s}={n}" for s, n in ranges.items()) or "one element"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
