"""Operations on windows, block after block: what lies between the steps stays in the processor's cache.

An operation becomes a list of calls of torch that write into device memory. While its arguments stay where they are the
list is kept, so that a small operation costs little more than these calls.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from strideweave.spyre.blocks import Block, blocks_of, cut_in, parts_of
from strideweave.spyre.prepared import Box, PreparedOp, Window
from strideweave.spyre.reductions import Reducer
from strideweave.spyre.tapes import Call, Place, Scratch, Tape, put

BLOCK_ELEMS: Final = 2**16
"""A block of several steps has about so many elements: a few of them fit in a core's own cache."""
FOLDED_ELEMS: Final = 2**18
"""A block of values that are computed and combined."""
SUMMED_ELEMS: Final = 2**20
"""A block of values that are combined as they are."""
KEPT_CALLS: Final = 64
_KEPT_PLACES: Final = 64
_DIVISIONS: Final = ("floordiv", "truncdiv", "remainder", "fmod", "mod")
_FOLDS: Final[dict[str, tuple[Any, Any]]] = {
    "sum": (torch.sum, torch.add),
    "max": (torch.amax, torch.maximum),
    "min": (torch.amin, torch.minimum),
}


def blockwise_of(
    prepared: PreparedOp, steps: Sequence[tuple[Any, ...]], views: Sequence[torch.Tensor], scratch: Scratch
) -> Blockwise | None:
    """An operation made ready to run block after block; None for one that gathers, scatters or computes indices."""
    info = prepared.spec.op_info
    if info.get("store", "set") != "set" or info.get("indirect") or not all(a.is_window for a in prepared.arguments):
        return None
    masked = [step[1] for step in steps if step[0] == "load" and len(step) > 2]
    if masked and any(step[0] in _DIVISIONS for step in steps):
        return None  # what a masked load gives elsewhere may be a 0
    moving = {s for level in prepared.tiled for s in level}
    for step in steps:
        if step[0] == "index" and (step[1].free_symbols & moving or not step[1].free_symbols <= set(prepared.symbols)):
            return None
    if any(w is None or w.flips for box in prepared.boxes for w in box.windows):
        return None
    if not prepared.spec.is_reduction:
        if any(box.windows[-1].sizes != box.sizes for box in prepared.boxes if box.windows[-1] is not None):
            return None
        return _Pointwise(prepared, Tape(prepared, steps, None), masked, views, scratch)
    if info["reduction"] not in _FOLDS:
        return None
    wanted = getattr(torch, info["accumulates_in"]) if info["reduction"] == "sum" else None
    tape = Tape(prepared, steps, wanted)
    if not tape.loads or tape.dtype == torch.bool or tape.dtype.is_complex:
        return None
    return _Reduction(prepared, tape, masked, views, scratch)


