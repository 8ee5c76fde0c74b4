"""Movement: the values of a Tensor pass into another carrier, and the one that held them is released."""

from __future__ import annotations

import weakref
from typing import final

import torch

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.handle import AwaitMove
from strideweave.io import Priority, default_lanes
from strideweave.layout import Layout
from strideweave.tensor.tensor import Tensor

RUN_NBYTES = 4 * 2**20
"""How much one read or write of a move asks for. Units: bytes."""


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
    >>> from strideweave.tensor import move_async
    >>> source = from_torch(torch.arange(6.0).reshape(2, 3))
    >>> moved = move_async(source, FileBacked()).wait()
    >>> moved[1, 2], moved.carrier.size(), source.carrier.is_released()
    (5.0, 6, True)
    """
    _require_movable(tensor, destination)
    handle: AwaitMove[Tensor] = AwaitMove._pending(f"the move of {tensor.layout!r} into {type(destination).__name__}")
    _Move(tensor, destination, handle).start()
    return handle


def move(tensor: Tensor, destination: Carrier) -> Tensor:
    """The Tensor of `move_async`, waited for, with the same errors.

    >>> import torch
    >>> from strideweave import CPU, from_torch
    >>> from strideweave.tensor import move
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
    if destination.size() != 0:
        _require_room(tensor.layout, destination)


def _require_room(layout: Layout, destination: Carrier) -> None:
    if destination.size() < layout.cosize:
        raise ValueError(
            f"cannot move {layout!r} into {destination!r}: it is too small, since the Layout spans {layout.cosize} "
            "slots. Pass an empty carrier or one of that size."
        )


@final
class _Move:
    """One move on its way: both carriers are its own from the beginning to the end.

    It does not keep the handle alive, so that a dropped one is collected while the move goes on.
    """

    def __init__(self, tensor: Tensor, destination: Carrier, handle: AwaitMove[Tensor]) -> None:
        self._handle = weakref.ref(handle)
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
        try:
            moved = self._carry_over()
        except BaseException as error:
            self._end_in_failure(error)
            return
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
        _require_room(self._layout, destination)
        destination._version += 1  # before the first value changes: a copy that fails midway has changed some
        # Carriers made under inference mode take writes only under it, and a lane does not inherit it.
        with torch.inference_mode():
            _copy(source, self._offset, destination, count)
        if source.version != self._source_version:
            raise RuntimeError(
                f"cannot finish the move of {source!r}: its version was {self._source_version} at the beginning and is "
                f"{source.version}. The values of a carrier must not change while they move. Move it again."
            )
        moved = Tensor(destination, 0, self._layout)
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


def _copy(source: Carrier, offset: int, destination: Carrier, count: int) -> None:
    """The first `count` slots of `destination` hold those of `source` from `offset` on."""
    origin = source._flat()[offset : offset + count] if source._is_in_memory() else None
    target = destination._flat()[:count] if destination._is_in_memory() else None
    if origin is not None and target is not None:
        target.copy_(origin)
        return
    itemsize = source.dtype().itemsize
    step = min(count, max(1, RUN_NBYTES // itemsize))
    memory = origin if origin is not None else target
    bounce = torch.empty(step if memory is None else 0, dtype=source.dtype().torch_dtype)
    for begin in range(0, count, step):
        length = min(step, count - begin)
        run = bounce[:length] if memory is None else memory[begin : begin + length]
        if origin is None:
            _require_all(source._read_runs([(offset + begin, run)]), length * itemsize, "read", source)
        if target is None:
            _require_all(destination._write_runs([(begin, run)]), length * itemsize, "wrote", destination)


def _require_all(nbytes: int, expected_nbytes: int, did: str, carrier: Carrier) -> None:
    if nbytes != expected_nbytes:
        raise RuntimeError(
            f"cannot finish the move: {carrier!r} {did} {nbytes} of {expected_nbytes} bytes and raised nothing. A run "
            "is moved whole or fails. Mend the carrier."
        )
