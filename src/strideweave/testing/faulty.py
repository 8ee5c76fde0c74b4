"""A carrier whose nth read, write or allocation fails, tears, falls short or waits: by ordinal, never at random."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self, TypeAlias, final

import torch

from strideweave.carriers.carrier import Carrier, Run, require_size
from strideweave.dtype import DType, StorageDType

PATIENCE_S = 20.0
"""How long a held call waits to be let go, and `wait_until_reached` for the call. Units: seconds."""

Call: TypeAlias = Literal["read", "write", "allocate"]
"""What a script counts: `_read_runs`, `_write_runs`, and giving an empty carrier its slots."""


@final
class Hold:
    """A call that waits before it moves anything until `let_go`, and then fails with `error` if there is one.

    Leaving the `with` block lets it go.

    >>> import threading, torch
    >>> from strideweave.testing import FaultyCarrier
    >>> carrier = FaultyCarrier(torch.ones(2))
    >>> reader = threading.Thread(target=lambda: print(carrier[0]))
    >>> with carrier.hold_read() as hold:
    ...     reader.start()
    ...     hold.wait_until_reached()
    ...     print("held")
    held
    >>> reader.join()
    1.0
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._reached = threading.Event()
        self._let_go = threading.Event()

    @property
    def is_reached(self) -> bool:
        """Whether the call has begun."""
        return self._reached.is_set()

    def wait_until_reached(self) -> None:
        """The call has begun, and waits. Errors: AssertionError when it never begins."""
        if not self._reached.wait(PATIENCE_S):
            raise AssertionError(
                f"the held call was never made: {PATIENCE_S} s are over. A hold waits for the call that it is meant "
                "for. Check the ordinal, and that the code under test gets there."
            )

    def let_go(self) -> None:
        """The call goes on; one that has not begun will not wait."""
        self._let_go.set()

    def __call__(self) -> None:
        """Wait, as the held call does."""
        self._reached.set()
        if not self._let_go.wait(PATIENCE_S):
            raise AssertionError(
                f"nobody let the held call go: {PATIENCE_S} s are over. Every hold is let go by its test. Use `with`."
            )
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()


