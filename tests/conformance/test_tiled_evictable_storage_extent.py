"""Seed 000, requirement: TiledEvictable owns one flat logical storage extent."""

from __future__ import annotations

import pytest
import torch

import strideweave
import strideweave as sw
from strideweave import (
    CPU,
    CUDA,
    Carrier,
    CheckpointFile,
    DType,
    Evictable,
    FileBacked,
    Generic,
    Layout,
    Metal,
    Tensor,
    TiledEvictable,
    TileSelection,
    from_torch,
)
from strideweave.carriers import tiled_evictable
from strideweave.carriers.block_device import BlockDeviceCarrier
from strideweave.carriers.definition import installed, is_defined
from strideweave.carriers.extension import CarrierDefinition, DependentCarrier, register_carrier_definition
from strideweave.carriers.extension.composite import composite_of
from strideweave.carriers.extension.transfers import transfer_route
from strideweave.carriers.operation_capability import capabilities_for_carrier_class
from strideweave.carriers.routes import registered_move_operation
from strideweave.operation.execution import executor_of
from support.defined import defined, filled, run_storage
from support.scripted_carrier import ScriptedCarrier
from support.tiled import every_tile, experts, locations, matrix, situation, slots_of, tiles


def every_subclass(cls: type) -> list[type]:
    return [found for sub in cls.__subclasses__() for found in (sub, *every_subclass(sub))]


class TestTiledEvictableOwnsOneFlatLogicalStorageExtent:
    def test_promote_one_expert_tile_changes_only_its_residency(self) -> None:
        carrier, weight, dense, _ = experts()
        layout, identity, version = weight.layout, id(weight), weight.version
        carrier.promote(tiles(2))
        assert locations(carrier) == {
            (0, 0, 0): "secondary",
            (1, 0, 0): "secondary",
            (2, 0, 0): "primary",
            (3, 0, 0): "secondary",
        }
        assert (weight.layout, id(weight), weight.version) == (layout, identity, version)
        assert weight.carrier is carrier
        assert weight.size() == 24
        assert weight.dtype() is DType.Float32
        assert torch.equal(slots_of(carrier), dense.reshape(-1))

    def test_residency_transitions_keep_extent_dtype_and_version(self) -> None:
        carrier, _, _ = matrix()
        facts = carrier.size(), carrier.dtype(), carrier.version, carrier.layout, carrier.nbytes
        carrier.evict(every_tile(carrier))
        assert (carrier.size(), carrier.dtype(), carrier.version, carrier.layout, carrier.nbytes) == facts
        carrier.promote(every_tile(carrier))
        assert (carrier.size(), carrier.dtype(), carrier.version, carrier.layout, carrier.nbytes) == facts

    def test_selection_leaves_the_placement_layout_alone(self) -> None:
        carrier, weight, _ = matrix()
        before = weight.layout
        carrier.project(weight, TileSelection([[1], [0]])).wait()
        assert weight.layout == before
        assert carrier.layout == before

    def test_facts_are_exposed(self) -> None:
        carrier, _, _ = matrix()
        assert carrier.grid_shape == (2, 2)
        assert carrier.tile_shape == (2, 2)
        assert carrier.logical_shape == (4, 4)
        assert carrier.size() == 16
        assert carrier.tile_nbytes == 16
        assert type(carrier.primary) is CPU
        assert carrier.residency_policy is None

    def test_each_coordinate_has_one_tile_and_one_place(self) -> None:
        carrier, weight, dense = matrix()
        for tile in every_tile(carrier).coordinates:
            block = dense[tile[0] * 2 : tile[0] * 2 + 2, tile[1] * 2 : tile[1] * 2 + 2]
            assert torch.equal(carrier.project(weight, TileSelection([[c] for c in tile])).wait().torch(), block)

    def test_composition_leaves_the_tier_classes_unchanged(self) -> None:
        kinds = (Generic, CPU, CUDA, Metal, FileBacked, BlockDeviceCarrier, CheckpointFile, Evictable)

        def surface() -> list[object]:
            """All that could be installed on a class, or decides what it can do."""
            return [
                (
                    dict(vars(kind)),
                    installed(kind),
                    executor_of(kind),
                    composite_of(kind),
                    () if kind is Evictable else [capabilities_for_carrier_class(kind, n) for n in ("add", "relu")],
                    [(transfer_route(kind, to), registered_move_operation(kind, to)) for to in kinds],
                )
                for kind in kinds
            ]

        before = surface()
        carrier, weight, dense = matrix(secondary=FileBacked())
        weight.requires_grad_()
        carrier.project(weight, TileSelection([[1, 0], [0]])).wait()
        carrier.evict(every_tile(carrier))
        other = from_torch(torch.ones(4, 4))
        for result in (sw.add(weight, other), sw.mul(2.0, weight), sw.relu(weight), sw.matmul(other, weight)):
            sw.reduce_sum(result).backward()
        carrier.release()
        assert surface() == before
        assert not any(is_defined(kind) for kind in kinds)
        assert torch.equal(sw.relu(from_torch(dense - 5)).torch(), (dense - 5).relu())

    def test_definition_is_the_only_one_that_is_shipped(self) -> None:
        shipped = [kind for kind in every_subclass(Carrier) if kind.__module__.startswith("strideweave.carriers.")]
        assert {kind for kind in shipped if is_defined(kind)} == {TiledEvictable}
        assert issubclass(TiledEvictable, DependentCarrier)
        assert composite_of(TiledEvictable) is not None
        found = installed(TiledEvictable)
        assert found is not None
        assert list(found.facets) == [tiled_evictable.TiledResidencyFacet]
        with pytest.raises(TypeError, match="TiledEvictable"):
            capabilities_for_carrier_class(TiledEvictable)
        with pytest.raises(TypeError):
            register_carrier_definition(TiledEvictable, CarrierDefinition(found.storage))
        with pytest.raises(TypeError):
            type("Narrower", (TiledEvictable,), {})

    def test_tier_of_a_defined_class_computes_and_stores(self) -> None:
        """A carrier that is made of a definition, with storage only, serves as secondary."""
        values = torch.arange(16.0)
        secondary = filled(defined(run_storage(elementwise_fallback=True), name="Shelf"), values.tolist())
        carrier = TiledEvictable(CPU(0), secondary, (2, 2), (2, 2), budget=16)
        tensor = Tensor(carrier, 0, Layout.column_major(4, 4), requires_grad=True)
        result = sw.mul(tensor, tensor)
        assert torch.equal(result.detach().torch(), values.reshape(4, 4).T ** 2)
        sw.reduce_sum(result).backward()
        assert tensor.grad is not None
        assert torch.equal(tensor.grad.materialize().torch(), 2 * values.reshape(4, 4).T)
        carrier.release()

    @pytest.mark.parametrize(
        "name",
        ["TiledEvictable", "TileSelection", "TileSet", "ResidencyPlan", "TiledResidencyFacet", "AwaitResidency"],
    )
    def test_name_is_importable_from_both_places(self, name: str) -> None:
        assert getattr(strideweave, name) is getattr(tiled_evictable, name)
        assert name in strideweave.__all__
        assert name in tiled_evictable.__all__


