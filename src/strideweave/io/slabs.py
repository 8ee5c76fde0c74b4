"""Equal pieces of one mapping: memory whose size is known before it is used."""

from __future__ import annotations

from heapq import heappop, heappush
from threading import RLock

from strideweave.io.mapping import PAGE_NBYTES, map_aligned


class SlabPool:
    """`capacity` equal slabs of `slab_nbytes` each, in one private mapping, touched only as they are used.

    Slabs start `stride_nbytes` apart, a multiple of 4096; the region starts at a multiple of 2 MiB when it is
    that large, and asks for huge pages. What stays resident never exceeds `capacity * stride_nbytes`,
    whatever is taken and given.

    Units: bytes. Errors: ValueError for a negative size; MemoryError when the mapping is refused;
    AssertionError when a slab is given back that is not out.

    >>> pool = SlabPool(5000, capacity=2)
    >>> pool.stride_nbytes, pool.take(), pool.take(), pool.take()
    (8192, 0, 1, None)
    >>> pool.memory(1)[:3] = b"abc"
    >>> bytes(pool.buffer[8192:8195]), len(pool.memory(1))
    (b'abc', 5000)
    >>> pool.give(0)
    >>> pool.free
    1
    """

    def __init__(self, slab_nbytes: int, capacity: int) -> None:
        if slab_nbytes < 0 or capacity < 0:
            raise ValueError(
                f"cannot make a pool of {capacity} slabs of {slab_nbytes} bytes: "
                "neither may be negative. Name sizes of 0 or more."
            )
        self.slab_nbytes = slab_nbytes
        self.capacity = capacity
        self.stride_nbytes = max(1, -(-slab_nbytes // PAGE_NBYTES)) * PAGE_NBYTES
        self.buffer = map_aligned(self.stride_nbytes * capacity)
        """The whole region, slab after slab."""
        # Guards _waiting and _is_out. Reentrant: a finaliser that gives a slab back may run inside it.
        self._lock = RLock()
        self._waiting = list(range(capacity))  # a heap: the lowest free index comes first
        self._is_out = bytearray(capacity)

    @property
    def free(self) -> int:
        """How many slabs nobody holds."""
        return len(self._waiting)

    def take(self) -> int | None:
        """The lowest free slab, or None when all are out."""
        with self._lock:
            if not self._waiting:
                return None
            index = heappop(self._waiting)
            self._is_out[index] = True
            return index

    def give(self, index: int) -> None:
        """The slab is free again. Its memory stays mapped for the next one who takes it."""
        with self._lock:
            if not (0 <= index < self.capacity and self._is_out[index]):
                raise AssertionError(
                    f"slab {index} of {self.capacity} is given back but is not out: it was given twice"
                )
            self._is_out[index] = False
            heappush(self._waiting, index)

    def memory(self, index: int) -> memoryview:
        """The bytes of one slab, writable; exactly `slab_nbytes` of them."""
        start = index * self.stride_nbytes
        if not 0 <= index < self.capacity:
            raise IndexError(
                f"there is no slab {index}: the pool has {self.capacity}. Use an index that `take` returned."
            )
        return self.buffer[start : start + self.slab_nbytes]

    def close(self) -> None:
        """No slab can be taken any more; the mapping goes when the last view of it is gone."""
        with self._lock:
            self._waiting, self._is_out, self.capacity = [], bytearray(), 0
        self.buffer = memoryview(bytearray())

    def __repr__(self) -> str:
        return f"<SlabPool of {self.capacity} slabs of {self.slab_nbytes} bytes, {self.free} free>"
