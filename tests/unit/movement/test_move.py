"""Movement between ordinary carriers: values against torch, what may be refused, and who owns what meanwhile."""

from __future__ import annotations

import gc
import operator
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strideweave import CPU, Carrier, CheckpointFile, DType, FileBacked, Layout, Shape, Stride, Tensor, TiledEvictable
from strideweave.carriers import AwaitMove, AwaitResult, Generic, Piece, routes
from strideweave.carriers.carrier import Run
from strideweave.carriers.file_backed import read_all
from strideweave.carriers.move import move, move_async
from strideweave.dtype import StorageDType
from strideweave.io import SourceFile
from strideweave.tensor import from_torch
from support.scripted_carrier import PATIENCE_S, ScriptedCarrier

Make = Callable[[torch.Tensor], Carrier]


def in_file(values: torch.Tensor) -> FileBacked:
    carrier = FileBacked(size=values.numel(), dtype=DType.from_torch(values.dtype))
    if values.numel():
        carrier._write_runs([(0, values)])
    return carrier


KINDS: dict[str, Make] = {
    "cpu": lambda values: CPU.wrap(values.clone()),
    "file": in_file,
    "generic": lambda values: Generic(values.tolist(), dtype=DType.from_torch(values.dtype)),
    "scripted": ScriptedCarrier,
}
EVERY_KIND = sorted(KINDS)
LAYOUTS = [
    Layout.row_major(3, 4),
    Layout.column_major(3, 4),
    Layout(Shape((2, 3), 4), Stride((1, 8), 2)),
    Layout(Shape(3, 4), Stride(0, 2)),  # broadcast, with gaps
    Layout(Shape(5), Stride(0)),
]


def bits(values: torch.Tensor) -> list[int]:
    flat: list[int] = values.contiguous().reshape(-1).view(torch.uint8).tolist()
    return flat


def strided(flat: torch.Tensor, layout: Layout, offset: int = 0) -> torch.Tensor:
    """What torch sees there; only slots within the cosize count."""
    leaves = layout.leaves()
    return torch.as_strided(flat, [n for n, _ in leaves], [d for _, d in leaves], offset)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("into", EVERY_KIND)
@pytest.mark.parametrize("out_of", EVERY_KIND)
def test_move_carries_the_values_of_the_layout(
    out_of: str, into: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "RUN_NBYTES", 12)  # three values a run, so that there are many and a shorter last one
    values = torch.randn(3 + layout.cosize + 2)
    source, destination = KINDS[out_of](values), KINDS[into](torch.empty(0))
    moved = move(Tensor(source, 3, layout), destination)
    assert moved.carrier is destination
    assert (moved.offset, moved.layout) == (0, layout)
    assert destination.size() == layout.cosize
    assert bits(strided(read_all(destination), layout)) == bits(strided(values, layout, 3))
    assert (source.is_released(), destination.is_released()) == (True, False)
    assert not source.is_owned()
    assert not destination.is_owned()
    assert (destination.is_mutable(), destination.version) == (True, 1)


@pytest.mark.parametrize("into", EVERY_KIND)
@pytest.mark.parametrize("out_of", EVERY_KIND)
def test_move_into_a_larger_carrier_touches_cosize_slots_only(out_of: str, into: str) -> None:
    values, before = torch.randn(12), torch.full((9,), -1.0)
    destination = KINDS[into](before)
    moved = move(Tensor(KINDS[out_of](values), 4, Layout(Shape(2, 3), Stride(3, 1))), destination)
    assert read_all(destination).tolist() == values[4:10].tolist() + [-1.0] * 3
    assert destination.version == 1
    assert [moved[i, j] for i in range(2) for j in range(3)] == values[4:10].tolist()


@pytest.mark.parametrize("dtype", DType.registered(), ids=lambda d: d.name)
@pytest.mark.parametrize(("out_of", "into"), [("cpu", "file"), ("file", "cpu"), ("generic", "file"), ("file", "file")])
def test_move_of_every_dtype_keeps_every_bit(dtype: StorageDType, out_of: str, into: str) -> None:
    values = torch.tensor([0, 1, 1, 0, 1, 0], dtype=dtype.torch_dtype)
    moved = move(Tensor(KINDS[out_of](values), 1, Layout.row_major(5)), KINDS[into](values[:0]))
    assert moved.dtype() is dtype
    assert bits(read_all(moved.carrier)) == bits(values[1:])


