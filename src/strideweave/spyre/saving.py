"""Saving, loading and sending tensors of the card: `torch.save`, `torch.load`, `map_location`, queues of processes."""

from __future__ import annotations

from typing import Any

import torch

from strideweave.spyre.kernels import DEVICE_NAME
from strideweave.spyre.storage import record_at


def register() -> None:
    """torch.save names the device, torch.load puts storages on it; other processes get copies."""
    torch.serialization.register_package(5, _tag, _load)
    reductions: Any = torch.multiprocessing.reductions
    reductions.reduction.register(torch.UntypedStorage, _reduce)


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
    storage_class: Any = torch.UntypedStorage
    moved = storage_class(storage.nbytes(), device=DEVICE_NAME)
    moved.copy_(getattr(storage, "_untyped_storage", storage))
    record = record_at(moved.data_ptr())
    if record is not None:
        record.is_raw = True
    return moved


def _reduce(storage: Any) -> Any:
    """What goes to another process: a copy on the host, which becomes one on the card of that process."""
    if storage.device.type != DEVICE_NAME:
        reductions: Any = torch.multiprocessing.reductions
        return reductions.reduce_storage(storage)
    host = torch.empty(0, dtype=torch.uint8).set_(storage.cpu())
    return _received, (host.numpy().tobytes(),)


def _received(content: bytes) -> Any:
    host = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    return _load(host.untyped_storage(), DEVICE_NAME)
