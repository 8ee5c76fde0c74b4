"""What the public reports about spans tell, each with the answer that is right; sizes scaled down with the limit.

The numbers are those of the issues in which users reported it.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from strideweave.inductor import Unsupported, spyre_hint
from strideweave.inductor.span_overflow_hint_analysis import SEED_RULES
from support.planned import Planned, planned, tiled

F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16
MIB = 2**20


def some(*size: int, dtype: torch.dtype = F16) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(len(size))).to(dtype)


def fitting(function: Any, *shapes: Any, **settings: Any) -> Planned:
    """The plan, all windows of which are within the limit."""
    found = planned(function, *shapes, **settings)
    assert not [(row.op, o.name) for row in found.report.rows for o in row.operands if o.exceeds]
    return found


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


# -- sums that a plan got wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "count"), [(BF16, 4), (F16, 4), (F32, 8)], ids=str)
@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
def test_3415_a_third_of_the_elements_were_wrong(dtype: torch.dtype, count: int, rules: dict[str, Any]) -> None:
    # (98000, 4096) by 256 MiB; here an eighth of the columns and a hundredth of the rows.
    limit = 256 * MIB // 8 // 100
    found = tiled(add, some(980, 512, dtype=dtype), some(980, 512, dtype=dtype), limit=limit, cores=1, **rules)
    assert found.loops == [("add", (count,))]


@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
def test_3417_sixty_four_tiles_are_enough(rules: dict[str, Any]) -> None:
    found = tiled(lambda x: x / 16, some(27, 16384, dtype=BF16), limit=256 * MIB // 10000, cores=1, **rules)
    assert found.loops == [("truediv", (64,))] or found.loops == [("mul", (64,))]


@pytest.mark.parametrize("cores", [1, 4])
def test_3166_only_the_first_tile_was_right(cores: int) -> None:
    found = tiled(add, some(1, 20, 16, 64), some(1, 20, 16, 64), limit=8192, cores=cores)
    assert found.loops == [("add", (5,))]


@pytest.mark.parametrize("rows", [17, 20, 41, 64])
def test_3357_tiles_of_one_row(rows: int) -> None:
    found = tiled(add, some(1, rows, 16, 64), some(1, rows, 16, 64), limit=2048, **SEED_RULES)
    assert found.loops == [("add", (rows,))]


@pytest.mark.parametrize(
    ("vocabulary", "loops"),
    [(49152, [("ReStickifyOpHBM", (2,)), ("batchmatmul", (2,))]),
     (87616, [("ReStickifyOpHBM", (37,)), ("batchmatmul", (37,))]),
     (49216, [("ReStickifyOpHBM", (1,)), ("batchmatmul", (1,)), ("ReStickifyOpHBM", ()), ("batchmatmul", ())])],
)  # fmt: skip
def test_3217_vocabulary_heads(vocabulary: int, loops: Any) -> None:
    # The hidden dim is a 64th of 4096, and so is the limit.
    found = tiled(F.linear, some(2, 64), some(vocabulary, 64), limit=4 * MIB, cores=1, tolerance=5e-2)
    assert found.loops == loops
    assert found.text.count("LoopSpec(") == 1


@pytest.mark.parametrize("cores", [1, 32])
@pytest.mark.parametrize(
    ("hidden", "vocabulary"), [(5120, 131072), (5120, 32768), (4096, 49159), (4096, 87616), (4096, 49216)]
)
def test_1379_1392_1490_large_heads_compile(hidden: int, vocabulary: int, cores: int) -> None:
    for tokens in ((1, 1), (1, 38)):
        found = fitting(F.linear, (*tokens, hidden), (vocabulary, hidden), cores=cores)
        assert "batchmatmul" in {op for op, _ in found.loops}


def test_1379_source_and_result_of_a_restickify_want_different_dims() -> None:
    found = fitting(F.linear, (1, 1, 5120), (131072, 5120), cores=1)
    ((op, loops), *_) = found.loops
    assert op == "ReStickifyOpHBM"
    assert sorted(loops) == [5, 8], "8 of the vocabulary for what it writes, 5 of the hidden dim for what it reads"


def test_3489_rows_are_outermost() -> None:
    for cores in (1, 32):
        fitting(torch.matmul, (4, 2048, 64), (4, 64, 65536), cores=cores)


def test_1757_broadcast_operand() -> None:
    found = fitting(lambda x, y: x * y, (1, 8192, 17408), (32, 8192, 17408), cores=1)
    assert found.one == [(1, 64)]
    fitting(lambda x, y: x * y, (1, 8192, 17408), (32, 8192, 17408), cores=32)


def test_2612_three_dims() -> None:
    for shape in ((36, 2000, 2000), (3, 12, 2000, 2000)):
        fitting(add, shape, shape, cores=1)


def test_3740_nothing_runs_above_the_limit() -> None:
    with pytest.raises(Unsupported, match=r"one core's window into \w+ .* is \d+ bytes .*limit is 8192 bytes"):
        tiled(add, some(1, 20, 16, 64), some(1, 20, 16, 64), limit=8192, cores=1, ignore_span_overflow_hints=True)


def test_3161_more_steps_than_a_counter_held() -> None:
    def hinted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with spyre_hint(named_dims=["A", "B", "C", "N"]), spyre_hint(num_tiles_per_dim={"N": 2}):
            return x + y

    shape = (1, 1, 1, 805306368)
    assert fitting(hinted, shape, shape, cores=4).loops == [("add", (2,))]
    assert fitting(add, (134217728,), (134217728,), cores=1).one == []
    assert fitting(add, (134217728,), (134217728,), cores=1, limit=65535 * 4096).one == [(0, 2)]


@pytest.mark.parametrize("shape", [(65537, 2048), (257, 16, 128, 256)], ids=str)
def test_3413_prime_extents_are_plain(shape: tuple[int, ...]) -> None:
    assert fitting(lambda x: x / 16, (shape, BF16), cores=1).one == [(1, 2)]


def test_1722_views_and_tensors_alike() -> None:
    size = (16, 3, 8, 224, 224)

    def of_view(x: torch.Tensor) -> torch.Tensor:
        return x.view(size).mean((2, 3, 4))

    def of_tensor(x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3, 4))

    limit = 56 * MIB  # the three channels are the result's sticks, so that only the 8 steps can be cut
    for function, shape in ((of_tensor, size), (of_view, (48, 8, 224, 224))):
        fitting(function, (shape, F32), cores=1, limit=limit)


def test_3332_transposed_operands() -> None:
    x, y = some(128, 192), some(192, 128)
    tiled(lambda x, y: x + y.t(), x, y, limit=8192)
    tiled(lambda x, y: (x.t() + y) * 2, x, y, limit=8192)
    tiled(lambda x, y: x.t() @ y.t(), x, y, limit=16384, tolerance=2e-1)


@pytest.mark.parametrize(("size", "limit"), [((1, 20, 64), 8192), ((20, 1, 64), 81920)], ids=str)
def test_3377_writers_advance(size: tuple[int, ...], limit: int) -> None:
    x = some(*size, 16, dtype=F32)
    found = tiled(lambda x: x.sum(-1), x, limit=limit, cores=1, tolerance=1e-4)
    assert found.loops == [("sum", (20 if limit == 8192 else 2,))]
    found = tiled(lambda x: x.sum(-1).amax(-1), x, limit=limit, cores=1, tolerance=1e-4)
    assert [op for op, _ in found.loops] == ["sum", "max"]


def test_3116_equal_dims_are_told_apart() -> None:
    q, k = some(1, 4, 64, 64), some(1, 4, 64, 64)
    found = tiled(lambda q, k: q @ k.transpose(-1, -2), q, k, limit=8192, tolerance=5e-2)
    assert any(loops for _, loops in found.loops)
    tiled(lambda q, k: (q @ k.transpose(-1, -2)).softmax(-1), q, k, limit=8192, tolerance=5e-2)


@pytest.mark.parametrize(
    ("rows", "hidden", "count"), [(131072, 4096, 4), (131200, 4096, 8), (149760, 3584, 4), (149888, 3584, 7)]
)
def test_3336_tables_at_and_above_the_limit(rows: int, hidden: int, count: int) -> None:
    found = fitting(
        lambda i, w: F.embedding(i, w), lambda: torch.empty(64, dtype=torch.int64, device="spyre"), (rows, hidden),
        cores=1,
    )  # fmt: skip
    assert found.one == [(1, count)]


@pytest.mark.parametrize("rows", [256, 257])
def test_3336_scaled_down(rows: int) -> None:
    index = torch.randint(0, rows, (48,), generator=torch.Generator().manual_seed(3))
    found = tiled(lambda i, w: F.embedding(i, w), index, some(rows, 256), limit=2 * 256 * 128, cores=1)
    assert found.loops == [("identity", (2 if rows == 256 else 4,))]
    with pytest.raises(Unsupported, match="one core's window"):
        tiled(lambda i, w: F.embedding(i, w), index, some(rows, 256), limit=2 * 256 * 128, cores=1, span_gathers=False)


def test_3639_bank_of_experts() -> None:
    def chosen(bank: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return bank[ids]

    fitting(chosen, (32, 2880, 2880), lambda: torch.empty(4, dtype=torch.int64, device="spyre"), cores=1)


# -- faults of the revision that the seed describes ------------------------------------------------------------------


def test_fault_1_and_2_counts_are_the_least_that_fit() -> None:
    for shape, dtype in (((6144, 32, 12, 128), F16), ((87616, 4096), F16), ((2750, 12, 4096), F32)):
        found = fitting(add, (shape, dtype), (shape, dtype), cores=1, **SEED_RULES)
        ((dim, count),) = found.one
        smaller = [
            d for d in range(1, count) if shape[dim] % d == 0 and (dim < len(shape) - 1 or shape[dim] // d % 64 == 0)
        ]
        whole = found.report.rows[0].operands[-1].window_whole_nbytes
        assert whole is not None
        assert all(whole / d > 256 * MIB for d in smaller)


def test_fault_4_transposed_reader() -> None:
    x, y = some(128, 128), some(128, 128)
    found = tiled(lambda x, y: (x + y).t() * y, x, y, limit=16384, cores=1)
    add_loops, *_, mul_loops = [loops for _, loops in found.loops]
    assert add_loops
    assert mul_loops
    assert found.text.count("LoopSpec(") >= 2


def test_fault_5_halves_of_an_inner_dim_do_not_halve_a_window() -> None:
    found = tiled(add, some(1, 20, 16, 64), some(1, 20, 16, 64), limit=20 * 16 * 128 - 128, cores=1)
    assert found.loops == [("add", (2,))]
    assert fitting(add, (1, 8195, 256, 64), (1, 8195, 256, 64), cores=1).one == [(1, 5)]


def test_fault_7_what_pointwise_operations_read_is_looked_at() -> None:
    def stepped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:, ::64] + y

    x, y = some(32, 8192), some(32, 128)
    found = tiled(stepped, x, y, limit=262144, cores=1)
    assert found.loops == [("add", (2,))], "32 rows of 128 sticks are twice the limit"
    with pytest.raises(Unsupported, match="window into arg"):
        tiled(stepped, x, y, limit=262144, cores=1, **SEED_RULES)
    with pytest.raises(Unsupported, match="cuts sticks"):  # the 32 columns of the result are in one stick
        tiled(stepped, some(32, 2048), some(32, 32), limit=65536, cores=1)


def test_fault_8_what_is_left_of_a_reduction_is_refused() -> None:
    # The output's dim is tiled, and what is summed up is still too wide for one core.
    with pytest.raises(Unsupported):
        tiled(lambda x: x.sum(0), some(64, 7, 64), limit=2048, cores=1, **SEED_RULES)


def test_fault_10_dims_outside_the_sticks_can_be_cut_anyway() -> None:
    x, y = some(64, 1), some(64, 1)
    found = tiled(add, x, y, limit=16 * 128, cores=1)
    assert found.loops == [("add", (4,))]
    found = tiled(lambda x: x.sum(-1, keepdim=True) + 1, some(64, 40, dtype=F32), limit=4096, cores=1, tolerance=1e-4)
    assert all(math.prod(loops) >= 2 for _, loops in found.loops)


def test_fault_11_and_12_one_element_a_tile_and_equal_dims() -> None:
    for n in (17, 64, 41):
        found = tiled(add, some(n, n, 64), some(n, n, 64), limit=n * 128, cores=1, **SEED_RULES)
        assert found.loops == [("add", (n,))]
    x = some(64, 64, 64)
    tiled(lambda x: x.transpose(0, 1) + x, x, limit=64 * 128, cores=1)


@pytest.mark.parametrize("columns", [57, 31, 64])
def test_masked_loads_in_tiles_are_where_their_tile_is(columns: int) -> None:
    x = some(9, columns, dtype=F32)
    found = tiled(lambda x: F.pad(x, (1, 0))[:, :-1] * 2, x, limit=9 * 128 * -(-columns // 32) - 128, cores=1)
    assert any(loops for _, loops in found.loops)
