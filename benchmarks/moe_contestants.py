"""The contestants of `moe_decode`, one function each.

A contestant is a context manager: entering it opens the file (that time is told apart), and it gives back
what runs a layer, and a function of its own counters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from measure import drop_page_cache
from moe_work import RunLayer, Work, run_expert
from strideweave import CPU, CheckpointFile, DType, Layout, Piece, TiledEvictable, TileSet
from strideweave.checkpoint import Checkpoint, read_header

try:
    import accelerate
    from accelerate.utils import offload_weight, save_offload_index
except ImportError:
    accelerate = None

Counters = dict[str, Any]
Racer = tuple[RunLayer, Callable[[], Counters]]
Matrices = Callable[[int, int], list[Tensor]]
"""The two matrices of the expert at (layer, expert)."""
OFFLOAD_FOLDER = "accelerate"


def nothing_counted() -> Counters:
    return {}


def one_by_one(matrices: Matrices) -> RunLayer:
    """Experts in ascending order, the matrices of each when its turn comes."""

    def run_layer(layer: int, inputs: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        for expert, x in inputs.items():
            yield expert, run_expert(x, *matrices(layer, expert))

    return run_layer


@contextmanager
def all_in_ram(work: Work, path: Path) -> Iterator[Racer]:
    """Every expert in memory before the first step: the upper limit."""
    with positioned_matrices(work, path) as (read, _):
        weights = {at: read(*at) for at in product(range(work.layers), range(work.experts))}
    yield one_by_one(lambda layer, expert: weights[layer, expert]), nothing_counted


@contextmanager
def strideweave(work: Work, path: Path) -> Iterator[Racer]:
    """One tile per expert, used in place: those that are resident first, the others as they land."""
    tensors = Checkpoint.open(path).tensors
    located = [
        tensors[work.name(layer, expert, matrix)]
        for layer, expert, matrix in product(range(work.layers), range(work.experts), work.matrices)
    ]
    pieces = [Piece(at.file, at.entry.offset_nbytes, at.entry.nbytes) for at in located]
    grid = (work.layers, work.experts)
    carrier = TiledEvictable(
        CPU(0, dtype=DType.BFloat16),
        CheckpointFile(pieces, dtype=DType.BFloat16),
        grid_shape=(*grid, 1),
        tile_shape=(1, 1, work.expert_elements),
        layout=Layout.row_major(*grid, work.expert_elements),
        budget=work.budget_nbytes,
    )

    def run_layer(layer: int, inputs: dict[int, Tensor]) -> Iterator[tuple[int, Tensor]]:
        for (_, expert, _), tile in carrier.stream(TileSet([(layer, expert, 0) for expert in inputs])):
            yield expert, run_expert(inputs[expert], *work.split(tile))

    def counters() -> Counters:
        counted = carrier.statistics()
        names = ("hits", "misses", "hit_rate", "bytes_read", "stall_s", "slots")
        return {name: getattr(counted, name) for name in names}

    try:
        yield run_layer, counters
    finally:
        carrier.release()


@contextmanager
def numpy_memmap(work: Work, path: Path) -> Iterator[Racer]:
    """The file mapped, matrices used where they lie; the page cache is the budget."""
    places = tensor_places(path)
    # Copy-on-write, never written: torch takes only arrays that could be.
    mapped = torch.from_numpy(np.memmap(path, np.uint8, mode="c"))

    def matrices(layer: int, expert: int) -> list[Tensor]:
        found = []
        for matrix, shape in work.matrices.items():
            begin, end = places[work.name(layer, expert, matrix)]
            found.append(mapped[begin:end].view(torch.bfloat16).view(shape))
        return found

    yield one_by_one(matrices), nothing_counted


@contextmanager
def safetensors_get_tensor(work: Work, path: Path) -> Iterator[Racer]:
    """`safe_open` once, `get_tensor` for every use; the page cache is the budget."""
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
def safetensors_positioned(work: Work, path: Path) -> Iterator[Racer]:
    """A positioned read into fresh tensors for every use; only the page cache remembers."""
    with positioned_matrices(work, path) as (matrices, counted):
        yield one_by_one(matrices), lambda: counted


def write_offload_folder(work: Work, path: Path) -> int:
    """The bytes of the folder that accelerate reads from, which holds every weight again, on the disk."""
    folder = path.with_name(OFFLOAD_FOLDER)
    folder.mkdir(exist_ok=True)
    index: dict[str, Any] = {}
    with safe_open(path, framework="pt") as file:
        for layer, expert in product(range(work.layers), range(work.experts)):
            for matrix in work.matrices:
                weight = file.get_tensor(work.name(layer, expert, matrix))
                offload_weight(weight, f"{layer}-{expert}.{matrix}", folder, index)
    save_offload_index(index, folder)
    drop_page_cache(folder.iterdir())
    return sum(each.stat().st_size for each in folder.iterdir())


@contextmanager
def accelerate_disk_offload(work: Work, path: Path) -> Iterator[Racer]:
    """One module per expert with the hooks of `disk_offload`, over the folder of `write_offload_folder`."""

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


def tensor_places(path: Path) -> dict[str, tuple[int, int]]:
    """Where the bytes of each tensor of a safetensors file begin and end."""
    return {name: (entry.offset_nbytes, entry.end_nbytes) for name, entry in read_header(path).entries.items()}


CONTESTANTS: dict[str, Callable[[Work, Path], AbstractContextManager[Racer]]] = {
    "ram": all_in_ram,
    "strideweave": strideweave,
    "memmap": numpy_memmap,
    "get_tensor": safetensors_get_tensor,
    "positioned": safetensors_positioned,
    "accelerate": accelerate_disk_offload,
}
"""Every contestant by the name that the report uses."""
PREPARATIONS = {"accelerate": write_offload_folder}
"""What some need on the disk before they start, made once; gives back the bytes written."""
ENVIRONMENTS = {"accelerate": {"MALLOC_MMAP_THRESHOLD_": str(2**20)}}
"""What some need set. accelerate's heap grows to three times the budget, and it is killed by the limit, unless
freed matrices go back to the kernel at once; where it lives without that, it is no faster under the limit."""
UNAVAILABLE = {} if accelerate is not None else {"accelerate": "accelerate is not installed"}
"""The contestants that cannot take part here, and why."""
