"""A tiled Tensor as HTML: a standard parser sees one cell per tile, with its state, and no value was touched."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import product

import pytest
import torch

import strideweave as sw
from strideweave.carriers.tiled_evictable.picture import Look, draw_grid, residency_counts

_VOID = {"br", "hr", "img"}


class _Page(HTMLParser):
    """Checks that tags nest, and keeps cells by their title."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.lines: list[list[str]] = []
        self.colours: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.words: list[str] = []
        self._cell = ""
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        assert not any(name.startswith("on") or name in ("src", "href") for name in named)
        self.tags.add(tag)
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "tr":
            self.lines.append([])
        if tag == "td" and "title" in named:
            self._cell = named["title"]
            self.lines[-1].append(self._cell)
            self.colours[self._cell] = named["style"].rsplit("background:", 1)[1]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "td":
            self._cell = ""

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._cell:
            self.texts[self._cell] = data

    @property
    def cells(self) -> list[str]:
        return [title for line in self.lines for title in line]


def looks_of(*letters: str) -> list[Look]:
    """One Look per letter: p primary, d dirty, s secondary, z implicit, x invalid."""
    known = {
        "p": Look("primary", False),
        "d": Look("primary", True),
        "s": Look("secondary", False),
        "z": Look("implicit", False),
        "x": Look("invalid", False),
    }
    return [known[letter] for letter in "".join(letters)]


def test_picture_of_a_grid_has_every_tile_in_its_place_and_state() -> None:
    page = _Page(draw_grid((2, 3), looks_of("pd", "sz", "xp")))
    assert page.lines == [
        ["tile (0, 0): primary", "tile (0, 1): secondary", "tile (0, 2): invalid"],
        ["tile (1, 0): primary, dirty", "tile (1, 1): implicit", "tile (1, 2): primary"],
    ]
    assert page.texts == {"tile (1, 0): primary, dirty": "•"}
    assert len({page.colours[title] for title in page.cells}) == 4
    assert page.colours["tile (0, 0): primary"] == page.colours["tile (1, 2): primary"]


@pytest.mark.parametrize("grid", [(5,), (1, 7), (128, 1, 1), (2, 3), (2, 1, 3), (2, 3, 2), (2, 2, 3, 2), (1, 1)])
def test_picture_of_any_small_grid_names_every_tile_once(grid: tuple[int, ...]) -> None:
    every = [at[::-1] for at in product(*(range(n) for n in reversed(grid)))]  # first axis fastest
    letters = ["pdszx"[sum(k * c for k, c in enumerate(at, 1)) % 5] for at in every]
    page = _Page(draw_grid(grid, looks_of(*letters)))
    state = {"p": "primary", "d": "primary, dirty", "s": "secondary", "z": "implicit", "x": "invalid"}
    expected = {f"tile {at}: {state[letter]}" for at, letter in zip(every, letters, strict=True)}
    assert len(page.cells) == len(every)
    assert set(page.cells) == expected


def test_picture_of_a_grid_of_rank_four_shows_slices_of_the_first_two_axes() -> None:
    page = _Page(draw_grid((2, 1, 3, 2), looks_of("p" * 12)))
    assert [word for word in page.words if word.startswith("[")] == ["[:, 0, :, 0]", "[:, 0, :, 1]"]
    assert page.lines[2] == [f"tile (0, 0, {c}, 1): primary" for c in range(3)]


@pytest.mark.parametrize("grid", [(10_000,), (1000, 1000), (1, 300, 300), (2, 2, 5000), (20, 20, 20)])
def test_picture_of_a_large_grid_is_summarised(grid: tuple[int, ...]) -> None:
    tiles = int(torch.tensor(grid).prod())
    html = draw_grid(grid, looks_of("s") * tiles)
    page = _Page(html)
    assert 1 <= len(page.cells) <= 300
    assert len(html) < 100_000
    counted = sum(int(title.split(": ")[1].split()[0]) if title.startswith("tiles") else 1 for title in page.cells)
    hidden = [word for word in page.words if "more slices" in word]
    if hidden:
        slices, rows, columns = (int(part) for part in hidden[0].replace("x", " ").split() if part.isdecimal())
        counted += slices * rows * columns
    assert counted == tiles


def test_picture_of_a_block_with_several_states_says_how_many_and_marks_dirty_ones() -> None:
    looks = looks_of("s" * 300, "d", "x" * 211)
    page = _Page(draw_grid((512,), looks))
    mixed = "tiles (300,) to (301,): 1 primary (1 dirty), 1 invalid"
    assert page.texts == {mixed: "•"}
    assert page.colours[mixed] not in {page.colours[title] for title in page.cells if title != mixed}


def test_counts_leave_out_what_there_is_none_of() -> None:
    assert residency_counts(looks_of("ppdszz")) == "3 primary (1 dirty), 1 secondary, 2 implicit"
    assert residency_counts(looks_of("xx")) == "2 invalid"


def tiled() -> sw.Tensor:
    carrier = sw.TiledEvictable(sw.CPU.wrap(torch.full((24,), 98765.0)), sw.FileBacked(), (3, 2), (2, 2))
    carrier[0] = 98765.0
    carrier.evict(sw.TileSet([(2, 1)]))
    return sw.Tensor(carrier, 0, carrier.layout)


def test_tiled_tensor_shows_its_grid_and_moves_nothing() -> None:
    tensor = tiled()
    before = tensor.carrier.statistics()
    html = tensor._repr_html_()
    page = _Page(html)
    assert tensor.carrier.statistics() == before
    assert len(page.cells) == 6
    assert {"tile (0, 0): primary, dirty", "tile (2, 1): secondary"} < set(page.cells)
    assert "98765" not in html
    assert not page.tags & {"script", "iframe", "object", "style", "link", "img"}
    tensor.carrier.release()


def test_tiled_tensor_has_a_text_with_shape_dtype_carrier_and_counts() -> None:
    tensor = tiled()
    before = tensor.carrier.statistics()
    text = repr(tensor)
    for part in ("Shape(6, 4)", "Float32", "TiledEvictable", "6 tiles", "5 primary (1 dirty), 1 secondary"):
        assert part in text
    assert "98765" not in text
    assert tensor.carrier.statistics() == before
    tensor.carrier.release()
    assert "released" in repr(tensor)
    assert not _Page(tensor._repr_html_()).cells


def test_gradient_of_a_projection_shows_implicit_tiles() -> None:
    tensor = tiled().requires_grad_()
    picked = tensor.carrier.project(tensor, sw.TileSelection([[1], [0]])).wait()
    sw.reduce_sum(picked).backward()
    assert tensor.grad is not None
    page = _Page(tensor.grad._repr_html_())
    assert sorted(title.split(": ")[1] for title in page.cells) == ["implicit"] * 5 + ["primary, dirty"]


def test_ordinary_tensor_is_a_table_of_facts_with_nothing_unescaped() -> None:
    leaf = sw.tensor([[4321.5, 1.0]], requires_grad=True)
    made = leaf * 2.0
    for tensor, gradient in ((leaf, "wanted"), (made, "by ")):
        html = tensor._repr_html_()
        page = _Page(html)
        facts = " ".join(page.words)
        for part in ("shape", "Shape(1, 2)", "dtype", "Float32", "<CPU of 2 x Float32>", gradient):
            assert part in facts
        assert "4321" not in html
        assert "<CPU" not in html
    assert "gradient" not in sw.zeros(2)._repr_html_()
