"""StrideWeave: cut the tensor, keep the tiles wherever there is room, touch only what a step needs."""

from strideweave import friendly, functional, nn
from strideweave.autograd import grad, is_grad_enabled, no_grad, set_grad_enabled
from strideweave.carriers import (
    CPU,
    CUDA,
    AwaitMove,
    AwaitResult,
    Carrier,
    CheckpointFile,
    FileBacked,
    Generic,
    Metal,
    Piece,
)
from strideweave.carriers.block_device import BlockDevice, BlockDeviceCarrier
from strideweave.carriers.evictable import Evictable
from strideweave.carriers.extension import (
    CarrierDefinition,
    CarrierFacet,
    CompositeProvider,
    DependentCarrier,
    KernelPack,
    KernelProvider,
    StorageProvider,
    TransferProvider,
    TransferRoute,
    register_carrier_definition,
    register_kernel_pack,
)
from strideweave.carriers.move import move, move_async
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
from strideweave.functional import *  # noqa: F403
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
from strideweave.nn import Module, Parameter
from strideweave.operation import (
    NON_DIFFERENTIABLE,
    REQUIRED,
    OperandKind,
    OperandSpec,
    OperationDefinition,
    OperationSchema,
    OptionSpec,
    ProviderContractError,
    ResultSpec,
    define_operation,
)
from strideweave.profiler import profile
from strideweave.tensor import Tensor, creation, from_dlpack, from_numpy, from_torch
from strideweave.tensor.creation import *  # noqa: F403  (last: `tensor` is a function from here on)

__version__ = "0.1.0"

__all__ = [
    "CPU",
    "CUDA",
    "LRU",
    "NON_DIFFERENTIABLE",
    "REQUIRED",
    "AwaitMove",
    "AwaitProjection",
    "AwaitResidency",
    "AwaitResult",
    "BlockDevice",
    "BlockDeviceCarrier",
    "BudgetExceeded",
    "Carrier",
    "CarrierDefinition",
    "CarrierFacet",
    "CheckpointFile",
    "CompositeProvider",
    "DType",
    "DependentCarrier",
    "Evictable",
    "FileBacked",
    "Generic",
    "IndexMap",
    "KernelPack",
    "KernelProvider",
    "Layout",
    "Metal",
    "Module",
    "Node",
    "OperandKind",
    "OperandSpec",
    "OperationDefinition",
    "OperationSchema",
    "OptionSpec",
    "Parameter",
    "Permutation",
    "Piece",
    "Product",
    "ProviderContractError",
    "ResidencyPlan",
    "ResidencyPolicy",
    "ResultSpec",
    "Shape",
    "StorageProvider",
    "Stride",
    "Swizzle",
    "SwizzleStage",
    "Tensor",
    "TileSelection",
    "TileSet",
    "TileState",
    "TiledEvictable",
    "Tiler",
    "TransferProvider",
    "TransferRoute",
    "Tree",
    "define_operation",
    "friendly",
    "from_dlpack",
    "from_numpy",
    "from_torch",
    "functional",
    "grad",
    "is_grad_enabled",
    "move",
    "move_async",
    "nn",
    "no_grad",
    "profile",
    "register_carrier_definition",
    "register_kernel_pack",
    "set_grad_enabled",
]
__all__ += creation.__all__
__all__ += functional.__all__
