"""The planner of automatic tiles and its adapter: what seed 002 states of each step, and where exact windows go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch._inductor import ir

from strideweave.inductor import Unsupported, spyre_hint
from strideweave.inductor import span_overflow_hint_analysis as analysis
from strideweave.inductor.hints import DimHint
from strideweave.inductor.ir import FixedTiledLayout
from strideweave.inductor.ops import Op, computed_ops
from strideweave.inductor.span_overflow_hint_analysis import (
    SEED_RULES,
    ChunkingInfo,
    SpanAnalysis,
    SpanOverflowCandidate,
    SpanOverflowTileLevel,
    SpanOverflowTilePlan,
    can_conform_pointwise_tile,
    plan_span_overflow_tile,
)
from strideweave.inductor.spans import candidates, groups, search, splits, symbols
from strideweave.spyre.sticks import DataFormat
from strideweave.spyre.tensor_layout import SpyreTensorLayout
from support.planned import Planned, planned

E = (1, 8195, 256, 64)
F16, F32 = torch.float16, torch.float32
MIB = 2**20


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def by_seed(function: Callable[..., Any], *shapes: Any, **more: Any) -> Planned:
    return planned(function, *shapes, **{"cores": 4, **SEED_RULES, **more})


def looked(function: Callable[..., Any], look: Callable[..., Any], *shapes: Any, **more: Any) -> Any:
    """What `look` finds of the operations of a graph, before any of them is planned; then nothing is."""
    found: list[Any] = []

    def inspect(graph: Any) -> None:
        ops = computed_ops(graph)
        known = [symbols.operands_of(op) for op in ops]
        found.append(look(*ops))
        for op, operands in zip(ops, known, strict=True):
            op._operands = operands  # type: ignore[attr-defined]

    planned(function, *shapes, inspect=inspect, **{"limit": 2**60, **more})
    return found[0]


def with_limit(nbytes: int, look: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """The same under a limit, which what follows then does not have."""
    from strideweave.spyre import config

    def under(*ops: Op) -> Any:
        with config.patch({"max_span_bytes": nbytes, **more}):
            return look(*ops)

    return under


def infos_of(op: Op, splits: dict[int, int] | None = None) -> list[tuple[int, int]]:
    found = analysis._input_span_infos_controlled_by_output_dims(op, splits)
    return [(i.chunking_info.selected_host_dim, i.chunking_info.per_core_span) for i in found]


# -- single operations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
@pytest.mark.parametrize("batch", [1, 4])
def test_pointwise(batch: int, rules: dict[str, Any]) -> None:
    shape = (batch, *E[1:])
    found = planned(add, shape, shape, cores=4, **rules)
    plan = found.plans["buf0"]
    assert plan is not None
    assert plan.levels == (SpanOverflowTileLevel(selected_host_dim=1, split_count=5, is_reduction=False),)
    info, *others = plan.chunking_infos
    assert {other.reason for other in others} == (
        {f"input span overflow for arg{k}_1" for k in (0, 1)} if not rules else set()
    )
    assert plan.reason == "; ".join(sorted({i.reason for i in plan.chunking_infos}))
    assert info == ChunkingInfo(
        total_bytes=batch * 8195 * 256 * 128,
        per_core_span=batch * 8195 * 256 * 128,
        core_split_estimate=1,
        selected_device_dim_size=8195,
        selected_device_span_stride_elems=256 * batch * 64,
        selected_host_dim=1,
        stick_elems=64,
        reason="output span overflow",
    )
    assert found.ranges == {"buf0": [batch, 1639, 256, 64]}
    assert found.groups == [(["buf0"], [(10000, 5)])]
    rows = sympy.Symbol("c0" if batch == 1 else "c1", integer=True, nonnegative=True)
    assert found.hints == {"buf0": [DimHint(("_span_overflow",), 5, rows, False, 10000)]}
    stamped = found.infos["buf0"]
    assert stamped.loop_group_id == (0,)
    assert stamped.loop_count == [5]
    assert (stamped.loop_tiled_dims, stamped.loop_tiled_reduction_dims) == ([[1]], [[]])


def test_by_hint_it_is_stamped_the_same() -> None:
    def hinted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with spyre_hint(named_dims=["B", "H", "W", "C"]), spyre_hint(num_tiles_per_dim={"H": 5}):
            return x + y

    automatic, manual = by_seed(add, E, E), by_seed(hinted, E, E)
    assert automatic.infos == manual.infos
    assert automatic.ranges == manual.ranges
    assert automatic.report.programs == manual.report.programs
    assert (manual.groups, manual.analyses) == ([], {})


def test_small_enough() -> None:
    found = by_seed(add, (1, 2, 16, 64), (1, 2, 16, 64))
    assert (found.groups, found.plans, found.infos) == ([], {"buf0": None}, {})


@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
def test_output_of_a_reduction(rules: dict[str, Any]) -> None:
    found = planned(lambda a: a.expand(*E, 64).sum(-1), (64, 64), cores=4, **rules)
    assert found.one == [(1, 5)]
    assert not found.hints["buf0"][0].is_reduction


@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
def test_input_of_a_reduction(rules: dict[str, Any]) -> None:
    found = planned(lambda x: x.sum(-1), (4194304, 64), cores=1, **rules)
    assert found.one == [(0, 2)]
    plan = found.plans["buf0"]
    assert plan is not None
    assert plan.reason == "input span overflow for arg0_1"
    assert [c.source for c in found.analyses["buf0"].candidates] == ["input:arg0_1"]


def test_what_is_combined_away_controls_nothing() -> None:
    look = with_limit(4 * MIB, lambda op: (infos_of(op), plan_span_overflow_tile(op.buffer)), **SEED_RULES)
    assert looked(lambda x: x.sum(0), look, (65536, 64)) == ([], None)
    assert looked(lambda x: x.sum((0, 1)), look, (8192, 8192, 64)) == ([], None)
    # Without the rules of the seed it is done in parts.
    assert planned(lambda x: x.sum(0), (65536, 64), limit=4 * MIB, cores=1).one == [("k", 0, 2)]
    found = planned(lambda x: x.sum((0, 1)), (8192, 8192, 64), cores=1)
    assert [level[:2] for level in found.one] == [("k", 1)]
    assert found.one[0][2] == 32


def test_further_in_than_what_is_combined_away() -> None:
    # Device dims are [K, C/64, R, 64]: K hides neither C nor, further in, R.
    look = with_limit(256 * MIB, infos_of)
    assert looked(lambda x: x.sum(1), look, (65536, 4, 8192)) == [(1, 128 * 65536 * 128)]


def test_tiles_reach_less_far_in() -> None:
    def look(op: Op) -> list[set[int]]:
        return [{dim for dim, _ in infos_of(op, s)} for s in ({}, {1: 2}, {1: 2, 2: 257})]

    found = looked(lambda x: x.sum(-1), with_limit(256 * MIB, look), (2, 2, 257, 64, 64, 128))
    assert found[1] >= {1}
    assert found[2] == set()


@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
def test_matrix_product(rules: dict[str, Any]) -> None:
    found = planned(lambda x, w: torch.bmm(x, w.unsqueeze(0)), (1, 16, 64), (64, 4194304), cores=1, **rules)
    assert found.one == [(2, 2)]
    (info,) = found.analyses["buf0"].candidates
    assert info.source.startswith("input:")


def test_matrix_product_over_a_large_inner_dim() -> None:
    look = with_limit(256 * MIB, lambda op: (infos_of(op), plan_span_overflow_tile(op.buffer)), **SEED_RULES)
    assert looked(torch.bmm, look, (1, 16, 4194304), (1, 4194304, 64)) == ([], None)
    assert planned(torch.bmm, (1, 16, 4194304), (1, 4194304, 64), cores=1).one == [("k", 0, 2)]


def test_matrix_product_with_two_unknown_symbols_controls_nothing() -> None:
    def look(op: Op) -> list[dict[Any, int]]:
        before = analysis._bmm_output_symbol_to_dim(op)
        first, *others = symbols.operands_of(op)
        strange = sympy.Symbol("strange")
        coordinates = (first.coordinates[0] + strange, *first.coordinates[1:])
        op._operands = (symbols.Operand(first.touch, True, first.layout, coordinates), *others)
        return [before, analysis._bmm_output_symbol_to_dim(op), analysis._output_symbol_to_dim(op)]

    before, behind, output = looked(torch.bmm, look, (2, 16, 64), (2, 64, 128))
    assert sorted(before.values()) == [0, 1, 2]
    assert behind == {}
    assert output == before


def test_scalar_reduction_has_no_output_dims() -> None:
    look = with_limit(MIB, lambda op: plan_span_overflow_tile(op.buffer), **SEED_RULES)
    assert looked(lambda x: x.sum(), look, (4096, 4096)) is None
    found = planned(lambda x: x.sum(), (4096, 4096), limit=8 * MIB, cores=1)
    assert [level[:2] for level in found.one] == [("k", 1)]


def test_neither_symbolic_nor_untiled_layouts() -> None:
    def look(op: Op) -> list[Any]:
        buffer, layout = op.buffer, op.buffer.layout
        assert isinstance(layout, FixedTiledLayout)
        found = [plan_span_overflow_tile(buffer) is not None]
        buffer.layout = ir.FixedLayout(layout.device, layout.dtype, layout.size, layout.stride)
        found += [plan_span_overflow_tile(buffer), analysis.analyse(buffer).note]
        buffer.layout = FixedTiledLayout.of(layout, layout.device_layout)
        buffer.layout.size = [sympy.Symbol("s0"), *layout.size[1:]]
        found += [plan_span_overflow_tile(buffer), analysis.analyse(buffer).note]
        buffer.layout = layout
        return found

    was, plain, why_plain, symbolic, why_symbolic = looked(add, with_limit(MIB, look), (4096, 4096), (4096, 4096))
    assert was
    assert (plain, symbolic) == (None, None)
    assert "FixedLayout" in why_plain
    assert "symbolic" in why_symbolic


def test_gather_is_left_alone_by_the_seed() -> None:
    shapes = ((60000, 4096), lambda: torch.empty(80000, dtype=torch.int64, device="spyre"))
    look = with_limit(256 * MIB, lambda *ops: [plan_span_overflow_tile(op.buffer) for op in ops], **SEED_RULES)
    assert looked(lambda x, i: x[i] + 1, look, *shapes)[0] is None
    found = planned(lambda x, i: x[i] + 1, *shapes, cores=1)
    assert found.levels["buf0"] == [(1, 4)], "rows cannot be tiled: any of them may be read"


# -- coordinates -----------------------------------------------------------------------------------------------------

h, m = sympy.symbols("h m", integer=True, nonnegative=True)


@pytest.mark.parametrize(
    ("coordinate", "ranges", "split", "elems"),
    [
        (sympy.floor(2 * sympy.Mod(h, 2048)), {h: 6000}, {}, 4095),
        (sympy.Mod(h, 64) + sympy.Mod(h, 128), {h: 200}, {}, 191),
        (sympy.Mod(3 * h, 64), {h: 100}, {}, None),
        (h, {h: 8195}, {}, 8195),
        (h, {h: 8195}, {h: 5}, 1639),
        (h, {h: 8195}, {h: 2}, None),
        (sympy.floor(h / 2048) + sympy.floor(2 * sympy.Mod(m, 2048)), {h: 4096, m: 6000}, {}, 4096),
        (h + m, {h: 2_000_000, m: 2_000_000}, {}, 3_999_999),
        (h + m, {h: 10}, {}, None),
        (5 - h, {h: 6}, {}, 6),
        (sympy.Integer(3), {}, {}, 1),
        (sympy.Mod(h, 64), {h: 10}, {}, 10),
    ],
)
def test_coordinate_span_elems(coordinate: Any, ranges: Any, split: Any, elems: int | None) -> None:
    for dep in (SimpleNamespace(ranges=ranges), ranges):
        assert analysis._coordinate_span_elems(coordinate, dep, split) == elems


def test_bound_is_no_less_than_what_is_touched() -> None:
    for modulus, extent, step in itertools.product((3, 8, 64), (1, 5, 64, 100), (1, 2)):
        coordinate = sympy.Mod(h, modulus) * step + sympy.Mod(h, 2 * modulus)
        values = {(v % modulus) * step + v % (2 * modulus) for v in range(extent)}
        bound = analysis._coordinate_span_elems(coordinate, {h: extent})
        assert bound is not None
        assert bound >= len(values)


def test_coordinate_of_two_symbols_is_a_candidate_of_each() -> None:
    def look(op: Op) -> list[Any]:
        *_, output = symbols.operands_of(op)
        first, second = list(op.iteration.ranges)
        joint = (first + second, sympy.S.Zero)
        layout = FixedTiledLayout(
            output.layout.device, F16, (3_999_999, 1), (1, 1), 0,
            SpyreTensorLayout((3_999_999, 64), (1, 1), DataFormat.SEN169_FP16),
        )  # fmt: skip
        made = [symbols.Operand(touch.touch, touch.is_input, layout, joint) for touch in symbols.operands_of(op)]
        op._operands = tuple(made)
        out = candidates.output_span_candidates(op)
        return [
            [(c.source, c.chunking_info.selected_host_dim, c.chunking_info.per_core_span) for c in found]
            for found in (out, candidates.input_span_candidates(op))
        ]

    out, read = looked(lambda x: x + 1, with_limit(256 * MIB, look), (2_000_000, 2_000_000))
    span = 3_999_999 * 128
    assert out == [("output", 0, span), ("output", 1, span)]
    assert read == [("input:arg0_1", 0, span), ("input:arg0_1", 1, span)]


def test_reduction_symbol_in_a_joint_coordinate_takes_it_away() -> None:
    def look(op: Op) -> list[Any]:
        first, output = symbols.operands_of(op)
        kept, away = op.iteration.ranges
        coordinates = (kept + away, sympy.S.Zero)
        op._operands = (symbols.Operand(first.touch, True, first.layout, coordinates), output)
        return infos_of(op)

    assert looked(lambda x: x.sum(1), with_limit(16, look), (2000, 2000)) == []


# -- order, caps and costs -------------------------------------------------------------------------------------------


def candidate(dim: int, span: int) -> SpanOverflowCandidate:
    return SpanOverflowCandidate(ChunkingInfo(span, span, 1, 2, 2, dim, 64, "r"), "output")


def test_widest_dim_first_then_the_first_seen() -> None:
    found = [candidate(1, 512), candidate(0, 2048), candidate(2, 1024), candidate(1, 100)]
    assert candidates.candidate_host_dims(found) == [0, 2, 1]
    assert candidates.candidate_host_dims([candidate(2, 7), candidate(0, 7)]) == [2, 0]


def test_required_count_is_that_of_the_widest_span() -> None:
    from strideweave.spyre import config

    with config.patch({"max_span_bytes": 100}):
        found = [candidate(1, 100), candidate(1, 201), candidate(0, 99)]
        assert [candidates.required_split_count(found, dim) for dim in (0, 1, 2)] == [1, 3, 1]


def test_combinations_come_by_cost_and_are_bounded() -> None:
    counts = [list(range(1, 17))] * 3
    found = list(analysis._iter_split_combos(counts))
    every = sorted(
        itertools.product(*counts),
        key=lambda c: (c[0] * c[1] * c[2], sum(n > 1 for n in c), max(c), c),
    )
    assert found == every[:512]
    assert (splits._MAX_SPLITS_PER_DIM, search._MAX_TILE_DIMS, search._MAX_TILE_COMBOS) == (16, 3, 512)
    assert analysis._MAX_AUTO_TILE_SPLIT_COUNT == 64


def test_at_most_sixteen_counts_of_a_dim() -> None:
    look = with_limit(2**60, lambda op: splits.split_candidates(op, 0, 24), **SEED_RULES)
    legal, rejected = looked(lambda x: x + 1, look, (83160, 64))
    assert legal == [1, 2, 3, 4, 5, 21, 22, 24, 27, 28, 30, 54, 55, 56, 60, 63]
    assert {reason for _, reason in rejected} == {"more than 64 tiles"}
    assert min(count for count, _ in rejected) == 66


@pytest.mark.parametrize(("dim", "text"), [(7, "dim 7: its range is None"), (0, "dim 0: its range is 1")])
def test_dims_that_cannot_be_cut(dim: int, text: str) -> None:
    def look(op: Op) -> str:
        with pytest.raises(Unsupported) as refused:
            splits.split_candidates(op, dim)
        return str(refused.value)

    assert text in looked(lambda x: x + 1, look, (1, 8, 64))


def test_too_many_dims() -> None:
    with pytest.raises(Unsupported, match="bounded search limit"):
        by_seed(add, (64,) * 6, (64,) * 6, limit=1)
    with pytest.raises(Unsupported, match="bounded search limit"):
        planned(add, (64,) * 6, (64,) * 6, limit=1)


def test_no_count_is_left() -> None:
    with patch.object(splits, "_MAX_AUTO_TILE_SPLIT_COUNT", 1), pytest.raises(Unsupported, match="no combined split"):
        by_seed(add, (4096, 4096), (4096, 4096), limit=4 * MIB)
    assert by_seed(add, (4096, 4096), (4096, 4096), limit=4 * MIB).one == [(1, 8)]


def test_sticks_are_named_where_they_are_the_reason() -> None:
    with pytest.raises(Unsupported, match=r"no combined split.*preserves Spyre stick alignment"):
        by_seed(add, (8192, 49159), (8192, 49159))
    with pytest.raises(Unsupported) as refused:
        by_seed(add, (32, 8193, 1740), (32, 8193, 1740))
    text = str(refused.value)
    assert "stick alignment" not in text
    for fact in ("buf0", "32x8193x1740", "256 MiB", "512 combinations", "arg0_1", "still spans", "Pad a dim"):
        assert fact in text


def test_one_row_a_tile_is_for_pointwise_alone() -> None:
    shape = (1, 17, 16, 64)
    assert by_seed(add, shape, shape, limit=32768).one == [(1, 17)]
    with pytest.raises(Unsupported, match="no combined split"):
        by_seed(lambda a: a.expand(*shape, 64).sum(-1), (64, 64), limit=32768)
    # Here a tile of one row keeps its symbol, so that nothing speaks against it.
    assert planned(lambda a: a.expand(*shape, 64).sum(-1), (64, 64), limit=32768, cores=1).one == [(1, 17)]


def test_nothing_that_validation_refuses() -> None:
    with (
        patch.object(search, "remaining_span_candidates_after_tile", lambda op, splits: [candidate(0, 2**40)]),
        pytest.raises(Unsupported, match="no combined split"),
    ):
        by_seed(add, E, E)


def test_several_dims() -> None:
    shape = (4096, 4096, 4096, 64)
    found = planned(add, shape, shape, cores=1)
    assert found.one == [(1, 4096), (2, 8)]
    seen = [c.chunking_info.selected_host_dim for c in found.analyses["buf0"].candidates if c.source == "output"]
    assert seen == [1, 2]


def test_post_tile_layout_is_that_of_a_tensor_of_the_size_of_a_tile() -> None:
    def look(op: Op) -> SpyreTensorLayout:
        with pytest.raises(Unsupported, match="its size is 8195"):
            analysis._post_tile_layout_for_splits(op, {1: 2})
        return analysis._post_tile_layout_for_splits(op, {1: 5, 3: 1})

    assert looked(add, look, E, E) == SpyreTensorLayout((1, 1639, 256, 64), F16)


# -- sticks ----------------------------------------------------------------------------------------------------------


def tiled_layout(size: tuple[int, ...], stride: tuple[int, ...], layout: SpyreTensorLayout) -> FixedTiledLayout:
    return FixedTiledLayout(torch.device("spyre"), F16, size, stride, 0, layout)


def test_sticks_of_every_operand_stay_whole() -> None:
    def look(op: Op) -> list[str | None]:
        first, output = symbols.operands_of(op)
        batch, rows, columns = op.iteration.ranges
        layout = tiled_layout((64, 64, 8192), (64 * 8192, 8192, 1), SpyreTensorLayout((64, 64, 8192), F16))
        found = []
        for host in ((batch, columns, rows), (batch, sympy.S.Zero, rows + columns)):
            access = SimpleNamespace(name="transposed_rhs", host_coordinates=host)
            op._operands = (first, symbols.Operand(access, True, layout, first.coordinates), output)
            found += [splits.input_stick_alignment_error(op, 1, 3), splits.input_stick_alignment_error(op, 1, 2)]
        access = SimpleNamespace(name="joint", host_coordinates=(batch, rows + columns))
        joint = tiled_layout((64, 8192), (8192, 1), SpyreTensorLayout((64, 8192), F16))
        op._operands = (first, symbols.Operand(access, True, joint, first.coordinates), output)
        found.append(splits.input_stick_alignment_error(op, 1, 3))
        return found

    alone, by_two, joint, joint_by_two, in_second = looked(lambda x: x + 1, look, (64, 8190, 64))
    for error in (alone, by_two, joint, joint_by_two):
        assert error is not None
        assert "transposed_rhs" in error
        assert "host dim 2" in error
    assert in_second is not None
    assert "joint" in in_second
    assert "host dim 1" in in_second


def test_unknown_stick_dim_refuses_every_split() -> None:
    odd = tiled_layout((128, 128), (128, 1), SpyreTensorLayout((2, 128, 64), (64, 128, 7), DataFormat.SEN169_FP16))
    assert analysis._within_stick_host_dim(odd) is None
    for dim, split in itertools.product((0, 1), (2, 4, 128)):
        error = analysis._post_tile_stick_alignment_error(odd, dim, split)
        assert error is not None
        assert "not known" in error
    assert analysis._post_tile_stick_alignment_error(odd, 0, 1) is None


def test_known_stick_dim_refuses_what_cuts_sticks() -> None:
    layout = tiled_layout((12, 256), (256, 1), SpyreTensorLayout((12, 256), F16))
    assert analysis._within_stick_host_dim(layout) == 1
    assert [analysis._post_tile_stick_alignment_error(layout, 0, n) for n in (1, 2, 12)] == [None] * 3
    assert [analysis._post_tile_stick_alignment_error(layout, 1, n) is None for n in (1, 2, 4, 8, 3)] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_outer_dim_of_one_with_the_stride_of_the_sticks_is_not_taken_for_them() -> None:
    # Both strides are 1: only where the host dims are kept is it known which one runs along the sticks.
    layout = tiled_layout((1, 256), (1, 1), SpyreTensorLayout((1, 256), (1, 1), F16, (0, 1)))
    assert analysis._within_stick_host_dim(layout) == 1


# -- conforming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "answer"),
    [({1: 5}, True), ({1: 11}, True), ({1: 55}, True), ({1: 2}, False), ({0: 2}, False), ({2: 2}, True),
     ({3: 2}, False), ({4: 2}, False), ({-1: 5}, False), ({}, False)],
)  # fmt: skip
def test_who_can_conform(split: dict[int, int], answer: bool) -> None:
    look = with_limit(256 * MIB, lambda op: can_conform_pointwise_tile(op.buffer, split, 4), **SEED_RULES)
    assert looked(add, look, E, E) is answer


def test_exact_windows_do_not_conform_to_what_the_tile_alone_would_have() -> None:
    # Halves of dim 2 halve a tensor that is stored tile by tile; into the whole one they are as wide as before.
    for dim, answer in ((1, True), (2, False)):
        look = with_limit(
            256 * MIB, lambda op, dim=dim: can_conform_pointwise_tile(op.buffer, {dim: 5 - 3 * (dim - 1)})
        )
        assert looked(add, look, E, E) is answer


def test_who_cannot_conform() -> None:
    look = with_limit(256 * MIB, lambda op: can_conform_pointwise_tile(op.buffer, {0: 2}), **SEED_RULES)
    assert looked(lambda x: x.sum(-1), look, (4194304, 64)) is False

    def hinted(x: torch.Tensor) -> torch.Tensor:
        with spyre_hint(num_tiles_per_dim={"M": 2}), spyre_hint(named_dims=["M", "N"]):
            return x + 1

    assert looked(hinted, look, (128, 64)) is False
    assert looked(lambda x: x + 1, look, (128, 64)) is True


# -- the adapter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
def test_equal_plans_share_a_loop(rules: dict[str, Any]) -> None:
    found = planned(lambda x, y: (x + y, x * y), E, E, cores=4, **rules)
    assert found.groups == [(["buf0", "buf1"], [(10000, 5)])]
    assert found.report.programs[0].count("LoopSpec(") == 1
    found = planned(lambda x, y: (x + y) * 2, E, E, cores=4, **rules)
    assert found.groups == [(["buf0", "buf1"], [(10000, 5)])]
    assert {info.loop_group_id for info in found.infos.values()} == {(0,)}


def test_other_plan_conforms() -> None:
    plain = groups.analyse

    def fabricated(op: Any, *rest: Any) -> SpanAnalysis:
        found = plain(op, *rest)
        if op.get_name() == "buf1":
            assert found.plan is not None
            level = SpanOverflowTileLevel(1, 11)
            found.plan = SpanOverflowTilePlan((level,), found.plan.chunking_infos, found.plan.reason)
        return found

    with patch.object(groups, "analyse", fabricated):
        found = by_seed(lambda x, y: (x + y) * 2, E, E)
    assert found.levels == {"buf0": [(1, 5)], "buf1": [(1, 11)]}
    assert found.groups == [(["buf0", "buf1"], [(10000, 5)])]
    assert [info.loop_count for info in found.infos.values()] == [[5], [5]]


def test_reader_that_cannot_conform_is_refused_by_the_seed() -> None:
    def chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = x + y
        return both, both[:, :8194] * 2

    # 5 does not divide 8194, which would rather have 2.
    with pytest.raises(
        Unsupported, match=r"Cannot auto-tile buf1: it reads already auto-tiled producer\(s\) \['buf0'\]"
    ):
        by_seed(chain, E, E)
    found = planned(chain, E, E, cores=1)
    assert found.levels == {"buf0": [(1, 5)], "buf1": [(1, 2)]}
    assert found.loops == [("add", (5,)), ("mul", (2,))]


def test_reader_in_another_order_gets_a_loop_of_its_own() -> None:
    shape = (16384, 16384)

    def transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).t() * y

    with pytest.raises(Unsupported, match="it reads already auto-tiled producer"):
        by_seed(transposed, shape, shape)
    found = planned(transposed, shape, shape, cores=1)
    assert len({info.loop_group_id[0] for info in found.infos.values()}) == len(found.groups) > 1


def test_vocabulary_head_is_refused_by_the_seed_and_is_one_loop_otherwise() -> None:
    args = ((1, 4096), (128256, 4096))
    with pytest.raises(Unsupported, match=r"Cannot auto-tile buf0: .*producer\(s\) \['buf1'\]"):
        by_seed(F.linear, *args)
    found = planned(F.linear, *args, cores=1)
    assert len(found.groups) == 1
    # The weight has K outermost, what it is brought into the vocabulary: a loop over each, the second one inside.
    assert found.loops == [("ReStickifyOpHBM", (4, 4)), ("batchmatmul", (4,))]
    assert found.report.programs[0].count("LoopSpec(") == 2


def test_matrix_product_that_nothing_helps_is_refused() -> None:
    # Device dims of the right side are [64, 65536, 1, 64]: K is outermost, and one stick of the left side.
    for rules in (SEED_RULES, {}):
        with pytest.raises(Unsupported, match=r"one core's window into arg1_1 .* is 536870912 bytes"):
            planned(torch.bmm, (1, 16, 64), (1, 64, 4194304), cores=1, **rules)


def test_hints_of_users_win() -> None:
    def hinted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with spyre_hint(named_dims=["B", "H", "W", "C"]), spyre_hint(num_tiles_per_dim={"H": 55}):
            first = x + y
        return first, x * y

    found = by_seed(hinted, E, E)
    assert found.groups == [(["buf1"], [(10000, 5)])]
    assert found.loops == [("add", (55,)), ("mul", (5,))]


def test_reading_what_a_hint_tiled_is_refused_by_the_seed() -> None:
    def hinted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with spyre_hint(named_dims=["B", "H", "W", "C"]), spyre_hint(num_tiles_per_dim={"H": 5}):
            first = x + y
        return first * 2

    with pytest.raises(Unsupported, match=r"reads already auto-tiled producer\(s\) \['buf0'\]"):
        by_seed(hinted, E, E)
    assert planned(hinted, E, E, cores=4).loops == [("add", (5,)), ("mul", (5,))]


@pytest.mark.parametrize("switch", ["ignore_wsr_hints", "ignore_span_overflow_hints"])
def test_switched_off(switch: str) -> None:
    found = planned(add, E, E, cores=32, **{switch: True})
    assert (found.groups, found.analyses, found.infos) == ([], {}, {})
    with pytest.raises(Unsupported, match="automatic tiling"):
        planned(add, E, E, cores=1, **{switch: True})


def test_hint_numbers_go_on_over_groups() -> None:
    def two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + x, y + y

    found = planned(two, E, (98000, 4096), cores=1)
    assert found.groups == [(["buf0"], [(10000, 5)]), (["buf1"], [(10001, 4)])]


@pytest.mark.parametrize("rules", [SEED_RULES, {}], ids=["seed", "window"])
def test_plan_of_two_levels_becomes_two_loops(rules: dict[str, Any]) -> None:
    levels = (SpanOverflowTileLevel(0, 2), SpanOverflowTileLevel(1, 4))
    plan = SpanOverflowTilePlan(levels, (), "fabricated")
    with patch.object(groups, "analyse", lambda op, cores: SpanAnalysis(op.get_name(), plan=plan)):
        found = planned(lambda x: x.sum(-1), (20, 16, 64), **rules)
    assert found.loops == [("sum", (2, 4))]
    text = found.report.programs[0]
    assert text.index("LoopSpec(count=sympify('2')") < text.index("LoopSpec(count=sympify('4')")
    assert found.groups == [(["buf0"], [(10000, 2), (10001, 4)])]


def test_what_was_tried_is_said() -> None:
    found = planned(add, (32, 8193, 1740), (32, 8193, 1740), cores=1)
    lines = found.analyses["buf0"].lines()
    assert lines[0] == f"output: output dim 1 spans {8193 * 28 * 32 * 128} bytes"
    assert lines[-1].startswith("planned dim 1 by 4 (tiles of 2049, the last one shorter)")
    assert set(lines) <= set(found.report.rows[0].notes)
