"""What `import torch` calls: the device `spyre` is there, and Inductor will know it."""

from __future__ import annotations


def autoload() -> None:
    """Register the device; Inductor hears of it when it is imported. Never raises: it would break `import torch`."""
    from strideweave.spyre import autoload as device

    device.autoload()
