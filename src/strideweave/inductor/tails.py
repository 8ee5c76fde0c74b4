"""The last, shorter tile of a loop: its body once more, behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import sympy

from strideweave.inductor.work_division import divide
from strideweave.spyre.specs import Body, LoopSpec, OpSpec, Spec, TensorArg


def tail_of(
    body: tuple[Spec, ...], level: int, begin: int, extent: int, made: Callable[[OpSpec, OpSpec], None]
) -> list[Spec]:
    """The body of the loop at `level` for its last tile, which begins at `begin` and has `extent` elements.

    What advances with the loop begins there; what belongs to one of its iterations is used in part. `made` is told of
    every operation and the one that it comes from.
    """
    return [_spec(spec, level, 0, begin, extent, made) for spec in body]


def _spec(spec: Spec, level: int, inside: int, begin: int, extent: int, made: Callable[[OpSpec, OpSpec], None]) -> Spec:
    if isinstance(spec, LoopSpec):
        return LoopSpec(spec.count, tuple(_spec(s, level, inside + 1, begin, extent, made) for s in spec.body))
    assert isinstance(spec, OpSpec)
    tiled = spec.tiled_symbols[inside]
    left = (*spec.tiled_symbols[:inside], *spec.tiled_symbols[inside + 1 :])
    moved = {symbol: symbol + begin for symbol in tiled}
    space = {
        s: (sympy.Integer(extent) if s in moved else n, 1 if moved else cores)
        for s, (n, cores) in spec.iteration_space.items()
    }
    details = dict(spec.op_info)
    details["body"] = _body(details["body"], moved)
    args = tuple(_arg(arg, level, len(left), moved) for arg in spec.args)
    tail = replace(spec, iteration_space=space, args=args, op_info=details, tiled_symbols=left)
    tail = divide(tail) if moved else tail
    made(tail, spec)
    return tail


def _arg(arg: TensorArg, level: int, loops: int, moved: dict[sympy.Symbol, sympy.Expr]) -> TensorArg:
    is_fixed = arg.fixed_loops > level
    fixed = arg.fixed_loops - is_fixed
    coordinates = arg.device_coordinates
    if not is_fixed:
        coordinates = tuple(c.subs(moved) for c in coordinates)
    return replace(arg, device_coordinates=coordinates, fixed_loops=fixed, per_tile_fixed=0 < loops == fixed)


def _body(body: Body, moved: dict[sympy.Symbol, sympy.Expr]) -> Body:
    return tuple((step[0], step[1].subs(moved), *step[2:]) if step[0] == "index" else step for step in body)
