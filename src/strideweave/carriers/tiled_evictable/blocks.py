"""Operations in blocks: every block is one tile of each tiled operand, met with the same region of the others.

An operation is told by symbols, as in einsum: a symbol for every dim of an operand in mode dims, equal ones where they
meet, and none for a dim of extent 1 that is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import TypeAlias

import torch

from strideweave.carriers.tiled_evictable.geometry import Geometry
from strideweave.carriers.tiled_evictable.walking import Walk
from strideweave.io import watching

Symbols: TypeAlias = "tuple[int | None, ...]"
Region: TypeAlias = dict[int, tuple[int, int]]
"""Where every symbol begins and ends."""

_AHEAD_BLOCKS = 16


class Whole:
    """An operand in memory: a tensor in mode dims."""

    def __init__(self, values: torch.Tensor, symbols: Symbols) -> None:
        self.values = values
        self.symbols = symbols

    def part(self, region: Region) -> torch.Tensor:
        """The values of a region, one dim per symbol: repeated dims are left out."""
        return narrowed(self.values, self.symbols, region, [0] * len(self.symbols))


class Computed:
    """What a function makes of regions of operands in memory, when a region is asked for: never all of it at once."""

    def __init__(self, function: Callable[..., torch.Tensor], *sources: Whole) -> None:
        self._function = function
        self._sources = sources
        self.symbols = sources[0].symbols

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first source, which the function keeps."""
        return self._sources[0].values.dtype

    def part(self, region: Region) -> torch.Tensor:
        """The values of a region: as `Whole.part`."""
        return self._function(*(source.part(region) for source in self._sources))


