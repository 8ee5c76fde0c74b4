"""The compiler half: a torch.compile backend for the card, the only place that touches torch._inductor.

Importing it lets Inductor compile for the card from the moment that Inductor itself is imported. Names are imported
when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from strideweave.inductor.arrival import register_on_arrival

if TYPE_CHECKING:
    from strideweave.inductor.backend import register, spyre_backend
    from strideweave.inductor.errors import Unsupported
    from strideweave.inductor.explaining import explain
    from strideweave.inductor.hints import spyre_hint
    from strideweave.inductor.names import declare_tensor_dim, name_tensor_dims
    from strideweave.spyre import config

register_on_arrival()

_HOMES = {
    "Unsupported": "errors",
    "config": "",
    "declare_tensor_dim": "names",
    "explain": "explaining",
    "name_tensor_dims": "names",
    "register": "backend",
    "spyre_backend": "backend",
    "spyre_hint": "hints",
}

__all__ = [
    "Unsupported",
    "config",
    "declare_tensor_dim",
    "explain",
    "name_tensor_dims",
    "register",
    "spyre_backend",
    "spyre_hint",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: Any
    if name == "config":
        found = importlib.import_module("strideweave.spyre.config")
    else:
        found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found
