"""A carrier in host memory: one flat torch storage."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import final

import torch

from strideweave.carriers.carrier import Carrier, Run, require_size
from strideweave.dtype import DType, StorageDType


@final
class CPU(Carrier):
    """`size` slots of host memory, zero at first unless `empty`; or memory that somebody else keeps.

    Shapes: flat. Units: `size` in slots. `pointer` wraps an address that the caller keeps alive.
    Errors: TypeError, ValueError for a bad size or dtype.

    >>> from strideweave import CPU, DType
    >>> c = CPU(3, dtype=DType.Int32)
    >>> c[1] = 7
    >>> [c[i] for i in range(3)], c.version
    ([0, 7, 0], 1)
    """

    def __init__(
        self,
        size: int,
        pointer: int | None = None,
        *,
        mutable: bool = True,
        dtype: StorageDType = DType.Float32,
        empty: bool = False,
    ) -> None:
        super().__init__(dtype=dtype, mutable=mutable)
        require_size(size, what="a CPU carrier")
        make = torch.empty if empty else torch.zeros
        self._keep_alive: object = None
        if pointer is None or size == 0:
            self._storage = make(size, dtype=dtype.torch_dtype)
        else:
            memory = (ctypes.c_byte * (size * dtype.itemsize)).from_address(pointer)
            self._storage = torch.frombuffer(memory, dtype=dtype.torch_dtype)
            self._keep_alive = memory

    @classmethod
    def wrap(cls, storage: torch.Tensor, *, mutable: bool = True) -> CPU:
        """A carrier over the memory of a contiguous 1-d CPU tensor; nothing is copied.

        Errors: TypeError for no tensor or another device; ValueError for another shape or stride.

        >>> import torch
        >>> from strideweave import CPU
        >>> t = torch.arange(3.0)
        >>> c = CPU.wrap(t)
        >>> c[0] = 5.0
        >>> t
        tensor([5., 1., 2.])
        """
        if not isinstance(storage, torch.Tensor) or storage.device.type != "cpu":
            raise TypeError(f"cannot wrap {type(storage).__name__}: CPU wraps a torch tensor on the CPU. Pass one.")
        if storage.dim() != 1 or not storage.is_contiguous():
            raise ValueError(
                f"cannot wrap a tensor of shape {tuple(storage.shape)} and strides {storage.stride()}: a carrier is "
                "flat. Use from_torch, which keeps shape and strides in a Layout."
            )
        carrier = cls(0, dtype=DType.from_torch(storage.dtype), mutable=mutable)
        carrier._storage = storage.detach()
        return carrier

    def size(self) -> int:
        """The number of slots."""
        return self._storage.numel()

    def pointer(self) -> int:
        """The address of slot 0. Errors: RuntimeError when released."""
        self._require_live("take the address of")
        return self._storage.data_ptr()

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> CPU:
        """A fresh CPU carrier of `size` slots, zero unless `empty`."""
        return CPU(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)

    def _read_runs(self, runs: Sequence[Run]) -> int:
        for start, out in runs:
            out.copy_(self._storage[start : start + out.numel()])
        return sum(out.nbytes for _, out in runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        for start, source in runs:
            self._storage[start : start + source.numel()].copy_(source)
        return sum(source.nbytes for _, source in runs)

    def _allocate(self, size: int) -> None:
        assert self.size() == 0, "only an empty carrier is allocated"
        self._storage = torch.empty(size, dtype=self._dtype.torch_dtype)

    def _free(self) -> None:
        self._storage = torch.empty(0, dtype=self._dtype.torch_dtype)
        self._keep_alive = None

    def _flat(self) -> torch.Tensor:
        self._require_live("view")
        return self._storage

    def _is_in_memory(self) -> bool:
        return True
