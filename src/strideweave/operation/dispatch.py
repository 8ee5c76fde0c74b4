"""From a call to its results: bind, resolve, run, record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strideweave.carriers.carrier import Carrier
from strideweave.operation import execution, observing
from strideweave.operation.call import (
    BoundOperationCall,
    ProviderContractError,
    ResolvedInvocation,
    UnsupportedOperationPlan,
    with_call,
)
from strideweave.operation.node import Operation, ResultContext
from strideweave.operation.schema import REQUIRED, OperandKind
from strideweave.tensor.grad_mode import mode
from strideweave.tensor.tensor import Tensor

if TYPE_CHECKING:
    from strideweave.operation.definition import OperationDefinition

_CACHED = 4096
_resolutions: dict[Any, ResolvedInvocation] = {}
"""What was resolved, by signature. A race loses a cached entry, never a result; emptied when it is full."""

_kinds: dict[tuple[Any, ...], tuple[OperandKind, ...]] = {}
"""The kinds of operands, by definition and types."""

_TENSOR, _WEAK, _STRUCTURAL = OperandKind.TENSOR, OperandKind.WEAK_SCALAR, OperandKind.STRUCTURAL


def run(
    definition: OperationDefinition,
    operands: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    carrier_class: type[Carrier] | None = None,
) -> Any:
    """The result of the call, or a tuple when there are several; recorded when somebody wants its gradient."""
    call = bind(definition, operands, options)
    found, is_wanted, signature = _looked_at(call)
    if carrier_class is not None and found is not carrier_class:
        raise TypeError(
            f"cannot run {definition.name} dispatched by {carrier_class.__name__} on {found.__name__}: the operation "
            "belongs to one carrier class. Dispatch it from the operand's carrier."
        )
    invocation = resolved(call, signature)
    needs = _needs(invocation) if is_wanted and mode.enabled else ()
    if needs and any(spec.alias_of is not None for spec in invocation.results):
        raise ValueError(
            f"cannot record {definition.name}: its result is an exact-object aliased operand, and a graph cannot hold "
            "a value that replaces its own input. Run it under no_grad()."
        )
    if observing.active:
        implementation = type(execution.executor_of(found)) if invocation.results[0].view_of is None else Tensor
        results = observing.observe(
            definition.name, found, implementation, call.operands, lambda: _execute(invocation, found)
        )
    else:
        results = _execute(invocation, found)
    if needs:
        _record(invocation, found, results, needs)
    return results[0] if len(results) == 1 else results


def bind(definition: OperationDefinition, operands: tuple[Any, ...], options: Mapping[str, Any]) -> BoundOperationCall:
    """The call as the schema takes it. Errors: TypeError for operands or options of another number, name or kind."""
    schema = definition.schema
    kinds = _kinds.get((definition, *map(type, operands)))
    if kinds is None:
        operands, options, kinds = _bind_operands(definition, operands, options)
    bound: dict[str, Any] = {}
    if schema.options or options:
        bound = _bind_options(definition, options)
    return BoundOperationCall(definition, operands, bound, kinds)


def _bind_operands(
    definition: OperationDefinition, operands: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any], tuple[OperandKind, ...]]:
    """Operands in their places, the options that are left, and the kind of each, which its type decides."""
    schema = definition.schema
    specs = schema.operands
    if len(operands) != len(specs):
        specs = schema.operands_for(len(operands))
        if len(operands) != len(specs):
            operands, options = _by_name(definition, operands, options)
    kinds = []
    for operand, spec in zip(operands, specs, strict=True):
        kind = _TENSOR if isinstance(operand, Tensor) else _kind(operand)
        if kind is not spec.kind and kind not in spec.kinds:
            if _STRUCTURAL not in spec.kinds or kind is _TENSOR:
                raise _wrong_kind(definition, spec.name, operand, spec.kinds)
            kind = _STRUCTURAL
        kinds.append(kind)
    if len(_kinds) >= _CACHED:
        _kinds.clear()
    _kinds[(definition, *map(type, operands))] = tuple(kinds)
    return operands, options, tuple(kinds)


def _kind(operand: object) -> OperandKind:
    return _WEAK if isinstance(operand, int | float) else _STRUCTURAL


def _wrong_kind(
    definition: OperationDefinition, name: str, operand: object, kinds: tuple[OperandKind, ...]
) -> TypeError:
    wanted = " or ".join("a Tensor" if k is _TENSOR else "a number" for k in kinds)
    return TypeError(
        f"cannot run {definition.name} with {name}={type(operand).__name__}: it takes {wanted} there. "
        "Pass one; wait() turns a handle into a Tensor, from_torch a torch tensor."
    )


def _by_name(
    definition: OperationDefinition, operands: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Operands that were given by keyword, put in their places."""
    specs = definition.schema.operands
    rest = dict(options)
    given = list(operands)
    for spec in specs[len(operands) :]:
        if spec.name not in rest:
            break
        given.append(rest.pop(spec.name))
    if len(given) != len(specs):
        raise TypeError(
            f"cannot run {definition.name} with {len(operands)} operands: it takes {len(specs)} "
            f"{'or more ' if definition.schema.is_variadic else ''}({', '.join(spec.name for spec in specs)}). Pass "
            "exactly these."
        )
    return tuple(given), rest


