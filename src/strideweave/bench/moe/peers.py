"""The contestants of `bench moe` that are not ours, one function each.

A contestant is a context manager: entering it opens the file (that time is told apart), and it gives back what runs a
layer, and a function of its own counters. It is given the routes too; peers look at none of them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strideweave.bench.measure import drop_page_cache
from strideweave.bench.moe.work import Routes, RunLayer, Work, run_expert
from strideweave.checkpoint import read_header

Counters = dict[str, Any]
Racer = tuple[RunLayer, Callable[[], Counters]]
Matrices = Callable[[int, int], list[Tensor]]
"""The two matrices of the expert at (layer, expert)."""
Contestant = Callable[[Work, Path, Routes], AbstractContextManager[Racer]]
OFFLOAD_FOLDER, ZARR_FOLDER = "accelerate", "experts.zarr"
_MALLOPT_MMAP_THRESHOLD = -3


def give_memory_back() -> None:
    """Freed memory of a matrix's size goes back to the kernel at once, where the C library can be told to.

    Else the heap of whoever takes fresh memory for every use grows to several times the budget, and the limit kills it;
    where it lives without that, it is no faster under the limit.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_MALLOPT_MMAP_THRESHOLD, 2**20)


def nothing_counted() -> Counters:
    """No counters of its own."""
    return {}


