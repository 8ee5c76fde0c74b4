"""A tensor cut into tiles that live in memory or on disk, each on its own."""

from strideweave.carriers.tiled_evictable.budget import BudgetExceeded
from strideweave.carriers.tiled_evictable.carrier import TiledEvictable
from strideweave.carriers.tiled_evictable.definition import TiledResidencyFacet
from strideweave.carriers.tiled_evictable.handles import AwaitProjection, AwaitResidency
from strideweave.carriers.tiled_evictable.observe import Statistics, TileState
from strideweave.carriers.tiled_evictable.policies import LFU, LRU, Adaptive, Pinned, Rounds, Schedule
from strideweave.carriers.tiled_evictable.policy import EvictionOrder, ResidencyPolicy
from strideweave.carriers.tiled_evictable.prefetching import Prefetcher
from strideweave.carriers.tiled_evictable.selection import ResidencyPlan, TileSelection, TileSet
from strideweave.carriers.tiled_evictable.streaming import TileStream

__all__ = [
    "LFU",
    "LRU",
    "Adaptive",
    "AwaitProjection",
    "AwaitResidency",
    "BudgetExceeded",
    "EvictionOrder",
    "Pinned",
    "Prefetcher",
    "ResidencyPlan",
    "ResidencyPolicy",
    "Rounds",
    "Schedule",
    "Statistics",
    "TileSelection",
    "TileSet",
    "TileState",
    "TileStream",
    "TiledEvictable",
    "TiledResidencyFacet",
]
