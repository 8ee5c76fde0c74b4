"""The contestants of `bench stream`.

Each is a context manager for one operation: entering it opens what it needs, and it gives back a call that computes and
returns the result, or the path of the file that holds it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np
import torch

from strideweave.bench.disk import Access, RawFile
from strideweave.bench.stream.work import Matrix, Operation, Work, mapped
from strideweave.io import SlabPool, WritableFile
from strideweave.operation.functional import matmul, reduce_sum
from strideweave.public import (
    CPU,
    DType,
    FileBacked,
    Layout,
    Tensor,
    TiledEvictable,
    TileSet,
    from_torch,
)

RESULT, ZARR_RESULT = "result.bin", "result.zarr"
Compute = Callable[[], "Matrix | Path | None"]
Contestant = Callable[[Work, Path, Operation], AbstractContextManager[Compute]]
_RAW_BLOCK_NBYTES = 4 * 2**20
_WRITES_BEHIND = 3


# -- ours ------------------------------------------------------------------------------------------------------------


@contextmanager
def operands_of(work: Work, folder: Path, operation: Operation) -> Iterator[list[Tensor]]:
    """The operands over their files, which are read where they lie."""
    with ExitStack() as stack:
        tensors = []
        for name in work.operands(operation):
            carrier = TiledEvictable(
                CPU(0),
                FileBacked.open(folder / name, dtype=DType.Float32, mutable=False),
                (work.tiles, 1),
                (work.tile_rows, work.columns),
                layout=Layout.row_major(work.rows, work.columns),
                budget=work.operand_budget_nbytes,
            )
            stack.callback(carrier.release)
            tensors.append(Tensor(carrier, 0, carrier.layout))
        yield tensors


@contextmanager
def strideweave(work: Work, folder: Path, operation: Operation) -> Iterator[Compute]:
    """The operation on the tiled operands.

    No operation writes a result to a file, so `relu(a + b)` goes through both in `stream`, and writes tiles behind.
    """
    with operands_of(work, folder, operation) as operands:
        if operation == "add_relu":
            yield lambda: streamed(work, folder, operands, _add_relu)
        elif operation == "matmul":
            right = from_torch(torch.from_numpy(work.right()))
            yield lambda: matmul(operands[0], right).torch().numpy()
        else:
            yield lambda: reduce_sum(operands[0], axis=int(operation[-1])).torch().numpy()


@contextmanager
def reader(work: Work, folder: Path, operation: Operation) -> Iterator[Compute]:
    """`stream` of the operands with the arithmetic left out; what is written is anything."""
    with operands_of(work, folder, operation) as operands:

        def read() -> None:
            for _ in operands[0].carrier.stream(_every_tile(work)):  # type: ignore[attr-defined]
                pass

        def read_and_write() -> None:
            streamed(work, folder, operands, lambda a, b, out: None)

        yield read_and_write if operation == "add_relu" else read


def _every_tile(work: Work) -> TileSet:
    return TileSet((k, 0) for k in range(work.tiles))


def _add_relu(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.add(a, b, out=out).relu_()


def streamed(
    work: Work,
    folder: Path,
    operands: list[Tensor],
    combine: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
) -> Path:
    """The file of what `combine` puts together of the tiles of two operands, on the disk."""
    every, path = _every_tile(work), folder / RESULT
    one, other = (operand.carrier.stream(every) for operand in operands)  # type: ignore[attr-defined]
    with WritableFile(path) as file, one, other, WriterBehind(file, work.tile_nbytes) as behind:
        file.reserve(work.nbytes)
        for (at, a), (same, b) in zip(one, other, strict=True):
            assert at == same, "two cold streams of one set of tiles have the same order"
            slab = behind.take()
            values = torch.frombuffer(behind.memory(slab), dtype=torch.float32).view(work.tile_rows, work.columns)
            combine(a, b, values)
            behind.write(at[0] * work.tile_nbytes, slab)
        behind.finish()
        file.sync()
    return path


class WriterBehind:
    """A thread that writes slabs to a file while others are filled; a few of them, used again and again."""

    def __init__(self, file: WritableFile, slab_nbytes: int) -> None:
        self._file = file
        self._pool = SlabPool(slab_nbytes, _WRITES_BEHIND)
        self._free: SimpleQueue[int] = SimpleQueue()
        self._full: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="bench-writer", daemon=True)
        for _ in range(_WRITES_BEHIND):
            slab = self._pool.take()
            assert slab is not None
            self._free.put(slab)

    def memory(self, slab: int) -> memoryview:
        """The bytes of a slab."""
        return self._pool.memory(slab)

    def take(self) -> int:
        """A slab to fill, once one is free."""
        return self._free.get()

    def write(self, offset_nbytes: int, slab: int) -> None:
        """The slab will be written, and be free then."""
        self._full.put((offset_nbytes, slab))

    def finish(self) -> None:
        """Everything is written. Errors: that of the first write that failed."""
        self._full.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (job := self._full.get()) is not None:
            offset_nbytes, slab = job
            try:
                self._file.write_from([(offset_nbytes, self._pool.memory(slab))])
            except BaseException as error:
                self._error = self._error or error
            self._free.put(slab)

    def __enter__(self) -> WriterBehind:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._full.put(None)
        self._thread.join()


# -- limits ----------------------------------------------------------------------------------------------------------


@contextmanager
def raw(work: Work, folder: Path, operation: Operation) -> Iterator[Compute]:
    """Direct reads of the operands, one thread each or 4 for one, and direct writes of the result beside them."""
    with ExitStack() as stack:
        names = work.operands(operation)
        access = Access(min(_RAW_BLOCK_NBYTES, work.tile_nbytes), 4 if len(names) == 1 else 1, "sequential")
        places = access.places(0, work.nbytes, work.seed)
        block = access.block_nbytes
        jobs = [
            stack.enter_context(RawFile(folder / name, threads=access.threads, block_nbytes=block)).read
            for name in names
        ]
        if operation == "add_relu":
            with WritableFile(folder / RESULT) as file:
                file.reserve(work.nbytes)
            jobs.append(stack.enter_context(RawFile(folder / RESULT, threads=1, block_nbytes=block, writes=True)).write)

        def move() -> None:
            with ThreadPoolExecutor(len(jobs)) as threads:
                for done in [threads.submit(job, places, access) for job in jobs]:
                    done.result()

        yield move


@contextmanager
def in_ram(work: Work, folder: Path, operation: Operation) -> Iterator[Compute]:
    """torch over operands that are in memory; a result of their size goes to memory that has been touched."""
    operands = [torch.from_numpy(np.array(mapped(work, folder / name))) for name in work.operands(operation)]
    right = torch.from_numpy(work.right())
    out = torch.zeros_like(operands[0]) if operation == "add_relu" else torch.empty(0)

    def compute() -> Matrix:
        if operation == "add_relu":
            return torch.add(*operands, out=out).relu_().numpy()
        if operation == "matmul":
            return torch.matmul(operands[0], right).numpy()
        return operands[0].sum(int(operation[-1])).numpy()

    yield compute


# -- peers -----------------------------------------------------------------------------------------------------------


@contextmanager
def numpy_memmap(work: Work, folder: Path, operation: Operation) -> Iterator[Compute]:
    """The files mapped, block by block of a tile's size: what one writes first."""
    operands = [mapped(work, folder / name) for name in work.operands(operation)]
    right = work.right()
    blocks = [slice(begin, begin + work.tile_rows) for begin in range(0, work.rows, work.tile_rows)]

    def compute() -> Matrix | Path:
        first = operands[0]
        if operation == "sum0":
            total = np.zeros(work.columns, np.float32)
            for block in blocks:
                total += first[block].sum(0)
            return total
        if operation == "sum1":
            return np.concatenate([first[block].sum(1) for block in blocks])
        if operation == "matmul":
            return np.concatenate([first[block] @ right for block in blocks])
        path = folder / RESULT
        result = np.memmap(path, np.float32, mode="w+", shape=(work.rows, work.columns))
        for block in blocks:
            np.maximum(first[block] + operands[1][block], 0, out=result[block])
        result.flush()
        return path

    yield compute


