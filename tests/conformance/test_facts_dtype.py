"""Facts, section b: dtypes. What the unit tests say already is named here and not said twice.

    identity under copy and pickle, from_name, torch and safetensors   unit/dtype/test_dtype.py
    validate_storage_dtype, accepts_storage_dtype, storage_zero        unit/carriers/test_dtype_questions.py
    Metal, BlockDevice, Evictable and what they store                  unit/carriers/test_<class>.py

Decided otherwise in `tensors.md`: twelve storage dtypes, all floating ones differentiable, and no block-scaled formats.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strideweave import CPU, Carrier, DType, FileBacked, Generic, Layout, Tensor
from strideweave.carriers.dtype import accepts_storage_dtype, storage_zero
from strideweave.carriers.extension import CarrierDefinition, register_carrier_definition
from strideweave.dtype import DTypeCategory, StorageDType
from support.defined import list_storage

CATEGORIES = (DType.Any, DType.Floating, DType.Integer)
FLOATING = ["Float64", "Float32", "BFloat16", "Float16", "E4M3", "E5M2"]
INTEGER = ["Int64", "Int32", "Int16", "Int8", "UInt8"]


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_storage_dtype_is_simple_and_of_one_nearest_category(dtype: StorageDType) -> None:
    assert (dtype.is_simple(), dtype.is_category(), dtype.is_compound()) == (True, False, False)
    nearest = DType.Floating if dtype.name in FLOATING else DType.Integer if dtype.name in INTEGER else DType.Any
    assert dtype.supertype is nearest
    assert dtype.is_floating == dtype.is_subtype_of(DType.Floating)
    assert dtype.is_subtype_of(dtype)
    assert dtype.is_subtype_of(DType.Any)
    assert [c for c in CATEGORIES if dtype.is_subtype_of(c)] == sorted(dtype.supertypes(), key=CATEGORIES.index)
    assert not any(dtype.is_subtype_of(other) for other in DType.registered() if other is not dtype)


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda c: c.name)
def test_category_is_one_object_and_no_storage_dtype(category: DTypeCategory) -> None:
    assert (category.is_simple(), category.is_category(), category.is_compound()) == (False, True, False)
    for same in (copy.copy(category), copy.deepcopy(category), pickle.loads(pickle.dumps(category))):
        assert same is category
    assert eval(repr(category)) is category
    assert category not in DType.registered()
    assert storage_zero(category) is None
    assert not accepts_storage_dtype(category, DType.registered())  # type: ignore[arg-type]
    assert not category.is_subtype_of(DType.Float32)
    with pytest.raises(LookupError, match=category.name):
        DType.from_name(category.name)


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda c: c.name)
def test_carriers_store_no_category_and_nothing_that_is_no_dtype(category: DTypeCategory, tmp_path: Path) -> None:
    path = tmp_path / "values"
    path.write_bytes(bytes(8))
    bad: Any = category
    junk: Any = "Float32"
    makers: list[Callable[[Any], Carrier]] = [
        lambda dtype: CPU(1, dtype=dtype),
        lambda dtype: Generic([0], dtype=dtype),
        lambda dtype: FileBacked(dtype=dtype),
        lambda dtype: FileBacked.open(path, dtype=dtype),
    ]
    for carrier in (CPU(1), Generic([0], dtype=DType.Bool), FileBacked(size=1)):
        assert not carrier.supports_storage_dtype(category)
        makers.append(lambda dtype, carrier=carrier: carrier.allocate_like(1, dtype=dtype))  # type: ignore[misc]
        makers.append(lambda dtype, carrier=carrier: carrier.new_like([1], dtype=dtype))  # type: ignore[misc]
    for make in makers:
        with pytest.raises(ValueError, match="Float64, Float32"):
            make(bad)
        with pytest.raises(TypeError, match="dtype must be a DType"):
            make(junk)


def test_defined_class_allocates_like_itself_in_the_dtype_that_is_asked_for() -> None:
    class Shelf(Carrier):
        values: list[float]

    register_carrier_definition(Shelf, CarrierDefinition(list_storage()))
    carrier = Shelf(2, dtype=DType.Float32)
    other = carrier.allocate_like(3, dtype=DType.Int16)
    assert (type(other), other.dtype(), other.size()) == (Shelf, DType.Int16, 3)
    assert carrier.allocate_like(1).dtype() is DType.Float32


def test_any_is_above_every_category_and_of_none() -> None:
    assert DType.Any.supertype is None
    assert DType.Any.supertypes() == ()
    assert DType.Floating.supertypes() == DType.Integer.supertypes() == (DType.Any,)
    assert not DType.Any.is_subtype_of(DType.Floating)
    with pytest.raises(TypeError, match="dtype must be a DType"):
        DType.Any.is_subtype_of("Float32")  # type: ignore[arg-type]


def test_namespace_and_descriptors_are_frozen() -> None:
    for change in (lambda: setattr(DType, "Float32", 1), lambda: delattr(DType, "Any")):
        with pytest.raises(AttributeError, match="immutable"):
            change()
    for one in (DType.Float32, DType.Any):
        with pytest.raises(AttributeError):
            one.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "make",
    [lambda d: CPU(0, dtype=d), lambda d: Generic([], dtype=d), lambda d: FileBacked(dtype=d)],
    ids=["CPU", "Generic", "FileBacked"],
)
def test_support_is_of_the_class_needs_no_storage_and_outlives_it(make: Callable[[StorageDType], Carrier]) -> None:
    carrier = make(DType.Int8)
    for _ in range(2):
        assert all(carrier.supports_storage_dtype(dtype) for dtype in DType.registered())
        with pytest.raises(TypeError, match="storage dtype must be a DType"):
            carrier.supports_storage_dtype("Int8")  # type: ignore[arg-type]
        carrier.release()
    assert carrier.dtype() is DType.Int8
    with pytest.raises(TypeError, match="dtype must be a DType"):
        make("Int8")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
def test_exactly_the_floating_dtypes_are_differentiable(dtype: StorageDType) -> None:
    x = Tensor(CPU(1, dtype=dtype), 0, Layout.leaf(1, 1))
    assert x.is_differentiable() == (dtype.name in FLOATING)
