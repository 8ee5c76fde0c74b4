"""Movement: the values of a Tensor pass into another carrier, and the one that held them is released."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.definition import is_defined
from strideweave.carriers.extension import (
    PreparedTransfer,
    TransferRequest,
    Unsupported,
    elementwise_fallback,
    require_completion,
    transfer_route,
)
from strideweave.carriers.handle import AwaitMove, AwaitResult
from strideweave.carriers.routes import (
    BlockDeviceToCpu,
    CpuToBlockDevice,
    CpuToFileBacked,
    ElementwiseMoveOperation,
    FileBackedToCpu,
    MoveOperation,
    dispatch_move,
    register_move_operation,
    registered_move_operation,
    route_name,
    unregister_move_operation,
)
from strideweave.io import Priority, default_lanes
from strideweave.layout import Layout
from strideweave.operation import observing
from strideweave.operation.call import (
    BoundOperationCall,
    ProviderContractError,
    ResolvedInvocation,
    ResultSpec,
    VJPContext,
)
from strideweave.operation.definition import define
from strideweave.operation.node import Operation
from strideweave.operation.observing import Observation
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema
from strideweave.operation.views import COPY
from strideweave.tensor.grad_mode import mode
from strideweave.tensor.tensor import Tensor

__all__ = [
    "AwaitMove",
    "AwaitResult",
    "BlockDeviceToCpu",
    "CpuToBlockDevice",
    "CpuToFileBacked",
    "ElementwiseMoveOperation",
    "FileBackedToCpu",
    "MoveOperation",
    "dispatch_move",
    "move",
    "move_async",
    "register_move_operation",
    "registered_move_operation",
    "unregister_move_operation",
]

Route: TypeAlias = "Callable[[Tensor, Carrier], None]"
"""Brings the slots that a Tensor's layout spans to the beginning of a carrier that is allocated; runs on a lane."""


def move_async(tensor: Tensor, destination: Carrier) -> AwaitMove[Tensor]:
    """A handle whose Tensor has the values and the Layout of `tensor`, at offset 0 of `destination`; begun at once.

    The slots that the Layout spans are copied, `layout.cosize` of them, on a lane; an empty destination is allocated to
    just that. Both carriers are owned until the end. Then the source carrier is released, and every Tensor over it ends
    with it. Dropping the handle cancels nothing.

    Errors: TypeError for no Tensor, no Carrier or another dtype; RuntimeError for a source or destination that is
    released or owned, or a destination that is immutable; ValueError for the Tensor's own carrier or one that is too
    small; NotImplementedError for a tiled carrier. Nothing has changed then. What fails later is raised by `wait()`:
    the source is as it was, and the destination can be used, though it may hold some of the new values and keep the
    slots that it was given.

    >>> import torch
    >>> from strideweave import FileBacked, from_torch
    >>> from strideweave import move_async
    >>> source = from_torch(torch.arange(6.0).reshape(2, 3))
    >>> moved = move_async(source, FileBacked()).wait()
    >>> moved[1, 2], moved.carrier.size(), source.carrier.is_released()
    (5.0, 6, True)
    """
    _require_movable(tensor, destination)
    route = _route(tensor, destination)
    _require_room(tensor.layout, destination)
    if tensor.requires_grad and mode.enabled:
        _require_reverse(type(tensor.carrier), type(destination))
    handle: AwaitMove[Tensor] = AwaitMove._pending(f"the move of {tensor.layout!r} into {type(destination).__name__}")
    if not observing.active:
        _Move(tensor, destination, handle, route, None).start()
        return handle
    observation = observing.Observation("move.submit", type(tensor.carrier), _Move, (tensor,))
    succeeded = False
    try:
        _Move(tensor, destination, handle, route, observation).start()
        succeeded = True
    finally:
        observation.end(succeeded=succeeded)
    return handle


def move(tensor: Tensor, destination: Carrier) -> Tensor:
    """The Tensor of `move_async`, waited for, with the same errors.

    >>> import torch
    >>> from strideweave import CPU, from_torch
    >>> from strideweave import move
    >>> move(from_torch(torch.arange(6.0).reshape(2, 3)), CPU(0)).torch()
    tensor([[0., 1., 2.],
            [3., 4., 5.]])
    """
    return move_async(tensor, destination).wait()


