"""The layouts of Inductor's buffers on the card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir

from strideweave.spyre.resize import resize_device_layout
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
        whole: FixedTiledLayout | None = None,
    ) -> None:
        super().__init__(device, dtype, list(size), list(stride), offset)
        self.device_layout = device_layout
        self.allocation = allocation if allocation is not None else {"hbm": 0}
        """Which memory it is in, and at which byte of it."""
        self.per_tile_fixed = per_tile_fixed
        """Whether it belongs to one tile of a loop, and stays in place while the loop goes on."""
        self._whole = whole

    @property
    def whole(self) -> FixedTiledLayout:
        """The layout of the whole buffer, of which this one may be a tile."""
        return self if self._whole is None else self._whole

    @property
    def is_flat(self) -> bool:
        """Whether the card keeps the host's extent as one dim, because its strides are no dense permutation."""
        dims = self.device_layout.dim_map
        return dims == (0, 0) and (len(self.size) != 1 or int(self.stride[0]) != 1)

    @property
    def space(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents and strides by which host offsets become coordinates: the host's, or one dim of all offsets."""
        if self.is_flat:
            extent = 1 + sum((int(n) - 1) * int(d) for n, d in zip(self.size, self.stride, strict=True))
            return (extent,), (1,)
        return tuple(map(int, self.size)), tuple(map(int, self.stride))

    @classmethod
    def of(cls, layout: ir.FixedLayout, device_layout: SpyreTensorLayout) -> FixedTiledLayout:
        """The same host layout with one for the card."""
        return cls(layout.device, layout.dtype, layout.size, layout.stride, layout.offset, device_layout)

    def tile(self, size: Sequence[int], *, per_tile_fixed: bool) -> FixedTiledLayout:
        """The layout of a tile of this size, dims in the same order in host and device memory."""
        strides, step = [0] * len(size), 1
        for k in sorted(range(len(size)), key=lambda k: int(self.stride[k])):
            strides[k] = step
            step *= size[k]
        old = tuple(map(int, self.size))
        device_layout = resize_device_layout(self.device_layout, old, tuple(size))
        return FixedTiledLayout(
            self.device,
            self.dtype,
            size,
            strides,
            0,
            device_layout,
            per_tile_fixed=per_tile_fixed,
            whole=self,
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, device_layout={self.device_layout!r})"

    __str__ = __repr__
