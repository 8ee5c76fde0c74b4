"""Carriers of third parties: a definition says how a class stores, computes and moves, without subclassing code.

`CarrierDefinition` and its parts are values; `register_carrier_definition` makes them what exactly one class is.
"""

from strideweave.carriers.definition import CarrierFacet, StorageProvider
from strideweave.carriers.extension.composite import CompositeProvider
from strideweave.carriers.extension.dependent import DependentCarrier
from strideweave.carriers.extension.kernels import (
    KernelExecutionInterface,
    KernelPack,
    KernelPattern,
    KernelProvider,
    PreparedKernel,
)
from strideweave.carriers.extension.providers import (
    PreparedComposite,
    PreparedTransfer,
    ProviderCompletion,
    ProviderResult,
    Unsupported,
    require_completion,
)
from strideweave.carriers.extension.registration import (
    CarrierDefinition,
    register_carrier_definition,
    register_kernel_pack,
)
from strideweave.carriers.extension.transfers import (
    TransferProvider,
    TransferRequest,
    TransferRoute,
    elementwise_fallback,
    transfer_route,
)

__all__ = [
    "CarrierDefinition",
    "CarrierFacet",
    "CompositeProvider",
    "DependentCarrier",
    "KernelExecutionInterface",
    "KernelPack",
    "KernelPattern",
    "KernelProvider",
    "PreparedComposite",
    "PreparedKernel",
    "PreparedTransfer",
    "ProviderCompletion",
    "ProviderResult",
    "StorageProvider",
    "TransferProvider",
    "TransferRequest",
    "TransferRoute",
    "Unsupported",
    "elementwise_fallback",
    "register_carrier_definition",
    "register_kernel_pack",
    "require_completion",
    "transfer_route",
]
