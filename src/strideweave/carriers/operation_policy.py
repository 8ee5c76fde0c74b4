"""The plan of an operation from dtypes alone, as its definition resolves it, and every plan that there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, Final, TypeAlias

from strideweave.carriers.generic import Generic
from strideweave.dtype import DType, StorageDType
from strideweave.layout import Layout
from strideweave.operation.definition import OperationDefinition, definitions, find
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.schema import REQUIRED, OperandKind
from strideweave.tensor.tensor import Tensor

__all__ = [
    "Accumulation",
    "Arithmetic",
    "OperandPlan",
    "OperandRole",
    "OperationPlan",
    "operation_execution_options",
    "registered_operations",
    "resolvable_plans",
    "resolve_operation_plan",
]

Operand: TypeAlias = "StorageDType | type[int] | type[float] | type[bool]"

_UNIFORM: Final = (1, 2, 3, 4)
"""The ranks that are tried first, the same for all tensors: plans depend on no extent, but operations refuse ranks."""
_MOST_SIGNATURES: Final = 5000
"""Beyond so many combinations of dtypes an operation has too many plans to list."""
_SCALARS: Final = {bool: True, int: 1, float: 1.0}
_PROBES: Final[Mapping[str, Any]] = {
    "leaves": (0,),
    "dtype": DType.Float32,
    "axis": 0,
    "dim": 0,
    "dimension": 0,
    "leaf": 0,
    "k": 1,
    "eps": 1e-5,
}
"""What required options are while only the dtypes are asked about; none of these changes a plan, but `dtype` does."""


def resolve_operation_plan(
    name: str,
    *operands: Operand,
    accumulator_dtype: StorageDType | None = None,
    options: Mapping[str, Any] | None = None,
) -> OperationPlan:
    """The plan of the operation on operands of these dtypes; `int`, `float` and `bool` stand for Python numbers.

    Errors: TypeError for what is neither, for operands of another number or kind, and for an accumulator where there
    is none; NotImplementedError for an unknown operation; whatever its resolution raises for dtypes that it refuses.

    >>> from strideweave import DType
    >>> from strideweave.carriers.operation_policy import resolve_operation_plan
    >>> resolve_operation_plan("mul", DType.Int32, float).output
    DType.Float32
    """
    definition = find(name)
    for operand in operands:
        if not isinstance(operand, StorageDType) and operand not in _SCALARS:
            raise TypeError(
                f"cannot plan {name} for {operand!r}: an operand is a DType, or int, float or bool. Pass one of these."
            )
    given = dict(options or {})
    if accumulator_dtype is not None:
        if all(spec.name != "accumulator_dtype" for spec in definition.schema.options):
            raise TypeError(
                f"cannot plan {name} with an accumulator of {accumulator_dtype!r}: it has no accumulator dtype. "
                "Operations that add up take one, such as reduce_sum. "
                "Leave it out."
            )
        given["accumulator_dtype"] = accumulator_dtype
    return _resolved(definition, operands, given)


def registered_operations() -> tuple[str, ...]:
    """The names of all operations, sorted, custom ones too.

    >>> from strideweave.carriers.operation_policy import registered_operations
    >>> "add" in registered_operations()
    True
    """
    return tuple(sorted(definitions()))


def resolvable_plans(name: str | None = None) -> tuple[OperationPlan, ...]:
    """Every plan that operations resolve to without being told more than dtypes; of one operation, or of all.

    Operations whose options say how (views, convolutions) have no plan before these are given. Those that gradients
    are made of are left out unless they are asked for by name. Kept once computed.

    >>> from strideweave.carriers.operation_policy import resolvable_plans
    >>> len(resolvable_plans("relu")), {plan.operation for plan in resolvable_plans("relu")}
    (11, {'relu'})
    """
    if name is not None:
        return _plans(find(name))
    public = [known for known in registered_operations() if not known.endswith("_backward")]
    return tuple(plan for known in public for plan in _plans(find(known)))


def operation_execution_options(name: str, *, accumulator_dtype: StorageDType | None = None) -> dict[str, Any]:
    """The options with which the operation runs as that plan says. Errors: as `resolve_operation_plan`.

    >>> from strideweave import DType
    >>> from strideweave.carriers.operation_policy import operation_execution_options
    >>> operation_execution_options("reduce_sum", accumulator_dtype=DType.Float64)
    {'accumulator_dtype': DType.Float64}
    """
    takes = any(spec.name == "accumulator_dtype" for spec in find(name).schema.options)
    if accumulator_dtype is not None and not takes:
        raise TypeError(
            f"cannot run {name} with an accumulator of {accumulator_dtype!r}: it has no accumulator dtype. "
            "Operations that add up take one, such as reduce_sum. Leave it out."
        )
    return {"accumulator_dtype": accumulator_dtype} if takes else {}


_ranks: dict[OperationDefinition, tuple[int, ...]] = {}
"""The ranks that an operation is known to take."""


def _resolved(definition: OperationDefinition, operands: tuple[Operand, ...], options: dict[str, Any]) -> OperationPlan:
    """The plan for small tensors, in the first ranks that the operation takes."""
    for spec in definition.schema.options:
        if spec.default is REQUIRED and spec.name in _PROBES:
            options.setdefault(spec.name, _PROBES[spec.name])
    refusals: list[Exception] = []
    for ranks in _candidates(definition, sum(isinstance(operand, StorageDType) for operand in operands)):
        left = iter(ranks)
        probes = [_probe(o, next(left)) if isinstance(o, StorageDType) else _SCALARS[o] for o in operands]
        try:
            plan = definition.resolve(definition.bind(*probes, **options)).plan
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            refusals.append(error)
            continue
        _ranks[definition] = ranks
        return plan
    raise next((error for error in refusals if isinstance(error, TypeError)), refusals[0])


def _candidates(definition: OperationDefinition, count: int) -> Iterator[tuple[int, ...]]:
    known = _ranks.get(definition)
    if known is not None and len(known) == count:
        yield known
        return
    for rank in _UNIFORM:
        yield (rank,) * count
    if 1 < count <= 3:
        yield from (ranks for ranks in product((2, 1), repeat=count) if len(set(ranks)) > 1)


def _probe(dtype: StorageDType, rank: int) -> Tensor:
    return Tensor(_zeros(dtype), 0, Layout.column_major(*[2] * rank))


@lru_cache(maxsize=32)
def _zeros(dtype: StorageDType) -> Generic:
    return Generic([0] * 2 ** max(_UNIFORM), dtype=dtype)


@lru_cache(maxsize=1024)
def _plans(definition: OperationDefinition) -> tuple[OperationPlan, ...]:
    found: dict[OperationPlan, None] = {}
    for operands, options in _signatures(definition):
        try:
            found[_resolved(definition, operands, dict(options))] = None
        except (TypeError, ValueError, IndexError, OverflowError, NotImplementedError):
            continue
    return tuple(found)


def _signatures(definition: OperationDefinition) -> Iterator[tuple[tuple[Operand, ...], dict[str, Any]]]:
    """Every combination of operand dtypes and accumulators; nothing for what takes structural operands."""
    choices: list[tuple[Operand, ...]] = []
    for spec in definition.schema.operands:
        kinds: tuple[Operand, ...] = ()
        if OperandKind.TENSOR in spec.kinds:
            kinds += DType.registered()
        if OperandKind.WEAK_SCALAR in spec.kinds:
            kinds += tuple(_SCALARS)
        choices.append(kinds)
    names = {option.name: option.default for option in definition.schema.options}
    if any(default is REQUIRED and name not in _PROBES for name, default in names.items()):
        return
    if prod(len(kinds) for kinds in choices) > _MOST_SIGNATURES:
        return
    accumulators: tuple[StorageDType | None, ...] = (None,)
    if "accumulator_dtype" in names:
        accumulators = (None, DType.Float32, DType.Float64)
    for accumulator in accumulators:
        options = {} if accumulator is None else {"accumulator_dtype": accumulator}
        for operands in product(*choices):
            if any(isinstance(operand, StorageDType) for operand in operands):
                yield operands, options
