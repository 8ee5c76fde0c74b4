"""Operation: one call that happened, as a node of the graph that backward walks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strideweave.carriers.carrier import Carrier
from strideweave.operation.call import ProviderContractError, ResolvedInvocation, VJPContext
from strideweave.tensor.grad_mode import no_grad
from strideweave.tensor.tensor import Tensor

if TYPE_CHECKING:
    from strideweave.operation.definition import OperationDefinition


class Operation:
    """One call of an operation on one carrier class: `forward` computes it, `backward` passes its gradient on.

    A recorded call is the `autograd_ctx` of its result. It keeps its operands, and the version of those that the
    gradient needs.

    >>> import strideweave as sw
    >>> x = sw.tensor([2.0], requires_grad=True)
    >>> node = (x * 3).autograd_ctx
    >>> node, sw.to_list(node.backward(sw.ones(1))[0])
    (<mul on CPU>, [3.0])
    """

    __slots__ = (
        "_definition",
        "_dispatch_carrier_class",
        "_input_versions",
        "_needs",
        "_output_versions",
        "_outputs",
        "_resolved_invocation",
        "_versions",
        "ctx",
    )

    def __init__(self, definition: OperationDefinition, carrier_class: type[Carrier] | None) -> None:
        self._definition = definition
        self._dispatch_carrier_class = carrier_class
        self._resolved_invocation: ResolvedInvocation | None = None
        self._outputs: tuple[Tensor, ...] = ()
        self._output_versions: tuple[object, ...] = ()
        self._needs: tuple[bool, ...] = ()
        self._versions: tuple[object, ...] = ()
        self._input_versions: tuple[int, ...] = ()
        self.ctx: dict[str, Any] = {}
        """Room for whoever defines a gradient."""

    @property
    def _operation_name(self) -> str:
        return self._definition.name

    def forward(self, *operands: Any, **options: Any) -> Any:
        """The result of the operation on these operands. Errors: as calling the definition."""
        from strideweave.operation import dispatch

        return dispatch.run(self._definition, operands, options, carrier_class=self._dispatch_carrier_class)

    def _record(self, invocation: ResolvedInvocation, outputs: tuple[Tensor, ...], needs: tuple[bool, ...]) -> None:
        """This call happened; its results are `outputs`."""
        self._resolved_invocation = invocation
        self._needs = needs
        # Detached, so that a result and its node are no cycle that only the garbage collector would free.
        self._outputs = tuple(output.detach() for output in outputs)
        self._output_versions = tuple(output._carrier._content_token() for output in outputs)
        operands = invocation.call.operands
        self._versions = tuple(operands[k].carrier._content_token() for k in invocation.saved_operands)
        self._input_versions = tuple(o._carrier._version for o in operands if isinstance(o, Tensor))

    def inputs(self) -> tuple[Tensor, ...]:
        """The tensor operands, in order."""
        return tuple(o for o in self._live().call.operands if isinstance(o, Tensor))

    def input_versions(self) -> tuple[int, ...]:
        """The version that the carrier of each tensor operand had when the call happened."""
        self._live()
        return self._input_versions

    def check_versions(self) -> None:
        """Nothing, when every saved operand is as it was. Errors: RuntimeError ("modified in-place")."""
        invocation = self._live()
        for k in invocation.saved_operands:
            self._check_operand(k)

    def _check_operand(self, k: int) -> None:
        invocation = self._live()
        before = self._versions[invocation.saved_operands.index(k)]
        self._require_unchanged(invocation.call.operands[k].carrier, before, f"operand {k}")

    def _check_outputs(self) -> None:
        for k, (output, before) in enumerate(zip(self._outputs, self._output_versions, strict=True)):
            self._require_unchanged(output.carrier, before, f"result {k}")

    def _require_unchanged(self, carrier: Carrier, before: object, what: str) -> None:
        if carrier.is_released():
            raise RuntimeError(
                f"cannot run the backward of {self._operation_name}: the carrier of its {what} is released, and its "
                "values are needed. Keep it until backward is done."
            )
        if carrier._content_token() != before:
            raise RuntimeError(
                f"cannot run the backward of {self._operation_name}: its {what}, saved for the gradient, was modified "
                f"in-place ({before} then, {carrier._content_token()} now). A saved value must stay as it was. Change "
                "a copy, or change it after backward."
            )

    def backward(self, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """One entry for every tensor operand, in the order of `inputs()`: its gradient, or None.

        Errors: RuntimeError for a saved operand that changed, or a graph that was freed.
        """
        with no_grad():
            entries = self._gradients(*cotangents)
        operands = self._live().call.operands
        return tuple(e for e, o in zip(entries, operands, strict=True) if isinstance(o, Tensor))

    def _gradients(self, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """One entry for every operand, each of the operand's own shape and dtype."""
        # Not at the top: these run operations, which make nodes.
        from strideweave.operation.execution import executor_of
        from strideweave.operation.gradients import conform

        invocation = self._live()
        vjp = self._definition.vjp
        assert callable(vjp)
        context = VJPContext(invocation, self._outputs, self._needs, self._check_outputs, self._check_operand)
        own = None
        executor = None if self._dispatch_carrier_class is None else executor_of(self._dispatch_carrier_class)
        # By name: asking whether it is a DifferentiatingExecutor takes as long as an operation.
        gradient = getattr(executor, "gradient", None)
        if gradient is not None:
            own = gradient(context, *cotangents)
        entries = tuple(vjp(context, *cotangents) if own is None else own)
        operands = invocation.call.operands
        if len(entries) != len(operands):
            raise ProviderContractError(
                f"cannot run the backward of {self._operation_name}: its vjp gave {len(entries)} entries for "
                f"{len(operands)} operands. It gives one for each, None where there is no gradient. Mend the vjp."
            )
        return tuple(
            conform(entry, operand, name=self._operation_name) if entry is not None and needed else None
            for entry, operand, needed in zip(entries, operands, self._needs, strict=True)
        )

    def _free(self) -> None:
        """The graph is used up: the operands and results are let go of."""
        self._resolved_invocation = None
        self._outputs = ()
        self.ctx = {}

    @property
    def is_freed(self) -> bool:
        """Whether a backward has used the node up."""
        return self._resolved_invocation is None

    def _live(self) -> ResolvedInvocation:
        if self._resolved_invocation is None:
            raise RuntimeError(
                f"cannot go backward through the graph a second time ({self._operation_name}): its saved values were "
                "freed. They are kept with retain_graph=True. Pass it to the first backward."
            )
        return self._resolved_invocation

    def __repr__(self) -> str:
        where = self._dispatch_carrier_class.__name__ if self._dispatch_carrier_class is not None else "any carrier"
        return f"<{self._operation_name} on {where}>"


class ResultContext:
    """The context of one result of an operation that has several: it delegates to the one shared Operation."""

    __slots__ = ("index", "operation")

    def __init__(self, operation: Operation, index: int) -> None:
        self.operation = operation
        """The operation that gave the result."""
        self.index = index
        """Which of its results this is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operation, name)

    def __repr__(self) -> str:
        return f"<result {self.index} of {self.operation!r}>"
