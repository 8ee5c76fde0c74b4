"""A carrier whose whole value is in one of two others: where it is used, or where it rests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NoReturn, final

import torch

from strideweave.carriers.carrier import Carrier, Run, require_size
from strideweave.carriers.checkpoint_file import CheckpointFile
from strideweave.carriers.file_backed import FileBacked
from strideweave.carriers.torch_storage import TorchStorage
from strideweave.dtype import StorageDType

RUN_NBYTES = 4 * 2**20
"""How much one read or write of a transition asks for, where the two tiers share no memory. Units: bytes."""

_FREED_FOR_GOOD = (FileBacked, CheckpointFile)


@final
class Evictable(Carrier):
    """The values of `primary`, in primary or in `secondary`: all of them in one, and in primary at first.

    Residency changes only when asked: an evicted value is read and written where it lies. Neither its identity nor its
    version changes by that. Eviction frees the storage of primary, of which memory that was wrapped is no longer a part
    then; a value that was not written since it was promoted is not stored again. Both carriers are owned until the end,
    and end with this one. It is as mutable as primary was.

    Shapes: flat, of the size of primary. Secondary is empty, or of that size, and its content is ignored.
    Errors: TypeError for what is no Carrier, is made of others or has another dtype, and for a primary whose storage
    cannot be made anew; ValueError for one carrier twice, an empty primary or another size; RuntimeError for a carrier
    that is released or owned, and an immutable secondary. Nothing has changed then.

    >>> import torch
    >>> from strideweave import CPU, FileBacked
    >>> from strideweave.carriers.evictable import Evictable
    >>> c = Evictable(CPU.wrap(torch.arange(3.0)), FileBacked())
    >>> c.evict()
    >>> c[1] = 7.0
    >>> c.is_evicted(), c[1], c.primary.size(), c.version
    (True, 7.0, 0, 1)
    >>> c.promote()
    >>> c.is_evicted(), [c[i] for i in range(3)], c.version
    (False, [0.0, 7.0, 2.0], 1)
    >>> c.release()
    """

    def __init__(self, primary: Carrier, secondary: Carrier) -> None:
        _require_tiers(primary, secondary)
        super().__init__(dtype=primary.dtype(), mutable=primary.is_mutable())
        self._primary = primary
        self._secondary = secondary
        self._size = primary.size()
        self._guard = threading.RLock()  # guards _is_evicted, _stored, _uses, and every transfer to and from a tier
        self._is_evicted = False
        self._stored: object = None  # what _state was when secondary last held the same values
        self._uses = 0
        primary_token = primary._claim_ownership()
        try:
            self._tokens = (primary_token, secondary._claim_ownership())
        except BaseException:
            primary._relinquish_ownership(primary_token)
            raise

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> Carrier:
        """The carrier that holds the value where it is used; empty while evicted."""
        return self._primary

    @property
    def secondary(self) -> Carrier:
        """The carrier that holds the value while it is evicted."""
        return self._secondary

    def is_evicted(self) -> bool:
        """Whether the value is in secondary."""
        return self._is_evicted

    def size(self) -> int:
        """The number of slots; 0 after release."""
        return self._size

    def supports_storage_dtype(self, dtype: StorageDType) -> bool:
        """Whether both tiers can store `dtype`. Errors: TypeError for what is no storage dtype."""
        return self._primary.supports_storage_dtype(dtype) and self._secondary.supports_storage_dtype(dtype)

    def _is_dependent(self) -> bool:
        return True

    # -- residency -------------------------------------------------------------------------------------------------

    def evict(self) -> None:
        """The value is in secondary, and primary is empty; again is harmless. An empty secondary is allocated.

        Errors: RuntimeError when released, or while an operation uses the value; whatever secondary raises. The value
        is in primary as before then.
        """
        with self._guard:
            self._require_live("evict")
            if self._is_evicted:
                return
            if self._uses:
                raise RuntimeError(
                    f"cannot evict {self!r}: {self._uses} operations use its value. A value stays where it is used. "
                    "Evict it after they end."
                )
            if self._stored != self._state():
                self._store()
            self._primary._free()
            self._is_evicted = True

    def promote(self) -> None:
        """The value is in primary; again is harmless. Secondary keeps its copy.

        Errors: RuntimeError when released; whatever primary or secondary raises. The value is in secondary as before
        then.
        """
        with self._guard:
            self._require_live("promote")
            if not self._is_evicted:
                return
            self._primary._allocate(self._secondary.size())
            try:
                _copy_all(self._secondary, self._primary)
            except BaseException:
                self._primary._free()
                raise
            self._is_evicted = False
            self._stored = self._state()

    def _store(self) -> None:
        """Secondary holds the values of primary."""
        secondary, was_empty = self._secondary, self._secondary.size() == 0
        if was_empty:
            secondary._allocate(self._primary.size())
        secondary._version += 1  # before the first value changes: a copy that fails midway has changed some
        try:
            _copy_all(self._primary, secondary)
        except BaseException:
            if was_empty and not isinstance(secondary, _FREED_FOR_GOOD):
                secondary._free()
            raise

    def _state(self) -> object:
        """What differs whenever the value in primary was written, by us or through shared memory."""
        return self._version, self._primary._content_token()

    def _tier(self) -> Carrier:
        return self._secondary if self._is_evicted else self._primary

    @contextmanager
    def _compute_carrier(self) -> Iterator[Carrier]:
        """Primary with the value in it, which is not evicted in the block: what kernels work on.

        Who writes into it advances the version of this carrier, as every write does.
        """
        with self._guard:
            self.promote()
            self._uses += 1
        try:
            yield self._primary
        finally:
            with self._guard:
                self._uses -= 1

    # -- values ----------------------------------------------------------------------------------------------------

    def _read_runs(self, runs: Sequence[Run]) -> int:
        with self._guard:
            self._require_live("read")
            return self._tier()._read_runs(runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        with self._guard:
            self._require_live("write")
            tier = self._tier()
            tier._version += 1  # first: a write that fails may have changed some, and evict must store it
            return tier._write_runs(runs)

    def _allocate(self, size: int) -> NoReturn:
        raise NotImplementedError(
            f"cannot allocate {self!r}: its extent is that of its primary. Construct another one."
        )

    def _flat(self) -> NoReturn:
        raise BufferError(
            f"cannot see {self!r} as memory: its value comes and goes with eviction. Only carriers in torch storage "
            "can be viewed. Call materialize() on the tensor for a copy."
        )

    # -- making others ---------------------------------------------------------------------------------------------

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Evictable:
        """A fresh one over fresh tiers of the same classes: `size` slots in primary, zero unless `empty`.

        Errors: ValueError for size 0, and for a dtype that a tier cannot store.
        """
        chosen = dtype or self._dtype
        require_size(size, what="an Evictable carrier")
        return Evictable(
            self._primary.allocate_like(size, mutable=mutable, dtype=chosen, empty=empty),
            self._secondary.allocate_like(0, dtype=chosen),
        )

    # -- the end ---------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Let go of the value and of both tiers; again is harmless.

        Errors: RuntimeError while an operation uses the value.
        """
        with self._guard:
            if not self._released and self._uses:
                raise RuntimeError(
                    f"cannot release {self!r}: {self._uses} operations use its value. A carrier is released after its "
                    "work. Release it after they end."
                )
            super().release()

    def _free(self) -> None:
        self._size = 0
        self._is_evicted = False
        with ExitStack() as both:  # the second ends even when the first fails to
            for tier, token in zip((self._primary, self._secondary), self._tokens, strict=True):
                tier._relinquish_ownership(token)
                both.callback(tier.release)

    def __repr__(self) -> str:
        where = ", evicted" if self._is_evicted else ""
        tiers = f"{type(self._primary).__name__} over {type(self._secondary).__name__}"
        return f"{super().__repr__()[:-1]}{where}: {tiers}>"


