"""In which dtypes an operation computes: the plan that kernels and carriers agree on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strideweave.dtype import StorageDType


class OperandRole(Enum):
    """How an operand enters the arithmetic.

    >>> from strideweave.operation import OperandRole
    >>> [role.value for role in OperandRole]
    ['tensor', 'weak_scalar']
    """

    TENSOR = "tensor"
    """With a dtype of its own."""
    WEAK_SCALAR = "weak_scalar"
    """With the dtype of the tensors beside it."""


class Arithmetic(Enum):
    """In what numbers values are computed before the result is rounded once to its dtype.

    >>> import strideweave as sw
    >>> from strideweave.operation import find
    >>> find("add").resolve_call(sw.tensor([1]), 2).plan.compute
    <Arithmetic.INTEGER: 'integer'>
    """

    BINARY64 = "binary64"
    BINARY32 = "binary32"
    INTEGER = "integer"
    """Exact, and beyond the range of the dtype modulo two to its bits, as torch and C do."""
    LOGICAL = "logical"
    NONE = "none"
    """Values are moved, not computed."""


class Accumulation(Enum):
    """In what numbers many values are added up.

    >>> import strideweave as sw
    >>> from strideweave.operation import find
    >>> find("reduce_sum").resolve_call(sw.ones(2), leaves=(0,)).plan.accumulation
    <Accumulation.BINARY32: 'binary32'>
    """

    NONE = "none"
    BINARY32 = "binary32"
    BINARY64 = "binary64"
    INTEGER = "integer"


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """One operand: its role, its dtype, and the dtype that it is converted to before the kernel, if any.

    >>> import strideweave as sw
    >>> from strideweave.operation import find
    >>> find("add").resolve_call(sw.ones(2), 1).plan.operands[0].dtype
    DType.Float32
    """

    role: OperandRole
    """How it enters."""
    dtype: StorageDType | None
    """The dtype that it has; None for a weak scalar."""
    convert_to: StorageDType | None = None
    """What it is converted to first; None when the kernel takes it as it is."""


@dataclass(frozen=True, slots=True)
class OperationPlan:
    """The dtypes of one invocation, from operands to result. Plans are compared by value.

    >>> import strideweave as sw
    >>> from strideweave.operation import find
    >>> plan = find("div").resolve_call(sw.tensor([1]), 2).plan
    >>> plan.operation, plan.output
    ('div', DType.Float32)
    """

    operation: str
    """The name of the operation."""
    operands: tuple[OperandPlan, ...]
    """One for every tensor or scalar operand, in order."""
    compute: Arithmetic
    """The numbers in which values are computed."""
    accumulation: Accumulation
    """The numbers in which sums are kept."""
    accumulator_dtype: StorageDType | None
    """The dtype that was asked for the sums; None leaves it to the table."""
    output: StorageDType
    """The dtype of the (first) result."""
