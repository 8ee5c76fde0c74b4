"""Indexing and assembling operations against torch: values, layouts, gradients, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import strideweave as sw
from strideweave.operation import (
    OperandKind,
    OperandSpec,
    OperationSchema,
    ResolvedInvocation,
    ResultSpec,
    define_operation,
    pointwise_plan,
)
from strideweave.operation.kernels import indexing as kernels
from support.operations import check_gradients, dense, gapped, leaf, nested, on_generic, place, variants

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
EIGHT_BIT = (torch.float8_e4m3fn, torch.float8_e5m2)


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool or not dtype.is_floating_point:
        high = 2 if dtype is torch.bool else 7
        return torch.randint(0, high, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def indices(*shape: int, below: int, dtype: torch.dtype = torch.int64, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wide(x: torch.Tensor) -> torch.Tensor:
    """8-bit floats as Float32: torch indexes none of them, and converting is exact."""
    return x.float() if x.dtype in EIGHT_BIT else x


def same(found: sw.Tensor, expected: torch.Tensor, *, rtol: float = 0, atol: float = 0) -> None:
    torch.testing.assert_close(wide(dense(found)), wide(expected), rtol=rtol, atol=atol, equal_nan=True)


def generic_agrees(function: Callable[..., sw.Tensor], *operands: sw.Tensor) -> None:
    expected = function(*operands)
    found = function(*[on_generic(x) if isinstance(x, sw.Tensor) else x for x in operands])
    assert found.layout == expected.layout
    assert found.dtype() is expected.dtype()
    torch.testing.assert_close(wide(dense(found)), wide(dense(expected)), rtol=1e-5, atol=1e-6, equal_nan=True)


def is_dense(layout: sw.Layout) -> bool:
    return layout.is_injective and layout.cosize == layout.size


# -- gather ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_of_every_dtype_is_torchs(dtype: torch.dtype) -> None:
    x, idx = drawn(4, 6, dtype=dtype), indices(3, 9, below=6)
    for axis in (1, -1):
        same(sw.gather(sw.from_torch(x), sw.from_torch(idx), axis), wide(x).gather(1, idx).to(dtype))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_on_every_layout_of_both_is_torchs_and_the_reference(axis: int) -> None:
    x = drawn(4, 6, 4)
    idx = indices(4, 6, 4, below=x.shape[axis])
    expected = x.gather(axis, idx)
    for _, a in variants(x):
        for _, b in variants(idx):
            found = sw.gather(a, b, axis)
            same(found, expected)
            assert found.shape == b.shape
            assert is_dense(found.layout)
    generic_agrees(lambda t, i: sw.gather(t, i, axis), nested(x), gapped(idx))


def test_gather_by_fewer_indices_takes_the_first_coordinates_of_a_nested_mode() -> None:
    x, idx = drawn(6, 4), indices(5, 2, below=6)
    for _, a in variants(x):
        same(sw.gather(a, sw.from_torch(idx), 0), x.gather(0, idx))
    generic_agrees(lambda t, i: sw.gather(t, i, 0), nested(x), sw.from_torch(idx))


def test_gather_of_a_broadcast_operand_is_torchs() -> None:
    x = drawn(1, 6).expand(4, 6)
    idx = indices(4, 6, below=6)
    for _, a in variants(x):
        same(sw.gather(a, sw.from_torch(idx), 1), x.gather(1, idx))


def test_gather_by_int32_is_by_int64() -> None:
    x, idx = drawn(4, 6), indices(4, 6, below=4, dtype=torch.int32)
    same(sw.gather(sw.from_torch(x), sw.from_torch(idx), 0), x.gather(0, idx.long()))


def test_gather_keeps_the_order_of_the_operand() -> None:
    row, column = sw.from_torch(drawn(4, 6)), sw.from_torch(drawn(6, 4).t())
    idx = sw.from_torch(indices(4, 3, below=6))
    assert sw.gather(row, idx, 1).layout == sw.Layout.row_major(4, 3)
    assert sw.gather(column, idx, 1).layout == sw.Layout.column_major(4, 3)


# -- scatter and scatter_add -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatter_of_every_dtype_is_torchs(dtype: torch.dtype) -> None:
    base, idx, updates = drawn(4, 6, dtype=dtype), indices(3, 9, below=6), drawn(3, 9, dtype=dtype, seed=2)
    found = sw.scatter(sw.from_torch(base), sw.from_torch(idx), sw.from_torch(updates), 1)
    same(found, wide(base).scatter(1, idx, wide(updates)).to(dtype))
    filled = sw.scatter(sw.from_torch(base), sw.from_torch(idx), True, 1)
    same(filled, wide(base).scatter(1, idx, 1).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatter_add_of_every_dtype_is_torchs_rounded_once(dtype: torch.dtype) -> None:
    base, idx, updates = drawn(4, 6, dtype=dtype), indices(3, 9, below=6), drawn(3, 9, dtype=dtype, seed=2)
    summed = torch.float32 if dtype.is_floating_point and dtype is not torch.float64 else dtype
    found = sw.scatter_add(sw.from_torch(base), sw.from_torch(idx), sw.from_torch(updates), 1)
    same(found, base.to(summed).scatter_add(1, idx, updates.to(summed)).to(dtype))


@pytest.mark.parametrize("axis", [0, 1])
def test_scatters_on_every_layout_are_torchs_and_the_reference(axis: int) -> None:
    base, updates = drawn(4, 6), drawn(4, 6, seed=2)
    idx = indices(4, 6, below=4)
    expected, added = base.scatter(axis, idx, updates), base.scatter_add(axis, idx, updates)
    for (_, a), (_, b), (_, c) in zip(variants(base), variants(idx), variants(updates), strict=True):
        same(sw.scatter(a, b, c, axis), expected)
        same(sw.scatter_add(a, b, c, axis), added)
        assert sw.scatter(a, b, c, axis).shape == a.shape
        generic_agrees(lambda *operands: sw.scatter(*operands, axis), a, b, c)
        generic_agrees(lambda *operands: sw.scatter_add(*operands, axis), a, b, c)


def test_scatter_into_a_broadcast_base_writes_one_place_each() -> None:
    base, idx, updates = drawn(1, 6).expand(4, 6), indices(4, 6, below=6), drawn(4, 6, seed=2)
    for _, a in variants(base):
        found = sw.scatter(a, sw.from_torch(idx), sw.from_torch(updates), 1)
        same(found, base.scatter(1, idx, updates))
        added = sw.scatter_add(a, sw.from_torch(idx), sw.from_torch(updates), 1)
        same(added, base.scatter_add(1, idx, updates))
        assert is_dense(found.layout)


def test_ways_of_devices_that_write_in_any_order_give_what_a_cpu_gives() -> None:
    base, idx, updates = drawn(4, 6), indices(4, 9, below=5), drawn(4, 9, seed=2)
    assert torch.equal(kernels.replaced_by_last(1, base, idx, updates), base.scatter(1, idx, updates))
    rows = indices(9, below=5)
    found = kernels.sum_sorted(base.clone(), 1, rows, updates)
    torch.testing.assert_close(found, base.index_add(1, rows, updates))


def test_scatter_where_updates_meet_keeps_the_last_along_the_axis() -> None:
    base, idx = sw.tensor([0.0, 0.0]), sw.tensor([1, 0, 1, 1])
    updates = sw.tensor([1.0, 2.0, 3.0, 4.0])
    assert sw.to_list(sw.scatter(base, idx, updates, 0)) == [2.0, 4.0]
    assert sw.to_list(sw.scatter(on_generic(base), on_generic(idx), on_generic(updates), 0)) == [2.0, 4.0]


@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_where_updates_meet_passes_a_gradient_to_the_last_alone(axis: int) -> None:
    base, idx, updates = drawn(4, 6), indices(4, 6, below=3), drawn(4, 6, seed=3)
    for (_, a), (_, b), (_, c) in zip(variants(base), variants(idx), variants(updates), strict=True):
        check_gradients(lambda t, u, b=b: sw.scatter(t, b, u, axis), a, c)


def test_scatter_add_of_many_small_halves_is_not_lost_to_rounding() -> None:
    base, count = torch.tensor([1.0], dtype=torch.bfloat16), 1000
    updates = torch.full((count,), 0.001, dtype=torch.bfloat16)
    found = sw.scatter_add(
        sw.from_torch(base), sw.from_torch(torch.zeros(count, dtype=torch.int64)), sw.from_torch(updates), 0
    )
    exact = 1 + updates.double().sum()
    assert abs(sw.item(found) - exact) < 0.01


# -- take, embedding, index_add ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_take_of_every_dtype_is_torchs(dtype: torch.dtype) -> None:
    x, idx = drawn(4, 6, dtype=dtype), indices(5, below=6)
    same(sw.take(sw.from_torch(x), sw.from_torch(idx), 1), wide(x).index_select(1, idx).to(dtype))


def taken(x: torch.Tensor, idx: torch.Tensor, axis: int) -> torch.Tensor:
    flat = x.index_select(axis, idx.reshape(-1).long())
    return flat.reshape([*x.shape[:axis], *idx.shape, *x.shape[axis + 1 :]])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (4,), (4, 6)], ids=str)
def test_take_on_every_layout_of_both_is_torchs_and_the_reference(axis: int, shape: Sequence[int]) -> None:
    x, idx = drawn(4, 6, 4), indices(*shape, below=4)
    for _, a in variants(x):
        for _, b in variants(idx):
            found = sw.take(a, b, axis)
            assert is_dense(found.layout)
            same(found, taken(x, dense(b), axis))
    generic_agrees(lambda t, i: sw.take(t, i, axis), nested(x), variants(idx)[-1][1])


def test_take_of_a_row_major_and_a_column_major_table_keeps_the_order() -> None:
    row, column = sw.from_torch(drawn(5, 3)), sw.from_torch(drawn(3, 5).t())
    ids = indices(2, 4, below=5)
    assert sw.take(row, sw.from_torch(ids), 0).layout == sw.Layout.row_major(2, 4, 3)
    assert sw.take(column, sw.from_torch(ids.t().contiguous().t()), 0).layout == sw.Layout.column_major(2, 4, 3)
    assert sw.take(column, sw.from_torch(ids), 0).layout == sw.Layout(sw.Shape(2, 4, 3), sw.Stride(4, 1, 8))
    many = sw.from_torch(indices(4, 6, below=5))  # more indices than the axis is long lie together all the same
    assert sw.take(column, many, 0).layout == sw.Layout(sw.Shape(4, 6, 3), sw.Stride(6, 1, 24))
    assert sw.take(row, many, 0).layout == sw.Layout.row_major(4, 6, 3)


def test_embedding_is_torchs() -> None:
    weight, ids = drawn(9, 4), indices(2, 3, below=9, dtype=torch.int32)
    expected = torch.nn.functional.embedding(ids, weight)
    same(sw.embedding(sw.from_torch(weight), sw.from_torch(ids)), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_add_of_every_dtype_is_torchs_rounded_once(dtype: torch.dtype) -> None:
    base, idx, updates = drawn(4, 6, dtype=dtype), indices(9, below=6), drawn(4, 9, dtype=dtype, seed=2)
    summed = torch.float32 if dtype.is_floating_point and dtype is not torch.float64 else dtype
    found = sw.index_add(sw.from_torch(base), sw.from_torch(idx), sw.from_torch(updates), 1)
    same(found, base.to(summed).index_add(1, idx, updates.to(summed)).to(dtype))


@pytest.mark.parametrize("axis", [0, 1])
def test_index_add_on_every_layout_is_torchs_and_the_reference(axis: int) -> None:
    base, idx = drawn(4, 6), indices(2, 4, below=4)
    updates = drawn(*taken(base, idx, axis).shape, seed=2)
    merged = updates.reshape([*base.shape[:axis], 8, *base.shape[axis + 1 :]])
    expected = base.index_add(axis, idx.reshape(-1), merged)
    for _, a in variants(base):
        for _, b in variants(idx)[:3]:
            wanted = sw.take(a, b, axis).shape
            c = sw.from_torch(updates)
            if c.shape == wanted:
                same(sw.index_add(a, b, c, axis), expected)
                generic_agrees(lambda *operands: sw.index_add(*operands, axis), a, b, c)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2], ids=str)
def test_gradient_of_an_embedding_in_few_bits_is_the_sum_rounded_once(dtype: torch.dtype) -> None:
    ids, cotangent = indices(40, below=4), drawn(40, 3, dtype=dtype, seed=5)
    expected = torch.zeros(6, 3).index_add(0, ids, cotangent.float()).to(dtype)
    whole = nested(drawn(6, 3, dtype=dtype))  # its rows are a nested mode, its columns split too
    for table in (sw.from_torch(drawn(6, 3, dtype=dtype)), whole):
        table = leaf(table)
        output = sw.embedding(table, sw.from_torch(ids))
        (found,) = sw.grad(output, table, place(cotangent, output.layout))
        same(found, expected)
        assert found.dtype() is sw.DType.from_torch(dtype)


# -- one_hot -----------------------------------------------------------------------------------------------------------


def test_one_hot_on_every_layout_is_torchs_and_the_reference() -> None:
    idx = indices(4, 6, below=5)
    for _, i in variants(idx):
        same(sw.one_hot(i, 5), torch.nn.functional.one_hot(idx, 5))
        generic_agrees(lambda t: sw.one_hot(t, 5), i)
    assert sw.one_hot(sw.from_torch(idx.int()), 5).dtype() is sw.DType.Int64


# -- concatenate and stack ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_concatenate_and_stack_of_every_dtype_are_torchs(dtype: torch.dtype) -> None:
    a, b = drawn(2, 3, dtype=dtype), drawn(2, 3, dtype=dtype, seed=1)
    pair = [sw.from_torch(a), sw.from_torch(b)]
    same(sw.concatenate(pair, 1), torch.cat([a, b], 1))
    same(sw.stack(pair, 1), torch.stack([a, b], 1))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate_and_stack_on_every_layout_are_torchs_and_the_reference(axis: int) -> None:
    a, b = drawn(4, 6, 4), drawn(4, 6, 4, seed=1)
    for (_, x), (_, y) in zip(variants(a), variants(b), strict=True):
        joined, stacked = sw.concatenate([x, y, x], axis), sw.stack([x, y, x], axis)
        same(joined, torch.cat([a, b, a], axis))
        same(stacked, torch.stack([a, b, a], axis))
        assert is_dense(joined.layout)
        assert is_dense(stacked.layout)
        generic_agrees(lambda *operands: sw.concatenate(operands, axis), x, y)
        generic_agrees(lambda *operands: sw.stack(operands, axis), x, y)


def test_concatenate_of_other_extents_and_dtypes_promotes_as_torch() -> None:
    a, b, c = drawn(2, 3, dtype=torch.int32), drawn(2, 1, dtype=torch.bfloat16), drawn(2, 5, dtype=torch.float16)
    found = sw.concatenate([sw.from_torch(x) for x in (a, b, c)], 1)
    same(found, torch.cat([a, b, c], 1))
    assert found.dtype() is sw.DType.Float32


def test_concatenate_of_one_is_a_copy() -> None:
    x = sw.from_torch(drawn(2, 3))
    found = sw.concatenate([x])
    assert found.carrier is not x.carrier
    assert sw.to_list(found) == sw.to_list(x)


def test_concatenate_keeps_the_order_and_stack_keeps_operands_together() -> None:
    row, column = sw.from_torch(drawn(2, 3)), sw.from_torch(drawn(3, 2).t())
    assert sw.concatenate([row, column], 0).layout == sw.Layout.row_major(4, 3)
    assert sw.concatenate([column, row], 0).layout == sw.Layout.column_major(4, 3)
    assert sw.stack([row, column], 0).layout == sw.Layout.row_major(2, 2, 3)
    assert sw.stack([column, row], 2).layout == sw.Layout.column_major(2, 3, 2)


def test_concatenate_where_only_some_want_a_gradient_gives_it_to_these() -> None:
    a, b = leaf(sw.tensor([1.0, 2.0])), sw.tensor([3.0])
    sw.concatenate([b, a, b, a]).backward(sw.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    assert sw.to_list(a.grad) == [7.0, 9.0]
    assert b.grad is None


# -- split and chunk ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [2, 3, 7, [1, 4, 1], [6]], ids=str)
def test_split_gives_views_of_torchs_parts(sizes: int | list[int]) -> None:
    x = drawn(4, 6)
    for label, t in variants(x):
        if label == "nested":
            continue
        parts = sw.split(t, sizes, 1)
        assert all(part.carrier is t.carrier for part in parts)
        for part, expected in zip(parts, x.split(sizes, 1), strict=True):
            same(part, expected)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9])
def test_chunk_gives_torchs_parts(count: int) -> None:
    x = drawn(6, 2)
    for part, expected in zip(sw.chunk(sw.from_torch(x), count), x.chunk(count), strict=True):
        same(part, expected)


def test_split_passes_gradients_of_the_parts_that_were_used() -> None:
    x = drawn(4, 6)

    def function(t: sw.Tensor) -> sw.Tensor:
        first, _, last = sw.split(t, 2, 1)
        return first * last

    def theirs(t: torch.Tensor) -> torch.Tensor:
        first, _, last = t.split(2, 1)
        return first * last

    check_gradients(function, sw.from_torch(x), torch_function=theirs)
    check_gradients(function, sw.from_torch(x.t().contiguous().t()), torch_function=theirs)
    generic = leaf(on_generic(sw.from_torch(x)))
    sw.reduce_sum(function(generic)).backward()
    expected = x.clone().requires_grad_()
    theirs(expected).sum().backward()
    same(generic.grad, expected.grad, rtol=1e-12)


# -- pad, flip, triangles, repetition ----------------------------------------------------------------------------------


def padded(x: torch.Tensor, widths: Sequence[tuple[int, int]], value: float) -> torch.Tensor:
    out = torch.full([n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)], value).to(x.dtype)
    out[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, widths, strict=True))] = x
    return out


ONE_OPERAND: list[tuple[str, Callable[[sw.Tensor], sw.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = [
    ("flip", lambda t: sw.flip(t, 1), lambda x: x.flip(1)),
    ("flip two", lambda t: sw.flip(t, (0, -1)), lambda x: x.flip(0, -1)),
    ("tril", lambda t: sw.tril(t), lambda x: x.tril()),
    ("tril above", lambda t: sw.tril(t, 2), lambda x: x.tril(2)),
    ("triu", lambda t: sw.triu(t), lambda x: x.triu()),
    ("triu below", lambda t: sw.triu(t, -1), lambda x: x.triu(-1)),
    ("tile", lambda t: sw.tile(t, (2, 1, 3)), lambda x: x.repeat(2, 1, 3)),
    ("tile once", lambda t: sw.tile(t, (1, 1, 1)), lambda x: x.clone()),
    ("repeat", lambda t: sw.repeat(t, 3, 1), lambda x: x.repeat_interleave(3, 1)),
]


@pytest.mark.parametrize(("function", "theirs"), [row[1:] for row in ONE_OPERAND], ids=[row[0] for row in ONE_OPERAND])
def test_operation_of_one_operand_on_every_layout_is_torchs_and_the_reference(
    function: Callable[[sw.Tensor], sw.Tensor], theirs: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = drawn(2, 4, 6)
    for values in (x, x[:, :1].expand(2, 4, 6)):
        for _, t in variants(values):
            found = function(t)
            same(found, theirs(values))
            assert is_dense(found.layout)
            generic_agrees(function, t)
    for _, t in variants(x):
        check_gradients(function, t, torch_function=theirs, numeric=False)
    check_gradients(function, nested(x[:1, :2, :4]), torch_function=theirs)


@pytest.mark.parametrize(("function", "theirs"), [row[1:] for row in ONE_OPERAND], ids=[row[0] for row in ONE_OPERAND])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operation_of_one_operand_of_every_dtype_is_torchs(
    dtype: torch.dtype, function: Callable[[sw.Tensor], sw.Tensor], theirs: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = drawn(2, 3, 3, dtype=dtype)
    found = function(sw.from_torch(x))
    same(found, theirs(wide(x)).to(dtype))
    assert found.dtype() is sw.DType.from_torch(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pad_of_every_dtype_frames_the_values(dtype: torch.dtype) -> None:
    x, widths = drawn(2, 3, dtype=dtype), [(1, 0), (2, 3)]
    same(sw.pad(sw.from_torch(x), widths, True), padded(x, widths, 1))


def test_pad_on_every_layout_frames_the_values_as_the_reference_does() -> None:
    x, widths = drawn(4, 6, 4), [(1, 2), (0, 0), (0, 1)]
    for label, t in variants(x):
        if label == "nested":
            t = sw.rearrange(sw.from_torch(x), "a (b c) d -> a (b c) d", b=2)
        found = sw.pad(t, widths, 0.5)
        assert is_dense(found.layout)
        if label != "nested":
            same(found, padded(x, widths, 0.5))
            check_gradients(lambda v: sw.pad(v, widths, 0.5), t, torch_function=lambda v: padded_gradient(v, widths))
        generic_agrees(lambda v: sw.pad(v, widths, 0.5), t)


def padded_gradient(x: torch.Tensor, widths: Sequence[tuple[int, int]]) -> torch.Tensor:
    flat = [width for pair in reversed(widths) for width in pair]
    return torch.nn.functional.pad(x, flat, value=0.5)


def test_pad_with_zeros_around_nothing_is_a_copy() -> None:
    x = sw.from_torch(drawn(2, 3))
    found = sw.pad(x, [(0, 0), (0, 0)])
    assert found.layout == x.layout
    same(found, dense(x))


# -- gradients of what indexes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_indexing_are_torchs_and_those_of_differences(axis: int) -> None:
    x, idx, updates = drawn(4, 6), indices(4, 6, below=4), drawn(4, 6, seed=2)
    distinct = torch.stack([torch.randperm(4), torch.randperm(4)]).t() if axis == 0 else indices(4, 1, below=6)
    slices = drawn(*taken(x, idx[0, :3], axis).shape, seed=4)
    for (_, a), (_, b), (_, c) in zip(variants(x), variants(idx), variants(updates), strict=True):
        numeric = a.layout.depth > 1
        check_gradients(
            lambda t, b=b: sw.gather(t, b, axis), a, torch_function=lambda t: t.gather(axis, idx), numeric=numeric
        )
        check_gradients(
            lambda t, u, b=b: sw.scatter_add(t, b, u, axis),
            a,
            c,
            torch_function=lambda t, u: t.scatter_add(axis, idx, u),
            numeric=numeric,
        )
        check_gradients(
            lambda t, b=b: sw.take(t, b, axis), a, torch_function=lambda t: taken(t, idx, axis), numeric=False
        )
        check_gradients(
            lambda t, u: sw.scatter(t, sw.from_torch(distinct), u, axis),
            a,
            sw.from_torch(updates[: distinct.shape[0], : distinct.shape[1]].contiguous()),
            torch_function=lambda t, u: t.scatter(axis, distinct, u),
            numeric=numeric,
        )
    check_gradients(
        lambda t, u: sw.index_add(t, sw.from_torch(idx[0, :3].contiguous()), u, axis),
        sw.from_torch(x),
        sw.from_torch(slices),
        torch_function=lambda t, u: t.index_add(axis, idx[0, :3], u),
    )
    check_gradients(
        lambda t, b: sw.concatenate([t, b, t], axis) * sw.concatenate([b, b, t], axis),
        sw.from_torch(x),
        sw.from_torch(updates.t().contiguous().t()),
        torch_function=lambda t, b: torch.cat([t, b, t], axis) * torch.cat([b, b, t], axis),
    )
    check_gradients(
        lambda t, b: sw.stack([t, b, t], axis),
        sw.from_torch(x),
        sw.from_torch(updates.t().contiguous().t()),
        torch_function=lambda t, b: torch.stack([t, b, t], axis),
    )
    check_gradients(
        lambda t, b: sw.concatenate([t, b], axis),
        nested(x),
        nested(updates),
        torch_function=lambda t, b: torch.cat([t, b], axis),
    )


def test_gradients_on_the_reference_carrier_are_those_of_the_kernels() -> None:
    x, idx, updates = drawn(4, 6), indices(4, 6, below=4), drawn(4, 6, seed=2)
    b = sw.from_torch(idx)
    functions: list[Callable[..., sw.Tensor]] = [
        lambda t, u, b: sw.gather(t, b, 0) + u,
        lambda t, u, b: sw.scatter(t, b, u, 0),
        lambda t, u, b: sw.scatter_add(t, b, u, 1),
        lambda t, u, b: sw.take(t, b, 0) * u[0, 0:1],
        lambda t, u, b: sw.pad(sw.concatenate([t, u], 1), [(0, 1), (1, 0)]),
        lambda t, u, b: sw.tile(t, (2, 1)) * sw.repeat(u, 2, 0),
    ]
    for function in functions:
        found = []
        for carry in (lambda t: t, on_generic):
            t, u = leaf(carry(sw.from_torch(x))), leaf(carry(sw.from_torch(updates)))
            output = function(t, u, carry(b))
            sw.reduce_sum(output * output).backward()
            found.append((dense(t.grad), dense(u.grad)))
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, 6, 1 << 31])
@pytest.mark.parametrize("carry", [lambda t: t, on_generic], ids=["CPU", "Generic"])
def test_indexing_out_of_range_raises_naming_the_first_and_changes_nothing(
    bad: int, carry: Callable[[sw.Tensor], sw.Tensor]
) -> None:
    idx = indices(4, 6, below=6)
    idx[2, 1] = bad
    idx[3, 4] = -7
    x, i = carry(sw.from_torch(drawn(4, 6))), carry(sw.from_torch(idx))
    before = dense(x)
    words = rf"along axis 1 of extent 6: index {bad}, at ordinal 6 of the indices, is out of range"
    for function in (
        lambda: sw.gather(x, i, 1),
        lambda: sw.scatter(x, i, x, 1),
        lambda: sw.scatter(x, i, 0, 1),
        lambda: sw.scatter_add(x, i, x, -1),
        lambda: sw.take(x, i, 1),
    ):
        with pytest.raises(IndexError, match=words):
            function()
    with pytest.raises(IndexError, match=rf"cannot one_hot along axis 2 of extent 6: index {bad}"):
        sw.one_hot(i, 6)
    assert torch.equal(dense(x), before)
    assert x.version == 0


def test_indexing_of_wrong_kinds_is_refused() -> None:
    x, i = sw.from_torch(drawn(4, 6)), sw.from_torch(indices(4, 6, below=4))
    whole = sw.from_torch(drawn(4, 6, dtype=torch.int32))
    with pytest.raises(TypeError, match="indices are Int64 or Int32"):
        sw.gather(x, x, 0)
    with pytest.raises(TypeError, match="indices are Int64 or Int32"):
        sw.one_hot(sw.from_torch(drawn(3, dtype=torch.uint8)), 9)
    with pytest.raises(TypeError, match="axis must be an integer"):
        sw.gather(x, i, 0.5)
    with pytest.raises(TypeError, match="it takes a Tensor"):
        sw.gather([1], i, 0)
    with pytest.raises(TypeError, match="updates have the dtype of the base"):
        sw.scatter(x, i, whole, 0)
    with pytest.raises(TypeError, match="updates have the dtype of the base"):
        sw.scatter(whole, i, 0.5, 0)
    with pytest.raises(TypeError, match="Tensor backing carriers must match"):
        sw.gather(x, on_generic(i), 0)
    with pytest.raises(ValueError, match=r"there is no such mode. Axes are -2 to 1"):
        sw.take(x, i, 2)
    with pytest.raises(ValueError, match="none but the axis is longer"):
        sw.gather(x, sw.from_torch(indices(5, 6, below=4)), 1)
    with pytest.raises(ValueError, match="as many modes"):
        sw.gather(x, sw.from_torch(indices(4, below=4)), 0)
    with pytest.raises(ValueError, match="every update has an index"):
        sw.scatter_add(x, i, sw.from_torch(drawn(4, 5)), 0)
    with pytest.raises(ValueError, match=r"the shape of what take would give"):
        sw.index_add(x, i, x, 0)
    with pytest.raises(ValueError, match="at least 1"):
        sw.one_hot(i, 0)


def test_assembling_of_wrong_kinds_is_refused() -> None:
    x, y = sw.from_torch(drawn(4, 6)), sw.from_torch(drawn(4, 5))
    with pytest.raises(TypeError, match="a list or tuple of Tensors"):
        sw.concatenate(x)
    with pytest.raises(TypeError, match="it takes a Tensor there"):
        sw.concatenate([x, 3])
    with pytest.raises(ValueError, match="takes one or more"):
        sw.stack([])
    with pytest.raises(ValueError, match=r"\(operand 1\) along axis 0: all modes but the axis are the same"):
        sw.concatenate([x, y], 0)
    with pytest.raises(ValueError, match=r"cannot stack shapes \(4,6\) and \(4,5\)"):
        sw.stack([x, y])
    with pytest.raises(ValueError, match="Axes are -3 to 2"):
        sw.stack([x, x], 3)
    with pytest.raises(TypeError, match="Tensor backing carriers must match"):
        sw.stack([x, on_generic(x)])
    with pytest.raises(ValueError, match="add up to 5, not to the extent"):
        sw.split(x, [2, 3], 1)
    with pytest.raises(ValueError, match="at least 1"):
        sw.split(x, [0, 6], 1)
    with pytest.raises(ValueError, match="at least 1"):
        sw.chunk(x, 0)
    with pytest.raises(ValueError, match="a nested mode, of which a part is no view"):
        sw.split(nested(drawn(4, 6)), 2, 1)
    with pytest.raises(ValueError, match="nested mode"):
        sw.pad(nested(drawn(4, 6)), [(1, 0), (0, 0)])
    with pytest.raises(ValueError, match="1 pairs of widths for 2 modes"):
        sw.pad(x, [(1, 1)])
    with pytest.raises(ValueError, match="0 or more"):
        sw.pad(x, [(1, -1), (0, 0)])
    with pytest.raises(TypeError, match="a number that the dtype holds"):
        sw.pad(sw.from_torch(drawn(2, dtype=torch.int32)), [(1, 1)], 0.5)
    with pytest.raises(ValueError, match="one occurs twice"):
        sw.flip(x, (0, -2))
    with pytest.raises(ValueError, match="a diagonal lies in the last two"):
        sw.tril(sw.tensor([1.0]))
    with pytest.raises(ValueError, match="1 counts for 2 modes"):
        sw.tile(x, [2])
    with pytest.raises(ValueError, match="at least 1"):
        sw.repeat(x, 0, 0)


# -- operations with any number of operands ----------------------------------------------------------------------------


def _total() -> object:
    def resolve(call: object) -> ResolvedInvocation:
        first = call.operands[0]
        return ResolvedInvocation(call, pointwise_plan(call), (ResultSpec(first.dtype(), first.shape, first.layout),))

    def reference(invocation: ResolvedInvocation) -> list[list[float]]:
        columns = [invocation.values(k) for k in range(len(invocation.operands))]
        return [[sum(row) for row in zip(*columns, strict=True)]]

    return define_operation(
        "test.total",
        OperationSchema(
            [
                OperandSpec("first", OperandKind.TENSOR),
                OperandSpec("rest", OperandKind.TENSOR, differentiable=True, variadic=True),
            ]
        ),
        resolve,
        reference,
        vjp=lambda context, g: (None, *[g] * (len(context.invocation.operands) - 1)),
    )


def test_variadic_operation_takes_one_or_more_and_passes_each_its_gradient() -> None:
    total = _total()
    x = sw.Tensor(sw.Generic([1.0, 2.0], dtype=sw.DType.Float32), 0, sw.Layout.column_major(2))
    assert sw.to_list(total(x, x)) == [2.0, 4.0]
    a, b = leaf(x), leaf(x)
    output = total(x, a, x, b)
    assert sw.to_list(output) == [4.0, 8.0]
    output.backward(x)
    assert sw.to_list(a.grad) == sw.to_list(b.grad) == [1.0, 2.0]
    assert len(total.bind(x, a, b).operand_kinds) == 3
    with pytest.raises(TypeError, match=r"1 operands: it takes 2 or more \(first, rest\)"):
        total(x)
    with pytest.raises(TypeError, match="with rest=int"):
        total(x, x, 3)


def test_variadic_operand_before_another_is_refused() -> None:
    many, one = OperandSpec("many", OperandKind.TENSOR, variadic=True), OperandSpec("one", OperandKind.TENSOR)
    with pytest.raises(ValueError, match="Only the last operand"):
        OperationSchema([many, one])
    assert OperationSchema([one, many]).operands_for(4) == (one, many, many, many)
    assert OperationSchema([one]).operands_for(4) == (one,)
    assert not OperationSchema([one]).is_variadic
    assert not OperationSchema([]).is_variadic
