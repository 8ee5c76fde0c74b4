"""The one table of dtype promotion: PyTorch's, with the 8-bit floats that PyTorch leaves out.

Tensors with modes outrank tensors of rank 0, which outrank Python scalars: a lower rank matters only when it is of a
higher category (Bool < whole < floating), and then a whole tensor beside a floating scalar becomes Float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from strideweave.dtype import DType, StorageDType

_FLOAT_ORDER = (DType.Float16, DType.Float32, DType.Float64)
_SIGNED = (DType.Int8, DType.Int16, DType.Int32, DType.Int64)
_EIGHT_BIT = (DType.E4M3, DType.E5M2)


def category(dtype: StorageDType) -> int:
    """0 for Bool, 1 for whole numbers, 2 for floating ones."""
    return 2 if dtype.is_floating else 0 if dtype is DType.Bool else 1


@cache
def promote_pair(a: StorageDType, b: StorageDType) -> StorageDType:
    """The dtype of a result of `a` and `b`, both with modes.

    >>> from strideweave import DType
    >>> from strideweave.operation import promote_pair
    >>> promote_pair(DType.BFloat16, DType.Float16), promote_pair(DType.Int64, DType.Float16)
    (DType.Float32, DType.Float16)
    """
    if a is b:
        return a
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if a.is_floating:
        return _promote_floats(a, b)
    if DType.UInt8 in (a, b):  # 8 bits without a sign need 16 with one
        other = b if a is DType.UInt8 else a
        return DType.Int16 if other is DType.Int8 else other
    return a if _SIGNED.index(a) > _SIGNED.index(b) else b


def _promote_floats(a: StorageDType, b: StorageDType) -> StorageDType:
    if a in _EIGHT_BIT and b in _EIGHT_BIT:
        return DType.Float16  # the smallest that holds every value of both
    if a in _EIGHT_BIT:
        return b
    if b in _EIGHT_BIT:
        return a
    if {a, b} == {DType.BFloat16, DType.Float16}:
        return DType.Float32
    rank = {DType.BFloat16: 0, **{d: k for k, d in enumerate(_FLOAT_ORDER)}}
    return a if rank[a] > rank[b] else b


def promote(dtypes: Sequence[tuple[StorageDType, bool]], scalars: Iterable[type] = ()) -> StorageDType:
    """The dtype of a result: `dtypes` are (dtype, has modes) of the tensors, `scalars` the types of Python scalars.

    >>> from strideweave import DType
    >>> from strideweave.operation import promote
    >>> promote([(DType.BFloat16, True), (DType.Float32, False)], [float])
    DType.BFloat16
    >>> promote([(DType.Int32, True)], [float])
    DType.Float32
    """
    levels: list[StorageDType | None] = [None, None, None]
    for dtype, has_modes in dtypes:
        level = 0 if has_modes else 1
        before = levels[level]
        levels[level] = dtype if before is None else promote_pair(before, dtype)
    for kind in scalars:
        weak = DType.Bool if issubclass(kind, bool) else DType.Int64 if issubclass(kind, int) else DType.Float32
        before = levels[2]
        levels[2] = weak if before is None else promote_pair(before, weak)
    result: StorageDType | None = None
    for level_dtype in levels:
        if level_dtype is not None and (result is None or category(level_dtype) > category(result)):
            result = level_dtype
    assert result is not None, "an operation has operands"
    return result


def floating(dtype: StorageDType) -> StorageDType:
    """The dtype itself when it is floating, else Float32: what division and transcendental functions give."""
    return dtype if dtype.is_floating else DType.Float32


def computed_in(dtype: StorageDType) -> StorageDType:
    """The dtype that kernels take: 8-bit floats have no arithmetic and are converted to Float32 first."""
    return DType.Float32 if dtype in _EIGHT_BIT else dtype
