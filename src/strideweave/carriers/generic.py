"""The reference carrier: plain Python values, one object per slot, against which the others are measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import torch

from strideweave.carriers.carrier import Carrier, Run, Scalar, require_size, rounded, slot_value
from strideweave.dtype import StorageDType


@final
class Generic(Carrier):
    """Its own copy of `values`, each as the dtype holds it: rounded if floating, otherwise exact; None becomes zero.

    Shapes: flat. Errors: TypeError for what is no number; OverflowError for a whole number beyond the dtype;
    ValueError for a number that a whole dtype or Bool cannot hold exactly.

    >>> from strideweave.carriers import Generic
    >>> from strideweave.dtype import DType
    >>> c = Generic([0.1, None, 2], dtype=DType.Float32)
    >>> [c[i] for i in range(3)]
    [0.10000000149011612, 0.0, 2.0]
    """

    def __init__(self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType) -> None:
        super().__init__(dtype=dtype, mutable=mutable)
        if not isinstance(values, Iterable):
            raise TypeError(
                f"cannot make a Generic carrier of {values!r}: it takes one value for each slot. Pass a list."
            )
        self._values = [_normalised(0 if v is None else v, dtype) for v in values]

    def size(self) -> int:
        """The number of slots."""
        return len(self._values)

    def get_value(self, index: int) -> Scalar:
        """The value of one slot."""
        self._require_live("read")
        return self._values[self._slot(index)]

    def set_value(self, index: int, value: Scalar) -> None:
        """Write one slot, as the dtype holds it, and advance the version once."""
        self._require_writable("write")
        slot = self._slot(index)
        self._values[slot] = _normalised(value, self._dtype)
        self._version += 1

    def new_like(
        self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType | None = None
    ) -> Generic:
        """A fresh Generic carrier that holds `values`; None becomes zero."""
        return Generic(values, mutable=mutable, dtype=dtype or self._dtype)

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Generic:
        """A fresh Generic carrier of `size` slots, all zero."""
        fresh = Generic((), mutable=mutable, dtype=dtype or self._dtype)
        fresh._allocate(require_size(size, what="a Generic carrier"))
        return fresh

    def _read_runs(self, runs: Sequence[Run]) -> int:
        for start, out in runs:
            out.copy_(torch.tensor(self._values[start : start + out.numel()], dtype=self._dtype.torch_dtype))
        return sum(out.nbytes for _, out in runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        for start, source in runs:
            self._values[start : start + source.numel()] = source.tolist()
        return sum(source.nbytes for _, source in runs)

    def _allocate(self, size: int) -> None:
        assert not self._values, "only an empty carrier is allocated"
        self._values = [_normalised(0, self._dtype)] * size

    def _free(self) -> None:
        self._values = []


def _normalised(value: object, dtype: StorageDType) -> Scalar:
    """The value that a slot of `dtype` holds when `value` is put there."""
    return rounded(slot_value(value, dtype), dtype)