class Blockwise:
    """An operation as calls on places; `run` makes the tensors of the places, or takes those that it has."""

    def __init__(
        self, prepared: PreparedOp, loads: Sequence[int], views: Sequence[torch.Tensor], scratch: Scratch
    ) -> None:
        self._prepared, self._views, self._scratch = prepared, views, scratch
        self._loads = tuple(dict.fromkeys(loads))
        self._masked: tuple[int, ...] = ()
        self._reach: dict[int, tuple[int, int]] = {}
        self._calls: dict[bool, list[Call]] = {}
        self._known: dict[tuple[int, ...], list[Call]] = {}

    def can_run(self, begins: Sequence[int]) -> bool:
        """Whether masked windows, which may be wider than their buffers, lie within device memory."""
        for k in self._masked:
            low, high = self._whole(k, begins)
            if low < 0 or high > self._views[k].nbytes:
                return False
        return True

    def run(self, begins: Sequence[int]) -> None:
        """Run it on arguments that begin at these elements."""
        key = tuple(begins)
        known = self._known.get(key)
        if known is None:
            is_apart = self._meet(begins)
            calls = self._calls.get(is_apart)
            if calls is None:
                calls = self._calls[is_apart] = list(self._made(is_apart))
            if len(calls) > KEPT_CALLS:
                self._run_once(calls, begins)
                return
            if len(self._known) >= _KEPT_PLACES:
                self._known.clear()
            known = self._known[key] = [
                (function, tuple(self._tensor(g, begins) for g in given), self._tensor(out, begins))
                for function, given, out in calls
            ]
        for function, given, out in known:
            function(*given, out=out)

    def _run_once(self, calls: Iterable[Call], begins: Sequence[int]) -> None:
        """Many calls: their tensors are made just before, and not kept."""
        views, window = self._views, torch.as_strided
        for function, given, out in calls:
            operands = [
                window(views[g.number], g.sizes, g.strides, begins[g.number] + g.offset) if type(g) is Place else g
                for g in given
            ]
            if type(out) is Place:
                out = window(views[out.number], out.sizes, out.strides, begins[out.number] + out.offset)
            function(*operands, out=out)

    def _tensor(self, value: Any, begins: Sequence[int]) -> Any:
        if type(value) is not Place:
            return value
        offset = begins[value.number] + value.offset
        return torch.as_strided(self._views[value.number], value.sizes, value.strides, offset)

    def _made(self, is_apart: bool) -> Iterator[Call]:
        """The calls; all values are computed before the first is stored when `is_apart`."""
        raise NotImplementedError

    @staticmethod
    def _place(box: Box, block: Block, number: int) -> Place:
        """A block of an argument; its extent is 1 along dims in which it repeats."""
        window = box.windows[number]
        assert window is not None
        starts, sizes = block
        own = tuple(size if extent > 1 else 1 for size, extent in zip(sizes, window.sizes, strict=True))
        offset = sum(start * stride for start, stride in zip(starts, window.strides, strict=True))
        return Place(number, own, window.strides, window.offset + offset)

    def _meet(self, begins: Sequence[int]) -> bool:
        """Whether what is written is read at other points too, so that everything is to be read first."""
        last = len(begins) - 1
        if not any(self._overlap(self._whole(k, begins), self._whole(last, begins)) for k in self._loads):
            return False
        for box in self._prepared.boxes:
            written = box.windows[last]
            assert written is not None
            mine = self._bytes(last, written, begins)
            for number in self._loads:
                for other in self._prepared.boxes:
                    read = other.windows[number]
                    assert read is not None
                    theirs = self._bytes(number, read, begins)
                    if not self._overlap(theirs, mine):
                        continue
                    shape = (written.sizes, written.strides, self._views[last].dtype.itemsize)
                    if theirs != mine or shape != (read.sizes, read.strides, self._views[number].dtype.itemsize):
                        return True
        return False

    @staticmethod
    def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
        return a[0] < b[1] and b[0] < a[1]

    def _whole(self, number: int, begins: Sequence[int]) -> tuple[int, int]:
        """All bytes between the first and the last that an argument's windows have."""
        found = self._reach.get(number)
        if found is None:
            windows = [w for w in (box.windows[number] for box in self._prepared.boxes) if w is not None]
            found = self._reach[number] = (min(w.low for w in windows), max(w.high for w in windows) + 1)
        itemsize = self._views[number].dtype.itemsize
        return (begins[number] + found[0]) * itemsize, (begins[number] + found[1]) * itemsize

    def _bytes(self, number: int, window: Window, begins: Sequence[int]) -> tuple[int, int]:
        itemsize = self._views[number].dtype.itemsize
        return (begins[number] + window.low) * itemsize, (begins[number] + window.high + 1) * itemsize


class _Pointwise(Blockwise):
    """A value for every point."""

    def __init__(
        self,
        prepared: PreparedOp,
        tape: Tape,
        masked: Sequence[int],
        views: Sequence[torch.Tensor],
        scratch: Scratch,
    ) -> None:
        super().__init__(prepared, tape.loads, views, scratch)
        self._tape, self._masked = tape, tuple(dict.fromkeys(masked))
        self._plans = []
        limit = BLOCK_ELEMS if self._tape.calls > 1 else 2**62
        for box in self._prepared.boxes:
            out = box.windows[-1]
            assert out is not None
            order = sorted(range(len(box.sizes)), key=out.strides.__getitem__, reverse=True)
            self._plans.append((box, self._tape.plan(box), tuple(order), blocks_of(box.sizes, order, limit)))

    def _made(self, is_apart: bool) -> Iterator[Call]:
        number = len(self._views) - 1
        dtype = self._views[number].dtype
        puts: list[Call] = []
        for box, plan, order, blocks in self._plans:
            for block in [((0,) * len(box.sizes), box.sizes)] if is_apart else blocks:
                place = self._place(box, block, number)
                out: Place | torch.Tensor = place
                if is_apart:
                    out = torch.empty(block[1], dtype=dtype)
                    puts.append((put, (out,), place))
                yield from self._tape.run(
                    plan, partial(self._place, box, block), box, block, order, self._scratch, out, dtype
                )
        yield from puts


