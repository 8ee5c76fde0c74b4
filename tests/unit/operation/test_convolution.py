"""conv_general against torch's convolutions of dilated and padded operands, and against its own loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import DType, Layout, Shape
from support.operations import check_gradients, cotangent_of, dense, gradients, on_generic, place, variants


@dataclass(frozen=True)
class Case:
    lhs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...] = field(default=())
    kernel_dilation: tuple[int, ...] = field(default=())
    groups: int = 1

    @property
    def options(self) -> dict[str, Any]:
        return {
            "lhs_dilation": self.lhs_dilation or None,
            "kernel_dilation": self.kernel_dilation or None,
            "feature_groups": self.groups,
        }

    def mine(self, x: sw.Tensor, w: sw.Tensor, **dims: Sequence[int]) -> sw.Tensor:
        return sw.conv_general(x, w, self.strides, self.padding, **self.options, **dims)

    def theirs(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """A plain torch convolution of the operand with its zeros written out."""
        steps = self.lhs_dilation or (1,) * len(self.strides)
        spread = x.new_zeros(*x.shape[:2], *((n - 1) * d + 1 for n, d in zip(x.shape[2:], steps, strict=True)))
        spread[(slice(None), slice(None), *(slice(None, None, d) for d in steps))] = x
        padded = torch.nn.functional.pad(spread, [n for pair in reversed(self.padding) for n in pair])
        function = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[len(self.strides)]
        dilation = self.kernel_dilation or (1,) * len(self.strides)
        return function(padded, w, None, self.strides, 0, dilation, self.groups)

    def values(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(1)
        x, w = (torch.randint(-8, 9, s, generator=drawn).to(dtype) for s in (self.lhs, self.kernel))
        return x, w


CASES = [
    Case((2, 3, 7), (4, 3, 3), (1,), ((0, 0),)),
    Case((2, 3, 7), (4, 3, 3), (2,), ((1, 1),)),
    Case((2, 2, 6, 5), (2, 2, 3, 2), (1, 1), ((1, 1), (1, 1))),
    Case((2, 2, 6, 5), (2, 2, 3, 2), (2, 1), ((1, 0), (0, 2)), (), (1, 2)),
    Case((2, 4, 6, 5), (6, 2, 3, 2), (1, 2), ((0, 0), (1, 1)), (), (2, 1), groups=2),
    Case((1, 4, 5, 5), (4, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), groups=4),
    Case((2, 2, 3, 4), (3, 2, 3, 2), (1, 1), ((2, 2), (1, 1)), (2, 2)),
    Case((2, 2, 3, 4), (2, 1, 3, 2), (1, 1), ((0, 3), (2, 0)), (2, 3), (2, 1), groups=2),
    Case((2, 2, 3, 4), (3, 2, 2, 2), (2, 1), ((2, 1), (0, 1)), (1, 2)),
    Case((2, 2, 6), (3, 2, 2), (1,), ((-1, 2),)),
    Case((2, 2, 6), (3, 2, 2), (1,), ((-1, -3),), (2,)),
    Case((1, 2, 3, 4, 3), (2, 2, 2, 1, 3), (1, 2, 1), ((0, 1), (0, 0), (1, 1))),
    Case((1, 2, 3, 2, 3), (2, 2, 2, 1, 2), (1, 1, 1), ((1, 1), (0, 0), (1, 0)), (2, 1, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv_general_equals_torch_on_every_layout(case: Case) -> None:
    x, w = case.values()
    expected = case.theirs(x, w)
    for (label, left), (_, right) in zip(variants(x)[:4], variants(w)[:4], strict=True):
        if label == "nested":
            continue  # spatial modes may nest too, and come out whole
        torch.testing.assert_close(dense(case.mine(left, right)), expected, rtol=0, atol=0, msg=label)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv_general_of_whole_numbers_and_by_loops_is_the_same(case: Case) -> None:
    x, w = case.values()
    expected = case.theirs(x, w)
    whole = case.mine(*(sw.from_torch(t.to(torch.int16)) for t in (x, w)))
    assert whole.dtype() is DType.Int16
    assert torch.equal(dense(whole), expected.to(torch.int16))
    looped = case.mine(*(on_generic(sw.from_torch(t)) for t in (x, w)))
    torch.testing.assert_close(dense(looped), expected, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv_general_gradients_equal_torch_and_loops(case: Case) -> None:
    x, w = map(sw.from_torch, case.values())
    check_gradients(case.mine, x, w, torch_function=case.theirs, numeric=False)
    cotangent = cotangent_of(case.mine(x, w))
    found = gradients(case.mine, x, w, cotangent=cotangent)
    looped = gradients(case.mine, on_generic(x), on_generic(w), cotangent=on_generic(cotangent))
    torch.testing.assert_close(found, looped)


def test_conv_general_gradients_equal_differences() -> None:
    case = Case((1, 2, 3, 3), (2, 1, 2, 2), (1, 2), ((1, 0), (-1, 2)), (2, 1), (1, 2), groups=2)
    check_gradients(case.mine, *map(sw.from_torch, case.values()))


def test_conv_general_of_four_spatial_modes_equals_three_of_them_moved_along_the_fourth() -> None:
    case = Case((1, 2, 3, 2, 3, 4), (2, 2, 2, 1, 2, 2), (1, 1, 2, 1), ((0, 0), (0, 0), (1, 0), (0, 0)))
    x, w = case.values()
    inner = Case((), (), (1, 2, 1), ((0, 0), (1, 0), (0, 0)))
    expected = torch.stack(
        [inner.theirs(x[:, :, p], w[:, :, 0]) + inner.theirs(x[:, :, p + 1], w[:, :, 1]) for p in (0, 1)], 2
    )
    assert torch.equal(dense(case.mine(sw.from_torch(x), sw.from_torch(w))), expected)
    short = case.mine(*(sw.from_torch(t.to(torch.bfloat16)) for t in (x, w)))
    assert torch.equal(dense(short), expected.to(torch.bfloat16))
    leaves = [sw.from_torch(x), sw.from_torch(w)]
    looped = gradients(case.mine, *map(on_generic, leaves))
    torch.testing.assert_close(gradients(case.mine, *leaves), looped)


@pytest.mark.parametrize("dtype", [DType.BFloat16, DType.Float16, DType.E4M3], ids=lambda d: d.name)
@pytest.mark.parametrize("groups", [1, 8])
def test_conv_general_of_short_floats_is_rounded_once(dtype: sw.dtype.StorageDType, groups: int) -> None:
    drawn = torch.Generator().manual_seed(0)
    x = (torch.rand(2, 8, 9, 9, generator=drawn) * 0.5).to(dtype.torch_dtype)
    w = (torch.rand(8, 8 // groups, 3, 3, generator=drawn) * 0.5).to(dtype.torch_dtype)
    exact = torch.conv2d(x.double(), w.double(), groups=groups)
    made = sw.conv_general(sw.from_torch(x), sw.from_torch(w), 1, "valid", feature_groups=groups)
    assert made.dtype() is dtype
    ulp = torch.exp2(torch.floor(torch.log2(exact))) * torch.finfo(dtype.torch_dtype).eps
    assert ((dense(made).double() - exact).abs() <= 0.51 * ulp).all()


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_conv_general_with_same_padding_has_the_size_over_the_stride(stride: int, size: int, kernel: int) -> None:
    x, w = torch.randn(1, 1, size).double(), torch.randn(1, 1, kernel).double()
    made = sw.conv_general(sw.from_torch(x), sw.from_torch(w), stride, "SAME")
    assert made.shape == Shape(1, 1, -(-size // stride))
    if stride == 1:
        padded = torch.nn.functional.pad(x, ((kernel - 1) // 2, kernel // 2))  # as torch's padding="same"
        torch.testing.assert_close(dense(made), torch.conv1d(padded, w))


def test_conv_general_transposed_equals_torchs_transposed_convolution() -> None:
    x, w = torch.randn(2, 3, 5, 4).double(), torch.randn(3, 4, 3, 3).double()
    expected = torch.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    turned = sw.from_torch(w.flip(2, 3))
    made = sw.conv_general(sw.from_torch(x), turned, 1, [(1, 2), (1, 2)], lhs_dilation=2, kernel_dims=(1, 0, 2, 3))
    torch.testing.assert_close(dense(made), expected)


# -- modes and layouts -----------------------------------------------------------------------------------------------


def test_conv_general_of_channels_last_is_channels_last_and_copies_nothing() -> None:
    x, w = torch.randn(2, 6, 5, 3).double(), torch.randn(3, 3, 3, 4).double()
    expected = torch.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)).permute(0, 2, 3, 1)
    dims = {"lhs_dims": (0, 3, 1, 2), "kernel_dims": (3, 2, 0, 1), "output_dims": (0, 3, 1, 2)}
    made = sw.conv_general(sw.from_torch(x), sw.from_torch(w), 1, "valid", **dims)
    assert made.layout == Layout.row_major(*expected.shape)
    torch.testing.assert_close(dense(made), expected)
    check_gradients(
        lambda x, w: sw.conv_general(x, w, 1, "valid", **dims),
        sw.from_torch(x),
        sw.from_torch(w),
        torch_function=lambda x, w: torch.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)).permute(0, 2, 3, 1),
        numeric=False,
    )


def test_conv_general_follows_the_order_of_its_left_operand() -> None:
    x, w = torch.randn(2, 3, 6), torch.randn(4, 3, 2)
    for layout, expected in [
        (Layout.row_major(2, 3, 6), Layout.row_major(2, 4, 5)),
        (Layout.column_major(2, 3, 6), Layout.column_major(2, 4, 5)),
    ]:
        assert sw.conv_general(place(x, layout), sw.from_torch(w), 1, "valid").layout == expected


def test_conv_general_keeps_the_nesting_of_batch_and_features() -> None:
    x, w = torch.randn(4, 3, 6).double(), torch.randn(6, 3, 2).double()
    left = place(x, Layout.make_layout(Layout.column_major(2, 2), Layout.leaf(3, 4), Layout.leaf(6, 12)))
    right = place(w, Layout.make_layout(Layout.column_major(2, 3), Layout.leaf(3, 6), Layout.leaf(2, 18)))
    made = sw.conv_general(left, right, 1, "valid")
    assert made.shape == Shape((2, 2), (2, 3), 5)
    torch.testing.assert_close(dense(made), torch.conv1d(x, w))
    check_gradients(
        lambda x, w: sw.conv_general(x, w, 1, "valid"), left, right, torch_function=torch.conv1d, numeric=False
    )


X, W = sw.from_torch(torch.ones(2, 4, 5)), sw.from_torch(torch.ones(3, 4, 2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: sw.conv_general(X, 2, 1, "valid"), TypeError, "kernel=int"),
        (lambda: sw.conv_general(X, sw.from_torch(torch.ones(3, 4)), 1, "valid"), ValueError, "3 and 2 modes"),
        (lambda: sw.conv_general(X, sw.from_torch(torch.ones(3, 3, 2)), 1, "valid"), ValueError, "4 features meet"),
        (lambda: sw.conv_general(X, W, 1, "valid", feature_groups=2), ValueError, "in 2 groups"),
        (lambda: sw.conv_general(X, W, 1, "valid", feature_groups=0), ValueError, "feature_groups=0"),
        (lambda: sw.conv_general(X, W, 0, "valid"), ValueError, "strides=0"),
        (lambda: sw.conv_general(X, W, (1, 1), "valid"), ValueError, "1 spatial modes"),
        (lambda: sw.conv_general(X, W, 1.5, "valid"), TypeError, "strides"),
        (lambda: sw.conv_general(X, W, 1, "full"), ValueError, '"same", "valid"'),
        (lambda: sw.conv_general(X, W, 1, 1), TypeError, "low, high"),
        (lambda: sw.conv_general(X, W, 1, [1]), ValueError, "low, high"),
        (lambda: sw.conv_general(X, W, 1, [(0, 0), (0, 0)]), ValueError, "as many pairs"),
        (lambda: sw.conv_general(X, W, 1, [(-2, -2)]), ValueError, "no coordinates"),
        (lambda: sw.conv_general(X, W, 1, "valid", lhs_dims=(0, 1)), ValueError, "reordering of 0 to 2"),
        (lambda: sw.conv_general(X, W, 1, "valid", output_dims=(0, 1, 1)), ValueError, "reordering of 0 to 2"),
        (lambda: sw.conv_general(X, W, 1, "valid", lhs_dims=(0, True, 2)), TypeError, "lhs_dims"),
    ],
)
def test_what_cannot_be_convolved_is_refused(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
