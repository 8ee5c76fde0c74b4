"""Tensors on CPU carriers, made and read in few words.

What is made of extents has the first mode fastest and is Float32. `tensor` takes order and dtype from its values, as
PyTorch does: pass `layout=column_major(...)` and `dtype=` for the others.
"""

from strideweave.operation.functional.reductions import reduce_mean as mean
from strideweave.operation.functional.reductions import reduce_sum as sum
from strideweave.tensor.creation import (
    arange,
    column_major,
    empty,
    eye,
    full,
    full_like,
    item,
    linspace,
    ones,
    ones_like,
    rand,
    randn,
    row_major,
    tensor,
    to_list,
    zeros,
    zeros_like,
)

__all__ = [
    "arange",
    "column_major",
    "empty",
    "eye",
    "full",
    "full_like",
    "item",
    "linspace",
    "mean",
    "ones",
    "ones_like",
    "rand",
    "randn",
    "row_major",
    "sum",
    "tensor",
    "to_list",
    "zeros",
    "zeros_like",
]
