"""How a page of `report.to_html()` looks: light and dark, from 360 px on."""

from __future__ import annotations

from typing import Final

from strideweave.tracing.page_style import BASE

STYLE: Final = (
    BASE
    + """
.op { font-weight: 400; color: var(--soft); }
.chip { font-size: .78rem; font-weight: 600; border-radius: 99px; padding: .1rem .6rem; white-space: nowrap; }
.fits { color: var(--good); background: var(--good-page); }
.exceeds { color: var(--bad); background: var(--bad-page); }
.facts { display: grid; grid-template-columns: 5rem minmax(0, 1fr); gap: .1rem .8rem; margin: .6rem 0; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; }
.nest { list-style: none; margin: 0; padding: 0; display: grid; grid-template-columns: minmax(0, 1fr); gap: .4rem; }
.nest .loop {
  border: 1px solid var(--loop-line); border-left-width: 4px; border-radius: 8px; background: var(--loop);
  padding: .4rem .5rem .5rem .6rem;
}
.nest .turns { display: block; font-size: .82rem; font-weight: 600; color: var(--good); margin-bottom: .3rem; }
.nest .step { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .25rem .6rem; }
.windows .who { width: 38%; }
.windows .verb { font-size: .875rem; color: var(--soft); }
.windows small { display: block; color: var(--soft); font-size: .78rem; line-height: 1.35; }
.found .number { width: 32%; }
.found .narrow { width: 26%; }
.before { fill: var(--before); }
.after { fill: var(--after); }
.over { fill: var(--over); }
.limit { stroke: var(--limit); stroke-width: 2; stroke-dasharray: 3 2; }
.mark { fill: var(--soft); font-size: 11px; font-weight: 600; }
.values { font-size: .85rem; margin: .15rem 0 0; }
.values b { font-weight: 600; }
"""
)
