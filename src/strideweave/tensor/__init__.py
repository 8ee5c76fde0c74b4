"""Tensors over carriers, their movement, and their bridge to torch."""

from strideweave.tensor.movement import move, move_async
from strideweave.tensor.tensor import Tensor, from_torch

__all__ = ["Tensor", "from_torch", "move", "move_async"]
