"""What the planner of automatic tiles decides, without memory for its shapes; and functions run in such tiles."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config as inductor_config
from torch._inductor.exc import InductorError
from torch._subclasses import FakeTensorMode

from strideweave.inductor import Unsupported, passes
from strideweave.inductor.report import Report, reporting
from strideweave.inductor.span_overflow_hint_analysis import SpanAnalysis, SpanOverflowTilePlan
from strideweave.inductor.spans import groups
from strideweave.spyre import config


@dataclass
class Planned:
    """What the passes found for every ComputedBuffer, and the loops that they made."""

    analyses: dict[str, SpanAnalysis] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    """How long each operation was analysed, the refused ones too."""
    groups: list[tuple[list[str], list[tuple[int, int]]]] = field(default_factory=list)
    """The automatic groups: operations, and (hint id, count) of each level."""
    hints: dict[str, list[Any]] = field(default_factory=dict)
    infos: dict[str, Any] = field(default_factory=dict)
    """CoarseTileInfo of every operation that is in loops."""
    ranges: dict[str, list[int]] = field(default_factory=dict)
    """The ranges of every operation within a tile."""
    report: Report = field(default_factory=Report)

    @property
    def plans(self) -> dict[str, SpanOverflowTilePlan | None]:
        """The plan of every operation that was analysed."""
        return {name: analysis.plan for name, analysis in self.analyses.items()}

    @property
    def levels(self) -> dict[str, list[tuple[Any, ...]]]:
        """The levels of every operation, in short; none without a plan."""
        return {name: [] if plan is None else short(plan) for name, plan in self.plans.items()}

    @property
    def one(self) -> list[tuple[Any, ...]]:
        """The levels of the only operation."""
        (found,) = self.levels.values()
        return found

    @property
    def loops(self) -> list[tuple[str, tuple[int, ...]]]:
        """The operations of the programs with the counts of the loops around them."""
        return [(row.op, row.loops) for row in self.report.rows]


def short(plan: SpanOverflowTilePlan) -> list[tuple[Any, ...]]:
    """(dim, count) of every level, ("k", dim, count) of a reduction's; the range of a tile if the last is shorter."""
    found = []
    for level in plan.levels:
        first = ("k",) if level.is_reduction else ()
        last = () if level.tile_extent is None else (level.tile_extent,)
        found.append((*first, level.selected_host_dim, level.split_count, *last))
    return found


def planned(
    function: Callable[..., Any],
    *shapes: Any,
    limit: int | None = None,
    cores: int | None = None,
    inspect: Callable[[Any], None] | None = None,
    **switches: Any,
) -> Planned:
    """Compile on tensors without memory: a shape is a tuple (Float16), (tuple, dtype), or a function that makes one.

    `inspect` is called with the graph right before automatic tiles are planned. Errors: Unsupported as it is raised.
    """
    torch._dynamo.reset()
    with FakeTensorMode(), settings(limit, cores, **switches), watched(inspect) as made:
        compiled_once(function, [_fake(shape) for shape in shapes])
    return made


@contextmanager
def watched(inspect: Callable[[Any], None] | None = None) -> Iterator[Planned]:
    """While this lasts, what the passes find and make is kept."""
    made = Planned()
    analyse, find, tile = groups.analyse, passes.span_overflow_groups, passes.coarse_tile

    def analysed(op: Any, *rest: Any) -> SpanAnalysis:
        begin = time.perf_counter()
        try:
            found = analyse(op, *rest)
        finally:
            made.seconds.append(time.perf_counter() - begin)
        made.analyses[op.get_name()] = found
        return found

    def found_groups(graph: Any) -> Any:
        if inspect is not None:
            inspect(graph)
        found = find(graph)
        for ops, levels in found:
            made.groups.append(([op.get_name() for op in ops], [(number, int(count)) for number, count in levels]))
            made.hints.update((op.get_name(), list(op.dim_hints)) for op in ops)
        return found

    def tiled_graph(graph: Any, found: Any) -> None:
        tile(graph, found)
        for operation in graph.operations:
            info = getattr(operation, "loop_info", None)
            if info is not None:
                made.infos[operation.get_name()] = info
                made.ranges[operation.get_name()] = [int(n) for n in operation.data.ranges]

    with (
        patch.object(groups, "analyse", analysed),
        patch.object(passes, "span_overflow_groups", found_groups),
        patch.object(passes, "coarse_tile", tiled_graph),
        reporting() as made.report,
    ):
        yield made


def _fake(shape: Any) -> torch.Tensor:
    if callable(shape):
        made: torch.Tensor = shape()
        return made
    if shape and isinstance(shape[-1], torch.dtype):
        return torch.empty(shape[0], dtype=shape[1], device="spyre")
    return torch.empty(shape, dtype=torch.float16, device="spyre")


def settings(limit: int | None, cores: int | None, **switches: Any) -> Any:
    """Automatic tiling on, with these switches."""
    changes: dict[str, Any] = {"ignore_span_overflow_hints": False, **switches}
    if limit is not None:
        changes["max_span_bytes"] = limit
    if cores is not None:
        changes["sencores"] = cores
    return config.patch(changes)


def compiled_once(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The function compiled anew and called; Unsupported as it is, not as Inductor wraps it."""
    torch._dynamo.reset()
    with inductor_config.patch(force_disable_caches=True), warnings.catch_warnings(action="ignore"):
        try:
            return torch.compile(function, dynamic=False)(*args)
        except InductorError as error:
            if isinstance(error.inner_exception, Unsupported):
                raise error.inner_exception from None
            raise


@dataclass
class Tiled:
    """A function that ran on the card in automatic tiles."""

    report: Report
    results: list[torch.Tensor]

    @property
    def loops(self) -> list[tuple[str, tuple[int, ...]]]:
        """The operations with the counts of the loops around them."""
        return [(row.op, row.loops) for row in self.report.rows]

    @property
    def text(self) -> str:
        """The programs, one after the other."""
        return "\n".join(self.report.programs)

    @property
    def exceeding(self) -> list[tuple[str, str]]:
        """What is above the limit; nothing may be."""
        return [(row.name, o.name) for row in self.report.rows for o in row.operands if o.exceeds]


def tiled(
    function: Callable[..., Any],
    *args: Any,
    limit: int,
    cores: int = 4,
    tolerance: float = 0.0,
    plain: Callable[..., Any] | None = None,
    names: Sequence[Any] = (),
    **switches: Any,
) -> Tiled:
    """Run on the card in tiles, and compare with `plain` or the same function on the CPU: results, and arguments.

    No window of any operation is above the limit.
    """
    from strideweave.inductor import name_tensor_dims

    host = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    moved = [a.to("spyre") if isinstance(a, torch.Tensor) else a for a in args]
    for k, given in enumerate(names):
        if given is not None:
            moved[k] = name_tensor_dims(moved[k], given)
    want = (plain or function)(*host)
    with settings(limit, cores, **switches), reporting() as report:
        got = compiled_once(function, moved)
        made = Tiled(report, [r.cpu() for r in flat(got)])
        assert not made.exceeding, made.exceeding
    for found, expected in [*zip(made.results, flat(want), strict=True), *zip(moved, host, strict=True)]:
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return made


def flat(value: Any) -> list[torch.Tensor]:
    """Results as a list."""
    return list(value) if isinstance(value, tuple | list) else [value]
