"""What the definition of TiledEvictable says of a carrier: its storage, its facet, and what it computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from strideweave import CPU, Carrier, CarrierFacet, DType, FileBacked, Generic, TiledEvictable, TileSet
from strideweave.carriers.tiled_evictable import TiledResidencyFacet
from strideweave.carriers.tiled_evictable.direct import NAMES
from support.direct import sheet
from support.tiled import every_tile, situation

MADE: dict[str, Callable[[DType], Carrier]] = {
    "cpu": lambda dtype: CPU(0, dtype=dtype),
    "generic": lambda dtype: Generic([], dtype=dtype),
}


@pytest.mark.parametrize("dtype", [DType.Float32, DType.BFloat16, DType.Int64], ids=lambda d: d.name)
@pytest.mark.parametrize("name", MADE)
def test_capabilities_are_the_compute_carriers_own_of_the_six(name: str, dtype: DType) -> None:
    primary = MADE[name](dtype)
    theirs = {operation: primary.operation_capabilities(operation) for operation in NAMES}
    carrier = TiledEvictable(primary, CPU(4, dtype=dtype), (2,), (2,))
    assert {operation: carrier.operation_capabilities(operation) for operation in NAMES} == theirs
    assert len(carrier.operation_capabilities()) == sum(map(len, theirs.values()))
    assert {operation: carrier.primary.operation_capabilities(operation) for operation in NAMES} == theirs
    carrier.release()


def test_facet_refuses_as_the_carrier_does_and_changes_nothing() -> None:
    carrier, _, _ = sheet()
    facet = carrier.require_facet(TiledResidencyFacet)
    before, tiles = situation(carrier), every_tile(carrier)
    with pytest.raises(TypeError):
        facet.promote(carrier, [(0, 0)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\b2\b"):
        facet.evict_async(carrier, TileSet([(0, 2)]))
    assert situation(carrier) == before
    carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        facet.promote_async(carrier, tiles)


def test_facet_is_one_object_for_all_carriers_and_found_by_its_exact_type() -> None:
    first, _, _ = sheet()
    second, _, _ = sheet()
    facet = first.require_facet(TiledResidencyFacet)
    assert second.facet(TiledResidencyFacet) is facet
    other = type("Other", (CarrierFacet,), {})
    assert first.facet(other) is None
    with pytest.raises(NotImplementedError):
        first.require_facet(other)
    facet.promote(first, every_tile(first))
    assert first.statistics().resident_tiles == 4
    assert second.statistics().resident_tiles == 0
    first.release()
    second.release()


def test_storage_of_the_definition_reads_and_writes_slots_wherever_their_tiles_are() -> None:
    carrier = TiledEvictable(CPU.wrap(torch.arange(4.0)), FileBacked(dtype=DType.Float32), (2,), (2,))
    carrier.evict(TileSet([(1,)]))
    carrier[3] = -1.0
    assert [carrier[k] for k in range(4)] == [0.0, 1.0, 2.0, -1.0]
    assert carrier.supports_storage_dtype(DType.BFloat16)
    carrier.release()
