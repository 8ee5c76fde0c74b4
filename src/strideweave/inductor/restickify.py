"""Restickify: the same host tensor with its sticks along another dim, made where an operation needs them so."""

from __future__ import annotations

from typing import Any, Final

import sympy
from torch._inductor import ir, virtualized
from torch._inductor.ops_handler import WrapperHandler
from torch._inductor.virtualized import V

from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.ops import Op, Touch, computed_ops, layout_of, op_of, owner_of
from strideweave.spyre.tensor_layout import SpyreTensorLayout

RESTICKIFY: Final = "ReStickifyOpHBM"
"""What the operation is called."""


def insert_restickify(graph: Any) -> None:
    """Give every operation operands whose sticks run along the symbols that it needs them along.

    Pointwise operations need the sticks of their result; a matrix product needs those of its left operand along the
    inner dim, and those of its right one and of its result along the columns. One restickified buffer serves all who
    need it alike.
    """
    made: dict[tuple[str, int], str] = {}
    for op in computed_ops(graph):
        for touch, wanted in _wanted(op):
            dim = _dim_along(touch, wanted)
            if dim is None or not _can_restickify(touch, dim):
                continue
            key = (touch.name, dim)
            if key not in made or _is_changed_since(graph, touch.name, made[key], op):
                made[key] = _restickified(graph, op, touch.name, dim)
            _redirect(op, touch, made[key])


def stick_symbol(touch: Touch, layout: SpyreTensorLayout) -> sympy.Symbol | None:
    """The symbol that runs along the sticks of an access; None where none does, or more than one."""
    assert layout.dim_map is not None
    dim = layout.dim_map[-1]
    if dim < 0 or dim >= len(touch.host_coordinates):
        return None
    coordinate = touch.host_coordinates[dim]
    return coordinate if isinstance(coordinate, sympy.Symbol) else None


def _wanted(op: Op) -> list[tuple[Touch, sympy.Symbol]]:
    """The reads whose sticks do not run along the symbol that the operation needs, with that symbol."""
    if op.reduction_type == "batchmatmul":
        left, right = _operands(op)
        inner = op.iteration.reduction_symbols
        columns = op.iteration.output[-1]
        needs = [(left, inner[0] if inner else None), (right, columns if columns in op.iteration.ranges else None)]
    elif op.is_reduction:
        return []
    else:
        along = stick_symbol(op.write, layout_of(op.name).device_layout)
        needs = [(touch, along) for touch in op.reads]
    found = []
    for touch, symbol in needs:
        if touch is None or symbol is None:
            continue
        now = stick_symbol(touch, layout_of(touch.name).device_layout)
        if now is not None and now != symbol:
            found.append((touch, symbol))
    return found


def _operands(op: Op) -> tuple[Touch | None, Touch | None]:
    """The two reads of a matrix product, as the product names them."""
    loads = [step for step in op.recording.steps if step[0] == "load"]
    if len(loads) != 2:
        return None, None
    return op.reads[loads[0][1]], op.reads[loads[1][1]]


def _dim_along(touch: Touch, symbol: sympy.Symbol) -> int | None:
    """The host dim that a symbol alone runs along."""
    dims = [k for k, coordinate in enumerate(touch.host_coordinates) if coordinate == symbol]
    return dims[0] if len(dims) == 1 else None


def _can_restickify(touch: Touch, dim: int) -> bool:
    """Whether the buffer is a whole one of the graph, of known dims."""
    layout = layout_of(touch.name)
    return owner_of(touch.name) == touch.name and not layout.is_flat and len(layout.size) > dim


def _is_changed_since(graph: Any, source: str, copy: str, op: Op) -> bool:
    """Whether something between the copy and the operation writes into what was copied."""
    names = [operation.get_name() for operation in graph.operations]
    between = graph.operations[names.index(copy) : names.index(op.name)]
    return any(source in map(owner_of, operation.get_mutation_names()) for operation in between)


def with_stick(layout: FixedTiledLayout, dim: int) -> SpyreTensorLayout:
    """The generic stick layout of the same host tensor with its sticks along `dim`."""
    size, stride = layout.space
    order = [k for k in sorted(range(len(size)), key=lambda k: (-stride[k], k)) if k != dim]
    return SpyreTensorLayout(size, stride, layout.dtype, (*order, dim))


def _restickified(graph: Any, op: Op, source: str, dim: int) -> str:
    """A new buffer with the values of `source` and other sticks, computed right before `op`."""
    layout = layout_of(source)
    indexer = ir.FixedLayout(layout.device, layout.dtype, layout.size, layout.stride, layout.offset).make_indexer()

    def inner_fn(index: Any) -> Any:
        return virtualized.ops.load(source, indexer(index))

    data = ir.Pointwise(device=layout.device, dtype=layout.dtype, inner_fn=inner_fn, ranges=list(layout.size))
    tiled = FixedTiledLayout(layout.device, layout.dtype, layout.size, layout.stride, 0, with_stick(layout, dim))
    buffer = ir.ComputedBuffer(name=None, layout=tiled, data=data)
    buffer.origins = op.buffer.origins
    buffer._post_init_setattr("origin_node", op.buffer.get_origin_node())
    buffer.name = graph.register_buffer(buffer)
    graph.register_operation(buffer)
    buffer.spyre_name = RESTICKIFY  # type: ignore[attr-defined]
    graph.operations.remove(buffer)
    names = [operation.get_name() for operation in graph.operations]
    graph.operations.insert(names.index(op.name), buffer)
    assert buffer.name is not None
    return buffer.name


class _Renaming(WrapperHandler):
    """One load goes to another buffer than the function names."""

    def __init__(self, inner: Any, name: str, index: sympy.Expr, new: str) -> None:
        super().__init__(inner)
        self._name = name
        self._index = index
        self._new = new

    def load(self, name: str, index: sympy.Expr) -> Any:
        """Load, from the buffer that took the place of the named one where that is meant."""
        meant = name == self._name and sympy.expand(index - self._index) == 0
        return self._inner.load(self._new if meant else name, index)


def _redirect(op: Op, touch: Touch, new: str) -> None:
    """From now on one read of the operation is of another buffer of the same host layout."""
    data = op.buffer.data
    inner = data.inner_fn
    symbols = [*op.iteration.output, *op.iteration.reduction]

    def renamed(*index: Any) -> Any:
        given = [sympy.sympify(i) for part in index for i in part]
        meant = {s: i for s, i in zip(symbols, given, strict=True) if isinstance(s, sympy.Symbol)}
        with V.set_ops_handler(_Renaming(V.get_ops_handler(), touch.name, touch.access.index.subs(meant), new)):
            return inner(*index)

    object.__setattr__(data, "inner_fn", renamed)
    op.buffer.__dict__.pop("_spyre_op", None)
    op.__dict__.update(op_of(op.buffer).__dict__)
    op.buffer._spyre_op = op  # type: ignore[attr-defined]