def one_by_one(matrices: Matrices) -> RunLayer:
    """Experts in ascending order, the matrices of each when its turn comes."""

    def run_layer(layer: int, inputs: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        for expert, x in inputs.items():
            yield expert, run_expert(x, *matrices(layer, expert))

    return run_layer


@contextmanager
def all_in_ram(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """Every expert in memory before the first step: the upper limit."""
    with positioned_matrices(work, path) as (read, _):
        weights = {at: read(*at) for at in product(range(work.layers), range(work.experts))}
    yield one_by_one(lambda layer, expert: weights[layer, expert]), nothing_counted


@contextmanager
def numpy_memmap(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """The file mapped, matrices used where they lie; the page cache is the budget."""
    places = tensor_places(path)
    # Copy-on-write, never written: torch takes only arrays that could be.
    mapped = torch.from_numpy(np.memmap(path, np.uint8, mode="c"))
    yield one_by_one(lambda layer, expert: _in_place(work, mapped, places, layer, expert)), nothing_counted


@contextmanager
def torch_from_file(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """`torch.from_file` of the whole file, matrices used where they lie; the page cache is the budget."""
    places = tensor_places(path)
    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    yield one_by_one(lambda layer, expert: _in_place(work, mapped, places, layer, expert)), nothing_counted


def _in_place(work: Work, mapped: Tensor, places: dict[str, tuple[int, int]], layer: int, expert: int) -> list[Tensor]:
    found = []
    for matrix, shape in work.matrices.items():
        begin, end = places[work.name(layer, expert, matrix)]
        found.append(mapped[begin:end].view(torch.bfloat16).view(shape))
    return found


@contextmanager
def safetensors_get_tensor(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """`safe_open` once, `get_tensor` for every use; the page cache is the budget."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:

        def matrices(layer: int, expert: int) -> list[Tensor]:
            return [file.get_tensor(work.name(layer, expert, matrix)) for matrix in work.matrices]

        yield one_by_one(matrices), nothing_counted


@contextmanager
def positioned_matrices(work: Work, path: Path) -> Iterator[tuple[Matrices, Counters]]:
    """Matrices read with `preadv` into fresh tensors, with the count of bytes."""
    places = tensor_places(path)
    counted = {"bytes_read": 0}
    descriptor = os.open(path, os.O_RDONLY)

    def matrices(layer: int, expert: int) -> list[Tensor]:
        found = []
        for matrix, shape in work.matrices.items():
            begin, end = places[work.name(layer, expert, matrix)]
            tensor = torch.empty(shape, dtype=torch.bfloat16)
            memory = memoryview(tensor.view(torch.int16).numpy().data).cast("B")
            done = 0
            while done < len(memory):
                done += os.preadv(descriptor, [memory[done:]], begin + done)
            counted["bytes_read"] += end - begin
            found.append(tensor)
        return found

    try:
        yield matrices, counted
    finally:
        os.close(descriptor)


@contextmanager
def safetensors_positioned(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """A positioned read into fresh tensors for every use; only the page cache remembers."""
    give_memory_back()
    with positioned_matrices(work, path) as (matrices, counted):
        yield one_by_one(matrices), lambda: counted


def write_offload_folder(work: Work, path: Path) -> int:
    """The bytes of the folder that accelerate reads from, which holds every weight again, on the disk."""
    from accelerate.utils import offload_weight, save_offload_index

    folder = path.with_name(OFFLOAD_FOLDER)
    folder.mkdir(exist_ok=True)
    index: dict[str, Any] = {}
    with positioned_matrices(work, path) as (read, _):
        for layer, expert in product(range(work.layers), range(work.experts)):
            for matrix, weight in zip(work.matrices, read(layer, expert), strict=True):
                offload_weight(weight, f"{layer}-{expert}.{matrix}", folder, index)
    save_offload_index(index, folder)
    drop_page_cache(folder.iterdir())
    return sum(each.stat().st_size for each in folder.iterdir())


@contextmanager
def accelerate_disk_offload(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """One module per expert with the hooks of `disk_offload`, over the folder of `write_offload_folder`."""
    import accelerate

    give_memory_back()

    class Expert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = (
                torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16)) for shape in work.matrices.values()
            )

        def forward(self, x: Tensor) -> Tensor:
            return run_expert(x, self.w1, self.w2)

    places = product(range(work.layers), range(work.experts))
    with torch.device("meta"):
        model = torch.nn.ModuleDict({f"{layer}-{expert}": Expert() for layer, expert in places})
    accelerate.disk_offload(model, path.with_name(OFFLOAD_FOLDER), execution_device=torch.device("cpu"))

    def run_layer(layer: int, inputs: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        for expert, x in inputs.items():
            yield expert, model[f"{layer}-{expert}"](x)

    yield run_layer, nothing_counted


def write_zarr(work: Work, path: Path) -> int:
    """The bytes of a zarr array of the experts, not compressed, a chunk for each, on the disk."""
    import zarr

    store = path.with_name(ZARR_FOLDER)
    array = zarr.create_array(
        store,
        shape=(work.layers * work.experts, work.expert_elements),
        chunks=(1, work.expert_elements),
        dtype="int16",
        compressors=None,
        overwrite=True,
    )
    with positioned_matrices(work, path) as (read, _):
        for number, at in enumerate(product(range(work.layers), range(work.experts))):
            array[number] = torch.cat([matrix.view(-1) for matrix in read(*at)]).view(torch.int16).numpy()
    files = [each for each in store.rglob("*") if each.is_file()]
    drop_page_cache(files)
    return sum(each.stat().st_size for each in files)


@contextmanager
def zarr_chunks(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """A chunk for every use of an expert; only the page cache remembers."""
    import zarr

    give_memory_back()
    array = zarr.open_array(path.with_name(ZARR_FOLDER), mode="r")

    def matrices(layer: int, expert: int) -> list[Tensor]:
        return work.split(torch.from_numpy(array[layer * work.experts + expert]).view(torch.bfloat16))

    yield one_by_one(matrices), nothing_counted


@contextmanager
def tensorstore_chunks(work: Work, path: Path, routes: Routes) -> Iterator[Racer]:
    """The array of `write_zarr`; all experts of a layer are asked for at once.

    Its cache has half the budget, since what it hands out is not in there.
    """
    import tensorstore

    give_memory_back()
    array = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path.with_name(ZARR_FOLDER))}},
        context=tensorstore.Context({"cache_pool": {"total_bytes_limit": work.budget_nbytes // 2}}),
        open=True,
    ).result()

    def run_layer(layer: int, inputs: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        coming = {expert: array[layer * work.experts + expert].read() for expert in inputs}
        for expert, x in inputs.items():
            values = torch.from_numpy(coming.pop(expert).result()).view(torch.bfloat16)
            yield expert, run_expert(x, *work.split(values))

    yield run_layer, nothing_counted


def tensor_places(path: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each tensor of a safetensors file begin and end."""
    return {name: (entry.offset_nbytes, entry.end_nbytes) for name, entry in read_header(path).entries.items()}
