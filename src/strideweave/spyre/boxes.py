"""Views of the card's tensors as boxes: each box is one strided window of device memory and one of host memory.

A tensor on the card has ordinary host strides. Its elements lie in device memory where the layout of its storage says;
along the stick dim a first and a last stick may be taken in part, so a view is up to three boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from strideweave.spyre.storage import StoredAs


class Box(NamedTuple):
    """Elements that are strided on both sides. Units: elements; device offsets count from the storage's block."""

    size: tuple[int, ...]
    host_strides: tuple[int, ...]
    host_offset: int
    device_strides: tuple[int, ...]
    device_offset: int


class _Factor(NamedTuple):
    """Part of a dim of the view: `extent` steps of `step` along stored dim `dim`."""

    extent: int
    step: int
    dim: int
    host_stride: int


@lru_cache(maxsize=8192)
def boxes(
    stored: StoredAs,
    dtype: torch.dtype,
    size: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    host_strides: tuple[int, ...],
) -> tuple[Box, ...] | None:
    """The boxes of a view, whose values the host has with `host_strides`; None where the view is no such set of boxes.

    Units: elements of `dtype`, which may be narrower than the one that is stored.

    >>> import torch
    >>> from strideweave.spyre.boxes import boxes
    >>> from strideweave.spyre.storage import stored_as
    >>> stored = stored_as((4, 100), (100, 1), torch.float16)
    >>> [(b.size, b.device_offset) for b in boxes(stored, torch.float16, (2, 40), (100, 1), 150, (40, 1))]
    [((2, 14), 114), ((2, 26), 320)]
    """
    if 0 in size:
        return ()
    dims = _stored_dims(stored, dtype)
    if dims is None:
        return None
    extents, steps, devices, stick, eps = dims
    starts, rest = [0] * len(extents), offset
    for k, step in enumerate(steps):
        starts[k], rest = divmod(rest, step)
        if starts[k] >= extents[k]:
            return None
    if rest:
        return None
    factors: list[_Factor] = []
    for extent, stride, host in zip(size, strides, host_strides, strict=True):
        found = _factors(extent, stride, host, extents, steps, starts)
        if found is None:
            return None
        factors += found
    for k, extent in enumerate(extents):
        if starts[k] + sum((f.extent - 1) * f.step for f in factors if f.dim == k) >= extent:
            return None
    plain = [f for f in factors if f.dim != stick]
    base = sum(starts[k] * devices[k][0] for k in range(len(extents)) if k != stick)
    shape = tuple(f.extent for f in plain)
    hosts = tuple(f.host_stride for f in plain)
    device = tuple(f.step * devices[f.dim][0] for f in plain)
    if stick < 0:
        return (Box(shape, hosts, 0, device, base),)
    tile, lane = devices[stick]
    along = _along_stick([f for f in factors if f.dim == stick], starts[stick], eps, tile, lane)
    if along is None:
        return None
    return tuple(
        Box(shape + b.size, hosts + b.host_strides, b.host_offset, device + b.device_strides, base + b.device_offset)
        for b in along
    )


def _stored_dims(
    stored: StoredAs, dtype: torch.dtype
) -> tuple[list[int], list[int], list[tuple[int, int]], int, int] | None:
    """Extents and host steps of the stored dims, largest step first; device strides, the stick dim and its extent.

    The device strides of a dim are one, or for the stick dim that of a tile and that of a lane.
    """
    parts, over = divmod(stored.dtype.itemsize, dtype.itemsize)
    if over or (parts > 1 and stored.step > 1):
        return None
    layout = stored.layout
    dim_map = layout.dim_map
    if dim_map is None:
        return None
    order = sorted((d for d in range(len(stored.size)) if stored.size[d] > 1), key=lambda d: -stored.strides[d])
    extents: list[int] = []
    steps: list[int] = []
    devices: list[tuple[int, int]] = []
    stick = -1
    for d in order:
        places = [k for k, host in enumerate(dim_map) if host == d]
        if d == dim_map[-1]:
            stick = len(extents)
        extents.append(stored.size[d])
        steps.append(stored.strides[d] * parts)
        found = [stored.device_strides[k] * parts for k in places]
        devices.append((found[0], found[-1]))
    if parts > 1:
        extents.append(parts)
        steps.append(1)
        devices.append((1, 1))
    return extents, steps, devices, stick, layout.elems_per_stick


def _factors(
    extent: int, stride: int, host: int, extents: Sequence[int], steps: Sequence[int], starts: Sequence[int]
) -> list[_Factor] | None:
    """A dim of a view as steps along stored dims, outermost first; one that runs over several is cut at their ends."""
    if extent == 1:
        return []
    if stride == 0:
        return [_Factor(extent, 0, 0, host)] if extents else None
    k = next((k for k, step in enumerate(steps) if step <= stride), None)
    if k is None or stride % steps[k]:
        return None
    step = stride // steps[k]
    if starts[k] + (extent - 1) * step < extents[k]:
        return [_Factor(extent, step, k, host)]
    count, over = divmod(extents[k], step)
    if over or starts[k] >= step or extent % count or count == 1:
        return None
    outer = _factors(extent // count, count * stride, count * host, extents, steps, starts)
    return None if outer is None else [*outer, _Factor(count, step, k, host)]


def _along_stick(factors: list[_Factor], start: int, eps: int, tile: int, lane: int) -> tuple[Box, ...] | None:
    """The boxes of what a view takes along the stick dim: whole sticks as (tiles, lanes), parts of sticks as lanes."""
    first, at = divmod(start, eps)
    whole = [f for f in factors if f.step % eps == 0]
    within = sorted((f for f in factors if f.step % eps), key=lambda f: -f.step)
    base = first * tile

    def box(first_host: int, offset: int, *more: tuple[int, int, int]) -> Box:
        dims = [(f.extent, f.host_stride, f.step // eps * tile) for f in whole]
        dims += more
        size, host, device = zip(*dims, strict=True) if dims else ((), (), ())
        return Box(size, host, first_host, device, base + offset)

    if at + sum((f.extent - 1) * f.step for f in within) < eps:
        return (box(0, at * lane, *((f.extent, f.host_stride, f.step * lane) for f in within)),)
    run, others = within[0], within[1:]
    phase = at % run.step
    if eps % run.step or phase + sum((f.extent - 1) * f.step for f in others) >= run.step:
        return None
    inside = [(f.extent, f.host_stride, f.step * lane) for f in others]
    per_tile, host = eps // run.step, run.host_stride
    head = min(-(-(eps - at) // run.step), run.extent) if at >= run.step else 0
    tiles, tail = divmod(run.extent - head, per_tile)
    start_of_tiles = (tile if head else 0) + phase * lane
    found = []
    if head:
        found.append(box(0, at * lane, (head, host, run.step * lane), *inside))
    if tiles:
        dims = (tiles, per_tile * host, tile), (per_tile, host, run.step * lane)
        found.append(box(head * host, start_of_tiles, *dims, *inside))
    if tail:
        done = head + tiles * per_tile
        found.append(box(done * host, start_of_tiles + tiles * tile, (tail, host, run.step * lane), *inside))
    return tuple(found)
