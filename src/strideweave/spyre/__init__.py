"""The software card: sticks, layouts, memory, programs and what runs them, and the torch device `spyre`.

Names are imported when they are asked for: `import torch` loads this package, and must stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strideweave.spyre.counters import reset_statistics, statistics
    from strideweave.spyre.memory import DeviceMemory
    from strideweave.spyre.registration import is_registered
    from strideweave.spyre.sticks import DataFormat, format_of
    from strideweave.spyre.tensor_layout import ElementArrangement, SpyreTensorLayout

_HOMES = {
    "DataFormat": "sticks",
    "DeviceMemory": "memory",
    "ElementArrangement": "tensor_layout",
    "SpyreTensorLayout": "tensor_layout",
    "format_of": "sticks",
    "is_registered": "registration",
    "reset_statistics": "counters",
    "statistics": "counters",
}

__all__ = [
    "DataFormat",
    "DeviceMemory",
    "ElementArrangement",
    "SpyreTensorLayout",
    "format_of",
    "is_registered",
    "reset_statistics",
    "statistics",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
