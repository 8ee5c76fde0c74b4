"""Generic: Python values, normalised one by one, against numpy, torch and the CPU carrier."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strideweave import CPU, DType, TiledEvictable
from strideweave.carriers import Generic
from strideweave.carriers.file_backed import read_all
from strideweave.dtype import StorageDType

WHOLE = [d for d in DType.registered() if not d.is_floating and d is not DType.Bool]


def values_of(carrier: Generic) -> list[float | int | bool]:
    return [carrier[k] for k in range(carrier.size())]


# -- what a value becomes --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(width=64), max_size=8))
def test_generic_float32_is_numpys_binary32(values: list[float]) -> None:
    with np.errstate(over="ignore"):
        expected = np.array(values, dtype=np.float64).astype(np.float32)
    held = values_of(Generic(values, dtype=DType.Float32))
    np.testing.assert_array_equal(np.array(held, dtype=np.float64), expected.astype(np.float64))
    assert [math.copysign(1, v) for v in held if v == 0] == [math.copysign(1, v) for v in expected.tolist() if v == 0]
    assert all(type(v) is float for v in held)


@pytest.mark.parametrize("dtype", [d for d in DType.registered() if d.is_floating], ids=lambda d: d.name)
def test_generic_of_a_floating_dtype_rounds_as_torch_does(dtype: StorageDType) -> None:
    values = [0.1, -3.3, 1 / 3, 2, True, -0.0, 1e-9, float("inf")]
    expected = torch.tensor([float(v) for v in values], dtype=torch.float64).to(dtype.torch_dtype)
    carrier = Generic(values, dtype=dtype)
    np.testing.assert_array_equal(values_of(carrier), expected.tolist())
    assert torch.equal(read_all(carrier).view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", WHOLE, ids=lambda d: d.name)
def test_generic_of_a_whole_dtype_holds_its_range_and_nothing_beyond(dtype: StorageDType) -> None:
    limits = np.iinfo(dtype.name.lower())
    carrier = Generic([limits.min, limits.max, np.int8(1), 2.0, True], dtype=dtype)
    assert values_of(carrier) == [int(limits.min), int(limits.max), 1, 2, 1]
    assert all(type(v) is int for v in values_of(carrier))
    assert read_all(carrier).tolist() == values_of(carrier)
    for beyond in (int(limits.min) - 1, int(limits.max) + 1):
        with pytest.raises(OverflowError, match=str(limits.max)):
            Generic([beyond], dtype=dtype)
        with pytest.raises(OverflowError):
            carrier[0] = beyond
    for broken in (1.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="whole numbers"):
            carrier[0] = broken
    assert (carrier[0], carrier.version) == (limits.min, 0)


def test_generic_bool_is_exact() -> None:
    carrier = Generic([True, False, 1, 0.0, np.bool_(True), torch.tensor(False)], dtype=DType.Bool)  # type: ignore[list-item]
    assert values_of(carrier) == [True, False, True, False, True, False]
    assert all(type(v) is bool for v in values_of(carrier))
    for wrong in (2, -1, 0.5, math.nan):
        with pytest.raises(ValueError, match="False and True"):
            carrier[0] = wrong
    assert carrier.version == 0


@pytest.mark.parametrize("value", ["1", b"1", 1j, [1.0], object(), torch.ones(2)])
@pytest.mark.parametrize("dtype", [DType.Float32, DType.Int32, DType.Bool], ids=lambda d: d.name)
def test_generic_of_what_is_no_number_is_refused(value: object, dtype: StorageDType) -> None:
    with pytest.raises(TypeError, match="real number"):
        Generic([value], dtype=dtype)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="real number"):
        Generic([0], dtype=dtype).set_value(0, value)  # type: ignore[arg-type]


def test_generic_holes_become_zero_but_a_write_is_no_hole() -> None:
    carrier = Generic([None, 2, None], dtype=DType.Int16)
    assert values_of(carrier) == [0, 2, 0]
    with pytest.raises(TypeError, match="real number"):
        carrier[1] = None  # type: ignore[assignment]
    assert (carrier[1], carrier.version) == (2, 0)


def test_generic_owns_a_copy() -> None:
    values = [1.0, 2.0]
    carrier = Generic(values, dtype=DType.Float32)
    values[0] = 9.0
    carrier[1] = 8.0
    assert (values_of(carrier), values) == ([1.0, 8.0], [9.0, 2.0])
    assert values_of(Generic((k * k for k in range(3)), dtype=DType.UInt8)) == [0, 1, 4]


@pytest.mark.parametrize("values", [3, None, CPU(2)])
def test_generic_of_no_values_is_refused(values: object) -> None:
    with pytest.raises(TypeError):
        Generic(values, dtype=DType.Float32)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, "Float32", None])
def test_generic_of_what_is_no_storage_dtype_is_refused(dtype: object) -> None:
    with pytest.raises(TypeError, match="dtype must be a DType"):
        Generic([1], dtype=dtype)  # type: ignore[arg-type]


# -- what every carrier does -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-128, 127)), max_size=12), st.sampled_from(DType.registered()))
def test_generic_and_cpu_agree_after_any_writes(writes: list[tuple[int, int]], dtype: StorageDType) -> None:
    generic, cpu = Generic([None] * 5, dtype=dtype), CPU(5, dtype=dtype)
    for slot, value in writes:
        exact = value % 2 if dtype is DType.Bool else value % 128 if dtype is DType.UInt8 else value
        generic[slot] = exact
        cpu[slot] = exact
    assert values_of(generic) == [cpu[k] for k in range(5)]
    assert generic.version == cpu.version == len(writes)
    assert generic.nbytes == cpu.nbytes


def test_generic_runs_copy_each_stretch() -> None:
    carrier = Generic(range(10), dtype=DType.Float32)
    out = [torch.empty(2), torch.empty(3)]
    assert carrier._read_runs([(8, out[0]), (1, out[1])]) == 20
    assert [o.tolist() for o in out] == [[8.0, 9.0], [1.0, 2.0, 3.0]]
    assert carrier._write_runs([(0, torch.tensor([-1.0])), (4, torch.tensor([-2.0, -3.0]))]) == 12
    assert values_of(carrier) == [-1.0, 1.0, 2.0, 3.0, -2.0, -3.0, 6.0, 7.0, 8.0, 9.0]


def test_generic_immutable_refuses_writes() -> None:
    carrier = Generic([1], mutable=False, dtype=DType.Int8)
    with pytest.raises(RuntimeError, match="Carrier is not mutable"):
        carrier[0] = 2
    assert (carrier[0], carrier.version) == (1, 0)


def test_generic_release_is_final_and_a_prototype_still_serves() -> None:
    carrier = Generic([1, 2], dtype=DType.Int8)
    carrier.release()
    carrier.release()
    assert carrier.is_released()
    assert (carrier.size(), carrier.dtype(), carrier.is_mutable()) == (0, DType.Int8, False)
    for request in (lambda: carrier[0], lambda: operator.setitem(carrier, 0, 1), carrier._claim_ownership):  # type: ignore[misc, arg-type, return-value]
        with pytest.raises(RuntimeError, match="released"):
            request()
    like = carrier.new_like([1, None, 3])
    assert (type(like), like.dtype(), values_of(like)) == (Generic, DType.Int8, [1, 0, 3])
    other = carrier.allocate_like(2, dtype=DType.Bool, mutable=False)
    assert (type(other), other.is_mutable(), values_of(other)) == (Generic, False, [False, False])
    assert type(values_of(other)[0]) is bool
    for size in (-1, 1.0):
        with pytest.raises((ValueError, TypeError), match="size"):
            carrier.allocate_like(size)  # type: ignore[arg-type]


def test_generic_is_no_memory() -> None:
    carrier = Generic([1.0], dtype=DType.Float32)
    with pytest.raises(BufferError, match="materialize"):
        carrier._flat()


def test_generic_serves_as_a_secondary_tier() -> None:
    tiled = TiledEvictable(CPU(0), Generic(range(8), dtype=DType.Float32), (4,), (2,))
    tiled.promote(tiled.secondary_tiles)
    assert [tiled[k] for k in range(8)] == torch.arange(8.0).tolist()
    tiled.release()
