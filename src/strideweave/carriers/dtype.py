"""What carriers ask about dtypes: whether one is a storage dtype, whether a class takes it, and what zero is in it."""

from __future__ import annotations

from collections.abc import Iterable

from strideweave.carriers.carrier import Scalar, validate_storage_dtype
from strideweave.dtype import DType, DTypeCategory, StorageDType

__all__ = ["accepts_storage_dtype", "storage_zero", "validate_storage_dtype"]


def accepts_storage_dtype(dtype: StorageDType, accepted: Iterable[StorageDType]) -> bool:
    """Whether `dtype` is one of those accepted, by identity.

    >>> from strideweave import DType
    >>> from strideweave.carriers.dtype import accepts_storage_dtype
    >>> accepts_storage_dtype(DType.Int8, [DType.Int8, DType.Bool]), accepts_storage_dtype(DType.Int8, [DType.Bool])
    (True, False)
    """
    return any(dtype is one for one in accepted)


def storage_zero(dtype: StorageDType | DTypeCategory) -> Scalar | None:
    """The zero that a fresh slot of `dtype` holds: 0.0, 0 or False; None for a category, which no slot is of.

    Errors: TypeError for what is no DType.

    >>> from strideweave import DType
    >>> from strideweave.carriers.dtype import storage_zero
    >>> storage_zero(DType.BFloat16), storage_zero(DType.Int32), storage_zero(DType.Bool), storage_zero(DType.Any)
    (0.0, 0, False, None)
    """
    if isinstance(dtype, DTypeCategory):
        return None
    if not isinstance(dtype, StorageDType):
        raise TypeError(f"cannot name the zero of {dtype!r}: dtype must be a DType. Pass one such as DType.BFloat16.")
    if dtype.is_floating:
        return 0.0
    return False if dtype is DType.Bool else 0
