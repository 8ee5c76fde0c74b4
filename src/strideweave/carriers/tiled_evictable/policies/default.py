"""Which eviction order a carrier gets: that of its policy, or LRU's."""

from __future__ import annotations

from strideweave.carriers.tiled_evictable.policies.lru import LRUOrder
from strideweave.carriers.tiled_evictable.policy import EvictionOrder


def eviction_order_of(policy: object, grid_shape: tuple[int, ...], slots: int) -> EvictionOrder:
    """A fresh order for one carrier; a policy that has no method `eviction_order` leaves it at LRU.

    Errors: TypeError for what is no EvictionOrder; whatever the policy raises.

    >>> from strideweave.carriers.tiled_evictable import LFU
    >>> from strideweave.carriers.tiled_evictable.policies.default import eviction_order_of
    >>> type(eviction_order_of(None, (4,), 2)).__name__, type(eviction_order_of(LFU(), (4,), 2)).__name__
    ('LRUOrder', 'LFUOrder')
    """
    make = getattr(policy, "eviction_order", None)
    if make is None:
        return LRUOrder()
    order = make(grid_shape, slots)
    if not isinstance(order, EvictionOrder):
        raise TypeError(
            f"cannot evict in the order of {type(policy).__name__}: eviction_order returned {type(order).__name__}. An "
            "EvictionOrder has use, arrive, forget and victims. Return one, or leave the method out."
        )
    return order
