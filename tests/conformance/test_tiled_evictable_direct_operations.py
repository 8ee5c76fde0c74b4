"""Seed 000, requirement: A direct tiled operand means the full logical Tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import strideweave as sw
from strideweave import (
    CPU,
    DType,
    FileBacked,
    Generic,
    Layout,
    Shape,
    Stride,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
    from_torch,
)
from strideweave.operation.node import Operation
from support.direct import (
    CALLS,
    LEFT,
    OTHER,
    RIGHT,
    SAVING,
    SHEET,
    Call,
    Recorded,
    cotangent_for,
    cotangent_of,
    in_background,
    oracle_gradients,
    ordinary,
    sheet,
    values,
)
from support.scripted_carrier import ScriptedCarrier
from support.tiled import coordinates, every_tile, experts, locations, matrix, situation, slots_of, tiles

SIX = ("add", "elementwise_mul", "mul", "relu", "reduce_sum", "matmul")
SOME = TileSet([(0, 1), (1, 0)])
EVERY_CALL = pytest.mark.parametrize("call", CALLS, ids=str)
EVERY_SAVING_CALL = pytest.mark.parametrize("call", SAVING, ids=str)


def facts(tensor: Tensor) -> tuple[object, ...]:
    """All that a dense result is, its values aside."""
    return type(tensor.carrier), tensor.offset, tensor.layout, tensor.shape, tensor.dtype(), tensor.carrier.size()


def node_of(tensor: Tensor) -> Operation:
    node = tensor.autograd_ctx
    assert isinstance(node, Operation)
    return node


def assert_nothing_is_left(carrier: TiledEvictable) -> None:
    """No pin, no slot on its way, no owner: the carrier and its tiers can be used, and released."""
    statistics = carrier.statistics()
    assert (statistics.pinned_tiles, statistics.in_flight_tiles) == (0, 0)
    carrier.evict(every_tile(carrier))
    carrier.release()


def small(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Small whole numbers."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def cut(held: torch.Tensor) -> Tensor:
    """The values in tiles of half an axis where it is even, on a budget of one tile."""
    tile = [n // 2 if n % 2 == 0 else n for n in held.shape]
    grid_shape = [n // t for n, t in zip(held.shape, tile, strict=True)]
    layout = Layout.row_major(*held.shape)
    carrier = TiledEvictable(
        CPU(0, dtype=DType.from_torch(held.dtype)),
        ScriptedCarrier(held.reshape(-1)),
        grid_shape,
        tile,
        layout=layout,
        budget=torch.Size(tile).numel() * held.itemsize,
    )
    return Tensor(carrier, 0, layout)


def assert_as_on_the_compute_carrier(
    run: Callable[..., Tensor], held: list[torch.Tensor], flags: tuple[bool, ...]
) -> None:
    """The same result and the same gradients, bit for bit, as for dense operands; or the same refusal."""
    outcomes = []
    for is_tiled in (True, False):
        operands = [
            (cut(part) if is_tiled and flag else from_torch(part.clone())).requires_grad_(part.is_floating_point())
            for part, flag in zip(held, flags, strict=True)
        ]
        try:
            result = run(*operands)
        except (TypeError, ValueError, NotImplementedError) as error:
            outcomes.append(type(error).__name__)
            continue
        gradients: list[object] = []
        if result.requires_grad:
            result.backward(cotangent_for(result, cotangent_of(result)))
            gradients = [values(t.grad).tolist() for t in operands if t.requires_grad]
        outcomes.append((facts(result.detach()), values(result).tolist(), gradients))  # type: ignore[arg-type]
    assert outcomes[0] == outcomes[1]


class TestADirectTiledOperandMeansTheFullLogicalTensor:
    # -- the scenarios -------------------------------------------------------------------------------------------

    @EVERY_CALL
    def test_execute_on_a_partially_resident_full_tensor(self, call: Call) -> None:
        results = []
        for resident in (TileSet(), SOME, TileSet([(1, 1)]), None):
            carrier, x, _ = sheet()
            carrier.promote(every_tile(carrier) if resident is None else resident)
            result, _ = call.with_ordinary(x)
            results.append(result)
            assert torch.equal(values(result), call.expected())
            assert_nothing_is_left(carrier)
        assert len({facts(result) for result in results}) == 1

    @pytest.mark.parametrize("name", SIX)
    def test_reject_a_pending_projection_operand(self, name: str) -> None:
        carrier, x, secondary = sheet()
        operation = getattr(sw, name)
        with secondary.hold_read() as hold:
            handle = carrier.project(x, TileSelection([[1], [0]]))
            hold.wait_until_reached()
            before = situation(carrier)
            tries = (
                [lambda: operation(handle)]
                if name in ("relu", "reduce_sum")
                else [
                    lambda: operation(handle, handle),
                    lambda: operation(handle, ordinary(OTHER)),
                    lambda: operation(ordinary(OTHER), handle),
                    lambda: operation(x, handle),
                ]
            )
            for attempt in tries:
                with pytest.raises(TypeError, match="Tensor"):
                    attempt()
            assert not handle.done, "it was waited for"
            assert situation(carrier) == before
        compact = handle.wait(5)
        second = ordinary(RIGHT[:3]) if name == "matmul" else compact
        result = operation(compact) if name in ("relu", "reduce_sum") else operation(compact, second)
        assert type(result.carrier) is CPU

    def test_execute_on_an_explicitly_projected_tensor(self) -> None:
        carrier, weight, dense, secondary = experts(6)
        weight.requires_grad_()
        compact = carrier.project(weight, TileSelection([[4, 0, 2], [0], [0]])).wait(5)
        chosen = dense[[4, 0, 2]]
        for operation, oracle in (
            (sw.relu, torch.relu),
            (sw.exp, torch.exp),
            (lambda t: sw.sub(t, 1.0), lambda t: t - 1.0),
            (lambda t: sw.softmax(t, 2), lambda t: t.softmax(2)),
            (lambda t: sw.permute(t, 2, 0, 1), lambda t: t.permute(2, 0, 1)),
            (lambda t: sw.reduce_mean(t, axis=0), lambda t: t.mean(0)),
        ):
            result = operation(compact)
            torch.testing.assert_close(result.torch(), oracle(chosen))
            assert type(result.carrier) is CPU
            node = node_of(result)
            assert [node_of(source)._operation_name for source in node.inputs()] == ["project"]
            assert node._dispatch_carrier_class in (CPU, None)
        assert secondary.reads == 3, "only three experts are read"

    @pytest.mark.parametrize("kind", ["residency", "move"])
    def test_handles_of_residency_and_scatter_are_no_operands(self, kind: str) -> None:
        carrier, x, _ = sheet()
        selection = TileSelection([[0, 1], [0, 1]])
        handle: Any = (
            carrier.promote_async(selection) if kind == "residency" else carrier.scatter(ordinary(OTHER), x, selection)
        )
        for attempt in (lambda: sw.relu(handle), lambda: sw.mul(x, handle), lambda: sw.mul(2.0, handle)):
            with pytest.raises(TypeError, match="Tensor"):
                attempt()
        handle.wait(5)
        with pytest.raises(TypeError, match="Tensor"):
            sw.add(x, handle)

    # -- what is accepted ----------------------------------------------------------------------------------------

    @EVERY_CALL
    def test_result_is_the_dense_one_of_central_semantics(self, call: Call) -> None:
        carrier, x, _ = sheet()
        result, _ = call.with_ordinary(x)
        wanted, _ = call.with_ordinary(ordinary(SHEET))
        assert facts(result) == facts(wanted)
        assert torch.equal(values(result), values(wanted))
        assert not result.carrier.is_owned()
        assert result.carrier is not carrier.primary
        assert (result.autograd_ctx, result.requires_grad) == (None, False)

    @pytest.mark.parametrize(
        ("spelled", "oracle"),
        [
            (lambda x: x + x, SHEET + SHEET),
            (lambda x: x * x, SHEET * SHEET),
            (lambda x: x * 2, SHEET * 2),
            (lambda x: True * x, SHEET * True),
            (lambda x: 3.5 * x, SHEET * 3.5),
            (lambda x: x @ ordinary(RIGHT), SHEET @ RIGHT),
            (lambda x: ordinary(LEFT) @ x, LEFT @ SHEET),
            (lambda x: ordinary(OTHER) + x, OTHER + SHEET),
            (lambda x: sw.functional.relu(x), SHEET.relu()),
        ],
    )
    def test_every_spelling_reaches_the_operation(
        self, spelled: Callable[[Tensor], Tensor], oracle: torch.Tensor
    ) -> None:
        carrier, x, _ = sheet()
        assert torch.equal(values(spelled(x)), oracle)
        assert_nothing_is_left(carrier)

    @EVERY_CALL
    def test_dispatched_operation_of_the_carrier_runs(self, call: Call) -> None:
        carrier, x, _ = sheet()
        operation = carrier.dispatch_op(call.operation)
        assert (operation._operation_name, operation._dispatch_carrier_class) == (call.operation, TiledEvictable)
        if call.label in ("add", "elementwise_mul", "mul", "matmul"):
            second = ordinary(call.others[0])
            assert torch.equal(values(operation.forward(x, second)), call.expected())
        if call.operation == "relu":
            assert torch.equal(values(operation.forward(x)), call.expected())

    @EVERY_CALL
    def test_written_values_and_dirty_tiles_are_what_the_operation_sees(self, call: Call) -> None:
        carrier, x, _ = sheet()
        changed = SHEET.clone()
        for at, value in {(0, 0): 50.0, (3, 5): -60.0, (2, 1): 7.0}.items():
            x[at] = changed[at] = value
        dirty, version = carrier.dirty_tiles, carrier.version
        result, _ = call.with_ordinary(x)
        assert torch.equal(values(result), call.expected(changed))
        assert (carrier.dirty_tiles, carrier.version) == (dirty, version)
        assert torch.equal(slots_of(carrier), changed.reshape(-1))

    @EVERY_CALL
    def test_operand_keeps_its_identity_layout_and_version(self, call: Call) -> None:
        carrier, x, _ = sheet()
        before = x.layout, x.shape, x.version, x.dtype(), carrier.valid_tiles, carrier.dirty_tiles
        call.with_ordinary(x)
        assert x.carrier is carrier
        assert (x.layout, x.shape, x.version, x.dtype(), carrier.valid_tiles, carrier.dirty_tiles) == before
        assert torch.equal(slots_of(carrier), SHEET.reshape(-1))

    @EVERY_CALL
    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_every_tile_goes_through_a_budget_of_fewer(self, call: Call, slots: int) -> None:
        carrier, x, _ = sheet(budget_tiles=slots)
        assert torch.equal(values(call.with_ordinary(x)[0]), call.expected())
        assert carrier.statistics().resident_tiles <= slots
        assert_nothing_is_left(carrier)

    @EVERY_CALL
    def test_budget_that_somebody_else_holds_is_no_hindrance(self, call: Call) -> None:
        carrier, x, _ = sheet(budget_tiles=1)
        with carrier.borrow(TileSet([(1, 1)])) as views:
            assert torch.equal(values(call.with_ordinary(x)[0]), call.expected())
            assert torch.equal(next(iter(views.values())), SHEET[2:, 3:])
        assert_nothing_is_left(carrier)

    def test_budget_full_of_dirty_tiles_keeps_them(self) -> None:
        carrier, x, _ = sheet(budget_tiles=2)
        changed = SHEET.clone()
        for at in ((0, 0), (3, 5)):
            x[at] = changed[at] = 100.0
        for call in CALLS:
            assert torch.equal(values(call.with_ordinary(x)[0]), call.expected(changed))
        assert torch.equal(slots_of(carrier), changed.reshape(-1))
        assert_nothing_is_left(carrier)

    @EVERY_CALL
    def test_full_primary_is_an_operand_where_it_lies(self, call: Call) -> None:
        carrier = TiledEvictable(
            CPU.wrap(SHEET.reshape(-1).clone()), FileBacked(), (2, 2), (2, 3), layout=Layout.row_major(4, 6)
        )
        x = Tensor(carrier, 0, Layout.row_major(4, 6))
        carrier.evict(SOME)
        assert torch.equal(values(call.with_ordinary(x)[0]), call.expected())
        assert_nothing_is_left(carrier)

    def test_implicit_tiles_are_zero(self) -> None:
        carrier, x, _ = sheet()
        zero = Tensor(carrier.allocate_like(24), 0, x.layout)
        assert set(locations(zero.carrier).values()) == {"implicit"}  # type: ignore[arg-type]
        for call in CALLS:
            assert torch.equal(values(call.with_ordinary(zero)[0]), call.expected(torch.zeros(4, 6)))
        assert torch.equal(values(sw.add(zero, x)), SHEET)

    def test_two_tiled_operands_of_different_geometry(self) -> None:
        _, x, _ = sheet()
        flat = OTHER.T.reshape(-1).contiguous()
        other = TiledEvictable(CPU(0), ScriptedCarrier(flat), (1, 6), (4, 1), budget=16)
        y = Tensor(other, 0, Layout.column_major(4, 6))
        assert torch.equal(values(sw.add(x, y)), SHEET + OTHER)
        assert torch.equal(values(sw.mul(y, x)), SHEET * OTHER)
        _, right, _ = sheet(torch.arange(36.0).reshape(6, 6) - 11, budget_tiles=1)
        assert torch.equal(values(sw.matmul(x, right)), SHEET @ (torch.arange(36.0).reshape(6, 6) - 11))

    @pytest.mark.parametrize("slots", [1, None])
    def test_one_tensor_as_both_operands(self, slots: int | None) -> None:
        square = torch.arange(36.0).reshape(6, 6) - 17
        carrier, x, _ = sheet(square, budget_tiles=slots)
        assert torch.equal(values(sw.add(x, x)), square + square)
        assert torch.equal(values(sw.elementwise_mul(x, x)), square * square)
        assert torch.equal(values(sw.matmul(x, x)), square @ square)
        assert_nothing_is_left(carrier)

    def test_two_tensors_over_one_carrier(self) -> None:
        carrier, x, dense = matrix()
        permuted = Tensor(carrier, 0, Layout(Shape((2, 2), (2, 2)), Stride((4, 2), (1, 8))))
        expected = dense.T.reshape(-1).as_strided((2, 2, 2, 2), (2, 4, 8, 1)).reshape(4, 4)
        straight = Tensor(carrier, 0, Layout(Shape((2, 2), (2, 2)), Stride((1, 2), (4, 8))))
        assert torch.equal(values(sw.add(permuted, straight)), expected + dense)
        assert torch.equal(values(sw.add(x, x.detach())), dense + dense)

    # -- what is not ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("name", "attempt"),
        [
            ("sub", lambda x: x - x),
            ("sub", lambda x: 1.0 - x),
            ("div", lambda x: x / 2.0),
            ("neg", lambda x: -x),
            ("pow", lambda x: x**2),
            ("abs", abs),
            ("square", sw.square),
            ("exp", sw.exp),
            ("sigmoid", sw.sigmoid),
            ("gelu", sw.gelu),
            ("maximum", lambda x: sw.maximum(x, 0.0)),
            ("eq", lambda x: sw.eq(x, 0.0)),
            ("select", lambda x: sw.select(from_torch(SHEET > 0), x, 0.0)),
            ("clamp", lambda x: sw.clamp(x, 0.0, 1.0)),
            ("reduce_mean", sw.reduce_mean),
            ("reduce_max", lambda x: sw.reduce_max(x, axis=1)),
            ("reduce_prod", sw.reduce_prod),
            ("argmax", lambda x: sw.argmax(x, axis=0)),
            ("softmax", lambda x: sw.softmax(x, 1)),
            ("cumsum", lambda x: sw.cumsum(x, 0)),
            ("sort", sw.sort),
            ("convert", lambda x: sw.convert(x, DType.Float64)),
            ("gemm", lambda x: sw.gemm(x, ordinary(OTHER))),
            ("linear", lambda x: sw.linear(x, ordinary(OTHER))),
            ("einsum", lambda x: sw.einsum(x, ordinary(RIGHT), "a b, b c -> a c")),
            ("gather", lambda x: sw.gather(x, from_torch(torch.zeros(4, 6, dtype=torch.int64)), 0)),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_other_operation_names_stay_unsupported(self, name: str, attempt: Callable[[Tensor], object]) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        attempt(ordinary(SHEET))  # it is an operation, and a good call
        before = situation(carrier)
        with pytest.raises(NotImplementedError) as caught:
            attempt(x)
        words = str(caught.value)
        assert all(word in words for word in (*SIX, "project", "materialize"))
        assert (situation(carrier), policy.asked, secondary.reads) == (before, [], 0)

    @pytest.mark.parametrize(
        "attempt",
        [
            lambda x: sw.permute(x, 1, 0),
            lambda x: sw.reshape(x, Shape(4, (3, 2))),
            lambda x: sw.broadcast_to(x, Shape(4, 6)),
            lambda x: sw.unsqueeze(x, 0),
            lambda x: x[1:, :],
        ],
    )
    def test_views_of_a_tiled_tensor_are_unsupported(self, attempt: Callable[[Tensor], object]) -> None:
        carrier, x, _ = sheet()
        before = situation(carrier)
        with pytest.raises(NotImplementedError, match="project"):
            attempt(x)
        assert situation(carrier) == before

    def test_operands_of_other_classes_are_refused(self) -> None:
        policy = Recorded()
        carrier, x, _ = sheet(residency_policy=policy)
        before = situation(carrier)
        stored = Tensor(FileBacked(size=24), 0, Layout.row_major(4, 6))
        reference = Tensor(Generic([1.0] * 24, dtype=DType.Float32), 0, Layout.row_major(4, 6))
        evictable = Tensor(sw.Evictable(CPU(24), FileBacked()), 0, Layout.row_major(4, 6))
        for other in (stored, reference, evictable):
            for attempt in (lambda y=other: sw.add(x, y), lambda y=other: sw.mul(y, x), lambda y=other: sw.add(y, x)):
                with pytest.raises(TypeError, match="match"):
                    attempt()
        for other in ([1.0] * 24, SHEET, None, "x"):
            with pytest.raises(TypeError):
                sw.add(x, other)  # type: ignore[arg-type]
        assert situation(carrier) == before
        assert policy.asked == []

    @pytest.mark.parametrize(
        ("error", "attempt"),
        [
            (ValueError, lambda x: sw.add(x, ordinary(RIGHT))),
            (ValueError, lambda x: sw.matmul(x, x)),
            (ValueError, lambda x: sw.matmul(ordinary(RIGHT), x)),
            (ValueError, lambda x: sw.reduce_sum(x, axis=2)),
            (ValueError, lambda x: sw.reduce_sum(x, "a b c -> a")),
        ],
    )
    def test_call_that_central_semantics_refuses_changes_nothing(
        self, error: type[Exception], attempt: Callable[[Tensor], object]
    ) -> None:
        policy = Recorded()
        carrier, x, secondary = sheet(residency_policy=policy)
        with pytest.raises((error, IndexError)) as wanted:
            attempt(ordinary(SHEET))
        before = situation(carrier)
        with pytest.raises(type(wanted.value)):
            attempt(x)
        assert (situation(carrier), policy.asked, secondary.reads) == (before, [], 0)

    @EVERY_CALL
    def test_released_carrier_is_refused(self, call: Call) -> None:
        carrier, x, _ = sheet()
        operation = carrier.dispatch_op(call.operation)
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            call.with_ordinary(x)
        with pytest.raises(RuntimeError, match=r"^TiledEvictable is released$"):
            carrier.dispatch_op(call.operation)
        with pytest.raises(RuntimeError, match=r"^TiledEvictable is released$"):
            carrier.dispatch_op("no.such.operation")
        operands = [x] if call.operation in ("relu", "reduce_sum") else [x, x]
        options = {"leaves": (0, 1)} if call.operation == "reduce_sum" else {}
        with pytest.raises(RuntimeError, match="carrier is released"):
            operation.forward(*operands, **options)

    def test_released_ordinary_operand_is_refused_and_nothing_moves(self) -> None:
        policy = Recorded()
        carrier, x, _ = sheet(residency_policy=policy)
        other = ordinary(OTHER)
        other.carrier.release()
        before = situation(carrier)
        for attempt in (lambda: sw.add(x, other), lambda: sw.mul(other, x)):
            with pytest.raises(RuntimeError, match="released"):
                attempt()
        assert situation(carrier) == before
        assert policy.asked == []

    @EVERY_CALL
    def test_invalid_tile_is_refused_before_anything_moves(self, call: Call) -> None:
        carrier, x, secondary = sheet()
        selection = TileSelection([[0, 1], [0]])
        partial = carrier.scatter(ordinary(SHEET[:, :3]), x, selection).wait(5)
        holder = partial.carrier
        assert isinstance(holder, TiledEvictable)
        before = situation(holder)
        with pytest.raises(RuntimeError, match="invalid"):
            call.with_ordinary(partial)
        assert situation(holder) == before
        assert secondary.reads == 0
        if call.others and call.others[0].shape == (4, 6):
            with pytest.raises(RuntimeError, match="invalid"):
                sw.add(x, partial)
            assert secondary.reads == 0, "the other operand is valid, and is not read for nothing"

    # -- one boundary --------------------------------------------------------------------------------------------

    @EVERY_CALL
    def test_exactly_one_operation_and_autograd_boundary(self, call: Call) -> None:
        _, x, _ = sheet(budget_tiles=2)
        x.requires_grad_()
        result, others = call.with_ordinary(x, wants=True)
        node = node_of(result)
        assert node._operation_name == call.operation
        assert node._dispatch_carrier_class is TiledEvictable
        assert node._resolved_invocation is not None
        assert {id(t) for t in node.inputs()} == {id(t) for t in (x, *others)}
        assert all(t.autograd_ctx is None and t.is_leaf for t in node.inputs())
        assert result.requires_grad
        further = sw.relu(result)
        assert node_of(further)._dispatch_carrier_class is CPU
        assert node_of(further).inputs()[0] is result

    @EVERY_CALL
    def test_node_is_recorded_when_only_the_other_operand_wants_a_gradient(self, call: Call) -> None:
        _, x, _ = sheet()
        result, others = call.with_ordinary(x, wants=True)
        assert (result.autograd_ctx is not None) == bool(others)
        with sw.no_grad():
            assert call.with_ordinary(x.detach().requires_grad_(), wants=True)[0].autograd_ctx is None

    def test_profiler_sees_the_operation_once(self) -> None:
        _, x, _ = sheet()
        for call in CALLS:
            with sw.profile(carriers={TiledEvictable}) as profile:
                call.with_ordinary(x)
            assert [event.name for event in profile.events()] == [call.operation]

    # -- gradients -----------------------------------------------------------------------------------------------

    @EVERY_CALL
    @pytest.mark.parametrize("slots", [1, None])
    def test_gradients_equal_those_of_torch_after_eviction(self, call: Call, slots: int | None) -> None:
        carrier, x, _ = sheet(budget_tiles=slots)
        x.requires_grad_()
        result, others = call.with_ordinary(x, wants=True)
        carrier.evict(every_tile(carrier))
        drawn = cotangent_of(result)
        result.backward(cotangent_for(result, drawn))
        expected = oracle_gradients(call, SHEET, drawn)
        assert [torch.equal(values(t.grad), g) for t, g in zip((x, *others), expected, strict=True)] == [True] * len(
            expected
        )
        gradient = x.grad.carrier  # type: ignore[union-attr]
        assert isinstance(gradient, TiledEvictable)
        assert gradient is not carrier
        assert (gradient.grid_shape, gradient.tile_shape, gradient.layout) == ((2, 2), (2, 3), carrier.layout)
        assert (type(gradient.primary), type(gradient.secondary)) == (type(carrier.primary), type(carrier.secondary))
        assert gradient.valid_tiles == every_tile(gradient)
        assert gradient.statistics().slots == carrier.statistics().slots
        assert x.grad.layout == x.layout  # type: ignore[union-attr]
        assert x.grad.dtype() is x.dtype()  # type: ignore[union-attr]
        assert all(type(t.grad.carrier) is CPU for t in others)  # type: ignore[union-attr]
        assert_nothing_is_left(carrier)
        assert_nothing_is_left(gradient)

    @EVERY_CALL
    def test_gradient_of_the_other_operand_alone(self, call: Call) -> None:
        carrier, x, _ = sheet(budget_tiles=1)
        result, others = call.with_ordinary(x, wants=True)
        if not others:
            return
        drawn = cotangent_of(result)
        result.backward(cotangent_for(result, drawn))
        assert x.grad is None if not x.requires_grad else True
        assert torch.equal(values(others[0].grad), oracle_gradients(call, SHEET, drawn)[1])
        assert_nothing_is_left(carrier)

    def test_gradients_accumulate_over_backwards_and_paths(self) -> None:
        carrier, x, _ = sheet(budget_tiles=2)
        x.requires_grad_()
        dense = SHEET.clone().requires_grad_()
        for _ in range(2):
            loss = sw.reduce_sum(sw.add(sw.mul(x, x), sw.matmul(x, ordinary(torch.ones(6, 6)))))
            loss.backward()
            (dense * dense + dense @ torch.ones(6, 6)).sum().backward()
        compact = carrier.project(x, TileSelection([[1], [0]])).wait(5)
        sw.reduce_sum(compact * compact).backward()
        (dense[2:, :3] ** 2).sum().backward()
        assert torch.equal(values(x.grad), dense.grad)  # type: ignore[arg-type]
        assert_nothing_is_left(carrier)

    def test_gradient_of_one_tensor_as_both_operands(self) -> None:
        square = torch.arange(36.0).reshape(6, 6) - 17
        for operation, oracle in (
            (sw.add, torch.add),
            (sw.mul, torch.mul),
            (sw.elementwise_mul, torch.mul),
            (sw.matmul, torch.matmul),
        ):
            _, x, _ = sheet(square, budget_tiles=1)
            x.requires_grad_()
            dense = square.clone().requires_grad_()
            sw.reduce_sum(operation(x, x)).backward()
            oracle(dense, dense).sum().backward()
            assert torch.equal(values(x.grad), dense.grad)  # type: ignore[arg-type]

    def test_gradients_of_two_tiled_operands(self) -> None:
        first, second = torch.arange(24.0).reshape(4, 6) - 9, torch.arange(36.0).reshape(6, 6) - 17
        _, x, _ = sheet(first, budget_tiles=1)
        _, y, _ = sheet(second, budget_tiles=2)
        dense = [first.clone().requires_grad_(), second.clone().requires_grad_()]
        sw.reduce_sum(sw.matmul(x.requires_grad_(), y.requires_grad_())).backward()
        torch.matmul(*dense).sum().backward()
        for tensor, oracle in zip((x, y), dense, strict=True):
            assert isinstance(tensor.grad.carrier, TiledEvictable)  # type: ignore[union-attr]
            assert torch.equal(values(tensor.grad), oracle.grad)  # type: ignore[arg-type]

    def test_gradient_of_a_broadcast_tiled_operand_is_summed(self) -> None:
        row = torch.arange(6.0).reshape(1, 6) - 2
        carrier = TiledEvictable(CPU.wrap(row.reshape(-1).clone()), FileBacked(), (1, 2), (1, 3))
        x = Tensor(carrier, 0, Layout.column_major(1, 6), requires_grad=True)
        other = ordinary(OTHER, wants=True)
        result = sw.mul(x, other)
        assert torch.equal(values(result), row * OTHER)
        sw.reduce_sum(result).backward()
        assert torch.equal(values(x.grad), OTHER.sum(0, keepdim=True))
        assert torch.equal(values(other.grad), row.expand(4, 6))

    def test_direct_node_below_dense_ones(self) -> None:
        carrier, x, _ = sheet(budget_tiles=1)
        x.requires_grad_()
        weight = ordinary(RIGHT, wants=True)
        hidden = sw.relu(sw.matmul(x, weight))
        loss = sw.reduce_sum(hidden * hidden)
        names = []
        node = loss.autograd_ctx
        while node is not None:
            names.append((node._operation_name, node._dispatch_carrier_class))
            node = node.inputs()[0].autograd_ctx
        assert names == [("reduce_sum", CPU), ("mul", CPU), ("relu", CPU), ("matmul", TiledEvictable)]
        loss.backward()
        dense, right = SHEET.clone().requires_grad_(), RIGHT.clone().requires_grad_()
        (dense @ right).relu().square().sum().backward()
        assert torch.equal(values(x.grad), dense.grad)  # type: ignore[arg-type]
        assert torch.equal(values(weight.grad), right.grad)  # type: ignore[arg-type]
        assert_nothing_is_left(carrier)

    def test_grad_gives_tiled_gradients_and_touches_no_leaf(self) -> None:
        _, x, _ = sheet(budget_tiles=1)
        x.requires_grad_()
        (gradient,) = sw.grad(sw.reduce_sum(sw.mul(x, ordinary(OTHER))), [x], from_torch(torch.tensor(1.0)))
        assert gradient is not None
        assert isinstance(gradient.carrier, TiledEvictable)
        assert torch.equal(values(gradient), OTHER)
        assert x.grad is None

    def test_second_backward_needs_retain_graph(self) -> None:
        _, x, _ = sheet()
        x.requires_grad_()
        result = sw.reduce_sum(sw.mul(x, ordinary(OTHER)))
        result.backward(retain_graph=True)
        result.backward()
        assert torch.equal(values(x.grad), 2 * OTHER)
        with pytest.raises(RuntimeError, match=r"second time.*retain_graph=True"):
            result.backward()

    # -- the saved-version contract ------------------------------------------------------------------------------

    @EVERY_CALL
    @pytest.mark.parametrize("changed", ["tiled", "other"])
    @pytest.mark.parametrize("wanted", ["tiled", "other", "both"])
    def test_changed_operand_is_noticed_as_on_the_compute_carrier(self, call: Call, changed: str, wanted: str) -> None:
        if not call.others and "other" in (changed, wanted):
            return

        def outcome(x: Tensor) -> str | list[torch.Tensor]:
            x.requires_grad_(wanted != "other")
            others = [ordinary(held, wants=wanted != "tiled") for held in call.others]
            result = call.run(x, *others)
            for operand in [x] if changed == "tiled" else others:
                operand.detach()[0, 0] = 77.0
            drawn = cotangent_of(result)
            try:
                result.backward(cotangent_for(result, drawn))
            except RuntimeError as error:
                return f"{[t.grad for t in (x, *others)]} {'modified in-place' in str(error)}"
            return [values(t.grad) for t in (x, *others) if t.requires_grad]

        _, x, _ = sheet(budget_tiles=2)
        found, expected = outcome(x), outcome(ordinary(SHEET))
        if isinstance(found, str) or isinstance(expected, str):
            assert found == expected
        else:
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

    @EVERY_SAVING_CALL
    def test_residency_is_no_change_of_a_saved_value(self, call: Call) -> None:
        carrier, x, _ = sheet()
        result, others = call.with_ordinary(x.requires_grad_(), wants=True)
        carrier.promote(every_tile(carrier))
        carrier.evict(every_tile(carrier))
        carrier.promote(SOME)
        drawn = cotangent_of(result)
        result.backward(cotangent_for(result, drawn))
        for tensor, gradient in zip((x, *others), oracle_gradients(call, SHEET, drawn), strict=True):
            assert torch.equal(values(tensor.grad), gradient)

    @EVERY_SAVING_CALL
    def test_released_saved_operand_is_refused(self, call: Call) -> None:
        carrier, x, _ = sheet()
        result, others = call.with_ordinary(x, wants=True)
        carrier.release()
        with pytest.raises(RuntimeError, match="released"):
            result.backward(cotangent_for(result, cotangent_of(result)))
        assert others[0].grad is None

    def test_nothing_is_pinned_between_forward_and_backward(self) -> None:
        carrier, x, _ = sheet()
        x.requires_grad_()
        results = [call.with_ordinary(x, wants=True)[0] for call in CALLS]
        assert carrier.statistics().pinned_tiles == 0
        carrier.evict(every_tile(carrier))
        assert carrier.statistics().resident_tiles == 0
        del results

    # -- one walk, whatever is resident --------------------------------------------------------------------------

    @EVERY_CALL
    def test_result_has_the_same_bits_whatever_is_resident(self, call: Call) -> None:
        drawn = torch.randn(4, 6, generator=torch.Generator().manual_seed(5)) * 1e3
        seen = set()
        for slots in (1, 3, None):
            for resident in (TileSet(), TileSet([(1, 1)]), TileSet([(0, 1)])):
                carrier, x, _ = sheet(drawn, budget_tiles=slots)
                carrier.promote(resident)
                x.requires_grad_()
                result, _ = call.with_ordinary(x)
                result.backward(cotangent_for(result, cotangent_of(result)))
                seen.add((bytes(values(result).numpy().tobytes()), values(x.grad).numpy().tobytes()))
        assert len(seen) == 1

    def test_operation_waits_for_its_own_reads(self) -> None:
        for call in CALLS:
            _, x, secondary = sheet()
            with (
                secondary.hold_read(3) as hold,
                in_background(lambda c=call, t=x: c.with_ordinary(t)[0], hold) as running,
            ):
                hold.wait_until_reached()
                assert not running.is_over
                hold.let_go()
                assert torch.equal(values(running.result()), call.expected())

    def test_every_tile_is_read_once(self) -> None:
        for call in CALLS:
            for slots in (1, None):
                carrier, x, secondary = sheet(budget_tiles=slots)
                call.with_ordinary(x)
                assert secondary.reads == len(coordinates(carrier)), call
                assert carrier.statistics().bytes_read == carrier.nbytes

    # -- what a carrier says of itself ---------------------------------------------------------------------------

    def test_capabilities_are_those_of_the_six_and_stay_after_release(self) -> None:
        carrier, _, _ = sheet()
        found = carrier.operation_capabilities()
        assert {capability.operation for capability in found} == set(SIX)
        assert carrier.operation_capabilities("exp") == ()
        plans = {
            name: sw.operation.find(name).resolve_call(*operands).plan
            for name, operands in {
                "add": (ordinary(SHEET), ordinary(OTHER)),
                "mul": (2.0, ordinary(SHEET)),
                "relu": (ordinary(SHEET),),
                "exp": (ordinary(SHEET),),
                "sub": (ordinary(SHEET), ordinary(SHEET)),
            }.items()
        }
        assert [carrier.supports_operation_plan(plan) for plan in plans.values()] == [True, True, True, False, False]
        with pytest.raises(NotImplementedError):
            carrier.require_operation_plan(plans["exp"])
        carrier.release()
        assert carrier.operation_capabilities() == found

    def test_experts_of_three_modes_are_operands(self) -> None:
        carrier, weight, dense, _ = experts(4, budget_tiles=1)
        row = torch.tensor([[1.0, -2.0, 3.0]])
        assert torch.equal(values(sw.add(weight, ordinary(row))), dense + row)
        assert torch.equal(values(sw.reduce_sum(weight, axis=0)), dense.sum(0))
        assert torch.equal(values(sw.reduce_sum(weight, axis=(0, 2))), dense.sum((0, 2)))
        right = torch.arange(6.0).reshape(3, 2)
        assert torch.equal(values(sw.matmul(weight, ordinary(right))), dense @ right)
        assert torch.equal(values(sw.matmul(ordinary(right), weight)), right @ dense)
        assert carrier.primary_tiles.coordinates == () or len(carrier.primary_tiles.coordinates) == 1
        carrier.evict(tiles(0, 1, 2, 3))
        assert_nothing_is_left(carrier)

    @pytest.mark.parametrize("dtype", DType.registered(), ids=lambda dtype: dtype.name)
    def test_every_dtype_has_the_result_of_the_compute_carrier(self, dtype: DType) -> None:
        held = (SHEET % 3).to(dtype.torch_dtype)
        other = (OTHER % 2).to(dtype.torch_dtype)
        for call in CALLS:
            _, x, _ = sheet(held, budget_tiles=1)
            others = [from_torch((part % 2).to(dtype.torch_dtype)) for part in call.others]
            try:
                expected = call.run(from_torch(held.clone()), *others)
            except (TypeError, NotImplementedError) as refused:
                with pytest.raises(type(refused)):
                    call.run(x, *others)
                continue
            result = call.run(x, *others)
            assert facts(result) == facts(expected)
            assert torch.equal(values(result).double(), values(expected).double()), call
        _, x, _ = sheet(held)
        assert torch.equal(values(sw.mul(x, from_torch(other.clone()))).double(), (held.double() * other.double()))

    @pytest.mark.parametrize("which", ["first", "second", "both"])
    @pytest.mark.parametrize(
        ("run", "first", "second"),
        [
            (sw.add, (4, 6), (6,)),
            (sw.mul, (6,), (4, 6)),
            (sw.mul, (4, 6), (3, 4, 6)),
            (sw.elementwise_mul, (3, 1, 6), (4, 1)),
            (sw.add, (1, 6), (4, 1)),
            (sw.matmul, (4, 6), (6, 2)),
            (sw.matmul, (3, 4, 6), (6, 2)),
            (sw.matmul, (4, 6), (3, 6, 2)),
            (sw.matmul, (3, 4, 6), (3, 6, 2)),
            (sw.matmul, (2, 1, 4, 6), (3, 6, 2)),
            (sw.matmul, (1, 6), (6, 1)),
        ],
    )
    def test_shapes_meet_as_on_the_compute_carrier(
        self, run: Callable[..., Tensor], first: tuple[int, ...], second: tuple[int, ...], which: str
    ) -> None:
        held = [small(first, 3), small(second, 8)]
        flags = {"first": (True, False), "second": (False, True), "both": (True, True)}[which]
        assert_as_on_the_compute_carrier(run, held, flags)

    @pytest.mark.parametrize(
        "run",
        [
            lambda x: sw.reduce_sum(x, axis=(0, 2)),
            lambda x: sw.reduce_sum(x, axis=1, keepdims=True),
            lambda x: sw.reduce_sum(x, axis=(), keepdims=False),
            lambda x: sw.reduce_sum(x, "a b c -> c a"),
            lambda x: sw.reduce_sum(x, axis=0, accumulator_dtype=DType.Float64),
            lambda x: sw.reduce_sum(x, keepdims=True),
            lambda x: sw.matmul(x, ordinary(small((6, 2), 1)), accumulator_dtype=DType.Float64),
            lambda x: sw.mul(x, from_torch(torch.tensor(-3.0))),
            lambda x: sw.add(from_torch(torch.tensor(2.0)), x),
            lambda x: sw.mul(x, True),
            lambda x: sw.mul(x, 2),
            lambda x: sw.mul(0, x),
        ],
    )
    def test_options_and_scalars_mean_what_they_mean_on_the_compute_carrier(
        self, run: Callable[[Tensor], Tensor]
    ) -> None:
        assert_as_on_the_compute_carrier(run, [small((3, 4, 6), 5)], (True,))

    @pytest.mark.parametrize("other", [DType.Float64, DType.BFloat16, DType.Float16, DType.Int64, DType.Int8])
    @pytest.mark.parametrize("own", [DType.Float32, DType.BFloat16, DType.Int32])
    def test_dtypes_are_promoted_as_on_the_compute_carrier(self, own: DType, other: DType) -> None:
        held = [small((4, 6), 1).to(own.torch_dtype), small((4, 6), 2).to(other.torch_dtype)]
        for run in (sw.add, sw.mul, sw.elementwise_mul, lambda y, x: sw.add(x, y), lambda x, y: sw.mul(y, x)):
            assert_as_on_the_compute_carrier(run, held, (True, False))
        held[1] = held[1][:, :4].reshape(4, 4)
        assert_as_on_the_compute_carrier(lambda x, y: sw.matmul(y, x), held, (True, False))

    def test_infinities_and_nans_are_not_lost_between_tiles(self) -> None:
        inf, nan = torch.inf, torch.nan
        odd = SHEET.clone()
        odd[0, 0], odd[3, 5], odd[1, 4], odd[2, 2] = inf, -inf, nan, -0.0
        _, x, _ = sheet(odd, budget_tiles=1)
        for call in CALLS:
            found, expected = values(call.with_ordinary(x)[0]), call.expected(odd)
            assert torch.equal(found.isnan(), expected.isnan())
            assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))

    def test_implicit_zero_times_infinity_is_no_number(self) -> None:
        """A tile that is zero by name is multiplied as one that holds zeros."""
        carrier, x, _ = sheet()
        zero = Tensor(carrier.allocate_like(24), 0, x.layout)
        infinite = ordinary(torch.full((4, 6), torch.inf))
        for result in (
            sw.mul(zero, infinite),
            sw.elementwise_mul(infinite, zero),
            sw.mul(zero, torch.inf),
            sw.matmul(zero, ordinary(torch.full((6, 2), torch.inf))),
            sw.matmul(ordinary(torch.full((2, 4), torch.inf)), zero),
        ):
            assert values(result).isnan().all()

    def test_operand_of_one_tile_and_of_tiles_of_one_value(self) -> None:
        for grid_shape, tile_shape in (((1, 1), (4, 6)), ((4, 6), (1, 1))):
            carrier = TiledEvictable(
                CPU(0),
                ScriptedCarrier(SHEET.reshape(-1)),
                grid_shape,
                tile_shape,
                layout=Layout.row_major(4, 6),
                budget=24 * 4,
            )
            x = Tensor(carrier, 0, Layout.row_major(4, 6), requires_grad=True)
            for call in CALLS:
                result, _ = call.with_ordinary(x)
                assert torch.equal(values(result), call.expected())
            sw.reduce_sum(sw.mul(x, x)).backward()
            assert torch.equal(values(x.grad), 2 * SHEET)

    def test_ragged_last_tiles_count_as_they_are(self) -> None:
        held, right, left = small((5, 7), 4), small((7, 2), 1), small((3, 5), 2)
        for order in (Layout.row_major, Layout.column_major):
            layout = order(5, 7)
            flat = held.reshape(-1) if order is Layout.row_major else held.T.reshape(-1)
            carrier = TiledEvictable(
                CPU(0), ScriptedCarrier(flat), (3, 3), (2, 3), shape=(5, 7), layout=layout, budget=24
            )
            x, dense = Tensor(carrier, 0, layout, requires_grad=True), held.clone().requires_grad_()
            for run, oracle in (
                (sw.relu, torch.relu),
                (lambda t: sw.mul(t, t), lambda t: t * t),
                (lambda t: sw.add(t, ordinary(held)), lambda t: t + held),
                (lambda t: sw.reduce_sum(t, axis=0), lambda t: t.sum(0)),
                (lambda t: sw.matmul(t, ordinary(right)), lambda t: t @ right),
                (lambda t: sw.matmul(ordinary(left), t), lambda t: left @ t),
            ):
                result = run(x)
                assert torch.equal(values(result), oracle(dense).detach())
                sw.reduce_sum(result).backward()
                oracle(dense).sum().backward()
            assert torch.equal(values(x.grad), dense.grad)  # type: ignore[arg-type]
            assert_nothing_is_left(carrier)
