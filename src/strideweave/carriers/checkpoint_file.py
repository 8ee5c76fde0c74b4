"""A read-only carrier over tensors that already lie in checkpoint files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn, final

from strideweave.carriers.carrier import Carrier, Run, byte_view
from strideweave.carriers.file_backed import FileBacked
from strideweave.dtype import StorageDType
from strideweave.io import SourceFile


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of bytes in a file. Units: bytes.

    >>> from strideweave import Piece
    >>> from strideweave.io import SourceFile
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     piece = Piece(SourceFile(file.name), 8, 64)
    >>> piece.offset_nbytes, piece.nbytes
    (8, 64)
    """

    file: SourceFile
    """The file, with the identity that it had when its header was read."""
    offset_nbytes: int
    """Where the stretch begins in the file."""
    nbytes: int
    """How long it is."""


@final
class CheckpointFile(Carrier):
    """The values of one checkpoint tensor, or of several laid end to end, read where they lie.

    Slot order is the order of `pieces`: two matrices that a model wants as one are one run here, though they lie apart
    on disk. Nothing is converted or copied at construction, and nothing is ever written to the files.

    Shapes: flat. Errors: ValueError when a piece is no whole number of slots; ChangedFileError at reading when a file
    is no longer the one that was opened.

    >>> import pathlib, tempfile
    >>> import strideweave as sw
    >>> from strideweave.io import SourceFile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "weights.bin")
    ...     _ = path.write_bytes(bytes([7, 0, 9, 0]))
    ...     c = sw.CheckpointFile([sw.Piece(SourceFile(path), 2, 2)], dtype=sw.DType.Int16)
    ...     c.size(), c[0], c.is_mutable()
    (1, 9, False)
    """

    def __init__(self, pieces: Iterable[Piece], *, dtype: StorageDType) -> None:
        super().__init__(dtype=dtype, mutable=False)
        self._pieces: tuple[Piece, ...] = tuple(pieces)
        for piece in self._pieces:
            if piece.nbytes % dtype.itemsize:
                raise ValueError(
                    f"cannot read {piece.file.path!s} at byte {piece.offset_nbytes} as {dtype.name}: {piece.nbytes} "
                    f"bytes are no whole number of {dtype.itemsize}-byte slots. Check the dtype of the tensor."
                )
        self._ends = list(accumulate(piece.nbytes for piece in self._pieces))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The stretches of bytes, in slot order."""
        return self._pieces

    def size(self) -> int:
        """The number of slots."""
        return self._ends[-1] // self._dtype.itemsize if self._ends else 0

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> FileBacked:
        """A fresh anonymous FileBacked carrier: nothing new is ever made inside a checkpoint."""
        return FileBacked(None, size=size, dtype=dtype or self._dtype, mutable=mutable)

    def _read_runs(self, runs: Sequence[Run]) -> int:
        spans: dict[int, list[tuple[int, memoryview]]] = {}
        files: dict[int, SourceFile] = {}
        for start, out in runs:
            begin = start * self._dtype.itemsize
            memory = byte_view(out)
            k, done = bisect_right(self._ends, begin), 0
            while done < len(memory):
                piece = self._pieces[k]
                within = begin + done - (self._ends[k] - piece.nbytes)
                length = min(piece.nbytes - within, len(memory) - done)
                files[id(piece.file)] = piece.file
                spans.setdefault(id(piece.file), []).append(
                    (piece.offset_nbytes + within, memory[done : done + length])
                )
                done += length
                k += 1
        for file in files.values():
            file.check_unchanged()
        return sum(files[key].read_into(wanted) for key, wanted in spans.items())

    def _write_runs(self, runs: Sequence[Run]) -> NoReturn:
        raise RuntimeError(f"cannot write {self!r}: a checkpoint is never changed. Write to a FileBacked carrier.")

    def _allocate(self, size: int) -> NoReturn:
        raise RuntimeError(f"cannot allocate {self!r}: a checkpoint is never changed. Use a FileBacked carrier.")

    def _free(self) -> None:
        self._pieces, self._ends = (), []

    def __repr__(self) -> str:
        where = f"{len(self._pieces)} pieces of {len({id(p.file) for p in self._pieces})} files"
        return f"{super().__repr__()[:-1]} in {where}>"
