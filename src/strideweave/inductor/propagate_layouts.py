"""Which layout every buffer has on the card."""

from __future__ import annotations

from typing import Any

import sympy
from torch._inductor import ir

from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.ops import Op, computed_ops, layout_of
from strideweave.inductor.restickify import stick_symbol, with_stick
from strideweave.spyre.default_layout import layout_for


def propagate_spyre_tensor_layouts(graph: Any) -> None:
    """Every buffer on the card gets a FixedTiledLayout.

    What crosses the graph's boundary, or is made or read outside our operations, has the default layout of its host
    size and strides. The others take the sticks of what they are made from, where all of that agrees.
    """
    for value in graph.graph_inputs.values():
        if isinstance(value, ir.IRNode):
            _tile(value)
    for buffer in [*(graph.name_to_buffer.get(name) for name in graph.constants), *graph.buffers]:
        if buffer is not None:
            _tile(buffer)
    bound = _bound(graph)
    for op in computed_ops(graph):
        if op.name not in bound:
            _follow(op)


def _tile(value: Any) -> None:
    while isinstance(value, ir.MutableBox):
        value = value.data
    layout = getattr(value, "layout", None)
    if type(layout) is ir.FlexibleLayout:
        if isinstance(value, ir.ComputedBuffer):
            value.decide_layout()
        else:
            value.freeze_layout()
        layout = value.layout
    if type(layout) is ir.FixedLayout and layout.device.type == "spyre":
        size, stride = tuple(int(n) for n in layout.size), tuple(int(n) for n in layout.stride)
        value.layout = FixedTiledLayout.of(layout, layout_for(size, stride, layout.dtype))


def _bound(graph: Any) -> set[str]:
    """The buffers whose layout is settled: outputs, what is mutated or viewed as part, what others make or read."""
    bound = set(graph.get_output_names()) | set(graph.mutated_buffers)
    ours = {op.name for op in computed_ops(graph)}
    for operation in graph.operations:
        if operation.get_name() not in ours:
            bound |= {operation.get_name(), *(d.name for d in operation.get_read_writes().reads)}
        layout = operation.get_output_spec() if hasattr(operation, "get_output_spec") else None
        if isinstance(layout, ir.NonOwningLayout):
            bound |= {operation.get_name(), layout.view.get_name()}
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            bound |= {operation.get_name(), layout.get_buffer().get_name()}
    return bound


def _follow(op: Op) -> None:
    """Give a result sticks along the symbol that the sticks of all its operands run along."""
    layout = op.buffer.layout
    if not isinstance(layout, FixedTiledLayout) or layout.is_flat:
        return
    symbols: set[sympy.Symbol] = set()
    if op.reduction_type == "batchmatmul":
        columns = op.iteration.output[-1]
        symbols = {columns} if columns in op.iteration.ranges else set()
    else:
        found = {stick_symbol(touch, layout_of(touch.name).device_layout) for touch in op.reads}
        symbols = {s for s in found if s is not None and s in op.iteration.output}
    if len(symbols) != 1:
        return
    (symbol,) = symbols
    dims = [k for k, coordinate in enumerate(op.write.host_coordinates) if coordinate == symbol]
    if len(dims) == 1 and stick_symbol(op.write, layout.device_layout) != symbol:
        op.buffer.layout = FixedTiledLayout.of(layout, with_stick(layout, dims[0]))
