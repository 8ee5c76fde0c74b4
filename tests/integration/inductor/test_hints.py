"""Manual tiling: hinted operations run in loops as hinted, and give what they give without."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from strideweave.inductor import Unsupported, declare_tensor_dim, explain, name_tensor_dims, spyre_hint
from support.compiled import check, compiled, on_card


def loops_of(report: object) -> list[tuple[str, tuple[int, ...]]]:
    return [(row.op, row.loops) for row in report.rows]  # type: ignore[attr-defined]


def tiled_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with spyre_hint(named_dims=["M", "N"]), spyre_hint(num_tiles_per_dim={"M": 4}):
        return (x + y) * 2


def test_pointwise_in_tiles_keeps_what_lies_between_in_scratch() -> None:
    x, y = torch.randn(8, 130), torch.randn(8, 130)
    check(tiled_add, x, y, plain=lambda x, y: (x + y) * 2)
    report = explain(tiled_add, x, y)
    assert loops_of(report) == [("add", (4,)), ("mul", (4,))]
    assert [o.is_scratch for o in report.rows[0].operands] == [False, False, True]
    assert [o.is_scratch for o in report.rows[1].operands] == [True, False]
    assert report.programs[0].count("LoopSpec(") == 1
    assert "count=sympify('4')" in report.programs[0]


@pytest.mark.parametrize("spelling", ["num_tiles_per_dim", "tiles", "slices"])
def test_older_spellings_mean_the_same(spelling: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(**{spelling: {"M": 2}}):
            return x + 1

    report = explain(run, on_card(torch.randn(8, 40), ["M", None]))
    assert loops_of(report) == [("add", (2,))]


def test_softmax_tiled_along_rows_and_columns() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"M": 4}), spyre_hint(num_tiles_per_dim={"N": 2}):
            return x.softmax(-1)

    x = torch.randn(8, 128)
    check(run, x, plain=lambda x: x.softmax(-1), names=[["M", "N"]])
    report = explain(run, on_card(x, ["M", "N"]))
    # A sum is whole only when its loop is over: each opens a loop of its own within the loop over rows.
    assert loops_of(report) == [
        ("fill", (4,)), ("max", (4, 2)), ("maximum", (4, 2)), ("copy", (4,)),
        ("fill", (4,)), ("sub", (4, 2)), ("exp", (4, 2)), ("copy", (4, 2)), ("sum", (4, 2)), ("add", (4, 2)),
        ("copy", (4,)), ("truediv", (4, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_chain_of_products_tiled_along_rows_and_the_inner_dim(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"M": 4}), spyre_hint(num_tiles_per_dim={"K": 2}):
            return torch.relu(x @ w) @ v

    args = torch.randn(8, 64), torch.randn(64, 32), torch.randn(32, 64)
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 1e-1}
    check(
        run,
        *(a.to(dtype) for a in args),
        plain=lambda x, w, v: torch.relu(x @ w) @ v,
        names=[["M", "K"], None, None],
        **tolerance,
    )
    report = explain(run, on_card(args[0].to(dtype), ["M", "K"]), *(on_card(a.to(dtype)) for a in args[1:]))
    accumulators = {o.name: o.dtype for row in report.rows for o in row.operands if o.name.endswith("_total")}
    assert set(accumulators.values()) == {"float32"}, "parts of 16-bit products are added up in Float32"


def test_vocabulary_head_restickifies_and_multiplies_in_one_loop() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"V": 4}), spyre_hint(named_dims=["M", "V"]):
            return F.linear(x, w)

    x, w = torch.randn(2, 64), torch.randn(1024, 64)
    check(run, x, w, plain=F.linear, names=[None, ["V", None]])
    report = explain(run, on_card(x), on_card(w, ["V", None]))
    assert loops_of(report) == [("ReStickifyOpHBM", (4,)), ("batchmatmul", (4,))]
    assert report.programs[0].count("LoopSpec(") == 1


def test_three_levels_around_a_reduction() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with (
            spyre_hint(num_tiles_per_dim={"A": 2}),
            spyre_hint(num_tiles_per_dim={"B": 3}),
            spyre_hint(num_tiles_per_dim={"C": 5}),
        ):
            y = torch.exp(x)
            return (y * (y + 1)).sum((0, 2))

    check(
        run,
        torch.randn(4, 6, 10),
        plain=lambda x: (torch.exp(x) * (torch.exp(x) + 1)).sum((0, 2)),
        names=[["A", "B", "C"]],
    )


def test_transposed_reader_is_no_member_of_the_loop() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"M": 4}):
            return (x + 1).t() + x

    check(run, torch.randn(8, 8), plain=lambda x: (x + 1).t() + x, names=[["M", "N"]])


def test_tile_of_one_row_still_advances() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"M": 8}):
            return (x + torch.arange(8, device=x.device).unsqueeze(1)) * 2

    check(run, torch.randn(8, 70), plain=lambda x: (x + torch.arange(8).unsqueeze(1)) * 2, names=[["M", "N"]])


def test_causal_mask_inside_a_loop_knows_its_tile() -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"T": 4}):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    args = [torch.randn(1, 2, 8, 16) for _ in range(3)]
    check(
        run,
        *args,
        plain=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        names=[["B", "H", "T", None]],
    )


def test_work_division_by_hint() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(work_div={"M": 4}):
            return x + 1

    (row,) = explain(run, on_card(torch.randn(8, 128), ["M", "N"])).rows
    assert row.cores == {"c0": 4}


def test_count_that_does_not_divide_is_refused_by_name() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"M": 3}):
            return x + 1

    with pytest.raises(Exception, match=r"cannot tile buf0 by 3 along c0: its range is 8"):
        compiled(run)(on_card(torch.randn(8, 70), ["M", "N"]))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({}, TypeError),
        ({"tiles": {"M": 2}, "work_div": {"M": 2}}, TypeError),
        ({"tiles": {"M": 2, "N": 2}}, ValueError),
        ({"tiles": {"M": 0}}, ValueError),
        ({"tiles": {"M": 2.0}}, TypeError),
    ],
)
def test_hint_that_is_none_is_refused(wrong: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        spyre_hint(**wrong)  # type: ignore[arg-type]


def test_names_are_checked() -> None:
    declare_tensor_dim("test_names_heads", 12)
    with pytest.raises(ValueError, match="declared with 12"):
        declare_tensor_dim("test_names_heads", 13)
    with pytest.raises(ValueError, match="declared with 12"):
        name_tensor_dims(torch.zeros(3), ["test_names_heads"])
    with pytest.raises(ValueError, match="1 dims, and there are 2 names"):
        name_tensor_dims(torch.zeros(3), ["a", "b"])
    assert issubclass(Unsupported, RuntimeError)
