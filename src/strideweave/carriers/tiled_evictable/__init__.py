"""A tensor cut into tiles that live in memory or on disk, each on its own."""

from strideweave.carriers.tiled_evictable.budget import BudgetExceeded
from strideweave.carriers.tiled_evictable.carrier import TiledEvictable
from strideweave.carriers.tiled_evictable.handles import AwaitProjection, AwaitResidency
from strideweave.carriers.tiled_evictable.observe import Statistics, TileState
from strideweave.carriers.tiled_evictable.policy import LRU, EvictionOrder, ResidencyPolicy
from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSelection, TileSet
from strideweave.carriers.tiled_evictable.streaming import TileStream

__all__ = [
    "LRU",
    "AwaitProjection",
    "AwaitResidency",
    "BudgetExceeded",
    "EvictionOrder",
    "ResidencyPlan",
    "ResidencyPolicy",
    "Statistics",
    "TileSelection",
    "TileSet",
    "TileState",
    "TileStream",
    "TiledEvictable",
]
