"""What generated modules call: programs with their arguments, and memory in a given layout."""

from __future__ import annotations

from typing import Any

import torch

from strideweave.spyre.specs import Program
from strideweave.spyre.tensor_layout import SpyreTensorLayout


class SpyreKernel:
    """A program of the generated module; prepared when it first runs."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def run(self, *tensors: torch.Tensor) -> None:
        """Run the program on these tensors."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<SpyreKernel {self.program.name}: {len(self.program.specs)} specs>"


def empty_tiled(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, layout: SpyreTensorLayout) -> Any:
    """A tensor of unspecified values whose device memory has this layout."""
    return torch.empty_strided(size, stride, dtype=dtype, device="spyre")
