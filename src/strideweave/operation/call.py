"""One invocation on its way: the call as it was made, what it resolves to, and what its gradient may look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strideweave.carriers.carrier import Scalar
from strideweave.dtype import StorageDType
from strideweave.layout import Layout, Shape
from strideweave.operation.plan import OperationPlan
from strideweave.operation.schema import OperandKind
from strideweave.tensor.tensor import Tensor

if TYPE_CHECKING:
    from strideweave.operation.definition import OperationDefinition


class ProviderContractError(RuntimeError):
    """A provider, a resolution or a VJP broke its contract; what it had changed was rolled back.

    >>> from strideweave import ProviderContractError
    >>> issubclass(ProviderContractError, RuntimeError)
    True
    """


class UnsupportedOperationPlan(NotImplementedError):
    """No kernel takes this plan; the message lists every one that was asked, and why it refused.

    >>> import strideweave as sw
    >>> try:
    ...     sw.neg(sw.Tensor(sw.FileBacked(size=2), 0, sw.Layout.column_major(2)))
    ... except sw.operation.UnsupportedOperationPlan as error:
    ...     print(str(error).split(":")[0])
    cannot run neg on FileBacked
    """


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """What one result is: dtype, shape and layout, decided before any value is computed.

    >>> from strideweave import DType, Layout
    >>> from strideweave.operation import ResultSpec
    >>> ResultSpec(DType.Float32, Layout.row_major(2, 3).shape, Layout.row_major(2, 3)).view_of is None
    True
    """

    dtype: StorageDType
    """The dtype of its values."""
    shape: Shape
    """Its shape."""
    layout: Layout
    """Its layout, of that shape."""
    alias_of: int | None = None
    """The operand whose Tensor object is the result itself, changed in place."""
    atol: float = field(default=0.0, kw_only=True)
    """How far a kernel may be from the reference, absolutely."""
    rtol: float = field(default=0.0, kw_only=True)
    """How far a kernel may be from the reference, as a part of the value."""
    view_of: int | None = field(default=None, kw_only=True)
    """The operand whose storage the result shares: a view, for which no kernel runs."""
    offset: int = field(default=0, kw_only=True)
    """For a view: the slots by which it begins later than its operand."""

    def __post_init__(self) -> None:
        if self.layout.shape != self.shape:
            raise ValueError(
                f"cannot specify a result of {self.shape!r} with {self.layout!r}: the layout has another shape. "
                "Pass a layout of that shape."
            )


@dataclass(frozen=True, slots=True)
class BoundOperationCall:
    """Operands and options as the schema takes them, every option present.

    A resolution may look at shapes, layouts, dtypes, kinds, structural operands and options; never at values, carrier
    classes, devices or residency.

    >>> import strideweave as sw
    >>> from strideweave.operation import find
    >>> call = find("add").bind(sw.ones(2), 1)
    >>> [kind.value for kind in call.operand_kinds], dict(call.options)
    (['tensor', 'weak_scalar'], {})
    """

    definition: OperationDefinition
    """What is called."""
    operands: tuple[Any, ...]
    """Tensors, scalars and structural values, in order."""
    options: Mapping[str, Any]
    """Every option of the schema."""
    operand_kinds: tuple[OperandKind, ...]
    """The kind that each operand has here."""

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of the tensor operands, in order."""
        return tuple(o.layout for o in self.operands if isinstance(o, Tensor))

    @property
    def dtypes(self) -> tuple[StorageDType, ...]:
        """The dtypes of the tensor operands, in order."""
        return tuple(o.dtype() for o in self.operands if isinstance(o, Tensor))


OperationCall = BoundOperationCall


