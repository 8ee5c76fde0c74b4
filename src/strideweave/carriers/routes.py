"""Routes: how the slots of one carrier class reach another, chosen by the exact pair of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar, TypeAlias, final

import torch

from strideweave.carriers.block_device import BlockDeviceCarrier
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.cpu import CPU
from strideweave.carriers.definition import is_defined
from strideweave.carriers.extension import (
    PreparedTransfer,
    TransferRequest,
    TransferRoute,
    Unsupported,
    elementwise_fallback,
    require_completion,
    transfer_route,
)
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.operation.call import ProviderContractError
from strideweave.tensor.tensor import Tensor

RUN_NBYTES = 4 * 2**20
"""How much one read or write of a move asks for. Units: bytes."""


class MoveOperation(ABC):
    """How slots are copied from one carrier class to another; stateless, one instance for each pair.

    Subclass it and register an instance to give a pair of definition-free classes a route of its own.

    >>> from strideweave.carriers.move import CpuToFileBacked, MoveOperation
    >>> issubclass(CpuToFileBacked, MoveOperation)
    True
    """

    @abstractmethod
    def copy(self, source: Carrier, offset: int, destination: Carrier, count: int) -> None:
        """The first `count` slots of `destination` hold those of `source` from `offset` on. Runs on a lane."""


class RunMoveOperation(MoveOperation):
    """Whole runs at the speed of memory or disk: between shipped carriers, no slot is touched one by one."""

    def copy(self, source: Carrier, offset: int, destination: Carrier, count: int) -> None:
        """As `MoveOperation.copy`."""
        target = destination._flat() if isinstance(destination, TorchStorage) else None
        # Memory that was made under inference mode takes writes only under it, and a lane does not inherit it. Not
        # always: what a carrier of somebody else makes meanwhile could not be written outside of it.
        with torch.inference_mode(target is not None and target.is_inference()):
            self._copy(source, offset, destination, count)

    def _copy(self, source: Carrier, offset: int, destination: Carrier, count: int) -> None:
        origin = source._flat()[offset : offset + count] if isinstance(source, TorchStorage) else None
        target = destination._flat()[:count] if isinstance(destination, TorchStorage) else None
        if origin is not None and target is not None:
            target.copy_(origin)
            return
        itemsize = source.dtype().itemsize
        step = min(count, max(1, RUN_NBYTES // itemsize))
        memory = origin if origin is not None else target
        if memory is not None and memory.device.type != "cpu":
            memory = None  # files take host memory only: a device's values pass through a bounce buffer
        bounce = torch.empty(step if memory is None else 0, dtype=source.dtype().torch_dtype)
        for begin in range(0, count, step):
            length = min(step, count - begin)
            run = bounce[:length] if memory is None else memory[begin : begin + length]
            if origin is None or memory is None:
                _require_all(source._read_runs([(offset + begin, run)]), length * itemsize, "read", source)
            if target is None or memory is None:
                _require_all(destination._write_runs([(begin, run)]), length * itemsize, "wrote", destination)


@final
class CpuToFileBacked(RunMoveOperation):
    """From host memory into a file.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import CpuToFileBacked, registered_move_operation
    >>> isinstance(registered_move_operation(sw.CPU, sw.FileBacked), CpuToFileBacked)
    True
    """


@final
class FileBackedToCpu(RunMoveOperation):
    """From a file into host memory.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import FileBackedToCpu, registered_move_operation
    >>> isinstance(registered_move_operation(sw.FileBacked, sw.CPU), FileBackedToCpu)
    True
    """


@final
class CpuToBlockDevice(RunMoveOperation):
    """From host memory onto a block device.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import CpuToBlockDevice, registered_move_operation
    >>> isinstance(registered_move_operation(sw.CPU, sw.BlockDeviceCarrier), CpuToBlockDevice)
    True
    """


@final
class BlockDeviceToCpu(RunMoveOperation):
    """From a block device into host memory.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import BlockDeviceToCpu, registered_move_operation
    >>> isinstance(registered_move_operation(sw.BlockDeviceCarrier, sw.CPU), BlockDeviceToCpu)
    True
    """


@final
class ElementwiseMoveOperation(RunMoveOperation):
    """The fallback between carriers that allow it: by runs, which a provider without run functions takes one by one.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import dispatch_move
    >>> type(dispatch_move(sw.CPU, sw.Generic)).__name__
    'ElementwiseMoveOperation'
    """


class _Registry:
    """The routes of exact pairs; the pairs that are not in it move by runs."""

    routes: ClassVar[dict[tuple[type[Carrier], type[Carrier]], MoveOperation]] = {
        (CPU, FileBacked): CpuToFileBacked(),
        (FileBacked, CPU): FileBackedToCpu(),
        (CPU, BlockDeviceCarrier): CpuToBlockDevice(),
        (BlockDeviceCarrier, CPU): BlockDeviceToCpu(),
    }


_BY_RUNS = ElementwiseMoveOperation()


def register_move_operation(source: type[Carrier], destination: type[Carrier], operation: MoveOperation) -> None:
    """From now on this pair of definition-free classes moves by `operation`.

    Errors: TypeError for what is no class or MoveOperation; ValueError for a pair that has one; RuntimeError for a
    class with a CarrierDefinition, which has TransferRoutes instead.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import (
    ...     CpuToFileBacked, register_move_operation, registered_move_operation, unregister_move_operation,
    ... )
    >>> register_move_operation(sw.Generic, sw.FileBacked, CpuToFileBacked())
    >>> registered_move_operation(sw.Generic, sw.FileBacked) is not None
    True
    >>> unregister_move_operation(sw.Generic, sw.FileBacked)
    """
    _require_pair(source, destination)
    if not isinstance(operation, MoveOperation):
        raise TypeError(f"cannot register {operation!r}: a route is a MoveOperation. Pass an instance of one.")
    if (source, destination) in _Registry.routes:
        raise ValueError(
            f"cannot register a route for ({source.__name__}, {destination.__name__}): there is one already. "
            "Unregister it first."
        )
    _Registry.routes[source, destination] = operation


def unregister_move_operation(source: type[Carrier], destination: type[Carrier]) -> None:
    """The pair has no route of its own any more. Errors: as `register_move_operation`; ValueError when it had none.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import unregister_move_operation
    >>> unregister_move_operation(sw.Generic, sw.CPU)
    Traceback (most recent call last):
    ValueError: ...there is none...
    """
    _require_pair(source, destination)
    if _Registry.routes.pop((source, destination), None) is None:
        raise ValueError(
            f"cannot unregister a route for ({source.__name__}, {destination.__name__}): there is none. Register one."
        )


def registered_move_operation(source: type[Carrier], destination: type[Carrier]) -> MoveOperation | None:
    """The pair's own route; None when it moves as ordinary carriers do. Errors: as `register_move_operation`.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import registered_move_operation
    >>> registered_move_operation(sw.Generic, sw.CPU) is None
    True
    """
    _require_pair(source, destination)
    return _Registry.routes.get((source, destination))


def dispatch_move(source: type[Carrier], destination: type[Carrier]) -> MoveOperation:
    """The route between two definition-free classes.

    Errors: NotImplementedError that names the pair, when there is none; RuntimeError for a class with a definition.

    >>> import strideweave as sw
    >>> from strideweave.carriers.move import dispatch_move
    >>> type(dispatch_move(sw.CPU, sw.FileBacked)).__name__
    'CpuToFileBacked'
    """
    _require_pair(source, destination)
    found = _Registry.routes.get((source, destination))
    if found is not None:
        return found
    if BlockDeviceCarrier in (source, destination):
        raise NotImplementedError(
            f"cannot move on the route {route_name(source, destination)}: a block device is reached from CPU alone. "
            "Move by way of a CPU carrier."
        )
    _require_of_one_piece(source, destination)
    return _BY_RUNS


# -- the way of one request --------------------------------------------------------------------------------------------

Route: TypeAlias = "Callable[[Tensor, Carrier], None]"
"""Brings the slots that a Tensor's layout spans to the beginning of a carrier that has slots; runs on a lane."""
Way: TypeAlias = "Callable[[Tensor, Carrier], Route]"
"""Prepares a Route for one Tensor and one destination; changes nothing. Errors: NotImplementedError for a refusal."""


