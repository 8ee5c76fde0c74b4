"""What TiledEvictable is, as the extension surface has it: how it stores, how it computes, and its facet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, final

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.definition import CarrierFacet, StorageProvider
from strideweave.carriers.extension import CarrierDefinition, CompositeProvider, register_carrier_definition
from strideweave.carriers.operation_capability import OperationCapability
from strideweave.carriers.tiled_evictable import direct, direct_gradients
from strideweave.carriers.tiled_evictable.carrier import TiledEvictable
from strideweave.carriers.tiled_evictable.handles import AwaitResidency
from strideweave.carriers.tiled_evictable.selection import TileSelection, TileSet
from strideweave.operation import execution
from strideweave.operation.call import ResolvedInvocation

if TYPE_CHECKING:
    from strideweave.dtype import StorageDType


@final
class TiledResidencyFacet(CarrierFacet):
    """The residency transitions of tiled carriers, for code that finds them by facet: the carrier comes first.

    Source: seed 000, "Residency transitions have asynchronous and blocking forms".

    >>> import torch
    >>> from strideweave import CPU, FileBacked, TiledEvictable, TileSet
    >>> from strideweave.carriers.tiled_evictable import TiledResidencyFacet
    >>> c = TiledEvictable(CPU.wrap(torch.arange(4.0)), FileBacked(), (2,), (2,))
    >>> c.require_facet(TiledResidencyFacet).evict(c, TileSet([(1,)]))
    >>> c.tile_state((1,)).location
    'secondary'
    >>> c.release()
    """

    def promote_async(self, carrier: TiledEvictable, tiles: TileSet | TileSelection) -> AwaitResidency:
        """`carrier.promote_async(tiles)`."""
        return carrier.promote_async(tiles)

    def evict_async(self, carrier: TiledEvictable, tiles: TileSet | TileSelection) -> AwaitResidency:
        """`carrier.evict_async(tiles)`."""
        return carrier.evict_async(tiles)

    def promote(self, carrier: TiledEvictable, tiles: TileSet | TileSelection) -> None:
        """`carrier.promote(tiles)`."""
        carrier.promote(tiles)

    def evict(self, carrier: TiledEvictable, tiles: TileSet | TileSelection) -> None:
        """`carrier.evict(tiles)`."""
        carrier.evict(tiles)


def _supports(carrier: TiledEvictable, dtype: StorageDType) -> bool:
    return carrier._supports_storage_dtype(dtype)


def _write(carrier: TiledEvictable, index: int, value: Any) -> None:
    carrier.set_value(index, value)


def _allocate(carrier: TiledEvictable, size: int) -> NoReturn:
    carrier._allocate(size)


def _capabilities(carrier: TiledEvictable) -> Iterable[OperationCapability]:
    """Of the compute carrier's capabilities those that tiles have too."""
    for name in direct.NAMES:
        yield from carrier.primary.operation_capabilities(name)


def _result_carriers(invocation: ResolvedInvocation) -> tuple[type[Carrier], ...]:
    (carrier, *_) = direct.carriers_of(invocation.operands)
    return (type(carrier.primary),) * len(invocation.results)


_COMPOSITE = CompositeProvider(
    capabilities=_capabilities,
    result_carriers=_result_carriers,
    prepare=direct.prepare,
    gradient=direct_gradients.gradient,
)

register_carrier_definition(
    TiledEvictable,
    CarrierDefinition(
        storage=StorageProvider(
            supports_dtype=_supports,
            physical_size=TiledEvictable.size,
            allocate=_allocate,
            release=TiledEvictable._free,
            read=TiledEvictable.get_value,
            write=_write,
        ),
        composite=_COMPOSITE,
        facets=(TiledResidencyFacet(),),
    ),
)
execution.register_executor(TiledEvictable, direct.DirectExecutor(TiledEvictable, _COMPOSITE))
