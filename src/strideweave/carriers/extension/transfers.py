"""Transfers: how values reach a carrier of another class, found by the exact pair of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from strideweave.carriers import definition
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.extension.kernels import require_carrier_class
from strideweave.carriers.extension.providers import PreparedTransfer, Unsupported, require_callable, require_text
from strideweave.dtype import StorageDType
from strideweave.layout import Layout
from strideweave.tensor.tensor import Tensor

_APART: Final = frozenset(
    {"strideweave.carriers.block_device.BlockDeviceCarrier", "strideweave.carriers.evictable.Evictable"}
)
"""Shipped classes without a definition that do not take part in elementwise moves: one is reached from CPU alone."""


@final
@dataclass(frozen=True, slots=True)
class TransferRequest:
    """One transfer that is asked for: `physical_span` slots of the tensor's carrier, from its offset on.

    They go to the first slots of `destination`, which has them already when the transfer is submitted.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import TransferRequest
    >>> x, there = sw.ones(3), sw.CPU(3)
    >>> TransferRequest(x, there, sw.CPU, sw.CPU, x.dtype(), x.layout, x.layout.cosize).physical_span
    3
    """

    tensor: Tensor
    """What is moved."""
    destination: Carrier
    """Where its values go."""
    source_class: type[Carrier]
    """The exact class of the tensor's carrier."""
    destination_class: type[Carrier]
    """The exact class of the destination."""
    dtype: StorageDType
    """The dtype on both sides."""
    layout: Layout
    """The layout, which the result keeps."""
    physical_span: int
    """How many slots the layout spans."""


PrepareTransfer: TypeAlias = Callable[[TransferRequest], PreparedTransfer | Unsupported]


@final
@dataclass(frozen=True, slots=True)
class TransferProvider:
    """A transfer's code: `prepare(request)` returns a PreparedTransfer, or Unsupported with the reason.

    >>> from strideweave.carriers.extension import TransferProvider
    >>> TransferProvider("copy")
    Traceback (most recent call last):
    TypeError: cannot make a TransferProvider with 'copy': prepare must be callable. Pass a function.
    """

    prepare: PrepareTransfer
    """From a request to prepared work; changes nothing."""

    def __post_init__(self) -> None:
        require_callable(self, "prepare")


@final
@dataclass(frozen=True, slots=True)
class TransferRoute:
    """The way from exactly one class to exactly one other.

    Errors: TypeError for wrong kinds; ValueError for an empty route_id.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import TransferProvider, TransferRoute, Unsupported
    >>> TransferRoute(sw.CPU, sw.Generic, "lab.copy", TransferProvider(lambda request: Unsupported("never"))).route_id
    'lab.copy'
    """

    source_class: type[Carrier]
    """Where it begins."""
    destination_class: type[Carrier]
    """Where it ends."""
    route_id: str
    """Its name in messages."""
    provider: TransferProvider
    """Its code."""

    def __post_init__(self) -> None:
        require_carrier_class(self.source_class, "source_class")
        require_carrier_class(self.destination_class, "destination_class")
        require_text(self.route_id, "a route_id")
        if not isinstance(self.provider, TransferProvider):
            raise TypeError(
                f"cannot make route {self.route_id} with {self.provider!r}: provider must be a TransferProvider."
            )

    @property
    def pair(self) -> tuple[type[Carrier], type[Carrier]]:
        """The exact pair of classes."""
        return self.source_class, self.destination_class


_routes: dict[tuple[type[Carrier], type[Carrier]], TransferRoute] = {}


def add_route(route: TransferRoute) -> None:
    """The pair has this route. Whoever calls this has checked it, under `definition.lock`."""
    _routes[route.pair] = route


def transfer_route(source_class: type[Carrier], destination_class: type[Carrier]) -> TransferRoute | None:
    """The route that a definition gave to exactly this pair; None when there is none.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import transfer_route
    >>> transfer_route(sw.CPU, sw.Generic) is None
    True
    """
    return _routes.get((source_class, destination_class))


def elementwise_fallback(cls: type[Carrier]) -> bool:
    """Whether carriers of exactly this class move slot by slot (or by runs) where there is no route.

    A defined class says so in its StorageProvider. Ordinary classes without a definition move like that anyway; a
    carrier made of others never does, nor one on a block device.

    >>> import strideweave as sw
    >>> from strideweave.carriers.extension import elementwise_fallback
    >>> elementwise_fallback(sw.Generic)
    True
    """
    found = definition.installed(cls)
    if found is not None:
        return found.storage.elementwise_fallback
    from strideweave.carriers.extension.dependent import DependentCarrier

    return definition.qualified(cls) not in _APART and not issubclass(cls, DependentCarrier)
