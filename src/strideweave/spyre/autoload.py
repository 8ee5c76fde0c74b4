"""What torch calls at the end of `import torch`: the device `spyre` is registered, and nothing can go wrong by it."""

from __future__ import annotations

import logging


def autoload() -> None:
    """The device is registered where that is possible; a failure is logged and never raised."""
    try:
        import strideweave.spyre.device  # noqa: F401
    except Exception:
        logging.getLogger("strideweave.spyre").warning("the software device 'spyre' is not registered", exc_info=True)