def _require_tiers(primary: object, secondary: object) -> None:
    """Both are ordinary live carriers of one dtype that nobody owns, and a value can go to and fro between them."""
    tiers = (("primary", primary), ("secondary", secondary))
    for name, tier in tiers:
        if not isinstance(tier, Carrier):
            raise TypeError(
                f"cannot use {type(tier).__name__} as {name}: it must be a Carrier. Pass one, such as CPU or "
                "FileBacked."
            )
    assert isinstance(primary, Carrier)
    assert isinstance(secondary, Carrier)
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if tier._is_dependent():
            raise TypeError(
                f"cannot use {tier!r} as {name}: it is made of other carriers. A tier is an ordinary carrier. Pass one."
            )
    if primary is secondary:
        raise ValueError("cannot use one carrier as both tiers: they must be two. Pass another secondary.")
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if tier.is_released():
            raise RuntimeError(
                f"cannot use {tier!r} as {name}: it is released. A released carrier holds no values. Pass a live one."
            )
    for name, tier in (("primary", primary), ("secondary", secondary)):
        if tier.is_owned():
            raise RuntimeError(
                f"cannot use {tier!r} as {name}: it is owned. A carrier has one owner. Pass one that nothing else owns."
            )
    if primary.dtype() is not secondary.dtype():
        raise TypeError(
            f"cannot evict {primary.dtype().name} into {secondary.dtype().name}: a transition converts nothing, so the "
            "dtype must match. Make both tiers of one."
        )
    if isinstance(primary, _FREED_FOR_GOOD):
        raise TypeError(
            f"cannot use {primary!r} as primary: its storage is a file, which eviction would end for good. Primary is "
            "where values are used. Pass a carrier in memory, such as CPU."
        )
    if not secondary.is_mutable():
        raise RuntimeError(
            f"cannot use {secondary!r} as secondary: it is not mutable. Eviction writes to it. Pass a mutable carrier."
        )
    if primary.size() == 0:
        raise ValueError(
            f"cannot use {primary!r} as primary: it is empty. Its size is that of the value. Pass one that has slots."
        )
    if secondary.size() not in (0, primary.size()):
        raise ValueError(
            f"cannot use {secondary!r} as secondary: it has {secondary.size()} slots and primary has {primary.size()}. "
            "It is empty, or takes exactly the value. Pass one of these."
        )


