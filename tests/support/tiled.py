"""Small tiled carriers, and everything that a refused request must leave as it was."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch

from strideweave import CPU, Carrier, Layout, Tensor, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable import Statistics, TileState
from support.scripted_carrier import ScriptedCarrier

Coordinate = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """What can be seen of a carrier without reading a value."""

    states: dict[Coordinate, TileState]
    version: int
    statistics: Statistics
    owned: tuple[bool, ...]
    released: tuple[bool, ...]


def coordinates(carrier: TiledEvictable) -> list[Coordinate]:
    """Every tile of the grid, first axis fastest."""
    return [c[::-1] for c in itertools.product(*(range(n) for n in carrier.grid_shape[::-1]))]


def every_tile(carrier: TiledEvictable) -> TileSet:
    return TileSet(coordinates(carrier))


def situation(carrier: TiledEvictable) -> Situation:
    tiers = (carrier, carrier.primary, carrier.secondary)
    return Situation(
        {c: carrier.tile_state(c) for c in coordinates(carrier)},
        carrier.version,
        replace(carrier.statistics(), stall_s=0.0),
        tuple(tier.is_owned() for tier in tiers),
        tuple(tier.is_released() for tier in tiers),
    )


def locations(carrier: TiledEvictable) -> dict[Coordinate, str]:
    return {c: carrier.tile_state(c).location for c in coordinates(carrier)}


def slots_of(carrier: TiledEvictable) -> torch.Tensor:
    """Every slot, read one by one through the public element access (which promotes nothing)."""
    return torch.tensor([carrier[k] for k in range(carrier.size())], dtype=carrier.dtype().torch_dtype)


def experts(
    count: int = 4, *, budget_tiles: int | None = None, **options: Any
) -> tuple[TiledEvictable, Tensor, torch.Tensor, ScriptedCarrier]:
    """A (count, 2, 3) weight of one expert per tile, all of it in a scripted secondary."""
    dense = torch.arange(1.0, 6 * count + 1).reshape(count, 2, 3)
    secondary = ScriptedCarrier(dense.reshape(-1))
    layout = Layout.row_major(count, 2, 3)
    carrier = TiledEvictable(
        CPU(0),
        secondary,
        (count, 1, 1),
        (1, 2, 3),
        layout=layout,
        budget=None if budget_tiles is None else budget_tiles * 24,
        **options,
    )
    return carrier, Tensor(carrier, 0, layout), dense, secondary


def matrix(
    primary: Carrier | None = None, secondary: Carrier | None = None, **options: Any
) -> tuple[TiledEvictable, Tensor, torch.Tensor]:
    """A 4 x 4 matrix in 2 x 2 tiles, first mode fastest, its value at (i, j) being i + 4 * j."""
    flat = torch.arange(16.0)
    carrier = TiledEvictable(
        primary or CPU.wrap(flat.clone()), secondary or ScriptedCarrier(), (2, 2), (2, 2), **options
    )
    return carrier, Tensor(carrier, 0, Layout.column_major(4, 4)), flat.reshape(4, 4).T


def tiles(*ordinals: int) -> TileSet:
    """Expert tiles by number."""
    return TileSet([(k, 0, 0) for k in ordinals])
