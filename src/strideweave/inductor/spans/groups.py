"""From plans of single operations to groups that share a loop nest, in the form that hints of users have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sympy
from torch._inductor import ir

from strideweave.inductor.errors import Unsupported
from strideweave.inductor.hints import DimHint, Group, dim_hints_of
from strideweave.inductor.loop_plans import plan_loops
from strideweave.inductor.ops import Op, computed_ops, owner_of
from strideweave.inductor.span_overflow_hint_analysis import analyse, can_conform_pointwise_tile
from strideweave.inductor.spans.plans import SpanOverflowTilePlan
from strideweave.inductor.spans.splits import cut_sticks
from strideweave.inductor.spans.symbols import ineligible
from strideweave.inductor.spans.tile_windows import over_limit, windows_in_loops
from strideweave.spyre import config

_SPAN_OVERFLOW_HINT_ID: Final = 10000
_NAME: Final = "_span_overflow"


@dataclass(frozen=True)
class Level:
    """One loop of a run, and the symbol that it advances in each of its operations."""

    count: int
    tile_extent: int | None
    symbols: dict[str, sympy.Symbol | None]
    """By operation; None where it does not iterate the dim."""


@dataclass
class Run:
    """Consecutive operations that may share a loop nest."""

    ops: list[Op] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """The buffers that it computes."""
        return {op.name for op in self.ops}

    def hints(self, first_id: int) -> dict[str, list[DimHint]]:
        """The hints of every operation, ids from `first_id` on, outermost first."""
        return {op.name: list(self._hints_of(op, first_id)) for op in self.ops}

    def _hints_of(self, op: Op, first_id: int) -> Iterator[DimHint]:
        for k, level in enumerate(self.levels):
            symbol = level.symbols.get(op.name)
            is_reduction = symbol in op.iteration.reduction_symbols
            yield DimHint((_NAME,), level.count, symbol, is_reduction, first_id + k, level.tile_extent)

    def group(self, first_id: int) -> Group:
        """The run in the form of hints."""
        levels = [(first_id + k, sympy.Integer(level.count)) for k, level in enumerate(self.levels)]
        return [op.buffer for op in self.ops], levels


def span_overflow_groups(graph: Any) -> list[Group]:
    """The loops that operations with overflowing spans need; each of these gets its hints, and consecutive ones share.

    Operations with hints of their own are left alone. Hint ids count up from 10000.

    Errors: Unsupported where an operation overflows and cannot be tiled; and, by the seed's rules, where it reads what
    another loop makes that it cannot join.
    Source: seed 002, "Adapter and Coarse Tiling".
    """
    if config.ignore_wsr_hints or config.ignore_span_overflow_hints:
        return []
    return _Adapter(graph).groups()


class _Adapter:
    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._run = Run()
        self._groups: list[Group] = []
        self._tiled: set[str] = set()
        """What closed runs, and operations with hints of users, compute."""
        self._next_id = _SPAN_OVERFLOW_HINT_ID

    def groups(self) -> list[Group]:
        ops = {op.name: op for op in computed_ops(self._graph)}
        for operation in list(self._graph.operations):
            op = ops.get(operation.get_name())
            if op is None or ineligible(op.buffer, may_write_into_others=config.span_rule != "seed") is not None:
                self._close()
            elif dim_hints_of(op.buffer):
                self._close()
                self._tiled.add(op.name)
            else:
                self._take(op)
        self._close()
        return self._groups

    def _take(self, op: Op) -> None:
        error: Unsupported | None = None
        plan: SpanOverflowTilePlan | None = None
        try:
            op.span_analysis = analyse(op.buffer, config.sencores)
            plan = op.span_analysis.plan
        except Unsupported as refused:
            error = refused
        if plan is None and error is None:
            self._close()
            return
        if not config.span_fusion:
            self._require_untiled(op, self._tiled)
        own = [] if plan is None else _levels_of(op, plan)
        if self._run.ops:
            joined = self._joined(op, own)
            if joined is not None:
                self._run = joined
                return
            reads_run = self._reads(op, self._run.names)
            if reads_run and not config.span_fusion:
                self._require_untiled(op, self._run.names)
            self._close()
        if error is not None:
            raise error
        self._run = Run([op], own)
        if op.is_reduction and not config.span_fusion:
            self._close()

    def _require_untiled(self, op: Op, tiled: set[str]) -> None:
        producers = sorted({owner_of(touch.name) for touch in op.reads} & tiled)
        if producers:
            raise Unsupported(
                f"Cannot auto-tile {op.name}: it reads already auto-tiled producer(s) {producers}. Two loops over the "
                "same data are not synchronised, and what is between them would have to be kept whole. Put both into "
                "one spyre_hint block, or allow them to share a loop (STRIDEWEAVE_SPAN_FUSION=1)."
            )

    @staticmethod
    def _reads(op: Op, names: set[str]) -> bool:
        return any(owner_of(touch.name) in names for touch in op.reads)

    def _joined(self, op: Op, own: list[Level]) -> Run | None:
        """The run with one operation more; None where they cannot share its loops."""
        run = self._run
        is_pointwise = all(not other.is_reduction for other in (*run.ops, op))
        if is_pointwise and own and _signature(own) == _signature(run.levels) and _same_dims(run, op, own):
            joined = Run([*run.ops, op], _with_symbols(run.levels, op, [level.symbols[op.name] for level in own]))
            if self._shares(joined) is not None:
                return joined
        if not self._reads(op, run.names) or not (is_pointwise or config.span_fusion):
            return None
        mapped = _mapped(run, op)
        if mapped is None:
            return None
        if not config.span_fusion:
            return self._conformed(op, mapped)
        found: list[tuple[int, int, Run]] = []
        for levels in _merged(run.levels, op, mapped, own):
            joined = Run([*run.ops, op], levels)
            if self._fits(joined):
                cost = 1
                for level in levels:
                    cost *= level.count
                found.append((cost, len(found), joined))
        return min(found)[2] if found else None

    def _conformed(self, op: Op, mapped: list[sympy.Symbol | None]) -> Run | None:
        splits = {}
        for symbol, level in zip(mapped, self._run.levels, strict=True):
            if symbol is None or symbol not in op.iteration.output or level.tile_extent is not None:
                return None
            splits[op.iteration.output.index(symbol)] = level.count
        if not can_conform_pointwise_tile(op.buffer, splits, config.sencores):
            return None
        joined = Run([*self._run.ops, op], _with_symbols(self._run.levels, op, mapped))
        return joined if self._shares(joined) is not None else None

    def _shares(self, run: Run) -> dict[str, Any] | None:
        """The loops of a run, if all of its operations are in one outermost loop and read the tile of their turn."""
        try:
            planned = plan_loops(self._graph, [run.group(0)], run.hints(0))
        except Unsupported:
            return None
        infos = {op.name: info for op, info in planned}
        return infos if len({info.loop_group_id[0] for info in infos.values()}) == 1 else None

    def _fits(self, run: Run) -> bool:
        """Whether a run shares its loops, no tile cuts a stick, and every window in it is within the limit."""
        for level in run.levels:
            for op in run.ops:
                symbol = level.symbols.get(op.name)
                if symbol is None:
                    continue
                extent = op.iteration.ranges[symbol]
                if level.tile_extent is None and extent % level.count:
                    return False
                if cut_sticks(op, symbol, level.tile_extent or extent // level.count) is not None:
                    return False
        infos = self._shares(run)
        return infos is not None and not any(over_limit(windows_in_loops(op, infos)) for op in run.ops)

    def _close(self) -> None:
        """The run gets its hints, and is over."""
        run = self._run
        if run.ops:
            for name, hints in run.hints(self._next_id).items():
                op = next(op for op in run.ops if op.name == name)
                op.buffer.dim_hints = hints  # type: ignore[attr-defined]
            self._groups.append(run.group(self._next_id))
            self._tiled |= run.names
            self._next_id += len(run.levels)
        self._run = Run()


def _levels_of(op: Op, plan: SpanOverflowTilePlan) -> list[Level]:
    levels = []
    for level in plan.levels:
        symbols = op.iteration.reduction if level.is_reduction else op.iteration.output
        symbol = symbols[level.selected_host_dim]
        if not isinstance(symbol, sympy.Symbol):
            raise Unsupported(
                f"cannot tile {op.name} along dim {level.selected_host_dim}: it has no loop symbol there ({symbol}). A "
                "tiled dim has a range above 1. Tile another dim with a hint."
            )
        levels.append(Level(level.split_count, level.tile_extent, {op.name: symbol}))
    return levels


def _signature(levels: Sequence[Level]) -> list[tuple[int, int | None]]:
    return [(level.count, level.tile_extent) for level in levels]


def _same_dims(run: Run, op: Op, own: Sequence[Level]) -> bool:
    """Whether the levels are along the same output dims as those of the run."""
    last = run.ops[-1]
    for mine, theirs in zip(own, run.levels, strict=True):
        here, there = mine.symbols[op.name], theirs.symbols.get(last.name)
        if there is None or here not in op.iteration.output or there not in last.iteration.output:
            return False
        if op.iteration.output.index(here) != last.iteration.output.index(there):
            return False
    return True


def _with_symbols(levels: Sequence[Level], op: Op, symbols: Sequence[sympy.Symbol | None]) -> list[Level]:
    return [
        replace(level, symbols={**level.symbols, op.name: symbol})
        for level, symbol in zip(levels, symbols, strict=True)
    ]


def _mapped(run: Run, op: Op) -> list[sympy.Symbol | None] | None:
    """The symbol of an operation at every level of the run that it reads; None where its reads disagree."""
    makers = {member.name: member for member in run.ops}
    found: list[sympy.Symbol | None] = []
    for level in run.levels:
        said: set[Any] = set()
        for touch in op.reads:
            maker = makers.get(owner_of(touch.name))
            symbol = None if maker is None else level.symbols.get(maker.name)
            if maker is None or symbol is None or symbol in maker.iteration.reduction_symbols:
                continue
            places = [k for k, c in enumerate(maker.write.host_coordinates) if c == symbol]
            own = touch.host_coordinates[places[0]] if len(places) == 1 else None
            said.add(own if own in op.iteration.ranges else None)
        if len(said) > 1:
            return None
        found.append(said.pop() if said else None)
    return found


def _merged(
    levels: Sequence[Level], op: Op, mapped: Sequence[sympy.Symbol | None], own: Sequence[Level]
) -> Iterator[list[Level]]:
    """Levels that a run and an operation might share: the run's, with larger counts, the operation's own inside."""
    wanted = {level.symbols[op.name]: level for level in own}
    plain = _with_symbols(levels, op, mapped)
    outputs = [None if s in op.iteration.reduction_symbols else s for s in mapped]
    if outputs != mapped:  # rather combine all of it behind the loop that makes it
        yield _with_symbols(levels, op, outputs)
    larger = [
        replace(level, count=wanted[s].count, tile_extent=wanted[s].tile_extent)
        if s in wanted and wanted[s].count > level.count
        else level
        for level, s in zip(plain, mapped, strict=True)
    ]
    inside = [level for s, level in wanted.items() if s not in mapped]
    yield plain
    if larger != plain:
        yield larger
    if inside:
        yield [*plain, *inside]
        if larger != plain:
            yield [*larger, *inside]


def in_order(graph: Any, groups: Sequence[Group]) -> list[Group]:
    """Groups by the place of their first operation."""
    places = {operation.get_name(): k for k, operation in enumerate(graph.operations)}
    return sorted(groups, key=lambda group: places[_first(group).get_name()])


def _first(group: Group) -> ir.ComputedBuffer:
    return group[0][0]
