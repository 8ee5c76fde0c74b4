"""One operation made ready: where each argument's elements are, cut into boxes whose accesses are windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import sympy
import torch

from strideweave.spyre import config
from strideweave.spyre.expressions import evaluate, is_separable
from strideweave.spyre.pieces import Addresses, Piece, cut
from strideweave.spyre.specs import OpSpec, TensorArg
from strideweave.spyre.steps import dtype_of
from strideweave.spyre.trap import DeviceTrap
from strideweave.spyre.windows import address_parts

MOST_BOXES = 256
_MOST_POINTS = 2**22


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
        """The lowest and the highest element that the core with the widest window touches, and which core that is.

        A masked load touches nothing outside of its buffer, wherever its address would be. A computed index may be
        anywhere within its bound.
        """
        last = (math.prod(found.arg.device_size) - 1) * found.step
        low = high = core = 0
        step = 1
        for terms in address_parts((found.address,), (1,)):
            symbols = sorted(terms.free_symbols, key=lambda s: s.name)
            shares = [self._shares(found, symbol) for symbol in symbols]
            if len(symbols) > 1 and math.prod(share.size for share in shares) > _MOST_POINTS:
                return 0, last, 0
            least, most = _spreads(terms, symbols, shares)
            widest = np.unravel_index(int((most - least).argmax()), most.shape)
            low, high = low + int(least[widest]), high + int(most[widest])
            for share, place in zip(shares, widest[1::2], strict=True):
                core += int(place) * step
                step *= share.shape[1]
        return min(max(low, 0), last), min(max(high, 0), last), core

    def _shares(self, found: Argument, symbol: sympy.Symbol) -> np.ndarray[Any, Any]:
        """The values of a symbol by tile and core; the last core's are filled up with its last one."""
        indirect = self.spec.op_info.get("indirect", {})
        if symbol in indirect:
            return np.arange(int(indirect[symbol][1]), dtype=np.int64).reshape(1, 1, -1)
        extent, cores = self.ranges[symbol], self.spec.iteration_space[symbol][1]
        levels = [k for k in range(found.first_loop, len(self.loops)) if symbol in self.tiled[k]]
        begins = extent * np.arange(math.prod(self.loops[k] for k in levels), dtype=np.int64)
        part = -(-extent // cores)
        within = np.minimum(np.arange(cores * part, dtype=np.int64), extent - 1)
        return begins.reshape(-1, 1, 1) + within.reshape(1, cores, part)

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


def _spreads(
    terms: sympy.Expr, symbols: Sequence[sympy.Symbol], shares: Sequence[np.ndarray[Any, Any]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The least and the greatest value that terms take, for every tile and core of every symbol."""
    shape = [n for share in shares for n in share.shape]
    grid = {}
    for k, (symbol, share) in enumerate(zip(symbols, shares, strict=True)):
        grid[symbol] = share.reshape([n if d // 3 == k else 1 for d, n in enumerate(shape)])
    values = np.broadcast_to(np.asarray(evaluate(terms, grid)), shape)
    within = tuple(range(2, len(shape), 3))
    return values.min(axis=within), values.max(axis=within)
