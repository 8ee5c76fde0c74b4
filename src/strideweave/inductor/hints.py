"""Hints: names for dims, and in how many tiles or over how many cores the work along them is done."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
from torch._inductor import ir
from torch.fx.traceback import annotate

from strideweave.inductor.errors import Unsupported
from strideweave.inductor.names import DimNames, names_of_inputs
from strideweave.inductor.ops import Op, computed_ops
from strideweave.spyre import config

_ids = itertools.count()
_PREFIX = "_hint_"


def spyre_hint(
    *,
    num_tiles_per_dim: Mapping[str, int] | None = None,
    tiles: Mapping[str, int] | None = None,
    slices: Mapping[str, int] | None = None,
    named_dims: Sequence[str | None] | None = None,
    work_div: Mapping[str, int] | None = None,
) -> Any:
    """A block whose operations are compiled with a hint; blocks nest, the outer one being the outer loop.

    `num_tiles_per_dim={"M": 8}` (or `tiles=`, `slices=`): run the block in 8 tiles along the dim named M, one dim a
    block. `named_dims=["M", "N"]` names the dims of the results in the block. `work_div={"M": 4}` divides the work
    along M over 4 cores.

    Errors: TypeError, ValueError for hints that are none, more than one dim, or counts below 1.

    >>> from strideweave.inductor import spyre_hint
    >>> def f(x, y):
    ...     with spyre_hint(named_dims=["rows", "columns"]), spyre_hint(num_tiles_per_dim={"rows": 4}):
    ...         return x + y
    """
    counts = [given for given in (num_tiles_per_dim, tiles, slices) if given is not None]
    if len(counts) + (named_dims is not None) + (work_div is not None) != 1:
        raise TypeError(
            "cannot make this hint: a block has one of num_tiles_per_dim, named_dims and work_div. Nest blocks for "
            "more."
        )
    hint: dict[str, Any]
    if named_dims is not None:
        hint = {"named_dims": tuple(named_dims)}
    elif work_div is not None:
        hint = {"work_div": _counts(work_div, "work_div")}
    else:
        hint = {"num_tiles_per_dim": _counts(counts[0], "num_tiles_per_dim")}
        if len(hint["num_tiles_per_dim"]) != 1:
            raise ValueError(
                f"cannot tile {sorted(hint['num_tiles_per_dim'])} in one block: each is a loop of its own, and their "
                "order counts. Name one dim in a block, and nest blocks."
            )
    return annotate({f"{_PREFIX}{next(_ids)}": hint})


def _counts(given: Mapping[str, int], name: str) -> dict[str, int]:
    counts = dict(given)
    for dim, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or not isinstance(dim, str):
            raise TypeError(f"cannot use {dim!r}: {count!r} in {name}: it maps names to ints. Pass {{'M': 8}}.")
        if count < 1:
            raise ValueError(f"cannot use {count} for {dim!r} in {name}: a count is 1 or more. Pass one.")
    return counts


Group: TypeAlias = tuple[list[ir.ComputedBuffer], list[tuple[int, sympy.Integer]]]
"""Operations that run in one loop nest, and its levels: (hint id, count), outermost first."""


@dataclass(frozen=True, slots=True)
class DimHint:
    """One loop of one operation: in how many tiles its dim is done, and which symbol that is."""

    dim_names: tuple[str, ...]
    split_count: int
    loop_var: sympy.Symbol | None
    """The operation's own symbol; None where it does not iterate the dim."""
    is_reduction: bool
    hint_id: int
    """Hints of one block share it; the outer block's is smaller."""
    tile_extent: int | None = None
    """The range of a tile where the last one is shorter; None where the count divides the range."""


def propagate_named_dims(graph: Any) -> None:
    """Name the symbols of every operation: from the dims of what it reads, and from hints."""
    inputs = zip(graph.graph_inputs, names_of_inputs(), strict=False)
    names: dict[str, DimNames] = {name: known for name, known in inputs if known is not None}
    for op in computed_ops(graph):
        symbols: dict[sympy.Symbol, str] = {}
        for read in op.reads:
            for coordinate, dim in zip(read.host_coordinates, names.get(read.name, ()), strict=False):
                if dim is not None and coordinate in op.iteration.ranges:
                    symbols.setdefault(coordinate, dim)
        # What was put in between has the hints of the operation that it serves, and dims of its own.
        for hint in () if hasattr(op.buffer, "spyre_name") else _hints(op.buffer).values():
            named = zip(op.iteration.output, hint.get("named_dims", ()), strict=False)
            symbols.update((s, dim) for s, dim in named if dim is not None and s in op.iteration.ranges)
        op.named_symbols = symbols
        names[op.name] = tuple(symbols.get(symbol) for symbol in op.iteration.output)


