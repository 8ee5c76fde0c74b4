"""One operation made ready: where each argument's elements are, cut into boxes whose accesses are windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import numpy as np
import sympy
import torch

from strideweave.spyre import config
from strideweave.spyre.expressions import evaluate, is_separable
from strideweave.spyre.pieces import Addresses, Piece, cut
from strideweave.spyre.specs import OpSpec, TensorArg
from strideweave.spyre.steps import dtype_of
from strideweave.spyre.trap import DeviceTrap

MOST_BOXES = 256
_MOST_CHUNKS: Final = 4096
"""Tiles and cores are looked at one by one, up to so many."""


@dataclass(eq=False)
class Argument:
    """One access of an operation."""

    arg: TensorArg
    dtype: torch.dtype
    step: int
    """Elements of `dtype` from one device element to the next."""
    address: sympy.Expr
    """Device elements from the buffer's begin."""
    constant: int
    first_loop: int
    """The outermost loop that moves it; loops before it leave it in place."""
    parts: dict[sympy.Symbol, Addresses] = field(default_factory=dict)
    """For every symbol, in elements of `dtype`, what each of its values within a tile adds."""
    starts: dict[sympy.Symbol, list[int]] = field(default_factory=dict)
    """For every tiled symbol what each tile adds; a window only where tiles are alike."""
    advances: list[tuple[int, int]] | None = None
    """For every loop that moves it, outermost as 0, by how much each time; None where tiles are not evenly apart."""
    is_window: bool = True
    """Whether every box of it is a strided window; gathered element by element otherwise."""


@dataclass(frozen=True, eq=False)
class Window:
    """The elements of one argument over a box, in its buffer."""

    sizes: tuple[int, ...]
    """Extents, 1 where it repeats."""
    strides: tuple[int, ...]
    """None of them negative: `flips` are the dims that run backwards."""
    offset: int
    flips: tuple[int, ...]
    low: int
    """The lowest element, counted as `offset` is."""
    high: int
    """The highest one."""


@dataclass(frozen=True, eq=False)
class Box:
    """Part of the iteration space: digits of all symbols, and each argument's window over them."""

    sizes: tuple[int, ...]
    pieces: tuple[Piece, ...]
    """One per symbol."""
    windows: tuple[Window | None, ...]
    """Per argument its window; None where it is gathered."""


