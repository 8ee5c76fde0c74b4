"""Carriers that a definition makes: the generic constructor, and what the framework asks of a provider."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import CPU, Carrier, DType, FileBacked, Layout, Tensor
from strideweave.carriers.extension import register_carrier_definition
from strideweave.dtype import StorageDType
from strideweave.testing import CarrierContract
from support.defined import defined, filled, list_storage, run_storage

LISTED = defined(list_storage(elementwise_fallback=True))
BY_RUNS = defined(run_storage(elementwise_fallback=True), name="ByRuns")


class TestListed(CarrierContract):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Any:
        return LISTED(size, dtype=dtype, mutable=mutable)


class TestByRuns(CarrierContract):
    dtypes = DType.registered()

    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Any:
        return BY_RUNS(size, dtype=dtype, mutable=mutable)


def test_construction_of_an_unsupported_dtype_is_refused() -> None:
    cls = defined(list_storage(supports_dtype=lambda carrier, dtype: dtype is DType.Float32))
    with pytest.raises(TypeError, match="does not support storage dtype Int32"):
        cls(2, dtype=DType.Int32)
    carrier = cls(2, dtype=DType.Float32)
    assert carrier.supports_storage_dtype(DType.Float32)
    assert not carrier.supports_storage_dtype(DType.Int32)
    with pytest.raises(TypeError, match="does not support storage dtype Int32"):
        carrier.allocate_like(1, dtype=DType.Int32)
    with pytest.raises(TypeError, match="storage dtype must be a DType"):
        carrier.supports_storage_dtype("Float32")
    with pytest.raises(TypeError, match="dtype must be a DType"):
        cls(2, dtype="Float32")


@pytest.mark.parametrize("slots", [True, 1.0, None])
def test_construction_of_what_is_no_size_is_refused(slots: object) -> None:
    with pytest.raises(TypeError, match="size must be an integer"):
        LISTED(slots, dtype=DType.Float32)
    with pytest.raises(ValueError, match="negative"):
        LISTED(-1, dtype=DType.Float32)


def test_construction_asks_the_provider_in_order() -> None:
    calls: list[str] = []
    plain = list_storage()

    def noted(name: str) -> Any:
        def run(*arguments: Any) -> Any:
            calls.append(name)
            return getattr(plain, name)(*arguments)

        return run

    names = ("supports_dtype", "physical_size", "allocate", "release", "read", "write")
    carrier = defined(list_storage(**{name: noted(name) for name in names}))(3, dtype=DType.Int32)
    assert calls == ["supports_dtype", "allocate", "physical_size"]
    carrier.release()
    carrier.release()
    assert calls[3:] == ["release"]
    assert carrier.size() == 0


@pytest.mark.parametrize(
    ("name", "outcome", "error", "words"),
    [
        ("supports_dtype", 1, TypeError, "must return a bool"),
        ("physical_size", 2.0, TypeError, "must return an integer"),
        ("physical_size", True, TypeError, "must return an integer"),
        ("physical_size", -1, ValueError, "must not return a negative"),
        ("physical_size", 3, ValueError, "requested physical size"),
        ("allocate", 0, TypeError, "must return None"),
    ],
)
def test_construction_with_a_provider_that_returns_something_else_is_refused(
    name: str, outcome: object, error: type[Exception], words: str
) -> None:
    cls = defined(list_storage(**{name: lambda *_: outcome}))
    with pytest.raises(error, match=words):
        cls(2, dtype=DType.Float32)


def test_use_with_a_provider_that_returns_something_else_is_refused() -> None:
    carrier = filled(defined(list_storage(write=lambda *_: 0, release=lambda *_: 1)), [])
    carrier._allocate(1)
    with pytest.raises(TypeError, match="must return None"):
        carrier[0] = 1.0
    assert carrier.version == 0
    with pytest.raises(TypeError, match="must return None"):
        carrier._write_runs([(0, torch.zeros(1))])
    with pytest.raises(TypeError, match="must return None"):
        carrier.release()
    runs = filled(defined(run_storage(read_runs=lambda *_: None, write_runs=lambda *_: "all")), [1.0])
    with pytest.raises(TypeError, match="must return an integer"):
        runs._read_runs([(0, torch.zeros(1))])
    with pytest.raises(TypeError, match="must return an integer"):
        runs._write_runs([(0, torch.zeros(1))])


def test_allocation_of_another_size_lets_go_of_it() -> None:
    released = []
    cls = defined(list_storage(physical_size=lambda carrier: 1, release=lambda carrier: released.append(carrier)))
    with pytest.raises(ValueError, match="requested physical size"):
        cls(2, dtype=DType.Float32)
    assert len(released) == 1


def test_values_reach_the_provider_as_the_dtype_holds_them() -> None:
    carrier = LISTED(2, dtype=DType.Float16)
    carrier[0] = 0.1
    assert carrier.values[0] == torch.tensor(0.1, dtype=torch.float16).item()
    carrier[1] = torch.tensor(3)
    assert type(carrier.values[1]) is float
    whole = LISTED(1, dtype=DType.UInt8)
    for wrong, error in ((256, OverflowError), (-1, OverflowError), (1.5, ValueError), ("1", TypeError)):
        with pytest.raises(error):
            whole[0] = wrong
    assert whole.version == 0


def test_values_that_a_provider_gives_in_another_type_are_plain() -> None:
    cls = defined(list_storage(read=lambda carrier, i: torch.tensor(carrier.values[i])))
    assert type(filled(cls, [1.0])[0]) is float


def test_class_without_definition_or_hooks_is_refused() -> None:
    class Bare(Carrier):
        pass

    for make in (lambda: Bare(dtype=DType.Float32), lambda: Bare(4, dtype=DType.Float32), lambda: Carrier(dtype=1)):
        with pytest.raises(TypeError, match="definition-free Carrier construction"):
            make()


def test_subclass_of_a_defined_class_is_undefined() -> None:
    class Narrower(LISTED):  # type: ignore[misc]  # a class that was made at run time
        pass

    with pytest.raises(TypeError, match="definition-free Carrier construction"):
        Narrower(4, dtype=DType.Float32)


def test_class_with_hooks_takes_no_slots() -> None:
    class Hooked(Carrier):
        def size(self) -> int:
            return 0

        def _read_runs(self, runs: Any) -> int:
            return 0

        def _write_runs(self, runs: Any) -> int:
            return 0

        def _allocate(self, size: int) -> None:
            pass

        def _free(self) -> None:
            pass

        def allocate_like(self, size: int, **options: Any) -> Any:
            return self

    assert Hooked(dtype=DType.Float32).size() == 0
    with pytest.raises(TypeError, match="definition-free Carrier construction"):
        Hooked(1, dtype=DType.Float32)

    class Narrow(Hooked):
        accepted_dtypes = (DType.Int8,)

    with pytest.raises(ValueError, match="it stores Int8"):
        Narrow(dtype=DType.Float32)


@pytest.mark.parametrize("name", ["CPU", "FileBacked", "Generic", "CheckpointFile", "TiledEvictable"])
def test_shipped_class_is_closed(name: str) -> None:
    with pytest.raises(TypeError, match="shipped carrier classes are closed"):
        type("Mine", (getattr(sw, name),), {})


@pytest.mark.parametrize("make", [lambda: CPU(0), lambda: FileBacked(dtype=DType.Float32)])
def test_move_into_a_defined_carrier_and_back_keeps_values(make: Any) -> None:
    values = torch.arange(6.0).reshape(2, 3)
    there = sw.move(sw.from_torch(values.clone()), BY_RUNS(0, dtype=DType.Float32))
    assert type(there.carrier) is BY_RUNS
    back = sw.move(there, make())
    assert sw.to_list(back) == values.tolist()


def test_move_without_fallback_or_route_names_the_pair() -> None:
    carrier = filled(defined(name="Strict"), [1.0])
    with pytest.raises(NotImplementedError, match=r"\(Strict, CPU\)"):
        sw.move(Tensor(carrier, 0, Layout.row_major(1)), CPU(0))
    assert not carrier.is_owned()


def test_dlpack_of_a_defined_carrier_is_refused() -> None:
    with pytest.raises(BufferError, match="materialize"):
        LISTED(1, dtype=DType.Float32).dlpack_info()


def test_registration_is_visible_to_the_generic_constructor_only_once() -> None:
    carrier = LISTED(2, dtype=DType.Float32)
    made = carrier.new_like([1, None])
    assert (type(made), made[0], made[1]) == (LISTED, 1.0, 0.0)
    with pytest.raises(TypeError, match="CarrierDefinition"):
        register_carrier_definition(LISTED, None)  # type: ignore[arg-type]  # what is refused
