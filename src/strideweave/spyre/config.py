"""Switches of the card and of the compiler that serves it; `config.patch({...})` changes them for a while.

The names and environment variables are those of seed 002. All are read when this module is imported.
"""

import os
import sys
from typing import TYPE_CHECKING

from torch.utils._config_module import install_config_module


def _flag(name: str, default: str) -> bool:
    return os.environ.get(name, default) == "1"


sencores: int = int(os.environ.get("SENCORES", "32"))
"""How many cores the card has, 1 to 32."""
max_span_bytes: int = 256 * 2**20
"""The window of one core into one tensor; exactly so many bytes are still allowed."""
poison: bool = _flag("STRIDEWEAVE_SPYRE_POISON", "1")
"""Whether padding, scratch and freed memory are filled with NaN."""

ignore_wsr_hints: bool = _flag("SPYRE_INDUCTOR_IGNORE_HINTS", "0")
"""Whether manual tiling is left out, and the automatic one with it."""
ignore_work_division_hints: bool = _flag("SPYRE_INDUCTOR_IGNORE_HINTS", "0")
"""Whether core counts in hints are left out."""
ignore_span_overflow_hints: bool = _flag("SPYRE_INDUCTOR_IGNORE_SPAN_OVERFLOW_HINTS", "1")
"""Whether automatic tiling of overflowing spans is left out."""
span_rule: str = os.environ.get("STRIDEWEAVE_SPAN_RULE", "window")
"""What accepts automatic tiles: "window", exact windows of every operand; "seed", the bounds that seed 002 states."""
span_split_cap: bool = _flag("STRIDEWEAVE_SPAN_SPLIT_CAP", "0")
"""Whether automatic tiling divides a dim by at most 64."""
span_reduction_tiling: bool = _flag("STRIDEWEAVE_SPAN_REDUCTION_TILING", "1")
"""Whether automatic tiling divides what is summed up, too."""
span_fusion: bool = _flag("STRIDEWEAVE_SPAN_FUSION", "1")
"""Whether reductions and matrix products share the loop of what they read, and two loops may follow each other."""
span_uneven_tiles: bool = _flag("STRIDEWEAVE_SPAN_UNEVEN_TILES", "1")
"""Whether the last tile may be shorter, where no count divides a range."""
span_count_cores: bool = _flag("STRIDEWEAVE_SPAN_COUNT_CORES", "0")
"""Whether automatic tiling leaves to work division what the cores divide anyway."""
span_gathers: bool = _flag("STRIDEWEAVE_SPAN_GATHERS", "1")
"""Whether operations that read at computed indices are tiled along their other dims."""
dxp_lx_frac_avail: float = float(os.environ.get("DXP_LX_FRAC_AVAIL", "0.2"))
"""The share of the scratchpad that belongs to the back end."""
unroll_loops: bool = _flag("UNROLL_LOOPS", "0")
"""Whether loops become copies of their body; one body with advancing addresses otherwise."""

if TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403

install_config_module(sys.modules[__name__])
