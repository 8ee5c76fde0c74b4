"""The contract goes red for broken carriers: one fault each, and for every method of the contract at least one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import pytest
import torch

from strideweave import Carrier, DType
from strideweave.carriers.carrier import Run, Scalar, slot_value
from strideweave.dtype import StorageDType
from strideweave.testing import CarrierContract, ReadOnlyCarrierContract


class Healthy(Carrier):
    """Slots in a list of torch memory, and nothing wrong with them."""

    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = True) -> None:
        super().__init__(dtype=dtype, mutable=mutable)
        self.storage = torch.zeros(size, dtype=dtype.torch_dtype)

    def size(self) -> int:
        return self.storage.numel()

    def set_value(self, index: int, value: Scalar) -> None:
        self._require_writable("write")
        slot = self._slot(index)
        whole = slot_value(value, self._dtype)
        self._write_runs([(slot, torch.tensor([whole], dtype=self._dtype.torch_dtype))])
        self._version += 1

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        if type(size) is not int:
            raise TypeError("a size is an int")
        if size < 0:
            raise ValueError("a size is not negative")
        return type(self)(size, dtype=dtype or self._dtype, mutable=mutable)

    def _read_runs(self, runs: Sequence[Run]) -> int:
        for start, out in runs:
            out.copy_(self.storage[start : start + out.numel()])
        return sum(out.nbytes for _, out in runs)

    def _write_runs(self, runs: Sequence[Run]) -> int:
        for start, source in runs:
            self.storage[start : start + source.numel()] = source
        return sum(source.nbytes for _, source in runs)

    def _allocate(self, size: int) -> None:
        self.storage = torch.zeros(size, dtype=self._dtype.torch_dtype)

    def _free(self) -> None:
        self.storage = torch.empty(0, dtype=self._dtype.torch_dtype)


class Sealed(Healthy):
    """The same, never written from outside."""

    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = False) -> None:
        super().__init__(size, dtype=dtype, mutable=False)

    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        return Healthy(size, dtype=dtype or self._dtype, mutable=mutable)


# -- the faults ------------------------------------------------------------------------------------------------------


class CountsWritesTwice(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        super().set_value(index, value)
        self._version += 1


class CountsNoWrites(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        super().set_value(index, value)
        self._version -= 1


class CountsFailedWrites(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        self._version += 1
        super().set_value(index, value)
        self._version -= 1


class CountsReads(Healthy):
    def get_value(self, index: int) -> Scalar:
        self._version += 1
        return super().get_value(index)


class CountsRuns(Healthy):
    def _write_runs(self, runs: Sequence[Run]) -> int:
        self._version += 1
        return super()._write_runs(runs)

    def set_value(self, index: int, value: Scalar) -> None:
        super().set_value(index, value)
        self._version -= 1


class IgnoresWrites(Healthy):
    def _write_runs(self, runs: Sequence[Run]) -> int:
        return sum(source.nbytes for _, source in runs)


class WritesTheFirstRunOnly(Healthy):
    def _write_runs(self, runs: Sequence[Run]) -> int:
        super()._write_runs(runs[:1])
        return sum(source.nbytes for _, source in runs)


class WritesOneSlotFurtherInLaterRuns(Healthy):
    def _write_runs(self, runs: Sequence[Run]) -> int:
        last = self.size() - 1
        return super()._write_runs([(min(start + (k > 3), last), source) for k, (start, source) in enumerate(runs)])


class ReadsOneSlotFurtherInLaterRuns(Healthy):
    def _read_runs(self, runs: Sequence[Run]) -> int:
        for k, (start, out) in enumerate(runs):
            super()._read_runs([(max(start - (k > 3), 0), out)])
        return sum(out.nbytes for _, out in runs)


class ReadsTooMuch(Healthy):
    def _read_runs(self, runs: Sequence[Run]) -> int:
        for _, out in runs:
            if out.storage_offset() + out.numel() < out.untyped_storage().nbytes() // out.element_size():
                torch.as_strided(out, (out.numel() + 1,), (1,))[-1] = 3
        return super()._read_runs(runs)


class ReadsShort(Healthy):
    def _read_runs(self, runs: Sequence[Run]) -> int:
        return super()._read_runs(runs) - (len(runs) > 1)


class ReadsNoRunsAsAnError(Healthy):
    def _read_runs(self, runs: Sequence[Run]) -> int:
        return super()._read_runs([runs[0], *runs[1:]])


class KeepsTheCallersMemory(Healthy):
    def _write_runs(self, runs: Sequence[Run]) -> int:
        for start, source in runs:
            if start == 0 and source.numel() == self.size():
                self.storage = source
        return super()._write_runs(runs)


class LendsItsMemory(Healthy):
    def _read_runs(self, runs: Sequence[Run]) -> int:
        moved = super()._read_runs(runs)
        for start, out in runs:
            if out.numel() > 1 and start:
                self.storage[start] = 1  # as if the reader's fill_ had reached the carrier
        return moved


class LosesTheSignOfZero(Healthy):
    def _write_runs(self, runs: Sequence[Run]) -> int:
        return super()._write_runs([(start, torch.where(source == 0, 0, source)) for start, source in runs])


class GivesNumpyScalars(Healthy):
    def get_value(self, index: int) -> Scalar:
        value: Any = torch.tensor(super().get_value(index)).numpy()[()]
        return value  # type: ignore[no-any-return]


class WrapsNegativeIndices(Healthy):
    def _slot(self, index: int) -> int:
        if type(index) is int and -self.size() <= index < 0:
            return index + self.size()
        return super()._slot(index)


class TakesBoolIndices(Healthy):
    def _slot(self, index: int) -> int:
        return super()._slot(int(index) if isinstance(index, bool) else index)


class ReadsAfterRelease(Healthy):
    def get_value(self, index: int) -> Scalar:
        return 0.0 if self._released else super().get_value(index)


class ReleasesTwice(Healthy):
    def release(self) -> None:
        if self._released:
            raise RuntimeError("it is released already")
        super().release()


class ForgetsAfterRelease(Healthy):
    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        self._require_live("allocate like")
        return super().allocate_like(size, mutable=mutable, dtype=dtype, empty=empty)


class WritesWhileOwned(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        owner, self._owner = self._owner, None
        super().set_value(index, value)
        self._owner = owner


class IsMutableWhileOwned(Healthy):
    def is_mutable(self) -> bool:
        return self._mutable and not self._released


class IsClaimedByTwoThreads(Healthy):
    def _claim_ownership(self) -> int:
        self._require_live("claim")
        if self._owner is not None:
            raise RuntimeError("owned")
        time.sleep(0.01)
        self._owner = 1
        return 1


class IsEverybodys(IsMutableWhileOwned):
    def is_owned(self) -> bool:
        return False

    def _claim_ownership(self) -> int:
        self._require_live("claim")
        self._owner = 1
        return 1

    def _relinquish_ownership(self, token: int) -> None:
        self._owner = None


class StaysImmutableAfterOwnership(Healthy):
    def _relinquish_ownership(self, token: int) -> None:
        super()._relinquish_ownership(token)
        self._mutable = False


class IgnoresImmutability(Healthy):
    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = True) -> None:
        super().__init__(size, dtype=dtype, mutable=True)


class WritesThoughImmutable(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        self._mutable, mutable = True, self._mutable
        super().set_value(index, value)
        self._mutable = mutable


class StartsWithGarbage(Healthy):
    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = True) -> None:
        super().__init__(size, dtype=dtype, mutable=mutable)
        self.storage.fill_(1)


class SharesAllStorage(Healthy):
    everyone: ClassVar[dict[tuple[int, StorageDType], torch.Tensor]] = {}

    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = True) -> None:
        super().__init__(size, dtype=dtype, mutable=mutable)
        self.storage = self.everyone.setdefault((size, dtype), self.storage).zero_()


class SharesWithItsPrototype(Healthy):
    def new_like(
        self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType | None = None
    ) -> Carrier:
        made = super().new_like(values, mutable=mutable, dtype=dtype)
        assert isinstance(made, Healthy)
        if self.size() == made.size() and made.dtype() is self._dtype:
            self.storage.copy_(made.storage)
            made.storage = self.storage
        return made


class MakesHolesOnes(Healthy):
    def new_like(
        self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType | None = None
    ) -> Carrier:
        return super().new_like([1 if v is None else v for v in values], mutable=mutable, dtype=dtype)


class MakesOthersOfItsOwnDType(Healthy):
    def new_like(
        self, values: Iterable[Scalar | None], *, mutable: bool = True, dtype: StorageDType | None = None
    ) -> Carrier:
        return super().new_like(values, mutable=mutable)


class AllocatesGarbage(Healthy):
    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        made = super().allocate_like(size, mutable=mutable, dtype=dtype)
        assert isinstance(made, Healthy)
        made.storage.fill_(1)
        return made


class AllocatesMutable(Healthy):
    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        return super().allocate_like(size, dtype=dtype)


class AllocatesAnySize(Healthy):
    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        return super().allocate_like(max(0, int(size or 0)), mutable=mutable, dtype=dtype)


class StoresAnything(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        super().set_value(index, value if isinstance(value, int | float) else 1)


class WrapsWholeNumbers(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        if not self._dtype.is_floating and isinstance(value, int) and self._dtype is not DType.Bool:
            limits = torch.iinfo(self._dtype.torch_dtype)
            value = (value - limits.min) % (limits.max - limits.min + 1) + limits.min
        super().set_value(index, value)


class RoundsToWholeNumbers(Healthy):
    def set_value(self, index: int, value: Scalar) -> None:
        super().set_value(index, int(value) if value == 0.5 and not self._dtype.is_floating else value)


class SupportsWhateverIsAsked(Healthy):
    def supports_storage_dtype(self, dtype: StorageDType) -> bool:
        return True


class SupportsTheWrongOnes(Healthy):
    def supports_storage_dtype(self, dtype: StorageDType) -> bool:
        return not super().supports_storage_dtype(dtype)


class ReadsInRepr(Healthy):
    def __repr__(self) -> str:
        return f"{super().__repr__()}: {self.get_value(0)}"


class KeepsEveryInstance(Healthy):
    everyone: ClassVar[list[Carrier]] = []

    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = True) -> None:
        super().__init__(size, dtype=dtype, mutable=mutable)
        self.everyone.append(self)


class LeavesAThread(Healthy):
    ends: ClassVar[list[threading.Event]] = []

    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = True) -> None:
        super().__init__(size, dtype=dtype, mutable=mutable)
        self.ends.append(threading.Event())
        threading.Thread(target=self.ends[-1].wait, daemon=True).start()


class LeavesADescriptor(Healthy):
    left: ClassVar[list[int]] = []

    def __init__(self, size: int, *, dtype: StorageDType, mutable: bool = True) -> None:
        super().__init__(size, dtype=dtype, mutable=mutable)
        self.left.append(os.open(os.devnull, os.O_RDONLY))


class SharesItsCursor(Healthy):
    def _read_runs(self, runs: Sequence[Run]) -> int:
        for start, out in runs:
            self.cursor = start
            time.sleep(0.0002)
            super()._read_runs([(self.cursor, out)])
        return sum(out.nbytes for _, out in runs)


class AllocatesOneSlotTooFew(Healthy):
    def _allocate(self, size: int) -> None:
        super()._allocate(size - 1)


class FailsToFree(Healthy):
    def _free(self) -> None:
        raise OSError("it stays")


class SaysItIsNotReleased(Healthy):
    def is_released(self) -> bool:
        return False


class IsNeverOwned(Healthy):
    def is_owned(self) -> bool:
        return False


class ReadsFromTheBeginning(Healthy):
    """Long runs come from slot 0 wherever they begin: a move from an offset goes wrong."""

    def _read_runs(self, runs: Sequence[Run]) -> int:
        for start, out in runs:
            super()._read_runs([(0 if out.numel() > 10 else start, out)])
        return sum(out.nbytes for _, out in runs)


class LosesTheLastSlot(Healthy):
    """Full-length writes leave the last slot as it was."""

    def _write_runs(self, runs: Sequence[Run]) -> int:
        for start, source in runs:
            whole = source.numel() == self.size() > 1
            super()._write_runs([(start, source[:-1] if whole else source)])
        return sum(source.nbytes for _, source in runs)


class WritesThroughTheSeal(Sealed):
    def set_value(self, index: int, value: Scalar) -> None:
        self.storage[index] = value


class MakesSealedOthers(Sealed):
    def allocate_like(
        self, size: int, *, mutable: bool = True, dtype: StorageDType | None = None, empty: bool = False
    ) -> Carrier:
        return Healthy(size, dtype=dtype or self._dtype, mutable=False)


FAULTS: list[tuple[type[Healthy], str]] = [
    (IgnoresWrites, "test_values_read_one_by_one_are_those_put_there"),
    (LosesTheSignOfZero, "test_values_of_every_dtype_come_back_exactly"),
    (GivesNumpyScalars, "test_values_of_every_dtype_come_back_exactly"),
    (WrapsNegativeIndices, "test_values_outside_the_extent_are_refused"),
    (TakesBoolIndices, "test_values_outside_the_extent_are_refused"),
    (CountsReads, "test_values_do_not_change_by_being_read"),
    (LendsItsMemory, "test_values_do_not_change_by_being_read"),
    (ReadsOneSlotFurtherInLaterRuns, "test_runs_are_read_in_any_order_and_number"),
    (ReadsTooMuch, "test_runs_are_read_in_any_order_and_number"),
    (ReadsShort, "test_runs_are_read_in_any_order_and_number"),
    (ReadsNoRunsAsAnError, "test_runs_are_read_in_any_order_and_number"),
    (WritesWhileOwned, "test_ownership_is_had_by_one_and_shuts_out_the_others"),
    (IsMutableWhileOwned, "test_ownership_is_had_by_one_and_shuts_out_the_others"),
    (StaysImmutableAfterOwnership, "test_ownership_is_had_by_one_and_shuts_out_the_others"),
    (IsNeverOwned, "test_ownership_is_had_by_one_and_shuts_out_the_others"),
    (IsClaimedByTwoThreads, "test_ownership_asked_for_by_many_threads_is_given_to_one"),
    (ReadsAfterRelease, "test_release_ends_reading_and_writing"),
    (ReleasesTwice, "test_release_ends_reading_and_writing"),
    (SaysItIsNotReleased, "test_release_ends_reading_and_writing"),
    (ForgetsAfterRelease, "test_release_keeps_the_facts"),
    (KeepsEveryInstance, "test_release_by_the_garbage_collector_leaves_nothing"),
    (LeavesAThread, "test_release_by_the_garbage_collector_leaves_nothing"),
    (LeavesADescriptor, "test_release_by_the_garbage_collector_leaves_nothing"),
    (SupportsWhateverIsAsked, "test_supports_storage_dtype_answers_for_every_dtype_and_refuses_the_rest"),
    (SupportsTheWrongOnes, "test_supports_storage_dtype_answers_for_every_dtype_and_refuses_the_rest"),
    (ReadsInRepr, "test_repr_reads_no_value"),
    (SharesItsCursor, "test_reads_from_several_threads_are_all_right"),
    (StartsWithGarbage, "test_make_gives_zeros_that_may_be_written"),
    (SharesAllStorage, "test_make_twice_shares_no_storage"),
    (IgnoresWrites, "test_write_changes_one_slot_of_every_dtype"),
    (LosesTheSignOfZero, "test_write_changes_one_slot_of_every_dtype"),
    (StoresAnything, "test_write_of_what_the_dtype_cannot_hold_is_refused"),
    (RoundsToWholeNumbers, "test_write_of_what_the_dtype_cannot_hold_is_refused"),
    (WrapsWholeNumbers, "test_write_of_what_the_dtype_cannot_hold_is_refused"),
    (CountsFailedWrites, "test_write_of_what_the_dtype_cannot_hold_is_refused"),
    (WrapsNegativeIndices, "test_write_outside_the_extent_is_refused"),
    (CountsFailedWrites, "test_write_outside_the_extent_is_refused"),
    (IgnoresImmutability, "test_write_into_an_immutable_carrier_is_refused"),
    (WritesThoughImmutable, "test_write_into_an_immutable_carrier_is_refused"),
    (CountsWritesTwice, "test_version_counts_every_write_once"),
    (CountsNoWrites, "test_version_counts_every_write_once"),
    (CountsReads, "test_version_counts_every_write_once"),
    (CountsFailedWrites, "test_version_counts_every_write_once"),
    (WritesTheFirstRunOnly, "test_runs_are_written_in_any_order_and_number"),
    (WritesOneSlotFurtherInLaterRuns, "test_runs_are_written_in_any_order_and_number"),
    (KeepsTheCallersMemory, "test_runs_are_written_in_any_order_and_number"),
    (CountsRuns, "test_runs_are_written_in_any_order_and_number"),
    (SharesWithItsPrototype, "test_new_like_holds_its_values_in_fresh_storage"),
    (MakesHolesOnes, "test_new_like_holds_its_values_in_fresh_storage"),
    (AllocatesMutable, "test_new_like_takes_mutability_and_dtype"),
    (MakesOthersOfItsOwnDType, "test_new_like_takes_mutability_and_dtype"),
    (AllocatesGarbage, "test_allocate_like_is_zero_in_fresh_storage"),
    (AllocatesMutable, "test_allocate_like_is_zero_in_fresh_storage"),
    (AllocatesAnySize, "test_allocate_like_refuses_what_is_no_size"),
    (ReadsFromTheBeginning, "test_move_out_carries_every_value_of_the_layout"),
    (FailsToFree, "test_move_out_carries_every_value_of_the_layout"),
    (IsEverybodys, "test_move_out_of_a_carrier_that_is_not_free_is_refused"),
    (CountsRuns, "test_move_in_carries_every_value_of_the_layout"),
    (AllocatesOneSlotTooFew, "test_move_in_carries_every_value_of_the_layout"),
    (IsEverybodys, "test_move_into_a_carrier_that_is_not_free_is_refused"),
    (IgnoresImmutability, "test_move_into_a_carrier_that_is_not_free_is_refused"),
    (LosesTheLastSlot, "test_move_there_and_back_keeps_every_value"),
]

READ_ONLY_FAULTS: list[tuple[type[Sealed], str]] = [
    (WritesThroughTheSeal, "test_write_is_refused"),
    (MakesSealedOthers, "test_others_made_from_it_may_be_written"),
]


def contract_of(kind: type[Healthy]) -> CarrierContract:
    class Contract(CarrierContract):
        def make(self, size: int, *, dtype: StorageDType = DType.Float32, mutable: bool = True) -> Carrier:
            return kind(size, dtype=dtype, mutable=mutable)

    return Contract()


def read_only_contract_of(kind: type[Sealed]) -> ReadOnlyCarrierContract:
    class Contract(ReadOnlyCarrierContract):
        def make(self, values: torch.Tensor) -> Carrier:
            carrier = kind(values.numel(), dtype=DType.from_torch(values.dtype))
            carrier.storage = values
            return carrier

    return Contract()


def methods(contract: type) -> list[str]:
    return [name for name in dir(contract) if name.startswith("test_")]


def outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except AssertionError as error:
        return str(error)
    return "green"


@pytest.fixture(autouse=True)
def left_behind() -> Any:
    yield
    for end in LeavesAThread.ends:
        end.set()
    for descriptor in LeavesADescriptor.left:
        os.close(descriptor)
    for kept in (LeavesAThread.ends, LeavesADescriptor.left, KeepsEveryInstance.everyone):
        kept.clear()
    SharesAllStorage.everyone.clear()


@pytest.mark.parametrize("method", methods(CarrierContract))
def test_contract_is_green_for_a_healthy_carrier(method: str) -> None:
    assert outcome(getattr(contract_of(Healthy), method)) == "green"


@pytest.mark.parametrize("method", methods(ReadOnlyCarrierContract))
def test_read_only_contract_is_green_for_a_healthy_carrier(method: str) -> None:
    assert outcome(getattr(read_only_contract_of(Sealed), method)) == "green"


@pytest.mark.parametrize(("kind", "method"), FAULTS, ids=[f"{k.__name__}-{m}" for k, m in FAULTS])
def test_contract_is_red_for_a_broken_carrier_and_states_the_rule(kind: type[Healthy], method: str) -> None:
    said = outcome(getattr(contract_of(kind), method))
    assert said.startswith("a rule of carriers is broken: ")


@pytest.mark.parametrize(("kind", "method"), READ_ONLY_FAULTS, ids=[k.__name__ for k, _ in READ_ONLY_FAULTS])
def test_read_only_contract_is_red_for_a_broken_carrier(kind: type[Sealed], method: str) -> None:
    assert outcome(getattr(read_only_contract_of(kind), method)).startswith("a rule of carriers is broken: ")


def test_contract_has_no_method_that_catches_no_fault() -> None:
    assert {method for _, method in FAULTS} == set(methods(CarrierContract))
    shared = set(methods(CarrierContract))
    assert {method for _, method in READ_ONLY_FAULTS} == set(methods(ReadOnlyCarrierContract)) - shared


def test_contract_without_runs_or_moves_asks_for_neither() -> None:
    class Elements(Healthy):
        def _read_runs(self, runs: Sequence[Run]) -> int:
            if any(out.numel() > 1 for _, out in runs):
                raise NotImplementedError("one at a time")
            return super()._read_runs(runs)

    contract = contract_of(Elements)
    said = "a rule of carriers is broken: the whole extent can be read. Found: NotImplementedError: one at a time"
    assert outcome(contract.test_runs_are_read_in_any_order_and_number) == said
    type(contract).has_runs = False
    assert outcome(contract.test_runs_are_read_in_any_order_and_number) == "green"
    assert "NotImplementedError" in outcome(contract.test_move_out_carries_every_value_of_the_layout)


def test_contract_that_says_moves_are_refused_is_red_where_they_work() -> None:
    contract = contract_of(Healthy)
    type(contract).accepts_moves = False
    for check in (
        contract.test_move_in_carries_every_value_of_the_layout,
        contract.test_move_out_carries_every_value_of_the_layout,
    ):
        assert "names both classes" in outcome(check)
