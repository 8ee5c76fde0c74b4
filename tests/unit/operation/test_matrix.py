"""Products of matrices and vectors: values, dtypes, layouts, gradients and refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import strideweave as sw
from strideweave import DType, Layout, Shape, Stride
from strideweave.operation.alignment import strides_dense
from strideweave.operation.kernels.blas import Dim, plan_blas
from support.operations import check_gradients, dense, on_generic, place, variants

FLOATS = [DType.Float64, DType.Float32, DType.BFloat16, DType.Float16]
WHOLE = [DType.Int64, DType.Int32, DType.Int16, DType.Int8, DType.UInt8]


def drawn(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    values = torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values * 10).to(dtype) if not dtype.is_floating_point else values.to(dtype)


def wrapped(*sizes: int, seed: int = 0) -> sw.Tensor:
    return sw.from_torch(drawn(*sizes, seed=seed))


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", WHOLE, ids=lambda d: d.name)
def test_matmul_of_whole_numbers_is_exact_and_wraps_as_torch(dtype: sw.dtype.StorageDType) -> None:
    a, b = (drawn(*s, seed=k, dtype=torch.int64).to(dtype.torch_dtype) for k, s in enumerate([(3, 40), (40, 5)]))
    made = sw.matmul(sw.from_torch(a), sw.from_torch(b))
    assert made.dtype() is dtype
    assert torch.equal(made.torch(), a @ b)
    assert torch.equal(dense(sw.matmul(on_generic(sw.from_torch(a)), on_generic(sw.from_torch(b)))), a @ b)


@pytest.mark.parametrize("sizes", [(3, 2000, 2), (64, 300, 48), (1, 700, 1)], ids=str)
@pytest.mark.parametrize("dtype", [DType.BFloat16, DType.Float16], ids=lambda d: d.name)
def test_matmul_of_short_floats_is_rounded_once(dtype: sw.dtype.StorageDType, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = torch.rand(m, k).to(dtype.torch_dtype), torch.rand(k, n).to(dtype.torch_dtype)
    exact = a.double() @ b.double()
    ulp = torch.exp2(torch.floor(torch.log2(exact))) * torch.finfo(dtype.torch_dtype).eps
    for left in (a, a.mT.contiguous().mT):
        made = sw.matmul(sw.from_torch(left), sw.from_torch(b))
        assert made.dtype() is dtype
        assert ((made.torch().double() - exact).abs() <= 0.51 * ulp).all()


@pytest.mark.parametrize("dtype", [DType.E4M3, DType.E5M2], ids=lambda d: d.name)
def test_matmul_of_8_bit_floats_is_computed_in_float32(dtype: sw.dtype.StorageDType) -> None:
    a, b = (drawn(4, 4, seed=k, dtype=torch.float32).to(dtype.torch_dtype) for k in (1, 2))
    made = sw.matmul(sw.from_torch(a), sw.from_torch(b))
    assert made.dtype() is dtype
    assert torch.equal(made.torch().float(), (a.float() @ b.float()).to(dtype.torch_dtype).float())


def test_matmul_of_mixed_dtypes_gives_what_the_table_promotes_to() -> None:
    values = {
        d: sw.convert(wrapped(3, 3), d) for d in (DType.E4M3, DType.E5M2, DType.BFloat16, DType.Float32, DType.Int32)
    }
    for a, b, expected in [
        (DType.E4M3, DType.E5M2, DType.Float16),
        (DType.E4M3, DType.BFloat16, DType.BFloat16),
        (DType.BFloat16, DType.Float32, DType.Float32),
        (DType.Int32, DType.BFloat16, DType.BFloat16),
    ]:
        made = sw.matmul(values[a], values[b])
        assert made.dtype() is expected
        exact = dense(values[a]).double() @ dense(values[b]).double()
        torch.testing.assert_close(dense(made).double(), exact, rtol=1e-2, atol=1e-1)


def test_matmul_with_float64_accumulator_is_the_float64_product_rounded_once() -> None:
    a, b = drawn(5, 3000, dtype=torch.float32), drawn(3000, 4, seed=1, dtype=torch.float32)
    made = sw.matmul(sw.from_torch(a), sw.from_torch(b), accumulator_dtype=DType.Float64)
    assert made.dtype() is DType.Float32
    assert torch.equal(made.torch(), (a.double() @ b.double()).float())


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4,), (4,)),
        ((4,), (4, 6)),
        ((6, 4), (4,)),
        ((6, 4), (4, 6)),
        ((3, 6, 4), (4, 2)),
        ((4,), (3, 4, 2)),
        ((2, 1, 6, 4), (3, 4, 2)),
        ((6, 4), (3, 4, 2)),
        ((1, 4), (4, 1)),
        ((6, 1), (1, 4)),
        ((3, 6, 1), (3, 1, 4)),
    ],
    ids=str,
)
def test_matmul_on_every_layout_and_carrier_equals_torch(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = drawn(*left), drawn(*right, seed=1)
    expected = a @ b
    for label, x in variants(a):
        for other, y in variants(b):
            if "nested" in (label, other) and (len(left) > 2 < len(right) or 1 in (len(left), len(right))):
                continue  # batches that nest in other ways do not meet
            made = sw.matmul(x, y)
            torch.testing.assert_close(dense(made), expected, msg=f"{label} {other}")
            if label == other:
                torch.testing.assert_close(dense(sw.matmul(on_generic(x), on_generic(y))), expected)


def test_matmul_of_nested_modes_keeps_m_n_and_batch_and_counts_k_first_leaf_fastest() -> None:
    a, b = drawn(4, 6, 12), drawn(4, 12, 8, seed=1)
    x = place(a, strides_dense(Shape((2, 2), (2, 3), (3, 4))))
    for k_mode in [(4, 3), (2, 6), 12, (3, 2, 2)]:
        y = place(b, strides_dense(Shape((2, 2), k_mode, (4, 2))))
        made = sw.matmul(x, y)
        assert made.shape == Shape((2, 2), (2, 3), (4, 2))
        torch.testing.assert_close(dense(made), a @ b)


def test_gemm_contracts_both_second_modes() -> None:
    a, b = drawn(3, 4), drawn(5, 4, seed=1)
    for x, y in [(sw.from_torch(a), sw.from_torch(b)), (on_generic(sw.from_torch(a)), on_generic(sw.from_torch(b)))]:
        torch.testing.assert_close(dense(sw.gemm(x, y)), a @ b.T)


def test_the_matmul_operator_is_matmul() -> None:
    x, y = wrapped(3, 4), wrapped(4, 2)
    assert torch.equal(dense(x @ y), dense(x) @ dense(y))
    with pytest.raises(TypeError, match="unsupported operand"):
        x @ 2


def test_matmul_of_float16_with_gaps_equals_torch() -> None:
    a, b = drawn(6, 9, dtype=torch.float16)[:, 1:5], drawn(4, 3, seed=1, dtype=torch.float16)
    for _ in range(2):
        torch.testing.assert_close(
            dense(sw.matmul(sw.from_torch(a), sw.from_torch(b))), (a.double() @ b.double()).half()
        )


def test_dot_and_outer_equal_torch() -> None:
    a, b = drawn(60), drawn(60, seed=1)
    x, y = sw.from_torch(a), sw.from_torch(b[::1])
    torch.testing.assert_close(dense(sw.dot(x, y)), a @ b)
    assert torch.equal(dense(sw.outer(x, y)), torch.outer(a, b))
    gaps = sw.from_torch(drawn(60, 3)[:, 1])
    torch.testing.assert_close(dense(sw.dot(gaps, gaps)), dense(gaps) @ dense(gaps))


@pytest.mark.parametrize("lead", [(), (7,), (2, 7)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_linear_equals_torch(dtype: sw.dtype.StorageDType, lead: tuple[int, ...]) -> None:
    x, w, b = (drawn(*s, seed=k).to(dtype.torch_dtype) for k, s in enumerate([(*lead, 6), (5, 6), (5,)]))
    exact = x.double() @ w.double().T + b.double()
    made = sw.linear(*map(sw.from_torch, (x, w, b)))
    assert made.dtype() is dtype
    torch.testing.assert_close(dense(made), exact.to(dtype.torch_dtype))
    torch.testing.assert_close(
        dense(sw.linear(sw.from_torch(x), sw.from_torch(w))).double(), exact - b.double(), rtol=1e-2, atol=1e-2
    )
    made = sw.linear(*(on_generic(sw.from_torch(t)) for t in (x, w, b)))
    torch.testing.assert_close(dense(made), exact.to(dtype.torch_dtype))


def test_linear_with_a_bias_whose_nested_mode_does_not_merge_equals_torch() -> None:
    values = [drawn(4, 6), drawn(10, 6, seed=1), drawn(10, seed=2)]
    x = sw.from_torch(values[0])
    w = place(values[1], strides_dense(Shape((5, 2), 6)))
    b = place(values[2], Layout(Shape([(5, 2)]), Stride([(3, 1)])))
    torch.testing.assert_close(dense(sw.linear(x, w, b)), torch.nn.functional.linear(*values))


def test_a_plan_of_more_calls_than_are_made_copies_everything() -> None:
    dims = [Dim(1100, (6, 0, 4400, 0)), Dim(1200, (0, 0, 4, 5)), Dim(1300, (0, 6, 5_280_000, 1)), Dim(6, (1, 1, 0, 0))]
    assert None not in plan_blas([*dims, Dim(2000, (0, 0, 1, 7))]).copied


def test_linear_with_one_inner_coordinate_adds_its_bias() -> None:
    x, w, b = drawn(3, 1), drawn(5, 1, seed=1), drawn(5, seed=2)
    torch.testing.assert_close(dense(sw.linear(*map(sw.from_torch, (x, w, b)))), x @ w.T + b)


# -- result layouts --------------------------------------------------------------------------------------------------

RESULTS: list[tuple[Layout, Layout, Layout]] = [
    (Layout.row_major(3, 4), Layout.row_major(4, 5), Layout.row_major(3, 5)),
    (Layout.row_major(3, 4), Layout.column_major(4, 5), Layout.row_major(3, 5)),
    (Layout.column_major(3, 4), Layout.row_major(4, 5), Layout.column_major(3, 5)),
    (Layout.column_major(3, 4), Layout.column_major(4, 5), Layout.column_major(3, 5)),
    (Layout(Shape(3, 4), Stride(0, 1)), Layout.row_major(4, 5), Layout.row_major(3, 5)),
    (Layout(Shape(3, 4), Stride(0, 1)), Layout.column_major(4, 5), Layout.column_major(3, 5)),
    (Layout.row_major(3, 1), Layout.row_major(1, 5), Layout.row_major(3, 5)),
    (Layout.column_major(3, 1), Layout.row_major(1, 5), Layout.column_major(3, 5)),
    (Layout.row_major(2, 3, 4), Layout.row_major(4, 5), Layout.row_major(2, 3, 5)),
    (Layout.row_major(3, 4), Layout.row_major(2, 4, 5), Layout.row_major(2, 3, 5)),
    (Layout.row_major(2, 1, 3, 4), Layout.row_major(6, 4, 5), Layout.row_major(2, 6, 3, 5)),
    (Layout.row_major(4), Layout.row_major(2, 4, 5), Layout.row_major(2, 5)),
    (Layout.row_major(4), Layout.column_major(2, 4, 5), Layout.column_major(2, 5)),
    (Layout.column_major(2, 3, 4), Layout.row_major(2, 4, 5), Layout.column_major(2, 3, 5)),
    (
        Layout(Shape(2, 6, 3, 4), Stride(72, 4, 24, 1)),
        Layout.row_major(2, 6, 4, 5),
        Layout(Shape(2, 6, 3, 5), Stride(90, 5, 30, 1)),
    ),
]


@pytest.mark.parametrize(("left", "right", "expected"), RESULTS, ids=str)
def test_matmul_lays_its_result_out_in_the_order_of_the_first_operand(
    left: Layout, right: Layout, expected: Layout
) -> None:
    x, y = (sw.Tensor(sw.CPU(layout.cosize, dtype=DType.Float32), 0, layout) for layout in (left, right))
    made = sw.matmul(x, y)
    assert made.layout == expected
    assert made.carrier.size() == made.size()


def test_outer_lays_its_result_out_first_mode_fastest() -> None:
    assert sw.outer(wrapped(3), wrapped(4)).layout == Layout.column_major(3, 4)


def test_linear_of_a_row_major_batch_is_row_major() -> None:
    assert sw.linear(wrapped(2, 3, 4), wrapped(5, 4), wrapped(5)).layout == Layout.row_major(2, 3, 5)


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "theirs", "sizes"),
    [
        (sw.matmul, torch.matmul, [(2, 4), (4, 3)]),
        (sw.matmul, torch.matmul, [(2, 2, 4), (4, 3)]),
        (sw.matmul, torch.matmul, [(2, 1, 2, 4), (3, 4, 2)]),
        (sw.matmul, torch.matmul, [(4,), (2, 4, 3)]),
        (sw.matmul, torch.matmul, [(4,), (4,)]),
        (sw.gemm, lambda a, b: a @ b.T, [(2, 4), (3, 4)]),
        (sw.dot, torch.dot, [(4,), (4,)]),
        (sw.outer, torch.outer, [(4,), (3,)]),
        (sw.linear, torch.nn.functional.linear, [(2, 4), (3, 4), (3,)]),
        (sw.linear, torch.nn.functional.linear, [(2, 2, 4), (3, 4)]),
    ],
)
def test_gradients_equal_torch_and_differences_on_every_layout(
    function: Callable[..., sw.Tensor], theirs: Callable[..., torch.Tensor], sizes: list[tuple[int, ...]]
) -> None:
    values = [drawn(*s, seed=k) for k, s in enumerate(sizes)]
    columns = [variants(v) for v in values]
    for k, label in enumerate(["contiguous", "permuted", "gapped"]):
        check_gradients(
            function, *(column[k][1] for column in columns), torch_function=theirs, numeric=label == "gapped"
        )
    check_gradients(function, *(on_generic(sw.from_torch(v)) for v in values), torch_function=theirs, numeric=False)


def test_gradients_of_nested_and_repeated_operands_equal_torch() -> None:
    a, b = drawn(4, 6), drawn(6, 4, seed=1)
    check_gradients(sw.matmul, variants(a)[3][1], variants(b)[3][1], torch_function=torch.matmul)
    check_gradients(sw.matmul, sw.from_torch(a[:1].expand(4, 6)), sw.from_torch(b), torch_function=torch.matmul)


def test_the_gradient_of_a_shared_weight_is_one_matrix_in_its_own_layout() -> None:
    w = sw.from_torch(drawn(4, 3).T.contiguous().T).requires_grad_()
    made = sw.matmul(wrapped(8, 5, 4), w)
    (found,) = made.autograd_ctx.backward(made.detach())[1:]
    assert found.layout == w.layout


def test_no_gradient_is_computed_for_an_operand_that_needs_none() -> None:
    made = sw.matmul(wrapped(3, 4).requires_grad_(), wrapped(4, 2))
    assert made.autograd_ctx.backward(made.detach())[1] is None


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: sw.matmul(wrapped(2, 3), wrapped(2, 3)),
            ValueError,
            r"\(2,3\) and \(2,3\).*Matmul inner dimensions must match",
        ),
        (
            lambda: sw.matmul(wrapped(2, 3, 4), wrapped(3, 4, 5)),
            ValueError,
            r"\(2,3,4\) and \(3,4,5\).*broadcast-compatible",
        ),
        (lambda: sw.matmul(sw.tensor(1.0), wrapped(3)), ValueError, "the left one has no modes"),
        (lambda: sw.matmul(sw.tensor([[True]]), sw.tensor([[True]])), TypeError, "Bool"),
        (lambda: sw.matmul(wrapped(2, 2), 2), TypeError, "matmul with r=int"),
        (lambda: sw.matmul(wrapped(2, 2), on_generic(wrapped(2, 2))), TypeError, "carriers must match"),
        (
            lambda: sw.matmul(wrapped(2, 2), wrapped(2, 2), accumulator_dtype=DType.Int32),
            TypeError,
            "Float32 or Float64",
        ),
        (lambda: sw.matmul(sw.tensor([[1]]), sw.tensor([[1]]), accumulator_dtype=DType.Float64), TypeError, "exactly"),
        (lambda: sw.gemm(wrapped(2, 3, 4), wrapped(3, 4)), ValueError, "must have a two-mode layout"),
        (lambda: sw.gemm(wrapped(3, 4), wrapped(4, 3)), ValueError, "Matmul inner dimensions must match"),
        (lambda: sw.dot(wrapped(3, 1), wrapped(3)), ValueError, "must have a one-mode layout"),
        (lambda: sw.dot(wrapped(3), wrapped(4)), ValueError, "Matmul inner dimensions must match"),
        (lambda: sw.outer(wrapped(3), wrapped(3, 1)), ValueError, "must have a one-mode layout"),
        (lambda: sw.linear(wrapped(3), wrapped(3)), ValueError, "weight operand.*must have a two-mode layout"),
        (lambda: sw.linear(wrapped(3), wrapped(2, 4)), ValueError, "Matmul inner dimensions must match"),
        (lambda: sw.linear(wrapped(3), wrapped(2, 3), wrapped(3)), ValueError, "bias of shape 3"),
        (lambda: sw.linear(wrapped(3), wrapped(2, 3), 1.0), TypeError, "a bias is a Tensor or None"),
        (lambda: sw.linear(sw.tensor(1.0), wrapped(2, 3)), ValueError, "no modes"),
    ],
)
def test_what_cannot_be_multiplied_is_refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# -- how it goes to BLAS ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (Layout.row_major(64, 96), Layout.column_major(96, 32)),
        (Layout.column_major(64, 96), Layout.column_major(96, 32)),
        (Layout.row_major(8, 64, 96), Layout.row_major(96, 32)),
        (Layout(Shape(4, 8, 64, 96), Stride(8 * 64 * 96, 96, 8 * 96, 1)), Layout.row_major(4, 8, 96, 128)),
        (Layout.row_major(8, 64, 96), Layout(Shape(8, 96, 32), Stride(0, 32, 1))),
    ],
    ids=str,
)
def test_matmul_of_usual_layouts_copies_nothing(left: Layout, right: Layout) -> None:
    x, y = (sw.Tensor(sw.CPU(layout.cosize, dtype=DType.Float32), 0, layout) for layout in (left, right))
    sw.matmul(x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        sw.matmul(x, y)
    assert not {event.key for event in profile.key_averages()} & {"aten::copy_", "aten::clone", "aten::contiguous"}
