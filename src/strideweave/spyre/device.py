"""The torch device `spyre`, in software: importing this module registers it.

`import torch` does so by itself where this package is installed, unless `TORCH_DEVICE_BACKEND_AUTOLOAD=0`.

>>> import torch, strideweave.spyre.device
>>> (torch.arange(3, device="spyre") * 2).tolist()
[0, 2, 4]
"""

from __future__ import annotations

from strideweave.spyre.registration import is_registered, register

__all__ = ["is_registered", "register"]

register()