def _bind_options(definition: OperationDefinition, options: Mapping[str, Any]) -> dict[str, Any]:
    bound = {}
    for spec in definition.schema.options:
        value = options.get(spec.name, spec.default)
        if value is REQUIRED:
            raise TypeError(f"cannot run {definition.name}: option {spec.name} has no default. Pass {spec.name}=...")
        if isinstance(value, Tensor):
            raise TypeError(
                f"cannot run {definition.name} with a Tensor as {spec.name}: an option says how, never how much. "
                "Pass it as an operand, or its value."
            )
        bound[spec.name] = value
    if len(options) > len(bound) or any(name not in bound for name in options):
        unknown = sorted(set(options) - set(bound))
        raise TypeError(
            f"cannot run {definition.name} with option {unknown[0]!r}: it takes {', '.join(bound) or 'no options'}. "
            "Leave it out."
        )
    return bound


def _looked_at(call: BoundOperationCall) -> tuple[type[Carrier], bool, tuple[Any, ...]]:
    """The carrier class, whether some operand requires a gradient, and the signature by which resolutions are kept.

    Errors: TypeError for no Tensor or two carrier classes; RuntimeError for a released carrier.
    """
    found: type[Carrier] | None = None
    host: Carrier | None = None
    """The carrier that the operation is dispatched on: it has the class of the others, or takes them beside it."""
    is_wanted = False
    released: Carrier | None = None
    signature: list[Any] = [call.definition]
    for operand, kind in zip(call.operands, call.operand_kinds, strict=True):
        if kind is _TENSOR:
            carrier = operand._carrier
            signature.append(operand._layout)
            signature.append(carrier._dtype)
            here = carrier.__class__
            if here is not found:
                if host is None or carrier._takes_beside(host):
                    host, found = carrier, here
                elif not host._takes_beside(carrier):
                    raise TypeError(
                        f"cannot run {call.definition.name} on {host.__class__.__name__} and {here.__name__}: Tensor "
                        "backing carriers must match. Move or materialize one of the operands."
                    )
            if operand._requires_grad:
                is_wanted = True
            if carrier._released:
                released = carrier
        elif kind is _WEAK:
            signature.append(operand.__class__)
        else:
            signature.append(operand)
    if call.options:
        signature.extend(call.options.values())
    if found is None:
        raise TypeError(
            f"cannot run {call.definition.name} on numbers alone: an operation takes at least one Tensor. Use math, or "
            "make a Tensor with sw.tensor."
        )
    if released is not None:
        raise RuntimeError(
            f"cannot run {call.definition.name}: the {type(released).__name__} carrier is released. A released carrier "
            "holds no values. Make a new one."
        )
    return found, is_wanted, tuple(signature)


def resolved(call: BoundOperationCall, signature: tuple[Any, ...] | None = None) -> ResolvedInvocation:
    """What the call resolves to, from the cache when the same signature was resolved before."""
    key = _looked_at(call)[2] if signature is None else signature
    try:
        template = _resolutions.get(key)
    except TypeError:  # an option that cannot be hashed: resolved every time
        return _resolve(call)
    if template is None:
        template = _resolve(call)
        if len(_resolutions) >= _CACHED:
            _resolutions.clear()
        # Without the call, which would keep its tensors alive.
        _resolutions[key] = with_call(template, BoundOperationCall(call.definition, (), {}, ()))
        return template
    return with_call(template, call)


def _resolve(call: BoundOperationCall) -> ResolvedInvocation:
    invocation = call.definition.resolve(call)
    if not isinstance(invocation, ResolvedInvocation):
        raise ProviderContractError(
            f"cannot run {call.definition.name}: its resolve gave {type(invocation).__name__}. It gives a "
            "ResolvedInvocation. Mend it."
        )
    return invocation


def _needs(invocation: ResolvedInvocation) -> tuple[bool, ...]:
    """For every operand, whether its gradient is wanted; empty when nobody wants any."""
    call = invocation.call
    specs = call.definition.schema.operands
    if len(specs) != len(call.operands):
        specs = call.definition.schema.operands_for(len(call.operands))
    needs = tuple(
        isinstance(operand, Tensor) and operand._requires_grad and spec.differentiable
        for operand, spec in zip(call.operands, specs, strict=True)
    )
    if True in needs and call.definition.is_differentiable:
        return needs if any(spec.dtype.is_floating for spec in invocation.results) else ()
    return ()


def _execute(invocation: ResolvedInvocation, carrier_class: type[Carrier]) -> tuple[Tensor, ...]:
    first = invocation.results[0]
    if first.view_of is not None:
        return tuple(_view(invocation, spec) for spec in invocation.results)
    executor = execution.executor_of(carrier_class)
    if executor is None:
        raise UnsupportedOperationPlan(
            f"cannot run {invocation.name} on {carrier_class.__name__}: it only stores, and computes nothing. Carriers "
            f"that compute are {execution.names()}. Move the operands to one, or materialize() them."
        )
    return executor.execute(invocation)


def _view(invocation: ResolvedInvocation, spec: Any) -> Tensor:
    source: Tensor = invocation.call.operands[spec.view_of]
    if not source._carrier._allows_views():
        raise NotImplementedError(
            f"cannot run {invocation.name} on {type(source._carrier).__name__}: a tiled tensor refuses views, since "
            "its tiles are those of the whole. project() the tiles that you need, or materialize() it."
        )
    return Tensor._make(source._carrier, source._offset + spec.offset, spec.layout)


def _record(
    invocation: ResolvedInvocation, carrier_class: type[Carrier], results: tuple[Tensor, ...], needs: tuple[bool, ...]
) -> None:
    operation = Operation(invocation.call.definition, carrier_class)
    operation._record(invocation, results, needs)
    for k, result in enumerate(results):
        if result.dtype().is_floating:
            result._requires_grad = True
            result._node = operation if len(results) == 1 else ResultContext(operation, k)
