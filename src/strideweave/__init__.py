"""StrideWeave: cut the tensor, keep the tiles wherever there is room, touch only what a step needs."""

from strideweave.carriers import CPU, AwaitMove, AwaitResult, Carrier, CheckpointFile, FileBacked, Generic, Piece
from strideweave.carriers.tiled_evictable import (
    LRU,
    AwaitProjection,
    AwaitResidency,
    BudgetExceeded,
    ResidencyPlan,
    ResidencyPolicy,
    TiledEvictable,
    TileSelection,
    TileSet,
    TileState,
)
from strideweave.dtype import DType
from strideweave.layout import (
    IndexMap,
    Layout,
    Node,
    Permutation,
    Product,
    Shape,
    Stride,
    Swizzle,
    SwizzleStage,
    Tiler,
    Tree,
)
from strideweave.tensor import Tensor, from_torch, move, move_async

__version__ = "0.1.0"

__all__ = [
    "CPU",
    "LRU",
    "AwaitMove",
    "AwaitProjection",
    "AwaitResidency",
    "AwaitResult",
    "BudgetExceeded",
    "Carrier",
    "CheckpointFile",
    "DType",
    "FileBacked",
    "Generic",
    "IndexMap",
    "Layout",
    "Node",
    "Permutation",
    "Piece",
    "Product",
    "ResidencyPlan",
    "ResidencyPolicy",
    "Shape",
    "Stride",
    "Swizzle",
    "SwizzleStage",
    "Tensor",
    "TileSelection",
    "TileSet",
    "TileState",
    "TiledEvictable",
    "Tiler",
    "Tree",
    "from_torch",
    "move",
    "move_async",
]
