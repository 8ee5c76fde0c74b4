"""Reverse-mode gradients: the graph, `backward`, `grad`, and the modes in which nothing is recorded."""

from strideweave.autograd.backward import backward, backwards_traversal
from strideweave.autograd.functional import grad
from strideweave.tensor import ports
from strideweave.tensor.grad_mode import is_grad_enabled, no_grad, set_grad_enabled

ports.bind({"backward": backward, "backwards_traversal": backwards_traversal})

__all__ = ["backward", "backwards_traversal", "grad", "is_grad_enabled", "no_grad", "set_grad_enabled"]
