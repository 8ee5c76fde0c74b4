"""What a tensor gets on the card when nothing else is asked for: a function of its size, strides and dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strideweave.spyre.tensor_layout import SpyreTensorLayout


def layout_for(size: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> SpyreTensorLayout:
    """The generic stick layout whose dim order is that of the strides, largest first."""
    order = sorted(range(len(size)), key=lambda k: (-strides[k], k))
    return SpyreTensorLayout(tuple(size), tuple(strides), dtype, tuple(order))
