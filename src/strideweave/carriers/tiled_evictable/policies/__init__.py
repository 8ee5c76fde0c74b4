"""The policies that come with tiled carriers, one a file."""

from strideweave.carriers.tiled_evictable.policies.adaptive import Adaptive
from strideweave.carriers.tiled_evictable.policies.default import eviction_order_of
from strideweave.carriers.tiled_evictable.policies.lfu import LFU
from strideweave.carriers.tiled_evictable.policies.lru import LRU
from strideweave.carriers.tiled_evictable.policies.pinned import Pinned
from strideweave.carriers.tiled_evictable.policies.rounds import Rounds
from strideweave.carriers.tiled_evictable.policies.schedule import Schedule

__all__ = ["LFU", "LRU", "Adaptive", "Pinned", "Rounds", "Schedule", "eviction_order_of"]
