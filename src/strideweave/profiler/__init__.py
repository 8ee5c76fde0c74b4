"""A look at what ran: every operation and move of a block, as events, averages, a table and a Chrome trace."""

from strideweave.profiler.events import ProfilerAggregate, ProfilerEvent
from strideweave.profiler.profile import profile

__all__ = ["ProfilerAggregate", "ProfilerEvent", "profile"]
