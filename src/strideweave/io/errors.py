"""What goes wrong between us and a file, told with the file, the place and the cure."""

from __future__ import annotations

import os
from typing import Any


class StorageError(OSError):
    """Bytes did not get from or to a file; the message says which, where, why and what to do.

    `path`, `offset_nbytes` and `length_nbytes` name the stretch; `errno` is the system's number.

    >>> e = StorageError("cannot read 8 bytes", path="weights.bin", offset_nbytes=96, length_nbytes=8)
    >>> str(e), e.path, e.offset_nbytes, e.length_nbytes, e.errno
    ('cannot read 8 bytes', 'weights.bin', 96, 8, None)
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str],
        offset_nbytes: int | None = None,
        length_nbytes: int | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = os.fspath(path)
        self.offset_nbytes = offset_nbytes
        self.length_nbytes = length_nbytes
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.path, self.offset_nbytes, self.length_nbytes, self.errno)
        return _rebuild, (type(self), str(self), *facts)


class MissingFileError(StorageError, FileNotFoundError):
    """There is no file where one was named."""


class ChangedFileError(StorageError, RuntimeError):
    """A file is no longer the one that was opened: what it holds now is not what was asked for."""


def _rebuild(
    kind: type[StorageError],
    message: str,
    path: str,
    offset_nbytes: int | None,
    length_nbytes: int | None,
    errno: int | None,
) -> StorageError:
    return kind(message, path=path, offset_nbytes=offset_nbytes, length_nbytes=length_nbytes, errno=errno)
