"""Which tiles large shapes need, number by number: by the rules of seed 002, by exact windows, and what fits anyway."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from strideweave.inductor import Unsupported
from strideweave.inductor.span_overflow_hint_analysis import SEED_RULES
from support.planned import Planned, planned

LIMIT = 256 * 2**20
F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16

FITTING = [
    (32768, 4096), (65536, 2048), (512, 512, 512), (1024, 256, 512), (128, 32, 64, 512), (256, 16, 128, 256),
]  # fmt: skip
"""Exactly 256 MiB each."""

TILED: list[tuple[tuple[int, ...], torch.dtype, dict[int, int]]] = [
    ((513, 512, 512), F16, {1: 2}),
    ((1025, 256, 512), F16, {1: 2}),
    ((129, 32, 64, 512), F16, {1: 2}),
    ((257, 16, 128, 256), F16, {1: 2}),
    ((87616, 4096), F16, {1: 4}),
    ((98000, 4096), F16, {1: 4}),
    ((98000, 4096), BF16, {1: 4}),
    ((98000, 4096), F32, {1: 8}),
    ((120000, 4096), F16, {1: 4}),
    ((120000, 4096), F32, {1: 8}),
    ((128256, 4096), F16, {1: 4}),
    ((128256, 4096), F32, {1: 8}),
    ((135000, 4096), F16, {1: 8}),
    ((200704, 4096), F16, {1: 8}),
    ((256512, 4096), F16, {1: 8}),
    ((195000, 2880), F16, {1: 5}),
    ((201088, 2880), F16, {1: 5}),
    ((152064, 3584), F16, {1: 7}),
    ((262144, 5120), F16, {1: 10}),
    ((262144, 5120), F32, {1: 20}),
    ((270000, 16384), F16, {1: 64}),
    ((2750, 12, 4096), F32, {1: 3}),
    ((65, 44, 49152), F32, {1: 4}),
    ((1000, 1064, 1024), F32, {1: 19}),
    ((6144, 32, 12, 128), F16, {1: 4}),
    ((10000, 32, 12, 128), F16, {1: 4}),
    ((28000, 32, 12, 128), F16, {1: 16}),
    ((32, 64, 1024, 2049), F16, {1: 64}),
    ((32, 8192, 17408), F16, {1: 64}),
    ((1, 185000, 17408), F16, {1: 25}),
    ((2, 92500, 17408), F16, {1: 25}),
    ((22, 8192, 17409), F16, {1: 32}),
    ((1, 8195, 256, 64), F16, {1: 5}),
    ((4, 8195, 256, 64), F16, {1: 5}),
]
"""By the seed's rules and by exact windows alike."""

UNSPLITTABLE: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((32, 8193, 1740), {"levels": [(1, 4, 2049)]}),
    ((1, 65537, 4096), {"levels": [(1, 3, 21846)]}),
    ((22, 8191, 17408), {"levels": [(1, 24, 342)]}),
    ((8192, 49159), {"levels": [(1, 4, 12352)]}),
]
"""No divisor up to 64 of the dim that overflows helps; with a shorter last tile there are some."""


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def plan_of(shape: tuple[int, ...], dtype: torch.dtype, **switches: Any) -> Planned:
    """With one core, which cannot divide anything: what runs, fits by its tiles alone."""
    found = planned(add, (shape, dtype), (shape, dtype), cores=1, **switches)
    assert not [o for row in found.report.rows for o in row.operands if o.exceeds]
    return found


def as_levels(splits: dict[int, int]) -> list[tuple[int, int]]:
    return sorted(splits.items())


@pytest.mark.parametrize("shape", FITTING, ids=str)
def test_exactly_the_limit_needs_no_tiles(shape: tuple[int, ...]) -> None:
    assert math.prod(shape) * 2 == LIMIT
    for rules in (SEED_RULES, {}):
        found = plan_of(shape, F16, **rules)
        assert (found.one, found.groups) == ([], [])