def find_way(source: type[Carrier], destination: type[Carrier]) -> Way:
    """How values pass from exactly one class to exactly one other. Errors: NotImplementedError that names the pair."""
    if not (is_defined(source) or is_defined(destination)):
        return partial(_by_operation, dispatch_move(source, destination))
    found = transfer_route(source, destination)
    if found is not None:
        return partial(_by_transfer, found)
    _require_of_one_piece(source, destination)
    if elementwise_fallback(source) and elementwise_fallback(destination):
        return partial(_by_operation, _BY_RUNS)
    raise NotImplementedError(
        f"cannot move on the route {route_name(source, destination)}: there is no TransferRoute for it, and the "
        "elementwise fallback is not allowed by both. Define a route, or set elementwise_fallback."
    )


def _by_operation(operation: MoveOperation, tensor: Tensor, destination: Carrier) -> Route:
    wait_for_kernels = _kernels_before(tensor.carrier, destination)

    def go(tensor: Tensor, destination: Carrier) -> None:
        wait_for_kernels()
        operation.copy(tensor.carrier, tensor.offset, destination, tensor.layout.cosize)
        _wait_for_copies(tensor.carrier, destination)

    return go


def _by_transfer(route: TransferRoute, tensor: Tensor, destination: Carrier) -> Route:
    layout = tensor.layout
    name = f"{route.route_id} on the route {route_name(*route.pair)}"
    request = TransferRequest(tensor, destination, *route.pair, tensor.dtype(), layout, layout.cosize)
    prepared: object = route.provider.prepare(request)
    if isinstance(prepared, Unsupported):
        raise NotImplementedError(
            f"cannot move by {name}: it refuses, {prepared.reason}. Move by way of another class."
        )
    if not isinstance(prepared, PreparedTransfer):
        raise ProviderContractError(
            f"cannot move by {name}: its prepare gave {type(prepared).__name__}. It gives a PreparedTransfer or "
            "Unsupported. Mend it."
        )
    submit = prepared.submit

    def go(tensor: Tensor, destination: Carrier) -> None:
        outcome: object = require_completion(submit(), what=f"the move by {name}").wait()
        if outcome is not None:
            raise ProviderContractError(
                f"cannot finish the move by {name}: its completion gave {outcome!r}. A transfer completes with None. "
                "Mend it."
            )

    return go