def write_zarr(work: Work, folder: Path) -> int:
    """The bytes of both matrices as zarr arrays, not compressed, a chunk a tile."""
    import zarr

    for name in ("a", "b"):
        array = zarr.create_array(
            folder / f"{name}.zarr",
            shape=(work.rows, work.columns),
            chunks=(work.tile_rows, work.columns),
            dtype="float32",
            compressors=None,
        )
        matrix = mapped(work, folder / f"{name}.bin")
        for begin in range(0, work.rows, work.tile_rows):
            array[begin : begin + work.tile_rows] = matrix[begin : begin + work.tile_rows]
    return 2 * work.nbytes


@contextmanager
def dask_over_zarr(work: Work, folder: Path, operation: Operation) -> Iterator[Compute]:
    """dask's threads over zarr arrays, a chunk a tile; `relu(a + b)` becomes a third array."""
    import dask
    import dask.array
    import zarr

    names = [name.removesuffix(".bin") for name in work.operands(operation)]
    operands = [dask.array.from_zarr(zarr.open_array(folder / f"{name}.zarr", mode="r")) for name in names]
    right = dask.array.from_array(work.right())

    def compute() -> Matrix | Path:
        if operation == "add_relu":
            path = folder / ZARR_RESULT
            target = zarr.create_array(
                path,
                shape=(work.rows, work.columns),
                chunks=(work.tile_rows, work.columns),
                dtype="float32",
                compressors=None,
            )
            dask.array.store(dask.array.maximum(operands[0] + operands[1], 0), target, lock=False)
            for file in path.rglob("*"):
                if file.is_file():
                    descriptor = os.open(file, os.O_RDONLY)
                    os.fsync(descriptor)
                    os.close(descriptor)
            return path
        lazy = operands[0] @ right if operation == "matmul" else operands[0].sum(int(operation[-1]))
        found: Matrix = lazy.compute()
        return found

    with dask.config.set(scheduler="threads"):
        yield compute