@pytest.mark.parametrize(("shape", "dtype", "splits"), TILED, ids=lambda value: str(value).removeprefix("torch."))
def test_tiles_by_both_rules(shape: tuple[int, ...], dtype: torch.dtype, splits: dict[int, int]) -> None:
    for rules in (SEED_RULES, {}):
        found = plan_of(shape, dtype, **rules)
        assert found.one == as_levels(splits)
        assert found.loops == [("add", tuple(splits.values()))]
        (group,) = found.groups
        assert group == (["buf0"], [(10000 + k, n) for k, n in enumerate(splits.values())])


@pytest.mark.parametrize(("shape", "answer"), UNSPLITTABLE, ids=lambda value: str(value))
def test_prime_extents(shape: tuple[int, ...], answer: dict[str, Any]) -> None:
    with pytest.raises(
        Unsupported, match=r"no combined split among host dims \[1\] makes all spans fit within 256 MiB"
    ):
        plan_of(shape, F16, **SEED_RULES)
    with pytest.raises(Unsupported, match="no combined split"):
        plan_of(shape, F16, span_uneven_tiles=False, span_split_cap=True)
    found = plan_of(shape, F16)
    assert found.one == answer["levels"]
    ((_, count, tile),) = found.one
    assert (count - 1) * tile < shape[1] < count * tile
    assert found.loops == [("add", (count - 1,)), ("add", ())]


def test_divisor_beyond_the_cap() -> None:
    # 2731 divides 8193, and is what is left when neither a shorter last tile nor the cap is there.
    assert plan_of((32, 8193, 1740), F16, span_uneven_tiles=False).one == [(1, 2731)]


def test_stored_whole_or_tile_by_tile() -> None:
    shape = (1000, 16, 1064, 64)
    # 19 tiles of dim 2 are enough for what a tile has to itself; a window into whole tensors has dim 1 outermost.
    assert planned(add, (shape, F32), (shape, F32), cores=32, **SEED_RULES).one == [(2, 19)]
    with pytest.raises(Unsupported, match="one core's window into"):  # and nothing is left to the cores there
        plan_of(shape, F32, **SEED_RULES)
    assert plan_of(shape, F32).one == [(1, 16), (2, 2)]


def test_two_dims_at_once() -> None:
    shape = (4096, 4096, 4096, 64)
    found = plan_of(shape, F16)
    assert found.one == [(1, 4096), (2, 8)]
    assert found.loops == [("add", (4096, 8))]
    assert found.report.rows[0].operands[-1].window_nbytes == LIMIT
    assert found.report.programs[0].count("OpSpec(") == 1, "the text does not grow with the count"
    with pytest.raises(Unsupported, match="no combined split among host dims"):
        plan_of(shape, F16, **SEED_RULES)  # 64 by 64 tiles leave 2 GiB


@pytest.mark.parametrize(
    ("limit", "levels"), [(65535 * 4096, [(1, 2)]), (LIMIT, []), (LIMIT - 1, [(1, 2)]), (2**20, [(1, 64), (0, 4)])]
)
def test_limit_is_not_baked_in(limit: int, levels: list[tuple[int, int]]) -> None:
    found = planned(add, (32768, 4096), (32768, 4096), limit=limit)
    assert sorted(found.one) == sorted(levels)


def test_more_rows_than_cores_divide() -> None:
    for rules in (SEED_RULES, {}):
        # 256 sticks of 270000 rows: every core count up to 32 leaves too much of it.
        assert planned(add, (270000, 16384), (270000, 16384), cores=1, **rules).one == [(1, 64)]
    found = planned(add, (270000, 16384), (270000, 16384), cores=32, span_count_cores=True)
    assert found.one == [(0, 2)]


def test_planning_takes_milliseconds() -> None:
    slowest = 0.0
    for shape, dtype, _ in TILED[::4]:
        for rules in (SEED_RULES, {}):
            planned(add, (shape, dtype), (shape, dtype), **rules)
            # Once more: what is imported or cached the first time is no planning.
            slowest = max(slowest, *planned(add, (shape, dtype), (shape, dtype), **rules).seconds)
    assert slowest < 0.025
