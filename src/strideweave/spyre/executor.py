"""What runs programs: windows of device memory, computed by torch; loops move them without making them anew."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

import sympy
import torch

from strideweave.spyre import config
from strideweave.spyre.blockwise import blockwise_of
from strideweave.spyre.counters import Counter, keep, nbytes_by_core, retire
from strideweave.spyre.expressions import evaluate
from strideweave.spyre.matmul import Matmul, matmul_of
from strideweave.spyre.memory import DeviceMemory, memory
from strideweave.spyre.prepared import Argument, Box, PreparedOp
from strideweave.spyre.reductions import Reducer
from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Ref, Spec
from strideweave.spyre.steps import EXACT_WHEN_NARROW, IN_PLACE, STEPS, constant, dtype_of
from strideweave.spyre.tapes import Scratch

_NARROW = ("float16", "bfloat16")


def prepare(program: Program) -> Prepared:
    """The program made ready to run, any number of times; its pool lives as long as that is kept."""
    return Prepared(program)


class Prepared:
    """A program with its operations made ready and its pool allocated."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._memory = memory()
        self.scratch = Scratch()
        self._pool = self._memory.allocate(program.pool_nbytes) if program.pool_nbytes else 0
        if program.pool_nbytes:
            weakref.finalize(self, self._memory.free, self._pool)
        self.counters: list[Counter] = []
        self._nodes = [_node(spec, (), self) for spec in program.specs]
        keep(id(self), self.counters)
        weakref.finalize(self, retire, id(self))
        self._lock = threading.Lock()  # one run at a time: runs share the pool

    def run(self, addresses: Sequence[int]) -> None:
        """Run it on arguments at these device addresses.

        Errors: DeviceTrap before anything is written; IndexError for a computed index outside its bound.
        """
        with self._lock, torch.no_grad():
            for node in self._nodes:
                node.run(addresses, ())


def _node(spec: Spec, loops: tuple[int, ...], owner: Prepared) -> _Loop | _Op:
    if isinstance(spec, LoopSpec):
        return _Loop(spec, loops, owner)
    return _Op(spec, loops, owner)


class _Loop:
    """A body that runs a number of times."""

    def __init__(self, spec: LoopSpec, loops: tuple[int, ...], owner: Prepared) -> None:
        self._count = int(spec.count)
        self._counter = Counter(owner.program.name, len(owner.counters), "loop", (), 0, self._count)
        owner.counters.append(self._counter)
        self._body = [_node(inner, (*loops, self._count), owner) for inner in spec.body]
        self._memory = owner._memory
        self._scratch = self._scratch_of(spec, owner._pool)

    @staticmethod
    def _scratch_of(spec: LoopSpec, pool: int) -> list[tuple[int, int]]:
        """The pool memory that belongs to one iteration of every loop around it."""
        found = {}
        for inner in spec.body:
            if isinstance(inner, OpSpec):
                for arg in inner.args:
                    if arg.per_tile_fixed and not arg.is_input and "pool" in arg.allocation:
                        nbytes = arg.device_dtype.itemsize
                        for extent in arg.device_size:
                            nbytes *= extent
                        found[pool + arg.allocation["pool"]] = nbytes
        return list(found.items())

    def run(self, addresses: Sequence[int], iteration: tuple[int, ...]) -> None:
        """Run the body as often as it is to."""
        began = perf_counter_ns()
        for k in range(self._count):
            if config.poison:
                for address, nbytes in self._scratch:
                    self._memory.poison(address, nbytes)
            for node in self._body:
                node.run(addresses, (*iteration, k))
        self._counter.runs += 1
        self._counter.time_ns += perf_counter_ns() - began


