"""The layouts of Inductor's buffers on the card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir

from strideweave.spyre.tensor_layout import SpyreTensorLayout


class FixedTiledLayout(ir.FixedLayout):
    """A FixedLayout with the layout that the buffer has in device memory.

    Host size, stride and offset stay what Inductor expects; what runs on the card reads `device_layout`.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        size: Sequence[Any],
        stride: Sequence[Any],
        offset: Any,
        device_layout: SpyreTensorLayout,
        *,
        allocation: dict[str, int] | None = None,
        per_tile_fixed: bool = False,
    ) -> None:
        super().__init__(device, dtype, list(size), list(stride), offset)
        self.device_layout = device_layout
        self.allocation = allocation if allocation is not None else {"hbm": 0}
        """Which memory it is in, and at which byte of it."""
        self.per_tile_fixed = per_tile_fixed
        """Whether it belongs to one tile of a loop, and stays in place while the loop goes on."""

    @classmethod
    def of(cls, layout: ir.FixedLayout, device_layout: SpyreTensorLayout) -> FixedTiledLayout:
        """The same host layout with one for the card."""
        return cls(layout.device, layout.dtype, layout.size, layout.stride, layout.offset, device_layout)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, device_layout={self.device_layout!r})"

    __str__ = __repr__