def _copy_all(source: Carrier, target: Carrier) -> None:
    """Every slot of `target` holds what is in that slot of `source`."""
    # Tiers made under inference mode take writes only under it, and another thread or block may not have it.
    with torch.inference_mode():
        if isinstance(source, TorchStorage) and isinstance(target, TorchStorage):
            target._flat().copy_(source._flat())
            return
        origin = source._flat() if source._is_in_memory() else None
        memory = target._flat() if origin is None and target._is_in_memory() else origin
        count, itemsize = source.size(), source.dtype().itemsize
        step = min(count, max(1, RUN_NBYTES // itemsize))
        bounce = torch.empty(step if memory is None else 0, dtype=source.dtype().torch_dtype)
        for begin in range(0, count, step):
            length = min(step, count - begin)
            run = bounce[:length] if memory is None else memory[begin : begin + length]
            if origin is None:
                _require_all(source._read_runs([(begin, run)]), length * itemsize, "read", source)
            if origin is not None or memory is None:
                _require_all(target._write_runs([(begin, run)]), length * itemsize, "wrote", target)


def _require_all(nbytes: int, expected_nbytes: int, did: str, carrier: Carrier) -> None:
    if nbytes != expected_nbytes:
        raise RuntimeError(
            f"cannot finish the transition: {carrier!r} {did} {nbytes} of {expected_nbytes} bytes and raised nothing. "
            "A run is moved whole or fails. Mend the carrier."
        )
