"""Copy-back elision, facts-compiler.md h4: computed in place, unless automatic tiling wants to see the results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from strideweave.inductor.report import reporting
from strideweave.spyre import config
from support.compiled import check


def ops_of(function: Callable[..., object], *inputs: torch.Tensor) -> list[str]:
    with reporting() as report:
        check(function, *inputs)
    return [row.op for row in report.rows]


def x(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


def test_pointwise_result_is_computed_in_place() -> None:
    assert ops_of(lambda a, b: a.add_(b), x(5, 40), x(5, 40)) == ["add"]
    assert ops_of(lambda a, b: a.copy_(b * 2), x(5, 40), x(5, 40)) == ["mul"]


def test_pointwise_result_is_kept_where_the_planner_wants_it() -> None:
    with config.patch(ignore_span_overflow_hints=False):
        assert ops_of(lambda a, b: a.add_(b), x(5, 40), x(5, 40)) == ["add", "identity"]


@pytest.mark.parametrize("is_automatic", [True, False])
def test_reduction_is_computed_in_place_either_way(is_automatic: bool) -> None:
    with config.patch(ignore_span_overflow_hints=not is_automatic):
        assert ops_of(lambda a, b: a.copy_(b.sum(0)), x(40), x(5, 40)) == ["sum"]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: (a.add_(b), a * 2)[1],  # read again
        lambda a, b: a.copy_(a.flip(0) + b),  # reads elsewhere in what it writes
        lambda a, b: (a.mul_(2), b.add_(a), a.add_(b))[2],  # chains of changes
        lambda a, b: (lambda c: (a.copy_(c), c + 1)[1])(a + b),  # the result has another reader
        lambda a, b: (lambda c: (b.copy_(a + 1), a.copy_(c))[1])(a + b),  # read between
        lambda a, b: a[1:].add_(b[1:]),  # a part of it
        lambda a, b: a.t().copy_(b[:, :5].t() if b.shape[1] == 5 else a.t() + 1),  # transposed
        lambda a, b: a.copy_(a.sum(0, keepdim=True) + b),
    ],
)
def test_what_is_not_safe_is_right(function: Callable[..., object]) -> None:
    check(function, x(5, 40), x(5, 40))