def _require_movable(tensor: Tensor, destination: Carrier) -> None:
    """Nothing, when the move may begin; the order of the checks is part of the contract."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"cannot move {type(tensor).__name__}: tensor must be a Tensor. Pass one; wait() turns a handle into one."
        )
    source = tensor.carrier
    if source.is_released():
        raise RuntimeError(
            f"cannot move {tensor!r}: tensor carrier is released. A released carrier holds no values. Make a new one."
        )
    if source.is_owned():
        raise RuntimeError(
            f"cannot move {tensor!r}: its carrier is owned by a larger structure or a pending request. A move ends the "
            "source, which only its owner may do. Release the owner, or wait for the request."
        )
    if not isinstance(destination, Carrier):
        raise TypeError(
            f"cannot move into {type(destination).__name__}: destination must be a Carrier instance. Pass one, such as "
            "CPU(0)."
        )
    if destination is source:
        raise ValueError(
            f"cannot move {tensor!r} into {destination!r}: that is the tensor's own carrier. A move ends its source. "
            "Pass another carrier."
        )
    if destination.is_released():
        raise RuntimeError(
            f"cannot move into {type(destination).__name__}: destination carrier is released. A released carrier takes "
            "no values. Make a new one."
        )
    if not destination.is_mutable():
        raise RuntimeError(
            f"cannot move into {destination!r}: destination must be mutable, and not owned by anybody. Pass a mutable "
            "carrier, or wait for the pending request."
        )
    if destination.dtype() is not tensor.dtype():
        raise TypeError(
            f"cannot move {tensor.dtype().name} into {destination!r}: the dtype must match, since a move converts "
            f"nothing. Pass a carrier of {tensor.dtype().name}."
        )
    if source._is_dependent() or destination._is_dependent():
        raise NotImplementedError(
            f"cannot move on the route ({type(source).__name__}, {type(destination).__name__}): a carrier that is made "
            "of other carriers has no route. Use project() or materialize() first."
        )


def _route(tensor: Tensor, destination: Carrier) -> Route:
    """How this move goes, by the exact pair of classes. Errors: NotImplementedError that names a pair without one."""
    source_class, destination_class = type(tensor.carrier), type(destination)
    if not (is_defined(source_class) or is_defined(destination_class)):
        return _by_operation(dispatch_move(source_class, destination_class))
    found = transfer_route(source_class, destination_class)
    if found is not None:
        request = TransferRequest(
            tensor, destination, source_class, destination_class, tensor.dtype(), tensor.layout, tensor.layout.cosize
        )
        prepared = found.provider.prepare(request)
        if isinstance(prepared, PreparedTransfer):
            return _by_transfer(prepared)
        reason = prepared.reason if isinstance(prepared, Unsupported) else f"it prepared {type(prepared).__name__}"
        raise NotImplementedError(
            f"cannot move on the route {route_name(source_class, destination_class)}: {found.route_id} refuses, "
            f"{reason}. Move by way of a CPU carrier."
        )
    if elementwise_fallback(source_class) and elementwise_fallback(destination_class):
        return _by_operation(ElementwiseMoveOperation())
    raise NotImplementedError(
        f"cannot move on the route {route_name(source_class, destination_class)}: there is no TransferRoute for it, "
        "and the elementwise fallback is not allowed by both. Define a route, or set elementwise_fallback."
    )


def _require_reverse(source_class: type[Carrier], destination_class: type[Carrier]) -> None:
    """Nothing, when a gradient finds its way back. Errors: NotImplementedError that names the reverse pair."""
    if is_defined(source_class) or is_defined(destination_class):
        if transfer_route(destination_class, source_class) is not None:
            return
        if elementwise_fallback(source_class) and elementwise_fallback(destination_class):
            return
        raise NotImplementedError(
            f"cannot move a tensor that requires a gradient: there is no reverse route "
            f"{route_name(destination_class, source_class)} for it. Define one, or move under no_grad()."
        )
    dispatch_move(destination_class, source_class)


def _by_operation(operation: MoveOperation) -> Route:
    def go(tensor: Tensor, destination: Carrier) -> None:
        operation.copy(tensor.carrier, tensor.offset, destination, tensor.layout.cosize)

    return go


def _by_transfer(prepared: PreparedTransfer) -> Route:
    def go(tensor: Tensor, destination: Carrier) -> None:
        outcome = require_completion(prepared.submit(), what="the move").wait()
        if outcome is not None:
            raise ProviderContractError(
                f"cannot finish the move: its completion gave {outcome!r}. A transfer completes with None. Mend it."
            )

    return go


def _require_room(layout: Layout, destination: Carrier) -> None:
    if destination.size() != 0 and destination.size() < layout.cosize:
        raise ValueError(
            f"cannot move {layout!r} into {destination!r}: it is too small, since the Layout spans {layout.cosize} "
            "slots. Pass an empty carrier or one of that size."
        )


@final
class _Move:
    """One move on its way: both carriers are its own from the beginning to the end.

    It does not keep the handle alive, so that a dropped one is collected while the move goes on.
    """

    def __init__(
        self,
        tensor: Tensor,
        destination: Carrier,
        handle: AwaitMove[Tensor],
        route: Route,
        observation: Observation | None,
    ) -> None:
        self._handle = weakref.ref(handle)
        self._route = route
        self._observation = observation
        self._tensor = tensor
        self._records = tensor.requires_grad and mode.enabled
        self._source = tensor.carrier
        self._offset = tensor.offset
        self._layout = tensor.layout
        self._destination = destination
        self._source_token = self._source._claim_ownership()
        try:
            self._destination_token = destination._claim_ownership()
        except BaseException:
            self._source._relinquish_ownership(self._source_token)
            raise
        self._source_version = self._source.version
        self._was_empty = False

    def start(self) -> None:
        try:
            default_lanes().submit(self._run, Priority.DEMAND)
        except BaseException as error:
            self._end_in_failure(error)

    def _run(self) -> None:
        completion = self._observation.completing() if self._observation is not None else None
        try:
            moved = self._carry_over()
        except BaseException as error:
            if completion is not None:
                completion.end(succeeded=False)
            self._end_in_failure(error)
            return
        if completion is not None:
            completion.end(succeeded=True)
        self._give_back()
        handle = self._handle()
        if handle is not None:
            handle._succeed(moved)

    def _carry_over(self) -> Tensor:
        source, destination, count = self._source, self._destination, self._layout.cosize
        # Another move may have filled the destination since it was looked at, before it was claimed.
        self._was_empty = destination.size() == 0
        if self._was_empty:
            destination._allocate(count)
        else:
            _require_room(self._layout, destination)
        destination._version += 1  # before the first value changes: a copy that fails midway has changed some
        # Carriers made under inference mode take writes only under it, and a lane does not inherit it.
        with torch.inference_mode():
            self._route(self._tensor, destination)
        if source.version != self._source_version:
            raise RuntimeError(
                f"cannot finish the move of {source!r}: its version was {self._source_version} at the beginning and is "
                f"{source.version}. The values of a carrier must not change while they move. Move it again."
            )
        moved = Tensor(destination, 0, self._layout)
        if self._records:
            _record(self._tensor, moved)
        source._released = True  # release() is for outsiders: it refuses an owned carrier
        try:
            source._free()
        except BaseException:
            source._released = False
            raise
        return moved

    def _end_in_failure(self, error: BaseException) -> None:
        try:
            if self._was_empty and self._destination._is_in_memory():
                self._destination._free()  # memory can be had again; a file would be closed for good
        finally:
            self._give_back()
            handle = self._handle()
            if handle is not None:
                handle._fail(error)

    def _give_back(self) -> None:
        self._source._relinquish_ownership(self._source_token)
        self._destination._relinquish_ownership(self._destination_token)


# -- the gradient of a move ------------------------------------------------------------------------------------------


def _vjp(context: VJPContext, g: Tensor) -> Sequence[Tensor | None]:
    """The cotangent, moved back into fresh storage of the source's class by the reverse route."""
    source: Tensor = context.invocation.operands[0]
    back = source.carrier.allocate_like(0, dtype=g.dtype())
    layout = g.layout
    own = g if layout.is_injective and layout.cosize == layout.size else None
    carried = own if own is not None else COPY(g)
    route = _route(carried, back)
    back._allocate(carried.layout.cosize)
    route(carried, back)
    return (Tensor._make(back, 0, carried.layout),)


def _resolve(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    own = x.dtype()
    plan = OperationPlan("move", (OperandPlan(OperandRole.TENSOR, own),), Arithmetic.NONE, Accumulation.NONE, None, own)
    return ResolvedInvocation(call, plan, (ResultSpec(own, x.shape, x.layout),))


_MOVE = define(
    "move", OperationSchema([OperandSpec("x", OperandKind.TENSOR, differentiable=True)]), _resolve, None, _vjp
)


def _record(tensor: Tensor, moved: Tensor) -> None:
    invocation = _MOVE.resolve_call(tensor)
    operation = Operation(_MOVE, tensor.carrier_type())
    operation._record(invocation, (moved,), (True,))
    moved.autograd_ctx = operation
