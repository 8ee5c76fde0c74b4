"""The contract of a carrier as tests: what an author runs against a carrier of their own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from strideweave.carriers.carrier import Carrier, Run, Scalar
from strideweave.dtype import DType, StorageDType
from strideweave.testing.moving import MovingContract, OutwardContract
from strideweave.testing.reading import SIZE
from strideweave.testing.rules import pattern, read_everything, refused, require, same_values, special_values, works


class CarrierContract(MovingContract):
    """Every rule of a carrier that can be written, one test method each; pytest runs the ones of a subclass.

    Override `make`, and the class attributes where the carrier is not as they say. A method fails with an
    AssertionError that states the rule. Needs nothing but pytest to collect it; a plain call of a method does too.

    >>> from strideweave import CPU
    >>> class TestMyCarrier(CarrierContract):
    ...     def make(self, size, *, dtype=DType.Float32, mutable=True):
    ...         return CPU(size, dtype=dtype, mutable=mutable)
    >>> TestMyCarrier().test_version_counts_every_write_once()
    """

    @abstractmethod
    def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
        """A fresh carrier with `size` slots, all zero. Sizes of any kind are asked for, 0 unless `is_fixed_size`."""

    def filled(self, values: torch.Tensor) -> Carrier:
        """A carrier from `make` with these values; `_write_runs` counts no version, elements count one each."""
        carrier = self.make(values.numel(), dtype=DType.from_torch(values.dtype))
        with works("a fresh carrier can be written"):
            if self.has_runs:
                carrier._write_runs([(0, values.clone())])
            else:
                for slot, value in enumerate(values.tolist()):
                    carrier[slot] = value
        return carrier

    def fresh(self, *, mutable: bool = True, size: int = SIZE) -> Carrier:
        """An ordinary carrier from `make`."""
        return self.make(size, dtype=self.dtype(), mutable=mutable)

    # -- making ------------------------------------------------------------------------------------------------------

    def test_make_gives_zeros_that_may_be_written(self) -> None:
        """Of any size and every dtype."""
        for size in (1, 7, SIZE):
            carrier = self.fresh(size=size)
            require(carrier.size() == size, f"a carrier of {size} slots has that size", carrier.size())
            require(read_everything(carrier) == [0] * size, "the slots of a fresh carrier are zero")
            require(carrier.is_mutable(), "a carrier is mutable unless it was asked not to be")
            require(not carrier.is_owned() and not carrier.is_released(), "a fresh carrier is live and nobody's")
        if not self.is_fixed_size:
            require(self.fresh(size=0).size() == 0, "a carrier can be empty")

    def test_make_twice_shares_no_storage(self) -> None:
        """A write into one is seen by no other, released or not."""
        one, two = self.fresh(), self.fresh()
        values = self.sample().tolist()
        one[3] = values[3]
        require(read_everything(two) == [0] * SIZE, "two carriers share no slot", read_everything(two))
        one.release()
        two[5] = values[5]
        require(two[5] == values[5], "releasing one carrier leaves the others as they are", two[5])

    # -- writing -----------------------------------------------------------------------------------------------------

    def test_write_changes_one_slot_of_every_dtype(self) -> None:
        """Special values too, through set_value and through []."""
        for dtype in self.stored_dtypes():
            special = special_values(dtype)
            values = torch.cat([special, pattern(SIZE - special.numel(), dtype)])
            carrier = self.make(SIZE, dtype=dtype)
            with works(f"a value of {dtype.name} can be written"):
                for slot in reversed(range(SIZE)):
                    value: Scalar = values[slot].item()
                    if slot % 2:
                        carrier[slot] = value
                    else:
                        carrier.set_value(slot, value)
                found = torch.tensor([carrier[k] for k in range(SIZE)], dtype=torch.float64)
            wanted = values.to(torch.float64)
            if not dtype.is_floating:  # float64 does not hold every Int64
                require(read_everything(carrier) == values.tolist(), f"{dtype.name} keeps what is written")
            require(same_values(found, wanted), f"{dtype.name} keeps what is written, slot by slot", found.tolist())

    def test_write_of_what_the_dtype_cannot_hold_is_refused(self) -> None:
        """No whole number wraps round, and what is no number is no value."""
        carrier = self.filled(self.sample())
        before, version = read_everything(carrier), carrier.version
        wrong: tuple[Any, ...] = ("text", None, object(), [1, 2])
        for value in wrong:
            with refused((TypeError, ValueError, RuntimeError), "", f"{type(value).__name__} is no value of a slot"):
                carrier[2] = value
        require(carrier.version == version, "a failed write leaves the version alone", (version, carrier.version))
        require(read_everything(carrier) == before, "a failed write leaves the values alone")
        for dtype in self.stored_dtypes():
            if dtype.is_floating:
                continue
            whole = self.make(SIZE, dtype=dtype)
            limits = torch.iinfo(dtype.torch_dtype) if dtype is not DType.Bool else None
            for beyond in (0.5, 2) if limits is None else (0.5, limits.max + 1, limits.min - 1):
                rule = f"{dtype.name} refuses {beyond}, which it cannot hold, and neither wraps nor rounds it"
                with refused((OverflowError, ValueError, RuntimeError), "", rule):
                    whole[2] = beyond
            require((whole[2], whole.version) == (0, 0), "a failed write changes nothing", (whole[2], whole.version))

    def test_write_outside_the_extent_is_refused(self) -> None:
        """And changes nothing."""
        carrier = self.filled(self.sample())
        before, version = read_everything(carrier), carrier.version
        for index in (SIZE, -1, 2**63):
            with refused(IndexError, "out of range", f"writing slot {index} of {SIZE} raises IndexError"):
                carrier[index] = 1
        wrong: tuple[Any, ...] = (True, 1.0, "1", None)
        for index in wrong:
            with refused(TypeError, "integer", f"a slot is an int, which {index!r} is not: writing it is a TypeError"):
                carrier[index] = 1
        require(carrier.version == version, "a failed write leaves the version alone", (version, carrier.version))
        require(read_everything(carrier) == before, "a failed write leaves the values alone")

    def test_write_into_an_immutable_carrier_is_refused(self) -> None:
        """Reading goes on."""
        carrier = self.fresh(mutable=False)
        version = carrier.version
        require(not carrier.is_mutable(), "mutable=False is what is_mutable() says")
        with refused(RuntimeError, "not mutable", "an immutable carrier is not written"):
            carrier[0] = 1
        require(carrier.version == version, "a failed write leaves the version alone", carrier.version)
        require(read_everything(carrier) == [0] * SIZE, "an immutable carrier keeps its values, and can be read")
        token = carrier._claim_ownership()
        carrier._relinquish_ownership(token)
        require(not carrier.is_mutable(), "giving up ownership makes no carrier mutable that was not")
        carrier.release()

    def test_version_counts_every_write_once(self) -> None:
        """Reads never, refused writes never, a write of the same value like any other."""
        carrier = self.fresh()
        values = self.sample().tolist()
        start = carrier.version
        require(type(start) is int, "version is an int", start)
        for count, slot in enumerate((0, SIZE - 1, 0, 5), start=1):
            carrier[slot] = values[slot]
            require(carrier.version == start + count, "a write advances the version by one", carrier.version - start)
        read_everything(carrier)
        for refuse in (SIZE, -1):
            with refused(IndexError, "", "writing outside raises"):
                carrier[refuse] = 1
        token = carrier._claim_ownership()
        with refused(RuntimeError, "mutable|owned", "an owned carrier is not written by an outsider"):
            carrier[0] = values[1]
        carrier._relinquish_ownership(token)
        require(
            carrier.version == start + 4, "nothing but a write that succeeds counts", f"{carrier.version - start} of 4"
        )

    # -- runs --------------------------------------------------------------------------------------------------------

    def test_runs_are_written_in_any_order_and_number(self) -> None:
        """What lies between them stays; the memory they came from is the caller's own; the version is left alone."""
        if not self.has_runs:
            return
        size = 200
        shapes = {
            "no runs at all": [],
            "a run of no slots": [(5, 0)],
            "the whole extent": [(0, size)],
            "the last slot": [(size - 1, 1)],
            "adjacent runs": [(0, 10), (10, 5), (15, 30)],
            "adjacent runs backwards": [(15, 30), (10, 5), (0, 10)],
            "runs with gaps": [(100, 7), (3, 2), (60, 20)],
            "one run per slot, shuffled": [(k * 77 % size, 1) for k in range(size)],
        }
        values = pattern(size, self.dtype())
        carrier = self.filled(values)
        version = carrier.version
        for salt, (name, shape) in enumerate(shapes.items(), start=1):
            source = pattern(sum(n for _, n in shape), self.dtype(), salt=salt)
            runs: list[Run] = []
            at = 0
            for start, n in shape:
                runs.append((start, source[at : at + n]))
                values[start : start + n] = source[at : at + n]
                at += n
            with works(f"{name} can be written"):
                nbytes = carrier._write_runs(runs)
            due = source.nbytes
            require(nbytes == due, f"_write_runs returns the bytes that it wrote ({name})", f"{nbytes}, due {due}")
            source.zero_()
            found = torch.empty_like(values)
            carrier._read_runs([(0, found)])
            wrong = [k for k in range(size) if not same_values(found[k : k + 1], values[k : k + 1])]
            require(not wrong, f"_write_runs puts copies where it was told and nothing elsewhere ({name})", wrong)
        require(carrier.version == version, "_write_runs counts no version: whoever calls it does", carrier.version)
        require(read_everything(carrier) == values.tolist(), "elements and runs are the same slots")

    # -- making others -----------------------------------------------------------------------------------------------

    def test_new_like_holds_its_values_in_fresh_storage(self) -> None:
        """None is zero; the prototype may change or go."""
        carrier = self.filled(self.sample())
        values: list[Scalar | None] = [*self.sample(1).tolist()]
        values[2] = values[5] = None
        wanted = [0 if v is None else v for v in values]
        with works("new_like takes values, None among them, from any iterable"):
            made = carrier.new_like(iter(values))
        require(type(made) is type(carrier), "new_like makes a carrier of the same class", type(made))
        require(made is not carrier and made.dtype() is carrier.dtype(), "new_like keeps the dtype", made.dtype())
        require(read_everything(made) == wanted, "new_like holds its values, None being zero", read_everything(made))
        require(made.is_mutable() and not made.is_owned(), "new_like is mutable, and nobody's")
        before = read_everything(carrier)
        made[0] = values[1] or 1
        require(read_everything(carrier) == before, "what new_like makes shares no slot with its prototype")
        carrier[7] = values[8] or 1
        require(made[7] == wanted[7], "a prototype shares no slot with what new_like made", made[7])
        carrier.release()
        require(made[3] == wanted[3], "what new_like makes outlives its prototype", made[3])

    def test_new_like_takes_mutability_and_dtype(self) -> None:
        """As asked, not as the prototype is."""
        values = [True, False] * (SIZE // 2)
        for mutable in (True, False):
            prototype = self.fresh(mutable=not mutable)
            for dtype in self.stored_dtypes():
                with works(f"new_like makes a carrier of {dtype.name}"):
                    made = prototype.new_like(values, mutable=mutable, dtype=dtype)
                require(made.dtype() is dtype, "new_like takes the dtype that is given", made.dtype())
                require(made.is_mutable() is mutable, "new_like takes the mutability that is given")
                require(read_everything(made) == values, f"new_like holds its values as {dtype.name}")

    def test_allocate_like_is_zero_in_fresh_storage(self) -> None:
        """Of the size, dtype and mutability that is asked for; unspecified but there when `empty`."""
        carrier = self.filled(self.sample())
        sizes = (SIZE,) if self.is_fixed_size else (0, 1, SIZE, 3 * SIZE)
        for size in sizes:
            for dtype in (None, *self.stored_dtypes()):
                with works(f"allocate_like makes {size} slots"):
                    made = carrier.allocate_like(size, dtype=dtype)
                require(type(made) is type(carrier), "allocate_like makes a carrier of the same class", type(made))
                require(made.size() == size, f"allocate_like({size}) has {size} slots", made.size())
                require(made.dtype() is (dtype or carrier.dtype()), "allocate_like takes the dtype", made.dtype())
                require(read_everything(made) == [0] * size, "the slots of allocate_like are zero")
            for mutable in (True, False):
                made = carrier.allocate_like(size, mutable=mutable)
                require(made.is_mutable() is mutable, "allocate_like takes the mutability that is given")
        with works("allocate_like(empty=True) makes slots that may be written"):
            bare = carrier.allocate_like(SIZE, empty=True)
            require(bare.size() == SIZE, "allocate_like(empty=True) has its slots", bare.size())
        one, two = carrier.allocate_like(SIZE), carrier.allocate_like(SIZE)
        one[4] = 1
        require(two[4] == 0, "two carriers of allocate_like share no slot", two[4])
        require(read_everything(carrier) == self.sample().tolist(), "allocate_like leaves its prototype as it is")

    def test_allocate_like_refuses_what_is_no_size(self) -> None:
        """Before anything is made."""
        carrier = self.fresh()
        wrong: tuple[Any, ...] = (True, 2.0, "2", None)
        for size in wrong:
            with refused(TypeError, "size", f"a size is an int, which {size!r} is not"):
                carrier.allocate_like(size)
        with refused(ValueError, "size|slots", "a size is not negative"):
            carrier.allocate_like(-1)


class ReadOnlyCarrierContract(OutwardContract):
    """Every rule of a carrier that is read and never written, over values that are there before it is made.

    >>> from strideweave import CPU
    >>> class TestMySource(ReadOnlyCarrierContract):
    ...     def make(self, values):
    ...         return CPU.wrap(values, mutable=False)
    >>> TestMySource().test_values_read_one_by_one_are_those_put_there()
    """

    @abstractmethod
    def make(self, values: torch.Tensor) -> Carrier:
        """A fresh carrier over a source that has these values (1-d, at least one)."""

    def filled(self, values: torch.Tensor) -> Carrier:
        """The carrier from `make`."""
        return self.make(values.clone())

    def test_write_is_refused(self) -> None:
        """By element and, for ever, whoever asks: the source is never changed."""
        values = self.sample()
        carrier = self.make(values.clone())
        require(not carrier.is_mutable(), "a read-only carrier is not mutable")
        version = carrier.version
        with refused(RuntimeError, "not mutable", "a read-only carrier is not written"):
            carrier[0] = 1
        require(carrier.version == version, "a failed write leaves the version alone", carrier.version)
        require(read_everything(carrier) == values.tolist(), "a failed write leaves the values alone")

    def test_others_made_from_it_may_be_written(self) -> None:
        """In storage of their own, of a class that can be written."""
        values = self.sample()
        carrier = self.make(values.clone())
        for made in (carrier.new_like(values.tolist()), carrier.allocate_like(SIZE)):
            require(made.is_mutable(), "new_like and allocate_like of a read-only carrier are mutable unless asked")
            made[0] = values.tolist()[3]
            require(made[0] == values.tolist()[3], "what a read-only carrier makes can be written", made[0])
        require(read_everything(carrier) == values.tolist(), "what is written there does not reach the source")
        require(not carrier.new_like([1], mutable=False).is_mutable(), "new_like(mutable=False) is immutable")
