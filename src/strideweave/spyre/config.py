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
dxp_lx_frac_avail: float = float(os.environ.get("DXP_LX_FRAC_AVAIL", "0.2"))
"""The share of the scratchpad that belongs to the back end."""
unroll_loops: bool = _flag("UNROLL_LOOPS", "0")
"""Whether loops become copies of their body; one body with advancing addresses otherwise."""

if TYPE_CHECKING:
    from torch.utils._config_typing import *  # noqa: F403

install_config_module(sys.modules[__name__])
