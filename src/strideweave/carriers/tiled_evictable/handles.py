"""The completion handles of tiled requests."""

from __future__ import annotations

from typing import final

from strideweave.carriers.handle import AwaitResult
from strideweave.tensor import Tensor


@final
class AwaitResidency(AwaitResult[None]):
    """The outcome of a promotion or an eviction. `wait()` returns None once the whole set has committed."""

    __slots__ = ()


@final
class AwaitProjection(AwaitResult[Tensor]):
    """The outcome of a projection. `wait()` returns the compact Tensor, the same object every time.

    It is no Tensor itself, so no operation takes it as an operand.
    """

    __slots__ = ()
