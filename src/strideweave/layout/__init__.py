"""Layouts: which index every coordinate reaches, and the algebra that cuts and joins them. Integers only."""

from strideweave.layout.algebra import (
    Tiler,
    append,
    coalesce,
    complement,
    compose,
    concat,
    divide,
    divide_tiler,
    permute,
    zipped_divide,
)
from strideweave.layout.index_map import IndexMap
from strideweave.layout.layout import Layout
from strideweave.layout.shape import Shape
from strideweave.layout.stride import Stride

__all__ = [
    "IndexMap",
    "Layout",
    "Shape",
    "Stride",
    "Tiler",
    "append",
    "coalesce",
    "complement",
    "compose",
    "concat",
    "divide",
    "divide_tiler",
    "permute",
    "zipped_divide",
]
