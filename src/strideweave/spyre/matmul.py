"""Matrix products: both operands brought into rows and columns, multiplied at once, and put in their place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import sympy
import torch

from strideweave.spyre.prepared import Box, PreparedOp
from strideweave.spyre.specs import Ref

_WIDE: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class Matmul:
    """`C[b, m, n] = sum over k of A[b, m, k] B[b, k, n]`, any of the four made of several symbols or of none."""

    def __init__(self, prepared: PreparedOp, left: int, right: int) -> None:
        self._prepared = prepared
        a, b = (prepared.arguments[k].address.free_symbols for k in (left, right))
        gone = set(prepared.spec.op_info["reduction_symbols"])
        symbols = prepared.symbols
        self._batch = [s for s in symbols if s not in gone and s in a and s in b]
        self._rows = [s for s in symbols if s not in gone and s not in b]
        self._columns = [s for s in symbols if s not in gone and s in b and s not in a]
        self._inner = [s for s in symbols if s in gone]
        self._left, self._right = left, right
        dtype = prepared.arguments[left].dtype
        self._dtype = _WIDE.get(dtype, dtype)

    def run(self, views: Sequence[torch.Tensor], begins: Sequence[int]) -> None:
        """Multiply, and store."""
        a = self._gathered(self._left, [self._batch, self._rows, self._inner], views, begins)
        b = self._gathered(self._right, [self._batch, self._inner, self._columns], views, begins)
        order = [*self._batch, *self._rows, *self._columns]
        product = torch.bmm(a, b).reshape([self._prepared.ranges[s] for s in order])
        for box in self._different(order):
            window, part = self._both(box, len(views) - 1, order, product, views, begins)
            window.copy_(part)

    def _gathered(
        self,
        number: int,
        groups: Sequence[Sequence[sympy.Symbol]],
        views: Sequence[torch.Tensor],
        begins: Sequence[int],
    ) -> torch.Tensor:
        """An operand as a contiguous tensor with one dim per group of symbols."""
        order = [s for group in groups for s in group]
        ranges = self._prepared.ranges
        whole = torch.empty([ranges[s] for s in order], dtype=self._dtype)
        for box in self._different(order):
            window, part = self._both(box, number, order, whole, views, begins)
            part.copy_(window)
        return whole.reshape([math.prod(ranges[s] for s in group) for group in groups])

    def _different(self, order: Sequence[sympy.Symbol]) -> list[Box]:
        """One box for each place along the symbols of `order`."""
        boxes: dict[tuple[int, ...], Box] = {}
        for box in self._prepared.boxes:
            starts = zip(self._prepared.symbols, box.pieces, strict=True)
            boxes.setdefault(tuple(piece.start for symbol, piece in starts if symbol in order), box)
        return list(boxes.values())

    def _both(
        self,
        box: Box,
        number: int,
        order: Sequence[sympy.Symbol],
        whole: torch.Tensor,
        views: Sequence[torch.Tensor],
        begins: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A box of an argument, and the same elements of a tensor with one dim per symbol; a dim for every digit."""
        pieces = dict(zip(self._prepared.symbols, box.pieces, strict=True))
        offset = self._prepared.arguments[number].constant + sum(piece.offsets[number] for piece in box.pieces)
        place = 0
        sizes: list[int] = []
        strides: list[int] = []
        steps: list[int] = []
        for dim, symbol in enumerate(order):
            piece = pieces[symbol]
            place += piece.start * whole.stride(dim)
            for digit in piece.digits:
                sizes.append(digit.extent)
                strides.append(digit.strides[number])
                steps.append(digit.step * whole.stride(dim))
        back = [dim for dim, stride in enumerate(strides) if stride < 0]
        low = begins[number] + offset + sum((sizes[dim] - 1) * strides[dim] for dim in back)
        window = torch.as_strided(views[number], sizes, [abs(stride) for stride in strides], low)
        return window.flip(back) if back else window, whole.as_strided(sizes, steps, place)


def matmul_of(prepared: PreparedOp) -> Matmul | None:
    """The matrix product that an operation is; None when it is none, or its operands are no windows."""
    spec = prepared.spec
    if spec.op != "batchmatmul" or any(not a.is_window for a in prepared.arguments):
        return None
    steps = list(spec.op_info["body"])

    def source(ref: object) -> int | None:
        while isinstance(ref, Ref):
            step = steps[ref.step]
            if step[0] == "load" and len(step) == 2:
                return int(step[1])
            if step[0] != "to_dtype":
                return None
            ref = step[1]
        return None

    products = [s for s in steps if s[0] == "mul"]
    if len(products) != 1:
        return None
    left, right = source(products[0][1]), source(products[0][2])
    if left is None or right is None or left == right:
        return None
    if prepared.arguments[left].dtype != prepared.arguments[right].dtype:
        return None
    a = prepared.arguments[left].address.free_symbols
    b = prepared.arguments[right].address.free_symbols
    inner = set(spec.op_info["reduction_symbols"])
    if not inner <= (a & b) or prepared.arguments[left].dtype == torch.bool:
        return None
    return Matmul(prepared, left, right)
