"""What `bench io` reads: a safetensors file of random bytes whose tensors begin at multiples of 4096."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

BEGIN_NBYTES: Final = 65536
"""Where the first tensor begins."""
TENSOR_NBYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run measures. Units: bytes."""

    file_nbytes: int
    pass_nbytes: int
    """What one measurement reads, or writes."""
    budget_nbytes: int
    """The memory that tiles may take."""
    rounds: int
    blocks_nbytes: tuple[int, ...] = (2**16, 2**18, 2**20, 2**22, 2**24)
    """Of the raw reads."""
    tiles_nbytes: tuple[int, ...] = (2**18, 2**20, 2**22, 2**24)


FULL: Final = Size(512 * 2**20, 256 * 2**20, 128 * 2**20, rounds=5)
QUICK: Final = Size(128 * 2**20, 128 * 2**20, 64 * 2**20, rounds=3)


def name_of(number: int) -> str:
    """The name of a tensor in the file."""
    return f"block.{number:05}"


def write_data(path: Path, nbytes: int, *, seed: int = 7) -> None:
    """A safetensors file with `nbytes` of tensors of 4 MiB each."""
    count = nbytes // TENSOR_NBYTES
    header = {
        name_of(k): {
            "dtype": "U8",
            "shape": [TENSOR_NBYTES],
            "data_offsets": [k * TENSOR_NBYTES, (k + 1) * TENSOR_NBYTES],
        }
        for k in range(count)
    }
    text = json.dumps(header).encode().ljust(BEGIN_NBYTES - 8)
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write((BEGIN_NBYTES - 8).to_bytes(8, "little") + text)
        for _ in range(count):
            file.write(random.bytes(TENSOR_NBYTES))
