"""Movement: the values of a Tensor pass into another carrier, and the one that held them is released."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import final

from strideweave.carriers.block_device import BlockDeviceCarrier
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.generic import Generic
from strideweave.carriers.handle import AwaitMove, AwaitResult
from strideweave.carriers.overlaps import overlap
from strideweave.carriers.routes import (
    BlockDeviceToCpu,
    CpuToBlockDevice,
    CpuToFileBacked,
    ElementwiseMoveOperation,
    FileBackedToCpu,
    MoveOperation,
    Route,
    Way,
    dispatch_move,
    find_way,
    register_move_operation,
    registered_move_operation,
    route_name,
    unregister_move_operation,
)
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.io import Priority, default_lanes
from strideweave.layout import Layout
from strideweave.operation import observing
from strideweave.operation.alignment import dense_like
from strideweave.operation.call import BoundOperationCall, ResolvedInvocation, ResultSpec, VJPContext
from strideweave.operation.definition import define
from strideweave.operation.node import Operation
from strideweave.operation.observing import Observation
from strideweave.operation.plan import Accumulation, Arithmetic, OperandPlan, OperandRole, OperationPlan
from strideweave.operation.schema import OperandKind, OperandSpec, OperationSchema, OptionSpec
from strideweave.tensor.copying import fresh_copy
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

_FREED_AGAIN = (TorchStorage, Generic, BlockDeviceCarrier)
"""Classes whose carriers are empty again after `_free`, and take other slots; a file would be closed for good."""


def move_async(tensor: Tensor, destination: Carrier) -> AwaitMove[Tensor]:
    """A handle whose Tensor has the values and the Layout of `tensor`, at offset 0 of `destination`; begun at once.

    The slots that the Layout spans are copied, `layout.cosize` of them, on a lane; an empty destination is allocated to
    just that. Both carriers are owned until the end. Then the source carrier is released, and every Tensor over it ends
    with it. Dropping the handle cancels nothing.

    Errors: TypeError for no Tensor, no Carrier or another dtype; RuntimeError for a source or destination that is
    released or owned, or a destination that is immutable; ValueError for the Tensor's own carrier, one that is too
    small or one that shares slots with it; NotImplementedError without a route, and for a Tensor that requires a
    gradient without a route back. Nothing has changed then. What fails later is raised by `wait()`: the source is as
    it was, and the destination can be used, though it may hold some of the new values, and a file or a carrier of
    somebody else's class keeps the slots that it was given. In a forked child a move that was on its way has failed.

    >>> import torch
    >>> from strideweave import FileBacked, from_torch
    >>> from strideweave import move_async
    >>> source = from_torch(torch.arange(6.0).reshape(2, 3))
    >>> moved = move_async(source, FileBacked()).wait()
    >>> moved[1, 2], moved.carrier.size(), source.carrier.is_released()
    (5.0, 6, True)
    """
    _require_movable(tensor, destination)
    route = find_way(type(tensor.carrier), type(destination))(tensor, destination)
    _require_room(tensor.layout, destination)
    _require_apart(tensor, destination)
    reverse = _find_reverse(tensor, destination) if tensor.requires_grad and mode.enabled else None
    handle: AwaitMove[Tensor] = AwaitMove._pending(f"the move of {tensor.layout!r} into {type(destination).__name__}")
    if not observing.active:
        _Move(tensor, destination, handle, route, reverse, None).start()
        return handle
    observation = observing.Observation("move.submit", type(tensor.carrier), _Move, (tensor,))
    succeeded = False
    try:
        _Move(tensor, destination, handle, route, reverse, observation).start()
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


def _require_room(layout: Layout, destination: Carrier) -> None:
    if destination.size() != 0 and destination.size() < layout.cosize:
        raise ValueError(
            f"cannot move {layout!r} into {destination!r}: it is too small, since the Layout spans {layout.cosize} "
            "slots. Pass an empty carrier or one of that size."
        )


def _require_apart(tensor: Tensor, destination: Carrier) -> None:
    if overlap(tensor.carrier, tensor.offset, destination, tensor.layout.cosize):
        raise ValueError(
            f"cannot move {tensor!r} into {destination!r}: both hold some of the same bytes. A move never "
            "writes over its source. Move by way of another carrier."
        )


def _find_reverse(tensor: Tensor, destination: Carrier) -> Way:
    """How the gradient finds its way back. Errors: NotImplementedError that names the reverse pair."""
    pair = type(destination), tensor.carrier_type()
    try:
        return find_way(*pair)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"cannot move a tensor that requires a gradient: there is no reverse route {route_name(*pair)} for it. "
            "Define one, or move under no_grad()."
        ) from error


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
        reverse: Way | None,
        observation: Observation | None,
    ) -> None:
        self._handle = weakref.ref(handle)
        self._route = route
        self._reverse = reverse
        self._observation = observation
        self._tensor = tensor
        self._source = tensor.carrier
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
        _on_their_way.add(self)
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
        _on_their_way.discard(self)

    def _carry_over(self) -> Tensor:
        source, destination = self._source, self._destination
        # Another move may have filled the destination since it was looked at, before it was claimed.
        self._was_empty = destination.size() == 0
        if self._was_empty:
            destination._allocate(self._layout.cosize)
        else:
            _require_room(self._layout, destination)
        destination._version += 1  # before the first value changes: a copy that fails midway has changed some
        self._route(self._tensor, destination)
        if source.version != self._source_version:
            raise RuntimeError(
                f"cannot finish the move of {source!r}: its version was {self._source_version} at the beginning and is "
                f"{source.version}. The values of a carrier must not change while they move. Move it again."
            )
        moved = Tensor(destination, 0, self._layout)
        if self._reverse is not None:
            _record(self._tensor, moved, self._reverse)
        self._release_source()
        return moved

    def _release_source(self) -> None:
        source = self._source
        size = source.size()
        source._released = True  # release() is for outsiders: it refuses an owned carrier
        try:
            source._free()
        except BaseException:
            # What let go of its slots before it failed holds nothing any more: then the destination keeps the values.
            source._released = False
            source._released = source.size() != size
            raise

    def _end_in_failure(self, error: BaseException) -> None:
        try:
            if self._was_empty and not self._source.is_released() and isinstance(self._destination, _FREED_AGAIN):
                self._destination._free()
        finally:
            self._give_back()
            handle = self._handle()
            if handle is not None:
                handle._fail(error)
            _on_their_way.discard(self)

    def _give_back(self) -> None:
        for carrier, token in self._owned():
            carrier._relinquish_ownership(token)

    def _owned(self) -> list[tuple[Carrier, int]]:
        return [(self._source, self._source_token), (self._destination, self._destination_token)]

    def _end_in_child(self) -> None:
        """In a forked child, where no lane goes on with it: both carriers are nobody's, and whoever waits is told."""
        handle = self._handle()
        if handle is not None:
            if handle.done:
                return
            handle._finished = threading.Event()  # a thread that is not here may have it locked, and the others too
        for carrier, token in self._owned():
            carrier._owner_lock = threading.Lock()
            carrier._owner = token  # where it was given back a moment ago: it is once more, below
        name = type(self._source).__name__
        self._end_in_failure(
            RuntimeError(
                f"cannot finish the move of a {name} in a forked child: it was on its way at the fork, and goes on in "
                "the parent alone. Wait for a move before the fork, or move in the child again."
            )
        )


