"""Reductions and running totals against torch: dtypes, layouts, descriptions, gradients, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import strideweave as sw
from strideweave.operation.alignment import dense_like
from strideweave.tensor.values import item, to_list
from support.operations import check_gradients, dense, gradients, nested, on_generic, variants

INF, NAN = math.inf, math.nan
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
EIGHT_BIT = [torch.float8_e4m3fn, torch.float8_e5m2]

# name: what it computes in Float64 of (values, dims)
AS_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "reduce_sum": torch.sum,
    "reduce_mean": torch.mean,
    "reduce_prod": lambda x, dim: x.movedim(dim, tuple(range(-len(dim), 0))).flatten(-len(dim)).prod(-1),
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
    "var": torch.var,
    "std": torch.std,
    "norm": lambda x, dim: torch.linalg.vector_norm(x, 2, dim),
    "logsumexp": torch.logsumexp,
}


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 9, shape, generator=generator).to(dtype)


def tensor(values: object, dtype: torch.dtype = torch.float64) -> sw.Tensor:
    return sw.from_torch(torch.tensor(values, dtype=dtype))


def is_recorded_view(x: sw.Tensor) -> bool:
    return "rearrange" in repr(x.autograd_ctx)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AS_TORCH)
@pytest.mark.parametrize("axis", [0, -1, (0, 2), None], ids=str)
def test_reduction_over_any_layout_is_torchs(name: str, axis: int | tuple[int, ...] | None) -> None:
    values = drawn(4, 3, 6)
    dims = (0, 1, 2) if axis is None else (axis % 3,) if isinstance(axis, int) else axis
    expected = AS_TORCH[name](values, dim=dims)
    for label, x in variants(values):
        found = getattr(sw, name)(x, axis=axis)
        torch.testing.assert_close(dense(found), expected, msg=label)
        assert found.layout.cosize == found.size(), label
        kept = getattr(sw, name)(x, axis=axis, keepdims=True)
        assert len(kept.shape) == 3, label
        torch.testing.assert_close(dense(kept).reshape(expected.shape), expected, msg=label)


@pytest.mark.parametrize("name", [*AS_TORCH, "cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", [*FLOATS, *EIGHT_BIT, *WHOLE], ids=str)
def test_reduction_in_every_dtype_rounds_once(name: str, dtype: torch.dtype) -> None:
    values = drawn(3, 40, dtype=dtype)
    x = sw.from_torch(values.clone())
    found = getattr(sw, name)(x, 1) if name.startswith("cum") else getattr(sw, name)(x, axis=1)
    exactly = {"cumsum": torch.cumsum, "cumprod": torch.cumprod}.get(name, AS_TORCH.get(name))
    whole = not dtype.is_floating_point and name in ("reduce_sum", "reduce_prod", "cumsum", "cumprod")
    if whole:
        expected = exactly(values.long(), dim=1 if name.startswith("cum") else (1,))
        assert found.dtype() is sw.DType.Int64
        assert torch.equal(dense(found), expected)
        return
    expected = exactly(values.double(), dim=1 if name.startswith("cum") else (1,))
    if dtype.is_floating_point or name in ("reduce_max", "reduce_min"):
        assert found.dtype() is x.dtype()
    else:
        assert found.dtype() is sw.DType.Float32
    rounded = expected.to(found.dtype().torch_dtype)
    if found.dtype().bits <= 16:  # one rounding; the Float32 before it may fall on the other side of a tie
        assert (dense(found).double() != rounded.double()).double().mean() <= 0.02
    torch.testing.assert_close(
        dense(found).double(), rounded.double(), rtol=2e-5 if rounded.itemsize > 2 else 0.2, atol=1e-6
    )


@pytest.mark.parametrize("name", [*AS_TORCH, "argmax", "argmin", "reduce_any", "reduce_all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_reduction_on_generic_agrees_with_the_kernel(name: str, dtype: torch.dtype) -> None:
    for label, x in variants(drawn(2, 4, 3, dtype=dtype, seed=3)):
        for axis in (1, (0, 2), None):
            kernel, reference = (getattr(sw, name)(t, axis=axis) for t in (x, on_generic(x)))
            assert (kernel.layout, kernel.dtype()) == (reference.layout, reference.dtype())
            loose = {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {}
            torch.testing.assert_close(dense(kernel), dense(reference), msg=f"{label} {axis}", **loose)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool, torch.float8_e5m2], ids=str)
def test_any_and_all_in_every_kind_of_dtype_are_torchs(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 1, 1]]).to(dtype)
    x = sw.from_torch(values.clone())
    assert to_list(sw.reduce_any(x, axis=1)) == [False, True, True]
    assert to_list(sw.reduce_all(x, axis=1)) == [False, False, True]
    assert item(sw.reduce_any(x)) is True
    assert item(sw.reduce_all(x)) is False


def test_any_of_nan_is_true() -> None:
    assert item(sw.reduce_any(tensor([0.0, NAN]))) is True
    assert item(sw.reduce_any(tensor([0.0, -0.0]))) is False


def test_extremes_with_nan_are_nan() -> None:
    x = tensor([[1.0, NAN, 3.0], [1.0, 2.0, -INF]])
    for t in (x, on_generic(x)):
        found = dense(sw.reduce_max(t, axis=1)), dense(sw.reduce_min(t, axis=1))
        assert found[0].isnan().tolist() == found[1].isnan().tolist() == [True, False]
        assert (found[0][1], found[1][1]) == (2.0, -INF)


def test_sum_of_nothing_reduced_is_a_copy_of_its_own() -> None:
    x = tensor([1, 2], torch.int32)
    found = sw.reduce_sum(x, axis=())
    assert (to_list(found), found.dtype()) == ([1, 2], sw.DType.Int64)
    scalar = sw.from_torch(torch.tensor(3.0))
    for name in ("reduce_sum", "reduce_max", "reduce_prod", "reduce_mean", "norm", "logsumexp"):
        made = getattr(sw, name)(scalar)
        assert item(made) == 3.0
        assert made.carrier is not scalar.carrier
    assert item(sw.argmax(scalar)) == 0


def test_sum_with_an_accumulator_is_kept_in_it() -> None:
    values = torch.full((3000,), 0.1, dtype=torch.float32)
    values[0] = 1e8
    x = sw.from_torch(values)
    assert item(sw.reduce_sum(x, accumulator_dtype=sw.DType.Float64)) == values.double().sum().float().item()
    halves = sw.from_torch(values.bfloat16())
    assert item(sw.reduce_sum(halves, accumulator_dtype=sw.DType.Float32)) == item(sw.reduce_sum(halves))


@pytest.mark.parametrize("ord", [1, 2, INF])
def test_norm_of_every_order_is_torchs(ord: float) -> None:
    values = drawn(3, 5)
    for _, x in variants(values):
        torch.testing.assert_close(dense(sw.norm(x, ord=ord, axis=1)), torch.linalg.vector_norm(values, ord, 1))
        torch.testing.assert_close(
            dense(sw.norm(on_generic(x), ord=ord, axis=1)), torch.linalg.vector_norm(values, ord, 1)
        )


def test_logsumexp_of_infinities_is_torchs() -> None:
    values = torch.tensor([[-INF, -INF], [INF, 1.0], [-INF, 2.0], [NAN, 0.0], [1000.0, 1000.0]])
    for x in (sw.from_torch(values), on_generic(sw.from_torch(values))):
        torch.testing.assert_close(dense(sw.logsumexp(x, axis=1)), values.logsumexp(1), equal_nan=True)


# -- the places of extremes --------------------------------------------------------------------------------------------


def brute_argmax(x: sw.Tensor) -> int:
    values = [x[k] for k in range(x.size())]
    for k, v in enumerate(values):
        if v != v:
            return k
    return values.index(max(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.bool, torch.float8_e4m3fn], ids=str)
def test_argmax_along_an_axis_is_torchs_and_keeps_the_first(dtype: torch.dtype) -> None:
    values = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]]).to(dtype)
    x = sw.from_torch(values.clone())
    assert to_list(sw.argmax(x, axis=1)) == [0, 0, 1]
    assert to_list(sw.argmin(x, axis=0)) == [1, 0, 1, 1]
    assert sw.argmax(x, axis=1).dtype() is sw.DType.Int64
    assert sw.argmax(x, axis=0, keepdims=True).shape == sw.Shape(1, 4)


def test_argmax_over_all_counts_the_first_mode_fastest() -> None:
    values = drawn(3, 4, 2, dtype=torch.int32, seed=4)
    for label, x in variants(values):
        found = item(sw.argmax(x))
        assert found == brute_argmax(x) == item(sw.argmax(on_generic(x))), label
        assert x[found] == values.max()
    row_major = tensor([[1, 2, 9], [3, 4, 5]])
    assert (item(sw.argmax(row_major)), row_major.torch().argmax().item()) == (4, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("has_nan", [False, True])
def test_argmax_over_all_of_many_values_is_the_first_in_order(dtype: torch.dtype, has_nan: bool) -> None:
    values = drawn(40, 30, 35, dtype=torch.int8, seed=2).to(dtype)
    if has_nan and dtype is torch.float32:
        values[5, 7, 3] = values[6, 2, 3] = values[0, 0, 4] = NAN
    in_order = values.permute(2, 1, 0).reshape(-1).to(torch.float32)
    for label, x in variants(values):
        for name, theirs in (("argmax", torch.argmax), ("argmin", torch.argmin)):
            found = getattr(sw, name)(x, keepdims=has_nan)
            assert item(found) == theirs(in_order).item(), label
            assert len(found.shape) == (3 if has_nan else 0)


def test_argmax_with_nan_is_the_first_nan() -> None:
    x = tensor([3.0, NAN, 5.0, NAN])
    for t in (x, on_generic(x)):
        assert (item(sw.argmax(t)), item(sw.argmin(t))) == (1, 1)


def test_argmax_along_a_nested_mode_counts_its_first_mode_fastest() -> None:
    values = drawn(4, 6, seed=7)
    x = nested(values)
    assert torch.equal(dense(sw.argmax(x, axis=1)), values.argmax(1))
    assert torch.equal(dense(sw.argmin(x, axis=0, keepdims=True)).reshape(-1), values.argmin(0))


# -- descriptions ------------------------------------------------------------------------------------------------------


def test_description_that_keeps_the_order_makes_no_view() -> None:
    x = sw.from_torch(drawn(2, 3, 4)).requires_grad_()
    for description, axis in {"a b c -> a c": 1, "a b c -> b": (0, 2), "a b c ->": None}.items():
        found = sw.reduce_sum(x, description)
        assert repr(found.autograd_ctx) == "<reduce_sum on CPU>"
        assert to_list(found) == to_list(sw.reduce_sum(x, axis=axis))


def test_description_permutes_groups_and_adds_ones() -> None:
    values = drawn(2, 3, 4, 5)
    for _, x in variants(values):
        found = sw.reduce_max(x, "a b c d -> d 1 (a c)")
        assert found.shape.leaves()[-1] in (4, 2)
        assert len(found.shape) == 3
        expected = values.amax(1).permute(2, 1, 0).reshape(5, 1, 8)  # the first symbol of a group is the fastest
        torch.testing.assert_close(dense(found), expected)
    permuted = sw.reduce_sum(x.detach().requires_grad_(), "a b c d -> c a")
    assert is_recorded_view(permuted)
    torch.testing.assert_close(dense(permuted), values.sum((1, 3)).T.contiguous())


def test_description_permutes_modes_of_equal_extents() -> None:
    values = drawn(3, 2, 3)
    found = sw.reduce_sum(sw.from_torch(values), "a b c -> c a")
    torch.testing.assert_close(dense(found), values.sum(1).T.contiguous())


def test_description_of_a_nested_mode_reduces_a_part_of_it() -> None:
    values = drawn(4, 6)
    x = nested(values)
    inside = values.reshape(2, 2, 6).permute(1, 0, 2)  # the first mode inside is the fastest
    found = sw.reduce_sum(x, "(i o) c -> i c")
    torch.testing.assert_close(dense(found), inside.sum(1))
    assert item(sw.argmax(sw.reduce_sum(x, "(i o) c -> o"))) == inside.sum((0, 2)).argmax().item()


def test_description_with_sizes_splits_a_leaf() -> None:
    values = drawn(6, 4)
    found = sw.reduce_mean(sw.from_torch(values), "(i o) c -> c o", i=2)
    torch.testing.assert_close(dense(found), values.reshape(3, 2, 4).mean(1).T.contiguous())
    check_gradients(lambda t: sw.reduce_mean(t, "(i o) c -> c o", i=2), sw.from_torch(values))


@pytest.mark.parametrize("name", [*AS_TORCH, "argmax", "argmin", "reduce_any", "reduce_all"])
def test_description_works_for_every_reduction(name: str) -> None:
    x = sw.from_torch(drawn(2, 3, 4))
    found = getattr(sw, name)(x, "a b c -> c a")
    torch.testing.assert_close(dense(found), dense(getattr(sw, name)(x, axis=1)).T.contiguous())


# -- running totals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "theirs"), [("cumsum", torch.cumsum), ("cumprod", torch.cumprod)])
def test_running_totals_over_any_layout_are_torchs(name: str, theirs: Callable[..., torch.Tensor]) -> None:
    values = drawn(4, 6)
    for label, x in variants(values):
        for dimension in (0, 1, -1):
            found = getattr(sw, name)(x, dimension)
            assert found.layout == dense_like(x.shape, [x.layout])
            torch.testing.assert_close(dense(found), theirs(values, dimension), msg=label)
            torch.testing.assert_close(dense(getattr(sw, name)(on_generic(x), dimension)), theirs(values, dimension))


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AS_TORCH)
def test_gradient_of_a_reduction_is_torchs_and_that_of_differences(name: str) -> None:
    for _, x in variants(drawn(2, 4, 3)):
        for axis in (1, (0, 2)):
            dims = (axis,) if isinstance(axis, int) else axis
            check_gradients(
                lambda t, axis=axis: getattr(sw, name)(t, axis=axis),
                x,
                torch_function=lambda t, dims=dims: AS_TORCH[name](t, dim=dims),
            )
    check_gradients(lambda t: getattr(sw, name)(t, "a b c -> c 1 a"), sw.from_torch(drawn(2, 2, 3)))
    check_gradients(lambda t: getattr(sw, name)(t, axis=0, keepdims=True), sw.from_torch(drawn(3, 2)))


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_prod", "logsumexp", "norm", "cumsum", "cumprod"])
def test_gradient_on_a_broadcast_layout_has_a_value_for_every_coordinate(name: str) -> None:
    repeated = drawn(1, 4).expand(3, 4)
    labels = [label for label, _ in variants(repeated)]
    assert "broadcast" in labels
    for _, x in variants(repeated):
        check_gradients(
            lambda t: getattr(sw, name)(t, 1) if name.startswith("cum") else getattr(sw, name)(t, axis=1), x
        )


@pytest.mark.parametrize("name", AS_TORCH)
def test_gradient_on_generic_agrees_with_the_kernel(name: str) -> None:
    x = nested(drawn(4, 3))
    for axis in (0, 1):
        kernel, reference = (
            gradients(lambda t, axis=axis: getattr(sw, name)(t, axis=axis), t)[0] for t in (x, on_generic(x))
        )
        torch.testing.assert_close(kernel, reference)


@pytest.mark.parametrize("zeros", [[1], [1, 3], []], ids=str)
def test_gradient_of_a_product_with_zeros_is_right(zeros: list[int]) -> None:
    values = drawn(2, 5)
    values[0, zeros] = 0.0
    for x in (sw.from_torch(values), nested(values), on_generic(sw.from_torch(values))):
        check_gradients(
            lambda t: sw.reduce_prod(t, axis=1),
            x,
            torch_function=lambda t: t.prod(1),
            numeric=x.carrier_type() is sw.CPU,
        )
        check_gradients(
            lambda t: sw.cumprod(t, 1), x, torch_function=lambda t: t.cumprod(1), numeric=x.carrier_type() is sw.CPU
        )


def test_gradient_of_an_extreme_is_split_evenly_among_ties() -> None:
    for values in ([2.0, 5.0, 5.0, 1.0], [5.0, 5.0, 5.0, 5.0]):
        for t in (tensor(values), on_generic(tensor(values))):
            for name, theirs in (("reduce_max", torch.amax), ("reduce_min", torch.amin)):
                check_gradients(
                    getattr(sw, name), t, torch_function=lambda x, theirs=theirs: theirs(x, 0), numeric=False
                )
    x = tensor([2.0, 5.0, 5.0]).requires_grad_()
    sw.reduce_max(x).backward()
    assert to_list(x.grad) == [0.0, 0.5, 0.5]


def test_gradient_of_an_extreme_that_is_nan_goes_to_nan() -> None:
    for x in (tensor([2.0, NAN, 5.0]), on_generic(tensor([2.0, NAN, 5.0]))):
        leaf = x.detach().requires_grad_()
        sw.reduce_max(leaf).backward()
        assert to_list(leaf.grad) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_variance_takes_the_correction_away(correction: float) -> None:
    values = drawn(3, 5)
    for name, theirs in (("var", torch.var), ("std", torch.std)):
        check_gradients(
            lambda t, name=name: getattr(sw, name)(t, axis=1, correction=correction),
            sw.from_torch(values),
            torch_function=lambda t, theirs=theirs: theirs(t, 1, correction=correction),
        )


@pytest.mark.parametrize("name", ["std", "norm"])
def test_gradient_of_a_root_at_zero_is_zero(name: str) -> None:
    for x in (tensor([0.0, 0.0]), on_generic(tensor([0.0, 0.0]))):
        leaf = x.detach().requires_grad_()
        getattr(sw, name)(leaf).backward()
        assert to_list(leaf.grad) == [0.0, 0.0]


@pytest.mark.parametrize("ord", [1, INF])
def test_gradient_of_the_other_norms_is_torchs(ord: float) -> None:
    values = torch.tensor([[3.0, -3.0, 0.0], [1.0, -2.0, 0.5]], dtype=torch.float64)
    for x in (sw.from_torch(values), on_generic(sw.from_torch(values))):
        check_gradients(
            lambda t: sw.norm(t, ord=ord, axis=1),
            x,
            torch_function=lambda t: torch.linalg.vector_norm(t, ord, 1),
            numeric=False,
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", AS_TORCH)
def test_gradient_in_sixteen_bits_is_no_further_off_than_torchs(name: str, dtype: torch.dtype) -> None:
    values = drawn(3, 16, dtype=dtype)
    leaf = sw.from_torch(values.clone()).requires_grad_()
    out = getattr(sw, name)(leaf, axis=1)
    (found,) = sw.grad(out, [leaf], sw.from_torch(torch.ones(3, dtype=dtype)))
    grads = []
    for source in (values, values.double()):
        theirs = source.clone().requires_grad_()
        AS_TORCH[name](theirs, dim=(1,)).backward(torch.ones(3, dtype=source.dtype))
        grads.append(theirs.grad.double())
    mine = (dense(found).double() - grads[1]).abs().max()
    assert mine <= (grads[0] - grads[1]).abs().max() * 1.001 + torch.finfo(dtype).tiny


def test_adjoints_are_not_recorded_and_places_pass_no_gradient() -> None:
    x = sw.from_torch(drawn(3)).requires_grad_()
    for name in ("argmax", "argmin", "reduce_any", "reduce_all"):
        assert not getattr(sw, name)(x).requires_grad


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: sw.reduce_sum(3), TypeError, "takes a Tensor"),
        (lambda x: sw.cumsum([1.0], 0), TypeError, "takes a Tensor"),
        (lambda x: sw.reduce_sum(x, axis=2), ValueError, "axis 2 is not there"),
        (lambda x: sw.reduce_sum(x, axis=(0, -2)), ValueError, "occurs twice"),
        (lambda x: sw.reduce_max(x, axis=True), TypeError, "an axis must be an integer"),
        (lambda x: sw.reduce_max(x, axis=1.0), TypeError, "an axis must be an integer"),
        (lambda x: sw.reduce_max(x, axis="1"), TypeError, "an axis must be an integer"),
        (lambda x: sw.reduce_max(x, axis=[0, "1"]), TypeError, "an axis must be an integer"),
        (lambda x: sw.reduce_max(x, "a b -> a", axis=1), TypeError, "one or the other"),
        (lambda x: sw.reduce_max(x, "a b -> a", keepdims=True), TypeError, "one or the other"),
        (lambda x: sw.reduce_max(x, axis=1, a=3), TypeError, "sizes belong to the symbols"),
        (lambda x: sw.reduce_max(x, 1), TypeError, "cannot read a description from 1"),
        (lambda x: sw.reduce_max(x, "a -> a"), ValueError, "names 1 modes"),
        (lambda x: sw.reduce_max(x, "a b -> c"), ValueError, "symbol 'c' is not in the input"),
        (
            lambda x: sw.reduce_sum(x, accumulator_dtype=sw.DType.Int64),
            TypeError,
            "an accumulator is Float32 or Float64",
        ),
        (lambda x: sw.reduce_sum(x, accumulator_dtype=sw.DType.BFloat16), TypeError, "an accumulator is Float32"),
        (
            lambda x: sw.reduce_sum(tensor([1], torch.int32), accumulator_dtype=sw.DType.Float64),
            TypeError,
            "whole numbers are added up exactly",
        ),
        (lambda x: sw.var(x, axis=1, correction=3), ValueError, "3 values with correction 3"),
        (lambda x: sw.std(tensor([1.0])), ValueError, "1 values with correction 1"),
        (lambda x: sw.var(x, correction="1"), TypeError, "it is no number"),
        (lambda x: sw.norm(x, ord=3), ValueError, "orders are 1, 2 and inf"),
        (lambda x: sw.cumsum(x, 2), ValueError, "axis 2 is not there"),
        (lambda x: sw.cumsum(x, (0, 1)), TypeError, "an axis must be an integer"),
        (lambda x: sw.reduce_sum(sw.from_torch(torch.tensor(1.0)), axis=0), ValueError, "rank 0"),
    ],
)
def test_reduction_that_makes_no_sense_is_refused(
    call: Callable[[sw.Tensor], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(sw.from_torch(drawn(2, 3)))
