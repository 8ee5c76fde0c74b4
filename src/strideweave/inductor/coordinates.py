"""From the host offset of an element to its coordinates in device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from strideweave.spyre.tensor_layout import SpyreTensorLayout


def host_coordinates(
    offset: sympy.Expr, size: Sequence[int], stride: Sequence[int], ranges: Mapping[sympy.Symbol, sympy.Expr]
) -> list[sympy.Expr]:
    """The coordinate along every host dim of the element at a host offset; strides are a dense permutation.

    `ranges` bounds the symbols of `offset`, from 0 on: what they allow is simplified away.
    """
    simplify = V.graph.sizevars.simplify_with_ranges
    found: list[sympy.Expr] = []
    for extent, step in zip(size, stride, strict=True):
        if extent == 1:
            found.append(sympy.S.Zero)
            continue
        outermost = all(other <= step or n == 1 for n, other in zip(size, stride, strict=True))
        part = FloorDiv(offset, step) if outermost else ModularIndexing(offset, step, extent)
        found.append(simplify(part, dict(ranges)))
    return found


def device_coordinates(
    host: Sequence[sympy.Expr], layout: SpyreTensorLayout, ranges: Mapping[sympy.Symbol, sympy.Expr]
) -> tuple[sympy.Expr, ...]:
    """One expression per device dim, in floor and Mod: where the element at these host coordinates lies."""
    simplify = V.graph.sizevars.simplify_with_ranges
    dims = layout.dim_map
    assert dims is not None, "a layout of the compiler knows its host dims"
    eps = layout.elems_per_stick
    stick = dims[-1]
    tiles = next((k for k in range(len(dims) - 1) if dims[k] == stick), None)
    coordinates: list[sympy.Expr] = []
    for k, dim in enumerate(dims):
        if dim == -1 or (layout.device_size[k] == 1 and k != tiles) or not host:
            coordinates.append(sympy.S.Zero)
        elif k == len(dims) - 1:
            coordinates.append(_plain(simplify(ModularIndexing(host[dim], 1, eps), dict(ranges))))
        elif k == tiles:
            coordinates.append(_plain(simplify(FloorDiv(host[dim], eps), dict(ranges))))
        else:
            coordinates.append(_plain(host[dim]))
    return tuple(coordinates)


def _plain(expression: sympy.Expr) -> sympy.Expr:
    """The same in sympy's own floor and Mod, which print as text that reads back."""
    return expression.replace(FloorDiv, lambda a, b: sympy.floor(a / b)).replace(
        ModularIndexing, lambda a, b, m: sympy.Mod(sympy.floor(a / b) if b != 1 else a, m)
    )
