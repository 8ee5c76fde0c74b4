"""Registers the device `spyre` with torch, once per process, unless another package has it."""

from __future__ import annotations

import logging
from threading import Lock
from typing import Any, Final

import torch

from strideweave.spyre.kernels import DEVICE_NAME, untraced

_log = logging.getLogger("strideweave.spyre")
_registering: Final = Lock()
_is_registered = False
_refusal = ""
_libraries: Final[list[Any]] = []


def is_registered() -> bool:
    """Whether the device `spyre` of this process is ours.

    >>> import strideweave.spyre.device
    >>> strideweave.spyre.is_registered()
    True
    """
    return _is_registered


def register() -> bool:
    """The device `spyre` is registered, unless another package has the name or the place; says whether it is ours."""
    global _is_registered, _refusal
    with _registering:
        if _is_registered or _refusal:
            return _is_registered
        _refusal = _other_owner()
        if _refusal:
            _log.warning("the software device %r is not registered: %s", DEVICE_NAME, _refusal)
            return False
        _register()
        _is_registered = True
        return True


def _other_owner() -> str:
    """Who has the place of our device; empty when it is free."""
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        return f"another package has registered the device {name!r}, and torch has room for one"
    if hasattr(torch, DEVICE_NAME):
        return f"torch.{DEVICE_NAME} exists already"
    return ""


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    @untraced
    def is_available(self) -> bool:
        return True

    @untraced
    def has_primary_context(self, device_index: int) -> bool:
        return True

    @untraced
    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    @untraced
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


def _register() -> None:
    from strideweave.spyre import autocast, copies, fallback, guards, pointwise, saving, torch_module, views

    torch.utils.backend_registration._setup_privateuseone_for_python_backend(
        DEVICE_NAME, backend_module=torch_module.make(), hook=_Hooks(), device_guard=_Guard()
    )
    new_library: Any = torch.library.Library
    library, everything = new_library("aten", "IMPL"), new_library("_", "IMPL")
    views.register(library, "PrivateUse1")
    copies.register(library, "PrivateUse1")
    pointwise.kernels.register(library, "PrivateUse1")
    fallback.register(library, "PrivateUse1")
    everything.fallback(fallback.run_on_host, "PrivateUse1")
    autocast.register(library, everything)
    _libraries.extend((library, everything))
    saving.register()
    guards.install(library)
