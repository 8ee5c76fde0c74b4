"""A storage carrier whose nth read or write fails, tears or waits: faults by ordinal, never at random."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from strideweave import Carrier
from strideweave.carriers.carrier import Run
from strideweave.dtype import DType, StorageDType

PATIENCE_S = 20.0


class Hold:
    """A transfer that waits before it moves anything until `let_go`, and then fails with `error` if there is one."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), "the held transfer was never started"

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def let_go(self) -> None:
        self._released.set()

    def __call__(self) -> None:
        self._reached.set()
        assert self._released.wait(PATIENCE_S), "nobody let the held transfer go"
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *exception: object) -> None:
        self.let_go()


class ScriptedCarrier(Carrier):
    """Values in memory that only runs can reach, so that it serves as a secondary tier; ordinals count from 1."""

    def __init__(
        self,
        values: torch.Tensor | None = None,
        *,
        dtype: StorageDType = DType.Float32,
        mutable: bool = True,
    ) -> None:
        super().__init__(dtype=dtype if values is None else DType.from_torch(values.dtype), mutable=mutable)
        self.storage = torch.empty(0, dtype=self._dtype.torch_dtype) if values is None else values.clone()
        self.reads = 0
        self.writes = 0
        self.children: list[ScriptedCarrier] = []
        self._counting = threading.Lock()  # guards reads, writes and the two scripts
        self._read_script: dict[int, Callable[[], None]] = {}
        self._write_script: dict[int, Callable[[], None]] = {}
        self._torn_writes: set[int] = set()

    # -- the script ----------------------------------------------------------------------------------------------

    def fail_read(self, ahead: int, error: BaseException) -> None:
        """The read that is `ahead` from now (1 is the next) raises."""
        with self._counting:
            self._read_script[self.reads + ahead] = _raiser(error)

    def fail_write(self, ahead: int, error: BaseException, *, torn: bool = False) -> None:
        """The write that is `ahead` from now raises; a torn one leaves half of its first run behind."""
        with self._counting:
            self._write_script[self.writes + ahead] = _raiser(error)
            if torn:
                self._torn_writes.add(self.writes + ahead)

    def hold_read(self, ahead: int = 1) -> Hold:
        with self._counting:
            hold = self._read_script[self.reads + ahead] = Hold()
        return hold

    def hold_write(self, ahead: int = 1) -> Hold:
        with self._counting:
            hold = self._write_script[self.writes + ahead] = Hold()
        return hold

    # -- the carrier ---------------------------------------------------------------------------------------------

    def size(self) -> int:
        return self.storage.numel()

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> ScriptedCarrier:
        chosen = dtype or self._dtype
        child = ScriptedCarrier(torch.zeros(size, dtype=chosen.torch_dtype), mutable=mutable)
        self.children.append(child)
        return child

    def _read_runs(self, runs: Sequence[Run]) -> int:
        with self._counting:
            self.reads += 1
            step = self._read_script.pop(self.reads, None)
        if step is not None:
            step()
        for start, out in runs:
            out.copy_(self.storage[start : start + out.numel()])
        return sum(out.nbytes for _, out in runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        with self._counting:
            self.writes += 1
            step = self._write_script.pop(self.writes, None)
            torn = self.writes in self._torn_writes
        if torn:
            start, source = runs[0]
            half = source.numel() // 2
            self.storage[start : start + half] = source[:half]
        if step is not None:
            step()
        for start, source in runs:
            self.storage[start : start + source.numel()] = source
        return sum(source.nbytes for _, source in runs)

    def _allocate(self, size: int) -> None:
        self.storage = torch.empty(size, dtype=self._dtype.torch_dtype)

    def _free(self) -> None:
        self.storage = torch.empty(0, dtype=self._dtype.torch_dtype)


def _raiser(error: BaseException) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step
