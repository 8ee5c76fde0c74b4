"""The matrices of `bench stream`, and what is computed of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Operation = Literal["sum0", "sum1", "matmul", "add_relu"]
OPERATIONS: Final[tuple[Operation, ...]] = ("sum0", "sum1", "matmul", "add_relu")
Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Work:
    """Two matrices of float32 in files, row after row, and a narrow one in memory. Units: elements."""

    rows: int = 32768
    columns: int = 4096
    tile_rows: int = 256
    narrow: int = 32
    """The columns of the matrix in memory."""
    budget_part: int = 4
    """How many times the budget of an operand an operand is."""
    seed: int = 7

    @staticmethod
    def quick() -> Work:
        """A quarter of the bytes."""
        return Work(rows=8192)

    @property
    def nbytes(self) -> int:
        """The bytes of one operand."""
        return self.rows * self.columns * 4

    @property
    def tile_nbytes(self) -> int:
        """The bytes of one tile: some whole rows."""
        return self.tile_rows * self.columns * 4

    @property
    def tiles(self) -> int:
        """The tiles of one operand."""
        return self.rows // self.tile_rows

    @property
    def operand_budget_nbytes(self) -> int:
        """What the tiles of one operand may take."""
        return self.nbytes // self.budget_part

    def operands(self, operation: Operation) -> list[str]:
        """The files that an operation reads."""
        return ["a.bin", "b.bin"] if operation == "add_relu" else ["a.bin"]

    def budget_nbytes(self, operation: Operation) -> int:
        """What the tiles of all operands may take."""
        return len(self.operands(operation)) * self.operand_budget_nbytes

    def read_nbytes(self, operation: Operation) -> int:
        """What every contestant must read."""
        return len(self.operands(operation)) * self.nbytes

    def result_nbytes(self, operation: Operation) -> int:
        """The bytes of the result in memory; that of `add_relu` is in a file."""
        elements = {"sum0": self.columns, "sum1": self.rows, "matmul": self.rows * self.narrow, "add_relu": 0}
        return elements[operation] * 4

    def right(self) -> Matrix:
        """The narrow matrix."""
        return _whole_numbers(np.random.default_rng(self.seed + 2), (self.columns, self.narrow))

    def to_json(self) -> str:
        """What `from_json` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Work:
        """What `to_json` wrote."""
        return Work(**json.loads(text))


def write_operands(work: Work, folder: Path) -> None:
    """The two files, the same for the same seed."""
    for k, name in enumerate(("a.bin", "b.bin")):
        random = np.random.default_rng(work.seed + k)
        with (folder / name).open("wb") as file:
            for _ in range(work.tiles):
                file.write(_whole_numbers(random, (work.tile_rows, work.columns)).data)


def _whole_numbers(random: np.random.Generator, shape: tuple[int, int]) -> Matrix:
    """From -8 to 8: sums of products of a few million of them are exact in float32."""
    return random.integers(-8, 9, shape, dtype=np.int8).astype(np.float32)


def mapped(work: Work, path: Path) -> Matrix:
    """A file as numpy maps it."""
    return np.memmap(path, np.float32, mode="r", shape=(work.rows, work.columns))


def checksum(blocks: Iterable[Matrix]) -> str:
    """Of all values in order, however they are cut; a zero has no sign."""
    digest = hashlib.blake2b(digest_size=8)
    for block in blocks:
        digest.update(np.ascontiguousarray(block + np.float32(0)).data)
    return digest.hexdigest()


def checksum_of_file(work: Work, path: Path) -> str:
    """The checksum of a result in a file."""
    with path.open("rb") as file:
        return checksum(np.frombuffer(file.read(work.tile_nbytes), np.float32) for _ in range(work.tiles))