class Tiled:
    """An operand in tiles, looked at by a walk; or a result in tiles, which has none. Its parts are on `device`."""

    def __init__(
        self, geometry: Geometry, symbols: Symbols, walk: Walk | None = None, device: torch.device | None = None
    ) -> None:
        self.geometry = geometry
        self.symbols = symbols
        self.walk = walk
        self._device = device
        self._current: tuple[int, torch.Tensor] | None = None

    def tiles_in(self, region: Region) -> Iterator[tuple[int, Region]]:
        """Every tile that a region meets, first axis fastest, with the part of the region that it has."""
        axes = []
        shape, whole = self.geometry.logical_shape, self.geometry.tile_shape
        for symbol, extent, tile in zip(self.symbols, shape, whole, strict=True):
            begin, end = (0, extent) if symbol is None else region[symbol]
            axes.append([(c, c * tile, min((c + 1) * tile, extent)) for c in range(begin // tile, -(-end // tile))])
        for chosen in product(*reversed(axes)):
            coordinate = chosen[::-1]
            part = dict(region)
            for symbol, (_, begin, end) in zip(self.symbols, coordinate, strict=True):
                if symbol is not None:
                    part[symbol] = max(part[symbol][0], begin), min(part[symbol][1], end)
            yield self.geometry.ordinal(tuple(c for c, _, _ in coordinate)), part

    @property
    def ordinal(self) -> int:
        """The tile that was looked at last; -1 before the first."""
        return -1 if self._current is None else self._current[0]

    def part(self, ordinal: int, region: Region) -> torch.Tensor:
        """The values of a region within one tile: as `Whole.part`."""
        assert self.walk is not None
        if self._current is None or self._current[0] != ordinal:
            self._current = (ordinal, self.walk.view(ordinal).to(self._device))
        return narrowed(self._current[1], self.symbols, region, self.geometry.origin_of(ordinal))


Source: TypeAlias = "Whole | Computed | Tiled"


def narrowed(values: torch.Tensor, symbols: Symbols, region: Region, origin: Sequence[int]) -> torch.Tensor:
    """The region of a tensor that begins at `origin`, without the dims that have no symbol."""
    for dim in range(len(symbols) - 1, -1, -1):
        symbol = symbols[dim]
        if symbol is None:
            values = values.select(dim, 0)
        else:
            begin, end = region[symbol]
            if begin != origin[dim] or end - begin != values.shape[dim]:
                values = values.narrow(dim, begin - origin[dim], end - begin)
    return values


def blocks(region: Region, sources: Sequence[Source]) -> Iterator[tuple[Region, list[torch.Tensor]]]:
    """Every block of a region with the part of it that each source has, in an order that is always the same.

    The tiles of later blocks are sent on their way before a block is given.
    """
    tiled = [source for source in sources if isinstance(source, Tiled)]
    coming = _meetings(region, tiled)
    ahead = deque(islice(coming, _AHEAD_BLOCKS))
    while ahead:
        for k, source in enumerate(tiled):
            if source.walk is not None:
                source.walk.expect(list(dict.fromkeys(ordinals[k] for _, ordinals in ahead)))
        here, ordinals = ahead.popleft()
        ahead.extend(islice(coming, 1))
        left = iter(ordinals)
        parts = [s.part(next(left), here) if isinstance(s, Tiled) else s.part(here) for s in sources]
        yield here, parts


def computing(name: str, sources: Sequence[Source]) -> watching.Event | watching.Nothing:
    """A block of arithmetic, as an event of the tile of the first tiled source."""
    for source in sources:
        if isinstance(source, Tiled) and source.walk is not None:
            return watching.event("compute", name, source.walk.subject, source.ordinal)
    return watching.event("compute", name)


def _meetings(region: Region, tiled: Sequence[Tiled]) -> Iterator[tuple[Region, tuple[int, ...]]]:
    if not tiled:
        yield region, ()
        return
    for ordinal, part in tiled[0].tiles_in(region):
        for here, rest in _meetings(part, tiled[1:]):
            yield here, (ordinal, *rest)


def contract(
    result: torch.Tensor, symbols: Symbols, begin: Sequence[int], region: Region, sources: Sequence[Source]
) -> None:
    """Add to `result`, which begins at `begin`, the product of the sources over a region, summed over other symbols.

    Shapes: `result` has one dim per symbol, and none for None. Accumulates in the dtype of `result`, which is zero
    before: where nothing is summed, the product is put there without a detour.
    """
    kept = [symbol for symbol in symbols if symbol is not None]
    dense = narrowed_dims(result, symbols)
    start = [b for b, symbol in zip(begin, symbols, strict=True) if symbol is not None]
    for here, parts in blocks(region, sources):
        with computing("contract", sources):
            target = narrowed(dense, tuple(kept), here, start)
            own = [[s for s in source.symbols if s is not None] for source in sources]
            values = [part if part.dtype == result.dtype else part.to(result.dtype) for part in parts]
            _add_product(target, kept, values, own)


def narrowed_dims(values: torch.Tensor, symbols: Symbols) -> torch.Tensor:
    """The same without the dims that have no symbol, which have extent 1."""
    for dim in range(len(symbols) - 1, -1, -1):
        if symbols[dim] is None:
            values = values.select(dim, 0)
    return values


def _add_product(
    target: torch.Tensor, kept: Sequence[int], values: Sequence[torch.Tensor], symbols: Sequence[Sequence[int]]
) -> None:
    if len(values) == 1:
        only, own = values[0], [*symbols[0]]
        gone = [dim for dim, symbol in enumerate(own) if symbol not in kept]
        shown = [symbol for symbol in own if symbol in kept]
        if not gone:
            target.copy_(_ordered(only, own, kept))
            return
        target += _ordered(only.sum(gone, dtype=target.dtype), shown, kept)
        return
    (a, b), (left, right) = values, symbols
    if a.dim() == b.dim() == target.dim() == 2:
        inner = [symbol for symbol in left if symbol not in kept]
        if len(inner) == 1 and inner[0] in right and kept[0] in left and kept[1] in right:
            target.addmm_(a if left[1] == inner[0] else a.T, b if right[0] == inner[0] else b.T)
            return
    if set(left) | set(right) == set(kept):
        torch.mul(_ordered(a, left, kept), _ordered(b, right, kept), out=target)
        return
    letters = {symbol: chr(97 + k) for k, symbol in enumerate(dict.fromkeys((*kept, *left, *right)))}
    spelled = ["".join(letters[s] for s in part) for part in (left, right, kept)]
    target += torch.einsum(f"{spelled[0]},{spelled[1]}->{spelled[2]}", a, b)


def _ordered(values: torch.Tensor, own: Sequence[int], kept: Sequence[int]) -> torch.Tensor:
    """The dims of `values` in the order of `kept`, 1 where it has no such symbol; nothing is copied."""
    index = [own.index(symbol) for symbol in kept if symbol in own]
    values = values.permute(index)
    for dim, symbol in enumerate(kept):
        if symbol not in own:
            values = values.unsqueeze(dim)
    return values
