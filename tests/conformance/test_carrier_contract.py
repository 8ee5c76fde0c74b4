"""The shipped carriers under the contract that third parties run against theirs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strideweave import CPU, Carrier, CheckpointFile, DType, FileBacked, Generic, Piece, TiledEvictable, TileSelection
from strideweave.carriers.block_device import BlockDevice
from strideweave.carriers.carrier import byte_view
from strideweave.carriers.evictable import Evictable
from strideweave.dtype import StorageDType
from strideweave.io import SourceFile
from strideweave.testing import CarrierContract, FaultyCarrier, ReadOnlyCarrierContract
from support.loop_device import loop_device


class TestGeneric(CarrierContract):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return Generic([0] * size, dtype=dtype, mutable=mutable)


class TestCPU(CarrierContract):
    dtypes = DType.registered()

    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return CPU(size, dtype=dtype, mutable=mutable)


class TestCPUOverTorchMemory(CarrierContract):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        within = torch.zeros(size + 5, dtype=dtype.torch_dtype)[3 : 3 + size]
        return CPU.wrap(within, mutable=mutable)


class TestFileBackedAnonymous(CarrierContract):
    dtypes = DType.registered()

    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return FileBacked(size=size, dtype=dtype, mutable=mutable)

    def leftovers(self) -> object:
        folder = Path(FileBacked().path).parent
        return sorted(folder.iterdir())


class InFolder(CarrierContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path, self.made = tmp_path, 0

    def new_path(self) -> Path:
        self.made += 1
        return self.path / f"{self.made}.bin"


class TestFileBackedNamed(InFolder):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return FileBacked(self.new_path(), size=size, dtype=dtype, mutable=mutable)


class TestFileBackedAtAnOffset(InFolder):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return FileBacked(self.new_path(), size=size, dtype=dtype, mutable=mutable, offset_nbytes=13)


class TestFileBackedOpened(InFolder):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        path = self.new_path()
        path.write_bytes(b"#" * 16 + bytes(size * dtype.itemsize) + b"#")
        return FileBacked.open(path, size=size, dtype=dtype, mutable=mutable, offset_nbytes=16)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockDevice]:
    with loop_device(tmp_path_factory.mktemp("loop"), 2**20) as path:
        device = BlockDevice(path)
        yield device
        gc.collect()
        if not device._carriers:  # a test that failed keeps its carrier in the frames of its error
            device.close()


class TestBlockDeviceCarrier(CarrierContract):
    @pytest.fixture(autouse=True)
    def on(self, device: BlockDevice) -> None:
        self.device = device

    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return self.device.allocate(size, dtype=dtype, mutable=mutable)


class TestCheckpointFile(ReadOnlyCarrierContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path, self.made = tmp_path, 0

    def make(self, values: torch.Tensor) -> Carrier:
        """Two pieces of one file, the second half lying first."""
        self.made += 1
        path = self.path / f"{self.made}.bin"
        itemsize, half = values.element_size(), values.numel() // 2
        data = bytes(byte_view(values))
        cut = half * itemsize
        path.write_bytes(b"###" + data[cut:] + b"#" + data[:cut])
        file = SourceFile(path)
        rest = len(data) - cut
        pieces = [Piece(file, 3 + rest + 1, cut), Piece(file, 3, rest)]
        return CheckpointFile(pieces, dtype=DType.from_torch(values.dtype))


class TestFaultyCarrierWithoutFaults(CarrierContract):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return FaultyCarrier(torch.zeros(size, dtype=dtype.torch_dtype), mutable=mutable)


class TestEvictable(CarrierContract):
    is_fixed_size = True  # primary is never empty
    accepts_moves = False  # it is made of other carriers

    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        return Evictable(CPU(size, dtype=dtype, mutable=mutable), FileBacked(dtype=dtype))


class TestEvictableWhileEvicted(TestEvictable):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        carrier = Evictable(CPU(size, dtype=dtype, mutable=mutable), FileBacked(dtype=dtype))
        carrier.evict()
        return carrier


class TestTiledEvictable(CarrierContract):
    """All that holds of a carrier without runs: its tiles are not runs, and its extent is that of its grid."""

    has_runs = False
    is_fixed_size = True
    accepts_moves = False

    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> TiledEvictable:
        tile = next((n for n in (2, 3, 5) if size % n == 0), size)
        primary = CPU(size, dtype=dtype, mutable=mutable)
        return TiledEvictable(primary, FileBacked(dtype=dtype), (size // tile,), (tile,))


class TestTiledEvictableWhileEvicted(TestTiledEvictable):
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> TiledEvictable:
        carrier = super().make(size, dtype=dtype, mutable=mutable)
        carrier.evict(TileSelection([range(carrier.grid_shape[0])]))
        return carrier
