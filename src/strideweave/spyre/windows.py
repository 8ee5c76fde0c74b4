"""The window of an access: the bytes between the lowest and the highest address that it touches. The one span function.

An address is a sum of parts with one symbol each, so that the window is the sum of what each part spans. A part with
floor and Mod repeats itself after a period but for a drift: its first and its last period have all extremes, and only
these are looked at, however long the range is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import attrgetter
from typing import Any, Final

import numpy as np
import sympy

from strideweave.spyre.expressions import evaluate

_name = attrgetter("name")
_MOST_POINTS: Final = 2**20
"""Parts that mix symbols are enumerated up to so many points."""
_LONGEST_PERIOD: Final = 2**22
_MOST_TILES: Final = 4096
"""Tiles that begin at different places of a period are looked at one by one, up to so many."""


@dataclass(frozen=True, slots=True)
class Window:
    """The addresses of an access, in bytes from the begin of its buffer."""

    min_byte: int
    max_byte: int
    """The last byte that is touched."""

    @property
    def nbytes(self) -> int:
        """How many bytes the window has."""
        return self.max_byte - self.min_byte + 1


def access_window(
    coordinates: Sequence[sympy.Expr],
    device_size: Sequence[int],
    itemsize: int,
    ranges: Mapping[sympy.Symbol, int],
    *,
    starts: Mapping[sympy.Symbol, int] | None = None,
    indirect: Mapping[sympy.Symbol, int] | None = None,
) -> Window | None:
    """The exact window of an access over the box of its ranges, which begin at 0 or at `starts`.

    `indirect` bounds symbols that stand for computed values: all of their range counts. None for an address in which
    one floor or Mod mixes symbols, over too many points to enumerate.

    Shapes: one coordinate per device dim. Units: `itemsize` in bytes.

    >>> import sympy
    >>> c = sympy.Symbol("c", integer=True)
    >>> access_window([sympy.floor(c / 64), sympy.Integer(3), sympy.Mod(c, 64)], (4, 1024, 64), 2, {c: 130}).nbytes
    262148
    """
    bounds = {**ranges, **(indirect or {})}
    begins = {symbol: (starts or {}).get(symbol, 0) for symbol in bounds}
    low = high = 0
    for terms in address_parts(tuple(coordinates), tuple(device_size)):
        symbols = tuple(sorted(terms.free_symbols, key=_name))
        found = _extremes(terms, symbols, tuple(begins[s] for s in symbols), tuple(int(bounds[s]) for s in symbols))
        if found is None:
            return None
        low, high = low + found[0], high + found[1]
    return Window(low * itemsize, high * itemsize + itemsize - 1)


@lru_cache(maxsize=4096)
def address_parts(coordinates: tuple[sympy.Expr, ...], device_size: tuple[int, ...]) -> tuple[sympy.Expr, ...]:
    """The linear address in elements as a sum of parts without common symbols."""
    address, stride = sympy.S.Zero, 1
    for coordinate, extent in zip(reversed(coordinates), reversed(device_size), strict=True):
        address += coordinate * stride
        stride *= extent
    parts: list[tuple[set[Any], sympy.Expr]] = []
    for term in sympy.Add.make_args(sympy.expand(address)):
        symbols, together = set(term.free_symbols), term
        for other in [p for p in parts if p[0] & symbols]:
            parts.remove(other)
            symbols, together = symbols | other[0], together + other[1]
        parts.append((symbols, together))
    return tuple(part for _, part in parts)


@lru_cache(maxsize=16384)
def _extremes(
    part: sympy.Expr, symbols: tuple[sympy.Symbol, ...], begins: tuple[int, ...], extents: tuple[int, ...]
) -> tuple[int, int] | None:
    """The least and the greatest value of a part."""
    if not symbols:
        value = int(evaluate(part, {}))
        return value, value
    if len(symbols) > 1:
        if math.prod(extents) > _MOST_POINTS:
            return None
        grid: dict[sympy.Symbol, Any] = {}
        for k, (symbol, begin, extent) in enumerate(zip(symbols, begins, extents, strict=True)):
            shape = [1] * len(symbols)
            shape[k] = extent
            grid[symbol] = np.arange(begin, begin + extent, dtype=np.int64).reshape(shape)
        values = np.asarray(evaluate(part, grid))
        return int(values.min()), int(values.max())
    (symbol,), (begin,), (extent,) = symbols, begins, extents
    step = 1 if part is symbol else None
    if part.is_Mul and part.args[0].is_Integer and part.args[1:] == (symbol,):
        step = int(part.args[0])
    if step is not None:
        ends = begin * step, (begin + extent - 1) * step
        return min(ends), max(ends)
    length = min(extent, period(part, symbol))
    if extent <= 2 * length:
        points = np.arange(begin, begin + extent, dtype=np.int64)
    else:
        first = np.arange(begin, begin + length, dtype=np.int64)
        points = np.concatenate([first, np.arange(begin + extent - length, begin + extent, dtype=np.int64)])
    values = np.broadcast_to(np.asarray(evaluate(part, {symbol: points})), points.shape)
    return int(values.min()), int(values.max())


@lru_cache(maxsize=4096)
def period(part: sympy.Expr, symbol: sympy.Symbol) -> int:
    """After how many steps of a symbol a part repeats itself but for a constant: f(v + p) = f(v) + d for all v.

    >>> import sympy
    >>> c = sympy.Symbol("c", integer=True)
    >>> period(sympy.Mod(3 * c, 64) + sympy.floor(c / 6), c)
    192
    """
    if not part.args or symbol not in part.free_symbols:
        return 1
    name = type(part).__name__
    if name in ("floor", "Mod", "FloorDiv", "ModularIndexing", "CleanDiv", "PythonMod"):
        inner, modulus = _inside(part)
        p = period(inner, symbol)
        others = dict.fromkeys(inner.free_symbols, 0)  # the drift along one symbol is the same wherever they are
        drift = abs(int(evaluate(inner, {**others, symbol: p})) - int(evaluate(inner, others)))
        return min(p * (modulus // math.gcd(drift, modulus)), _LONGEST_PERIOD)
    return min(math.lcm(*(period(arg, symbol) for arg in part.args)), _LONGEST_PERIOD)


def _inside(part: sympy.Expr) -> tuple[sympy.Expr, int]:
    """What a floor or Mod is taken of, in whole numbers, and of how many."""
    if type(part).__name__ == "floor":
        numerator, denominator = sympy.fraction(sympy.together(part.args[0]))
        return numerator, int(denominator)
    return part.args[0], math.prod(int(a) for a in part.args[1:])


def largest_tile_window(
    coordinates: Sequence[sympy.Expr],
    device_size: Sequence[int],
    itemsize: int,
    ranges: Mapping[sympy.Symbol, int],
    tiles: Mapping[sympy.Symbol, int],
) -> int | None:
    """The bytes of the largest window over all tiles; `ranges` are those of one tile, `tiles` how many there are.

    Tiles begin at multiples of their range: windows differ only where that is no multiple of a period, and then by
    residues, of which there are few.

    >>> import sympy
    >>> c = sympy.Symbol("c", integer=True)
    >>> largest_tile_window([sympy.floor(c / 4), sympy.Mod(c, 4)], (100, 4), 1, {c: 6}, {c: 10})
    6
    """
    total = 1
    for part in address_parts(tuple(coordinates), tuple(device_size)):
        span = part_span(part, ranges, tiles)
        if span is None:
            return None
        total += span
    return total * itemsize


def part_span(part: sympy.Expr, ranges: Mapping[sympy.Symbol, int], tiles: Mapping[sympy.Symbol, int]) -> int | None:
    """Between the least and the greatest value of a part of an address, in elements, in the tile where that is most."""
    symbols = tuple(sorted(part.free_symbols, key=_name))
    extents = tuple(int(ranges[s]) for s in symbols)
    starts = []
    for symbol, extent in zip(symbols, extents, strict=True):
        count = tiles.get(symbol, 1)
        if count > 1:
            repeats = period(part, symbol)
            count = min(count, repeats // math.gcd(extent, repeats))
        starts.append([k * extent for k in range(count)])
    if math.prod(map(len, starts)) > _MOST_TILES:
        return None
    widest = 0
    for begins in product(*starts):
        found = _extremes(part, symbols, begins, extents)
        if found is None:
            return None
        widest = max(widest, found[1] - found[0])
    return widest


def coordinate_span_elems(
    coordinate: sympy.Expr, ranges: Mapping[sympy.Symbol, int], splits: Mapping[sympy.Symbol, int]
) -> int | None:
    """The seed's conservative bound on how many values one device coordinate takes in a tile; None where it gives none.

    The sum over symbols of what each term spans with the others at 0, plus 1. A term with Mod is looked at only at the
    ends of its range and where a bare symbol wraps; a Mod of anything else gives None, as does a range that its split
    does not divide.

    >>> import sympy
    >>> h = sympy.Symbol("h", integer=True)
    >>> coordinate_span_elems(sympy.floor(2 * sympy.Mod(h, 2048)), {h: 6000}, {})
    4095
    """
    total = 0
    for symbol in sorted(coordinate.free_symbols, key=_name):
        if symbol not in ranges:
            return None
        extent, split = int(ranges[symbol]), int(splits.get(symbol, 1))
        if extent % split:
            return None
        extent //= split
        term = coordinate.subs({other: 0 for other in coordinate.free_symbols if other != symbol})
        points = {0, extent - 1}
        for atom in term.atoms(sympy.Mod):
            if atom.args[0] != symbol:
                return None
            points.add(min(extent, int(atom.args[1])) - 1)
        values = [int(evaluate(term, {symbol: point})) for point in points]
        total += max(values) - min(values)
    return total + 1
