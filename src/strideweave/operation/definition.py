"""OperationDefinition: what an operation means, once, for every carrier."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from strideweave.carriers.carrier import Scalar
from strideweave.operation import dispatch
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, VJPContext
from strideweave.operation.schema import NON_DIFFERENTIABLE, REQUIRED, OperandKind, OperationSchema
from strideweave.tensor.tensor import Tensor

Resolve: TypeAlias = Callable[[BoundOperationCall], ResolvedInvocation]
Reference: TypeAlias = Callable[[ResolvedInvocation], Sequence[Sequence[Scalar]]]
VJP: TypeAlias = Callable[..., Sequence[Tensor | None]]

_definitions: dict[str, OperationDefinition] = {}
_CUSTOM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")


@dataclass(frozen=True, slots=True, eq=False)
class OperationDefinition:
    """One operation: what it takes, what comes out, a slow and obvious reference, and its gradient.

    `resolve(call)` decides dtypes, shapes and layouts, from the signature alone. `reference(invocation)` gives the
    values of every result, first mode fastest. `vjp(context, *cotangents)` gives one entry for every operand: a Tensor
    of the operand's shape or of the shape that it was broadcast to, or None.

    >>> import strideweave as sw
    >>> from strideweave.operation import find
    >>> invocation = find("add").resolve_call(sw.ones(2, 1), sw.ones(3))
    >>> invocation.results[0].shape, invocation.plan.output
    (Shape(2, 3), DType.Float32)
    """

    name: str
    """The name; custom ones have a namespace, as in `lab.double`."""
    schema: OperationSchema
    """The operands and options."""
    resolve: Resolve
    """From a call to its plan and results."""
    reference: Reference | None
    """The meaning, value by value; None leaves the operation to carriers that have a kernel."""
    vjp: VJP | object
    """The gradient, or NON_DIFFERENTIABLE."""

    def bind(self, *operands: Any, **options: Any) -> BoundOperationCall:
        """The operands and options as the schema takes them. Errors: TypeError for anything else."""
        return dispatch.bind(self, operands, options)

    def resolve_call(self, *operands: Any, **options: Any) -> ResolvedInvocation:
        """What this call resolves to, without running it."""
        return dispatch.resolved(self.bind(*operands, **options))

    def __call__(self, *operands: Any, **options: Any) -> Any:
        """The result of running the operation; a tuple when there are several."""
        return dispatch.run(self, operands, options)

    @property
    def is_differentiable(self) -> bool:
        """Whether it has a gradient."""
        return self.vjp is not NON_DIFFERENTIABLE

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


def define(
    name: str, schema: OperationSchema, resolve: Resolve, reference: Reference | None, vjp: VJP | object
) -> OperationDefinition:
    """The definition of a shipped operation, registered under its plain name."""
    definition = OperationDefinition(name, schema, resolve, reference, vjp)
    assert name not in _definitions, name
    _definitions[name] = definition
    return definition


def define_operation(
    name: str,
    schema: OperationSchema,
    resolve: Resolve,
    reference: Reference | None = None,
    vjp: VJP | object = REQUIRED,
) -> OperationDefinition:
    """A new operation that works like the shipped ones: dispatch, gradients, profiling, every carrier.

    Errors: TypeError for wrong kinds; ValueError for a name without a namespace, in ours, or taken, and for a missing
    `vjp` (pass NON_DIFFERENTIABLE to say that there is none).

    >>> import strideweave as sw
    >>> from strideweave.operation import (
    ...     NON_DIFFERENTIABLE, OperandKind, OperandSpec, OperationSchema, ResolvedInvocation, ResultSpec,
    ...     define_operation, pointwise_plan,
    ... )
    >>> def resolve(call):
    ...     (x,) = call.operands
    ...     spec = ResultSpec(x.dtype(), x.shape, sw.Layout.column_major(*x.shape))
    ...     return ResolvedInvocation(call, pointwise_plan(call), (spec,))
    >>> double = define_operation(
    ...     "docs.double", OperationSchema([OperandSpec("x", OperandKind.TENSOR)]), resolve,
    ...     reference=lambda invocation: [[2 * v for v in invocation.values(0)]], vjp=NON_DIFFERENTIABLE,
    ... )
    >>> x = sw.Tensor(sw.Generic([1, 2, 3], dtype=sw.DType.Int32), 0, sw.Layout.column_major(3))
    >>> sw.to_list(double(x))
    [2, 4, 6]
    """
    if not isinstance(name, str):
        raise TypeError(f"cannot define operation {name!r}: a name is text. Pass a str such as 'lab.double'.")
    if not isinstance(schema, OperationSchema):
        raise TypeError(f"cannot define {name!r} with schema {schema!r}: it takes an OperationSchema. Pass one.")
    for what, function in (("resolve", resolve), ("reference", reference or resolve)):
        if not callable(function):
            raise TypeError(f"cannot define {name!r}: {what} must be callable. Pass a function.")
    if not _CUSTOM_NAME.fullmatch(name):
        raise ValueError(
            f"cannot define operation {name!r}: a custom name has at least two dot-separated identifiers. "
            "Prefix a namespace of your own, as in 'lab.double'."
        )
    first = name.split(".")[0]
    if first == "strideweave" or first in _definitions:
        raise ValueError(
            f"cannot define operation {name!r}: the namespace {first!r} belongs to the built-in operations. "
            "Choose one of your own."
        )
    if name in _definitions:
        raise ValueError(f"cannot define operation {name!r}: there is one of that name already. Choose another.")
    if vjp is REQUIRED:
        raise ValueError(
            f"cannot define operation {name!r}: its vjp is missing. Pass a function, or NON_DIFFERENTIABLE to say that "
            "it passes no gradient."
        )
    if vjp is not NON_DIFFERENTIABLE and not callable(vjp):
        raise TypeError(f"cannot define {name!r}: vjp must be callable or NON_DIFFERENTIABLE. Pass one of these.")
    definition = OperationDefinition(name, schema, resolve, reference, vjp)
    _definitions[name] = definition
    return definition


def definitions() -> Mapping[str, OperationDefinition]:
    """Every operation by name, shipped and custom, as it is now.

    >>> from strideweave.operation import definitions
    >>> "add" in definitions()
    True
    """
    return dict(_definitions)


def find(name: str) -> OperationDefinition:
    """The operation of that name. Errors: TypeError for no str; NotImplementedError for an unknown one.

    >>> from strideweave.operation import find
    >>> find("add")
    <operation add>
    """
    if not isinstance(name, str):
        raise TypeError(f"cannot find operation {name!r}: a name is text. Pass a str such as 'add'.")
    found = _definitions.get(name)
    if found is None:
        raise NotImplementedError(
            f"cannot find operation {name!r}: there is none of that name among {len(_definitions)}. "
            "See strideweave.operation.definitions()."
        )
    return found


__all__ = [
    "VJP",
    "OperandKind",
    "OperationDefinition",
    "VJPContext",
    "define",
    "define_operation",
    "definitions",
    "find",
]
