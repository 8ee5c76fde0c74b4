"""Tensors over carriers, the views of them, and their bridges to torch, numpy and DLPack."""

from strideweave.tensor.bridges import from_dlpack, from_numpy, from_torch
from strideweave.tensor.tensor import Tensor

__all__ = ["Tensor", "from_dlpack", "from_numpy", "from_torch"]
