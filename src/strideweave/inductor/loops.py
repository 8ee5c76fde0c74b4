"""Counted loops among the scheduler's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import sympy
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.scheduler import FusedSchedulerNode, Scheduler

from strideweave.inductor.fx_passes import sources
from strideweave.inductor.loop_plans import CoarseTileInfo, loop_info_of
from strideweave.inductor.ops import op_of


class CountedLoopSchedulerNode(FusedSchedulerNode):
    """Consecutive nodes that run `loop_count` times together; never taken apart, never fused."""

    def __init__(self, scheduler: Scheduler, snodes: Sequence[Any], loop_count: sympy.Integer, level: int) -> None:
        super().__init__(scheduler, list(snodes))
        self.loop_count = loop_count
        """How many times they run."""
        self.level = level
        """How many loops are around this one."""

    @property
    def uneven(self) -> tuple[int, int] | None:
        """The range of a tile, and of all of them, where the last one is shorter; None where all are alike."""
        for buffer, info in self._infos():
            tile, symbol = info.tile_extents[self.level], info.symbols[self.level]
            if tile is not None and symbol is not None:
                return tile, op_of(buffer).iteration.ranges[symbol]
        return None

    @property
    def loops_outside(self) -> int:
        """How many loops that run more than once are around this one."""
        return next(info.loops(self.level) for _, info in self._infos())

    def _infos(self) -> Iterator[tuple[Any, CoarseTileInfo]]:
        for node in self.snodes:
            if isinstance(node, CountedLoopSchedulerNode):
                yield from node._infos()
            else:
                info = loop_info_of(node.node)
                assert info is not None
                yield node.node, info


class LoopPass(CustomSchedulerPass):
    """Wraps the nodes of every loop, before Inductor looks for what to fuse."""

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """The nodes, with loops in place of what they hold."""
        return build_loop_scheduler_nodes(nodes)

    def uuid(self) -> str:
        """Our sources."""
        return sources()


def build_loop_scheduler_nodes(nodes: Sequence[Any], level: int = 0) -> list[Any]:
    """Wrap maximal runs of nodes in one loop, and those within again, level by level.

    Errors: RuntimeError when the nodes of a loop are apart: it would run twice.
    """
    made: list[Any] = []
    seen: set[tuple[int, ...]] = set()
    for key, run in groupby(nodes, key=lambda node: _loop_of(node, level)):
        members = list(run)
        if key is None:
            made += members
            continue
        if key in seen:
            raise RuntimeError(
                f"cannot build loop {key}: its operations are apart, with others between. A loop runs once. This is a "
                "fault of the order of passes."
            )
        seen.add(key)
        inner = build_loop_scheduler_nodes(members, level + 1)
        info = loop_info_of(members[0].node)
        assert info is not None
        scheduler = members[0].scheduler
        loop = CountedLoopSchedulerNode(scheduler, inner, info.loop_count[level], level)
        for name in loop.get_buffer_names():
            scheduler.name_to_fused_node[name] = loop
        for member in members:
            scheduler.name_to_fused_node[member.get_name()] = loop
        made.append(loop)
    return made


def _loop_of(node: Any, level: int) -> tuple[int, ...] | None:
    info = loop_info_of(getattr(node, "node", None))
    return info.loop_group_id[: level + 1] if info is not None and info.depth > level else None