class _Op:
    """One operation."""

    def __init__(self, spec: OpSpec, loops: tuple[int, ...], owner: Prepared) -> None:
        self._memory: DeviceMemory = owner._memory
        self._pool = owner._pool
        self._spec = spec
        self._prepared = PreparedOp(spec, loops)
        windows = sum(w is not None for box in self._prepared.boxes for w in box.windows)
        moved = nbytes_by_core(self._prepared)
        self._counter = Counter(owner.program.name, len(owner.counters), spec.op, moved, windows, 0)
        owner.counters.append(self._counter)
        self._views = [self._memory.view(a.dtype) for a in self._prepared.arguments]
        self._steps = _plan(spec)
        self._direct = _direct(self._steps, self._prepared)
        self._reducer = Reducer(self._prepared) if spec.is_reduction else None
        self._matmul: Matmul | None = matmul_of(self._prepared, self._views, owner.scratch)
        self._blockwise = (
            None if self._matmul else blockwise_of(self._prepared, self._steps, self._views, owner.scratch)
        )
        self._indirect = dict(spec.op_info.get("indirect", {}))
        self._mode = spec.op_info.get("store", "set")

    def run(self, addresses: Sequence[int], iteration: tuple[int, ...]) -> None:
        """Run it once, as this iteration of the loops around it."""
        began = perf_counter_ns()
        self._run(addresses, iteration)
        counter = self._counter
        counter.runs += 1
        counter.time_ns += perf_counter_ns() - began

    def _run(self, addresses: Sequence[int], iteration: tuple[int, ...]) -> None:
        begins = [self._begin(found, addresses, iteration) for found in self._prepared.arguments]
        if self._matmul is not None:
            self._matmul.run(begins)
            return
        if self._blockwise is not None and self._blockwise.can_run(begins):
            self._blockwise.run(begins)
            return
        reducer = self._reducer
        if reducer is not None:
            for group in reducer.groups:
                total = None
                for box in group:
                    values = self._values(box, begins, iteration)
                    total = reducer.combined(total, torch.as_tensor(values[-1]), box)
                self._store(group[0], begins, iteration, reducer.finished(total, group[0]), reducer.kept(group[0]), [])
            return
        for box in self._prepared.boxes:
            if self._direct is not None:
                self._run_direct(box, begins)
            else:
                values = self._values(box, begins, iteration)
                self._store(box, begins, iteration, torch.as_tensor(values[-1]), None, values)

    # -- addresses ---------------------------------------------------------------------------------------------------

    def _begin(self, found: Argument, addresses: Sequence[int], iteration: tuple[int, ...]) -> int:
        """The element at which an argument begins in this iteration; windows begin there."""
        arg = found.arg
        byte = addresses[arg.arg_index] if arg.arg_index >= 0 else self._pool + next(iter(arg.allocation.values()))
        begin = byte // found.dtype.itemsize
        if iteration and found.is_window:
            advances = found.advances
            if advances is not None:
                for k, step in advances:
                    begin += iteration[k] * step
                return begin
            for symbol, starts in found.starts.items():
                if len(starts) > 1:
                    value = self._prepared.start(symbol, iteration, found.first_loop)
                    begin += starts[value // self._prepared.ranges[symbol]]
        return begin

    def _window(self, number: int, box: Box, begins: Sequence[int], *, is_full: bool = False) -> torch.Tensor:
        """An argument over a box; where it repeats with extent 1, or with stride 0 when it `is_full`."""
        window = box.windows[number]
        assert window is not None
        sizes = box.sizes if is_full else window.sizes
        seen = torch.as_strided(self._views[number], sizes, window.strides, begins[number] + window.offset)
        return seen.flip(window.flips) if window.flips else seen

    def _symbols(self, box: Box, iteration: tuple[int, ...], first_loop: int) -> dict[sympy.Symbol, Any]:
        """The value of every symbol over a box, as tensors that broadcast over its dims."""
        found: dict[sympy.Symbol, Any] = {}
        rank, dim = len(box.sizes), 0
        for symbol, piece in zip(self._prepared.symbols, box.pieces, strict=True):
            value = torch.tensor(piece.start + self._prepared.start(symbol, iteration, first_loop), dtype=torch.int64)
            value = value.reshape([1] * rank)
            for digit in piece.digits:
                shape = [1] * rank
                shape[dim] = digit.extent
                value = value + (torch.arange(digit.extent, dtype=torch.int64) * digit.step).reshape(shape)
                dim += 1
            found[symbol] = value
        return found

    def _places(
        self, number: int, box: Box, begins: Sequence[int], iteration: tuple[int, ...], indices: dict[Any, Any]
    ) -> torch.Tensor:
        """The element of every point of a box, for what is no window."""
        found = self._prepared.arguments[number]
        # Where it is a window, it begins at the tile already.
        first_loop = len(self._prepared.loops) if found.is_window else found.first_loop
        values = {**self._symbols(box, iteration, first_loop), **indices}
        return torch.as_tensor(evaluate(found.address, values)) + begins[number]

    # -- values ------------------------------------------------------------------------------------------------------

    def _run_direct(self, box: Box, begins: Sequence[int]) -> None:
        assert self._direct is not None
        function, operands = self._direct
        given = [self._window(o, box, begins, is_full=True) if isinstance(o, int) else o for o in operands]
        out = self._window(len(self._views) - 1, box, begins)
        if function is None:
            out.copy_(given[0])
        else:
            function(*given, out=out)

    def _values(self, box: Box, begins: Sequence[int], iteration: tuple[int, ...]) -> list[Any]:
        """What every step of the body gives over a box."""
        values: list[Any] = []
        for step in self._steps:
            values.append(self._step(step, values, box, begins, iteration))
        return values

    def _step(
        self, step: tuple[Any, ...], values: list[Any], box: Box, begins: Sequence[int], iteration: tuple[int, ...]
    ) -> Any:
        name, *operands = step
        if name == "load":
            mask = values[operands[1].step] if len(operands) > 1 else None
            return self._load(operands[0], mask, values, box, begins, iteration)
        if name == "constant":
            return operands[0]
        if name == "index":
            known = {s: values[ref.step] for s, (ref, _) in self._indirect.items() if s in operands[0].free_symbols}
            value = evaluate(operands[0], {**self._symbols(box, iteration, 0), **known})
            return torch.as_tensor(value).to(dtype_of(operands[1]))
        return STEPS[name](*(values[o.step] if isinstance(o, Ref) else o for o in operands))

    def _load(
        self, number: int, mask: Any, values: list[Any], box: Box, begins: Sequence[int], iteration: tuple[int, ...]
    ) -> torch.Tensor:
        found = self._prepared.arguments[number]
        if found.is_window and (mask is None or self._stays_inside(number, box)):
            return self._window(number, box, begins)
        indices = self._indices(found, mask, values)
        places = self._places(number, box, begins, iteration, indices)
        if mask is not None:
            places = torch.where(torch.as_tensor(mask), places, begins[number])
        return torch.take(self._views[number], places)

    def _stays_inside(self, number: int, box: Box) -> bool:
        window = box.windows[number]
        assert window is not None
        found = self._prepared.arguments[number]
        elems = found.step
        for extent in found.arg.device_size:
            elems *= extent
        # Tiles move it: then only what is inside for every one of them would do.
        return len(self._prepared.loops) == 0 and window.low >= 0 and window.high < elems

    def _indices(self, found: Argument, mask: Any, values: list[Any]) -> dict[sympy.Symbol, torch.Tensor]:
        """The computed indices that an address has, checked."""
        indices: dict[sympy.Symbol, torch.Tensor] = {}
        for symbol, (ref, extent) in self._indirect.items():
            if symbol not in found.address.free_symbols:
                continue
            value = torch.as_tensor(values[ref.step]).to(torch.int64)
            wrong = (value < 0) | (value >= int(extent))
            if mask is not None:
                wrong = wrong & torch.as_tensor(mask)
            if bool(wrong.any()):
                bad = int(torch.broadcast_to(value, wrong.shape)[wrong].reshape(-1)[0])
                raise IndexError(
                    f"cannot run {self._spec.op} on {found.arg.name}: index {bad} is out of bounds for a dim of "
                    f"{extent}. Indices are from {-int(extent)} to {int(extent) - 1}. Correct the index."
                )
            indices[symbol] = value if mask is None else value.clamp(0, max(int(extent) - 1, 0))
        return indices

    # -- storing -----------------------------------------------------------------------------------------------------

    def _store(
        self,
        box: Box,
        begins: Sequence[int],
        iteration: tuple[int, ...],
        value: torch.Tensor,
        kept: Sequence[int] | None,
        values: list[Any],
    ) -> None:
        """Put values in their place; `kept` are the dims of the box that a reduction leaves."""
        number = len(self._views) - 1
        found = self._prepared.arguments[number]
        if found.is_window and self._mode == "set":
            out = self._window(number, box, begins)
            if kept is not None:
                for dim in range(len(box.sizes) - 1, -1, -1):
                    if dim not in kept:
                        out = out.select(dim, 0)
            out.copy_(value)
            return
        places = self._places(number, box, begins, iteration, self._indices(found, None, values))
        if kept is not None:
            for dim in range(len(box.sizes) - 1, -1, -1):
                if dim not in kept:
                    places = places.select(dim, 0)
        sizes = box.sizes if kept is None else tuple(box.sizes[d] for d in kept)
        places = places.expand(sizes).reshape(-1)
        given = value.to(found.dtype).expand(sizes).reshape(-1)
        low = int(places.min()) if places.numel() else 0
        high = int(places.max()) + 1 if places.numel() else 0
        target = self._views[number][low:high]
        if self._mode == "set":
            target[places - low] = given
        else:
            target.index_put_((places - low,), given, accumulate=True)


def _plan(spec: OpSpec) -> list[tuple[Any, ...]]:
    """The steps with constants made; detours through Float32 that change nothing are left out."""
    steps = [
        ("constant", constant(step[1], step[2])) if step[0] == "constant" else tuple(step)
        for step in spec.op_info["body"]
    ]
    return _narrowed(spec, steps)


def _narrowed(spec: OpSpec, steps: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A body of one exact function between conversions of one narrow dtype, as that function alone."""
    target = spec.args[-1].dtype
    if target not in _NARROW or spec.is_reduction or not steps or steps[-1][0] != "to_dtype":
        return steps
    own = [s for s in steps if s[0] not in ("load", "to_dtype", "constant")]
    loads = [s for s in steps if s[0] == "load"]
    if len(own) > 1 or any(len(s) > 2 for s in loads) or any(arg.dtype != target for arg in spec.args):
        return steps
    if own and own[0][0] not in EXACT_WHEN_NARROW:
        return steps
    made: list[tuple[Any, ...]] = []
    where: dict[int, int] = {}
    for k, step in enumerate(steps):
        if step[0] == "to_dtype":
            if step[2] not in ("float32", target):
                return steps
            where[k] = where[step[1].step]
            continue
        made.append(tuple(Ref(where[o.step]) if isinstance(o, Ref) else o for o in step))
        where[k] = len(made) - 1
    if where[len(steps) - 1] != len(made) - 1:
        return steps
    return made


def _direct(steps: list[tuple[Any, ...]], prepared: PreparedOp) -> tuple[Any, tuple[Any, ...]] | None:
    """A function that writes straight into its place, with its operands: windows by number, and constants."""
    spec = prepared.spec
    if spec.is_reduction or spec.op_info.get("store", "set") != "set":
        return None
    if any(not a.is_window for a in prepared.arguments):
        return None
    out = prepared.arguments[-1].dtype
    body = list(steps)
    if body[-1][0] == "to_dtype" and len(body) > 1 and body[-1][1] == Ref(len(body) - 2):
        if dtype_of(body[-1][2]) != out:
            return None
        body = body[:-1]
    name, *operands = body[-1]
    if name == "load" and len(body) == 1 and len(operands) == 1:
        return (None, (operands[0],))
    if name not in IN_PLACE or not out.is_floating_point or out.itemsize < 2:
        return None
    given: list[Any] = []
    for operand in operands:
        if not isinstance(operand, Ref):
            return None
        step = body[operand.step]
        if step[0] == "constant":
            given.append(step[1].to(out))
        elif step[0] == "load" and len(step) == 2 and prepared.arguments[step[1]].dtype == out:
            given.append(step[1])
        else:
            return None
    return (IN_PLACE[name], tuple(given)) if any(isinstance(g, int) for g in given) else None
