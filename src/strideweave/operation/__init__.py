"""What operations mean: definitions, the plan of a call, references, kernels, gradients and dispatch."""

from strideweave.carriers.evictable import Evictable
from strideweave.carriers.generic import Generic
from strideweave.operation import functional, kernels
from strideweave.operation.call import (
    BoundOperationCall,
    OperationCall,
    ProviderContractError,
    ResolvedInvocation,
    ResultSpec,
    UnsupportedOperationPlan,
    VJPContext,
)
from strideweave.operation.definition import OperationDefinition, define_operation, definitions, find
from strideweave.operation.evictable_executor import EvictableExecutor
from strideweave.operation.execution import register_executor
from strideweave.operation.functional import *  # noqa: F403
from strideweave.operation.node import Operation
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.pointwise import pointwise_plan, resolve_pointwise
from strideweave.operation.promotion import promote, promote_pair
from strideweave.operation.reference import ReferenceExecutor
from strideweave.operation.schema import (
    NON_DIFFERENTIABLE,
    REQUIRED,
    OperandKind,
    OperandSpec,
    OperationSchema,
    OptionSpec,
)
from strideweave.operation.torch_executor import TorchExecutor, carrier_classes
from strideweave.tensor import ports

for _class in carrier_classes():
    register_executor(_class, TorchExecutor())
register_executor(Generic, ReferenceExecutor())
register_executor(Evictable, EvictableExecutor())
ports.bind({name: getattr(functional, name) for name in functional.__all__})

__all__ = [
    "NON_DIFFERENTIABLE",
    "REQUIRED",
    "Accumulation",
    "Arithmetic",
    "BoundOperationCall",
    "OperandKind",
    "OperandPlan",
    "OperandRole",
    "OperandSpec",
    "Operation",
    "OperationCall",
    "OperationDefinition",
    "OperationPlan",
    "OperationSchema",
    "OptionSpec",
    "ProviderContractError",
    "ReferenceExecutor",
    "ResolvedInvocation",
    "ResultSpec",
    "UnsupportedOperationPlan",
    "VJPContext",
    "define_operation",
    "definitions",
    "find",
    "kernels",
    "pointwise_plan",
    "promote",
    "promote_pair",
    "register_executor",
    "resolve_pointwise",
]
__all__ += functional.__all__
