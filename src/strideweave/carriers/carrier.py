"""What every carrier is: a flat, typed extent of slots with an owner, a version and an end."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeAlias

import torch

from strideweave.dtype import DType, StorageDType

Scalar: TypeAlias = float | int | bool
Run: TypeAlias = tuple[int, torch.Tensor]

_owner_tokens = itertools.count(1)


class Carrier(ABC):
    """A flat extent of slots of one dtype: where the values of a Tensor live.

    Subclasses say how storage is read and written in *runs* (consecutive slots): `_read_runs`, `_write_runs`,
    `_allocate`, `_free`. Everything else, ranges, ownership, versions and release, is decided here once.

    Errors: IndexError for a slot outside; RuntimeError for a released, immutable or owned carrier.
    """

    accepted_dtypes: ClassVar[tuple[StorageDType, ...]] = DType.registered()

    def __init__(self, *, dtype: StorageDType, mutable: bool = True) -> None:
        self._dtype = validate_storage_dtype(dtype, carrier=type(self).__name__, accepted=self.accepted_dtypes)
        self._mutable = bool(mutable)
        self._released = False
        self._version = 0
        self._owner: int | None = None
        self._owner_lock = threading.Lock()  # guards _owner

    # -- storage, per subclass ---------------------------------------------------------------------------------

    @abstractmethod
    def size(self) -> int:
        """The number of slots; 0 after release, and before an empty carrier is allocated."""

    @abstractmethod
    def _read_runs(self, runs: Sequence[Run]) -> int:
        """Fill each contiguous 1-d tensor from the slots that begin at its start; the bytes read."""

    @abstractmethod
    def _write_runs(self, runs: Sequence[Run]) -> int:
        """Put each contiguous 1-d tensor at the slots that begin at its start; the bytes written."""

    @abstractmethod
    def _allocate(self, size: int) -> None:
        """Give an empty carrier `size` slots of unspecified value."""

    @abstractmethod
    def _free(self) -> None:
        """Let go of the storage."""

    @abstractmethod
    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        """A fresh carrier of this class with `size` slots, zero unless `empty`."""

    def _flat(self) -> torch.Tensor:
        """The whole extent as one 1-d torch tensor that shares memory; only for carriers in torch storage."""
        raise BufferError(
            f"cannot see {self!r} as memory: its values are not in addressable memory. Only carriers in torch storage "
            "(CPU) can be viewed. Call materialize() on the tensor for a copy."
        )

    def _is_in_memory(self) -> bool:
        """Whether `_flat` works."""
        return False

    def _is_dependent(self) -> bool:
        """Whether the carrier is made of other carriers, and so cannot be a part of one."""
        return False

    # -- facts -------------------------------------------------------------------------------------------------

    def dtype(self) -> StorageDType:
        """The dtype of every slot; known after release too."""
        return self._dtype

    @property
    def version(self) -> int:
        """How many times the visible values have changed; residency never changes it."""
        return self._version

    @property
    def nbytes(self) -> int:
        """The bytes of all slots."""
        return self.size() * self._dtype.itemsize

    def is_mutable(self) -> bool:
        """Whether somebody outside may write: never while the carrier is owned or released."""
        return self._mutable and self._owner is None and not self._released

    def is_owned(self) -> bool:
        """Whether a larger structure or a pending request has taken the carrier over."""
        return self._owner is not None

    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._released

    def supports_storage_dtype(self, dtype: StorageDType) -> bool:
        """Whether this class can store `dtype`. Errors: TypeError for what is no storage dtype."""
        if not isinstance(dtype, StorageDType):
            raise TypeError(
                f"cannot ask {type(self).__name__} about {dtype!r}: storage dtype must be a DType. "
                "Pass one such as DType.BFloat16."
            )
        return dtype in self.accepted_dtypes

    # -- values ------------------------------------------------------------------------------------------------

    def get_value(self, index: int) -> Scalar:
        """The value of one slot."""
        self._require_live("read")
        one = torch.empty(1, dtype=self._dtype.torch_dtype)
        self._read_runs([(self._slot(index), one)])
        value: Scalar = one.item()
        return value

    def set_value(self, index: int, value: Scalar) -> None:
        """Write one slot and advance the version once."""
        self._require_writable("write")
        slot = self._slot(index)
        self._write_runs([(slot, torch.tensor([value], dtype=self._dtype.torch_dtype))])
        self._version += 1

    def __getitem__(self, index: int) -> Scalar:
        return self.get_value(index)

    def __setitem__(self, index: int, value: Scalar) -> None:
        self.set_value(index, value)

    def new_like(
        self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType | None = None
    ) -> Carrier:
        """A fresh carrier of this class that holds `values`; None becomes zero."""
        chosen = dtype or self._dtype
        flat = torch.tensor([0 if v is None else v for v in values], dtype=chosen.torch_dtype)
        fresh = self.allocate_like(flat.numel(), mutable=mutable, dtype=chosen, empty=True)
        if flat.numel():
            fresh._write_runs([(0, flat)])
        return fresh

    # -- the end -----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Let go of the storage; again is harmless. Errors: RuntimeError while the carrier is owned."""
        if self._released:
            return
        if self._owner is not None:
            raise RuntimeError(
                f"cannot release {self!r}: it is owned by a larger structure or a pending request. "
                "Release the owner, or wait for the request."
            )
        self._released = True
        self._free()

    # -- ownership ---------------------------------------------------------------------------------------------

    def _claim_ownership(self) -> int:
        with self._owner_lock:
            self._require_live("take over")
            if self._owner is not None:
                raise RuntimeError(
                    f"cannot take over {self!r}: it is already owned. A carrier has one owner. Pass another carrier."
                )
            self._owner = next(_owner_tokens)
            return self._owner

    def _relinquish_ownership(self, token: int) -> None:
        with self._owner_lock:
            assert self._owner == token, "only the owner gives up ownership"
            self._owner = None

    # -- guards ------------------------------------------------------------------------------------------------

    def _require_live(self, what: str) -> None:
        if self._released:
            raise RuntimeError(
                f"cannot {what} {type(self).__name__}: carrier is released. A released carrier holds no values. "
                "Make a new one."
            )

    def _require_writable(self, what: str) -> None:
        self._require_live(what)
        if self._owner is not None:
            raise RuntimeError(
                f"cannot {what} {self!r}: it is owned, so it must not be changed from outside. "
                "Go through its owner, or wait for the pending request."
            )
        if not self._mutable:
            raise RuntimeError(f"cannot {what} {self!r}: Carrier is not mutable. Make a mutable copy.")

    def _slot(self, index: int) -> int:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"cannot use {index!r} as a slot: a slot must be an integer. Pass an int.")
        if not 0 <= index < self.size():
            raise IndexError(
                f"cannot use slot {index} of {type(self).__name__}: it has {self.size()} slots. Carrier index out of "
                "range. Pass an index below the size."
            )
        return index

    def __repr__(self) -> str:
        state = ", released" if self._released else ", owned" if self._owner is not None else ""
        return f"<{type(self).__name__} of {self.size()} x {self._dtype.name}{state}>"


def validate_storage_dtype(dtype: StorageDType, *, carrier: str, accepted: Sequence[StorageDType]) -> StorageDType:
    """`dtype` itself. Errors: TypeError for what is no storage dtype, ValueError for one not accepted."""
    if not isinstance(dtype, StorageDType):
        raise TypeError(
            f"cannot make a {carrier} of {dtype!r}: dtype must be a DType. Pass one such as DType.BFloat16."
        )
    if dtype not in accepted:
        names = ", ".join(d.name for d in accepted)
        raise ValueError(f"cannot make a {carrier} of {dtype.name}: it stores {names}. Choose one of these.")
    return dtype


def require_size(size: int, *, what: str) -> int:
    """`size` itself, when it is an exact integer of at least 0."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"cannot make {what} of size {size!r}: a size must be an integer. Pass an int.")
    if size < 0:
        raise ValueError(f"cannot make {what} of size {size}: a size must not be negative. Pass 0 or more.")
    return size


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, sharing its memory."""
    # numpy's stubs do not say that an array is a buffer on this Python.
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
