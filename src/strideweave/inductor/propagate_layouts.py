"""Which layout every buffer has on the card."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir

from strideweave.inductor.ir import FixedTiledLayout
from strideweave.spyre.default_layout import layout_for


def propagate_spyre_tensor_layouts(graph: Any) -> None:
    """Every buffer on the card gets a FixedTiledLayout: what crosses the graph's boundary has the default one."""
    for value in graph.graph_inputs.values():
        if isinstance(value, ir.TensorBox | ir.IRNode):
            _tile(value)
    for name in graph.constants:
        if name in graph.name_to_buffer:
            _tile(graph.name_to_buffer[name])
    for buffer in graph.buffers:
        _tile(buffer)


def _tile(value: Any) -> None:
    while isinstance(value, ir.MutableBox):
        value = value.data
    layout = getattr(value, "layout", None)
    if type(layout) is ir.FlexibleLayout:
        value.decide_layout() if isinstance(value, ir.ComputedBuffer) else value.freeze_layout()
        layout = value.layout
    if type(layout) is ir.FixedLayout and layout.device.type == "spyre":
        size, stride = [int(n) for n in layout.size], [int(n) for n in layout.stride]
        value.layout = FixedTiledLayout.of(layout, layout_for(tuple(size), tuple(stride), layout.dtype))
