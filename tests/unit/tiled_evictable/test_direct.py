"""Direct operations whose compute carrier is not the host's memory: Generic, a device, a class of somebody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch

import strideweave as sw
from strideweave import CPU, DType, Generic, Layout, Tensor, TiledEvictable, TileSet
from strideweave.carriers.carrier import Run
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import StorageDType
from strideweave.operation.execution import register_executor
from strideweave.operation.torch_executor import TorchExecutor
from support.defined import by_reference, computing, kernel, run_storage
from support.direct import (
    CALLS,
    OTHER,
    RIGHT,
    SHEET,
    Call,
    Recorded,
    cotangent_of,
    oracle_gradients,
    sheet,
)
from support.tiled import every_tile, situation


class Device(TorchStorage):
    """Torch storage that views of the host do not reach, with torch's kernels."""

    device_type: ClassVar[str] = "cpu"
    _device_words: ClassVar[str] = "a device"

    @classmethod
    def _require_device(cls, device: torch.device | str | int | None) -> torch.device:
        return torch.device(cls.device_type)

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> TorchStorage:
        return type(self)(size, mutable=mutable, dtype=dtype or self._dtype, empty=empty)


class Shapes(Device):
    """Another device in earnest: torch refuses to compute with what is on it and what is on the host."""

    device_type: ClassVar[str] = "meta"

    def _read_runs(self, runs: Sequence[Run]) -> int:
        for _, out in runs:
            out.zero_()
        return sum(out.nbytes for _, out in runs)


register_executor(Device, TorchExecutor())
register_executor(Shapes, TorchExecutor())

Make = Callable[..., Any]
COMPUTE: dict[str, Make] = {
    "generic": lambda n=0, dtype=DType.Float32: Generic([0] * n, dtype=dtype),
    "device": lambda n=0, dtype=DType.Float32: Device(n, dtype=dtype),
}


def only_shapes(n: int = 0, dtype: StorageDType = DType.Float32) -> Shapes:
    return Shapes(n, dtype=dtype)


def tiled_on(make: Make, *, tiles: int | None = 2, values: torch.Tensor = SHEET) -> tuple[TiledEvictable, Tensor]:
    """The matrix in 2 x 3 tiles, all in secondary, whose primary is of that class."""
    rows, columns = values.shape
    layout = Layout.row_major(rows, columns)
    carrier = TiledEvictable(
        make(0, sw.DType.from_torch(values.dtype)),
        CPU.wrap(values.reshape(-1).clone()),
        (rows // 2, columns // 3),
        (2, 3),
        layout=layout,
        budget=None if tiles is None else tiles * 6 * values.itemsize,
    )
    return carrier, Tensor(carrier, 0, layout)


def on(make: Make, values: torch.Tensor) -> Tensor:
    """The values on a carrier of the class, row-major."""
    carrier = make(values.numel(), sw.DType.from_torch(values.dtype))
    carrier._write_runs([(0, values.reshape(-1).contiguous())])
    return Tensor(carrier, 0, Layout.row_major(*values.shape))


def dense(tensor: Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.materialize().torch()


@pytest.mark.parametrize("tiles", [None, 1], ids=["every tile fits", "one tile"])
@pytest.mark.parametrize("name", COMPUTE)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_direct_result_and_gradients_are_on_the_compute_carrier(call: Call, name: str, tiles: int | None) -> None:
    make = COMPUTE[name]
    carrier, x = tiled_on(make, tiles=tiles)
    x.requires_grad_()
    others = [on(make, values).requires_grad_() for values in call.others]
    result = call.run(x, *others)
    assert type(result.carrier) is type(carrier.primary)
    assert torch.equal(dense(result.detach()), call.expected())
    drawn = cotangent_of(result)
    cotangent = Tensor(make(result.layout.cosize), 0, result.layout)
    flat = torch.empty(result.layout.cosize)
    flat.as_strided([n for n, _ in result.layout.leaves()], [d for _, d in result.layout.leaves()]).copy_(drawn)
    cotangent.carrier._write_runs([(0, flat)])
    result.backward(cotangent)
    wanted = oracle_gradients(call, SHEET, drawn)
    assert x.grad is not None
    assert isinstance(x.grad.carrier, TiledEvictable)
    assert type(x.grad.carrier.primary) is type(carrier.primary)
    for leaf, gradient in zip((x, *others), wanted, strict=True):
        assert torch.equal(dense(leaf.grad), gradient)
    assert all(type(other.grad.carrier) is type(carrier.primary) for other in others if other.grad is not None)
    assert carrier.statistics().pinned_tiles == 0
    carrier.release()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.float64], ids=str)
