"""Pickled and deep copies of carriers: values for memory, a path and an identity for files, a refusal for the rest.

`reduce_carrier` is `Carrier.__reduce_ex__` and `deepcopy_carrier` is `Carrier.__deepcopy__`: they stand here because
they know the shipped classes, which `Carrier` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from strideweave.carriers import ports
from strideweave.carriers.carrier import Carrier, Scalar
from strideweave.carriers.checkpoint_file import CheckpointFile, Piece
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.generic import Generic
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import StorageDType
from strideweave.io import ChangedFileError, FileIdentity

Reduced: TypeAlias = tuple[Callable[..., Carrier], tuple[Any, ...]]

RUN_NBYTES = 4 * 2**20
"""How much one read or write of a deep copy asks for. Units: bytes."""


def reduce_carrier(carrier: Carrier, protocol: SupportsIndex = 4) -> Reduced:
    """How pickle makes the carrier again: unowned, at version 0, as mutable as it was made.

    Memory travels as its values (out of band under protocol 5), and comes back on the same kind of device. A FileBacked
    at a path is opened again there, where it must be the same file: device and inode, and for an immutable carrier size
    and modification time too. A CheckpointFile is its pieces.

    Errors: TypeError for a carrier that has no pickled form: one in an anonymous file, one made of other carriers, one
    on a block device; RuntimeError when it is released.

    >>> import pickle
    >>> from strideweave import CPU
    >>> from strideweave.carriers.pickling import reduce_carrier
    >>> rebuild, parts = reduce_carrier(CPU(3))
    >>> rebuild(*pickle.loads(pickle.dumps(parts))).size()
    3
    """
    carrier._require_live("pickle")
    if isinstance(carrier, TorchStorage):
        flat = carrier._flat()
        # numpy, not torch: a torch tensor would take the whole storage along, of which this may be a slice.
        octets = flat.cpu().view(torch.uint8).numpy()
        return _remember, (type(carrier), octets, carrier.dtype(), carrier._mutable, str(flat.device))
    if isinstance(carrier, Generic):
        return _list_again, (list(carrier._values), carrier.dtype(), carrier._mutable)
    if isinstance(carrier, CheckpointFile):
        return _read_again, (carrier.pieces, carrier.dtype())
    if isinstance(carrier, FileBacked):
        return _reduce_file(carrier)
    raise TypeError(
        f"cannot pickle {carrier!r}: {type(carrier).__name__} has no pickled form. Carriers in memory, FileBacked at a "
        "path and CheckpointFile have one. Call materialize() on the tensor and pickle the result."
    )


def deepcopy_carrier(carrier: Carrier, memo: dict[int, Any]) -> Carrier:
    """A carrier with the same values in storage of its own, from `allocate_like`; the same one for the same `memo`.

    A FileBacked is copied into an anonymous file; a CheckpointFile, which nothing changes, reads the same pieces.

    Errors: TypeError for a carrier that is made of other carriers; RuntimeError when it is released.

    >>> from strideweave import CPU
    >>> from strideweave.carriers.pickling import deepcopy_carrier
    >>> source = CPU(2)
    >>> copied = deepcopy_carrier(source, {})
    >>> copied[0] = 1.0
    >>> source[0], copied[0]
    (0.0, 1.0)
    """
    known: Carrier | None = memo.get(id(carrier))
    if known is not None:
        return known
    carrier._require_live("copy")
    if carrier._is_dependent():
        raise TypeError(
            f"cannot copy {carrier!r}: {type(carrier).__name__} is made of other carriers, and a copy would need tiers "
            "of its own. Call materialize() on the tensor for a dense copy."
        )
    copied: Carrier
    if isinstance(carrier, CheckpointFile):
        copied = CheckpointFile(carrier.pieces, dtype=carrier.dtype())
    else:
        copied = carrier.allocate_like(carrier.size(), empty=True)
        _copy_values(carrier, copied)
        copied._mutable = carrier._mutable
    memo[id(carrier)] = copied
    return copied


def _copy_values(source: Carrier, target: Carrier) -> None:
    if isinstance(source, TorchStorage) and isinstance(target, TorchStorage):
        target._flat().copy_(source._flat())
        return
    size = source.size()
    step = min(size, max(1, RUN_NBYTES // source.dtype().itemsize))
    bounce = torch.empty(step, dtype=source.dtype().torch_dtype)
    for begin in range(0, size, max(1, step)):
        run = bounce[: min(step, size - begin)]
        source._read_runs([(begin, run)])
        target._write_runs([(begin, run)])


def _reduce_file(carrier: FileBacked) -> Reduced:
    if carrier._file.is_anonymous:
        raise TypeError(
            f"cannot pickle {carrier!r}: its file is anonymous and goes with the carrier. A pickle names a file that "
            "stays. Make the carrier at a path, or call materialize() on the tensor and pickle the result."
        )
    place = (carrier.path, carrier.dtype(), carrier.size(), carrier.offset_nbytes, carrier._mutable)
    return _open_again, (*place, FileIdentity.of(carrier.path))


def _remember(
    cls: type[TorchStorage], octets: npt.NDArray[np.uint8], dtype: StorageDType, mutable: bool, device: str
) -> Carrier:
    # A buffer that came out of band may be read-only or lie anywhere.
    if not octets.flags.writeable or octets.ctypes.data % dtype.itemsize:
        octets = octets.copy()
    return cls.wrap(torch.from_numpy(octets).view(dtype.torch_dtype).to(device), mutable=mutable)


def _list_again(values: list[Scalar | None], dtype: StorageDType, mutable: bool) -> Carrier:
    return Generic(values, dtype=dtype, mutable=mutable)


def _read_again(pieces: tuple[Piece, ...], dtype: StorageDType) -> Carrier:
    return CheckpointFile(pieces, dtype=dtype)


def _open_again(
    path: str, dtype: StorageDType, size: int, offset_nbytes: int, mutable: bool, identity: FileIdentity
) -> Carrier:
    found = FileIdentity.of(path)
    # Whoever may write the file may have written it since: that is what sharing a file is for.
    is_same = (found.device, found.inode) == (identity.device, identity.inode) if mutable else found == identity
    if not is_same:
        raise ChangedFileError(
            f"cannot unpickle a FileBacked carrier at {path!r}: the file was {identity}, it is {found}. It must be the "
            "file that was pickled, and unchanged if the carrier is immutable. Put the old file back, or use "
            "FileBacked.open.",
            path=path,
        )
    return FileBacked.open(path, dtype=dtype, size=size, offset_nbytes=offset_nbytes, mutable=mutable)


ports.bind({"reduce_carrier": reduce_carrier, "deepcopy_carrier": deepcopy_carrier})
