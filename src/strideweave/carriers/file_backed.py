"""A carrier in a file: runs are read and written at any offset, never element by element."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch

from strideweave.carriers.carrier import Carrier, Run, byte_view, require_size, validate_storage_dtype
from strideweave.dtype import DType, StorageDType
from strideweave.io import WritableFile


@final
class FileBacked(Carrier):
    """`size` slots in a file, from `offset_nbytes` on; values read as zero until they are written.

    Without a `filename` the file is anonymous: it lives in the owned directory and goes with the carrier. With one it
    is made anew, outlives the process, and `FileBacked.open` comes back to it.

    Shapes: flat. Units: `size` in slots, `offset_nbytes` in bytes.
    Errors: FileExistsError when the file is already there; TypeError, ValueError for a bad size, offset or dtype.

    >>> from strideweave import DType, FileBacked
    >>> f = FileBacked(size=4, dtype=DType.Int32)
    >>> f[2] = 9
    >>> f[2], f[3]
    (9, 0)
    >>> f.release()
    """

    def __init__(
        self,
        filename: str | os.PathLike[str] | None = None,
        *,
        size: int = 0,
        dtype: StorageDType = DType.Float32,
        mutable: bool = True,
        offset_nbytes: int = 0,
    ) -> None:
        super().__init__(dtype=dtype, mutable=mutable)
        self._size = require_size(size, what="a FileBacked carrier")
        self._offset_nbytes = require_size(offset_nbytes, what="a FileBacked carrier at an offset")
        if filename is not None and os.path.lexists(filename):
            raise FileExistsError(
                f"cannot make a FileBacked carrier at {os.fspath(filename)!r}: the file exists. A new carrier never "
                "overwrites a file. Use FileBacked.open to come back to it, or name another path."
            )
        self._file = WritableFile(filename)
        if size:
            self._file.reserve(self._offset_nbytes + self.nbytes)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        dtype: StorageDType,
        size: int | None = None,
        offset_nbytes: int = 0,
        mutable: bool = True,
    ) -> FileBacked:
        """The carrier over a file that is there already; `size` defaults to all that follows the offset.

        Errors: FileNotFoundError; TypeError for no DType; ValueError when the file is too short or not a whole number
        of slots.

        >>> import tempfile, pathlib
        >>> from strideweave import DType, FileBacked
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "weights.bin")
        ...     _ = path.write_bytes(bytes([1, 0, 2, 0]))
        ...     f = FileBacked.open(path, dtype=DType.Int16)
        ...     [f[0], f[1]]
        [1, 2]
        """
        validate_storage_dtype(dtype, carrier="FileBacked carrier", accepted=cls.accepted_dtypes)
        file_nbytes = Path(path).stat().st_size
        available = file_nbytes - require_size(offset_nbytes, what="a FileBacked carrier at an offset")
        chosen = available // dtype.itemsize if size is None else require_size(size, what="a FileBacked carrier")
        if available < 0 or chosen * dtype.itemsize > available or (size is None and available % dtype.itemsize):
            raise ValueError(
                f"cannot open {os.fspath(path)!r} as {chosen} slots of {dtype.name} at byte {offset_nbytes}: the "
                f"file has {file_nbytes} bytes. The slots must lie inside the file, whole. Name a size and an offset "
                "that fit."
            )
        carrier = cls.__new__(cls)
        Carrier.__init__(carrier, dtype=dtype, mutable=mutable)
        carrier._file = WritableFile(path)
        carrier._size = chosen
        carrier._offset_nbytes = offset_nbytes
        return carrier

    @property
    def path(self) -> str:
        """Where the file is."""
        return str(self._file.path)

    @property
    def offset_nbytes(self) -> int:
        """The byte of the file at which slot 0 begins."""
        return self._offset_nbytes

    def size(self) -> int:
        """The number of slots."""
        return self._size

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> FileBacked:
        """A fresh anonymous FileBacked carrier of `size` slots; a file reads as zero either way."""
        return FileBacked(None, size=size, dtype=dtype or self._dtype, mutable=mutable)

    def _byte(self, slot: int) -> int:
        return self._offset_nbytes + slot * self._dtype.itemsize

    def _read_runs(self, runs: Sequence[Run]) -> int:
        return self._file.read_into([(self._byte(start), byte_view(out)) for start, out in runs])

    def _write_runs(self, runs: Sequence[Run]) -> int:
        return self._file.write_from([(self._byte(start), byte_view(source)) for start, source in runs])

    def _allocate(self, size: int) -> None:
        assert self._size == 0, "only an empty carrier is allocated"
        self._file.reserve(self._offset_nbytes + size * self._dtype.itemsize)
        self._size = size

    def _free(self) -> None:
        self._file.close()
        self._size = 0

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} in {self.path!r}>"


def read_all(carrier: Carrier) -> torch.Tensor:
    """Every slot of a carrier as a fresh 1-d torch tensor."""
    flat = torch.empty(carrier.size(), dtype=carrier.dtype().torch_dtype)
    if flat.numel():
        carrier._read_runs([(0, flat)])
    return flat
