"""Copy-back elision: what is computed only to be copied into memory that is there already is computed there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._inductor import ir
from torch._inductor.virtualized import V

from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.ops import Op, computed_ops, owner_of
from strideweave.spyre import config


def elide_copy_back(graph: Any) -> None:
    """Let operations write straight into the buffer that their result is copied into, and drop the copies.

    With automatic tiling on, pointwise operations keep their own result, so that the planner of tiles sees it.

    Source: seed 002, "Configuration".
    """
    for copy in computed_ops(graph):
        maker = _maker_of(copy, graph)
        if maker is None:
            continue
        if isinstance(maker.buffer.data, ir.Pointwise) and not _is_elided_for_pointwise():
            continue
        maker.buffer.layout = copy.buffer.layout
        del maker.buffer._spyre_op  # type: ignore[attr-defined]
        graph.operations.remove(copy.buffer)
        V.graph.removed_buffers.add(copy.name)
    for place, operation in enumerate(graph.operations):  # later passes number new ones by how many there are
        operation.operation_name = f"op{place}"
    graph.name_to_op = {operation.operation_name: operation for operation in graph.operations}


def _is_elided_for_pointwise() -> bool:
    return config.ignore_span_overflow_hints or config.ignore_wsr_hints


def _maker_of(copy: Op, graph: Any) -> Op | None:
    """What computes the source of a copy into another buffer's memory, if it may do so in place of the copy."""
    if not isinstance(copy.buffer.get_layout(), ir.MutationLayoutSHOULDREMOVE) or copy.is_reduction:
        return None
    plain = [step[0] for step in copy.recording.steps if step[0] not in ("load", "to_dtype", "copy")]
    if plain or len(copy.reads) != 1 or copy.recording.store_mode != "set" or copy.name in graph.get_output_names():
        return None
    (read,) = copy.reads
    ops = {op.name: op for op in computed_ops(graph)}
    maker, into = ops.get(read.name), owner_of(copy.name)
    if maker is None or not isinstance(maker.buffer.layout, FixedTiledLayout) or maker.name in graph.get_output_names():
        return None
    same_place = (
        maker.buffer.get_dtype() == copy.buffer.get_dtype()
        and read.access.index == copy.write.access.index == maker.write.access.index
        and maker.iteration.output == copy.iteration.output
        and all(maker.iteration.ranges[s] == copy.iteration.ranges[s] for s in copy.iteration.ranges)
    )
    reads_elsewhere = any(owner_of(t.name) == into and t.access.index != maker.write.access.index for t in maker.reads)
    if not same_place or reads_elsewhere or (maker.is_reduction and any(owner_of(t.name) == into for t in maker.reads)):
        return None
    return maker if _only_copied(maker, copy, into, graph.operations) else None


def _only_copied(maker: Op, copy: Op, into: str, operations: Sequence[Any]) -> bool:
    """Whether nothing else reads the result, and nothing between touches the memory that it goes into."""
    names = [operation.get_name() for operation in operations]
    begin, end = names.index(maker.name), names.index(copy.name)
    for place, operation in enumerate(operations):
        if operation is copy.buffer:
            continue
        touched = {owner_of(d.name) for d in operation.get_read_writes().reads}
        if maker.name in touched or maker.name in operation.get_mutation_names():
            return False
        is_between = begin < place < end
        if is_between and into in touched | {owner_of(n) for n in operation.get_mutation_names()}:
            return False
    return True