def assign_dim_hints(graph: Any) -> None:
    """Give every operation in a hinted block its DimHints, outermost first, and its share of cores."""
    if config.ignore_wsr_hints:
        return
    for op in computed_ops(graph):
        by_name = {dim: symbol for symbol, dim in op.named_symbols.items()}
        hints = []
        for number, hint in sorted(_hints(op.buffer).items()):
            for dim, count in hint.get("num_tiles_per_dim", {}).items():
                symbol = by_name.get(dim)
                is_reduction = symbol in op.iteration.reduction_symbols
                hints.append(DimHint((dim,), count, symbol, is_reduction, number))
            for dim, cores in hint.get("work_div", {}).items():
                if dim in by_name and not config.ignore_work_division_hints:
                    op.work_div[by_name[dim]] = cores
        if hints:
            op.buffer.dim_hints = hints  # type: ignore[attr-defined]


def dim_hints_of(buffer: Any) -> list[DimHint]:
    """The hints of an operation; none for most."""
    return list(getattr(buffer, "dim_hints", ()))


def _hints(buffer: ir.ComputedBuffer) -> dict[int, dict[str, Any]]:
    """The hints of the blocks that the operation was in, by number."""
    found: dict[int, dict[str, Any]] = {}
    origin = buffer.get_origin_node() or getattr(buffer.data, "origin_node", None)
    nodes = [origin] if origin is not None else list(buffer.origins)
    for node in nodes:
        for key, hint in (node.meta.get("custom") or {}).items():
            if isinstance(key, str) and key.startswith(_PREFIX):
                found[int(key.removeprefix(_PREFIX))] = hint
    return found


def hints_to_coarse_tile_groups(graph: Any) -> list[Group]:
    """Runs of consecutive operations with the same hints, each with its levels: (hint id, count), outermost first."""
    groups: list[Group] = []
    run: list[Op] = []
    ids: tuple[int, ...] = ()

    def close() -> None:
        levels = _levels(run)
        if run and levels:
            groups.append(([op.buffer for op in run], levels))
        run.clear()

    ops = {op.name: op for op in computed_ops(graph)}
    for operation in graph.operations:
        op = ops.get(operation.get_name())
        own = () if op is None else _tiling_ids(op)
        if not own or own != ids:
            close()
            ids = own
        if op is not None and own:
            run.append(op)
    close()
    return groups


def _tiling_ids(op: Op) -> tuple[int, ...]:
    """The hints by which an operation is tiled; none where it iterates none of their dims, and has nothing to tile."""
    hints = dim_hints_of(op.buffer)
    return tuple(h.hint_id for h in hints) if any(h.loop_var is not None for h in hints) else ()


def _levels(run: Sequence[Op]) -> list[tuple[int, sympy.Integer]]:
    """The levels of a run that make a loop: more than one tile, along a dim that some operation iterates."""
    if not run:
        return []
    levels = []
    for k, hint in enumerate(dim_hints_of(run[0].buffer)):
        if hint.split_count > 1 and any(dim_hints_of(op.buffer)[k].loop_var is not None for op in run):
            levels.append((hint.hint_id, sympy.Integer(hint.split_count)))
    return levels


def reorder_unhinted_interlopers(graph: Any) -> None:
    """Move operations without hints out of runs that belong together: before the run if they can, else behind it.

    Errors: Unsupported when one reads what the run computes and is read by the rest of it.
    """
    operations = graph.operations
    ops = {op.name: op for op in computed_ops(graph)}

    def ids(operation: Any) -> tuple[int, ...]:
        op = ops.get(operation.get_name())
        return () if op is None else _tiling_ids(op)

    for wanted in dict.fromkeys(found for found in map(ids, operations) if found):
        places = [k for k, operation in enumerate(operations) if ids(operation) == wanted]
        begin, end = places[0], places[-1]
        inside = operations[begin : end + 1]
        run = [o for o in inside if ids(o) == wanted]
        others = [o for o in inside if ids(o) != wanted]
        before, behind = list[Any](), list[Any]()
        for other in others:
            earlier = run[: sum(operations.index(o) < operations.index(other) for o in run)]
            if not _depends(other, [*earlier, *behind]):
                before.append(other)
            elif not any(_depends(later, [other]) for later in run[len(earlier) :]):
                behind.append(other)
            else:
                raise Unsupported(
                    f"cannot run {[o.get_name() for o in run]} in one loop: {other.get_name()}, which is outside the "
                    "hinted block, reads some of them and is read by others. Operations of a block are consecutive. "
                    "Take it into the block, or end the block before it."
                )
        operations[begin : end + 1] = [*before, *run, *behind]


def _depends(operation: Any, on: Sequence[Any]) -> bool:
    """Whether an operation reads or writes what one of the others writes, or writes what one reads."""
    written = {operation.get_name(), *operation.get_mutation_names()}
    touched = {d.name for d in operation.get_read_writes().reads} | written
    for other in on:
        theirs = {other.get_name(), *other.get_mutation_names()}
        if theirs & touched or {d.name for d in other.get_read_writes().reads} & written:
            return True
    return False
