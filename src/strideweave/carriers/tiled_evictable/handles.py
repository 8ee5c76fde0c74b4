"""The completion handles of tiled requests."""

from __future__ import annotations

from typing import final

from strideweave.carriers.handle import AwaitResult
from strideweave.tensor import Tensor


@final
class AwaitResidency(AwaitResult[None]):
    """The outcome of a promotion or an eviction. `wait()` returns None once the whole set has committed.

    >>> import torch
    >>> import strideweave as sw
    >>> c = sw.TiledEvictable(sw.CPU.wrap(torch.arange(4.0)), sw.FileBacked(), (2,), (2,))
    >>> handle = c.evict_async(sw.TileSet([(1,)]))
    >>> handle.wait() is None, c.tile_state((1,)).location
    (True, 'secondary')
    >>> c.release()
    """

    __slots__ = ()


@final
class AwaitProjection(AwaitResult[Tensor]):
    """The outcome of a projection. `wait()` returns the compact Tensor, the same object every time.

    It is no Tensor itself, so no operation takes it as an operand.

    >>> import torch
    >>> import strideweave as sw
    >>> c = sw.TiledEvictable(sw.CPU.wrap(torch.arange(4.0)), sw.FileBacked(), (2,), (2,))
    >>> handle = c.project(sw.Tensor(c, 0, c.layout), sw.TileSelection([[1]]))
    >>> sw.to_list(handle.wait())
    [2.0, 3.0]
    >>> c.release()
    """

    __slots__ = ()
