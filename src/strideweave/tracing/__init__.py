"""Where tiles were and who waited for them: a block as a timeline for Perfetto and as a page."""

from strideweave.tracing.recording import TraceEvent
from strideweave.tracing.trace import TraceRow, trace

__all__ = ["TraceEvent", "TraceRow", "trace"]
