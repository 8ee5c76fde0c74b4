"""A body as calls of torch that write where they are told: into a block of scratch, the last one into its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import sympy
import torch

from strideweave.spyre.blocks import Block
from strideweave.spyre.expressions import evaluate
from strideweave.spyre.prepared import Box, PreparedOp
from strideweave.spyre.specs import Ref
from strideweave.spyre.steps import INTO, INTO_FLOATS, STEPS, dtype_of


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Elements of an argument: strides, and an offset from where it begins."""

    number: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def expand(self, sizes: tuple[int, ...]) -> Place:
        """The same, repeated along dims with extent 1."""
        strides = tuple(0 if own == 1 else stride for own, stride in zip(self.sizes, self.strides, strict=True))
        return Place(self.number, sizes, strides, self.offset)


Call = tuple[Callable[..., Any], tuple[Any, ...], "torch.Tensor | Place"]
"""A function, its operands (places, tensors, numbers), and what takes its result by `out=`."""

_FIXED_ELEMS: Final = 2**16
"""Values that are the same in every run are kept up to this size."""
_SAME: Final = ("copy", "identity")


def put(value: Any, *, out: torch.Tensor) -> None:
    """The value, converted and repeated as `out` needs it."""
    out.copy_(value)


def _put_result(function: Callable[..., Any], *given: Any, out: torch.Tensor) -> None:
    out.copy_(function(*given))


def _put_index(expression: sympy.Expr, values: Callable[[], dict[sympy.Symbol, Any]], *, out: torch.Tensor) -> None:
    out.copy_(torch.as_tensor(evaluate(expression, values())))


def owners_of(prepared: PreparedOp, box: Box) -> list[sympy.Symbol]:
    """The symbol that every dim of a box is a digit of."""
    return [symbol for symbol, piece in zip(prepared.symbols, box.pieces, strict=True) for _ in piece.digits]


def index_values(prepared: PreparedOp, box: Box, block: Block) -> dict[sympy.Symbol, Any]:
    """The values of all symbols over a block, as tensors that broadcast over its dims."""
    found: dict[sympy.Symbol, Any] = {}
    rank, dim = len(box.sizes), 0
    for symbol, piece in zip(prepared.symbols, box.pieces, strict=True):
        value = torch.tensor(piece.start, dtype=torch.int64).reshape([1] * rank)
        for digit in piece.digits:
            start, size = block[0][dim], block[1][dim]
            shape = [1] * rank
            shape[dim] = size
            value = value + (torch.arange(start, start + size, dtype=torch.int64) * digit.step).reshape(shape)
            dim += 1
        found[symbol] = value
    return found


