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
from strideweave.layout import Layout, Shape, Stride
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
    "Layout",
    "Piece",
    "ResidencyPlan",
    "ResidencyPolicy",
    "Shape",
    "Stride",
    "Tensor",
    "TileSelection",
    "TileSet",
    "TileState",
    "TiledEvictable",
    "from_torch",
    "move",
    "move_async",
]
