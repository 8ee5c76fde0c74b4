"""A carrier in host memory: one flat torch storage."""

from __future__ import annotations

import ctypes
from typing import ClassVar, final

import torch

from strideweave.carriers.carrier import require_size
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import DType, StorageDType


@final
class CPU(TorchStorage):
    """`size` slots of host memory, zero at first unless `empty`; or memory that somebody else keeps.

    Shapes: flat. Units: `size` in slots. `pointer` wraps an address that the caller keeps alive.
    Errors: TypeError, ValueError for a bad size or dtype.

    >>> from strideweave import CPU, DType
    >>> c = CPU(3, dtype=DType.Int32)
    >>> c[1] = 7
    >>> [c[i] for i in range(3)], c.version
    ([0, 7, 0], 1)
    """

    device_type: ClassVar[str] = "cpu"
    _device_words: ClassVar[str] = "the CPU"

    def __init__(
        self,
        size: int,
        pointer: int | None = None,
        *,
        mutable: bool = True,
        dtype: StorageDType = DType.Float32,
        empty: bool = False,
    ) -> None:
        super().__init__(size if pointer is None else 0, mutable=mutable, dtype=dtype, empty=empty)
        if pointer is not None and require_size(size, what="a CPU carrier"):
            memory = (ctypes.c_byte * (size * dtype.itemsize)).from_address(pointer)
            self._storage = torch.frombuffer(memory, dtype=dtype.torch_dtype)

    @classmethod
    def _require_device(cls, device: torch.device | str | int | None) -> torch.device:
        return torch.device("cpu")

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> CPU:
        """A fresh CPU carrier of `size` slots, zero unless `empty`."""
        return CPU(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)

    def _is_in_memory(self) -> bool:
        return True
