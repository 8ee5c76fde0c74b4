"""Sticks: the 128 bytes that the card moves at once, and how many elements of each dtype one holds."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Final

import torch

STICK_NBYTES: Final = 128
"""Bytes of a stick."""


class DataFormat(Enum):
    """A number format of the card. Its value is the bytes that one element takes in device memory.

    The formats called `SIM_...` are those that the software card has and a real one has not, so that any torch dtype
    can live on it.

    >>> from strideweave.spyre.sticks import DataFormat
    >>> DataFormat.SEN169_FP16.elems_per_stick()
    64
    """

    SEN169_FP16 = ("SEN169_FP16", 2)
    IEEE_FP32 = ("IEEE_FP32", 4)
    IEEE_INT32 = ("IEEE_INT32", 4)
    IEEE_INT64 = ("IEEE_INT64", 8)
    SENINT8 = ("SENINT8", 1)
    SEN143_FP8 = ("SEN143_FP8", 1)
    SIM_16 = ("SIM_16", 2)
    SIM_32 = ("SIM_32", 4)
    SIM_64 = ("SIM_64", 8)
    SIM_128 = ("SIM_128", 16)

    @property
    def itemsize(self) -> int:
        """Bytes of an element in device memory."""
        return self.value[1]

    def elems_per_stick(self) -> int:
        """How many elements a stick holds."""
        return STICK_NBYTES // self.itemsize

    def __repr__(self) -> str:
        return f"DataFormat.{self.name}"


_FORMATS: Final[dict[torch.dtype, DataFormat]] = {
    torch.float16: DataFormat.SEN169_FP16,
    torch.bfloat16: DataFormat.SEN169_FP16,
    torch.bool: DataFormat.SEN169_FP16,
    torch.float32: DataFormat.IEEE_FP32,
    torch.int32: DataFormat.IEEE_INT32,
    torch.int64: DataFormat.IEEE_INT64,
    torch.int8: DataFormat.SENINT8,
    torch.float8_e4m3fn: DataFormat.SEN143_FP8,
    torch.float8_e5m2: DataFormat.SEN143_FP8,
}
_SIMULATED: Final = {2: DataFormat.SIM_16, 4: DataFormat.SIM_32, 8: DataFormat.SIM_64, 16: DataFormat.SIM_128}


@lru_cache(maxsize=64)
def format_of(dtype: torch.dtype) -> DataFormat:
    """The format that elements of a torch dtype have on the card; a Bool takes two bytes there.

    Errors: TypeError for a dtype that has none.

    >>> import torch
    >>> from strideweave.spyre.sticks import format_of
    >>> format_of(torch.bool), format_of(torch.int64).elems_per_stick()
    (DataFormat.SEN169_FP16, 16)
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"cannot find the format of {dtype!r}: it is no torch dtype. Pass one, such as torch.float16.")
    found = _FORMATS.get(dtype)
    if found is None:
        found = DataFormat.SENINT8 if dtype.itemsize == 1 else _SIMULATED.get(dtype.itemsize)
    if found is None:
        raise TypeError(f"cannot keep {dtype} on the card: it has no format for it. Convert it to another dtype.")
    return found


def host_step(dtype: torch.dtype) -> int:
    """How many elements of `dtype` lie from one element in device memory to the next: 2 for Bool, 1 for all others."""
    return format_of(dtype).itemsize // dtype.itemsize