# -- devices that work behind the back of the host ---------------------------------------------------------------------


def _cuda_devices(*carriers: Carrier) -> set[torch.device]:
    devices = {carrier._flat().device for carrier in carriers if isinstance(carrier, TorchStorage)}
    return {device for device in devices if device.type == "cuda"}


def _kernels_before(*carriers: Carrier) -> Callable[[], None]:
    """Waits for what this thread has launched so far: a lane has streams of its own, which know nothing of it."""
    events = [torch.cuda.current_stream(device).record_event() for device in _cuda_devices(*carriers)]

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def _wait_for_copies(*carriers: Carrier) -> None:
    """The copies of this thread are over: between devices they go on after the call, and the source is freed next."""
    for device in _cuda_devices(*carriers):
        torch.cuda.current_stream(device).synchronize()


# -- what is refused ---------------------------------------------------------------------------------------------------


def route_name(source: type[Carrier], destination: type[Carrier]) -> str:
    """A pair in messages."""
    return f"({source.__name__}, {destination.__name__})"


def _require_of_one_piece(source: type[Carrier], destination: type[Carrier]) -> None:
    if any(cls._is_dependent is not Carrier._is_dependent for cls in (source, destination)):
        raise NotImplementedError(
            f"cannot move on the route {route_name(source, destination)}: a carrier that is made of other carriers has "
            "no route, unless one is given to it. Use project() or materialize() first."
        )


def _require_pair(source: type[Carrier], destination: type[Carrier]) -> None:
    for cls in (source, destination):
        if not (isinstance(cls, type) and issubclass(cls, Carrier)):
            raise TypeError(f"cannot find a route for {cls!r}: a route joins Carrier classes. Pass classes.")
    defined: Iterable[str] = [cls.__name__ for cls in (source, destination) if is_defined(cls)]
    if defined:
        raise RuntimeError(
            f"cannot use the move registry for {', '.join(defined)}: it has a CarrierDefinition, whose TransferRoute "
            "says how it moves. Put a TransferRoute in the definition."
        )


def _require_all(nbytes: int, expected_nbytes: int, did: str, carrier: Carrier) -> None:
    if nbytes != expected_nbytes:
        raise RuntimeError(
            f"cannot finish the move: {carrier!r} {did} {nbytes} of {expected_nbytes} bytes and raised nothing. A run "
            "is moved whole or fails. Mend the carrier."
        )
