"""Every operation as a function, with gradients, moves and profiles, under one roof."""

from strideweave.autograd import grad
from strideweave.carriers.move import move, move_async
from strideweave.operation import functional
from strideweave.operation.functional import *  # noqa: F403
from strideweave.profiler import profile
from strideweave.tensor.grad_mode import is_grad_enabled, no_grad, set_grad_enabled

__all__ = ["grad", "is_grad_enabled", "move", "move_async", "no_grad", "profile", "set_grad_enabled"]
__all__ += functional.__all__