class PreparedOp:
    """An operation with its loops, its arguments and its boxes."""

    def __init__(self, spec: OpSpec, loops: Sequence[int]) -> None:
        self.spec = spec
        self.loops = tuple(loops)
        self.symbols = list(spec.iteration_space)
        self.ranges = {s: int(extent) for s, (extent, _) in spec.iteration_space.items()}
        self.tiled = list(reversed(spec.tiled_symbols)) if spec.tiled_symbols else [()] * len(loops)
        self.arguments = [self._argument(arg) for arg in spec.args]
        self._require_windows()
        self.boxes = self._boxes()
        self.nbytes = sum(
            math.prod(self.ranges[s] for s in self.symbols if s in a.address.free_symbols) * a.arg.device_dtype.itemsize
            for a in self.arguments
        )

    # -- addresses ---------------------------------------------------------------------------------------------------

    def advance(self, symbol: sympy.Symbol, level: int) -> int:
        """How far one iteration of a loop moves a symbol."""
        inner = [self.loops[k] for k in range(level + 1, len(self.loops)) if symbol in self.tiled[k]]
        return self.ranges[symbol] * math.prod(inner)

    def start(self, symbol: sympy.Symbol, iteration: Sequence[int], first_loop: int = 0) -> int:
        """The value of a symbol at the begin of a tile, as loops from `first_loop` on move it."""
        return sum(
            iteration[level] * self.advance(symbol, level)
            for level in range(first_loop, len(self.loops))
            if symbol in self.tiled[level]
        )

    def _argument(self, arg: TensorArg) -> Argument:
        dtype = dtype_of(arg.dtype)
        step = arg.device_dtype.itemsize // dtype.itemsize
        terms = zip(arg.device_coordinates, arg.device_strides, strict=True)
        address = sympy.expand(sympy.Add(*(c * s for c, s in terms))) * step
        address = sympy.expand(address)
        first_loop = len(self.loops) if arg.per_tile_fixed else arg.fixed_loops
        symbols = address.free_symbols
        known = set(self.symbols)
        if not symbols <= known or not is_separable(address):
            return Argument(arg, dtype, step, address, 0, first_loop, is_window=False)
        zero = dict.fromkeys(self.symbols, 0)
        constant = int(evaluate(address, zero))
        found = Argument(arg, dtype, step, address, constant, first_loop)
        for symbol in self.symbols:
            if symbol in symbols:
                self._add_part(found, symbol, zero)
        found.advances = self._advances(found)
        return found

    def _advances(self, found: Argument) -> list[tuple[int, int]] | None:
        steps = dict.fromkeys(range(found.first_loop, len(self.loops)), 0)
        for symbol, starts in found.starts.items():
            if len(starts) == 1:
                continue
            if any(start != k * starts[1] for k, start in enumerate(starts)):
                return None
            for level in steps:
                if symbol in self.tiled[level]:
                    steps[level] += starts[1] * self.advance(symbol, level) // self.ranges[symbol]
        return [(level, step) for level, step in steps.items() if step]

    def _add_part(self, found: Argument, symbol: sympy.Symbol, zero: dict[sympy.Symbol, int]) -> None:
        extent = self.ranges[symbol]
        tiles = math.prod(
            self.loops[level] for level in range(found.first_loop, len(self.loops)) if symbol in self.tiled[level]
        )
        values = evaluate(found.address, {**zero, symbol: np.arange(extent * tiles, dtype=np.int64)})
        rows = (np.broadcast_to(values, extent * tiles) - found.constant).reshape(tiles, extent)
        within = rows - rows[:, :1]
        if not (within == within[:1]).all():
            found.is_window = False
        found.parts[symbol] = rows[0] if tiles == 1 else within[0] + rows[0, 0]
        found.starts[symbol] = (rows[:, 0] - rows[0, 0]).tolist()

    # -- the limit ---------------------------------------------------------------------------------------------------

    def _require_windows(self) -> None:
        """Every core's touched addresses are within the limit. Errors: DeviceTrap before anything has run."""
        limit = config.max_span_bytes
        for number, found in enumerate(self.arguments):
            itemsize = found.arg.device_dtype.itemsize
            if math.prod(found.arg.device_size) * itemsize <= limit:
                continue
            low, high, core = self._touched(found)
            nbytes = (high - low) // found.step * itemsize + itemsize
            if nbytes > limit:
                raise DeviceTrap(self.spec.op, core, number, found.arg.name, low * found.dtype.itemsize, nbytes, limit)

    def _touched(self, found: Argument) -> tuple[int, int, int]:
        """The lowest and the highest element that the core with the widest window touches, and which core that is."""
        if not found.is_window:
            return self._touched_anywhere(found)
        low = high = found.constant
        core = place = 0
        step = 1
        place = 0
        for symbol, addresses in found.parts.items():
            cores = self.spec.iteration_space[symbol][1]
            part = -(-len(addresses) // cores)
            chunks = [addresses[k * part : (k + 1) * part] for k in range(cores) if k * part < len(addresses)]
            spreads = [(int(chunk.max()) - int(chunk.min()), k) for k, chunk in enumerate(chunks)]
            _, widest = max(spreads)
            low += int(chunks[widest].min())
            high += int(chunks[widest].max())
            place += widest * step
            step *= cores
            core = place
        return low, high, core

    def _touched_anywhere(self, found: Argument) -> tuple[int, int, int]:
        """The same for what is no sum of parts of one symbol: terms that share symbols together, at all of their points.

        A computed index may be any of its extent. The core is not told.
        """
        low = high = 0
        for symbols, terms in _groups(found.address):
            spreads = [self._extremes(terms, symbols, chosen) for chosen in self._chunks(found, symbols)]
            widest = max(spreads, key=lambda spread: spread[1] - spread[0])
            low, high = low + widest[0], high + widest[1]
        return low, high, 0

    def _chunks(self, found: Argument, symbols: Sequence[sympy.Symbol]) -> Iterator[tuple[range, ...]]:
        """What one core and one tile have of some symbols, for all cores and tiles; the outermost ones if many."""
        every = [list(self._chunks_of(found, symbol)) for symbol in symbols]
        if math.prod(map(len, every)) > _MOST_CHUNKS:
            every = [[*chunks[:2], *chunks[-2:]] for chunks in every]
        return product(*every)

    def _chunks_of(self, found: Argument, symbol: sympy.Symbol) -> Iterator[range]:
        if symbol not in self.ranges:
            yield range(int(self.spec.op_info["indirect"][symbol][1]))
            return
        extent, cores = self.ranges[symbol], self.spec.iteration_space[symbol][1]
        part = -(-extent // cores)
        levels = [level for level in range(found.first_loop, len(self.loops)) if symbol in self.tiled[level]]
        for tile in range(math.prod(self.loops[level] for level in levels)):
            for begin in range(0, extent, part):
                yield range(tile * extent + begin, tile * extent + min(begin + part, extent))

    def _extremes(
        self, terms: sympy.Expr, symbols: Sequence[sympy.Symbol], chosen: Sequence[range]
    ) -> tuple[int, int]:
        values = {}
        for k, (symbol, points) in enumerate(zip(symbols, chosen, strict=True)):
            shape = [1] * len(symbols)
            shape[k] = len(points)
            values[symbol] = np.arange(points.start, points.stop, dtype=np.int64).reshape(shape)
        found = np.asarray(evaluate(terms, values))
        return int(found.min()), int(found.max())

    # -- boxes -------------------------------------------------------------------------------------------------------

    def _boxes(self) -> list[Box]:
        while True:
            pieces = [self._pieces(symbol) for symbol in self.symbols]
            blocked = next((k for k, found in enumerate(pieces) if found is None), None)
            if blocked is None and math.prod(len(found or ()) for found in pieces) <= MOST_BOXES:
                boxes = [self._box(chosen) for chosen in product(*(found or () for found in pieces))]
                if not any(box.windows[-1] is not None and box.windows[-1].flips for box in boxes):
                    return boxes
                self.arguments[-1].is_window = False  # written backwards: put element by element
                continue
            self._gather_one(self.symbols[blocked] if blocked is not None else None)

    def _gather_one(self, symbol: sympy.Symbol | None) -> None:
        """Give up the windows of the argument that breaks the range most often."""
        windows = [a for a in self.arguments if a.is_window and a.parts]

        def breaks(found: Argument) -> int:
            symbols = [symbol] if symbol is not None else list(found.parts)
            return sum(
                int((np.diff(found.parts[s], n=2) != 0).sum())
                for s in symbols
                if s in found.parts and self.ranges[s] > 2
            )

        max(windows, key=breaks).is_window = False

    def _pieces(self, symbol: sympy.Symbol) -> list[Piece] | None:
        extent = self.ranges[symbol]
        rows = [
            found.parts.get(symbol, np.zeros(extent, dtype=np.int64)) if found.is_window else np.zeros(extent, np.int64)
            for found in self.arguments
        ]
        return cut(np.stack(rows))

    def _box(self, pieces: Sequence[Piece]) -> Box:
        sizes = tuple(digit.extent for piece in pieces for digit in piece.digits)
        windows = [self._window(k, pieces) if found.is_window else None for k, found in enumerate(self.arguments)]
        return Box(sizes, tuple(pieces), tuple(windows))

    def _window(self, number: int, pieces: Sequence[Piece]) -> Window:
        digits = [digit for piece in pieces for digit in piece.digits]
        strides = tuple(digit.strides[number] for digit in digits)
        own = tuple(digit.extent if digit.strides[number] else 1 for digit in digits)
        begin = self.arguments[number].constant + sum(piece.offsets[number] for piece in pieces)
        reach = [(n - 1) * d for n, d in zip(own, strides, strict=True)]
        low = begin + sum(min(r, 0) for r in reach)
        flips = tuple(dim for dim, stride in enumerate(strides) if stride < 0)
        return Window(own, tuple(map(abs, strides)), low, flips, low, begin + sum(max(r, 0) for r in reach))


def _groups(address: sympy.Expr) -> list[tuple[list[sympy.Symbol], sympy.Expr]]:
    """The terms of an address, those that share symbols together; constants by themselves."""
    groups: list[tuple[list[sympy.Symbol], sympy.Expr]] = []
    for term in sympy.Add.make_args(address):
        symbols, together = sorted(term.free_symbols, key=str), term
        for group in [g for g in groups if set(g[0]) & set(symbols)]:
            groups.remove(group)
            symbols, together = sorted({*symbols, *group[0]}, key=str), together + group[1]
        groups.append((symbols, together))
    return groups
