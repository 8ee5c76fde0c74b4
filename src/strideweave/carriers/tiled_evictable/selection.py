"""Which tiles a request is about: ordered products, arbitrary sets, and the plan of a policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np

Coordinate: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, init=False)
class TileSelection:
    """The tiles that a projection gathers: the Cartesian product of one ordered choice per grid axis.

    `coordinates` enumerates the product with the first axis fastest, each axis in the caller's order.

    Errors: TypeError for what is no finite iterable of integers; ValueError for no axes, an empty axis, a negative or a
    repeated coordinate.
    Source: seed 000, "TileSelection is an ordered Cartesian product".

    >>> from strideweave import TileSelection
    >>> TileSelection([[7, 2], [4, 9]]).coordinates
    ((7, 4), (2, 4), (7, 9), (2, 9))
    """

    per_axis: tuple[tuple[int, ...], ...]
    """The chosen coordinates of each grid axis, in the caller's order."""

    def __init__(self, per_axis: Iterable[Iterable[int]]) -> None:
        axes = _iterate(per_axis, "per_axis")
        chosen = tuple(tuple(_component(c) for c in _iterate(axis, f"per_axis[{k}]")) for k, axis in enumerate(axes))
        if not chosen:
            raise ValueError(
                "cannot select tiles over no axes: a selection needs one axis per grid axis. Pass the axes."
            )
        for k, axis in enumerate(chosen):
            if not axis:
                raise ValueError(f"cannot select tiles with per_axis[{k}] empty: an axis needs a coordinate. Name one.")
            _require_non_negative(axis, f"per_axis[{k}]")
            if len(set(axis)) != len(axis):
                raise ValueError(
                    f"cannot select tiles with per_axis[{k}] = {axis}: it holds a duplicate. Name each coordinate once."
                )
        object.__setattr__(self, "per_axis", chosen)

    @property
    def rank(self) -> int:
        """The number of grid axes."""
        return len(self.per_axis)

    @property
    def compact_grid_shape(self) -> tuple[int, ...]:
        """How many tiles the compact result has along each axis."""
        return tuple(len(axis) for axis in self.per_axis)

    @cached_property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """Every selected tile, first axis fastest."""
        return tuple(c[::-1] for c in product(*self.per_axis[::-1]))

    @cached_property
    def tile_set(self) -> TileSet:
        """The same tiles as a set."""
        return TileSet(self.coordinates)

    @cached_property
    def _placed(self) -> tuple[tuple[Coordinate, Coordinate], ...]:
        """Every selected tile with its place in the compact grid, in the order of `coordinates`."""
        places = (place[::-1] for place in product(*map(range, self.compact_grid_shape[::-1])))
        return tuple(zip(self.coordinates, places, strict=True))

    def _validate_grid_shape(self, grid_shape: tuple[int, ...]) -> None:
        """Raise ValueError unless every coordinate lies in the grid."""
        if self.rank != len(grid_shape):
            raise ValueError(
                f"cannot bind a selection of rank {self.rank} to a grid of shape {grid_shape}: the rank must be "
                f"{len(grid_shape)}. Name one axis per grid axis."
            )
        for k, (axis, extent) in enumerate(zip(self.per_axis, grid_shape, strict=True)):
            if max(axis) >= extent:
                raise ValueError(
                    f"cannot bind per_axis[{k}] with coordinate {max(axis)} to a grid of shape {grid_shape}: it lies "
                    f"outside, the axis has {extent} tiles. Use coordinates below {extent}."
                )


