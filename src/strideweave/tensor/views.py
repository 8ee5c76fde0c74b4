"""Views as arithmetic: from a layout and what is asked of it to the slots that the offset moves, and another layout.

Every function returns `(delta, view)`: a coordinate of the view reaches, in a carrier, the slot that its own layout
says, `delta` slots further. Nothing is listed and nothing is copied; what no layout can say is a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import TypeAlias

from strideweave.layout import Layout, Shape, Stride, Tree
from strideweave.layout import broadcast_to as widened
from strideweave.layout import rearrange as rearranged
from strideweave.layout.composition import compose_layouts
from strideweave.layout.nested import Level, refill
from strideweave.layout.nested import flat as flat_leaves

View: TypeAlias = tuple[int, Layout]
"""By how many slots the offset moves, and the layout of the view."""
Modes: TypeAlias = "Shape | int | Sequence[int | Modes]"
"""A shape as a user writes it: a Shape, or ints nested in tuples or lists."""


def slice_view(layout: Layout, keys: tuple[object, ...]) -> View:
    """The part of the layout that one key per mode takes: an int drops its mode, a slice keeps it.

    Slices begin and end like numpy's, a negative bound counts from the end; steps are positive and divide the width.
    A nested mode is taken whole, or at one ordinal. Errors: TypeError for a key that is no int or slice; ValueError
    for another number of keys, an int outside of its mode, or a slice that is empty, backwards or not whole steps.

    >>> from strideweave.layout import Layout
    >>> slice_view(Layout.row_major(4, 6), (1, slice(0, 6, 2)))
    (6, Layout(Shape(3), Stride(2)))
    """
    if len(keys) != len(layout) or any(key is None or key is Ellipsis for key in keys):
        raise ValueError(
            f"cannot slice a Tensor of {len(layout)} modes with {len(keys)} keys {keys!r}: a view needs exactly one "
            "key per top-level mode. Write `:` for the modes to keep whole; there is no `...` and no None."
        )
    delta, kept = 0, []
    for k, key in enumerate(keys):
        mode = layout[k]
        if isinstance(key, slice):
            start, part = _sliced(mode, key)
            delta += start
            kept.append(part)
        elif isinstance(key, bool) or not isinstance(key, int):
            raise TypeError(f"cannot slice a Tensor with {key!r}: a key is an int or a slice. Pass one of these.")
        elif not 0 <= key < mode.size:
            raise ValueError(
                f"cannot take {key} of mode {k}, which has {mode.size} coordinates: View integer key is out of "
                f"domain. Pass 0 to {mode.size - 1}."
            )
        else:
            delta += mode.index(key)
    return delta, Layout.make_layout(*kept)


def permute(layout: Layout, *order: int) -> View:
    """The same modes with mode `order[k]` at place k; negative numbers count from the end.

    Errors: TypeError for an order that is not of ints; ValueError when it does not name every mode once.

    >>> from strideweave.layout import Layout
    >>> permute(Layout.row_major(2, 3, 4), -1, 0, 1)
    (0, Layout(Shape(4, 2, 3), Stride(1, 12, 4)))
    """
    from_front = (k + len(layout) if type(k) is int and -len(layout) <= k < 0 else k for k in order)
    return 0, layout.permute(*from_front)


def transpose(layout: Layout, i: int, j: int) -> View:
    """The same modes with modes `i` and `j` in each other's place. Errors: as for `unsqueeze`.

    >>> from strideweave.layout import Layout
    >>> transpose(Layout.row_major(2, 3, 4), 0, -1)
    (0, Layout(Shape(4, 3, 2), Stride(1, 4, 12)))
    """
    order = list(range(len(layout)))
    i, j = _mode("transpose", layout, i, len(layout)), _mode("transpose", layout, j, len(layout))
    order[i], order[j] = j, i
    return 0, layout.permute(*order)


def reshape(layout: Layout, shape: Modes) -> View:
    """The layout of this shape that reaches at every ordinal what `layout` reaches there; one -1 is inferred.

    Ordinals count the first mode fastest. Errors: TypeError for what is no shape; ValueError for a shape of another
    size, or when some new mode would not have one stride throughout: then there is no view, only a copy.

    >>> from strideweave.layout import Layout
    >>> reshape(Layout.column_major(4, 6), (2, -1))
    (0, Layout(Shape(2, 12), Stride(1, 2)))
    >>> reshape(Layout.row_major(4, 6), (2, 12))
    Traceback (most recent call last):
    ValueError: cannot reshape (4,6):(6,1) to (2,12): ordinals, first mode fastest, have no constant stride along ...
    """
    wanted = _inferred(layout, shape)
    if wanted.size != layout.size:
        raise ValueError(
            f"cannot reshape {layout} to {wanted}: it has {layout.size} coordinates and the shape {wanted.size}. A "
            "reshape keeps their number. Change the shape."
        )
    if wanted == layout.shape:
        return 0, layout
    strides = accumulate(wanted.leaves(), mul, initial=1)
    ordinals = Layout._of(wanted._items, refill(wanted._items, strides))
    return 0, _composed(f"cannot reshape {layout} to {wanted}", layout, ordinals)


def as_strided(layout: Layout, shape: Modes, stride: Stride | int | Sequence[object], offset: int = 0) -> View:
    """The layout of this shape that reaches what `layout` reaches at the ordinals `offset` + coordinate * stride.

    Strides and offset count ordinals of `layout`, first mode fastest, not slots: slots that it does not reach are out
    of reach. Errors: TypeError for what is no shape, stride or int; ValueError for a selector that is not injective or
    leaves the domain, or when some mode would not have one stride throughout.

    >>> from strideweave.layout import Layout
    >>> as_strided(Layout.leaf(12, 5), (2, 3), (1, 4), 1)
    (5, Layout(Shape(2, 3), Stride(5, 20)))
    """
    wanted = _shape(shape)
    selector = Layout(wanted, stride if isinstance(stride, Stride) else Stride(stride))
    asked = f"cannot view {layout} as strided {selector} from ordinal {offset!r}"
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"{asked}: an offset must be an integer. Pass an int.")
    if offset < 0 or offset + selector.cosize > layout.size:
        raise ValueError(
            f"{asked}: it takes ordinals {offset} to {offset + selector.cosize - 1}, and there are {layout.size}. The "
            "selector stays in the domain of the source. Use a smaller one."
        )
    if not selector.is_injective:
        raise ValueError(
            f"{asked}: two coordinates select the same ordinal. The selector must be injective. Use broadcast_to to "
            "repeat."
        )
    return layout.index(offset), _composed(asked, layout, selector, offset)


def broadcast_to(layout: Layout, shape: Modes) -> View:
    """The layout of this shape in which every widened leaf repeats: it had extent 1 and gets stride 0.

    Modes match by place, never from the right. Errors: as for `Layout.broadcast_to`.

    >>> from strideweave.layout import Layout
    >>> broadcast_to(Layout.row_major(2, 1), (2, 5))
    (0, Layout(Shape(2, 5), Stride(1, 0)))
    """
    return 0, widened(layout, _shape(shape))


def broadcast_in_dim(layout: Layout, target_shape: Modes, broadcast_dimensions: Sequence[int]) -> View:
    """The layout of the target shape with mode k at place `broadcast_dimensions[k]`; the other modes repeat.

    A leaf of extent 1 widens to the target's. The places ascend strictly, as in XLA. Errors: TypeError for places that
    are no ints; ValueError for another number of them, one outside, or modes that do not fit.

    >>> from strideweave.layout import Layout
    >>> broadcast_in_dim(Layout.row_major(2, 1), (2, 4, 3), (0, 2))
    (0, Layout(Shape(2, 4, 3), Stride(1, 0, 0)))
    """
    target = _shape(target_shape)
    asked = f"cannot broadcast {layout} in {target} at {broadcast_dimensions!r}"
    places = _places(asked, broadcast_dimensions, len(layout), len(target))
    strides: list[int | Level] = []
    for k, item in enumerate(target._items):
        level = (item,) if isinstance(item, int) else item
        if k in places:
            mode = widened(layout[places.index(k)], Shape._of(level)).stride._items
        else:
            mode = refill(level, iter([0] * len(flat_leaves(level))))
        strides.append(mode[0] if isinstance(item, int) else mode)
    return 0, Layout._of(target._items, tuple(strides))


def squeeze(layout: Layout, dim: int) -> View:
    """The layout without mode `dim`, which has one coordinate. Errors: as for `unsqueeze`; ValueError if it has more.

    >>> from strideweave.layout import Layout
    >>> squeeze(Layout.row_major(2, 1, 3), 1)
    (0, Layout(Shape(2, 3), Stride(3, 1)))
    """
    dim = _mode("squeeze", layout, dim, len(layout))
    extents, strides = layout.shape._items, layout.stride._items
    if layout.shape[dim].size != 1:
        raise ValueError(
            f"cannot squeeze mode {dim} of {layout}: it has {layout[dim].size} coordinates. Only a mode of one "
            "coordinate can go. Take one with a slice."
        )
    return 0, Layout._of(extents[:dim] + extents[dim + 1 :], strides[:dim] + strides[dim + 1 :])


def unsqueeze(layout: Layout, dim: int) -> View:
    """The layout with a mode of extent 1 before mode `dim`; a negative place counts from behind the last mode.

    Errors: TypeError for a place that is no int; ValueError for one outside.

    >>> from strideweave.layout import Layout
    >>> unsqueeze(Layout.row_major(2, 3), -1)
    (0, Layout(Shape(2, 3, 1), Stride(3, 1, 0)))
    """
    dim = _mode("unsqueeze", layout, dim, len(layout) + 1)
    extents, strides = layout.shape._items, layout.stride._items
    return 0, Layout._of((*extents[:dim], 1, *extents[dim:]), (*strides[:dim], 0, *strides[dim:]))


def rearrange(layout: Layout, output: Tree, selection: Tree | None = None) -> View:
    """The parts that the selection names, in the order and nesting of the output. Errors: `Layout.rearrange`'s.

    >>> from strideweave.layout import Layout, Tree
    >>> rearrange(Layout.row_major(2, 3, 4), Tree(2, Tree(0, 1)))
    (0, Layout(Shape(4, (2, 3)), Stride(1, (12, 4))))
    """
    return 0, rearranged(layout, output, selection)


def flatten_modes(layout: Layout, start: int, stop: int) -> View:
    """The layout with modes `start` up to, not including, `stop` as one nested mode: a view of any layout.

    Errors: TypeError for what is no int; ValueError for a range that is empty or outside.

    >>> from strideweave.layout import Layout
    >>> flatten_modes(Layout.row_major(2, 3, 4), 0, 2)
    (0, Layout(Shape((2, 3), 4), Stride((12, 4), 1)))
    """
    asked = f"cannot group modes {start!r} to {stop!r} of {layout}"
    for bound in (start, stop):
        if isinstance(bound, bool) or not isinstance(bound, int):
            raise TypeError(f"{asked}: {bound!r} is no int. Modes are numbered. Pass ints.")
    if not 0 <= start < stop <= len(layout):
        raise ValueError(
            f"{asked}: there are {len(layout)} modes. A group has at least one of them. Pass a start below the stop, "
            f"and a stop of {len(layout)} at most."
        )
    return 0, Layout.make_layout(*layout[:start], layout[start:stop], *layout[stop:])


def _sliced(mode: Layout, key: slice) -> View:
    """The slots by which a slice moves the view, and the part of the mode that it keeps."""
    leaves = mode.leaves()
    if key == slice(None):
        return 0, mode
    if len(leaves) != 1:
        raise ValueError(
            f"cannot take {key} of a nested mode {mode!r}: only whole slices are supported for non-leaf modes. Use `:`."
        )
    extent, stride = leaves[0]
    step = 1 if key.step is None else key.step
    if step <= 0:
        raise ValueError(f"cannot take {key}: a view needs a positive step. Take it forward.")
    start, stop, _ = slice(key.start, key.stop, 1).indices(extent)
    if stop <= start:
        raise ValueError(f"cannot take {key} of a mode of {extent}: View slices must be non-empty. Widen it.")
    if (stop - start) % step:
        raise ValueError(
            f"cannot take {key} of a mode of {extent}: the width {stop - start} must be divisible by its step {step}. "
            "Change the stop."
        )
    return start * stride, Layout(Shape((stop - start) // step), Stride(stride * step))


def _composed(asked: str, layout: Layout, selector: Layout, origin: int = 0) -> Layout:
    """The layout at the ordinals of the selector, with the selector's own shape."""
    try:
        view = compose_layouts(layout, selector, origin)
    except ValueError as error:
        raise ValueError(_not_constant(asked, "some mode")) from error
    if view.shape != selector.shape:
        crossing = next(n for n, m in zip(selector.shape, view.shape, strict=True) if n != m)
        raise ValueError(_not_constant(asked, f"the mode of {crossing}"))
    return view


