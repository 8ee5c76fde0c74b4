"""Saving, loading and sending tensors of the card: `torch.save`, `torch.load`, `map_location`, queues of processes."""

from __future__ import annotations

from typing import Any

import torch

from strideweave.spyre.kernels import DEVICE_NAME
from strideweave.spyre.storage import record_at


def register() -> None:
    """torch.save names the device, torch.load puts storages on it; other processes get copies."""
    torch.serialization.register_package(5, _tag, _load)
    reduction = torch.multiprocessing.reductions.reduction
    reduction.register(torch.UntypedStorage, _reduce)


def _tag(storage: Any) -> str | None:
    return DEVICE_NAME if storage.device.type == DEVICE_NAME else None


def _load(storage: Any, location: str) -> Any:
    """The storage on the card, as bytes; the first tensor that fills it gives it a layout."""
    if location != DEVICE_NAME and not location.startswith(f"{DEVICE_NAME}:"):
        return None
    if location not in (DEVICE_NAME, f"{DEVICE_NAME}:0"):
        raise RuntimeError(
            f"cannot load a storage to {location!r}: there is one card, number 0. Pass map_location={DEVICE_NAME!r}."
        )
    moved = torch.UntypedStorage(storage.nbytes(), device=DEVICE_NAME)
    moved.copy_(getattr(storage, "_untyped_storage", storage))
    record = record_at(moved.data_ptr())
    if record is not None:
        record.is_raw = True
    return moved


def _reduce(storage: Any) -> Any:
    """What goes to another process: a copy on the host, which becomes one on the card of that process."""
    if storage.device.type != DEVICE_NAME:
        return torch.multiprocessing.reductions.reduce_storage(storage)
    return _received, (storage.cpu(),)


def _received(storage: Any) -> Any:
    return _load(storage, DEVICE_NAME)
