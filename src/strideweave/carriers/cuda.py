"""A carrier in the memory of a CUDA device: one flat torch storage."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import DType, StorageDType


@final
class CUDA(TorchStorage):
    """`size` slots of device memory, zero at first unless `empty`.

    The class is there on every machine; making one needs the device. `device` is an ordinal, a torch device or its
    name; None is torch's current CUDA device.

    Shapes: flat. Units: `size` in slots.
    Errors: TypeError, ValueError for a bad size, dtype or device; RuntimeError that says what is missing.

    >>> import torch
    >>> from strideweave.carriers.cuda import CUDA
    >>> if torch.cuda.is_available():
    ...     assert [v.item() for v in CUDA(2)._flat()] == [0.0, 0.0]
    ... else:
    ...     try:
    ...         CUDA(2)
    ...     except RuntimeError as error:
    ...         assert "cannot make a CUDA carrier" in str(error)
    """

    device_type: ClassVar[str] = "cuda"
    _device_words: ClassVar[str] = "a CUDA device"

    def __init__(
        self,
        size: int,
        *,
        mutable: bool = True,
        dtype: StorageDType = DType.Float32,
        empty: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(size, mutable=mutable, dtype=dtype, empty=empty, device=device)

    @property
    def device(self) -> torch.device:
        """The device in whose memory the slots are; known after release too."""
        return self._storage.device

    @classmethod
    def _require_device(cls, device: torch.device | str | int | None) -> torch.device:
        ordinal = _ordinal(device)
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch leaves this one unannotated
            raise RuntimeError(
                f"cannot make a CUDA carrier: torch {torch.__version__} is built without CUDA. Its values live on a "
                "CUDA device. Install a torch that is built with CUDA, or use CPU."
            )
        visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not visible:
            raise RuntimeError(
                f"cannot make a CUDA carrier: torch {torch.__version__} is built with CUDA and no device is visible. "
                "Its values live on a CUDA device. Check the driver and CUDA_VISIBLE_DEVICES, or use CPU."
            )
        if ordinal is None:
            ordinal = torch.cuda.current_device()
        if ordinal >= visible:
            raise RuntimeError(
                f"cannot make a CUDA carrier on device {ordinal}: {visible} CUDA devices are visible, counted from 0. "
                f"The device must be there. Pass one below {visible}, or check CUDA_VISIBLE_DEVICES."
            )
        return torch.device("cuda", ordinal)

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> CUDA:
        """A fresh carrier of `size` slots on the same device, zero unless `empty`."""
        return CUDA(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty, device=self.device)


def _ordinal(device: object) -> int | None:
    """Which CUDA device is meant; None for the current one."""
    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        raise TypeError(
            f"cannot make a CUDA carrier on {device!r}: a device is an ordinal, a torch.device or its name. Pass one, "
            "such as 0 or 'cuda:0'."
        )
    if isinstance(device, int):
        if device < 0:
            raise ValueError(
                f"cannot make a CUDA carrier on device {device}: devices are counted from 0. Pass 0 or more."
            )
        return device
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"cannot make a CUDA carrier on {device!r}: torch knows no such device. Pass one such as 'cuda:0'."
        ) from error
    if named.type != "cuda":
        raise ValueError(
            f"cannot make a CUDA carrier on {str(named)!r}: that is no CUDA device. Pass one such as 'cuda:0', or use "
            "the carrier of that device."
        )
    return named.index