@given(st.binary(min_size=4, max_size=40), st.integers(1, 11))
def test_move_through_files_and_memory_keeps_raw_bits(raw: bytes, run_nbytes: int) -> None:
    values = torch.frombuffer(bytearray(raw[: len(raw) // 4 * 4]), dtype=torch.float32)
    expected = bits(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "RUN_NBYTES", run_nbytes)  # fewer bytes than a value has still move one
        tensor = from_torch(values)
        for destination in (FileBacked(), FileBacked(), CPU(0), CPU(0)):
            tensor = move(tensor, destination)
    assert bits(tensor.torch()) == expected


def test_move_of_a_checkpoint_reads_it_and_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "two.bin"
    values = torch.randn(6)
    path.write_bytes(b"head" + values[:2].numpy().tobytes() + b"gap!" + values[2:].numpy().tobytes())
    file = SourceFile(path)
    source = CheckpointFile([Piece(file, 4, 8), Piece(file, 16, 16)], dtype=DType.Float32)
    before = path.read_bytes()
    moved = move(Tensor(source, 0, Layout.row_major(2, 3)), CPU(0))
    assert torch.equal(moved.torch(), values.reshape(2, 3))
    assert source.is_released()
    assert path.read_bytes() == before


def test_move_of_an_immutable_tensor_makes_a_mutable_one() -> None:
    moved = move(Tensor(CPU.wrap(torch.ones(2), mutable=False), 0, Layout.row_major(2)), CPU(0))
    moved[0] = 5.0
    assert moved.torch().tolist() == [5.0, 1.0]


def test_move_into_a_named_file_writes_from_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    values = torch.arange(5, dtype=torch.int16)
    move(from_torch(values.clone()), FileBacked(path, dtype=DType.Int16, offset_nbytes=6)).carrier.release()
    assert path.read_bytes() == bytes(6) + values.numpy().tobytes()


@pytest.mark.parametrize("into", ["cpu", "scripted"])
def test_move_of_megabytes_takes_a_few_runs(into: str) -> None:
    count = 10 * 2**18 + 3  # ten MiB and a little
    source, destination = ScriptedCarrier(torch.arange(float(count))), KINDS[into](torch.empty(0))
    moved = move(Tensor(source, 0, Layout.row_major(count)), destination)
    assert source.reads == 3
    assert torch.equal(read_all(moved.carrier), torch.arange(float(count)))
    if isinstance(destination, ScriptedCarrier):
        assert destination.writes == 3


class Watched(ScriptedCarrier):
    """Remembers where the memory lies that runs read into or write from."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__(values)
        self.addresses: list[int] = []

    def _read_runs(self, runs: Sequence[Run]) -> int:
        self.addresses += [memory.data_ptr() for _, memory in runs]
        return super()._read_runs(runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        self.addresses += [memory.data_ptr() for _, memory in runs]
        return super()._write_runs(runs)


def test_move_reads_and_writes_torch_memory_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "RUN_NBYTES", 8)
    source, memory = Watched(torch.arange(4.0)), CPU(4)
    middle = move(Tensor(source, 0, Layout.row_major(4)), memory)
    assert source.addresses == [memory.pointer(), memory.pointer() + 8]
    at, destination = memory.pointer(), Watched(torch.empty(0))
    move(middle, destination)
    assert destination.addresses == [at, at + 8]


def test_move_from_file_to_file_has_one_bounce_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "RUN_NBYTES", 8)
    source, destination = Watched(torch.arange(6.0)), Watched(torch.empty(0))
    move(Tensor(source, 0, Layout.row_major(6)), destination)
    assert source.addresses == destination.addresses
    assert len(source.addresses) == 3
    assert len(set(source.addresses)) == 1


@pytest.mark.parametrize("out_of", EVERY_KIND)
def test_move_into_memory_of_inference_mode_works(out_of: str) -> None:
    values = torch.randn(4)
    with torch.inference_mode():
        destination = CPU(4)
        moved = move(Tensor(KINDS[out_of](values), 0, Layout.row_major(4)), destination)
    assert moved.torch().tolist() == values.tolist()


# -- what is refused -------------------------------------------------------------------------------------------------


def one(carrier: Carrier | None = None) -> Tensor:
    return Tensor(carrier or CPU.wrap(torch.arange(4.0)), 0, Layout.row_major(4))


def released(tensor: Tensor) -> Tensor:
    tensor.carrier.release()
    return tensor


def owned(tensor: Tensor) -> Tensor:
    tensor.carrier._claim_ownership()
    return tensor


def own_carrier() -> tuple[Tensor, Carrier]:
    tensor = one(CPU.wrap(torch.arange(4.0), mutable=False))
    return tensor, tensor.carrier


def tiled() -> TiledEvictable:
    return TiledEvictable(CPU(0), FileBacked(size=2), (2,), (1,))


def whole(carrier: TiledEvictable) -> Tensor:
    return Tensor(carrier, 0, Layout.row_major(2))


# Each case breaks its own rule and, where it can, the ones after it: the first in the order of the contract is told.
REFUSALS: dict[str, tuple[Callable[[], tuple[object, object]], type[Exception], str]] = {
    "a list": (lambda: ([1.0], None), TypeError, "tensor must be a Tensor"),
    "a handle": (lambda: (AwaitResult._pending("x"), CPU(0)), TypeError, "tensor must be a Tensor"),
    "a torch tensor": (lambda: (torch.ones(2), CPU(0)), TypeError, "tensor must be a Tensor"),
    "a released source": (lambda: (released(one()), None), RuntimeError, "tensor carrier is released"),
    "an owned source": (lambda: (owned(one()), None), RuntimeError, "owned"),
    "no carrier": (lambda: (one(), torch.empty(4)), TypeError, "Carrier instance"),
    "a carrier class": (lambda: (one(), CPU), TypeError, "Carrier instance"),
    "its own carrier": (own_carrier, ValueError, "own carrier"),
    "a released destination": (
        lambda: (one(), released(one(CPU(4))).carrier),
        RuntimeError,
        "destination carrier is released",
    ),
    "an owned destination": (
        lambda: (one(), owned(Tensor(CPU(1, dtype=DType.Int8), 0, Layout.row_major(1))).carrier),
        RuntimeError,
        "must be mutable",
    ),
    "an immutable destination": (
        lambda: (one(), CPU(1, dtype=DType.Int8, mutable=False)),
        RuntimeError,
        "must be mutable",
    ),
    "another dtype": (lambda: (one(), CPU(1, dtype=DType.Int32)), TypeError, "dtype must match"),
    "another dtype, tiled": (
        lambda: (one(CPU(4, dtype=DType.Int8)), tiled()),
        TypeError,
        "dtype must match",
    ),
    "out of a tiled carrier": (
        lambda: (whole(tiled()), CPU(1)),
        NotImplementedError,
        r"\(TiledEvictable, CPU\)",
    ),
    "into a tiled carrier": (
        lambda: (one(), tiled()),
        NotImplementedError,
        r"\(CPU, TiledEvictable\)",
    ),
    "too small": (lambda: (one(), CPU(3)), ValueError, "too small.* 4 slots"),
}


def facts(thing: object) -> object:
    carrier = thing.carrier if isinstance(thing, Tensor) else thing
    if not isinstance(carrier, Carrier):
        return None
    return carrier.size(), carrier.version, carrier.is_owned(), carrier.is_released(), carrier.is_mutable()


@pytest.mark.parametrize("request_with", [move, move_async])
@pytest.mark.parametrize("case", REFUSALS)
def test_move_of_a_refused_pair_raises_at_once_and_changes_nothing(
    case: str, request_with: Callable[[object, object], object]
) -> None:
    make, error, words = REFUSALS[case]
    tensor, destination = make()
    before = facts(tensor), facts(destination)
    with pytest.raises(error, match=words) as caught:
        request_with(tensor, destination)
    assert type(caught.value) is error
    assert (facts(tensor), facts(destination)) == before


# -- the handle, and ownership while it is pending -------------------------------------------------------------------


def test_move_handle_cannot_be_constructed_and_is_no_awaitable() -> None:
    with pytest.raises(TypeError, match="created by the framework"):
        AwaitMove()
    assert not hasattr(AwaitMove, "__await__")
    assert issubclass(AwaitMove, AwaitResult)


def test_move_async_gives_one_tensor_to_every_waiter() -> None:
    source = ScriptedCarrier(torch.arange(4.0))
    seen: list[Tensor] = []
    with source.hold_read() as hold:
        handle = move_async(one(source), CPU(0))
        hold.wait_until_reached()
        assert not handle.done
        with pytest.raises(TimeoutError, match="move of"):
            handle.wait(0.01)
        threads = [threading.Thread(target=lambda: seen.append(handle.wait(PATIENCE_S))) for _ in range(3)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert handle.done
    assert [tensor is handle.wait() for tensor in seen] == [True] * 3
    assert type(handle) is AwaitMove


@pytest.mark.parametrize("into", EVERY_KIND)
def test_move_owns_both_carriers_until_it_ends(into: str) -> None:
    source, destination = ScriptedCarrier(torch.arange(4.0)), KINDS[into](torch.full((4,), -1.0))
    tensor = one(source)
    with source.hold_read() as hold:
        handle = move_async(tensor, destination)
        hold.wait_until_reached()
        for carrier in (source, destination):
            assert carrier.is_owned()
            assert not carrier.is_mutable()
            assert not carrier.is_released()
            for request in (
                lambda c=carrier: operator.setitem(c, 0, 9.0),
                carrier.release,
                lambda c=carrier: move_async(one(c), CPU(0)),
            ):
                with pytest.raises(RuntimeError, match="owned"):
                    request()
        with pytest.raises(RuntimeError, match="must be mutable"):
            move_async(one(), destination)
        assert [tensor[k] for k in range(4)] == [0.0, 1.0, 2.0, 3.0]  # readers go on
    moved = handle.wait(PATIENCE_S)
    assert read_all(destination).tolist() == [0.0, 1.0, 2.0, 3.0]
    moved[0] = 7.0
    assert (destination[0], destination.version) == (7.0, 2)
    assert source.is_released()
    with pytest.raises(RuntimeError, match="tensor carrier is released"):
        move_async(tensor, CPU(0))


def test_move_succeeds_in_the_order_of_the_contract() -> None:
    class Ending(ScriptedCarrier):
        seen: tuple[object, ...] = ()

        def _free(self) -> None:
            self.seen = (read_all(destination).tolist(), self.is_owned(), destination.is_owned(), handles[0].done)
            super()._free()

    source, destination = Ending(torch.arange(4.0)), CPU(0)
    handles: list[AwaitMove[Tensor]] = []
    with source.hold_read():
        handles.append(move_async(one(source), destination))
    handles[0].wait(PATIENCE_S)
    assert source.seen == ([0.0, 1.0, 2.0, 3.0], True, True, False)
    assert (source.is_released(), source.is_owned(), destination.is_owned()) == (True, False, False)


def test_move_whose_handle_is_dropped_goes_on() -> None:
    source, destination = ScriptedCarrier(torch.arange(4.0)), CPU(0)
    with source.hold_read() as hold:
        handle = move_async(one(source), destination)
        hold.wait_until_reached()
        gone = weakref.ref(handle)
        del handle
        gc.collect()
        assert gone() is None
        assert source.is_owned()
    deadline = time.monotonic() + PATIENCE_S
    while source.is_owned() or destination.is_owned():
        assert time.monotonic() < deadline, "the dropped move never ended"
        time.sleep(0.001)
    assert source.is_released()
    assert read_all(destination).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_move_async_copies_on_a_lane() -> None:
    names: list[str] = []

    class Named(ScriptedCarrier):
        def _read_runs(self, runs):  # type: ignore[no-untyped-def]
            names.append(threading.current_thread().name)
            return super()._read_runs(runs)

    move(one(Named(torch.arange(4.0))), FileBacked())
    assert names
    assert all(name.startswith("strideweave-lane-") for name in names)


def test_move_releases_an_anonymous_file() -> None:
    source = in_file(torch.arange(4.0))
    path = Path(source.path)
    assert path.exists()
    assert move(one(source), CPU(0)).torch().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not path.exists()


def test_move_of_many_tensors_at_once_mixes_none() -> None:
    values = [torch.full((1000,), float(k)) for k in range(16)]
    handles = [move_async(from_torch(v.clone()), FileBacked()) for v in values]
    back = [move_async(handle.wait(PATIENCE_S), CPU(0)) for handle in handles]
    for expected, handle in zip(values, back, strict=True):
        assert torch.equal(handle.wait(PATIENCE_S).torch(), expected)
