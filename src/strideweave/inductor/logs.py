"""What each pass did, told to whoever asks: `STRIDEWEAVE_LOGS=restickify,coarse_tile`, or `all`.

Every pass has a logger of its own below `strideweave.inductor`; at level DEBUG it says how long the pass took and what
the operations are behind it. Python's own `logging` configuration works as well.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, TypeVar

T = TypeVar("T")
ROOT: Final = "strideweave.inductor"


def configure(wanted: str | None = None) -> None:
    """Turn on the loggers of these passes, separated by commas; what STRIDEWEAVE_LOGS says when nothing is given."""
    text = os.environ.get("STRIDEWEAVE_LOGS", "") if wanted is None else wanted
    for name in filter(None, (part.strip() for part in text.split(","))):
        logger = logging.getLogger(ROOT if name == "all" else f"{ROOT}.{name}")
        logger.setLevel(logging.DEBUG)
        if not logging.getLogger(ROOT).handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
            logging.getLogger(ROOT).addHandler(handler)
            logging.getLogger(ROOT).propagate = False


def logged(function: Callable[..., T], graph: Any, *arguments: Any) -> T:
    """Run a pass over a graph, and say what it did."""
    logger = logging.getLogger(f"{ROOT}.{function.__name__}")
    if not logger.isEnabledFor(logging.DEBUG):
        return function(graph, *arguments)
    began = perf_counter()
    found = function(graph, *arguments)
    took = (perf_counter() - began) * 1e3
    logger.debug("%s took %.1f ms; %d operations:%s", function.__name__, took, len(graph.operations), _lines(graph))
    return found


def _lines(graph: Any) -> str:
    lines = []
    for operation in graph.operations:
        layout = getattr(operation, "layout", None)
        device = getattr(layout, "device_layout", None)
        where = f" {list(device.device_size)} {list(device.stride_map)}" if device is not None else f" {layout}"
        info = getattr(operation, "loop_info", None)
        loops = f" in loops of {' x '.join(str(n) for n in info.loop_count)}" if info is not None else ""
        hints = getattr(operation, "dim_hints", ())
        told = f" hints {[(h.dim_names, h.split_count) for h in hints]}" if hints and info is None else ""
        lines.append(f"\n    {operation.get_name()}: {type(operation).__name__}{where}{told}{loops}")
    return "".join(lines)
