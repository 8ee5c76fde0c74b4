"""Which loops every operation of a group is in, and where its result is kept: planned, nothing changed yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sympy
from torch._inductor import ir

from strideweave.inductor.errors import Unsupported
from strideweave.inductor.hints import DimHint, Group, dim_hints_of
from strideweave.inductor.ops import Op, Touch, computed_ops, op_of, owner_of

IDENTITIES: Final = {
    "sum": 0,
    "batchmatmul": 0,
    "any": False,
    "xor_sum": 0,
    "prod": 1,
    "max": float("-inf"),
    "min": float("inf"),
}
"""What an accumulator starts with; a reduction that is not here cannot be done in parts."""


@dataclass
class CoarseTileInfo:
    """The loops around an operation, outermost first, and which of its ranges each of them divides."""

    loop_group_id: tuple[int, ...]
    """Which loop it is in, at every level: operations with equal ids share it."""
    loop_count: list[sympy.Integer]
    """How many times each runs."""
    loop_tiled_dims: list[list[int]]
    """Positions in `data.ranges`, per level."""
    loop_tiled_reduction_dims: list[list[int]]
    """Positions in `data.reduction_ranges`, per level."""
    symbols: list[sympy.Symbol | None] = field(default_factory=list)
    """The symbol that each level advances; None where the operation does not iterate its dim."""
    tile_extents: list[int | None] = field(default_factory=list)
    """Per level the range of a tile where the last one is shorter; None where the count divides the range."""
    storage: Storage | None = None
    """Where its result is."""

    @property
    def depth(self) -> int:
        """How many loops there are."""
        return len(self.loop_count)

    @property
    def first_reduction_level(self) -> int | None:
        """The outermost loop over parts of a reduction."""
        return next((k for k, dims in enumerate(self.loop_tiled_reduction_dims) if dims), None)

    def loops(self, below: int | None = None) -> int:
        """How many loops that run more than once there are, in all or outside level `below`."""
        return sum(count != 1 for count in self.loop_count[:below])

    def count_of(self, symbol: sympy.Symbol, *, below: int | None = None) -> int:
        """In how many parts a symbol is done, by all levels or by those outside level `below`."""
        count = 1
        for level, own in enumerate(self.symbols[:below]):
            if own == symbol:
                count *= int(self.loop_count[level])
        return count

    def tile_of(self, symbol: sympy.Expr, extent: Any, *, below: int | None = None) -> Any:
        """The range of a symbol within one tile of all levels, or of those outside level `below`."""
        for level, own in enumerate(self.symbols[:below]):
            if own == symbol and self.loop_count[level] != 1:
                uneven = self.tile_extents[level]
                extent = extent // int(self.loop_count[level]) if uneven is None else uneven
        return extent


@dataclass(frozen=True)
class Storage:
    """Where the result of an operation in loops is kept.

    It belongs to one iteration of the outermost `fixed` loops: readers outside them see nothing of it. With no fixed
    loop it is the whole buffer. `copies` says that each tile is made in scratch first and then copied, since readers
    inside and outside of the innermost loop want it.
    """

    fixed: int
    copies: bool = False


def plan_loops(
    graph: Any, groups: Sequence[Group], hints: Mapping[str, Sequence[DimHint]] | None = None
) -> list[tuple[Op, CoarseTileInfo]]:
    """The loops of every operation of every group, in order.

    `hints` says what each operation is tiled by; without it, what the passes gave it.

    Errors: Unsupported, as `coarse_tile` says.
    """
    planned: list[tuple[Op, CoarseTileInfo]] = []
    number = 0
    for buffers, levels in groups:
        ops = [op_of(buffer) for buffer in buffers]
        _require_consecutive(graph, buffers)
        infos = {
            op.name: _levels_of(op, levels, dim_hints_of(op.buffer) if hints is None else hints[op.name]) for op in ops
        }
        number = _assign_loops(ops, infos, 0, (), number)
        planned += [(op, infos[op.name]) for op in ops]
    readers = readers_of(graph)
    stamped = {op.name: info for op, info in planned}
    for op, info in planned:
        info.storage = _storage(op, info, stamped, readers)
    return planned


def loop_info_of(buffer: Any) -> CoarseTileInfo | None:
    """The loops around an operation; None when it runs once."""
    return getattr(buffer, "loop_info", None)


def _require_consecutive(graph: Any, buffers: Sequence[ir.ComputedBuffer]) -> None:
    names = [operation.get_name() for operation in graph.operations]
    places = [names.index(buffer.get_name()) for buffer in buffers]
    if places != list(range(places[0], places[0] + len(places))):
        raise Unsupported(
            f"cannot run {[b.get_name() for b in buffers]} in one loop: they are at {places} in the order of "
            "operations. Operations of a loop are consecutive. Move the others out of the block."
        )


def _levels_of(op: Op, levels: Sequence[tuple[int, sympy.Integer]], given: Sequence[DimHint]) -> CoarseTileInfo:
    """What each level divides of one operation; where it does not say otherwise, nothing."""
    info = CoarseTileInfo((), [], [], [])
    hints = {hint.hint_id: hint for hint in given}
    for hint_id, count in levels:
        hint = hints.get(hint_id)
        symbol = None if hint is None else hint.loop_var
        outputs = [k for k, s in enumerate(op.iteration.output) if s == symbol and symbol is not None]
        reductions = [k for k, s in enumerate(op.iteration.reduction) if s == symbol and symbol is not None]
        info.loop_count.append(sympy.Integer(count))
        info.loop_tiled_dims.append(outputs)
        info.loop_tiled_reduction_dims.append(reductions)
        info.symbols.append(symbol)
        info.tile_extents.append(None if hint is None or symbol is None else hint.tile_extent)
        if reductions and op.reduction_type not in IDENTITIES:
            raise Unsupported(
                f"cannot tile the reduction {op.reduction_type} of {op.name} by {count}: its parts cannot be combined. "
                f"Reductions that can are {', '.join(IDENTITIES)}. Tile an output dim instead."
            )
    for symbol in dict.fromkeys(s for s in info.symbols if s is not None):
        extent, parts = op.iteration.ranges[symbol], info.count_of(symbol)
        if _is_uneven(op, info, symbol):
            continue
        if extent % parts:
            raise Unsupported(
                f"cannot tile {op.name} by {parts} along {symbol}: its range is {extent}. Counts divide the range "
                f"exactly. Choose one of {_divisors(extent)}."
            )
    if op.recording.store_mode != "set" or isinstance(op.buffer.get_layout(), ir.MutationLayoutSHOULDREMOVE):
        for level, symbol in enumerate(info.symbols):
            if symbol is None:
                raise Unsupported(
                    f"cannot run {op.name} in a loop of {info.loop_count[level]} that does not advance it: it changes "
                    "memory that it may read, and would do so again each time. Take it out of the block."
                )
    return info


def _is_uneven(op: Op, info: CoarseTileInfo, symbol: sympy.Symbol) -> bool:
    """Whether a symbol is done in tiles of which the last is shorter; then by one loop alone."""
    levels = [level for level, own in enumerate(info.symbols) if own == symbol and info.loop_count[level] != 1]
    uneven = [info.tile_extents[level] for level in levels if info.tile_extents[level] is not None]
    if not uneven:
        return False
    extent, count = op.iteration.ranges[symbol], int(info.loop_count[levels[0]])
    tile = uneven[0]
    assert tile is not None
    if len(levels) != 1 or not (count - 1) * tile < extent < count * tile:
        raise Unsupported(
            f"cannot tile {op.name} along {symbol} by {count} tiles of {tile}: its range is {extent}. Tiles of which "
            "the last is shorter cover the range once, in one loop. Choose another count."
        )
    return True


def _divisors(extent: int) -> list[int]:
    return [d for d in range(1, min(extent, 64) + 1) if extent % d == 0]


def _assign_loops(
    ops: Sequence[Op], infos: dict[str, CoarseTileInfo], level: int, prefix: tuple[int, ...], number: int
) -> int:
    """Give every operation its loop at this level and those within; the next free number of this level.

    An operation opens a new loop when it reads what the open one has not finished: a sum whose parts are still coming,
    or another tile than the one that was just made.
    """
    if not ops or level == infos[ops[0].name].depth:
        return number
    run: list[Op] = []

    def close() -> None:
        nonlocal number
        is_needed = any(infos[op.name].symbols[level] is not None for op in run)
        for op in run:
            infos[op.name].loop_group_id = (*prefix, number)
            if not is_needed:
                infos[op.name].loop_count[level] = sympy.Integer(1)
        _assign_loops(run, infos, level + 1, (*prefix, number), 0)
        number += 1
        run.clear()

    for op in ops:
        made = {owner_of(earlier.name): earlier for earlier in run}
        if any(
            touch_owner in made and not _is_aligned(made[touch_owner], op, touch, infos, level)
            for touch in op.reads
            if (touch_owner := owner_of(touch.name))
        ) or _overwrites(op, run, infos, level):
            close()
        run.append(op)
    if run:
        close()
    return number


def _overwrites(op: Op, run: Sequence[Op], infos: dict[str, CoarseTileInfo], level: int) -> bool:
    """Whether an operation writes into memory of which earlier ones of the loop read other parts in the same turn."""
    into = owner_of(op.name)
    if into == op.name:
        return False
    for earlier in run:
        is_alike = (
            earlier.iteration.ranges == op.iteration.ranges
            and infos[earlier.name].symbols[level] == infos[op.name].symbols[level]
        )
        for touch in earlier.reads:
            if owner_of(touch.name) == into and not (is_alike and touch.access.index == op.write.access.index):
                return True
    return False


def _is_aligned(producer: Op, reader: Op, touch: Touch, infos: dict[str, CoarseTileInfo], level: int) -> bool:
    """Whether in every iteration of a level the reader reads exactly the tile that the producer made in it."""
    made, read = infos[producer.name], infos[reader.name]
    if made.loop_tiled_reduction_dims[level]:
        return False
    symbol_here = read.symbols[level]
    if not made.loop_tiled_dims[level] and any(symbol_here in c.free_symbols for c in touch.host_coordinates):
        return False  # it makes the whole in every iteration, and the reader wants another part of it each time
    for position in made.loop_tiled_dims[level]:
        symbol = producer.iteration.output[position]
        places = [
            k for k, coordinate in enumerate(producer.write.host_coordinates) if symbol in coordinate.free_symbols
        ]
        own = read.symbols[level]
        if len(places) != 1 or producer.write.host_coordinates[places[0]] != symbol:
            return False
        if own is None or touch.host_coordinates[places[0]] != own:
            return False
        # The same number of elements at this level, whatever other levels divide.
        if producer.iteration.ranges[symbol] != reader.iteration.ranges[own]:
            return False
    return True


def readers_of(graph: Any) -> dict[str, list[str | None]]:
    """For every buffer who reads its memory; None for what is outside: outputs, and operations that are not ours."""
    readers: dict[str, list[str | None]] = {}
    ours = {op.name: op for op in computed_ops(graph)}
    for operation in graph.operations:
        op = ours.get(operation.get_name())
        if op is not None:
            for touch in op.reads:
                readers.setdefault(owner_of(touch.name), []).append(op.name)
        else:
            for dependency in operation.get_read_writes().reads:
                readers.setdefault(owner_of(dependency.name), []).append(None)
        for name in operation.get_mutation_names():
            readers.setdefault(owner_of(name), []).append(None)
    for name in graph.get_output_names():
        readers.setdefault(owner_of(name), []).append(None)
    return readers


def _storage(
    op: Op, info: CoarseTileInfo, stamped: dict[str, CoarseTileInfo], readers: dict[str, list[str | None]]
) -> Storage:
    if owner_of(op.name) != op.name or isinstance(op.buffer.get_layout(), ir.MutationLayoutSHOULDREMOVE):
        return Storage(0)
    shared = []
    for reader in readers.get(op.name, [None]):
        other = None if reader is None else stamped.get(reader)
        common = 0
        if other is not None:
            for mine, theirs in zip(info.loop_group_id, other.loop_group_id, strict=False):
                if mine != theirs:
                    break
                common += 1
        shared.append(common)
    fixed = min(shared)
    reduction = info.first_reduction_level
    if reduction is not None:
        fixed = min(fixed, reduction)
    return Storage(fixed, copies=reduction is None and fixed < info.depth and max(shared) == info.depth)


def tile_size(op: Op, info: CoarseTileInfo, whole: Any, *, below: int | None) -> list[int]:
    """The host extents of what one iteration of the loops outside level `below` makes."""
    size = [int(n) for n in whole.size]
    for k, coordinate in enumerate(op.write.host_coordinates):
        if coordinate in op.iteration.ranges and not whole.is_flat:
            size[k] = info.tile_of(coordinate, size[k], below=below)
    return size
