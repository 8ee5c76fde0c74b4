"""Reductions and running totals on drawn nestings and strides, against an enumeration of the coordinates."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import strideweave as sw
from strideweave.testing.strategies import layouts
from support.operations import on_generic

REDUCTIONS: dict[str, Callable[[list[int]], int | bool]] = {
    "reduce_sum": sum,
    "reduce_prod": prod,
    "reduce_max": max,
    "reduce_min": min,
    "reduce_any": any,
    "reduce_all": all,
    "argmax": lambda values: values.index(max(values)),
    "argmin": lambda values: values.index(min(values)),
}


@st.composite
def operands(draw: st.DrawFn) -> sw.Tensor:
    """Small whole numbers on any layout, overlapping ones too; with at least one mode."""
    layout = draw(layouts(200).filter(lambda made: len(made) > 0))
    seed = draw(st.integers(0, 1000))
    values = torch.randint(-3, 4, (layout.cosize + 2,), generator=torch.Generator().manual_seed(seed))
    return sw.Tensor(sw.from_torch(values).carrier, draw(st.integers(0, 2)), layout)


def met(x: sw.Tensor, axes: set[int]) -> dict[tuple[int, ...], list[int]]:
    """The values at every coordinate of the other modes, those of the axes in ordinal order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    sizes = [mode.size for mode in x.layout]
    for ordinal in range(x.size()):
        rest, coordinate = ordinal, []
        for n in sizes:
            rest, place = divmod(rest, n)
            coordinate.append(place)
        key = tuple(c for k, c in enumerate(coordinate) if k not in axes)
        groups.setdefault(key, []).append(int(x[ordinal]))
    return groups


@settings(max_examples=60)
@given(operands(), st.sampled_from(sorted(REDUCTIONS)), st.data())
def test_reduction_of_any_layout_is_that_of_the_values_that_meet(x: sw.Tensor, name: str, data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(x.layout) - 1)))
    found = getattr(sw, name)(x, axis=sorted(axes))
    expected = [REDUCTIONS[name](group) for group in met(x, axes).values()]
    assert [found[k] for k in range(found.size())] == expected
    assert found.layout.is_injective
    assert found.layout.cosize == found.size()
    kept = getattr(sw, name)(x, axis=sorted(axes), keepdims=True)
    assert [kept[k] for k in range(kept.size())] == expected
    assert len(kept.shape) == len(x.shape)
    reference = getattr(sw, name)(on_generic(x), axis=sorted(axes))
    assert reference.layout == found.layout
    assert [reference[k] for k in range(found.size())] == expected


@settings(max_examples=40)
@given(operands(), st.sampled_from(["cumsum", "cumprod"]), st.data())
def test_running_total_of_any_layout_is_that_of_the_values_before(x: sw.Tensor, name: str, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(x.layout) - 1))
    small = sw.from_torch(x.carrier._flat().sign())
    signs = sw.Tensor(small.carrier, x.offset, x.layout)
    for t in (signs, on_generic(signs)):
        found = getattr(sw, name)(t, axis)
        whole = sum if name == "cumsum" else prod
        for values, totals in zip(met(t, {axis}).values(), met(found, {axis}).values(), strict=True):
            assert totals == [whole(values[: k + 1]) for k in range(len(values))]


@settings(max_examples=40)
@given(operands(), st.data())
def test_description_of_any_layout_is_the_reduction_by_axes(x: sw.Tensor, data: st.DataObject) -> None:
    names = "abcd"[: len(x.layout)]
    kept = data.draw(st.permutations(names).map(lambda order: order[: data.draw(st.integers(0, len(names)))]))
    found = sw.reduce_sum(x, f"{' '.join(names)} -> {' '.join(kept)}")
    by_axes = sw.reduce_sum(x, axis=[k for k, name in enumerate(names) if name not in kept])
    order = sorted(kept)
    expected = by_axes if len(kept) < 2 else sw.permute(by_axes, *(order.index(name) for name in kept))
    assert found.size() == expected.size()
    assert [found[k] for k in range(found.size())] == [expected[k] for k in range(found.size())]