@pytest.mark.parametrize("name", COMPUTE)
def test_direct_result_of_a_dtype_is_that_of_the_compute_carrier(name: str, dtype: torch.dtype) -> None:
    make = COMPUTE[name]
    carrier, x = tiled_on(make, values=SHEET.to(dtype))
    whole = on(make, SHEET.to(dtype))
    for run in (
        lambda t: sw.mul(t, t),
        sw.relu,
        lambda t: sw.reduce_sum(t, axis=1),
        lambda t: t @ on(make, RIGHT.to(dtype)),
    ):
        mine, theirs = run(x), run(whole)
        assert mine.dtype() is theirs.dtype()
        assert mine.layout == theirs.layout
        assert torch.equal(dense(mine), dense(theirs))
    carrier.release()


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_direct_operation_computes_on_the_device_of_its_compute_carrier(call: Call) -> None:
    carrier, x = tiled_on(only_shapes, tiles=1)
    others = [on(only_shapes, values) for values in call.others]
    result = call.run(x, *others)
    assert isinstance(result.carrier, Shapes)
    assert result.carrier._flat().device.type == "meta"
    carrier.release()


def test_direct_operation_on_a_device_streams_through_its_budget() -> None:
    make = COMPUTE["device"]
    carrier, x = tiled_on(make, tiles=1)
    assert torch.equal(dense(sw.relu(x)), SHEET.relu())
    assert carrier.statistics().resident_tiles == 1
    assert carrier.statistics().bytes_read == SHEET.nbytes
    carrier.release()


def test_direct_operation_runs_the_kernels_of_a_defined_compute_carrier() -> None:
    plan = sw.operation.find("add").resolve_call(sw.from_torch(SHEET), sw.from_torch(SHEET)).plan
    ran: list[str] = []

    def run(invocation: Any) -> Any:
        ran.append(invocation.name)
        return by_reference(invocation)

    cls = computing([kernel([plan], "theirs", run)], run_storage())
    carrier, x = tiled_on(lambda n=0, dtype=DType.Float32: cls(n, dtype=dtype))
    result = sw.add(x, on(lambda n, dtype: cls(n, dtype=dtype), OTHER))
    assert type(result.carrier) is cls
    assert ran == ["add"]
    assert torch.equal(dense(result), SHEET + OTHER)
    before = situation(carrier)
    with pytest.raises(NotImplementedError, match=f"its tiles are computed on {cls.__name__}, which does not: .*relu"):
        sw.relu(x)
    assert situation(carrier) == before
    carrier.release()


def test_compute_carrier_that_takes_less_than_the_dense_copy_is_noticed() -> None:
    plain, is_short = run_storage(), False

    def write_runs(carrier: Any, runs: Sequence[Run]) -> int:
        assert plain.write_runs is not None
        return plain.write_runs(carrier, runs) - 4 * is_short

    plan = sw.operation.find("relu").resolve_call(sw.from_torch(SHEET)).plan
    cls = computing([kernel([plan], "theirs")], run_storage(write_runs=write_runs))
    carrier, x = tiled_on(lambda n=0, dtype=DType.Float32: cls(n, dtype=dtype), tiles=None)
    carrier.promote(every_tile(carrier))
    before = situation(carrier)
    is_short = True
    with pytest.raises(OSError, match="cannot write 96 bytes"):
        sw.relu(x)
    is_short = False
    after = situation(carrier)
    assert (after.states, after.owned, after.statistics.pinned_tiles) == (before.states, before.owned, 0)
    assert torch.equal(dense(sw.relu(x)), SHEET.relu())
    carrier.release()


