"""The passes over Inductor's operations, in their order, right before its scheduler is made."""

from __future__ import annotations

from typing import Any

import sympy
from torch._inductor import ir

from strideweave.inductor.propagate_layouts import propagate_spyre_tensor_layouts


def run(graph: Any) -> None:
    """Give every buffer of a lowered graph its layout on the card, and tile and divide what must be."""
    propagate_spyre_tensor_layouts(graph)


def splits_of(buffer: ir.ComputedBuffer) -> dict[sympy.Symbol, int]:
    """Over how many cores each symbol of an operation is divided."""
    return {}


def tiled_symbols_of(buffer: ir.ComputedBuffer) -> tuple[tuple[sympy.Symbol, ...], ...]:
    """The symbols that the loops around an operation advance, innermost loop first."""
    return ()
