"""What torch cannot ask a device written in Python for: answered here, or refused with a message.

Everything is as before for every other device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from strideweave.spyre.copies import duplicate
from strideweave.spyre.kernels import DEVICE_NAME, implement, untraced
from strideweave.spyre.storage import card, new_storage, record_at, stored_as


def install(library: torch.library.Library) -> None:
    """The wrappers are in place."""
    _wrap_storages()
    _wrap_accelerator()
    implement(library, "_pin_memory", _pin_memory, "CPU")


def bytes_storage(nbytes: int) -> Any:
    """A storage of the card for so many bytes."""
    card()
    return new_storage(stored_as((nbytes,), (1,), torch.uint8), nbytes)


def _wrap_storages() -> None:
    """`torch.UntypedStorage(n, device="spyre")` has memory of the card: torch's own would have none, and crash."""
    kind: Any = torch.UntypedStorage
    original, clone, resize = kind.__new__, kind.clone, kind.resize_

    def __new__(cls: Any, *arguments: Any, device: Any = None, **named: Any) -> Any:
        if device is not None and _is_card(device):
            if arguments and not isinstance(arguments[0], int):
                made = bytes_storage(len(arguments[0]))
                made.copy_(original(torch.UntypedStorage, *arguments))
                return made
            return bytes_storage(arguments[0] if arguments else named.get("size", 0))
        if device is not None:
            named["device"] = device
        return original(cls, *arguments, **named)

    @functools.wraps(clone)
    def clone_storage(self: Any) -> Any:
        record = record_at(self.data_ptr()) if self.device.type == DEVICE_NAME else None
        if record is None:
            return clone(self)
        made = new_storage(record.stored, self.nbytes())
        target = record_at(made.data_ptr())
        assert target is not None
        duplicate(record, target)
        return made

    def resize_(self: Any, nbytes: int) -> Any:
        if self.device.type != DEVICE_NAME:
            return resize(self, nbytes)
        if nbytes == self.nbytes():
            return self
        raise RuntimeError(
            f"cannot resize a storage of {self.nbytes()} bytes on {DEVICE_NAME} to {nbytes}: torch has no way to do so "
            "for a device written in Python. Use tensor.resize_(), or make another tensor."
        )

    kind.__new__ = untraced(__new__)
    kind.clone = untraced(clone_storage)
    kind.resize_ = untraced(resize_)


def _is_card(device: Any) -> bool:
    if isinstance(device, str):
        return device == DEVICE_NAME or device.startswith(f"{DEVICE_NAME}:")
    return isinstance(device, torch.device) and device.type == DEVICE_NAME


def _wrap_accelerator() -> None:
    """`torch.accelerator` answers for the card what its C++ side asks of allocators and streams that are C++ only."""
    module = torch.accelerator
    for name in (
        "synchronize",
        "empty_cache",
        "get_memory_info",
        "max_memory_allocated",
        "max_memory_reserved",
        "memory_allocated",
        "memory_reserved",
        "memory_stats",
        "reset_accumulated_memory_stats",
        "reset_peak_memory_stats",
        "get_device_capability",
    ):
        if hasattr(module, name):
            setattr(module, name, _answered_by_card(getattr(module, name), name))


def _answered_by_card(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def answer(*arguments: Any, **named: Any) -> Any:
        current = torch._C._accelerator_getAccelerator()
        if current is None or current.type != DEVICE_NAME:
            return original(*arguments, **named)
        return getattr(torch.get_device_module(DEVICE_NAME), name)(*arguments, **named)

    return untraced(answer)


@untraced
def _pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """`cpu_tensor.pin_memory()`: a copy in ordinary memory, which is all that copies to the simulated card need."""
    return tensor.clone()
