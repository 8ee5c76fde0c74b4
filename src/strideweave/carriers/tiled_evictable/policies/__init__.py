"""The policies that come with tiled carriers, one a file."""

from strideweave.carriers.tiled_evictable.policies.default import eviction_order_of
from strideweave.carriers.tiled_evictable.policies.lfu import LFU
from strideweave.carriers.tiled_evictable.policies.lru import LRU
from strideweave.carriers.tiled_evictable.policies.pinned import Pinned
from strideweave.carriers.tiled_evictable.policies.schedule import Schedule

__all__ = ["LFU", "LRU", "Pinned", "Schedule", "eviction_order_of"]
