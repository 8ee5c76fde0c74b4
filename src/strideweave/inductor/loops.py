"""Counted loops among the scheduler's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor.scheduler import FusedSchedulerNode, Scheduler


class CountedLoopSchedulerNode(FusedSchedulerNode):
    """Consecutive nodes that run `loop_count` times together; never taken apart, never fused."""

    def __init__(self, scheduler: Scheduler, snodes: Sequence[Any], loop_count: sympy.Expr) -> None:
        super().__init__(scheduler, list(snodes))
        self.loop_count = loop_count
        """How many times they run."""
