"""Carrier classes of somebody else as primary and as secondary: values against torch, faults by ordinal, ownership."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import strideweave as sw
from property.test_geometry import geometries, slot_table
from property.test_ragged import ragged_geometries
from property.test_tiled_autograd import numbers, put, region, selections
from strideweave import (
    CPU,
    BudgetExceeded,
    DType,
    FileBacked,
    Generic,
    Layout,
    Tensor,
    TiledEvictable,
    TileSelection,
    TileSet,
)
from strideweave.carriers.tiled_evictable.run_tiers import _CARRIERS
from strideweave.operation.alignment import dense_like
from support.defined import defined, list_storage, run_storage
from support.scripted_carrier import ScriptedCarrier
from support.tiled import Situation, every_tile, locations, situation
from unit.carriers.test_torch_storage import Elsewhere

SPEC = importlib.util.spec_from_file_location(
    "zstd_carrier", Path(__file__).parents[2] / "examples" / "zstd_carrier.py"
)
assert SPEC is not None
assert SPEC.loader is not None

Make = Callable[..., Any]
LISTED, RUNS = defined(list_storage(), name="Listed"), defined(run_storage(), name="Running")
CLASSES: dict[str, Make] = {
    "listed": lambda n=0, dtype=DType.Float32: LISTED(n, dtype=dtype),
    "runs": lambda n=0, dtype=DType.Float32: RUNS(n, dtype=dtype),
    "generic": lambda n=0, dtype=DType.Float32: Generic([0] * n, dtype=dtype),
    "device": lambda n=0, dtype=DType.Float32: Elsewhere(n, dtype=dtype),
    "hooks": lambda n=0, dtype=DType.Float32: (
        ScriptedCarrier(torch.zeros(n, dtype=dtype.torch_dtype), dtype=dtype) if n else ScriptedCarrier(dtype=dtype)
    ),
}
SHAPE, GRID, TILE = (5, 7), (3, 3), (2, 3)
DENSE = torch.arange(1.0, 36.0).reshape(SHAPE)
ROW_MAJOR = Layout.row_major(*SHAPE)
ORDERS = {"row": ROW_MAJOR, "column": Layout.column_major(*SHAPE)}
CORNER = TileSelection([[2, 0], [1, 2]])


def full(make: Make, layout: Layout = ROW_MAJOR, dense: torch.Tensor = DENSE) -> Any:
    """A carrier of the class with the values of the matrix."""
    flat = torch.empty(dense.numel())
    flat[torch.from_numpy(slot_table(layout))] = dense
    carrier = make(dense.numel())
    carrier._write_runs([(0, flat)])
    return carrier


def matrix(
    primary: Any, secondary: Any, *, layout: Layout = ROW_MAJOR, **options: Any
) -> tuple[TiledEvictable, Tensor]:
    carrier = TiledEvictable(primary, secondary, GRID, TILE, shape=SHAPE, layout=layout, **options)
    return carrier, Tensor(carrier, 0, layout)


def values_of(tensor: Tensor) -> torch.Tensor:
    return tensor.materialize().torch()


def on(make: Make, values: torch.Tensor) -> Tensor:
    """A Tensor over a carrier of the class, row-major."""
    carrier = make(values.numel(), DType.from_torch(values.dtype))
    carrier._write_runs([(0, values.reshape(-1).contiguous())])
    return Tensor(carrier, 0, Layout.row_major(*values.shape))


def both_roles(test: Any) -> Any:
    """Every class as primary, and every class as secondary, each once with itself and once with another one."""
    pairs = [(a, b) for a in CLASSES for b in CLASSES if a == b or "runs" in (a, b)]
    return pytest.mark.parametrize(("first", "second"), pairs, ids=["-".join(pair) for pair in pairs])(test)


# -- values ----------------------------------------------------------------------------------------------------------


@both_roles
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("start", ["primary", "secondary"])
def test_values_go_there_and_back(first: str, second: str, order: str, start: str) -> None:
    layout, one, other = ORDERS[order], CLASSES[first], CLASSES[second]
    if start == "primary":
        carrier, weight = matrix(full(one, layout), other(), layout=layout)
    else:
        carrier, weight = matrix(one(), full(other, layout), layout=layout, budget=72)
    dense = DENSE.clone()
    assert torch.equal(values_of(weight), dense)
    assert [carrier[layout.index((i, j))] for i, j in ((0, 0), (4, 6), (3, 5))] == [1.0, 35.0, 27.0]
    for i, j in ((0, 0), (4, 6), (1, 4), (4, 0)):
        weight[i, j] = -float(DENSE[i, j])
        dense[i, j] = -DENSE[i, j]
    assert carrier.version == 4
    if start == "primary":
        assert carrier.dirty_tiles == TileSet([(0, 0), (2, 2), (0, 1), (2, 0)])
    else:
        assert carrier.statistics().resident_tiles == 3
    carrier.evict(every_tile(carrier))
    assert carrier.primary_tiles == TileSet()
    assert torch.equal(values_of(weight), dense)
    carrier.promote(TileSet([(2, 2), (0, 1), (1, 1)]))
    assert set(CORNER.tile_set.coordinates) & set(carrier.primary_tiles.coordinates)
    picked = carrier.project(weight, CORNER).wait()
    assert type(picked.carrier) is type(carrier.primary)
    assert torch.equal(values_of(picked), region(dense, CORNER, TILE))
    carrier.flush()
    assert carrier.dirty_tiles == TileSet()
    carrier.release()
    assert carrier.primary.is_released()
    assert carrier.secondary.is_released()


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("reduction", ["replace", "add"])
def test_scatter_takes_a_compact_of_the_class_and_makes_a_carrier_of_it(name: str, reduction: str) -> None:
    make = CLASSES[name]
    carrier, weight = matrix(make(), full(CLASSES["runs"]), budget=96)
    given = torch.arange(12.0).reshape(3, 4)
    compact = on(make, given)
    with pytest.raises(TypeError, match="the compute carrier"):
        carrier.scatter(sw.from_torch(given), weight, CORNER)
    result = carrier.scatter(compact, weight, CORNER, reduction).wait()
    fresh = result.carrier
    assert isinstance(fresh, TiledEvictable)
    assert type(fresh.primary) is type(carrier.primary)
    assert (fresh.version, fresh.dirty_tiles) == (1, CORNER.tile_set)
    found = values_of(fresh.project(result, CORNER).wait())
    assert torch.equal(found, given + region(DENSE, CORNER, TILE) if reduction == "add" else given)
    assert not compact.carrier.is_owned()
    fresh.evict(CORNER)
    assert torch.equal(values_of(fresh.project(result, CORNER).wait()), found)
    fresh.release()
    carrier.release()


@given(st.sampled_from(sorted(CLASSES)), st.one_of(geometries(), ragged_geometries()), st.data())
def test_gradients_over_any_class_equal_those_of_dense_torch(name: str, drawn: Any, data: st.DataObject) -> None:
    geometry, make = drawn[0], CLASSES[name]
    assume(geometry.extent <= 120)
    flat = numbers(data.draw, [geometry.extent])
    is_full = data.draw(st.booleans())
    held = make(geometry.extent, DType.Float64)
    held._write_runs([(0, flat)])
    empty = make(0, DType.Float64)
    budget = None if is_full else data.draw(st.integers(1, geometry.tiles)) * geometry.tile_elems * 8
    carrier = TiledEvictable(
        *((held, empty) if is_full else (empty, held)),
        geometry.grid_shape,
        geometry.tile_shape,
        shape=geometry.logical_shape,
        layout=geometry.layout,
        budget=budget,
    )
    weight = Tensor(carrier, 0, geometry.layout, requires_grad=True)
    oracle = flat[torch.from_numpy(slot_table(geometry.layout))].requires_grad_()
    leaves: list[tuple[Tensor, torch.Tensor]] = []
    for _ in range(data.draw(st.integers(1, 2))):
        selection = data.draw(selections(carrier.grid_shape, carrier.statistics().slots))
        chosen = region(oracle, selection, carrier.tile_shape)
        if data.draw(st.booleans()):
            compact = carrier.project(weight, selection).wait(5)
        else:
            given = numbers(data.draw, list(chosen.shape))
            mine, theirs = on(make, given).requires_grad_(), given.clone().requires_grad_()
            leaves.append((mine, theirs))
            kind = data.draw(st.sampled_from(["replace", "add"]))
            result = carrier.scatter(mine, weight, selection, kind).wait(5)
            assert isinstance(result.carrier, TiledEvictable)
            compact = result.carrier.project(result, selection).wait(5)
            whole = put(
                torch.zeros_like(oracle.detach()),
                selection,
                carrier.tile_shape,
                theirs + chosen if kind == "add" else theirs,
            )
            chosen = region(whole, selection, carrier.tile_shape)
        assert torch.equal(values_of(compact), chosen.detach())
        cotangent = numbers(data.draw, list(chosen.shape))
        dense = on(make, cotangent)
        layout = dense_like(compact.shape, [compact.layout])
        if layout != dense.layout:
            ordered = make(cotangent.numel(), DType.Float64)
            span = torch.empty(cotangent.numel(), dtype=torch.float64)
            span.as_strided(cotangent.shape, [mode.leaves()[0][1] for mode in layout]).copy_(cotangent)
            ordered._write_runs([(0, span)])
            dense = Tensor(ordered, 0, layout)
        compact.backward(dense)
        chosen.backward(cotangent)
    for mine, theirs in leaves:
        assert theirs.grad is not None
        assert torch.equal(values_of(mine.grad), theirs.grad)
    if weight.grad is not None:
        assert isinstance(weight.grad.carrier, TiledEvictable)
        expected = torch.zeros_like(oracle) if oracle.grad is None else oracle.grad
        assert torch.equal(values_of(weight.grad), expected)
    assert carrier.statistics().pinned_tiles == 0
    carrier.release()


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda dtype: dtype.name)
def test_every_dtype_goes_through_a_primary_of_runs(dtype: Any) -> None:
    values = (torch.arange(35) % 2).to(dtype.torch_dtype)
    secondary = RUNS(35, dtype=dtype)
    secondary._write_runs([(0, values)])
    carrier, weight = matrix(RUNS(0, dtype=dtype), secondary, budget=6 * dtype.itemsize * 2)
    assert torch.equal(values_of(weight).reshape(-1).view(torch.uint8), values.view(torch.uint8))
    carrier[34] = 1
    carrier.evict(every_tile(carrier))
    assert carrier[34] == 1
    carrier.release()


def test_example_of_compressed_tiles_is_both_tiers() -> None:
    pytest.importorskip("zstandard")
    assert SPEC is not None
    assert SPEC.loader is not None
    module = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(module)
    zeros = module.ZstdTiles
    carrier, weight = matrix(zeros(0, dtype=DType.Float32), full(lambda n: zeros(n, dtype=DType.Float32)), budget=48)
    assert torch.equal(values_of(weight), DENSE)
    weight[4, 6] = -1.0
    carrier.evict(every_tile(carrier))
    assert carrier[34] == -1.0
    assert carrier.secondary[34] == -1.0
    carrier.release()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none")
def test_cuda_is_a_primary_whose_tiles_go_through_the_host() -> None:
    carrier, weight = matrix(sw.CUDA(0), full(CLASSES["runs"]), budget=48)
    weight.requires_grad_()
    picked = carrier.project(weight, CORNER).wait()
    assert isinstance(picked.carrier, sw.CUDA)
    sw.reduce_sum(picked * picked).backward()
    dense = DENSE.clone().requires_grad_()
    (region(dense, CORNER, TILE) ** 2).sum().backward()
    assert weight.grad is not None
    assert dense.grad is not None
    assert torch.equal(values_of(weight.grad).cpu(), dense.grad)
    result = carrier.scatter(picked.detach(), weight, CORNER, "add").wait()
    assert isinstance(result.carrier, TiledEvictable)
    again = values_of(result.carrier.project(result, CORNER).wait())
    assert torch.equal(again, 2 * region(DENSE, CORNER, TILE))
    carrier.release()


# -- slots and what they are made of ---------------------------------------------------------------------------------


def test_slots_are_runs_in_carriers_that_come_with_the_first_tile() -> None:
    made: list[int] = []
    plain = run_storage()

    def allocate(carrier: Any, n: int) -> None:
        made.append(n)
        plain.allocate(carrier, n)

    cls = defined(run_storage(allocate=allocate))
    count = 3 * _CARRIERS
    carrier = TiledEvictable(cls(0, dtype=DType.Float32), CPU.wrap(torch.arange(2.0 * count)), (count,), (2,))
    assert made == [0]
    carrier.promote(TileSet([(5,)]))
    assert made == [0, 6], "three slots of two values share a carrier, and no other one is made yet"
    carrier.promote(every_tile(carrier))
    assert len(made) == 1 + _CARRIERS
    assert [carrier[k] for k in range(0, 2 * count, 7)] == [float(k) for k in range(0, 2 * count, 7)]
    carrier.release()


def test_budget_of_a_primary_of_runs_holds() -> None:
    carrier, weight = matrix(LISTED(0, dtype=DType.Float32), full(CLASSES["runs"]), budget=50)
    assert carrier.statistics().slots == 2
    with pytest.raises(BudgetExceeded):
        carrier.promote(TileSet([(0, 0), (1, 1), (2, 2)]))
    assert torch.equal(values_of(weight), DENSE)
    assert carrier.statistics().resident_tiles <= 2
    carrier.release()


@pytest.mark.parametrize("name", CLASSES)
def test_borrow_and_stream_are_refused_and_name_project(name: str) -> None:
    carrier, _ = matrix(full(CLASSES[name]), CLASSES["runs"]())
    before = situation(carrier)
    for ask in (lambda: carrier.borrow(TileSet([(0, 0)])).__enter__(), lambda: carrier.stream(TileSet([(0, 0)]))):
        with pytest.raises(BufferError, match=r"values are not in addressable memory.*project\(\)"):
            ask()
    assert situation(carrier) == before
    carrier.release()


def test_our_carriers_that_only_store_are_no_primary() -> None:
    with pytest.raises(TypeError, match="not in memory, where kernels work"):
        TiledEvictable(FileBacked(), CPU(0), (2,), (2,))


def test_forked_child_reads_what_rests_and_leaves_the_parents_slots_alone() -> None:
    writes: list[int] = []
    plain = run_storage()

    def write_runs(carrier: Any, runs: Sequence[Any]) -> int:
        writes.append(id(carrier))
        assert plain.write_runs is not None
        return plain.write_runs(carrier, runs)

    cls = defined(run_storage(write_runs=write_runs))
    carrier = TiledEvictable(cls(0, dtype=DType.Float32), CPU.wrap(torch.arange(8.0)), (4,), (2,), budget=16)
    carrier.promote(TileSet([(0,), (1,)]))
    parents = set(writes)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        writes.clear()
        seen = [carrier[k] for k in range(8)], locations(carrier)[(0,)]
        carrier.promote(TileSet([(2,), (3,)]))
        os.write(writer, repr((*seen, parents.isdisjoint(writes), carrier[6])).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == repr(([float(k) for k in range(8)], "secondary", True, 6.0))
    assert os.waitpid(child, 0)[1] == 0
    assert locations(carrier)[(0,)] == "primary"
    carrier.release()


def test_forked_child_does_not_write_a_full_primary() -> None:
    carrier, _ = matrix(full(CLASSES["runs"]), CPU(0))
    carrier.evict(TileSet([(0, 0)]))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = [carrier[0], carrier[34]]
        try:
            carrier.promote(TileSet([(0, 0)]))
        except RuntimeError as e:
            said.append("in a child after fork" in str(e))
        os.write(writer, repr(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "[1.0, 35.0, True]"
    assert os.waitpid(child, 0)[1] == 0
    carrier.release()


# -- ownership -------------------------------------------------------------------------------------------------------


def test_tiers_and_a_pending_destination_are_owned_and_come_back() -> None:
    secondary = ScriptedCarrier(torch.arange(1.0, 36.0))
    primary = RUNS(0, dtype=DType.Float32)
    carrier, weight = matrix(primary, secondary, budget=24)
    assert primary.is_owned()
    assert secondary.is_owned()
    destination = RUNS(40, dtype=DType.Float32)
    with secondary.hold_read(1) as hold:
        handle = carrier.project(weight, CORNER, destination)
        hold.wait_until_reached()
        assert destination.is_owned()
        with pytest.raises(RuntimeError, match="owned"):
            destination[0] = 1.0
        with pytest.raises(RuntimeError, match="pending"):
            carrier.release()
    found = handle.wait()
    assert found.carrier is destination
    assert not destination.is_owned()
    assert destination.version == 1
    assert torch.equal(values_of(found), region(DENSE, CORNER, TILE))
    with pytest.raises(TypeError, match="exactly a Running"):
        carrier.project(weight, CORNER, CPU(0))
    carrier.release()
    assert not primary.is_owned()
    assert primary.is_released()


def test_full_primary_stands_as_it_is() -> None:
    primary = full(CLASSES["runs"])
    carrier, weight = matrix(primary, CPU(0))
    weight[0, 0] = -5.0
    assert primary[0] == -5.0
    carrier.evict(TileSet([(0, 0)]))
    primary.values[0] = 0.0
    carrier.promote(TileSet([(0, 0)]))
    assert primary[0] == -5.0
    carrier.release()


# -- faults by ordinal -----------------------------------------------------------------------------------------------


class Script:
    """The n-th call that a provider of the class gets from now on fails; a failing write has moved its first half."""

    def __init__(self) -> None:
        self.left = 0
        self.failed: str | None = None
        plain = run_storage()

        def counted(name: str, call: Any) -> Any:
            def run(carrier: Any, argument: Any) -> Any:
                self.left -= 1
                if self.left == 0:
                    self.failed = name
                    if name == "write_runs":
                        start, source = argument[0]
                        call(carrier, [(start, source[: source.numel() // 2])])
                    raise OSError(f"the {name} that was to fail has failed")
                return call(carrier, argument)

            return run

        self.cls = defined(
            run_storage(
                **{name: counted(name, getattr(plain, name)) for name in ("allocate", "read_runs", "write_runs")}
            ),
            name="Failing",
        )

    def make(self, n: int = 0, dtype: Any = DType.Float32) -> Any:
        return self.cls(n, dtype=dtype)


def promotes(carrier: TiledEvictable, weight: Tensor, script: Script) -> Any:
    return carrier.promote(TileSet([(1, 1), (2, 2)]))


def evicts(carrier: TiledEvictable, weight: Tensor, script: Script) -> Any:
    return carrier.evict(TileSet([(0, 0), (0, 1)]))


def flushes(carrier: TiledEvictable, weight: Tensor, script: Script) -> Any:
    return carrier.flush()


def projects(carrier: TiledEvictable, weight: Tensor, script: Script) -> Any:
    return carrier.project(weight, CORNER).wait(5)


def scatters(carrier: TiledEvictable, weight: Tensor, script: Script) -> Any:
    return carrier.scatter(script.compact, weight, CORNER, "add").wait(5)  # type: ignore[attr-defined]


def fills(carrier: TiledEvictable, weight: Tensor, script: Script) -> Any:
    return carrier.project(weight, CORNER, script.empty).wait(5)  # type: ignore[attr-defined]


def projects_into(carrier: TiledEvictable, weight: Tensor, script: Script) -> Any:
    return carrier.project(weight, CORNER, script.destination).wait(5)  # type: ignore[attr-defined]


ALL, READS, WRITES = {"allocate", "read_runs", "write_runs"}, {"read_runs"}, {"write_runs"}
CALLS: dict[Any, dict[str, set[str]]] = {
    promotes: {"primary": ALL - READS, "secondary": READS, "both": ALL},
    evicts: {"primary": READS, "secondary": WRITES, "both": READS | WRITES},
    flushes: {"primary": READS, "secondary": WRITES, "both": READS | WRITES},
    projects: {"primary": ALL, "secondary": READS, "both": ALL},
    fills: {"primary": ALL, "secondary": READS, "both": ALL},
    projects_into: {"primary": ALL, "secondary": READS, "both": ALL},
    scatters: {"primary": ALL, "secondary": ALL - WRITES, "both": ALL},  # the fresh tier has no slots, but is made
}
"""What a request asks of the failing tiers, so that every one of these calls was the failing one once."""


def state(carrier: TiledEvictable) -> Situation:
    """What a failed request must leave as it was; what it has read or written on the way is not a part of it."""
    seen = situation(carrier)
    kept = replace(
        seen.statistics, hits=0, misses=0, evictions=0, bytes_read=0, bytes_written=0, resident_tiles=0, stall_s=0.0
    )
    return replace(seen, statistics=kept)


@pytest.mark.parametrize("role", ["primary", "secondary", "both"])
@pytest.mark.parametrize("request_", [promotes, evicts, flushes, projects, fills, projects_into, scatters])
def test_fault_at_every_call_leaves_values_and_owners_as_they_were(request_: Any, role: str) -> None:
    seen: set[str | None] = set()
    for nth in range(1, 200):
        script = Script()
        failing, plain = script.make, CLASSES["runs"]
        one = failing if role != "secondary" else plain
        other = failing if role != "primary" else plain
        carrier, weight = matrix(one(), full(other), budget=24 * 5)
        dense = DENSE.clone()
        for i, j in ((0, 0), (0, 3)):
            weight[i, j] = -1.0
            dense[i, j] = -1.0
        given = torch.arange(12.0).reshape(3, 4)
        script.compact = on(one, given)  # type: ignore[attr-defined]
        script.destination = one(20)  # type: ignore[attr-defined]
        script.destination._write_runs([(0, torch.full((20,), 7.0))])  # type: ignore[attr-defined]
        script.empty = one()  # type: ignore[attr-defined]
        compute = script.compact.carrier, script.destination, script.empty  # type: ignore[attr-defined]
        before = state(carrier)
        script.left = nth
        try:
            request_(carrier, weight, script)
        except OSError:
            assert script.failed is not None
        else:
            assert script.failed is None
        script.left = 0
        if script.failed is None:
            break
        seen.add(script.failed)
        if request_ in (promotes, evicts, flushes):
            assert state(carrier) == before, (nth, script.failed)
        assert carrier.dirty_tiles == TileSet([(0, 0), (0, 1)])
        assert carrier.version == 2
        assert not any(c.is_owned() for c in compute)
        assert script.destination.values.tolist() == [7.0] * 20  # type: ignore[attr-defined]
        assert script.empty.size() == 0  # type: ignore[attr-defined]
        assert carrier.statistics().pinned_tiles == 0
        assert [carrier[k] for k in range(35)] == dense.reshape(-1).tolist()
        result = request_(carrier, weight, script)
        if request_ in (projects, fills, projects_into):
            assert torch.equal(values_of(result), region(dense, CORNER, TILE))
        if request_ is scatters:
            found = values_of(result.carrier.project(result, CORNER).wait())
            assert torch.equal(found, region(dense, CORNER, TILE) + given)
        assert torch.equal(values_of(weight), dense)
        carrier.release()
    else:
        pytest.fail("it never got through")
    assert seen == CALLS[request_][role]


def test_write_that_fails_for_an_element_changes_nothing() -> None:
    script = Script()
    carrier, weight = matrix(script.make(), full(CLASSES["runs"]), budget=24)
    carrier.promote(TileSet([(0, 0)]))
    script.left = 1
    with pytest.raises(OSError, match="write_runs that was to fail"):
        weight[0, 0] = -1.0
    assert (carrier[0], carrier.version, carrier.dirty_tiles) == (1.0, 0, TileSet())
    carrier.release()


def test_carrier_that_moves_less_than_it_was_asked_is_noticed() -> None:
    def read_runs(carrier: Any, runs: Sequence[Any]) -> int:
        return sum(out.nbytes for _, out in runs) - 4

    cls = defined(run_storage(read_runs=read_runs), name="Short")
    carrier, weight = matrix(cls(0, dtype=DType.Float32), full(CLASSES["runs"]), budget=24)
    carrier.promote(TileSet([(0, 0)]))
    with pytest.raises(RuntimeError, match="Short read 20 of 24 bytes"):
        carrier.project(weight, TileSelection([[0], [0]])).wait()
    carrier.release()
