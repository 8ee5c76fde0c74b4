"""What holds for all indices, shapes and layouts: pickers and placers are each other's adjoint; orders are orders."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import strideweave as sw
from support.operations import dense, leaf, place, variants


@st.composite
def indexed(draw: st.DrawFn) -> tuple[sw.Tensor, sw.Tensor, int]:
    """A Tensor, indices that gather takes, and an axis; on any layouts."""
    extents = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = draw(st.integers(0, len(extents) - 1))
    inner = [draw(st.integers(1, 6 if k == axis else n)) for k, n in enumerate(extents)]
    seed = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    values = torch.randint(-4, 5, extents, generator=seed).double()
    found = torch.randint(0, extents[axis], inner, generator=seed)
    choices = [t for t in variants(values) if len(t[1].layout) == len(extents)]
    _, x = draw(st.sampled_from(choices))
    _, idx = draw(st.sampled_from([t for t in variants(found) if len(t[1].layout) == len(inner)]))
    return x, idx, axis


@given(indexed())
def test_gather_is_the_adjoint_of_scatter_add(given_: tuple[sw.Tensor, sw.Tensor, int]) -> None:
    """<gather(x, i), u> is <x, scatter_add(0, i, u)>, exactly for whole numbers."""
    x, idx, axis = given_
    u = sw.gather(x, idx, axis)
    back = sw.scatter_add(x * 0, idx, u, axis)
    assert float((dense(u) * dense(u)).sum()) == float((dense(x) * dense(back)).sum())


@given(indexed())
def test_gather_is_torchs_and_its_gradient_is_scatter_add(given_: tuple[sw.Tensor, sw.Tensor, int]) -> None:
    x, idx, axis = given_
    x = leaf(x)
    output = sw.gather(x, idx, axis)
    assert torch.equal(dense(output), dense(x).gather(axis, dense(idx)))
    weights = dense(output) + 1
    (found,) = sw.grad(output, x, place(weights, output.layout))
    assert torch.equal(dense(found), torch.zeros_like(dense(x)).scatter_add(axis, dense(idx), weights))


@given(indexed())
def test_what_was_scattered_is_gathered_where_it_was_written_last(given_: tuple[sw.Tensor, sw.Tensor, int]) -> None:
    x, idx, axis = given_
    found = dense(idx)
    steps = torch.arange(found.shape[axis]).reshape([-1 if k == axis else 1 for k in range(found.dim())])
    positions = steps.expand_as(found).contiguous()
    base = sw.from_torch(torch.full(dense(x).shape, -1))
    written = dense(sw.scatter(base, sw.from_torch(found), sw.from_torch(positions), axis))
    for where in (written >= 0).nonzero().tolist():
        line = found[tuple(slice(None) if k == axis else c for k, c in enumerate(where))]
        assert int(written[tuple(where)]) == int((line == where[axis]).nonzero()[-1])


@given(indexed(), st.booleans())
def test_topk_is_the_beginning_of_sort_and_sort_is_a_permutation(
    given_: tuple[sw.Tensor, sw.Tensor, int], largest: bool
) -> None:
    x, _, axis = given_
    values, places = sw.sort(x, axis, descending=largest)
    whole = torch.zeros(dense(x).shape, dtype=torch.int64).scatter_add(
        axis, dense(places), torch.ones_like(dense(places))
    )
    assert bool((whole == 1).all())
    steps = dense(values).diff(dim=axis)
    assert bool((steps <= 0 if largest else steps >= 0).all())
    for k in range(1, x.layout[axis].size + 1):
        top = sw.topk(x, k, axis, largest)
        assert torch.equal(dense(top.values), dense(values).narrow(axis, 0, k))
        assert torch.equal(dense(top.indices), dense(places).narrow(axis, 0, k))


@given(indexed(), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_split_undoes_concatenate(given_: tuple[sw.Tensor, sw.Tensor, int], extents: list[int]) -> None:
    x, _, axis = given_
    parts = [sw.copy(sw.tile(x, [n if k == axis else 1 for k in range(len(x.layout))])) for n in extents]
    whole = sw.concatenate(parts, axis)
    sizes = [part.layout[axis].size for part in parts]
    for part, back in zip(parts, sw.split(whole, sizes, axis), strict=True):
        assert torch.equal(dense(part), dense(back))
