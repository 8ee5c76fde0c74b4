"""Products on drawn shapes, nestings and strides, against torch's on the same values."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import strideweave as sw
from strideweave.operation.alignment import with_strides
from support.operations import dense, on_generic, place

SIZES = {
    1: [(1,)],
    2: [(2,), (2, 1)],
    3: [(3,)],
    4: [(4,), (2, 2)],
    6: [(6,), (2, 3), (3, 2)],
    8: [(8,), (2, 4), (4, 2)],
}


@st.composite
def operands(draw: st.DrawFn, sizes: list[int], *, seed: int) -> sw.Tensor:
    """A Float64 Tensor of small whole values: every mode nested as drawn, leaves strided in a drawn order with gaps."""
    modes = [draw(st.sampled_from(SIZES[n])) for n in sizes]
    shape = sw.Shape([mode if len(mode) > 1 else mode[0] for mode in modes])
    extents = shape.leaves()
    strides, step = [0] * len(extents), 1
    for k in draw(st.permutations(range(len(extents)))):
        strides[k] = step
        step *= extents[k] * draw(st.sampled_from([1, 1, 1, 2]))
    if draw(st.booleans()) and extents:
        strides[draw(st.integers(0, len(extents) - 1))] = 0
    layout = with_strides(shape, strides)
    drawn = torch.randint(-9, 10, (layout.cosize,), generator=torch.Generator().manual_seed(seed))
    return sw.Tensor(sw.from_torch(drawn.to(torch.float64)).carrier, 0, layout)


@st.composite
def factors(draw: st.DrawFn) -> tuple[sw.Tensor, sw.Tensor]:
    """Two operands that matmul takes."""
    m, k, n = (draw(st.sampled_from([1, 2, 4, 6])) for _ in range(3))
    batch = [draw(st.sampled_from([1, 2, 3])) for _ in range(draw(st.integers(0, 2)))]
    left = [*(b if draw(st.booleans()) else 1 for b in batch[draw(st.integers(0, len(batch))) :]), m, k]
    right = [*(b if draw(st.booleans()) else 1 for b in batch[draw(st.integers(0, len(batch))) :]), k, n]
    if len(left) == 2 and draw(st.booleans()):
        left = [k]
    if len(right) == 2 and draw(st.booleans()):
        right = [k]
    modes = [draw(operands(sizes, seed=seed)) for seed, sizes in enumerate((left, right))]
    return modes[0], modes[1]


def _aligned(left: sw.Tensor, right: sw.Tensor) -> bool:
    """Whether the batch modes nest alike, or are single leaves."""
    a, b = left.shape._items[:-2][::-1], right.shape._items[:-2][::-1]
    return all(x == y or x == 1 or y == 1 for x, y in zip(a, b, strict=False))


@settings(max_examples=120, deadline=None)
@given(factors())
def test_matmul_of_any_layouts_equals_torch(pair: tuple[sw.Tensor, sw.Tensor]) -> None:
    left, right = pair
    if not _aligned(left, right):
        return
    made = sw.matmul(left, right)
    torch.testing.assert_close(dense(made), torch.matmul(dense(left), dense(right)), rtol=0, atol=0)
    assert made.layout.is_injective
    assert made.layout.cosize == made.size()


@settings(max_examples=50, deadline=None)
@given(factors())
def test_matmul_gradients_of_any_layouts_equal_torch(pair: tuple[sw.Tensor, sw.Tensor]) -> None:
    left, right = pair
    if not _aligned(left, right):
        return
    a, b = left.detach().requires_grad_(), right.detach().requires_grad_()
    made = sw.matmul(a, b)
    weights = torch.randint(-3, 4, dense(made).shape, generator=torch.Generator().manual_seed(7)).to(torch.float64)
    found = sw.grad(made, [a, b], place(weights, made.layout))
    x, y = dense(left).requires_grad_(), dense(right).requires_grad_()
    torch.matmul(x, y).backward(weights)
    for mine, theirs in zip(found, (x.grad, y.grad), strict=True):
        torch.testing.assert_close(dense(mine), theirs, rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(factors())
def test_matmul_on_generic_equals_cpu(pair: tuple[sw.Tensor, sw.Tensor]) -> None:
    left, right = pair
    if not _aligned(left, right):
        return
    made, expected = sw.matmul(on_generic(left), on_generic(right)), sw.matmul(left, right)
    assert made.layout == expected.layout
    torch.testing.assert_close(dense(made), dense(expected), rtol=0, atol=0)


@st.composite
def contractions(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    """A description of one to three operands, and their sizes."""
    extents = {symbol: draw(st.sampled_from([1, 2, 3])) for symbol in "abcde"}
    parts = [
        draw(st.lists(st.sampled_from("abcde"), min_size=0 if k else 1, max_size=3, unique=True))
        for k in range(draw(st.integers(1, 3)))
    ]
    known = sorted({symbol for part in parts for symbol in part})
    output = draw(st.lists(st.sampled_from(known), max_size=4, unique=True))
    text = ",".join("".join(part) for part in parts) + "->" + "".join(output)
    return text, [[extents[symbol] for symbol in part] for part in parts]


@settings(max_examples=80, deadline=None)
@given(contractions(), st.data())
def test_einsum_of_any_description_equals_torch(case: tuple[str, list[list[int]]], data: st.DataObject) -> None:
    text, sizes = case
    tensors: list[Any] = [data.draw(operands(s, seed=k)) for k, s in enumerate(sizes)]
    flat = [sw.from_torch(dense(t)) if any(not m.is_leaf for m in t.layout) else t for t in tensors]
    leaves = [t.detach().requires_grad_() for t in flat]
    made = sw.einsum(text, *leaves)
    inputs = [dense(t).requires_grad_() for t in flat]
    expected = torch.einsum(text, *inputs)
    torch.testing.assert_close(dense(made), expected.detach(), rtol=0, atol=0)
    if not made.layout.is_injective:
        return
    weights = torch.randint(-3, 4, expected.shape, generator=torch.Generator().manual_seed(7)).to(torch.float64)
    expected.backward(weights)
    for mine, theirs in zip(sw.grad(made, leaves, place(weights, made.layout)), inputs, strict=True):
        torch.testing.assert_close(dense(mine), theirs.grad, rtol=0, atol=0)