_on_their_way: set[_Move] = set()
"""Changed by single steps of the interpreter, which a fork never splits."""


def _end_all_in_child() -> None:
    for one in list(_on_their_way):
        one._end_in_child()
    _on_their_way.clear()


os.register_at_fork(after_in_child=_end_all_in_child)


# -- the gradient of a move ------------------------------------------------------------------------------------------


def _vjp(context: VJPContext, g: Tensor) -> Sequence[Tensor | None]:
    """The cotangent, moved back into fresh storage of the source's class by the reverse route."""
    if g.carrier.is_released():
        raise RuntimeError(
            f"cannot run the backward of move with {g!r}: the carrier of its gradient is released. Pass one that is "
            "live."
        )
    source: Tensor = context.invocation.operands[0]
    reverse: Way = context.options["reverse"]
    is_dense = g.layout.is_injective and g.layout.cosize == g.size()
    carried = g if is_dense else fresh_copy(g, dense_like(g.shape, [g.layout]))
    back = source.carrier.allocate_like(carried.layout.cosize, dtype=g.dtype(), empty=True)
    reverse(carried, back)(carried, back)
    return (Tensor._make(back, 0, carried.layout),)


def _resolve(call: BoundOperationCall) -> ResolvedInvocation:
    (x,) = call.operands
    own = x.dtype()
    plan = OperationPlan("move", (OperandPlan(OperandRole.TENSOR, own),), Arithmetic.NONE, Accumulation.NONE, None, own)
    return ResolvedInvocation(call, plan, (ResultSpec(own, x.shape, x.layout),))


_MOVE = define(
    "move",
    OperationSchema([OperandSpec("x", OperandKind.TENSOR, differentiable=True)], [OptionSpec("reverse")]),
    _resolve,
    None,
    _vjp,
)


def _record(tensor: Tensor, moved: Tensor, reverse: Way) -> None:
    call = BoundOperationCall(_MOVE, (tensor,), {"reverse": reverse}, (OperandKind.TENSOR,))
    operation = Operation(_MOVE, tensor.carrier_type())
    operation._record(_resolve(call), (moved,), (True,))
    moved.autograd_ctx = operation
