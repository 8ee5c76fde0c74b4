"""What generated modules call: programs with their arguments, and memory in a given layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensor

from strideweave.spyre.executor import Prepared, prepare
from strideweave.spyre.kernels import untraced
from strideweave.spyre.specs import Program
from strideweave.spyre.storage import StoredAs, is_dense, new_storage, record_of, tensor_of
from strideweave.spyre.tensor_layout import SpyreTensorLayout


@dataclass(frozen=True, slots=True)
class Argument:
    """How a program was compiled to find one of its tensors."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    layout: SpyreTensorLayout
    is_written: bool


class SpyreKernel:
    """A program of a generated module, prepared when it first runs.

    A tensor that lies in device memory otherwise than the program was compiled for (a view at an offset, a slice, what
    another program made in another layout) is brought into that layout first, and back when it was written.
    """

    def __init__(self, program: Program, arguments: Sequence[Argument]) -> None:
        self.program = program
        self.arguments = tuple(arguments)
        self._prepared: Prepared | None = None

    def run(self, *tensors: torch.Tensor) -> None:
        """Run the program on these tensors, in the order of its arguments; on fake ones nothing is to be done."""
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return
        prepared = self._prepared
        if prepared is None:
            prepared = self._prepared = prepare(self.program)
        addresses = []
        moved: list[tuple[torch.Tensor, torch.Tensor]] = []
        kept = []
        for tensor, argument in zip(tensors, self.arguments, strict=True):
            if tensor.device.type == "spyre":
                record = record_of(tensor)
                if record.stored.layout == argument.layout and not tensor.storage_offset():
                    addresses.append(record.address)
                    continue
            other = empty_tiled(argument.size, argument.stride, argument.dtype, argument.layout)
            other.copy_(tensor.as_strided(argument.size, argument.stride) if tensor.dim() else tensor)
            kept.append(other)
            addresses.append(record_of(other).address)
            if argument.is_written:
                moved.append((tensor, other))
        prepared.run(addresses)
        for tensor, other in moved:
            tensor.as_strided(argument_size(other), other.stride()).copy_(other)

    def __repr__(self) -> str:
        return f"<SpyreKernel {self.program.name}: {len(self.program.specs)} specs, {len(self.arguments)} arguments>"


def argument_size(tensor: torch.Tensor) -> tuple[int, ...]:
    """The size of a tensor as plain ints."""
    return tuple(tensor.size())


def empty_tiled(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, layout: SpyreTensorLayout
) -> torch.Tensor:
    """A tensor of unspecified values whose device memory has this layout; a fake one among fake ones."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return torch.empty_strided(size, stride, dtype=dtype, device="spyre")
    return tensor_of(new_storage(_stored(size, stride, dtype, layout)), 0, size, stride, dtype)


_known: dict[tuple[Any, ...], StoredAs] = {}


def _stored(size: Any, stride: Any, dtype: torch.dtype, layout: SpyreTensorLayout) -> StoredAs:
    key = (size, stride, dtype, layout)
    found = _known.get(key)
    if found is None:
        if not is_dense(size, stride):  # kept as one dim of all host offsets
            extent = 0 if 0 in size else 1 + sum((n - 1) * d for n, d in zip(size, stride, strict=True))
            found = _known[key] = StoredAs((extent,), (1,), dtype, layout)
        else:
            found = _known[key] = StoredAs(size, stride, dtype, layout)
    return found


for _method in (SpyreKernel.run, empty_tiled):
    untraced(_method)