@final
class FaultScript:
    """What is to go wrong, by the ordinal of the call: the first read is read 1, and so are write 1 and allocation 1.

    One script can be shared by several carriers, which then count together. Threads may share it.

    >>> from strideweave.testing import FaultScript
    >>> script = FaultScript()
    >>> script.fail("write", 2, OSError("disk full"))
    >>> script.begin("write") is None, script.begin("write").error, script.count("write")
    (True, OSError('disk full'), 2)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both dictionaries
        self._counts: dict[Call, int] = {"read": 0, "write": 0, "allocate": 0}
        self._faults: dict[tuple[Call, int], Fault] = {}

    def count(self, call: Call) -> int:
        """How many such calls there have been."""
        with self._lock:
            return self._counts[call]

    def fail(self, call: Call, ahead: int = 1, error: BaseException | None = None, *, torn: bool = False) -> None:
        """The call that is `ahead` from now (1 is the next) raises `error`, an OSError unless given.

        A torn write leaves the first half of its first run behind; a torn read fills that much.
        """
        chosen = error if error is not None else OSError(f"the {call} that was to fail has failed")
        self._put(call, ahead, Fault(error=chosen, is_torn=torn))

    def shorten(self, call: Call, ahead: int = 1) -> None:
        """The call that is `ahead` from now leaves out its last slot, says so in the bytes it returns, raises nothing.

        No carrier may do that: whoever counts on a carrier notices it or loses data.
        """
        self._put(call, ahead, Fault(is_short=True))

    def hold(self, call: Call, ahead: int = 1) -> Hold:
        """The call that is `ahead` from now waits until it is let go."""
        hold = Hold()
        self._put(call, ahead, Fault(step=hold))
        return hold

    def clear(self) -> None:
        """Nothing more is to go wrong; the counts stay, and what is held stays so until it is let go."""
        with self._lock:
            self._faults.clear()

    def begin(self, call: Call) -> Fault | None:
        """Count a call; what is to go wrong with it."""
        with self._lock:
            self._counts[call] += 1
            return self._faults.pop((call, self._counts[call]), None)

    def _put(self, call: Call, ahead: int, fault: Fault) -> None:
        if call not in self._counts:
            raise ValueError(f"cannot script {call!r}: a script counts {', '.join(self._counts)}. Choose one of these.")
        if ahead < 1:
            raise ValueError(f"cannot script the {call} {ahead} calls ahead: it is over. The next one is 1 ahead.")
        with self._lock:
            self._faults[call, self._counts[call] + ahead] = fault


@final
class Fault:
    """What goes wrong with one call.

    >>> from strideweave.testing.faulty import Fault
    >>> Fault(error=OSError("gone")).run()
    Traceback (most recent call last):
    OSError: gone
    """

    __slots__ = ("error", "is_short", "is_torn", "step")

    def __init__(
        self,
        *,
        error: BaseException | None = None,
        step: Callable[[], None] | None = None,
        is_torn: bool = False,
        is_short: bool = False,
    ) -> None:
        self.error = error
        self.step = step
        self.is_torn = is_torn
        self.is_short = is_short

    def run(self) -> None:
        """Wait if the call is held, and raise if it fails."""
        if self.step is not None:
            self.step()
        if self.error is not None:
            raise self.error


class FaultyCarrier(Carrier):
    """Values in memory that only runs can reach, as on a disk, so that it serves as a secondary tier; with a script.

    `storage` is the memory, for a test to look at; `children` are the carriers that `allocate_like` made, each with a
    script of its own.

    >>> import torch
    >>> from strideweave import CPU, TiledEvictable, TileSet
    >>> from strideweave.testing import FaultyCarrier
    >>> disk = FaultyCarrier()
    >>> tiled = TiledEvictable(CPU.wrap(torch.arange(4.0)), disk, (2,), (2,))
    >>> disk.fail_write(1, OSError("disk full"))
    >>> tiled.evict(TileSet([(0,)]))
    Traceback (most recent call last):
    OSError: disk full
    >>> tiled.evict(TileSet([(0,)]))
    >>> tiled[1], disk.writes
    (1.0, 2)
    """

    def __init__(
        self,
        values: torch.Tensor | None = None,
        *,
        dtype: StorageDType = DType.Float32,
        mutable: bool = True,
        script: FaultScript | None = None,
    ) -> None:
        super().__init__(dtype=dtype if values is None else DType.from_torch(values.dtype), mutable=mutable)
        self.storage = torch.empty(0, dtype=self._dtype.torch_dtype) if values is None else values.clone()
        self.script = FaultScript() if script is None else script
        self.children: list[FaultyCarrier] = []

    # -- the script ----------------------------------------------------------------------------------------------

    @property
    def reads(self) -> int:
        """How many times runs were read."""
        return self.script.count("read")

    @property
    def writes(self) -> int:
        """How many times runs were written."""
        return self.script.count("write")

    def fail_read(self, ahead: int, error: BaseException) -> None:
        """The read that is `ahead` from now (1 is the next) raises."""
        self.script.fail("read", ahead, error)

    def fail_write(self, ahead: int, error: BaseException, *, torn: bool = False) -> None:
        """The write that is `ahead` from now raises; a torn one leaves half of its first run behind."""
        self.script.fail("write", ahead, error, torn=torn)

    def hold_read(self, ahead: int = 1) -> Hold:
        """The read that is `ahead` from now waits until it is let go."""
        return self.script.hold("read", ahead)

    def hold_write(self, ahead: int = 1) -> Hold:
        """The write that is `ahead` from now waits until it is let go."""
        return self.script.hold("write", ahead)

    # -- the carrier ---------------------------------------------------------------------------------------------

    def size(self) -> int:
        """The number of slots."""
        return self.storage.numel()

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> FaultyCarrier:
        """A fresh carrier of this class, zero either way, in `children` from now on; it has a script of its own.

        Errors: TypeError, ValueError for a bad size.
        """
        require_size(size, what=f"a {type(self).__name__}")
        child = type(self)(torch.zeros(size, dtype=(dtype or self._dtype).torch_dtype), mutable=mutable)
        self.children.append(child)
        return child

    def _read_runs(self, runs: Sequence[Run]) -> int:
        fault = self.script.begin("read")
        if fault is not None and fault.is_torn:
            self._fill(_first_half(runs))
        if fault is not None:
            fault.run()
        return self._fill(_without_the_last(runs) if fault is not None and fault.is_short else runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        fault = self.script.begin("write")
        if fault is not None and fault.is_torn:
            self._put(_first_half(runs))
        if fault is not None:
            fault.run()
        return self._put(_without_the_last(runs) if fault is not None and fault.is_short else runs)

    def _allocate(self, size: int) -> None:
        fault = self.script.begin("allocate")
        if fault is not None:
            fault.run()
        short = fault is not None and fault.is_short
        self.storage = torch.empty(max(size - 1, 0) if short else size, dtype=self._dtype.torch_dtype)

    def _free(self) -> None:
        self.storage = torch.empty(0, dtype=self._dtype.torch_dtype)

    def _fill(self, runs: Sequence[Run]) -> int:
        for start, out in runs:
            out.copy_(self.storage[start : start + out.numel()])
        return sum(out.nbytes for _, out in runs)

    def _put(self, runs: Sequence[Run]) -> int:
        for start, source in runs:
            self.storage[start : start + source.numel()] = source
        return sum(source.nbytes for _, source in runs)


def _first_half(runs: Sequence[Run]) -> list[Run]:
    return [(start, memory[: memory.numel() // 2]) for start, memory in runs[:1]]


def _without_the_last(runs: Sequence[Run]) -> list[Run]:
    return [*runs[:-1], *((start, memory[:-1]) for start, memory in runs[-1:])]