class Scratch:
    """Buffers for what lies between two steps; all operations of one program share them, one after the other."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def tensor(
        self, slot: int, dtype: torch.dtype, sizes: tuple[int, ...], order: tuple[int, ...] = ()
    ) -> torch.Tensor:
        """A tensor of unspecified values in a slot; dense, its dims from the outermost on as `order` says."""
        key = (slot, dtype, sizes, order)
        found = self._seen.get(key)
        if found is not None:
            return found
        nbytes = math.prod(sizes) * dtype.itemsize
        while len(self._buffers) <= slot:
            self._buffers.append(torch.empty(0, dtype=torch.uint8))
        if self._buffers[slot].numel() < nbytes:
            self._buffers[slot] = torch.empty(-(-nbytes // 64) * 64, dtype=torch.uint8)
            self._seen = {k: t for k, t in self._seen.items() if k[0] != slot}
        if len(self._seen) > 512:
            self._seen.clear()
        found = self._buffers[slot][:nbytes].view(dtype)
        if order:
            found = found.view([sizes[d] for d in order]).permute([order.index(d) for d in range(len(order))])
        else:
            found = found.view(sizes)
        self._seen[key] = found
        return found


@dataclass(frozen=True, eq=False)
class _Node:
    """A value of the body: what is loaded, a constant, an index, or a call."""

    load: int | None
    constant: Any
    index: sympy.Expr | None
    function: Callable[..., Any] | None
    writes: bool
    """Whether `function` takes `out=`."""
    operands: tuple[Any, ...]
    """Numbers of nodes as `Ref`, or plain values."""
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class _Planned:
    """What is known about a node over one box."""

    node: _Node
    spread: tuple[bool, ...]
    """Along which dims it has more than one value."""
    slot: int


class Tape:
    """The steps of a body that reads windows and constants only."""

    def __init__(self, prepared: PreparedOp, steps: Sequence[tuple[Any, ...]], last_dtype: torch.dtype | None) -> None:
        self._nodes: list[_Node] = []
        self._prepared = prepared
        self._probes: list[Any] = []
        place: list[int] = []
        for name, *operands in steps:
            place.append(self._add(name, tuple(Ref(place[o.step]) if isinstance(o, Ref) else o for o in operands)))
        last = place[-1]
        if last_dtype is not None and self._nodes[last].dtype != last_dtype:
            last = self._add("to_dtype", (Ref(last), str(last_dtype).removeprefix("torch.")))
        self._keep_what_is_used(last)
        self.dtype = self._nodes[-1].dtype
        """The dtype of the value."""
        self.calls = sum(n.function is not None for n in self._nodes)
        """How many functions there are to call."""
        self.loads = [n.load for n in self._nodes if n.load is not None]
        """The arguments that are read."""

    # -- made once ---------------------------------------------------------------------------------------------------

    def _add(self, name: str, operands: tuple[Any, ...]) -> int:
        if name == "load":
            dtype = self._prepared.arguments[operands[0]].dtype
            self._probes.append(torch.ones(1, dtype=dtype))
            self._nodes.append(_Node(operands[0], None, None, None, False, (), dtype))
            return len(self._nodes) - 1
        if name == "constant":
            return self._append_constant(operands[0])
        if name == "index":
            dtype = dtype_of(operands[1])
            self._probes.append(torch.ones(1, dtype=dtype))
            self._nodes.append(_Node(None, None, operands[0], put, True, (), dtype))
            return len(self._nodes) - 1
        refs = [o.step for o in operands if isinstance(o, Ref)]
        if name in _SAME or (name == "to_dtype" and self._nodes[refs[0]].dtype == dtype_of(operands[1])):
            return refs[0]
        if name == "masked":
            name, operands = "where", (operands[0], operands[1], self._other(operands[1], operands[2]))
            refs = [o.step for o in operands if isinstance(o, Ref)]
        probe = STEPS[name](*(self._probes[o.step] if isinstance(o, Ref) else o for o in operands))
        if all(self._nodes[r].load is None and self._nodes[r].function is None for r in refs):
            return self._append_constant(torch.as_tensor(probe))
        dtypes = [self._nodes[r].dtype for r in refs]
        function, writes, given = STEPS[name], False, operands
        if name == "to_dtype":
            function, writes, given = put, True, operands[:1]
        elif name in INTO and len(refs) == len(operands):
            if name not in INTO_FLOATS or all(d.is_floating_point for d in dtypes):
                function, writes = INTO[name], True
            if name == "where" and (dtypes[0] != torch.bool or dtypes[1] != dtypes[2]):
                function, writes = STEPS[name], False
        self._probes.append(probe)
        self._nodes.append(_Node(None, None, None, function, writes, given, probe.dtype))
        return len(self._nodes) - 1

    def _append_constant(self, value: torch.Tensor) -> int:
        value = value.reshape(()) if value.numel() == 1 else value
        self._probes.append(value)
        self._nodes.append(_Node(None, value, None, None, False, (), value.dtype))
        return len(self._nodes) - 1

    def _other(self, like: Ref, value: Any) -> Ref:
        """What a masked value is elsewhere, in that value's dtype."""
        return Ref(self._append_constant(torch.as_tensor(value, dtype=self._nodes[like.step].dtype)))

    def _keep_what_is_used(self, last: int) -> None:
        used = {last}
        for k in range(last, -1, -1):
            if k in used:
                used |= {o.step for o in self._nodes[k].operands if isinstance(o, Ref)}
        order = sorted(used)
        number = {old: new for new, old in enumerate(order)}

        def renamed(node: _Node) -> _Node:
            operands = tuple(Ref(number[o.step]) if isinstance(o, Ref) else o for o in node.operands)
            return replace(node, operands=operands)

        self._nodes = [renamed(self._nodes[k]) for k in order]
        self._probes = []

    def plan(self, box: Box, first_slot: int = 0) -> list[_Planned]:
        """Slots for what lies between the steps; one is free again after the last use of its value."""
        last_use = {o.step: k for k, node in enumerate(self._nodes) for o in node.operands if isinstance(o, Ref)}
        free: list[int] = []
        made: list[_Planned] = []
        used = first_slot
        rank = len(box.sizes)
        owners = owners_of(self._prepared, box)
        for k, node in enumerate(self._nodes):
            spread = [False] * rank
            if node.load is not None:
                window = box.windows[node.load]
                assert window is not None
                spread = [n > 1 for n in window.sizes]
            if node.index is not None:
                spread = [s in node.index.free_symbols for s in owners]
            refs = [o.step for o in node.operands if isinstance(o, Ref)]
            for r in refs:
                spread = [a or b for a, b in zip(spread, made[r].spread, strict=True)]
            dying = [
                made[r].slot for r in dict.fromkeys(refs) if last_use[r] == k and made[r].slot >= 0
            ]  # fmt: skip
            slot = -1
            if node.function is not None and node.writes:
                same = [
                    made[r].slot
                    for r in refs
                    if made[r].slot in dying and made[r].spread == tuple(spread) and made[r].node.dtype == node.dtype
                ]
                if same:
                    slot = same[0]
                    dying.remove(slot)
                elif free:
                    slot = free.pop()
                else:
                    slot, used = used, used + 1
            made.append(_Planned(node, tuple(spread), slot))
            free += dying
        return made

    # -- for every block ---------------------------------------------------------------------------------------------

    def run(
        self,
        planned: Sequence[_Planned],
        windows: Callable[[int], Place],
        box: Box,
        block: Block,
        order: tuple[int, ...],
        scratch: Scratch,
        out: torch.Tensor | Place | None,
        dtype: torch.dtype | None = None,
    ) -> Iterator[Call]:
        """The calls of one block, the last into `out`, which has `dtype`; where it is None, `value` has the result.

        `order` is that of the dims in memory.
        """
        values: list[Any] = []
        end = len(planned) - 1
        sizes = block[1]
        fixed: set[int] = set()
        for k, p in enumerate(planned):
            node = p.node
            if node.load is not None:
                values.append(windows(node.load))
                continue
            if node.function is None:
                values.append(node.constant)
                fixed.add(k)
                continue
            given = tuple(values[o.step] if isinstance(o, Ref) else o for o in node.operands)
            own = tuple(n if wide else 1 for n, wide in zip(sizes, p.spread, strict=True))
            function = node.function
            if node.index is not None:
                function = partial(_put_index, node.index, partial(index_values, self._prepared, box, block))
            is_fixed = all(o.step in fixed for o in node.operands if isinstance(o, Ref))
            if is_fixed and math.prod(own) <= _FIXED_ELEMS:
                # The same in every run: computed here and now.
                value = torch.empty(own, dtype=node.dtype)
                (function if node.writes else partial(_put_result, function))(*given, out=value)
                values.append(value)
                fixed.add(k)
                continue
            if function is torch.where and node.operands[0].step in fixed and bool(given[0].all()):
                function, given = put, given[1:2]  # a mask that holds everywhere, as it does inside a padded tensor
            is_place = out is not None and k == end and own == sizes and dtype == node.dtype
            if node.writes:
                target = out if is_place and out is not None else scratch.tensor(p.slot, node.dtype, own, order)
                yield function, given, target
            else:
                target = out if is_place and out is not None else torch.empty(own, dtype=node.dtype)
                yield partial(_put_result, function), given, target
            values.append(target)
        self.value = values[-1]
        if out is not None and values[-1] is not out:
            yield put, (values[-1],), out
