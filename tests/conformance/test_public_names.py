"""Every public name says what is true of it, with an example that runs (the doctests run it)."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

import strideweave as sw

PACKAGES = (
    "strideweave",
    "strideweave.autograd",
    "strideweave.carriers",
    "strideweave.carriers.dtype",
    "strideweave.carriers.extension",
    "strideweave.carriers.move",
    "strideweave.carriers.tiled_evictable",
    "strideweave.checkpoint",
    "strideweave.dtype",
    "strideweave.einops",
    "strideweave.friendly",
    "strideweave.functional",
    "strideweave.layout",
    "strideweave.nn",
    "strideweave.operation",
    "strideweave.profiler",
    "strideweave.tensor",
    "strideweave.tensor.creation",
    "strideweave.testing",
    "strideweave.tracing",
)

NEITHER_CLASS_NOR_FUNCTION = {
    "NON_DIFFERENTIABLE": "a mark, shown where define_operation takes it",
    "REQUIRED": "a mark, shown where OptionSpec takes it",
    "Tiler": "an alias of Sequence[Layout]",
    "friendly": "a module",
    "functional": "a module",
    "kernels": "a module",
    "nn": "a module",
}
"""Public names without a docstring of their own, and why. Nothing else is excepted."""

FACTS: dict[str, str] = {
    "strideweave": """
        Shape Stride Layout Tiler Tree Node IndexMap Permutation Product Swizzle SwizzleStage
        DType Tensor
        Carrier DependentCarrier Generic CPU FileBacked BlockDevice BlockDeviceCarrier Evictable Metal TiledEvictable
        move move_async AwaitResult AwaitMove AwaitProjection AwaitResidency
        CarrierDefinition StorageProvider register_carrier_definition register_kernel_pack
        define_operation OperationDefinition OperationSchema OperandSpec OptionSpec OperandKind ResultSpec
        NON_DIFFERENTIABLE REQUIRED ProviderContractError
        as_strided reshape permute rearrange broadcast_to broadcast_in_dim squeeze unsqueeze
        neg abs sign recip sqrt rsqrt exp exp2 log log2 sin cos erf floor ceil round relu sigmoid tanh gelu silu
        softplus elu leaky_relu logical_not
        add sub mul elementwise_mul div pow maximum minimum rem eq ne lt le gt ge select clamp
        reduce_sum reduce_prod reduce_max reduce_min argmax argmin cumsum matmul einsum conv_general
        gather scatter scatter_add sort topk SortResult TopKResult
        grad no_grad is_grad_enabled set_grad_enabled profile Module Parameter
        ResidencyPlan ResidencyPolicy TileSelection TileSet""",
    "strideweave.carriers.dtype": "validate_storage_dtype accepts_storage_dtype storage_zero",
    "strideweave.carriers.extension": """
        StorageProvider KernelExecutionInterface KernelPattern KernelProvider KernelPack
        TransferProvider TransferRoute TransferRequest CompositeProvider CarrierDefinition CarrierFacet Unsupported
        ProviderResult PreparedKernel PreparedTransfer PreparedComposite ProviderCompletion
        register_carrier_definition register_kernel_pack""",
    "strideweave.carriers.move": """
        move move_async AwaitResult AwaitMove MoveOperation ElementwiseMoveOperation CpuToFileBacked FileBackedToCpu
        CpuToBlockDevice BlockDeviceToCpu dispatch_move register_move_operation unregister_move_operation
        registered_move_operation""",
    "strideweave.carriers.operation_capability": """
        OperationCapability UnsupportedOperationPlan capabilities_for_carrier_class supports_operation_plan
        require_capability register_operation_capabilities""",
    "strideweave.carriers.operation_policy": """
        resolve_operation_plan OperationPlan registered_operations resolvable_plans operation_execution_options""",
    "strideweave.carriers.tiled_evictable": """
        AwaitProjection AwaitResidency ResidencyPlan ResidencyPolicy TileSelection TileSet TiledEvictable""",
    "strideweave.einops": """
        EinsumSpec LayoutReference RearrangeSpec ReduceSpec Token TokenKind einsum lex parse_einsum parse_layout_ref
        parse_rearrange parse_reduce rearrange reduce""",
    "strideweave.friendly": """
        tensor full zeros ones arange rand randn column_major row_major sum mean item to_list""",
    "strideweave.layout": """
        Shape Stride Layout Tiler Tree Node IndexMap Permutation Product Swizzle SwizzleStage""",
    "strideweave.nn": """
        Linear ReLU Sigmoid Tanh GELU SiLU Softplus ELU LeakyReLU MSELoss SGD Module Parameter""",
    "strideweave.operation": """
        define_operation OperationDefinition OperationSchema OperandSpec OptionSpec OperandKind ResultSpec OperationCall
        BoundOperationCall ResolvedInvocation VJPContext OperationPlan OperandPlan OperandRole Arithmetic Accumulation
        NON_DIFFERENTIABLE REQUIRED ProviderContractError UnsupportedOperationPlan""",
    "strideweave.profiler": "profile ProfilerEvent ProfilerAggregate",
}
"""Where the facts (sections a to j) put which names."""


def public() -> list[tuple[str, object]]:
    found: dict[int, tuple[str, object]] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) or inspect.isroutine(value):
                found.setdefault(id(value), (f"{package}.{name}", value))
    return list(found.values())


def documentation(value: object) -> str:
    """The docstrings of a function, or of a class and its public methods."""
    texts = [value.__doc__ or ""]
    if isinstance(value, type):
        texts += [inspect.getdoc(member) or "" for name, member in vars(value).items() if not name.startswith("_")]
    return "\n".join(texts)


@pytest.mark.parametrize(("name", "value"), public(), ids=[name for name, _ in public()])
def test_public_name_has_a_sentence_and_an_example(name: str, value: object) -> None:
    assert value.__doc__, f"{name} has no docstring of its own"
    first = inspect.cleandoc(value.__doc__).splitlines()[0]
    assert first.endswith("."), f"{name}: the first line is no sentence: {first!r}"
    assert not first[0].islower(), f"{name}: the first line begins in the middle: {first!r}"
    assert ">>>" in documentation(value), f"{name} has no example"


def test_every_public_name_is_a_class_or_a_function_or_excepted() -> None:
    others = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if not (isinstance(value, type) or inspect.isroutine(value)):
                others.add(name)
    assert others == set(NEITHER_CLASS_NOR_FUNCTION)


@pytest.mark.parametrize("package", FACTS)
def test_names_of_the_facts_are_where_the_facts_put_them(package: str) -> None:
    module = importlib.import_module(package)
    listed = set(getattr(module, "__all__", vars(module)))
    assert set(FACTS[package].split()) <= listed
    for name in FACTS[package].split():
        value = getattr(module, name)
        if isinstance(value, type) or inspect.isroutine(value):
            assert ">>>" in documentation(value), f"{package}.{name} has no example"


@pytest.mark.parametrize("package", PACKAGES)
def test_list_of_a_package_names_everything_once(package: str) -> None:
    listed = importlib.import_module(package).__all__
    assert len(listed) == len(set(listed))


def test_star_import_gives_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from strideweave import *", names)
    assert set(sw.__all__) <= set(names)
    assert len(sw.__all__) == len(set(sw.__all__))


def test_subpackage_is_a_module_though_a_function_has_its_name() -> None:
    assert callable(sw.tensor)
    assert isinstance(importlib.import_module("strideweave.tensor"), ModuleType)
