"""Operations compiled for the card equal the CPU: what each part of the pipeline must get right, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support.compiled import check

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def drawn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(size) + len(size))
    if dtype.is_floating_point:
        return torch.randn(*size, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 50, size, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 31, 64, 130])
def test_pointwise_with_whole_and_partial_sticks(dtype: torch.dtype, columns: int) -> None:
    check(lambda x, y: (x + y) * x, drawn(4, columns, dtype=dtype), drawn(4, columns, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_sums_over_any_dims(dtype: torch.dtype, dim: Any) -> None:
    check(lambda x: x.sum(dim), drawn(5, 130, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products_of_matrices(dtype: torch.dtype) -> None:
    tolerance = {} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-1 if dtype is torch.bfloat16 else 2e-2}
    check(lambda a, b: a @ b, drawn(3, 70, dtype=dtype), drawn(70, 65, dtype=dtype), **tolerance)
    check(lambda a, b: a @ b, drawn(2, 3, 70, dtype=dtype), drawn(2, 70, 65, dtype=dtype), **tolerance)
    check(F.linear, drawn(2, 64, dtype=dtype), drawn(100, 64, dtype=dtype), drawn(100, dtype=dtype), **tolerance)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (lambda x: x.softmax(-1), (drawn(6, 130),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (130,), w, b), (drawn(6, 130), drawn(130), drawn(130))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (130,), w), (drawn(6, 130), drawn(130))),
    "cat": (lambda x, y: torch.cat([x, y * 2], 1) + 1, (drawn(4, 5), drawn(4, 7))),
    "pad": (lambda x: F.pad(x, (1, 2)), (drawn(4, 5),)),
    "embedding": (lambda w, i: F.embedding(i, w), (drawn(10, 70), torch.tensor([[1, 3], [9, 0]]))),
    "in place": (lambda x: x.add_(1), (drawn(4, 5),)),
    "slice": (lambda x: x[:, 2:4] * 2, (drawn(4, 5),)),
    "strided slice": (lambda x: x[1::2, ::3] + 1, (drawn(6, 70),)),
    "argmax": (lambda x: x.argmax(-1), (drawn(4, 150),)),
    "argmin of all": (lambda x: x.argmin(), (drawn(4, 150),)),
    "max and its place": (lambda x: x.max(-1), (drawn(4, 150),)),
    "cumsum": (lambda x: x.cumsum(0) + 1, (drawn(4, 5),)),
    "index_put": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (drawn(4, 5), torch.tensor([0, 2]), drawn(2, 5)),
    ),
    "gather": (lambda x, i: x.gather(1, i), (drawn(4, 50), drawn(4, 7, dtype=torch.int64))),
    "scatter_add": (
        lambda x, i, s: x.scatter_add(1, i, s),
        (drawn(4, 50), drawn(4, 7, dtype=torch.int64), drawn(4, 7)),
    ),
    "where": (lambda x: torch.where(x > 0, x, -x), (drawn(4, 50),)),
    "gelu": (F.gelu, (drawn(4, 50),)),
    "sum of a transpose": (lambda x: (x.t() + x).sum(0), (drawn(64, 64),)),
    "views": (lambda x: x.view(4, 6, 32).permute(1, 0, 2).reshape(6, 128) * 2, (drawn(24, 32),)),
    "flattened transpose": (lambda x: x.t().flatten() + 1, (drawn(6, 70),)),
    "flip": (lambda x: x.flip(0, 1) + 1, (drawn(6, 70),)),
    "whole numbers": (lambda x: x * 3 + x // 2, (drawn(4, 50, dtype=torch.int64),)),
    "truths": (lambda x, y: (x > 0) & (y < 1), (drawn(4, 50), drawn(4, 50))),
    "any and all": (lambda x: ((x > 2).any(-1), (x > -9).all(0)), (drawn(4, 50),)),
    "prod": (lambda x: x.prod(-1), (drawn(4, 50),)),
    "var and mean": (lambda x: torch.var_mean(x, -1), (drawn(4, 50),)),
    "arange": (lambda x: x + torch.arange(50, device=x.device), (drawn(4, 50),)),
    "broadcast of one element": (lambda x, y: torch.addr(x, y[0], y[1]), (drawn(1, 1), drawn(2, 6))),
    "attention": (F.scaled_dot_product_attention, (drawn(1, 2, 8, 16), drawn(1, 2, 8, 16), drawn(1, 2, 8, 16))),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (drawn(1, 2, 8, 16), drawn(1, 2, 8, 16), drawn(1, 2, 8, 16)),
    ),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), (drawn(1, 3, 8, 8), drawn(4, 3, 3, 3))),
    "pooling": (lambda x: F.max_pool2d(x, 2), (drawn(1, 3, 8, 8),)),
    "sampling": (lambda x, g: F.grid_sample(x, g, align_corners=True), (drawn(2, 3, 5, 5), drawn(2, 5, 5, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_operation_equals_the_cpu(name: str) -> None:
    function, args = CASES[name]
    check(function, *args)


def test_views_at_an_offset_and_slices_are_inputs_like_others() -> None:
    base = drawn(8, 130)
    moved = base.to("spyre")

    def double(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).sum(0)

    step = torch.compile(double, dynamic=False)
    torch.testing.assert_close(step(moved[2:5, 3:70]).cpu(), (base[2:5, 3:70] * 2).sum(0))
    base[2:5, 3:70] *= 2
    torch.testing.assert_close(moved.cpu(), base)


def test_index_outside_names_the_operand() -> None:
    table = drawn(10, 70).to("spyre")
    with pytest.raises(IndexError, match="index 10 is out of bounds for a dim of 10"):
        torch.compile(lambda w, i: w[i] + 1, dynamic=False)(table, torch.tensor([1, 10]).to("spyre"))
