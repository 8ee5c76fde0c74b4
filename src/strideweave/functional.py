"""Every operation as a function, under one roof."""

from strideweave.operation import functional
from strideweave.operation.functional import *  # noqa: F403

__all__: list[str] = []
__all__ += functional.__all__