def remove_results(folder: Path) -> None:
    """No result is on the disk."""
    (folder / RESULT).unlink(missing_ok=True)
    shutil.rmtree(folder / ZARR_RESULT, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant and what the report says of it."""

    contestant: Contestant
    note: str
    needs: tuple[str, ...] = ()
    """The packages that must be installed."""
    prepare: Callable[[Work, Path], int] | None = None
    """Writes once what it needs on the disk before it starts; gives back the bytes."""
    is_limited: bool = True
    """Whether it runs under the memory limit."""
    computes: bool = True
    """Whether it has a result."""

    @property
    def why_absent(self) -> str | None:
        """Why it cannot take part here; None when it can."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{', '.join(missing)} not installed" if missing else None


ENTRIES: Final[dict[str, Entry]] = {
    "raw": Entry(
        raw, "direct reads of 4 MiB, and direct writes beside them where there is a file to write", computes=False
    ),
    "ram": Entry(in_ram, "the arithmetic alone: operands in memory, nothing is written", is_limited=False),
    "reader": Entry(reader, "our `stream` with the arithmetic left out", computes=False),
    "strideweave": Entry(strideweave, "the operation on tiled operands; `add_relu`: two `stream`s, written behind"),
    "memmap": Entry(numpy_memmap, "numpy over mapped files, block by block; the page cache is its budget"),
    "dask": Entry(
        dask_over_zarr,
        "dask's threads over zarr; needs both matrices written again",
        needs=("dask", "zarr"),
        prepare=write_zarr,
    ),
}
"""Everyone who takes part, by the names that the report uses."""
