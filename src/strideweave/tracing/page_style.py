"""How pages look: light and dark, from 360 px on. `BASE` is of every page, `STYLE` of that of a trace."""

from __future__ import annotations

from typing import Final

BASE: Final = """
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --ink: #16202c; --soft: #51606f; --line: #d9dfe6; --link: #0b5cad;
  --before: #9aa9b8; --after: #14807a; --over: #cf3a24; --limit: #16202c; --track: #edf0f3; --loop: #eef6f5;
  --loop-line: #9ccbc6; --good: #0f6a64; --good-page: #e2f3f1; --bad: #a92511; --bad-page: #fde9e5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f151b; --card: #18212a; --ink: #e8edf2; --soft: #a3b1bf; --line: #2c3946; --link: #7db8f5;
    --before: #61717f; --after: #35b3a9; --over: #f0694f; --limit: #ffffff; --track: #222d38; --loop: #16292b;
    --loop-line: #2f6763; --good: #6fd6cc; --good-page: #143330; --bad: #ff9d88; --bad-page: #3d1d17;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.015em; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem; }
h3 { font-size: 1.05rem; margin: 0; display: flex; flex-wrap: wrap; gap: .3rem .6rem; align-items: center; }
h4 { font-size: .8rem; margin: 1.1rem 0 .3rem; color: var(--soft); text-transform: uppercase; letter-spacing: .06em; }
p { margin: .4rem 0; }
a { color: var(--link); text-underline-offset: .15em; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 4px; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; font-size: .92em; }
.soft { color: var(--soft); }
.small { font-size: .875rem; }
.skip { position: absolute; left: -100rem; }
.skip:focus { position: static; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; margin: 1rem 0 0; }
.figures div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .6rem .8rem; }
.figures dt { color: var(--soft); font-size: .8rem; }
.figures dd { margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }

.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 1rem; margin: 0 0 1rem;
  scroll-margin-top: 1rem;
}
.card:target { border-color: var(--link); }

table { border-collapse: collapse; width: 100%; table-layout: fixed; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .45rem .5rem .45rem 0; border-top: 1px solid var(--line); }
thead th { border-top: 0; font-size: .8rem; color: var(--soft); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 400; }
th:last-child, td:last-child { padding-right: 0; }
caption { text-align: left; color: var(--soft); font-size: .875rem; padding-bottom: .3rem; }
svg { display: block; width: 100%; overflow: visible; }
.track { fill: var(--track); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1rem; list-style: none; margin: .6rem 0 1rem; padding: 0; }
.legend svg { display: inline-block; width: 1.1rem; height: .7rem; margin-right: .35rem; }

details { margin-top: .7rem; }
summary { cursor: pointer; padding: .3rem 0; color: var(--link); }
pre {
  white-space: pre-wrap; background: var(--track); border-radius: 8px; padding: .7rem; margin: .3rem 0;
  font-size: .78rem;
}
@media print { .card { break-inside: avoid; } }
"""

STYLE: Final = (
    BASE
    + """
:root { --load: #0b5cad; --leave: #b07400; }
@media (prefers-color-scheme: dark) { :root { --load: #8fc4ff; --leave: #e0a53a; } }
h3 .soft { font-weight: 400; }
.strip { margin: .55rem 0; }
.strip figcaption { font-size: .8rem; margin-bottom: .15rem; font-variant-numeric: tabular-nums; }
.strip svg { background: var(--track); border-radius: 3px; overflow: hidden; }
.resident { fill: var(--after); }
.some { fill: var(--after); opacity: .6; }
.few { fill: var(--after); opacity: .3; }
.load { fill: var(--load); }
.reading { fill: var(--load); opacity: .55; }
.leave { fill: var(--leave); }
.wait { fill: var(--over); }
.axis { display: flex; justify-content: space-between; font-size: .75rem; color: var(--soft); }
.axis span { white-space: nowrap; }
.counts th:first-child { width: 24%; }
.counts td, .counts thead th + th { text-align: right; }
.counts { font-size: .85rem; }
.waits { font-size: .85rem; }
.waits .when { width: 22%; }
"""
)
