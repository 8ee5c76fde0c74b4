"""The passes over Inductor's operations, in their order, right before its scheduler is made."""

from __future__ import annotations

from typing import Any

from strideweave.inductor.coarse_tile import coarse_tile, span_overflow_groups
from strideweave.inductor.hints import (
    assign_dim_hints,
    hints_to_coarse_tile_groups,
    propagate_named_dims,
    reorder_unhinted_interlopers,
)
from strideweave.inductor.propagate_layouts import propagate_spyre_tensor_layouts
from strideweave.inductor.restickify import insert_restickify
from strideweave.inductor.spans.groups import in_order


def run(graph: Any) -> None:
    """Give every buffer of a lowered graph its layout on the card, and tile and divide what must be."""
    propagate_spyre_tensor_layouts(graph)
    insert_restickify(graph)
    propagate_named_dims(graph)
    assign_dim_hints(graph)
    reorder_unhinted_interlopers(graph)
    groups = hints_to_coarse_tile_groups(graph)
    coarse_tile(graph, in_order(graph, [*groups, *span_overflow_groups(graph)]))
