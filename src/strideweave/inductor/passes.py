"""The passes over Inductor's operations, in their order, right before its scheduler is made."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir

from strideweave.inductor.coarse_tile import coarse_tile, span_overflow_groups
from strideweave.inductor.hints import (
    assign_dim_hints,
    hints_to_coarse_tile_groups,
    propagate_named_dims,
    reorder_unhinted_interlopers,
)
from strideweave.inductor.logs import logged
from strideweave.inductor.ops import is_on_card
from strideweave.inductor.propagate_layouts import propagate_spyre_tensor_layouts
from strideweave.inductor.report import add_fallback
from strideweave.inductor.restickify import insert_restickify
from strideweave.inductor.spans.groups import in_order


def run(graph: Any) -> None:
    """Give every buffer of a lowered graph its layout on the card, and tile and divide what must be."""
    tell_fallbacks(graph)
    logged(propagate_spyre_tensor_layouts, graph)
    logged(insert_restickify, graph)
    logged(propagate_named_dims, graph)
    logged(assign_dim_hints, graph)
    logged(reorder_unhinted_interlopers, graph)
    groups = logged(hints_to_coarse_tile_groups, graph)
    groups = in_order(graph, [*groups, *logged(span_overflow_groups, graph)])
    logged(coarse_tile, graph, groups)


def tell_fallbacks(graph: Any) -> None:
    """Say which operations run elsewhere than on the card, and why; each once."""
    for operation in graph.operations:
        if isinstance(operation, ir.FallbackKernel):
            add_fallback(str(operation.op_overload), "Inductor has no lowering to loops for it")
        elif isinstance(operation, ir.ComputedBuffer) and not is_on_card(operation):
            nodes = sorted(str(node.target) for node in operation.origins)
            add_fallback(", ".join(nodes) or operation.get_name(), f"its result is on {operation.get_device()}")
