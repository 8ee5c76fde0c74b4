"""The same physical orientation for another host size: layouts of tiles, and of the whole that tiles come from."""

from __future__ import annotations

from collections.abc import Sequence

from strideweave.spyre.tensor_layout import SpyreTensorLayout


def resize_device_layout(
    layout: SpyreTensorLayout,
    old_size: Sequence[int],
    new_size: Sequence[int],
    stick_host_dim: int | None = None,
) -> SpyreTensorLayout:
    """The layout of a host tensor of `new_size` that lies as `layout` does for one of `old_size`; it may grow.

    A layout that knows the host dim of each device dim is resized by it. Another one is matched by extents and strides.

    Errors: ValueError for sizes of other ranks; RuntimeError where matching is ambiguous or fails.
    Source: seed 002, `_resize_device_layout`.

    >>> import torch
    >>> from strideweave.spyre import SpyreTensorLayout
    >>> layout = SpyreTensorLayout((256, 128), (128, 1), torch.float16, [1, 0])
    >>> resized = resize_device_layout(layout, (256, 128), (256, 64))
    >>> resized.device_size, resized.stride_map
    ((4, 64, 64), (4096, 1, 64))
    """
    old, new = tuple(old_size), tuple(new_size)
    if len(old) != len(new):
        raise ValueError(f"cannot resize {layout!r} from {old} to {new}: the ranks differ. A resize keeps the dims.")
    dims = layout.dim_map
    if dims is None:
        dims = _matched(layout, old, stick_host_dim)
        lost = [d for d in range(len(old)) if old[d] != new[d] and d not in dims]
        if lost:
            raise _ambiguous(layout, old, f"host dims {lost} change, and no device dim is known to be theirs")
    before, after = _contiguous(old), _contiguous(new)
    eps = layout.elems_per_stick
    stick = dims[-1]
    tiles = next((k for k in range(len(dims) - 1) if dims[k] == stick and stick >= 0), None)
    extents, strides = list(layout.device_size), list(layout.stride_map)
    for k, dim in enumerate(dims):
        if dim < 0:
            continue
        scale = eps if k == tiles else 1
        if k == tiles:
            extents[k] = -(-new[dim] // eps)
        elif k != len(dims) - 1:
            extents[k] = new[dim]
        if new[dim] == 1:
            strides[k] = -1
        elif strides[k] in (-1, before[dim] * scale):
            strides[k] = after[dim] * scale
    known = None if layout.dim_map is None else dims
    return SpyreTensorLayout(tuple(extents), tuple(strides), layout.device_dtype, layout.element_arrangement, known)


def _matched(layout: SpyreTensorLayout, size: tuple[int, ...], stick_host_dim: int | None) -> tuple[int, ...]:
    """The host dim of every device dim, from extents and strides; -1 where there is none."""
    eps, contiguous = layout.elems_per_stick, _contiguous(size)
    outer = range(len(layout.device_size) - 1)
    given = stick_host_dim
    if given is not None and not (
        0 <= given < len(size) and -(-size[given] // eps) in [layout.device_size[k] for k in outer]
    ):
        given = None
    found: dict[int, int] = {}
    for k in outer:  # those that their stride names, first: a tile count may have the extent of another dim
        named = [
            d
            for d in range(len(size))
            if size[d] == layout.device_size[k] > 1 and contiguous[d] == layout.stride_map[k]
        ]
        if len(named) == 1 and named[0] != given and named[0] not in found.values():
            found[k] = named[0]
    for k in outer:
        if k in found:
            continue
        extent = layout.device_size[k]
        candidates = [d for d in range(len(size)) if size[d] == extent and d != given and d not in found.values()]
        if extent == 1:
            singles = [d for d in range(len(size)) if size[d] == 1 and d != given]
            if len(singles) == 1 and singles[0] not in found.values():
                found[k] = singles[0]
            continue
        if len(candidates) > 1:
            candidates = [d for d in candidates if contiguous[d] == layout.stride_map[k]]
        if len(candidates) == 1:
            found[k] = candidates[0]
    left = [d for d in range(len(size)) if d not in found.values()]
    wide = [d for d in left if size[d] > 1] or left
    provisional = given if given is not None else (wide[0] if len(wide) == 1 else None)
    if provisional is not None:
        for k, dim in list(found.items()):
            extent = layout.device_size[k]
            if extent > 1 and extent == -(-size[provisional] // eps) and layout.stride_map[k] != contiguous[dim]:
                del found[k]
    left = [d for d in range(len(size)) if d not in found.values()]
    stick = _stick(layout, size, given, found, left)
    unmatched = [k for k in outer if k not in found and layout.device_size[k] > 1]
    if stick is None:
        if unmatched:
            raise _ambiguous(layout, size, f"device dims {unmatched} belong to no host dim")
        return (*(found.get(k, -1) for k in outer), -1)
    for k in unmatched:
        if layout.device_size[k] != -(-size[stick] // eps):
            raise _ambiguous(layout, size, f"device dim {k} of {layout.device_size[k]} is no tile count of dim {stick}")
    tiles = unmatched or [k for k in outer if k not in found and -(-size[stick] // eps) == 1][:1]
    return (*(found.get(k, stick if k in tiles else -1) for k in outer), stick)


def _stick(
    layout: SpyreTensorLayout, size: tuple[int, ...], given: int | None, found: dict[int, int], left: list[int]
) -> int | None:
    if given is not None:
        if given in found.values():
            raise _ambiguous(layout, size, f"host dim {given} is the stick dim and another one")
        return given
    if not left:
        return None
    wide = [d for d in left if size[d] > 1] or left
    if len(wide) != 1:
        raise _ambiguous(layout, size, f"host dims {wide} are left for the sticks")
    return wide[0]


def _ambiguous(layout: SpyreTensorLayout, size: tuple[int, ...], why: str) -> RuntimeError:
    return RuntimeError(
        f"cannot resize {layout!r} of host size {size}: {why}. Each device dim must belong to one host dim. Pass "
        "stick_host_dim, or a layout that keeps its dim map."
    )


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
