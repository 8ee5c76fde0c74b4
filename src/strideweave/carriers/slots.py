"""What a slot takes: numbers of a dtype, sizes, and runs of many slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

from strideweave.dtype import DType, DTypeCategory, StorageDType

Scalar: TypeAlias = float | int | bool
Run: TypeAlias = tuple[int, torch.Tensor]


def validate_storage_dtype(dtype: StorageDType, *, carrier: str, accepted: Sequence[StorageDType]) -> StorageDType:
    """`dtype` itself. Errors: TypeError for what is no DType, ValueError for one not accepted, or a category.

    >>> from strideweave import DType
    >>> from strideweave.carriers.dtype import validate_storage_dtype
    >>> validate_storage_dtype(DType.Int8, carrier="Bits", accepted=[DType.Int8, DType.Bool])
    DType.Int8
    """
    if not isinstance(dtype, StorageDType | DTypeCategory):
        raise TypeError(
            f"cannot make a {carrier} of {dtype!r}: dtype must be a DType. Pass one such as DType.BFloat16."
        )
    if dtype not in accepted:
        names = ", ".join(d.name for d in accepted)
        raise ValueError(f"cannot make a {carrier} of {dtype.name}: it stores {names}. Choose one of these.")
    return dtype


def require_size(size: int, *, what: str) -> int:
    """`size` itself, when it is an exact integer of at least 0."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"cannot make {what} of size {size!r}: a size must be an integer. Pass an int.")
    if size < 0:
        raise ValueError(f"cannot make {what} of size {size}: a size must not be negative. Pass 0 or more.")
    return size


def slot_value(value: object, dtype: StorageDType) -> Scalar:
    """The Python number that `value` is, when a slot of `dtype` can take it; floats are not yet rounded.

    Errors: TypeError for what is no number; OverflowError for a whole number beyond the dtype; ValueError for a number
    that a whole dtype or Bool cannot hold exactly.
    """
    plain = value.item() if isinstance(value, np.generic | torch.Tensor) and value.ndim == 0 else value
    if not isinstance(plain, int | float):
        raise TypeError(f"cannot store {value!r} as {dtype.name}: a value must be a real number. Pass a number.")
    if dtype.is_floating:
        return float(plain)
    if dtype is DType.Bool:
        if plain not in (0, 1):
            raise ValueError(f"cannot store {value!r} as Bool: it holds False and True, nothing else. Pass a bool.")
        return bool(plain)
    if isinstance(plain, float) and not plain.is_integer():
        raise ValueError(f"cannot store {value!r} as {dtype.name}: it holds whole numbers only. Round it first.")
    whole, limits = int(plain), torch.iinfo(dtype.torch_dtype)
    if not limits.min <= whole <= limits.max:
        raise OverflowError(
            f"cannot store {value!r} as {dtype.name}: it holds {limits.min} to {limits.max}. Choose a wider dtype."
        )
    return whole


def rounded(number: Scalar, dtype: StorageDType) -> Scalar:
    """A number from `slot_value` as a slot of `dtype` holds it."""
    if not dtype.is_floating or dtype is DType.Float64:
        return number
    value: float = torch.tensor(number, dtype=torch.float64).to(dtype.torch_dtype).item()
    return value


def flat_values(values: list[Scalar], dtype: StorageDType) -> torch.Tensor:
    """A 1-d tensor of `dtype` with these values. Errors: as `slot_value`."""
    if dtype.is_floating and all(type(v) is float for v in values):
        return torch.tensor(values, dtype=dtype.torch_dtype)
    return torch.tensor([slot_value(v, dtype) for v in values], dtype=dtype.torch_dtype)


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, sharing its memory."""
    # numpy's stubs do not say that an array is a buffer on this Python.
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
