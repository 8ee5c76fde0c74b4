"""What `import torch` calls: the device `spyre` is there, and Inductor will know it."""

from __future__ import annotations


def autoload() -> None:
    """Nothing more: importing this package has registered the device, or said why not. Never raises."""
