"""Softmax, normalisation and losses against torch: dtypes, layouts, gradients, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import strideweave as sw
from strideweave.operation.alignment import dense_like
from strideweave.tensor.values import item, to_list
from support.operations import check_gradients, dense, gradients, nested, on_generic, place, variants

INF, NAN = math.inf, math.nan
SIXTEEN = [torch.bfloat16, torch.float16]
SOFTMAX = [("softmax", torch.softmax), ("log_softmax", torch.log_softmax)]
NORMS = {
    "layer_norm": lambda x, w=None, b=None, n=1: F.layer_norm(x, x.shape[-n:], w, b),
    "rms_norm": lambda x, w=None, b=None, n=1: F.rms_norm(x, x.shape[-n:], w),
}


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def nested_mode(values: torch.Tensor) -> sw.Tensor:
    """The values on one mode of two leaves that do not merge."""
    two = values.reshape(-1, 2)
    return place(
        values, sw.Layout.make_layout(sw.Layout.make_layout(sw.Layout.leaf(2, len(two)), sw.Layout.leaf(len(two), 1)))
    )


def on_like(label: str, values: torch.Tensor) -> sw.Tensor:
    return nested_mode(values) if label == "nested" else dict(variants(values))[label]


def worst(found: torch.Tensor, exact: torch.Tensor) -> float:
    return (found.double() - exact).abs().max().item()


# -- softmax -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "theirs"), SOFTMAX)
def test_softmax_over_any_layout_is_torchs(name: str, theirs: Callable[..., torch.Tensor]) -> None:
    values = drawn(4, 6, 2)
    for label, x in variants(values):
        for axis in (0, 1, -1):
            found = getattr(sw, name)(x, axis=axis)
            assert found.layout == dense_like(x.shape, [x.layout])
            torch.testing.assert_close(dense(found), theirs(values, axis), msg=label)
    torch.testing.assert_close(dense(getattr(sw, name)(on_generic(x), axis=1)), theirs(values, 1))


@pytest.mark.parametrize(("name", "theirs"), SOFTMAX)
def test_softmax_gradient_is_torchs_and_that_of_differences(name: str, theirs: Callable[..., torch.Tensor]) -> None:
    for _, x in variants(drawn(1, 4).expand(3, 4)):
        for axis in (0, 1):
            check_gradients(
                lambda t, axis=axis: getattr(sw, name)(t, axis),
                x,
                torch_function=lambda t, axis=axis: theirs(t, axis),
            )
    x = nested(drawn(4, 3))
    kernel, reference = (gradients(lambda t: getattr(sw, name)(t, 0), t)[0] for t in (x, on_generic(x)))
    torch.testing.assert_close(kernel, reference)


@pytest.mark.parametrize(("name", "theirs"), SOFTMAX)
@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_softmax_in_sixteen_bits_is_no_further_off_than_torchs(
    name: str, theirs: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    values, g = drawn(4, 200, dtype=dtype) * 3, drawn(4, 200, dtype=dtype, seed=1)
    for axis in (0, 1):
        leaf = sw.from_torch(values.clone()).requires_grad_()
        out = getattr(sw, name)(leaf, axis)
        (grad,) = sw.grad(out, [leaf], sw.from_torch(g.clone()))
        made = []
        for source in (values, values.double()):
            t = source.clone().requires_grad_()
            result = theirs(t, axis)
            result.backward(g.to(source.dtype))
            made.append((result.detach().double(), t.grad.double()))
        assert out.dtype().torch_dtype is dtype
        assert worst(dense(out), made[1][0]) <= worst(*[m[0] for m in made])
        assert worst(dense(grad), made[1][1]) <= worst(*[m[1] for m in made]) * 1.001


@pytest.mark.parametrize(("name", "theirs"), SOFTMAX)
def test_softmax_of_infinities_and_whole_numbers_is_torchs(name: str, theirs: Callable[..., torch.Tensor]) -> None:
    values = torch.tensor([[-INF, -INF], [INF, 1.0], [-INF, 2.0], [NAN, 0.0], [1e4, -1e4]])
    for x in (sw.from_torch(values), on_generic(sw.from_torch(values))):
        torch.testing.assert_close(dense(getattr(sw, name)(x)), theirs(values, -1), equal_nan=True)
    whole = torch.tensor([3, 1, 2])
    found = getattr(sw, name)(sw.from_torch(whole))
    torch.testing.assert_close(dense(found), theirs(whole.float(), 0))


def test_softmax_of_eight_bits_is_computed_in_float32() -> None:
    values = drawn(2, 5).to(torch.float8_e5m2)
    found = sw.softmax(sw.from_torch(values.clone()))
    assert torch.equal(dense(found).float(), torch.softmax(values.float(), -1).to(torch.float8_e5m2).float())


# -- normalisation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMS)
def test_norm_over_any_layout_is_torchs(name: str) -> None:
    values, weight, bias = drawn(2, 4, 6), drawn(6, seed=1), drawn(6, seed=2)
    parameters = [weight, bias] if name == "layer_norm" else [weight]
    function = getattr(sw, name)
    for label, x in variants(values):
        torch.testing.assert_close(dense(function(x)), NORMS[name](values), msg=label)
        w = [on_like(label, p) for p in parameters]
        found = function(x, *w)
        assert found.layout == dense_like(x.shape, [x.layout])
        torch.testing.assert_close(dense(found), NORMS[name](values, *parameters), msg=label)
        reference = function(on_generic(x), *map(on_generic, w))
        torch.testing.assert_close(dense(reference), NORMS[name](values, *parameters), msg=label)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("axes", [(1, 2), (-1, -2), (0, 1, 2)], ids=str)
def test_norm_over_several_modes_is_torchs(name: str, axes: tuple[int, ...]) -> None:
    values = drawn(2, 3, 4)
    weight = drawn(*values.shape[-len(axes) :], seed=1)
    found = getattr(sw, name)(sw.from_torch(values), sw.from_torch(weight), axis=axes)
    torch.testing.assert_close(dense(found), NORMS[name](values, weight, n=len(axes)))


@pytest.mark.parametrize("name", NORMS)
def test_norm_over_a_mode_that_is_not_last_is_torchs_on_the_permuted(name: str) -> None:
    values, weight = drawn(4, 3, 2), drawn(4, seed=1)
    check_gradients(
        lambda t, w: getattr(sw, name)(t, w, axis=0),
        sw.from_torch(values),
        sw.from_torch(weight),
        torch_function=lambda t, w: NORMS[name](t.movedim(0, -1), w).movedim(-1, 0),
    )


@pytest.mark.parametrize("name", NORMS)
def test_norm_gradients_are_torchs_and_those_of_differences(name: str) -> None:
    values, weight, bias = drawn(3, 4), drawn(4, seed=1), drawn(4, seed=2)
    parameters = [weight, bias] if name == "layer_norm" else [weight]
    for _, x in variants(values):
        check_gradients(getattr(sw, name), x, torch_function=NORMS[name])
    for _, x in variants(values)[:3]:
        check_gradients(getattr(sw, name), x, *map(sw.from_torch, parameters), torch_function=NORMS[name])
    x = [nested(values), *(on_like("nested", p) for p in parameters)]
    check_gradients(getattr(sw, name), *x, torch_function=NORMS[name])
    kernel, reference = gradients(getattr(sw, name), *x), gradients(getattr(sw, name), *map(on_generic, x))
    for mine, theirs in zip(kernel, reference, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_norm_gradients_of_some_operands_are_those_that_are_wanted() -> None:
    x, w, b = (sw.from_torch(t) for t in (drawn(3, 4), drawn(4, seed=1), drawn(4, seed=2)))
    check_gradients(
        lambda t: sw.layer_norm(x, t, b), w, torch_function=lambda t: F.layer_norm(x.torch(), (4,), t, b.torch())
    )
    check_gradients(
        lambda t: sw.layer_norm(x, w, t), b, torch_function=lambda t: F.layer_norm(x.torch(), (4,), w.torch(), t)
    )
    check_gradients(
        lambda t: sw.layer_norm(x, None, t), b, torch_function=lambda t: F.layer_norm(x.torch(), (4,), None, t)
    )
    check_gradients(
        lambda t, u: sw.layer_norm(t, None, u), x, b, torch_function=lambda t, u: F.layer_norm(t, (4,), None, u)
    )
    check_gradients(lambda t: sw.rms_norm(x, t), w, torch_function=lambda t: F.rms_norm(x.torch(), (4,), t))
    whole = sw.from_torch(drawn(3, 4, seed=5))
    check_gradients(
        lambda t: sw.layer_norm(x, None, t, axis=(0, 1)),
        whole,
        torch_function=lambda t: F.layer_norm(x.torch(), (3, 4), None, t),
    )


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_norm_in_sixteen_bits_is_no_further_off_than_torchs(name: str, dtype: torch.dtype) -> None:
    sources = [drawn(8, 64, dtype=dtype), drawn(64, dtype=dtype, seed=1), drawn(64, dtype=dtype, seed=2)]
    sources = sources if name == "layer_norm" else sources[:2]
    g = drawn(8, 64, dtype=dtype, seed=3)
    leaves = [sw.from_torch(t.clone()).requires_grad_() for t in sources]
    out = getattr(sw, name)(*leaves)
    mine = [dense(out), *(dense(t) for t in sw.grad(out, leaves, sw.from_torch(g.clone())))]
    made = []
    for target in (dtype, torch.float64):
        inputs = [t.to(target, copy=True).requires_grad_() for t in sources]
        result = (
            NORMS[name](*inputs)
            if target is dtype or name == "layer_norm"
            else F.rms_norm(inputs[0], (64,), inputs[1], torch.finfo(torch.float32).eps)
        )
        result.backward(g.to(target))
        made.append([result.detach().double(), *(t.grad.double() for t in inputs)])
    for found, theirs, exact in zip(mine, *made, strict=True):
        assert found.dtype is dtype
        assert worst(found, exact) <= worst(theirs, exact) * 1.001


def test_norm_with_weights_of_another_dtype_keeps_that_of_the_operand() -> None:
    x, w, b = drawn(3, 8, dtype=torch.bfloat16), drawn(8, dtype=torch.float32), drawn(8, dtype=torch.float32, seed=1)
    leaves = [sw.from_torch(t.clone()).requires_grad_() for t in (x, w, b)]
    found = sw.layer_norm(*leaves)
    assert torch.equal(dense(found), F.layer_norm(x, (8,), w, b))
    sw.reduce_sum(found).backward()
    assert [leaf.grad.dtype() for leaf in leaves] == [sw.DType.BFloat16, sw.DType.Float32, sw.DType.Float32]
    assert sw.rms_norm(*leaves[:2]).dtype() is sw.DType.BFloat16
    whole = sw.layer_norm(sw.from_torch(torch.tensor([1, 2, 3])))
    torch.testing.assert_close(dense(whole), F.layer_norm(torch.tensor([1.0, 2.0, 3.0]), (3,)))


def test_rms_norm_without_eps_takes_that_of_the_arithmetic() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        values = torch.full((4,), 1e-4, dtype=dtype)
        torch.testing.assert_close(dense(sw.rms_norm(sw.from_torch(values.clone()))), F.rms_norm(values, (4,)))


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_is_torchs(reduction: str, smoothing: float) -> None:
    logits, targets = drawn(6, 4), torch.tensor([0, 3, -100, 1, 1, 2])
    options = {"reduction": reduction, "label_smoothing": smoothing}
    for label, x in variants(logits):
        y = on_like(label, targets)
        for z, t in ((x, y), (on_generic(x), on_generic(y))):
            torch.testing.assert_close(
                dense(sw.cross_entropy(z, t, **options)), F.cross_entropy(logits, targets, **options), msg=label
            )
        check_gradients(
            lambda t, y=y: sw.cross_entropy(t, y, **options),
            x,
            torch_function=lambda t: F.cross_entropy(t, targets, **options),
        )
    mine, theirs = (
        gradients(lambda t, y=y: sw.cross_entropy(t, y, **options), t)[0]
        for t, y in ((x, y), (on_generic(x), on_generic(y)))
    )
    torch.testing.assert_close(mine, theirs)


def test_cross_entropy_along_another_mode_is_torchs() -> None:
    logits, targets = drawn(2, 5, 3), torch.tensor([[0, 4, 2], [1, -7, 3]], dtype=torch.int32)
    y = sw.from_torch(targets)
    for reduction in ("mean", "none"):
        check_gradients(
            lambda t, r=reduction: sw.cross_entropy(t, y, 1, reduction=r, ignore_index=-7),
            sw.from_torch(logits),
            torch_function=lambda t, r=reduction: F.cross_entropy(t, targets.long(), reduction=r, ignore_index=-7),
        )
    one = sw.cross_entropy(sw.from_torch(logits[0, :, 0]), sw.from_torch(torch.tensor(4)))
    assert item(one) == pytest.approx(F.cross_entropy(logits[0, :, 0], torch.tensor(4)).item())


def test_cross_entropy_without_any_target_is_nan_as_torchs() -> None:
    y = torch.tensor([-100, -100])
    for on in (lambda t: t, on_generic):
        x = on(sw.from_torch(drawn(2, 3)))
        assert math.isnan(item(sw.cross_entropy(x, on(sw.from_torch(y)))))
        assert item(sw.cross_entropy(x, on(sw.from_torch(y)), reduction="sum")) == 0.0


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_cross_entropy_in_sixteen_bits_is_no_further_off_than_torchs(dtype: torch.dtype) -> None:
    logits, targets = drawn(16, 50, dtype=dtype) * 4, torch.arange(16)
    leaf = sw.from_torch(logits.clone()).requires_grad_()
    out = sw.cross_entropy(leaf, sw.from_torch(targets))
    out.backward()
    made = []
    for source in (logits, logits.double()):
        t = source.clone().requires_grad_()
        result = F.cross_entropy(t, targets)
        result.backward()
        made.append((result.detach().double(), t.grad.double()))
    assert worst(dense(out), made[1][0]) <= worst(*[m[0] for m in made])
    assert worst(dense(leaf.grad), made[1][1]) <= worst(*[m[1] for m in made])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_loss_is_torchs(reduction: str) -> None:
    a, b = drawn(2, 4), drawn(2, 4, seed=1)
    for _, x in variants(a):
        y = nested(b) if len(x.layout.leaves()) > 2 else sw.from_torch(b)
        check_gradients(
            lambda t, u: sw.mse_loss(t, u, reduction=reduction),
            x,
            y,
            torch_function=lambda t, u: F.mse_loss(t, u, reduction=reduction),
        )
    mine, theirs = (
        gradients(lambda t, u: sw.mse_loss(t, u, reduction=reduction), t, u)
        for t, u in ((x, y), (on_generic(x), on_generic(y)))
    )
    torch.testing.assert_close(mine, theirs)


def test_mse_loss_of_broadcast_operands_sums_their_gradients() -> None:
    a, b = drawn(3, 4), drawn(4, seed=1)
    check_gradients(
        lambda t, u: sw.mse_loss(t, u),
        sw.from_torch(a),
        sw.from_torch(b),
        torch_function=lambda t, u: ((t - u) ** 2).mean(),
    )
    mixed = sw.mse_loss(sw.from_torch(a.float()), sw.from_torch(torch.tensor([1, 2, 3, 4])))
    assert mixed.dtype() is sw.DType.Float32


def test_every_function_is_one_node() -> None:
    x = sw.from_torch(drawn(3, 4)).requires_grad_()
    y = sw.from_torch(torch.tensor([0, 1, 2]))
    made = {
        "softmax": sw.softmax(x),
        "log_softmax": sw.log_softmax(x),
        "layer_norm": sw.layer_norm(x),
        "rms_norm": sw.rms_norm(x),
        "cross_entropy": sw.cross_entropy(x, y),
        "mse_loss": sw.mse_loss(x, x),
    }
    for name, result in made.items():
        assert repr(result.autograd_ctx) == f"<{name} on CPU>"
        assert all(operand.carrier in (x.carrier, y.carrier) for operand in result.autograd_ctx.inputs())


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x, y: sw.softmax(3), TypeError, "takes a Tensor"),
        (lambda x, y: sw.softmax(x, 2), ValueError, "axis 2 is not there"),
        (lambda x, y: sw.log_softmax(x, (0, 1)), TypeError, "an axis must be an integer"),
        (lambda x, y: sw.layer_norm(x, y, eps=-1.0), ValueError, "Pass 0 or more"),
        (lambda x, y: sw.layer_norm(x, eps=NAN), ValueError, "Pass 0 or more"),
        (lambda x, y: sw.layer_norm(x, eps="1"), TypeError, "it is no number"),
        (lambda x, y: sw.layer_norm(x, axis=()), ValueError, "they name no mode"),
        (lambda x, y: sw.layer_norm(x, y), ValueError, "weight of"),
        (lambda x, y: sw.layer_norm(x, None, y), ValueError, "bias of"),
        (lambda x, y: sw.layer_norm(x, 2.0), TypeError, "it is a Tensor, or None"),
        (lambda x, y: sw.rms_norm(x, torch.ones(4)), TypeError, "it is a Tensor, or None"),
        (lambda x, y: sw.rms_norm(None), TypeError, "takes a Tensor"),
        (lambda x, y: sw.cross_entropy(x, x), TypeError, "targets are the numbers of classes"),
        (lambda x, y: sw.cross_entropy(x, y, 0), ValueError, "Every target has its logits"),
        (lambda x, y: sw.cross_entropy(x, [0, 1, 2]), TypeError, "takes a Tensor"),
        (lambda x, y: sw.cross_entropy(x, y, reduction="max"), ValueError, "mean, sum and none"),
        (lambda x, y: sw.cross_entropy(x, y, ignore_index=1.0), TypeError, "a target is an int"),
        (lambda x, y: sw.cross_entropy(x, y, label_smoothing=2), ValueError, "Pass 0 to 1"),
        (lambda x, y: sw.cross_entropy(x, y, label_smoothing=None), TypeError, "it is no number"),
        (lambda x, y: sw.cross_entropy(x, y + 2), IndexError, "target 4: there are 4 classes"),
        (lambda x, y: sw.cross_entropy(on_generic(x), on_generic(y + 2)), IndexError, "target 4: there are 4 classes"),
        (lambda x, y: sw.cross_entropy(x, y - 1), IndexError, "target -1"),
        (lambda x, y: sw.mse_loss(x, y), ValueError, "broadcast-compatible"),
        (lambda x, y: sw.mse_loss(x, 1.0), TypeError, "takes a Tensor"),
        (lambda x, y: sw.mse_loss(x, x, reduction=None), ValueError, "mean, sum and none"),
    ],
)
def test_call_that_makes_no_sense_is_refused(
    call: Callable[[sw.Tensor, sw.Tensor], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(sw.from_torch(drawn(3, 4)), sw.from_torch(torch.tensor([0, 1, 2])))


def test_values_in_eight_bits_pass_through_every_function() -> None:
    x = sw.from_torch(drawn(2, 4).to(torch.float8_e4m3fn))
    for function in (sw.softmax, sw.log_softmax, sw.layer_norm, sw.rms_norm):
        assert function(x).dtype() is sw.DType.E4M3
    assert len(to_list(sw.mse_loss(x, x, reduction="none"))) == 2
