"""A carrier in the memory of an Apple GPU: one flat torch storage."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import DType, StorageDType

_NOT_ON_METAL = (DType.Float64, DType.E4M3, DType.E5M2)


@final
class Metal(TorchStorage):
    """`size` slots of the memory of the Apple GPU, zero at first unless `empty`.

    The class is there on every machine; making one needs the device and torch's MPS backend. It has no 64-bit and no
    8-bit floating point, so those dtypes are refused.

    Shapes: flat. Units: `size` in slots.
    Errors: TypeError, ValueError for a bad size or dtype; RuntimeError that says what is missing.

    >>> import torch
    >>> from strideweave.carriers.metal import Metal
    >>> if torch.backends.mps.is_available():
    ...     assert [v.item() for v in Metal(2)._flat()] == [0.0, 0.0]
    ... else:
    ...     try:
    ...         Metal(2)
    ...     except RuntimeError as error:
    ...         assert "cannot make a Metal carrier" in str(error)
    """

    accepted_dtypes: ClassVar[tuple[StorageDType, ...]] = tuple(
        dtype for dtype in DType.registered() if dtype not in _NOT_ON_METAL
    )
    device_type: ClassVar[str] = "mps"
    _device_words: ClassVar[str] = "an Apple GPU (mps)"

    def __init__(
        self, size: int, *, mutable: bool = True, dtype: StorageDType = DType.Float32, empty: bool = False
    ) -> None:
        super().__init__(size, mutable=mutable, dtype=dtype, empty=empty)

    @classmethod
    def _require_device(cls, device: torch.device | str | int | None) -> torch.device:
        if not torch.backends.mps.is_built():
            raise RuntimeError(
                f"cannot make a Metal carrier: torch {torch.__version__} is built without MPS. Its values live on an "
                "Apple GPU. Install a torch for macOS on Apple silicon, or use CPU."
            )
        if not torch.backends.mps.is_available():
            raise RuntimeError(
                f"cannot make a Metal carrier: torch {torch.__version__} is built with MPS and no device is available. "
                "Its values live on an Apple GPU, which needs macOS 14 or later. Run there, or use CPU."
            )
        return torch.device("mps")

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Metal:
        """A fresh Metal carrier of `size` slots, zero unless `empty`."""
        return Metal(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)
