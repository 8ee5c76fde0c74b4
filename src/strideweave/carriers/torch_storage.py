"""Carriers that are one flat torch storage on some device: what they share, whatever the device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar, NamedTuple, Self

import torch

from strideweave.carriers.carrier import Carrier, Run, require_size
from strideweave.dtype import DType, StorageDType


class DLPackInfo(NamedTuple):
    """Where slot 0 of a carrier is, as DLPack counts it.

    >>> from strideweave import CPU
    >>> info = CPU(2).dlpack_info()
    >>> info.device_type, info.device_id
    (1, 0)
    """

    pointer: int
    """The address of slot 0 in the memory of its device."""
    device_type: int
    """DLPack's number of the kind of device: 1 for host memory, 2 for CUDA, 8 for Metal."""
    device_id: int
    """Which device of that kind."""


class TorchStorage(Carrier):
    """`size` slots in one flat torch storage on a device, zero at first unless `empty`.

    `_flat` works for all of these: it is a torch tensor, on the device of the carrier. `_is_in_memory` asks for more,
    that the host can address it, and so is True for `CPU` alone; `isinstance(carrier, TorchStorage)` asks for the
    first. Runs are tensors on any device: bytes are copied between devices, synchronously.

    Shapes: flat. Units: `size` in slots. Errors: TypeError, ValueError for a bad size or dtype; RuntimeError when the
    device is missing. Nothing has been allocated then.
    """

    device_type: ClassVar[str]
    """What torch calls the kind of device."""
    _device_words: ClassVar[str]
    """The same in a sentence: "a torch tensor on ...". """

    def __init__(
        self,
        size: int,
        *,
        mutable: bool = True,
        dtype: StorageDType = DType.Float32,
        empty: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(dtype=dtype, mutable=mutable)
        require_size(size, what=f"a {type(self).__name__} carrier")
        make = torch.empty if empty else torch.zeros
        self._storage = make(size, dtype=dtype.torch_dtype, device=self._require_device(device))

    @classmethod
    @abstractmethod
    def _require_device(cls, device: torch.device | str | int | None) -> torch.device:
        """The device that is meant. Errors: RuntimeError that says what is missing for it to be used."""

    @classmethod
    def wrap(cls, storage: torch.Tensor, *, mutable: bool = True) -> Self:
        """A carrier over the memory of a contiguous 1-d tensor on such a device; nothing is copied.

        Errors: TypeError for no tensor or another device; ValueError for another shape or stride, or a dtype that has
        no storage there.

        >>> import torch
        >>> from strideweave import CPU
        >>> t = torch.arange(3.0)
        >>> c = CPU.wrap(t)
        >>> c[0] = 5.0
        >>> t
        tensor([5., 1., 2.])
        """
        if not isinstance(storage, torch.Tensor) or storage.device.type != cls.device_type:
            kind = f"a tensor on {storage.device}" if isinstance(storage, torch.Tensor) else type(storage).__name__
            raise TypeError(
                f"cannot wrap {kind}: {cls.__name__} wraps a torch tensor on {cls._device_words}. Pass one."
            )
        if storage.layout != torch.strided:
            raise TypeError(f"cannot wrap a {storage.layout} tensor: a carrier is dense. Call .to_dense(), a copy.")
        if storage.dim() != 1 or not storage.is_contiguous():
            raise ValueError(
                f"cannot wrap a tensor of shape {tuple(storage.shape)} and strides {storage.stride()}: a carrier is "
                "flat. Use from_torch, which keeps shape and strides in a Layout."
            )
        carrier = cls.__new__(cls)
        Carrier.__init__(carrier, dtype=DType.from_torch(storage.dtype), mutable=mutable)
        carrier._storage = storage.detach()
        return carrier

    @classmethod
    def _adopt(cls, made: torch.Tensor, size: int, dtype: StorageDType) -> Self:
        """A carrier over the whole storage of a fresh tensor of `size` elements, however its dims lie."""
        carrier = cls.__new__(cls)
        Carrier.__init__(carrier, dtype=dtype)
        carrier._storage = made if made.dim() == 1 else torch.as_strided(made, (size,), (1,), 0)
        return carrier

    def size(self) -> int:
        """The number of slots."""
        return self._storage.numel()

    def pointer(self) -> int:
        """The address of slot 0 in the memory of its device. Errors: RuntimeError when released."""
        self._require_live("take the address of")
        return self._storage.data_ptr()

    def dlpack_info(self) -> DLPackInfo:
        """Where slot 0 is, as DLPack counts it. Errors: RuntimeError when released."""
        pointer = self.pointer()
        device_type, device_id = self._storage.__dlpack_device__()
        return DLPackInfo(pointer, int(device_type), int(device_id))

    def _content_token(self) -> Hashable:
        """A value that differs whenever the slots were written, by us or by torch through shared memory.

        torch counts the writes to every view of a storage, but not those to inference tensors; writes that neither
        sees, as numpy's through a shared buffer, do not show.
        """
        return self._version, 0 if self._storage.is_inference() else self._storage._version

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
        self._storage = torch.empty(size, dtype=self._dtype.torch_dtype, device=self._storage.device)

    def _free(self) -> None:
        self._storage = torch.empty(0, dtype=self._dtype.torch_dtype, device=self._storage.device)

    def _flat(self) -> torch.Tensor:
        self._require_live("view")
        return self._storage
