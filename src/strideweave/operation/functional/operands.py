"""What the public functions take where a Tensor or a number will do."""

from __future__ import annotations

from typing import TypeAlias

from strideweave.carriers.carrier import Scalar
from strideweave.tensor.tensor import Tensor

Operand: TypeAlias = Tensor | Scalar
"""A Tensor, or a Python number that takes the dtype of the Tensors beside it."""
