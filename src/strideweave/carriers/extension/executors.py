"""Who runs operations on defined classes: kernels on independent ones, the composite on dependent ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.extension.composite import CompositeProvider
from strideweave.carriers.extension.dependent import DependentCarrier
from strideweave.carriers.extension.guard import guarded
from strideweave.carriers.extension.kernels import (
    KernelExecutionInterface,
    KernelPack,
    KernelPattern,
    PreparedKernel,
    require_distinct,
)
from strideweave.carriers.extension.providers import (
    PreparedComposite,
    ProviderResult,
    Unsupported,
    outcome_of,
)
from strideweave.operation.call import ProviderContractError, ResolvedInvocation, UnsupportedOperationPlan, VJPContext
from strideweave.operation.plan import OperationPlan
from strideweave.tensor.tensor import Tensor


class KernelExecutor:
    """Runs the kernels of one independent class: those of its definition, then those of packs, the preferred first."""

    def __init__(
        self, carrier_class: type[Carrier], interface: KernelExecutionInterface, patterns: Sequence[KernelPattern]
    ) -> None:
        self.interface = interface
        self._carrier_class = carrier_class
        self._built_in = tuple(patterns)
        self._packs: tuple[KernelPack, ...] = ()

    def add(self, pack: KernelPack) -> None:
        """The pack's kernels are asked from now on. Errors: ValueError for a pack or kernel_id that is there."""
        if any(pack.order == known.order for known in self._packs):
            raise ValueError(
                f"cannot register pack {pack.namespace} {pack.version} for {self._carrier_class.__name__}: there is "
                "one of that namespace and version. Raise the version."
            )
        require_distinct([pattern.kernel_id for pattern in (*self._patterns(), *pack.patterns)])
        self._packs = tuple(sorted((*self._packs, pack), key=lambda one: one.order))

    def _patterns(self) -> Iterator[KernelPattern]:
        yield from self._built_in
        for pack in self._packs:
            yield from pack.patterns

    def capabilities(self, cls: type[Carrier]) -> tuple[OperationPlan, ...]:
        """Every plan that some kernel takes."""
        return tuple(dict.fromkeys(plan for pattern in self._patterns() for plan in pattern.plans))

    def unsupported_reason(self, cls: type[Carrier], plan: OperationPlan) -> str | None:
        """Why no kernel takes the plan; None when one does."""
        same = [pattern for pattern in self._patterns() if pattern.operation == plan.operation]
        if not same:
            return f"{cls.__name__} has no kernel for {plan.operation}"
        if any(plan in pattern.plans for pattern in same):
            return None
        return f"none of its kernels for {plan.operation} ({', '.join(p.kernel_id for p in same)}) takes these dtypes"

    def execute(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        """The results of the first kernel that takes the call.

        Errors: UnsupportedOperationPlan when none does; ProviderContractError for a kernel that fails, gives something
        else or changes what it may not, all of which is undone; what `prepare` raises.
        """
        reason = self.unsupported_reason(self._carrier_class, invocation.plan)
        if reason is not None:
            raise UnsupportedOperationPlan(
                f"cannot run {invocation.name} giving {invocation.plan.output.name} on {self._carrier_class.__name__}: "
                f"{reason}. Register a kernel for this plan, or move the operands to a carrier that has one."
            )
        return guarded(invocation, lambda: self._run(invocation), compares=True)

    def _run(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        chosen, submit = self._prepared(invocation)
        what = f"{invocation.name} by {chosen}"
        return results_of(invocation, submit, [self._carrier_class] * len(invocation.results), what=what)

    def _prepared(self, invocation: ResolvedInvocation) -> tuple[str, Callable[[], object]]:
        fitting = [
            pattern
            for pattern in self._patterns()
            if pattern.operation == invocation.name and invocation.plan in pattern.plans
        ]
        refusals = []
        for pattern in sorted(fitting, key=lambda one: -one.preference):
            prepared: object = pattern.prepare(replace(invocation, kernel_id=pattern.kernel_id))
            if isinstance(prepared, Unsupported):
                refusals.append(f"{pattern.kernel_id}: {prepared.reason}")
                continue
            if not isinstance(prepared, PreparedKernel):
                raise ProviderContractError(
                    f"cannot run {invocation.name} by {pattern.kernel_id}: its prepare gave {type(prepared).__name__}. "
                    "It gives a PreparedKernel or Unsupported. Mend the kernel."
                )
            if prepared.interface.compatibility_identity != self.interface.compatibility_identity:
                raise ProviderContractError(
                    f"cannot run {invocation.name} by {pattern.kernel_id}: it was prepared for {prepared.interface!r}, "
                    f"which does not match {self.interface!r} of {self._carrier_class.__name__}. Mend the kernel."
                )
            return pattern.kernel_id, prepared.submit
        raise UnsupportedOperationPlan(
            f"cannot run {invocation.name} on {self._carrier_class.__name__}: {'; '.join(refusals)}. Every kernel for "
            "this plan refused. Change the operands as they say, or register another kernel."
        )


class CompositeExecutor:
    """Runs operations on one dependent class by its CompositeProvider."""

    def __init__(self, carrier_class: type[Carrier], composite: CompositeProvider) -> None:
        self._carrier_class = carrier_class
        self._composite = composite

    def execute(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        """The results of the composite. Errors: as those of `KernelExecutor.execute`."""
        for operand in invocation.operands:
            if isinstance(operand, Tensor) and isinstance(operand.carrier, DependentCarrier):
                operand.carrier.require_operation_plan(invocation.plan)
        return guarded(invocation, lambda: self._run(invocation), compares=False)

    def gradient(self, context: VJPContext, *cotangents: Tensor | None) -> Sequence[Tensor | None] | None:
        """The composite's own gradient; None leaves it to the definition."""
        if self._composite.gradient is None:
            return None
        return self._composite.gradient(context, *cotangents)

    def _run(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        name = self._carrier_class.__name__
        prepared: object = self._composite.prepare(invocation)
        if isinstance(prepared, Unsupported):
            raise UnsupportedOperationPlan(
                f"cannot run {invocation.name} on {name}: composite: {prepared.reason}. Change the operands as it says."
            )
        if not isinstance(prepared, PreparedComposite):
            raise ProviderContractError(
                f"cannot run {invocation.name} on {name}: its prepare gave {type(prepared).__name__}. It gives a "
                "PreparedComposite or Unsupported. Mend the provider."
            )
        classes = tuple(self._composite.result_carriers(invocation))
        if len(classes) != len(invocation.results):
            raise ProviderContractError(
                f"cannot run {invocation.name} on {name}: result_carriers gave {len(classes)} classes for "
                f"{len(invocation.results)} results. It gives one for each. Mend the provider."
            )
        return results_of(invocation, prepared.submit, classes, what=f"{invocation.name} on {name}")


def results_of(
    invocation: ResolvedInvocation,
    submit: Callable[[], object],
    classes: Sequence[type[Carrier]],
    *,
    what: str,
) -> tuple[Tensor, ...]:
    """The outputs of prepared work, each as it was resolved. Errors: ProviderContractError for all that goes wrong."""
    try:
        result = outcome_of(submit(), what=what)
    except ProviderContractError:
        raise
    except Exception as error:
        raise ProviderContractError(
            f"cannot finish {what}: it failed with {type(error).__name__}: {error}. What it had changed was rolled "
            "back. See the cause."
        ) from error
    _require_as_resolved(invocation, result, classes, what)
    return result.outputs


def _require_as_resolved(
    invocation: ResolvedInvocation, result: ProviderResult, classes: Sequence[type[Carrier]], what: str
) -> None:
    outputs, specs = result.outputs, invocation.results
    if len(outputs) != len(specs):
        raise ProviderContractError(
            f"cannot accept the results of {what}: it gave {len(outputs)} of {len(specs)}. Mend the provider."
        )
    operands = [operand for operand in invocation.operands if isinstance(operand, Tensor)]
    for k, (output, spec, cls) in enumerate(zip(outputs, specs, classes, strict=True)):
        carrier = output.carrier
        wrong = None
        if carrier.is_released():
            wrong = "its carrier is released"
        elif spec.alias_of is not None:
            if output is not invocation.operands[spec.alias_of]:
                wrong = f"it is not operand {spec.alias_of} itself"
        elif any(carrier is operand.carrier for operand in operands):
            wrong = "it shares the carrier of an operand, and must be fresh"
        elif type(carrier) is not cls:
            wrong = f"its carrier is a {type(carrier).__name__}, and must be exactly a {cls.__name__}"
        elif carrier.is_owned():
            wrong = "its carrier is owned"
        if wrong is None and output.dtype() is not spec.dtype:
            wrong = f"its dtype is {output.dtype().name}, and {spec.dtype.name} was resolved"
        if wrong is None and output.layout != spec.layout:
            wrong = f"its layout is {output.layout!r}, and {spec.layout!r} was resolved"
        if wrong is not None:
            raise ProviderContractError(f"cannot accept result {k} of {what}: {wrong}. Mend the provider.")
