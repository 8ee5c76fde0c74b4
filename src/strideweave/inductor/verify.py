"""What must hold between passes and in what they leave: checked in tests, and wherever `config.verify` is on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy

from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.loop_plans import loop_info_of
from strideweave.inductor.ops import computed_ops
from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Spec, TensorArg


class InvalidProgram(AssertionError):
    """A pass left something that cannot be right; the message names it and the rule."""


def verify_layouts(graph: Any) -> None:
    """Every buffer of ours has a layout on the card, and every access of theirs lies inside it."""
    for op in computed_ops(graph):
        for touch in (*op.reads, op.write):
            for coordinate in touch.host_coordinates:
                unknown = coordinate.free_symbols - set(op.bounds)
                if unknown:
                    raise InvalidProgram(f"{op.name} reads {touch.name} at {coordinate}, where {unknown} is no symbol")
        layout = op.buffer.layout
        if isinstance(layout, FixedTiledLayout) and layout.device_layout.dim_map is None:
            raise InvalidProgram(f"{op.name} has {layout!r}, which does not know its host dims")


def verify_loops(graph: Any) -> None:
    """Operations of one loop are consecutive and have equal counts; every tiled symbol still has its range."""
    open_loops: list[tuple[int, ...]] = []
    closed: set[tuple[int, ...]] = set()
    counts: dict[tuple[int, ...], int] = {}
    for operation in graph.operations:
        info = loop_info_of(operation)
        path = [] if info is None else [info.loop_group_id[: k + 1] for k in range(info.depth)]
        while open_loops and open_loops[-1] not in path:
            closed.add(open_loops.pop())
        for level, key in enumerate(path):
            if key in closed:
                raise InvalidProgram(f"{operation.get_name()} is in loop {key}, which was over")
            assert info is not None
            if counts.setdefault(key, int(info.loop_count[level])) != int(info.loop_count[level]):
                raise InvalidProgram(f"loop {key} runs {counts[key]} and {info.loop_count[level]} times")
            if key not in open_loops:
                open_loops.append(key)


def verify_program(program: Program) -> None:
    """Every argument that a program writes is written once in every place, and every write advances with its loops.

    A write that its loops do not advance would be made again, over itself: that is right only for scratch.
    """
    for spec, loops in walk(program.specs):
        written = spec.args[-1]
        _verify_spec(spec, len(loops))
        fixed = len(loops) if written.per_tile_fixed else written.fixed_loops
        accumulates = any(_same_place(arg, written) for arg in spec.args[:-1])
        for k, loop in enumerate(loops[fixed:], start=fixed):
            symbols = spec.tiled_symbols[len(loops) - 1 - k] if spec.tiled_symbols else ()
            advances = any(s in c.free_symbols for s in symbols for c in written.device_coordinates)
            if not advances and loop.count > 1 and not accumulates and written.arg_index >= 0:
                raise InvalidProgram(
                    f"{spec.op} writes {written.name} in a loop of {loop.count} that does not advance it: it would be "
                    "written again each time"
                )


def walk(specs: Sequence[Spec], loops: tuple[LoopSpec, ...] = ()) -> list[tuple[OpSpec, tuple[LoopSpec, ...]]]:
    """Every operation with the loops around it, outermost first."""
    found: list[tuple[OpSpec, tuple[LoopSpec, ...]]] = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            found += walk(spec.body, (*loops, spec))
        else:
            found.append((spec, loops))
    return found


def _same_place(a: TensorArg, b: TensorArg) -> bool:
    return a.arg_index == b.arg_index and dict(a.allocation) == dict(b.allocation) and a.name == b.name


def _verify_spec(spec: OpSpec, depth: int) -> None:
    if spec.tiled_symbols and len(spec.tiled_symbols) != depth:
        raise InvalidProgram(f"{spec.op} names the symbols of {len(spec.tiled_symbols)} loops, and is in {depth}")
    for level in spec.tiled_symbols:
        for symbol in level:
            if symbol not in spec.iteration_space:
                raise InvalidProgram(f"{spec.op} is tiled along {symbol}, which it does not iterate")
    indirect = set(spec.op_info.get("indirect", ()))
    for arg in spec.args:
        if len(arg.device_coordinates) != len(arg.device_size):
            raise InvalidProgram(f"{spec.op} has {len(arg.device_coordinates)} coordinates for {arg.device_size}")
        for coordinate in arg.device_coordinates:
            unknown = coordinate.free_symbols - set(spec.iteration_space) - indirect
            if unknown:
                raise InvalidProgram(f"{spec.op} touches {arg.name} at {coordinate}: {unknown} is no symbol of it")
    if math.prod(cores for _, cores in spec.iteration_space.values()) > 32:
        raise InvalidProgram(f"{spec.op} is divided over more cores than the card has: {spec.iteration_space}")
    if any(sympy.sympify(extent) < 1 for extent, _ in spec.iteration_space.values()):
        raise InvalidProgram(f"{spec.op} iterates {spec.iteration_space}: a range is below 1")