@dataclass(frozen=True, slots=True)
class ResolvedInvocation:
    """Everything that a provider needs: the call, its plan, its results, and which operands it changes or saves.

    >>> import strideweave as sw
    >>> from strideweave.operation import find
    >>> invocation = find("mul").resolve_call(sw.ones(2), sw.ones(2))
    >>> invocation.name, invocation.saved_operands, invocation.values(0)
    ('mul', (0, 1), [1.0, 1.0])
    """

    call: BoundOperationCall
    """The call."""
    plan: OperationPlan
    """The dtypes."""
    results: tuple[ResultSpec, ...]
    """The results, in order."""
    mutated_operands: tuple[int, ...] = ()
    """The operands that a provider may change."""
    saved_operands: tuple[int, ...] = ()
    """The operands whose values the gradient needs."""
    kernel_id: str | None = None
    """The kernel that was chosen, once it is."""
    aligned: tuple[Layout | None, ...] = ()
    """How each operand is read: for pointwise operations broadcast to the result's shape; its own layout otherwise."""
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What executors keep for all invocations of the same signature."""

    @property
    def definition(self) -> OperationDefinition:
        """What is called."""
        return self.call.definition

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.call.definition.name

    @property
    def operands(self) -> tuple[Any, ...]:
        """The operands."""
        return self.call.operands

    @property
    def options(self) -> Mapping[str, Any]:
        """The options."""
        return self.call.options

    def layout(self, k: int) -> Layout:
        """How operand `k` is read."""
        aligned = self.aligned[k] if self.aligned else None
        own: Layout = self.call.operands[k].layout
        return own if aligned is None else aligned

    def values(self, k: int) -> list[Scalar]:
        """For references: the values of operand `k`, first mode fastest, one by one; a scalar repeats."""
        operand = self.call.operands[k]
        if not isinstance(operand, Tensor):
            return [operand] * self.results[0].shape.size
        layout, carrier, offset = self.layout(k), operand.carrier, operand.offset
        return [carrier.get_value(offset + layout.index(i)) for i in range(layout.size)]


def with_call(template: ResolvedInvocation, call: BoundOperationCall) -> ResolvedInvocation:
    """The same resolution for another call of the same signature."""
    return ResolvedInvocation(
        call,
        template.plan,
        template.results,
        template.mutated_operands,
        template.saved_operands,
        template.kernel_id,
        template.aligned,
        template.memo,
    )


class VJPContext:
    """What a VJP may look at: the invocation, the results, and the operands that it saved.

    >>> import strideweave as sw
    >>> from strideweave.operation import VJPContext, find
    >>> x = sw.ones(2)
    >>> context = VJPContext(find("mul").resolve_call(x, x), [x], (True, False))
    >>> context.operand(0) is x, context.needs
    (True, (True, False))
    """

    __slots__ = ("_check_operand", "_check_outputs", "_outputs", "invocation", "needs")

    def __init__(
        self,
        invocation: ResolvedInvocation,
        outputs: Sequence[Tensor],
        needs: tuple[bool, ...],
        check_outputs: Callable[[], None] | None = None,
        check_operand: Callable[[int], None] | None = None,
    ) -> None:
        self._outputs = tuple(outputs)
        self._check_outputs = check_outputs
        self._check_operand = check_operand
        self.invocation = invocation
        """The invocation whose gradient is asked for."""
        self.needs = needs
        """For every operand, whether anybody wants its gradient; the entry may be None where it is not wanted."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The results, detached. Errors: RuntimeError ("modified in-place") when one is not as it was computed."""
        if self._check_outputs is not None:
            self._check_outputs()
        return self._outputs

    @property
    def saved_operands(self) -> tuple[Any, ...]:
        """The operands that the resolution saves, in its order, as they were. Errors: as `operand`."""
        return tuple(self.operand(k) for k in self.invocation.saved_operands)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the call."""
        return self.invocation.call.options

    def operand(self, k: int) -> Any:
        """Operand `k`, as it was.

        Errors: ProviderContractError for a Tensor that the resolution does not save; RuntimeError ("modified
        in-place") for one that is not as it was, or whose carrier is released.
        """
        operand = self.invocation.call.operands[k]
        if isinstance(operand, Tensor) and k not in self.invocation.saved_operands:
            raise ProviderContractError(
                f"cannot read operand {k} of {self.invocation.name} in its VJP: the resolution saves operands "
                f"{self.invocation.saved_operands}. Only saved values are known to be unchanged. Save it."
            )
        if self._check_operand is not None and isinstance(operand, Tensor):
            self._check_operand(k)
        return operand
