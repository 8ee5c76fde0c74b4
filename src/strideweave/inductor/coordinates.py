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
    offset: sympy.Expr,
    layout: SpyreTensorLayout,
    size: Sequence[int],
    stride: Sequence[int],
    ranges: Mapping[sympy.Symbol, sympy.Expr],
) -> tuple[sympy.Expr, ...]:
    """One expression per device dim, in floor and Mod: where the element at a host offset lies."""
    simplify = V.graph.sizevars.simplify_with_ranges
    dims = layout.dim_map
    assert dims is not None, "a layout of the compiler knows its host dims"
    if len(size) == 0 or max(dims, default=-1) < 0:
        return tuple(sympy.S.Zero for _ in layout.device_size)
    if len(set(dims)) == 1 and len(dims) == 2 and len(size) != 1:
        host = [simplify(offset, dict(ranges))]  # a flat layout: the offset is the only coordinate
    else:
        host = host_coordinates(offset, size, stride, ranges)
    eps = layout.elems_per_stick
    stick = dims[-1]
    seen_tiles = False
    coordinates = []
    for k, dim in enumerate(dims):
        if dim == -1 or layout.device_size[k] == 1:
            seen_tiles = seen_tiles or dim == stick
            coordinates.append(sympy.S.Zero)
        elif k == len(dims) - 1:
            coordinates.append(_plain(simplify(ModularIndexing(host[dim], 1, eps), dict(ranges))))
        elif dim == stick and not seen_tiles:
            seen_tiles = True
            coordinates.append(_plain(simplify(FloorDiv(host[dim], eps), dict(ranges))))
        else:
            coordinates.append(_plain(host[dim]))
    return tuple(coordinates)


def _plain(expression: sympy.Expr) -> sympy.Expr:
    """The same in sympy's own floor and Mod, which print as text that reads back."""
    return expression.replace(FloorDiv, lambda a, b: sympy.floor(a / b)).replace(
        ModularIndexing, lambda a, b, m: sympy.Mod(sympy.floor(a / b) if b != 1 else a, m)
    )
