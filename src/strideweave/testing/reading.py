"""What holds of every carrier that has values, whether it may be written or not."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ClassVar
from unittest import mock

import torch

from strideweave.carriers.carrier import Carrier, Run
from strideweave.dtype import DType, StorageDType
from strideweave.testing.rules import pattern, read_everything, refused, require, same_values, special_values, works

SIZE = 24
"""How many slots the carriers have that most rules are tried on."""


class ReadingContract(ABC):
    """The rules of reading; the two contracts that authors subclass have them all.

    >>> from strideweave.testing import CarrierContract, ReadOnlyCarrierContract
    >>> from strideweave.testing.reading import ReadingContract
    >>> issubclass(CarrierContract, ReadingContract), issubclass(ReadOnlyCarrierContract, ReadingContract)
    (True, True)
    """

    dtypes: ClassVar[Sequence[StorageDType] | None] = None
    """The dtypes that the carrier stores; None means those for which it says so itself."""
    has_runs: ClassVar[bool] = True
    """Whether `_read_runs` and `_write_runs` work; not on a carrier that is made of tiles."""
    is_fixed_size: ClassVar[bool] = False
    """Whether the extent is settled at construction: never empty, and `allocate_like` takes that extent only."""
    accepts_moves: ClassVar[bool] = True
    """Whether values move between the carrier and CPU; otherwise both ways are refused."""

    @abstractmethod
    def filled(self, values: torch.Tensor) -> Carrier:
        """A fresh carrier with these values; the two contracts say how from `make`."""

    def leftovers(self) -> object:
        """What the carriers keep outside of the process, to be compared before and after: files, say; None for none."""
        return None

    def stored_dtypes(self) -> Sequence[StorageDType]:
        """The dtypes to try."""
        if self.dtypes is not None:
            return self.dtypes
        asked = self.filled(pattern(SIZE, DType.Float32))
        return [dtype for dtype in DType.registered() if asked.supports_storage_dtype(dtype)]

    def dtype(self) -> StorageDType:
        """The dtype on which rules are tried that are the same for all."""
        return DType.Float32 if self.dtypes is None or DType.Float32 in self.dtypes else self.dtypes[0]

    def sample(self, salt: int = 0) -> torch.Tensor:
        """The values of an ordinary carrier."""
        return pattern(SIZE, self.dtype(), salt=salt)

    # -- values ------------------------------------------------------------------------------------------------------

    def test_values_read_one_by_one_are_those_put_there(self) -> None:
        """Slot by slot, in order, by both spellings."""
        values = self.sample()
        carrier = self.filled(values)
        with works("size(), dtype(), nbytes and reading work on a fresh carrier"):
            require(carrier.size() == SIZE, "size() is the number of slots", carrier.size())
            require(type(carrier.size()) is int, "size() is an int", type(carrier.size()))
            require(carrier.dtype() is self.dtype(), "dtype() is the dtype that was asked for", carrier.dtype())
            require(carrier.nbytes == values.nbytes, "nbytes is slots times item size", carrier.nbytes)
            found = read_everything(carrier)
        require(found == values.tolist(), "slot k holds the value that was put at slot k", found)
        require(carrier.get_value(3) == carrier[3], "get_value(i) and carrier[i] are one thing")

    def test_values_of_every_dtype_come_back_exactly(self) -> None:
        """Limits, NaN, infinity, the sign of zero: bit for bit but for the kind of NaN."""
        for dtype in self.stored_dtypes():
            special = special_values(dtype)
            rest = pattern(SIZE - special.numel(), dtype)
            values = torch.cat([special, rest])
            with works(f"a carrier of {dtype.name} can be made, filled and read"):
                carrier = self.filled(values)
                one_by_one = [carrier[k] for k in range(SIZE)]
            require(carrier.dtype() is dtype, "dtype() is the dtype that was asked for", carrier.dtype())
            for slot, (value, wanted) in enumerate(zip(one_by_one, values.tolist(), strict=True)):
                require(
                    type(value) is type(wanted) and _is_same(value, wanted),
                    f"{dtype.name} keeps {wanted!r} as it is, and get_value returns a plain Python value",
                    f"{value!r} of type {type(value).__name__} in slot {slot}",
                )
            if self.has_runs:
                require(
                    same_values(_read(carrier, 0, SIZE), values),
                    f"a run of {dtype.name} has every value bit for bit",
                    _read(carrier, 0, SIZE).tolist(),
                )

    def test_values_outside_the_extent_are_refused(self) -> None:
        """No wrapping round from the end, as a list would do, and no bool for an index."""
        carrier = self.filled(self.sample())
        for index in (SIZE, SIZE + 5, -1, -SIZE, 2**63):
            with refused(IndexError, "out of range", f"reading slot {index} of {SIZE} raises IndexError"):
                carrier[index]
        wrong: tuple[Any, ...] = (True, False, 1.0, "1", None, (0,), slice(0, 1))
        for index in wrong:
            with refused(TypeError, "integer", f"a slot is an int, which {index!r} is not: reading it is a TypeError"):
                carrier[index]

    def test_values_do_not_change_by_being_read(self) -> None:
        """Nor does the version, nor the ownership; and memory that was filled by a read is the reader's own."""
        values = self.sample()
        carrier = self.filled(values)
        before = facts(carrier)
        with works("reading works"):
            read_everything(carrier)
            if self.has_runs:
                _read(carrier, 2, 9).fill_(1)
        for index in (SIZE, -1):
            with refused(IndexError, "", "reading outside raises"):
                carrier[index]
        require(facts(carrier) == before, "reading changes no fact of a carrier", (before, facts(carrier)))
        require(read_everything(carrier) == values.tolist(), "reading changes no value", read_everything(carrier))

    # -- runs --------------------------------------------------------------------------------------------------------

    def test_runs_are_read_in_any_order_and_number(self) -> None:
        """One for the whole extent, one per slot, backwards, adjacent, with gaps, or none at all."""
        if not self.has_runs:
            return
        size = 200
        values = pattern(size, self.dtype())
        carrier = self.filled(values)
        shapes = {
            "the whole extent": [(0, size)],
            "no runs at all": [],
            "a run of no slots": [(5, 0)],
            "the last slot": [(size - 1, 1)],
            "adjacent runs": [(0, 10), (10, 5), (15, 30)],
            "adjacent runs backwards": [(15, 30), (10, 5), (0, 10)],
            "runs with gaps": [(100, 7), (3, 2), (60, 20)],
            "one run per slot": [(k, 1) for k in range(size)],
            "one run per slot, shuffled": [(k * 77 % size, 1) for k in range(size)],
            "runs that share slots": [(10, 20), (20, 20), (0, size)],
        }
        for name, shape in shapes.items():
            memory = torch.full((sum(n for _, n in shape) + 2 * len(shape),), 1).to(values.dtype)
            guard = memory.clone()
            runs: list[Run] = []
            at = 1
            for start, n in shape:
                runs.append((start, memory[at : at + n]))
                guard[at : at + n] = values[start : start + n]
                at += n + 2
            with works(f"{name} can be read"):
                nbytes = carrier._read_runs(runs)
            due = sum(out.nbytes for _, out in runs)
            require(nbytes == due, f"_read_runs returns the bytes that it read ({name})", f"{nbytes}, due {due}")
            require(same_values(memory, guard), f"_read_runs fills its memory and nothing beside it ({name})", memory)

    # -- facts -------------------------------------------------------------------------------------------------------

    def test_supports_storage_dtype_answers_for_every_dtype_and_refuses_the_rest(self) -> None:
        """A bool, the same for every instance, and a TypeError for what is no dtype."""
        carrier = self.filled(self.sample())
        before = facts(carrier)
        for dtype in DType.registered():
            answer: object = carrier.supports_storage_dtype(dtype)
            require(type(answer) is bool, "supports_storage_dtype returns a bool", answer)
        claimed = supported(carrier)
        require(self.dtype() in claimed, "a carrier supports the dtype that it stores", claimed)
        if self.dtypes is not None:
            require(
                set(claimed) == set(self.dtypes), "supports_storage_dtype is True for the dtypes it stores", claimed
            )
        wrong: tuple[Any, ...] = (None, "Float32", torch.float32, DType, 32)
        for other in wrong:
            with refused(TypeError, "storage dtype must be a DType", f"{other!r} is no storage dtype"):
                carrier.supports_storage_dtype(other)
        require(facts(carrier) == before, "asking changes nothing", (before, facts(carrier)))

    def test_repr_reads_no_value(self) -> None:
        """It may say what and where, and costs nothing."""
        carrier = self.filled(self.sample())

        def touched(*args: object, **kwargs: object) -> None:
            raise AssertionError("a rule of carriers is broken: repr reads no value. Found: a read")

        with ExitStack() as stack:
            for name in ("_read_runs", "get_value", "__getitem__", "_flat"):
                stack.enter_context(mock.patch.object(type(carrier), name, touched))
            with works("repr works"):
                text = repr(carrier)
        require(type(carrier).__name__ in text, "repr names the class", text)

    def test_reads_from_several_threads_are_all_right(self) -> None:
        """Each thread sees every value, whatever the others read."""
        size = 120
        values = pattern(size, self.dtype())
        carrier = self.filled(values)
        wanted = values.tolist()

        def read(thread: int) -> str | None:
            for turn in range(15):
                slot = (thread * 31 + turn * 17) % size
                if carrier[slot] != wanted[slot]:
                    return f"{carrier[slot]!r} in slot {slot}, where {wanted[slot]!r} is due"
                if self.has_runs and not same_values(_read(carrier, slot, size - slot), values[slot:]):
                    return f"wrong values in the run from slot {slot} on"
            return None

        with ThreadPoolExecutor(4) as pool, works("several threads may read one carrier"):
            errors = [e for e in pool.map(read, range(4)) if e is not None]
        require(not errors, "several threads read one carrier at once and each sees its values", errors)


def _read(carrier: Carrier, start: int, size: int) -> torch.Tensor:
    out = torch.empty(size, dtype=carrier.dtype().torch_dtype)
    carrier._read_runs([(start, out)])
    return out


def _is_same(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        if math.isnan(wanted):
            return math.isnan(value)
        return bool(value == wanted and math.copysign(1, value) == math.copysign(1, wanted))
    return bool(value == wanted)


def facts(carrier: Carrier) -> tuple[object, ...]:
    """What can be seen of a carrier without reading a value, and what only its owner or a write may change.

    >>> from strideweave import CPU
    >>> from strideweave.testing.reading import facts
    >>> facts(CPU(2))
    (2, 0, True, False, False)
    """
    return (carrier.size(), carrier.version, carrier.is_mutable(), carrier.is_owned(), carrier.is_released())


def supported(carrier: Carrier) -> list[StorageDType]:
    """The dtypes for which the carrier says that it stores them.

    >>> from strideweave import CPU, DType
    >>> from strideweave.testing.reading import supported
    >>> DType.Int8 in supported(CPU(1))
    True
    """
    return [dtype for dtype in DType.registered() if carrier.supports_storage_dtype(dtype)]