def _not_constant(asked: str, where: str) -> str:
    return (
        f"{asked}: ordinals, first mode fastest, have no constant stride along {where}. A view needs one stride per "
        "mode. Copy first, or permute the modes."
    )


def _shape(shape: Modes) -> Shape:
    return shape if isinstance(shape, Shape) else Shape(shape)


def _inferred(layout: Layout, shape: Modes) -> Shape:
    """The shape with its -1, if it has one, replaced by the extent that keeps the size."""
    if isinstance(shape, Shape):
        return shape
    items = (shape,) if isinstance(shape, int) else tuple(shape)
    known = [n for n in _ints(items) if n != -1]
    if len(known) == len(_ints(items)):
        return Shape(items)
    asked = f"cannot reshape {layout} to {items!r}"
    if len(_ints(items)) - len(known) > 1:
        raise ValueError(f"{asked}: it has more than one -1. One extent can be inferred. Name the others.")
    rest = prod(known)
    if rest <= 0 or layout.size % rest:
        raise ValueError(
            f"{asked}: the other extents make {rest}, and there are {layout.size} coordinates. The inferred extent is "
            "whole. Change the others."
        )
    return Shape(_replaced(items, layout.size // rest))


def _ints(items: Sequence[object]) -> list[int]:
    out: list[int] = []
    for item in items:
        if isinstance(item, int):
            out.append(item)
        elif isinstance(item, Sequence) and not isinstance(item, str):
            out += _ints(item)
        elif isinstance(item, Shape):
            out += item.leaves()
    return out


def _replaced(items: Sequence[object], extent: int) -> tuple[object, ...]:
    return tuple(
        _replaced(item, extent)
        if isinstance(item, Sequence) and not isinstance(item, str)
        else extent
        if isinstance(item, int) and item == -1
        else item
        for item in items
    )


def _places(asked: str, dimensions: Sequence[int], count: int, rank: int) -> list[int]:
    places = list(dimensions)
    for place in places:
        if isinstance(place, bool) or not isinstance(place, int):
            raise TypeError(f"{asked}: {place!r} is no int. A place is the number of a target mode. Pass ints.")
        if not 0 <= place < rank:
            raise ValueError(f"{asked}: the target has no mode {place}. Places count from 0. Pass 0 to {rank - 1}.")
    if len(places) != count:
        raise ValueError(f"{asked}: {len(places)} places for {count} modes. Every mode has one. Pass {count}.")
    if any(after <= before for before, after in pairwise(places)):
        raise ValueError(f"{asked}: the places must be strictly increasing. Permute the modes first.")
    return places


def _mode(verb: str, layout: Layout, dim: object, count: int) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"cannot {verb} {layout} at {dim!r}: it is no int. Modes are numbered. Pass an int.")
    if not -count <= dim < count:
        allowed = f"Pass {-count} to {count - 1}." if count else "Add a mode first."
        raise ValueError(
            f"cannot {verb} {layout} at {dim}: there is no such place. Places count from 0, negative ones from the "
            f"end. {allowed}"
        )
    return dim % count
