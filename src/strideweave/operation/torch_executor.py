"""TorchExecutor: operations on torch storage, as torch calls on strided views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.layout import Layout
from strideweave.operation.call import ProviderContractError, ResolvedInvocation, ResultSpec, UnsupportedOperationPlan
from strideweave.operation.schema import OperandKind
from strideweave.tensor.tensor import Tensor

Kernel: TypeAlias = Callable[..., Any]
View: TypeAlias = Callable[[torch.Tensor, int], torch.Tensor]

_kernels: dict[str, tuple[Kernel, bool]] = {}


def kernel(name: str, *, by_mode: bool = False) -> Callable[[Kernel], Kernel]:
    """Register the torch kernel of an operation: `function(invocation, *operands)` gives one torch tensor per result.

    Tensor operands arrive as strided views without a copy, one dim per leaf of their aligned layout. With `by_mode`
    they have one dim per top-level mode, counted first mode fastest, and the results are given in the same way; a
    nested mode is copied where its leaves do not merge.
    """

    def add(function: Kernel) -> Kernel:
        assert name not in _kernels, name
        _kernels[name] = (function, by_mode)
        return function

    return add


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is the same for every invocation of one signature."""

    function: Kernel
    views: tuple[Callable[[Any], Any], ...]
    finish: tuple[Callable[[torch.Tensor, type[TorchStorage]], Tensor], ...]


class TorchExecutor:
    """Runs every operation that has a torch kernel on carriers in torch storage, on whatever device they are."""

    def execute(self, invocation: ResolvedInvocation) -> tuple[Tensor, ...]:
        """Fresh Tensors of the class of the operands. Errors: UnsupportedOperationPlan where there is no kernel."""
        prepared: _Prepared | None = invocation.memo.get("torch")
        if prepared is None:
            prepared = invocation.memo["torch"] = _prepare(invocation)
        operands = invocation.call.operands
        arguments = [view(operand) for view, operand in zip(prepared.views, operands, strict=True)]
        made = prepared.function(invocation, *arguments)
        carrier_class = _class_of(operands)
        if made.__class__ is torch.Tensor:
            return (prepared.finish[0](made, carrier_class),)
        if len(made) != len(prepared.finish):
            raise ProviderContractError(
                f"cannot run {invocation.name}: its kernel gave {len(made)} results of {len(prepared.finish)}. Mend it."
            )
        return tuple(finish(one, carrier_class) for finish, one in zip(prepared.finish, made, strict=True))

    def supports(self, name: str) -> bool:
        """Whether there is a kernel of that name."""
        return name in _kernels


def _class_of(operands: Sequence[Any]) -> type[TorchStorage]:
    for operand in operands:
        if isinstance(operand, Tensor):
            return cast(type[TorchStorage], operand._carrier.__class__)
    raise AssertionError("an operation has a tensor operand")


def _prepare(invocation: ResolvedInvocation) -> _Prepared:
    found = _kernels.get(invocation.name)
    if found is None:
        raise UnsupportedOperationPlan(
            f"cannot run {invocation.name} on {_class_of(invocation.operands).__name__}: there is no kernel for it. "
            "Its definition has a reference, which Generic runs; move the operands there, or register a kernel."
        )
    function, by_mode = found
    views: list[Callable[[Any], Any]] = []
    plans = iter(invocation.plan.operands)
    for k, kind in enumerate(invocation.call.operand_kinds):
        if kind is OperandKind.TENSOR:
            plan = next(plans)
            # A tensor of rank 0 is outranked in torch's promotion too, so it arrives as what it is, not widened.
            own = invocation.operands[k].layout
            layout = own if len(own) == 0 and not by_mode else invocation.layout(k)
            views.append(_viewer(layout, by_mode, plan.convert_to))
        else:
            if kind is OperandKind.WEAK_SCALAR:
                next(plans)
            views.append(_as_it_is)
    return _Prepared(function, tuple(views), tuple(_finisher(spec, by_mode) for spec in invocation.results))


def _as_it_is(operand: Any) -> Any:
    return operand


def _viewer(layout: Layout, by_mode: bool, convert_to: Any) -> Callable[[Tensor], torch.Tensor]:
    merged = merged_by_mode(layout) if by_mode else layout
    sizes = tuple(n for n, _ in merged.leaves())
    strides = tuple(d for _, d in merged.leaves())
    modes = tuple(mode.size for mode in merged)
    nested = by_mode and len(sizes) != len(modes)
    order = mode_order(merged) if nested else ()
    dtype = None if convert_to is None else convert_to.torch_dtype

    def view(operand: Tensor) -> torch.Tensor:
        flat = operand._carrier._flat()
        seen = torch.as_strided(flat, sizes, strides, flat.storage_offset() + operand._offset)
        if nested:
            seen = seen.permute(order).reshape(modes)
        return seen if dtype is None else seen.to(dtype)

    return view


def merged_by_mode(layout: Layout) -> Layout:
    """The same layout, every mode with as few leaves as its strides allow, and at least one."""
    modes = []
    for mode in layout:
        merged = mode.coalesce()
        modes.append(merged if len(merged) else Layout.leaf(1, 0))
    return Layout.make_layout(*modes) if modes else layout


def mode_order(layout: Layout) -> tuple[int, ...]:
    """The dims of the leaves, those of a mode reversed: torch's last-fastest reshape then counts first mode fastest."""
    order: list[int] = []
    begin = 0
    for mode in layout:
        count = len(mode.leaves())
        order.extend(range(begin + count - 1, begin - 1, -1))
        begin += count
    return tuple(order)


def _finisher(spec: ResultSpec, by_mode: bool) -> Callable[[torch.Tensor, type[TorchStorage]], Tensor]:
    leaves = spec.layout.leaves()
    sizes, strides = tuple(n for n, _ in leaves), tuple(d for _, d in leaves)
    layout, dtype, torch_dtype = spec.layout, spec.dtype, spec.dtype.torch_dtype
    wide = tuple(k for k, n in enumerate(sizes) if n > 1)
    nested = by_mode and len(sizes) != len(spec.layout)
    order = mode_order(spec.layout) if nested else ()
    unmerged = tuple(sizes[k] for k in order)
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    slots = layout.cosize

    def finish(made: torch.Tensor, carrier_class: type[TorchStorage]) -> Tensor:
        if nested:
            made = made.reshape(unmerged).permute(back)
        if made.dtype is not torch_dtype:
            made = made.to(torch_dtype)
        found = made.stride()
        if made.size() != sizes:
            raise ProviderContractError(
                f"cannot finish an operation: its kernel gave shape {tuple(made.size())} for {layout!r}. Mend it."
            )
        if (found != strides and any(found[k] != strides[k] for k in wide)) or not owns_all(made, slots):
            placed = torch.empty_strided(sizes, strides, dtype=torch_dtype, device=made.device)
            made = placed.copy_(made)
        return Tensor._make(carrier_class._adopt(made, slots, dtype), 0, layout)

    return finish


def owns_all(made: torch.Tensor, slots: int) -> bool:
    """Whether the tensor begins its storage and fills it: a kernel that gave a view of something else does not."""
    return made.storage_offset() == 0 and made.untyped_storage().nbytes() == slots * made.element_size()


def carrier_classes() -> tuple[type[Carrier], ...]:
    """The shipped classes in torch storage."""
    from strideweave.carriers.cpu import CPU
    from strideweave.carriers.cuda import CUDA
    from strideweave.carriers.metal import Metal

    return (CPU, CUDA, Metal)