@dataclass(frozen=True, init=False)
class TileSet:
    """An immutable set of tiles, in any shape; sorted with the first axis fastest.

    Errors: TypeError for what is no finite iterable of integer coordinates; ValueError for mixed ranks, a negative
    component or a duplicate.
    Source: seed 000, "Residency requests use arbitrary immutable tile sets".

    >>> from strideweave import TileSet
    >>> TileSet([(0, 1), (1, 0), (0, 0)]).coordinates
    ((0, 0), (1, 0), (0, 1))
    """

    coordinates: tuple[Coordinate, ...]
    """The tiles, sorted by their reversed coordinates."""

    def __init__(self, coordinates: Iterable[Iterable[int]] = ()) -> None:
        tiles = [
            tuple(_component(c) for c in _iterate(tile, f"coordinates[{k}]"))
            for k, tile in enumerate(_iterate(coordinates, "coordinates"))
        ]
        if len({len(tile) for tile in tiles}) > 1:
            ranks = sorted({len(tile) for tile in tiles})
            raise ValueError(
                f"cannot make a TileSet of ranks {ranks}: tiles have the same rank. Name full coordinates."
            )
        for k, tile in enumerate(tiles):
            _require_non_negative(tile, f"coordinates[{k}]")
        if len(set(tiles)) != len(tiles):
            raise ValueError("cannot make a TileSet with a duplicate: a set holds a tile once. Name each tile once.")
        object.__setattr__(self, "coordinates", tuple(sorted(tiles, key=lambda tile: tile[::-1])))

    def __len__(self) -> int:
        return len(self.coordinates)

    def __contains__(self, coordinate: object) -> bool:
        return coordinate in self._members

    @cached_property
    def _members(self) -> frozenset[Coordinate]:
        return frozenset(self.coordinates)

    def _validate_grid_shape(self, grid_shape: tuple[int, ...]) -> None:
        """Raise ValueError unless every coordinate lies in the grid; an empty set fits any grid."""
        for tile in self.coordinates:
            if len(tile) != len(grid_shape):
                raise ValueError(
                    f"cannot bind tile {tile} to a grid of shape {grid_shape}: the rank must be {len(grid_shape)}. "
                    "Name one component per grid axis."
                )
            if any(c >= extent for c, extent in zip(tile, grid_shape, strict=True)):
                raise ValueError(
                    f"cannot bind tile {tile} to a grid of shape {grid_shape}: it lies outside. Use smaller "
                    "coordinates."
                )


@dataclass(frozen=True, init=False)
class ResidencyPlan:
    """What a policy decides for one request: tiles to promote first, to keep meanwhile, to evict after.

    Errors: TypeError for what is no TileSet; ValueError when a tile stands in two fields.
    Source: seed 000, "Residency requests use arbitrary immutable tile sets".

    >>> from strideweave import ResidencyPlan, TileSet
    >>> ResidencyPlan(evict=TileSet([(3,)])).promote
    TileSet(coordinates=())
    """

    promote: TileSet
    retain: TileSet
    evict: TileSet

    def __init__(
        self, promote: TileSet | None = None, retain: TileSet | None = None, evict: TileSet | None = None
    ) -> None:
        fields = {"promote": promote, "retain": retain, "evict": evict}
        for name, tiles in fields.items():
            if tiles is not None and not isinstance(tiles, TileSet):
                raise TypeError(
                    f"cannot plan {name}={tiles!r}: {name} must be a TileSet. Pass TileSet([...]) or leave it out."
                )
            object.__setattr__(self, name, TileSet() if tiles is None else tiles)
        seen: dict[Coordinate, str] = {}
        for name in fields:
            for tile in getattr(self, name).coordinates:
                if tile in seen:
                    raise ValueError(
                        f"cannot plan tile {tile} for {seen[tile]} and for {name}: the fields must be disjoint. "
                        "Name it in one."
                    )
                seen[tile] = name


def _iterate(value: object, name: str) -> list[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"cannot read {name} from {value!r}: {name} must be a finite iterable. Pass a list or tuple.")
    return list(value)


def _component(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(
            f"cannot use {value!r} in a tile coordinate: tile coordinates must be integers, and so their components "
            "must be integers. Pass ints."
        )
    return int(value)


def _require_non_negative(components: tuple[int, ...], name: str) -> None:
    if any(c < 0 for c in components):
        raise ValueError(f"cannot use {name} = {components}: components must be non-negative. Count tiles from 0.")
