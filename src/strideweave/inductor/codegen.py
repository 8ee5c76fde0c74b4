"""From the operations of a lowered graph to the specs that run them, in the loops that they were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sympy
import torch

from strideweave.inductor.coordinates import device_coordinates
from strideweave.inductor.loop_plans import IDENTITIES, CoarseTileInfo, Storage, loop_info_of, tile_size
from strideweave.inductor.ops import Op, Touch, layout_of, op_of, owner_of
from strideweave.inductor.recording import NARROW
from strideweave.inductor.work_division import divide, splits_by_coefficient
from strideweave.spyre.specs import NO_ARGUMENT, Body, OpSpec, Ref, TensorArg
from strideweave.spyre.sticks import STICK_NBYTES
from strideweave.spyre.tensor_layout import SpyreTensorLayout

_NAMELESS: Final = frozenset({"load", "constant", "to_dtype", "index", "copy", "masked", "wrap_index"})
_COMBINE: Final = {
    "sum": "add",
    "batchmatmul": "add",
    "any": "logical_or",
    "xor_sum": "bitwise_xor",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
}


class Pool:
    """Memory of a program's own: scratch, given out in order."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._places: dict[str, int] = {}

    def place(self, name: str, nbytes: int) -> int:
        """The byte at which a named piece begins; the same for the same name."""
        if name not in self._places:
            self._places[name] = self.nbytes
            self.nbytes += -(-nbytes // STICK_NBYTES) * STICK_NBYTES
        return self._places[name]


@dataclass
class Emitted:
    """The specs of one operation."""

    body: list[OpSpec]
    """Those in its innermost loop."""
    before: dict[int, list[OpSpec]] = field(default_factory=dict)
    """Those right before its loop of a level."""
    after: dict[int, list[OpSpec]] = field(default_factory=dict)
    """Those right behind it."""


@dataclass(frozen=True)
class _Place:
    """A piece of memory that an operation of a program touches."""

    name: str
    layout: SpyreTensorLayout
    dtype: torch.dtype
    number: int
    allocation: Mapping[str, int]
    fixed: int
    """How many of the outermost loops leave its address where it is."""


class Emitter:
    """Makes the specs of one program; `argument_of` numbers the buffers that it is called with."""

    def __init__(self, argument_of: Callable[[str], int]) -> None:
        self._argument_of = argument_of
        self.pool = Pool()
        self._whole: dict[int, dict[sympy.Symbol, int]] = {}

    def whole_ranges(self, spec: OpSpec) -> dict[sympy.Symbol, int]:
        """The ranges of an operation of this program before it was tiled."""
        whole = {s: int(extent) for s, (extent, _) in spec.iteration_space.items()}
        return {**whole, **self._whole.get(id(spec), {})}

    def same_rows(self, made: OpSpec, of: OpSpec) -> None:
        """An operation was made from another one of this program: it is a part of the same whole."""
        self._whole[id(made)] = self.whole_ranges(of)

    def emit(self, op: Op) -> Emitted:
        """The specs of one operation."""
        info = loop_info_of(op.buffer)
        if info is None:
            return Emitted([self._compute(op, None, self._result(op))])
        assert info.storage is not None
        if info.first_reduction_level is not None:
            return self._in_parts(op, info)
        if info.storage.copies:
            scratch = self._scratch(op, info, f"{op.name}_tile", info.depth, op.buffer.get_dtype(), below=None)
            copy = self._copy(op, info, scratch, self._result(op), below=None, name="copy")
            return Emitted([self._compute(op, info, scratch), copy])
        return Emitted([self._compute(op, info, self._result(op))])

    def _in_parts(self, op: Op, info: CoarseTileInfo) -> Emitted:
        """A reduction over parts: an accumulator is filled before the loop over them, and copied behind it."""
        level = info.first_reduction_level
        assert level is not None
        dtype = op.buffer.get_dtype()
        wide = torch.float32 if dtype in NARROW else dtype
        part = self._scratch(op, info, f"{op.name}_part", info.depth, wide, below=None)
        total = self._scratch(op, info, f"{op.name}_total", level, wide, below=level)
        kind = op.reduction_type
        assert kind is not None
        identity = _identity(kind, wide)
        fill = self._elementwise(op, info, "fill", (("constant", identity, _text(wide)),), (), total, below=level)
        combine = (("load", 0), ("load", 1), (_COMBINE[kind], Ref(0), Ref(1)))
        add = self._elementwise(op, info, _COMBINE[kind], combine, (total, part), total, below=None)
        copy = self._copy(op, info, total, self._result(op), below=level, name="copy")
        return Emitted([self._compute(op, info, part), add], {level: [fill]}, {level: [copy]})

    # -- memory ------------------------------------------------------------------------------------------------------

    def _result(self, op: Op) -> _Place:
        return self._place_of(op.name)

    def _place_of(self, name: str) -> _Place:
        """Where a buffer of the graph is: an argument, or scratch of the loops that it was made in."""
        owner = owner_of(name)
        whole = layout_of(name)
        layout, fixed = whole, 0
        made_by = _buffer(owner)
        info = None if made_by is None else loop_info_of(made_by)
        if info is not None and info.storage is not None and info.storage.fixed:
            layout, fixed = made_by.layout, info.storage.fixed
        if not fixed:
            return _Place(name, layout.device_layout, whole.dtype, self._argument_of(owner), {"hbm": 0}, 0)
        place = self.pool.place(owner, layout.device_layout.nbytes)
        return _Place(name, layout.device_layout, whole.dtype, NO_ARGUMENT, {"pool": place}, fixed)

    def _scratch(
        self, op: Op, info: CoarseTileInfo, name: str, fixed: int, dtype: torch.dtype, *, below: int | None
    ) -> _Place:
        """Memory for what one iteration of the `fixed` outermost loops makes, in a dtype of its own."""
        whole = layout_of(op.name)
        size = tile_size(op, info, whole, below=below)
        layout = whole.tile(size, per_tile_fixed=True)
        device_layout = layout.device_layout
        if dtype != whole.dtype:
            order = sorted(range(len(size)), key=lambda k: -int(layout.stride[k]))
            device_layout = SpyreTensorLayout(size, [int(d) for d in layout.stride], dtype, order)
        return _Place(
            name, device_layout, dtype, NO_ARGUMENT, {"pool": self.pool.place(name, device_layout.nbytes)}, fixed
        )

    # -- specs -------------------------------------------------------------------------------------------------------

    def _compute(self, op: Op, info: CoarseTileInfo | None, result: _Place) -> OpSpec:
        """What the operation itself does, over one tile."""
        recording = op.recording
        args = [self._argument(touch, self._read_place(op, touch), op, info, is_input=True) for touch in op.reads]
        args.append(self._argument(op.write, result, op, info, is_input=False))
        body = recording.body
        details: dict[str, Any] = {"body": body}
        if recording.reduction is not None:
            kind = op.reduction_type
            details["reduction"] = "sum" if kind in ("batchmatmul", "dot") else kind
            details["reduction_symbols"] = op.iteration.reduction_symbols
            details["accumulates_in"] = _accumulator(recording.reduction_dtype)
        elif _text(result.dtype) != str(recording.steps[-1][-1]) and recording.steps[-1][0] == "to_dtype":
            details["body"] = (*body[:-1], (*body[-1][:-1], _text(result.dtype)))
        if recording.indirect:
            details["indirect"] = dict(recording.indirect)
        if recording.store_mode != "set":
            details["store"] = recording.store_mode
        space = self._space(op, info, op.iteration.ranges, below=None)
        name = getattr(op.buffer, "spyre_name", None) or op.reduction_type or _name_of(recording.steps)
        spec = OpSpec(name, op.is_reduction, space, tuple(args), details, _tiled(info, space, None))
        divided = divide(spec, hint=op.work_div)
        op.buffer.op_it_space_splits = splits_by_coefficient(divided, op.write.access.index)  # type: ignore[attr-defined]
        self._whole[id(divided)] = dict(op.iteration.ranges)
        return divided

    def _read_place(self, op: Op, touch: Touch) -> _Place:
        """Where the operation reads a buffer: the scratch of its own innermost loop, when it shares that."""
        owner = owner_of(touch.name)
        made_by = _buffer(owner)
        theirs = None if made_by is None else loop_info_of(made_by)
        mine = loop_info_of(op.buffer)
        if (
            theirs is not None
            and mine is not None
            and made_by is not None
            and theirs.storage is not None
            and theirs.storage.copies
            and theirs.loop_group_id == mine.loop_group_id
        ):
            maker = op_of(made_by)
            return self._scratch(maker, theirs, f"{owner}_tile", theirs.depth, made_by.get_dtype(), below=None)
        return self._place_of(touch.name)

    def _copy(
        self, op: Op, info: CoarseTileInfo, source: _Place, target: _Place, *, below: int | None, name: str
    ) -> OpSpec:
        body: Body = (("load", 0), ("to_dtype", Ref(0), _text(target.dtype)))
        return self._elementwise(op, info, name, body, (source,), target, below=below)

    def _elementwise(
        self,
        op: Op,
        info: CoarseTileInfo,
        name: str,
        body: Body,
        sources: Sequence[_Place],
        target: _Place,
        *,
        below: int | None,
    ) -> OpSpec:
        """A pointwise operation over the result of `op`: within all its loops, or only those outside level `below`."""
        ranges = {s: n for s, n in op.iteration.ranges.items() if s in op.iteration.output}
        args = [self._argument(op.write, place, op, info, is_input=True, below=below) for place in sources]
        args.append(self._argument(op.write, target, op, info, is_input=False, below=below))
        space = self._space(op, info, ranges, below=below)
        return divide(OpSpec(name, False, space, tuple(args), {"body": body}, _tiled(info, space, below)))

    def _space(
        self, op: Op, info: CoarseTileInfo | None, ranges: Mapping[sympy.Symbol, int], *, below: int | None
    ) -> dict[sympy.Symbol, tuple[sympy.Expr, int]]:
        space = {}
        for symbol, extent in ranges.items():
            tile = extent if info is None else info.tile_of(symbol, extent, below=below)
            space[symbol] = (sympy.Integer(tile), 1)
        return space

    def _argument(
        self,
        touch: Touch,
        place: _Place,
        op: Op,
        info: CoarseTileInfo | None,
        *,
        is_input: bool,
        below: int | None = None,
    ) -> TensorArg:
        depth = 0 if info is None else (info.depth if below is None else below)
        loops = 0 if info is None else info.loops(depth)
        fixed = 0 if info is None else info.loops(min(place.fixed, depth))
        return TensorArg(
            is_input=is_input,
            arg_index=place.number,
            device_dtype=place.layout.device_dtype,
            device_size=place.layout.device_size,
            device_coordinates=device_coordinates(touch.host_coordinates, place.layout, op.bounds),
            allocation=place.allocation,
            dtype=_text(place.dtype),
            fixed_loops=fixed,
            per_tile_fixed=0 < loops == fixed,
            name=place.name,
        )


def _tiled(
    info: CoarseTileInfo | None, space: Mapping[sympy.Symbol, Any], below: int | None
) -> tuple[tuple[sympy.Symbol, ...], ...]:
    """For every loop around, innermost first, the symbol that it advances."""
    if info is None:
        return ()
    levels = [s for s, count in zip(info.symbols[:below], info.loop_count, strict=False) if count != 1]
    return tuple((symbol,) if symbol in space else () for symbol in reversed(levels))


def _buffer(name: str) -> Any:
    from torch._inductor.virtualized import V

    buffer = V.graph.try_get_buffer(name)
    return buffer if hasattr(buffer, "loop_info") else None


def _identity(kind: str, dtype: torch.dtype) -> Any:
    """What an accumulator of this dtype starts with."""
    value: Any = IDENTITIES[kind]
    if kind in ("max", "min") and not dtype.is_floating_point:
        if dtype == torch.bool:
            return kind == "min"
        limits = torch.iinfo(dtype)
        return limits.min if kind == "max" else limits.max
    return value


def _accumulator(dtype: torch.dtype | None) -> str:
    """The name of the dtype in which values of `dtype` are added up: narrow floats in Float32."""
    return _text(torch.float32 if dtype in NARROW else dtype)


def _text(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _name_of(steps: Sequence[tuple[Any, ...]]) -> str:
    """What the operation is called: its last step that does something."""
    return next((str(step[0]) for step in reversed(steps) if step[0] not in _NAMELESS), "identity")


__all__ = ["Emitted", "Emitter", "Pool", "Storage"]