def test_values_that_a_compute_carrier_shows_and_those_it_moves_give_the_same_bits() -> None:
    drawn = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    right = torch.randn(6, 3, generator=torch.Generator().manual_seed(4))
    kept, x = tiled_on(COMPUTE["device"], values=drawn)
    host, y = tiled_on(lambda n=0, dtype=DType.Float32: CPU(n, dtype=dtype), values=drawn)
    assert torch.equal(dense(x @ on(COMPUTE["device"], right)), dense(y @ sw.from_torch(right)))
    assert torch.equal(dense(sw.reduce_sum(x)), dense(sw.reduce_sum(y)))
    kept.release()
    host.release()


# -- what is in the way is found before anything moves ----------------------------------------------------------------


def test_backward_finds_a_conflict_of_any_operand_before_it_moves_a_tile_of_another() -> None:
    policy = Recorded(lambda required: sw.ResidencyPlan(promote=required))
    first, x, _ = sheet(residency_policy=policy)
    second, y, reads = sheet(OTHER)
    result = sw.elementwise_mul(x.requires_grad_(), y.requires_grad_())
    first.evict(every_tile(first))
    second.evict(every_tile(second))
    policy.asked.clear()
    before = situation(first)
    hold = reads.script.hold("read")
    pending = second.promote_async(TileSet([(1, 1)]))
    hold.wait_until_reached()
    try:
        with pytest.raises(RuntimeError, match="backward of elementwise_mul"):
            result.backward(sw.from_torch(torch.ones(4, 6)))
    finally:
        hold.let_go()
    pending.wait()
    assert situation(first) == before
    assert policy.asked == []
    assert x.grad is None
    assert y.grad is None
    first.release()
    second.release()


# -- gradients are those of the compute carrier -----------------------------------------------------------------------

FLOATS = [dtype for dtype in DType.registered() if dtype.is_floating]
HARD = torch.tensor([[0.0, -0.0, torch.nan, 1.5, -2.0, 0.5], [3.0, torch.nan, -1.0, 0.25, -0.5, 2.0]]).repeat(2, 1)
RUNS_OF: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": sw.relu,
    "mul by a scalar": lambda x: sw.mul(x, 2.5),
    "mul of a scalar": lambda x: sw.mul(3, x),
    "mul by a NaN": lambda x: sw.mul(x, torch.nan),
    "add to a wider one": lambda x: sw.add(x, sw.from_torch(OTHER)),
    "mul with a wider one": lambda x: sw.mul(sw.from_torch(OTHER), x),
    "mul with itself": lambda x: sw.mul(x, x),
    "matmul with a wider one": lambda x: sw.matmul(x, sw.from_torch(RIGHT)),
}


@pytest.mark.parametrize("run", RUNS_OF.values(), ids=RUNS_OF.keys())
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_gradient_of_every_float_has_the_bits_of_the_compute_carriers(
    dtype: StorageDType, run: Callable[[Tensor], Tensor]
) -> None:
    held = HARD.to(dtype.torch_dtype)
    carrier, x = tiled_on(lambda n=0, dtype=DType.Float32: CPU(n, dtype=dtype), tiles=1, values=held)
    whole = sw.from_torch(held.clone())
    gradients = []
    for leaf in (x.requires_grad_(), whole.requires_grad_()):
        result = run(leaf)
        shown = cotangent_of(result).to(result.dtype().torch_dtype)
        result.backward(sw.from_torch(shown))
        gradients.append(dense(leaf.grad))
    mine, theirs = gradients
    assert mine.dtype == theirs.dtype
    assert torch.equal(mine.float().isnan(), theirs.float().isnan())
    assert torch.equal(mine.double().nan_to_num(7.0), theirs.double().nan_to_num(7.0))
    carrier.release()
