"""How Inductor's scheduler hands operations over, and the generated module that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from strideweave.inductor import passes
from strideweave.inductor.codegen import Emitter
from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.loops import CountedLoopSchedulerNode
from strideweave.inductor.ops import computed_by, layout_of, op_of
from strideweave.inductor.report import add_program, is_reporting
from strideweave.inductor.tails import tail_of
from strideweave.inductor.verify import verify_program
from strideweave.spyre.specs import LoopSpec, Program, Spec


class SpyreScheduling(BaseScheduling):
    """Collects the specs of consecutive operations into one program; nothing is fused."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._specs: list[Spec] = []
        self._arguments: list[str] = []
        self._emitter = Emitter(self._argument)

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        """Never: one operation of the card computes one buffer."""
        return False

    def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
        """Never."""
        return False

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[sympy.Expr, ...]:
        """The number of points of each part of the iteration space, as Inductor's other backends give it."""
        return tuple(V.graph.sizevars.simplify(sympy_product(extents)) for extents in sizes)

    def codegen_node(self, node: Any) -> None:
        """Add the specs of a node to the program that is being collected."""
        before, specs, after = self._specs_of(node)
        assert not before
        assert not after
        self._specs += specs

    def _specs_of(self, node: Any) -> tuple[dict[int, list[Spec]], list[Spec], dict[int, list[Spec]]]:
        """What runs for a node, and what right before and behind the loops around it, by their level."""
        if not isinstance(node, CountedLoopSchedulerNode):
            node.mark_run()
            emitted = self._emitter.emit(op_of(node.node))
            before: dict[int, list[Spec]] = {level: [*specs] for level, specs in emitted.before.items()}
            return before, [*emitted.body], {level: [*specs] for level, specs in emitted.after.items()}
        before = {}
        body: list[Spec] = []
        after: dict[int, list[Spec]] = {}
        for inner in node.snodes:
            own_before, own, own_after = self._specs_of(inner)
            body += own
            for level, specs in own_before.items():
                before.setdefault(level, []).extend(specs)
            for level, specs in own_after.items():
                after.setdefault(level, []).extend(specs)
        loop = body if node.loop_count == 1 else self._loop(node, tuple(body))
        return before, [*before.pop(node.level, ()), *loop, *after.pop(node.level, ())], after

    def _loop(self, node: CountedLoopSchedulerNode, body: tuple[Spec, ...]) -> list[Spec]:
        """A loop, and behind it its last tile where that is shorter."""
        uneven = node.uneven
        if uneven is None:
            return [LoopSpec(node.loop_count, body)]
        tile, extent = uneven
        full = sympy.Integer(extent // tile)
        rest = tail_of(body, node.loops_outside, int(full) * tile, extent - int(full) * tile, self._emitter.same_rows)
        return [LoopSpec(full, body), *rest]

    def _argument(self, name: str) -> int:
        """Which argument of the program a buffer is."""
        if name not in self._arguments:
            self._arguments.append(name)
        return self._arguments.index(name)

    def _argument_text(self, number: int, program: Program) -> str:
        """How the program was compiled to find an argument, as text of the generated module."""
        layout = layout_of(self._arguments[number])
        written = any(arg.arg_index == number and not arg.is_input for spec in program.ops() for arg in spec.args)
        size, stride = tuple(map(int, layout.size)), tuple(map(int, layout.stride))
        return f"Argument({size}, {stride}, {layout.dtype}, {layout.device_layout!r}, {written})"

    def codegen_sync(self) -> None:
        """Nothing: every call of the card is over when it returns."""

    def flush(self) -> None:
        """Write the program into the generated module, and a call of it."""
        if self._specs:
            wrapper = V.graph.wrapper_code
            name = f"spyre_kernel_{wrapper.next_kernel_suffix()}"
            program = Program(name, tuple(self._specs), len(self._arguments), self._emitter.pool.nbytes)
            verify_program(program)
            if is_reporting():
                add_program(program, self._emitter.whole_ranges, computed_by)
            arguments = ", ".join(self._argument_text(k, program) for k in range(len(self._arguments)))
            wrapper.header.writeline(f"{name} = SpyreKernel({program!r}, [{arguments}])")
            wrapper.writeline(f"{name}.run({', '.join(self._arguments)})")  # type: ignore[no-untyped-call]
            self._specs, self._arguments = [], []
            self._emitter = Emitter(self._argument)
            self.free_buffers_in_scheduler()  # what another device's unwritten kernels read is theirs to free


class SpyreWrapper(PythonWrapperCodegen):
    """The generated module: Inductor's, with the card's memory and programs."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        """A wrapper for the graph; here, right before the scheduler is made, our passes run over its operations."""
        passes.run(V.graph)
        if is_subgraph:
            assert subgraph_name is not None
            assert parent_wrapper is not None
            return SubgraphPythonWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapper()  # type: ignore[no-untyped-call]

    def write_header(self) -> None:
        """Inductor's header, and the names that programs are made of."""
        super().write_header()
        self.header.splice(
            """
            from sympy import sympify
            from strideweave.spyre.specs import LoopSpec, OpSpec, Program, Ref, TensorArg
            from strideweave.spyre.sticks import DataFormat
            from strideweave.spyre.tensor_layout import ElementArrangement, SpyreTensorLayout
            from strideweave.inductor.runtime import Argument, SpyreKernel, empty_tiled
            """
        )

    def make_buffer_allocation(self, buffer: Any) -> str:
        """A line that makes a buffer, in the layout that the passes gave it."""
        layout = buffer.get_layout()
        if isinstance(layout, FixedTiledLayout):
            size = self.codegen_python_shape_tuple(tuple(layout.size))
            stride = self.codegen_python_shape_tuple(tuple(layout.stride))
            return f"{buffer.get_name()} = empty_tiled({size}, {stride}, {layout.dtype}, {layout.device_layout!r})"
        return str(super().make_buffer_allocation(buffer))
