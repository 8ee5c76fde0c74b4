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
from strideweave.layout.broadcasting import broadcast_to
from strideweave.layout.composed import Composed
from strideweave.layout.index_map import IndexMap
from strideweave.layout.inverse import right_inverse
from strideweave.layout.layout import Layout
from strideweave.layout.modes import coalesce_by_mode, extract_profile, flatten_layout
from strideweave.layout.permutation import Permutation
from strideweave.layout.preimage import uniform_preimage_extent
from strideweave.layout.product_map import Product
from strideweave.layout.rearranging import rearrange, reverse_rearrange
from strideweave.layout.repetition import product
from strideweave.layout.sections import choose, modout
from strideweave.layout.shape import Shape
from strideweave.layout.stride import Stride
from strideweave.layout.swizzle import Swizzle, SwizzleStage
from strideweave.layout.tree import Node, Tree

__all__ = [
    "Composed",
    "IndexMap",
    "Layout",
    "Node",
    "Permutation",
    "Product",
    "Shape",
    "Stride",
    "Swizzle",
    "SwizzleStage",
    "Tiler",
    "Tree",
    "append",
    "broadcast_to",
    "choose",
    "coalesce",
    "coalesce_by_mode",
    "complement",
    "compose",
    "concat",
    "divide",
    "divide_tiler",
    "extract_profile",
    "flatten_layout",
    "modout",
    "permute",
    "product",
    "rearrange",
    "reverse_rearrange",
    "right_inverse",
    "uniform_preimage_extent",
    "zipped_divide",
]
