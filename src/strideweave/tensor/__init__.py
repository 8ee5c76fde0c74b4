"""Tensors over carriers, and their bridge to torch."""

from strideweave.tensor.tensor import Tensor, from_torch

__all__ = ["Tensor", "from_torch"]
