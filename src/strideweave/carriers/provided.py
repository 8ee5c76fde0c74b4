"""What the framework asks of a StorageProvider, and what it takes for an answer.

What a function of a provider raises comes through as it is. Errors here: TypeError, ValueError for wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from strideweave.carriers.definition import StorageProvider
from strideweave.carriers.slots import Run, Scalar, rounded, slot_value
from strideweave.dtype import DType, StorageDType


def supports_dtype(storage: StorageProvider, carrier: Any, dtype: StorageDType) -> bool:
    """Whether the class of the carrier stores the dtype."""
    answer: object = storage.supports_dtype(carrier, dtype)
    if not isinstance(answer, bool):
        raise TypeError(f"{_blame(carrier, 'supports_dtype', answer)}: it must return a bool. Mend the provider.")
    return answer


def physical_size(storage: StorageProvider, carrier: Any) -> int:
    """The number of slots."""
    size: object = storage.physical_size(carrier)
    if type(size) is not int:
        raise TypeError(f"{_blame(carrier, 'physical_size', size)}: it must return an integer. Mend the provider.")
    if size < 0:
        raise ValueError(f"{_blame(carrier, 'physical_size', size)}: it must not return a negative. Mend the provider.")
    return size


def allocate(storage: StorageProvider, carrier: Any, size: int) -> None:
    """The carrier, which had no slots, has `size` of them; or none, when the provider established another number."""
    _require_none(carrier, "allocate", storage.allocate(carrier, size))
    established = physical_size(storage, carrier)
    if established != size:
        try:
            raise ValueError(
                f"cannot allocate {size} slots of {type(carrier).__name__}: its provider established {established}. "
                "Allocation gives the requested physical size. Mend the provider."
            )
        finally:
            storage.release(carrier)


def release(storage: StorageProvider, carrier: Any) -> None:
    """The carrier has no slots any more."""
    _require_none(carrier, "release", storage.release(carrier))


def read(storage: StorageProvider, carrier: Any, slot: int) -> Scalar:
    """The value of one slot, a plain Python number."""
    value: Any = storage.read(carrier, slot)
    dtype: StorageDType = carrier._dtype
    plain = float if dtype.is_floating else bool if dtype is DType.Bool else int
    return value if type(value) is plain else slot_value(value, dtype)


def write(storage: StorageProvider, carrier: Any, slot: int, number: Scalar) -> None:
    """One slot holds a number from `slot_value`, rounded to the dtype."""
    _require_none(carrier, "write", storage.write(carrier, slot, rounded(number, carrier._dtype)))


def read_runs(storage: StorageProvider, carrier: Any, runs: Sequence[Run]) -> int:
    """Every run is filled from its slots; the bytes read."""
    if storage.read_runs is not None:
        return _moved(carrier, "read_runs", storage.read_runs(carrier, runs))
    for start, out in runs:
        values = [read(storage, carrier, k) for k in range(start, start + out.numel())]
        out.copy_(torch.tensor(values, dtype=carrier._dtype.torch_dtype))
    return sum(out.nbytes for _, out in runs)


def write_runs(storage: StorageProvider, carrier: Any, runs: Sequence[Run]) -> int:
    """Every run is stored in its slots; the bytes written."""
    if storage.write_runs is not None:
        return _moved(carrier, "write_runs", storage.write_runs(carrier, runs))
    for start, source in runs:
        for k, value in enumerate(source.tolist(), start):
            _require_none(carrier, "write", storage.write(carrier, k, value))
    return sum(source.nbytes for _, source in runs)


def _moved(carrier: object, what: str, nbytes: object) -> int:
    if type(nbytes) is not int:
        raise TypeError(f"{_blame(carrier, what, nbytes)}: it must return an integer, the bytes. Mend the provider.")
    return nbytes


def _require_none(carrier: object, what: str, outcome: object) -> None:
    if outcome is not None:
        raise TypeError(f"{_blame(carrier, what, outcome)}: it must return None. Mend the provider.")


def _blame(carrier: object, what: str, outcome: object) -> str:
    return f"cannot go on with {type(carrier).__name__}: {what} of its StorageProvider gave {outcome!r}"
