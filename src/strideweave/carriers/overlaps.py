"""Overlaps: whether two carriers have bytes in common, though they are two objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from strideweave.carriers.carrier import Carrier
from strideweave.carriers.checkpoint_file import CheckpointFile
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.torch_storage import TorchStorage

Stretch: TypeAlias = tuple[object, int, int]
"""A space of bytes, and where in it a stretch begins and ends."""


def overlap(source: Carrier, offset: int, destination: Carrier, count: int) -> bool:
    """Whether some byte of `count` slots of `source`, from `offset` on, is one of the first `count` of `destination`.

    Known of memory and of files, by whatever path they were opened; carriers of other classes keep bytes of their own.

    >>> import torch
    >>> from strideweave import CPU
    >>> memory = torch.arange(10.0)
    >>> first, second = CPU.wrap(memory[:6]), CPU.wrap(memory[4:])
    >>> overlap(first, 0, second, 4), overlap(first, 0, second, 6)
    (False, True)
    """
    in_memory = isinstance(source, TorchStorage) and isinstance(destination, TorchStorage)
    in_files = isinstance(source, FileBacked | CheckpointFile) and isinstance(destination, FileBacked)
    if not (in_memory or in_files):
        return False
    ours = list(_stretches(destination, 0, count))
    return any(
        space == other and begin < last and first < end
        for space, begin, end in _stretches(source, offset, count)
        for other, first, last in ours
    )


def _stretches(carrier: Carrier, first: int, count: int) -> Iterator[Stretch]:
    """Where those slots are, or will be: an empty file gets its slots where it begins, empty memory elsewhere."""
    itemsize = carrier.dtype().itemsize
    begin, end = first * itemsize, (first + count) * itemsize
    if isinstance(carrier, TorchStorage):
        if carrier.size():
            flat = carrier._flat()
            # Only these are addressed by bytes: elsewhere a pointer is the name of a storage.
            is_address = flat.device.type in ("cpu", "cuda")
            base = flat.data_ptr() if is_address else int(flat.storage_offset()) * itemsize
            space = flat.device if is_address else (flat.device, flat.untyped_storage().data_ptr())
            yield space, base + begin, base + end
    elif isinstance(carrier, FileBacked):
        yield from _in_file(carrier.path, carrier.offset_nbytes + begin, carrier.offset_nbytes + end)
    elif isinstance(carrier, CheckpointFile):
        done = 0
        for piece in carrier.pieces:
            inside = max(begin - done, 0), min(end - done, piece.nbytes)
            if inside[0] < inside[1]:
                yield from _in_file(piece.file.path, *(piece.offset_nbytes + at for at in inside))
            done += piece.nbytes


def _in_file(path: str | os.PathLike[str], begin: int, end: int) -> Iterator[Stretch]:
    with suppress(OSError):  # a file that is gone says so when it is read
        found = Path(path).stat()
        yield (found.st_dev, found.st_ino), begin, end
