"""`strideweave.carriers.dtype`. Facts, section b."""

from __future__ import annotations

import pytest

from strideweave import CPU, DType
from strideweave.carriers.dtype import accepts_storage_dtype, storage_zero, validate_storage_dtype


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda dtype: dtype.name)
def test_zero_is_what_a_fresh_slot_holds(dtype: object) -> None:
    zero = storage_zero(dtype)  # type: ignore[arg-type]
    fresh = CPU(1, dtype=dtype)[0]  # type: ignore[arg-type]
    assert (zero, type(zero)) == (fresh, type(fresh))


def test_acceptance_is_by_identity() -> None:
    assert accepts_storage_dtype(DType.Float32, DType.registered())
    assert not accepts_storage_dtype(DType.Float32, [DType.Float64])
    assert not accepts_storage_dtype(DType.Float32, [])


def test_what_is_no_dtype_comes_before_what_is_not_accepted() -> None:
    with pytest.raises(TypeError, match="dtype must be a DType"):
        validate_storage_dtype("Float32", carrier="CPU", accepted=[])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"it stores Int8, Bool"):
        validate_storage_dtype(DType.Float32, carrier="Bits", accepted=[DType.Int8, DType.Bool])
    assert validate_storage_dtype(DType.Bool, carrier="Bits", accepted=[DType.Bool]) is DType.Bool
    with pytest.raises(TypeError, match="dtype must be a DType"):
        storage_zero(float)  # type: ignore[arg-type]