class _Reduction(Blockwise):
    """Values combined over some dims: within a block by a reduction, over blocks one after the other.

    Where the innermost dim goes and the one outside it stays, as for sums along sticks, whole sticks are combined
    first, and their elements at the end.
    """

    def __init__(
        self,
        prepared: PreparedOp,
        tape: Tape,
        masked: Sequence[int],
        views: Sequence[torch.Tensor],
        scratch: Scratch,
    ) -> None:
        super().__init__(prepared, tape.loads, views, scratch)
        self._tape, self._masked = tape, tuple(dict.fromkeys(masked))
        info = self._prepared.spec.op_info
        fold, self._combine = _FOLDS[info["reduction"]]
        self._fold = partial(fold, dtype=self._tape.dtype) if fold is torch.sum else fold
        reducer = Reducer(self._prepared)
        self._groups = [self._group(boxes, reducer) for boxes in reducer.groups]

    def _group(self, boxes: Sequence[Box], reducer: Reducer) -> Any:
        planned = []
        kept_blocks: list[Block] = []
        for box in boxes:
            kept = reducer.kept(box)
            gone = [d for d in range(len(box.sizes)) if d not in kept]
            far = [stride or 2**62 for stride in self._widest(box)]
            order = sorted(range(len(box.sizes)), key=far.__getitem__, reverse=True)
            late = order[-1:] if len(order) > 1 and order[-1] in gone and order[-2] in kept and len(gone) > 1 else []
            limit = FOLDED_ELEMS if self._tape.calls else SUMMED_ELEMS if late else 2**62
            parts = parts_of(box.sizes, order, limit)
            if not kept_blocks:
                first = [min(p, box.sizes[d]) for d, p in enumerate(parts)]
                kept_blocks = cut_in(tuple(box.sizes[d] for d in kept), tuple(first[d] for d in kept))
                kept_blocks = kept_blocks or [((), ())]
            for_gone = cut_in(tuple(box.sizes[d] for d in gone), tuple(parts[d] for d in gone)) or [((), ())]
            planned.append((box, self._tape.plan(box, 2), kept, gone, late, for_gone, tuple(order)))
        return planned, kept_blocks

    def _widest(self, box: Box) -> tuple[int, ...]:
        """The strides of the operand that has most elements."""
        windows = [w for w in (box.windows[k] for k in self._loads) if w is not None]
        return max(windows, key=lambda w: math.prod(w.sizes)).strides

    def _made(self, is_apart: bool) -> Iterator[Call]:
        number = len(self._views) - 1
        puts: list[Call] = []
        for planned, kept_blocks in self._groups:
            for kept_block in kept_blocks:
                total: torch.Tensor | None = None
                for box, plan, kept, gone, late, gone_blocks, order in planned:
                    part = yield from self._box(box, plan, kept, gone, late, kept_block, gone_blocks, order)
                    part = part.squeeze(gone)  # boxes differ in how many dims go
                    if total is not None:
                        yield self._combine, (total, part), total
                    elif len(planned) > 1 or is_apart:
                        total = torch.empty_like(part)
                        yield put, (part,), total
                    else:
                        total = part
                assert total is not None
                box, _, kept, gone, *_ = planned[0]
                block = _merged(len(box.sizes), kept, kept_block, gone, ((0,) * len(gone), (1,) * len(gone)))
                place = self._place(box, block, number)
                sizes, strides = ([values[d] for d in kept] for values in (place.sizes, place.strides))
                last = (put, (total,), replace(place, sizes=tuple(sizes), strides=tuple(strides)))
                if is_apart:
                    puts.append(last)
                else:
                    yield last
        yield from puts

    def _box(
        self,
        box: Box,
        plan: Any,
        kept: list[int],
        gone: list[int],
        late: list[int],
        kept_block: Block,
        gone_blocks: Sequence[Block],
        order: tuple[int, ...],
    ) -> Generator[Call, None, torch.Tensor]:
        """What one box gives for one block of the result, every dim that is gone with extent 1."""
        held: torch.Tensor | None = None
        dtype = self._tape.dtype
        for gone_block in gone_blocks:
            block = _merged(len(box.sizes), kept, kept_block, gone, gone_block)
            yield from self._tape.run(plan, partial(self._place, box, block), box, block, order, self._scratch, None)
            value = self._tape.value.expand(block[1])
            now = [d for d in gone if d not in late]
            sizes = _without(block[1], now)
            if sizes != block[1]:
                folded = self._scratch.tensor(0 if held is None else 1, dtype, sizes, order)
                yield partial(self._fold, dim=now, keepdim=True), (value,), folded
                value = folded
            if held is not None:
                yield self._combine, (held, value), held
                continue
            held = self._scratch.tensor(0, dtype, sizes, order)
            if value is not held:
                yield put, (value,), held
        assert held is not None
        sizes = _without(tuple(held.shape), late)
        if sizes == tuple(held.shape):
            return held
        folded = self._scratch.tensor(1, dtype, sizes, order)
        yield partial(self._fold, dim=late, keepdim=True), (held,), folded
        return folded


def _without(sizes: tuple[int, ...], dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if d in dims else n for d, n in enumerate(sizes))


def _merged(rank: int, kept: Sequence[int], kept_block: Block, gone: Sequence[int], gone_block: Block) -> Block:
    starts, sizes = [0] * rank, [1] * rank
    for dims, (begin, extent) in ((kept, kept_block), (gone, gone_block)):
        for d, start, size in zip(dims, begin, extent, strict=True):
            starts[d], sizes[d] = start, size
    return tuple(starts), tuple(sizes)
