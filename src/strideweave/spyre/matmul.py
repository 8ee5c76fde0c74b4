"""Matrix products: both operands brought into rows and columns, multiplied at once, and put in their place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import sympy
import torch

from strideweave.spyre.blockwise import Blockwise
from strideweave.spyre.prepared import Box, PreparedOp
from strideweave.spyre.specs import Ref
from strideweave.spyre.tapes import Call, Place, Scratch, put

_WIDE: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_KEPT_NBYTES: Final = 32 * 2**20
"""Operands and product stay allocated between runs up to this size."""


class Matmul(Blockwise):
    """`C[b, m, n] = sum over k of A[b, m, k] B[b, k, n]`, any of the four made of several symbols or of none."""

    def __init__(
        self, prepared: PreparedOp, left: int, right: int, views: Sequence[torch.Tensor], scratch: Scratch
    ) -> None:
        super().__init__(prepared, (left, right), views, scratch)
        a, b = (prepared.arguments[k].address.free_symbols for k in (left, right))
        gone = set(prepared.spec.op_info["reduction_symbols"])
        symbols, ranges = prepared.symbols, prepared.ranges
        self._batch = [s for s in symbols if s not in gone and s in a and s in b]
        self._rows = [s for s in symbols if s not in gone and s not in b]
        self._columns = [s for s in symbols if s not in gone and s in b and s not in a]
        self._inner = [s for s in symbols if s in gone]
        self._left, self._right = left, right
        dtype = prepared.arguments[left].dtype
        self._dtype = _WIDE.get(dtype, dtype)
        sizes = [math.prod(ranges[s] for s in group) for group in (self._batch, self._rows, self._columns, self._inner)]
        self._sizes = sizes
        elems = sizes[0] * (sizes[1] * sizes[3] + sizes[3] * sizes[2] + sizes[1] * sizes[2])
        self._is_kept = elems * self._dtype.itemsize <= _KEPT_NBYTES

    def run(self, begins: Sequence[int]) -> None:
        """Multiply, and store."""
        if self._is_kept:
            super().run(begins)
        else:
            self._run_once(self._made(False), begins)

    def _meet(self, begins: Sequence[int]) -> bool:
        return False  # everything is read before anything is stored

    def _made(self, is_apart: bool) -> Iterator[Call]:
        batch, rows, columns, inner = self._sizes
        a, b, product = (
            self._new(slot, sizes)
            for slot, sizes in enumerate([(batch, rows, inner), (batch, inner, columns), (batch, rows, columns)])
        )
        for number, whole, groups in (
            (self._left, a, (self._batch, self._rows, self._inner)),
            (self._right, b, (self._batch, self._inner, self._columns)),
        ):
            order = [s for group in groups for s in group]
            for box in self._different(order):
                window, part = self._both(box, number, order, whole)
                yield (put, (window,), part)
        yield torch.bmm, (a, b), product
        order = [*self._batch, *self._rows, *self._columns]
        for box in self._different(order):
            window, part = self._both(box, len(self._views) - 1, order, product)
            yield put, (part,), window

    def _new(self, slot: int, sizes: tuple[int, ...]) -> torch.Tensor:
        if self._is_kept:
            return self._scratch.tensor(slot, self._dtype, sizes)
        return torch.empty(sizes, dtype=self._dtype)

    def _different(self, order: Sequence[sympy.Symbol]) -> list[Box]:
        """One box for each place along the symbols of `order`."""
        boxes: dict[tuple[int, ...], Box] = {}
        for box in self._prepared.boxes:
            starts = zip(self._prepared.symbols, box.pieces, strict=True)
            boxes.setdefault(tuple(piece.start for symbol, piece in starts if symbol in order), box)
        return list(boxes.values())

    def _both(
        self, box: Box, number: int, order: Sequence[sympy.Symbol], whole: torch.Tensor
    ) -> tuple[Place, torch.Tensor]:
        """A box of an argument, and the same elements of a dense tensor over `order`; a dim for every digit."""
        pieces = dict(zip(self._prepared.symbols, box.pieces, strict=True))
        offset = self._prepared.arguments[number].constant + sum(piece.offsets[number] for piece in box.pieces)
        dense = [math.prod(self._prepared.ranges[s] for s in order[k + 1 :]) for k in range(len(order))]
        place = whole.storage_offset()
        sizes: list[int] = []
        strides: list[int] = []
        steps: list[int] = []
        for symbol, stride in zip(order, dense, strict=True):
            piece = pieces[symbol]
            place += piece.start * stride
            for digit in piece.digits:
                sizes.append(digit.extent)
                strides.append(digit.strides[number])
                steps.append(digit.step * stride)
        return Place(number, tuple(sizes), tuple(strides), offset), whole.as_strided(sizes, steps, place)


def matmul_of(prepared: PreparedOp, views: Sequence[torch.Tensor], scratch: Scratch) -> Matmul | None:
    """The matrix product that an operation is; None when it is none, or its operands are no windows."""
    spec = prepared.spec
    if spec.op != "batchmatmul" or any(not a.is_window for a in prepared.arguments):
        return None
    if any(w is not None and w.flips for box in prepared.boxes for w in box.windows):
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
    return Matmul(prepared, left, right, views, scratch)
