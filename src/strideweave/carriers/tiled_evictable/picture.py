"""The tile grid of a carrier as HTML: where every tile is, drawn without looking at a value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

from strideweave.carriers.tiled_evictable.observe import Location

_MOST_CELLS = 256
_CELLS_PER_LINE = 32
_LOCATIONS: tuple[Location, ...] = ("primary", "secondary", "implicit", "invalid")
_COLOURS = {"primary": "#2f9e44", "secondary": "#a5c8f0", "implicit": "#e9ecef", "invalid": "#f1a9a0"}
_MIXED = "#d0bfff"
_CELL = "width:18px;height:18px;padding:0;border:1px solid #868e96;text-align:center;font:11px monospace;color:#000"


@dataclass(frozen=True, slots=True)
class Look:
    """What is drawn of one tile."""

    location: Location
    is_dirty: bool


def residency_counts(looks: Sequence[Look]) -> str:
    """How many tiles are where, in one line.

    >>> residency_counts([Look("primary", True), Look("secondary", False), Look("primary", False)])
    '2 primary (1 dirty), 1 secondary'
    """
    counts = Counter(look.location for look in looks)
    dirty = sum(look.is_dirty for look in looks)
    words = [f"{counts[location]} {location}" for location in _LOCATIONS if counts[location]]
    if dirty:
        words[0] += f" ({dirty} dirty)"  # only a primary tile is dirty, and primary comes first
    return ", ".join(words)


def draw_grid(grid_shape: Sequence[int], looks: Sequence[Look]) -> str:
    """HTML of the grid: 2-D slices, their rows and columns the first two axes that have more than one tile.

    Where only one axis has, its tiles go on from line to line. Beyond 256 cells a cell stands for a block of tiles, and
    its title counts them; slices that do not fit even so are left out, and counted.

    Shapes: `looks` has one entry per tile, first axis fastest.

    >>> html = draw_grid((2,), [Look("primary", True), Look("secondary", False)])
    >>> html.count("<td"), "tile (0,): primary, dirty" in html
    (2, True)
    """
    grid = _Grid(tuple(grid_shape), looks)
    long = [axis for axis, n in enumerate(grid_shape) if n > 1]
    return (_draw_line(grid) if len(long) < 2 else _draw_slices(grid, long)) + _legend()


@dataclass(frozen=True, slots=True)
class _Grid:
    """The tiles by number, first axis fastest."""

    shape: tuple[int, ...]
    looks: Sequence[Look]

    def step(self, axis: int) -> int:
        """How far the number goes with the coordinate of an axis."""
        return math.prod(self.shape[:axis])

    def coordinate(self, tile: int) -> tuple[int, ...]:
        """The coordinate of a number."""
        return tuple(tile // self.step(axis) % n for axis, n in enumerate(self.shape))


def _draw_line(grid: _Grid) -> str:
    tiles = range(len(grid.looks))
    step = math.ceil(len(tiles) / _MOST_CELLS)
    cells = [tiles[k : k + step] for k in range(0, len(tiles), step)]
    lines = [cells[k : k + _CELLS_PER_LINE] for k in range(0, len(cells), _CELLS_PER_LINE)]
    return _draw_table(grid, lines) + _block_note(f"{step}", step)


def _draw_slices(grid: _Grid, long: Sequence[int]) -> str:
    row, column, *rest = long
    rows, columns = grid.shape[row], grid.shape[column]
    step = 1
    while math.ceil(rows / step) * math.ceil(columns / step) > _MOST_CELLS:
        step += 1
    slices = math.prod(grid.shape[axis] for axis in rest)
    shown = min(slices, max(1, _MOST_CELLS // (math.ceil(rows / step) * math.ceil(columns / step))))
    down = [range(rows)[k : k + step] for k in range(0, rows, step)]
    across = [range(columns)[k : k + step] for k in range(0, columns, step)]
    parts = []
    for back in islice(product(*(range(grid.shape[axis]) for axis in reversed(rest))), shown):
        fixed = dict(zip(rest, reversed(back), strict=True))
        first = sum(c * grid.step(axis) for axis, c in fixed.items())
        lines = [
            [[first + r * grid.step(row) + c * grid.step(column) for c in wide for r in high] for wide in across]
            for high in down
        ]
        index = [":" if axis in (row, column) else str(fixed.get(axis, 0)) for axis in range(len(grid.shape))]
        parts.append(_draw_table(grid, lines, f"[{', '.join(index)}]"))
    if shown < slices:
        parts.append(f"<div>and {slices - shown} more slices of {rows} x {columns} tiles</div>")
    return "".join(parts) + _block_note(f"{step} x {step}", step)


def _block_note(size: str, step: int) -> str:
    return f"<div>one cell is a block of up to {size} tiles</div>" if step > 1 else ""


def _draw_table(grid: _Grid, lines: Sequence[Sequence[Sequence[int]]], caption: str = "") -> str:
    rows = "".join(f"<tr>{''.join(_draw_cell(grid, tiles) for tiles in line)}</tr>" for line in lines)
    head = f"<caption>{caption}</caption>" if caption else ""
    style = "border-collapse:collapse;display:inline-table;margin:4px"
    return f'<table style="{style}">{head}<tbody>{rows}</tbody></table>'


def _draw_cell(grid: _Grid, tiles: Sequence[int]) -> str:
    looks = [grid.looks[tile] for tile in tiles]
    locations = {look.location for look in looks}
    colour = _COLOURS[looks[0].location] if len(locations) == 1 else _MIXED
    is_dirty = any(look.is_dirty for look in looks)
    if len(tiles) == 1:
        title = f"tile {grid.coordinate(tiles[0])}: {looks[0].location}{', dirty' if is_dirty else ''}"
    else:
        title = f"tiles {grid.coordinate(tiles[0])} to {grid.coordinate(tiles[-1])}: {residency_counts(looks)}"
    return f'<td title="{title}" style="{_CELL};background:{colour}">{"&bull;" if is_dirty else ""}</td>'


def _legend() -> str:
    colours = [*_COLOURS.items(), ("mixed block", _MIXED)]
    marks = "".join(
        f'<span style="background:{colour};color:#000;padding:0 6px;margin-right:4px">{name}</span>'
        for name, colour in colours
    )
    return f"<div>{marks}&bull; dirty</div>"
