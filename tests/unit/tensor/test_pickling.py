"""Pickled and deep copies: values and sharing survive, files are opened again, and the rest is refused."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from strideweave import (
    CPU,
    CheckpointFile,
    DType,
    FileBacked,
    Generic,
    Layout,
    Piece,
    Shape,
    Stride,
    Tensor,
    TiledEvictable,
    from_torch,
)
from strideweave.carriers.carrier import Carrier
from strideweave.dtype import StorageDType
from strideweave.io import ChangedFileError, SourceFile

NESTED = Layout(Shape((2, 3), 4), Stride((1, 8), 2))


def again(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


def listed(carrier: Carrier) -> list[Any]:
    return [carrier[k] for k in range(carrier.size())]


# -- in memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DType.registered(), ids=repr)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickled_tensor_of_every_dtype_keeps_bits_layout_and_offset(dtype: StorageDType, protocol: int) -> None:
    octets = torch.arange(30 * dtype.itemsize).to(torch.uint8)
    if dtype is DType.Bool:
        octets %= 2
    carrier = CPU.wrap(octets.view(dtype.torch_dtype))
    made = again(Tensor(carrier, 3, NESTED), protocol)
    assert (made.layout, made.offset, made.dtype(), type(made.carrier)) == (NESTED, 3, dtype, CPU)
    expected = octets.clone()
    octets.zero_()
    assert torch.equal(made.carrier._flat().view(torch.uint8), expected)


def test_pickled_views_of_one_carrier_share_one_again() -> None:
    whole = from_torch(torch.arange(6.0).reshape(2, 3))
    row = Tensor(whole.carrier, 3, Layout.column_major(3))
    for first, second in (again([whole, row]), copy.deepcopy([whole, row])):
        assert first.carrier is second.carrier is not whole.carrier
        second[0] = -1.0
        assert (first[1, 0], whole[1, 0]) == (-1.0, 3.0)


def test_pickled_carrier_takes_its_own_slots_and_not_the_storage_around_them() -> None:
    around = torch.arange(100_000.0)
    carrier = CPU.wrap(around[500:503])
    data = pickle.dumps(carrier)
    assert len(data) < 1000
    assert listed(pickle.loads(data)) == [500.0, 501.0, 502.0]


@pytest.mark.parametrize("mutable", [True, False])
def test_pickled_and_copied_carriers_are_as_mutable_as_they_were_made(mutable: bool) -> None:
    carrier = CPU.wrap(torch.arange(3.0), mutable=mutable)
    token = carrier._claim_ownership()
    for made in (again(carrier), copy.deepcopy(carrier)):
        assert (made.is_mutable(), made.is_owned(), made.version) == (mutable, False, 0)
        assert listed(made) == [0.0, 1.0, 2.0]
    carrier._relinquish_ownership(token)


def test_pickle_out_of_band_carries_the_memory_itself() -> None:
    carrier = CPU.wrap(torch.arange(1000.0))
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(carrier, 5, buffer_callback=buffers.append)
    assert len(data) < 1000
    assert sum(buffer.raw().nbytes for buffer in buffers) == 4000
    read_only = [bytes(buffer.raw()) for buffer in buffers]
    shifted = [memoryview(bytearray(b"x" + octets))[1:] for octets in read_only]
    for given in (read_only, shifted):
        made = pickle.loads(data, buffers=given)
        made[0] = 5.0
        assert (made[0], made[999]) == (5.0, 999.0)
        assert made.pointer() % 4 == 0


def test_pickled_generic_and_empty_carriers_come_back() -> None:
    generic = Generic([1, None, 3], dtype=DType.Int16, mutable=False)
    for made in (again(generic), copy.deepcopy(generic)):
        assert (type(made), made.dtype(), listed(made), made.is_mutable()) == (Generic, DType.Int16, [1, 0, 3], False)
    assert again(CPU(0)).size() == copy.deepcopy(CPU(0)).size() == 0
    assert copy.deepcopy(FileBacked()).size() == 0


def test_copied_tensor_shares_the_carrier_only_when_shallow() -> None:
    tensor = from_torch(torch.arange(6.0).reshape(2, 3))
    assert copy.copy(tensor).carrier is tensor.carrier
    deep = copy.deepcopy(tensor)
    deep[0, 0] = 9.0
    assert tensor[0, 0] == 0.0
    assert deep.layout == tensor.layout
    assert copy.deepcopy([tensor, tensor])[0] is not tensor


# -- gradients -------------------------------------------------------------------------------------------------------


def test_pickled_tensor_keeps_requires_grad_and_drops_graph_and_grad() -> None:
    leaf = Tensor(CPU(3), 0, Layout.column_major(3), requires_grad=True)
    leaf.grad = from_torch(torch.ones(3))
    made = again(leaf)
    assert (made.requires_grad, made.is_leaf, made.grad) == (True, True, None)
    recorded = leaf.detach()
    recorded.autograd_ctx = object()
    made = again(recorded)
    assert (made.requires_grad, made.is_leaf) == (True, True)
    assert not again(leaf.detach()).requires_grad


def test_deepcopy_keeps_grad_and_refuses_what_an_operation_made() -> None:
    leaf = Tensor(CPU(3), 0, Layout.column_major(3), requires_grad=True)
    leaf.grad = from_torch(torch.ones(3))
    for pair in ((leaf, leaf.grad), (leaf.grad, leaf)):
        copied = copy.deepcopy(pair)
        made, grad = copied if pair[0] is leaf else reversed(copied)
        assert made.requires_grad
        assert made.grad is grad
        grad[0] = 5.0
        assert leaf.grad[0] == 1.0
    recorded = leaf.detach()
    recorded.autograd_ctx = object()
    with pytest.raises(RuntimeError, match=r"graph leaves.*detach\(\)"):
        copy.deepcopy(recorded)


# -- files -----------------------------------------------------------------------------------------------------------


def in_file(path: Path, **options: Any) -> FileBacked:
    carrier = FileBacked(path, size=4, dtype=DType.Int32, offset_nbytes=8)
    for k in range(4):
        carrier[k] = 10 + k
    return FileBacked.open(path, dtype=DType.Int32, size=4, offset_nbytes=8, **options)


def test_pickled_file_at_a_path_is_opened_again_and_shared(tmp_path: Path) -> None:
    carrier = in_file(tmp_path / "a.bin")
    data = pickle.dumps(carrier)
    carrier[1] = -1  # a file that may be written may have been, between one and the other
    made = pickle.loads(data)
    assert (listed(made), made.offset_nbytes, made.path) == ([10, -1, 12, 13], 8, carrier.path)
    made[2] = -2
    assert carrier[2] == -2


def test_pickled_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    data = pickle.dumps(in_file(path))
    (tmp_path / "b.bin").write_bytes(path.read_bytes())
    (tmp_path / "b.bin").replace(path)
    with pytest.raises(ChangedFileError, match="must be the file that was pickled"):
        pickle.loads(data)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)


def test_pickled_immutable_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    data = pickle.dumps(in_file(path, mutable=False))
    assert not pickle.loads(data).is_mutable()
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChangedFileError, match="unchanged if the carrier is immutable"):
        pickle.loads(data)


def test_deepcopy_of_a_file_is_an_anonymous_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strideweave.carriers.pickling.RUN_NBYTES", 12)
    carrier = in_file(tmp_path / "a.bin")
    made = copy.deepcopy(carrier)
    made[0] = 99
    assert (listed(carrier), listed(made)) == ([10, 11, 12, 13], [99, 11, 12, 13])
    assert made.path != carrier.path


def test_pickled_checkpoint_file_reads_the_same_pieces(tmp_path: Path) -> None:
    path = tmp_path / "c.bin"
    path.write_bytes(torch.arange(6, dtype=torch.int16).numpy().tobytes())
    source = SourceFile(path)
    carrier = CheckpointFile([Piece(source, 8, 4), Piece(source, 0, 4)], dtype=DType.Int16)
    for made in (again(carrier), copy.deepcopy(carrier)):
        assert listed(made) == [4, 5, 0, 1]
        made.release()
    assert listed(carrier) == [4, 5, 0, 1]


# -- refused ---------------------------------------------------------------------------------------------------------


def test_pickle_of_an_anonymous_file_is_refused() -> None:
    with pytest.raises(TypeError, match=r"anonymous.*at a path.*materialize\(\)"):
        pickle.dumps(Tensor(FileBacked(size=2), 0, Layout.column_major(2)))


def test_pickle_and_deepcopy_of_a_tiled_carrier_are_refused() -> None:
    tiled = Tensor(
        TiledEvictable(CPU.wrap(torch.arange(16.0)), FileBacked(), (2, 2), (2, 2)), 0, Layout.column_major(4, 4)
    )
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"TiledEvictable.*materialize\(\)"):
            attempt(tiled)
    assert again(tiled.materialize()).torch().sum() == 120


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.deepcopy])
def test_pickle_and_deepcopy_of_a_released_carrier_are_refused(attempt: Any) -> None:
    carrier = CPU(3)
    carrier.release()
    with pytest.raises(RuntimeError, match="released"):
        attempt(carrier)