class TestConstruction:
    """The tiers that the seed calls capable of storing every tile: what is refused, and in which order."""

    def test_full_primary_starts_in_primary_and_clean(self) -> None:
        carrier, _, _ = matrix()
        assert set(locations(carrier).values()) == {"primary"}
        assert carrier.dirty_tiles.coordinates == ()

    def test_full_secondary_starts_in_secondary(self) -> None:
        carrier, *_ = experts()
        assert set(locations(carrier).values()) == {"secondary"}

    def test_two_full_tiers_count_the_primary(self) -> None:
        primary = torch.arange(16.0)
        carrier, _, _ = matrix(CPU.wrap(primary), ScriptedCarrier(torch.full((16,), -1.0)))
        carrier.evict(every_tile(carrier))
        assert torch.equal(slots_of(carrier), primary)

    def test_two_empty_tiers_start_invalid(self) -> None:
        carrier = TiledEvictable(CPU(0), FileBacked(), (2,), (3,))
        assert set(locations(carrier).values()) == {"invalid"}
        assert carrier.valid_tiles.coordinates == ()

    def test_full_primary_is_the_tier_itself(self) -> None:
        values = torch.arange(16.0)
        carrier, _, _ = matrix(CPU.wrap(values))
        carrier[5] = 50.0
        assert values[5] == 50.0

    @pytest.mark.parametrize(
        ("primary", "secondary", "error", "words"),
        [
            (lambda: "x", lambda: "y", TypeError, "as primary"),
            (lambda: CPU(0), lambda: None, TypeError, "as secondary"),
            (lambda: experts()[0], lambda: CPU(3), TypeError, "as primary: a tier is an ordinary"),
            (lambda: CPU(0), lambda: experts()[0], TypeError, "as secondary: a tier is an ordinary"),
            (lambda: CPU(0), lambda: FileBacked(dtype=DType.Int8), TypeError, "one dtype"),
            (lambda: FileBacked(), lambda: CPU(0), TypeError, "not in memory"),
            (lambda: CPU(3), lambda: FileBacked(), ValueError, "as primary: it has 3 slots"),
            (lambda: CPU(0), lambda: FileBacked(size=5), ValueError, "as secondary: it has 5 slots"),
        ],
    )
    def test_unfit_tiers_are_refused(self, primary, secondary, error: type[Exception], words: str) -> None:  # type: ignore[no-untyped-def]
        tiers = primary(), secondary()
        with pytest.raises(error, match=words):
            TiledEvictable(*tiers, (2, 2), (2, 2))
        assert not any(tier.is_owned() for tier in tiers if isinstance(tier, CPU | FileBacked))

    def test_one_carrier_for_both_tiers_is_refused(self) -> None:
        tier = CPU(0)
        with pytest.raises(ValueError, match="two"):
            TiledEvictable(tier, tier, (2,), (2,))

    def test_released_tier_comes_before_owned_before_dtype(self) -> None:
        released, owned = CPU(0, dtype=DType.Int8), FileBacked()
        keeper = TiledEvictable(CPU(0), owned, (2,), (2,))
        released.release()
        with pytest.raises(RuntimeError, match="released"):
            TiledEvictable(released, owned, (2,), (2,))
        with pytest.raises(RuntimeError, match="owned"):
            TiledEvictable(CPU(0, dtype=DType.Int8), owned, (2,), (2,))
        assert set(locations(keeper).values()) == {"invalid"}

    def test_geometry_comes_before_extents_before_budget_before_policy(self) -> None:
        with pytest.raises(ValueError, match="ranks"):
            TiledEvictable(CPU(3), FileBacked(), (2,), (2, 2), budget=1)
        with pytest.raises(ValueError, match="3 slots"):
            TiledEvictable(CPU(3), FileBacked(), (2,), (2,), budget=1)
        with pytest.raises(ValueError, match="at least one tile"):
            TiledEvictable(CPU(0), FileBacked(), (2,), (2,), budget=7, residency_policy=object())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("budget", "error"),
        [(7, ValueError), (0, ValueError), ("lots", ValueError), (1.5, TypeError), (True, TypeError)],
    )
    def test_unfit_budget_is_refused_and_tiers_stay_free(self, budget: object, error: type[Exception]) -> None:
        tiers = CPU(0), FileBacked()
        with pytest.raises(error):
            TiledEvictable(*tiers, (2,), (2,), budget=budget)  # type: ignore[arg-type]
        assert not any(tier.is_owned() for tier in tiers)

    def test_budget_counts_whole_tiles(self) -> None:
        statistics = TiledEvictable(CPU(0), FileBacked(size=8), (4,), (2,), budget=23).statistics()
        assert (statistics.slots, statistics.budget_nbytes, statistics.tile_nbytes) == (2, 16, 8)

    def test_full_primary_above_the_budget_is_refused(self) -> None:
        with pytest.raises(ValueError, match="full primary"):
            matrix(budget=16)

    def test_tiers_belong_to_the_carrier(self) -> None:
        carrier, _, _ = matrix()
        assert carrier.primary.is_owned()
        assert carrier.secondary.is_owned()
        with pytest.raises(RuntimeError, match="owned"):
            carrier.primary[0] = 1.0
        with pytest.raises(RuntimeError, match="owned"):
            carrier.primary.release()

    def test_immutable_primary_makes_an_immutable_carrier(self) -> None:
        carrier, *_ = matrix(CPU.wrap(torch.arange(16.0), mutable=False))
        before = situation(carrier)
        with pytest.raises(RuntimeError, match="not mutable"):
            carrier[0] = 1.0
        assert situation(carrier) == before

    @pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
    def test_every_dtype_survives_a_round_trip(self, dtype) -> None:  # type: ignore[no-untyped-def]
        raw = torch.arange(8, dtype=torch.uint8).view(torch.uint8) % 2
        flat = raw.to(torch.float32).to(dtype.torch_dtype)
        carrier = TiledEvictable(CPU.wrap(flat.clone()), FileBacked(dtype=dtype), (2,), (4,))
        carrier[1] = 1
        carrier.evict(every_tile(carrier))
        picked = carrier.project(Tensor(carrier, 0, Layout.column_major(8)), TileSelection([[1, 0]])).wait()
        assert picked.dtype() is dtype
        assert torch.equal(picked.torch().view(torch.uint8), torch.cat((flat[4:], flat[:4])).view(torch.uint8))
        carrier.release()
