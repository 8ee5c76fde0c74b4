"""Evictable: one value in one of two carriers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strideweave.carriers import evictable
from strideweave.carriers.carrier import Carrier
from strideweave.carriers.checkpoint_file import CheckpointFile
from strideweave.carriers.cpu import CPU
from strideweave.carriers.evictable import Evictable
from strideweave.carriers.file_backed import FileBacked, read_all
from strideweave.carriers.generic import Generic
from strideweave.dtype import DType
from support.scripted_carrier import ScriptedCarrier

VALUES = torch.arange(10.0)
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def runs_of_four_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictable, "RUN_NBYTES", 16)


def released(carrier: Carrier) -> Carrier:
    carrier.release()
    return carrier


def owned(carrier: Carrier) -> Carrier:
    carrier._claim_ownership()
    return carrier


def over_others() -> Evictable:
    return Evictable(CPU(1), CPU(0))


class TestConstruction:
    # Each pair breaks its rule and every later one that it can, so that the order shows.
    ONE = CPU(2)
    CASES: tuple[tuple[Callable[[], tuple[object, object]], type[Exception], str], ...] = (
        (lambda: ([1.0], None), TypeError, "cannot use list as primary: it must be a Carrier"),
        (lambda: (over_others(), 3), TypeError, "cannot use int as secondary: it must be a Carrier"),
        (lambda: (over_others(), released(CPU(0))), TypeError, "as primary: it is made of other carriers"),
        (lambda: (released(CPU(0)), over_others()), TypeError, "as secondary: it is made of other carriers"),
        (lambda: (TestConstruction.ONE, TestConstruction.ONE), ValueError, "one carrier as both tiers"),
        (lambda: (released(CPU(0)), owned(CPU(0))), RuntimeError, "as primary: it is released"),
        (lambda: (owned(CPU(1)), released(CPU(0))), RuntimeError, "as secondary: it is released"),
        (lambda: (owned(CPU(1)), owned(CPU(1))), RuntimeError, "as primary: it is owned"),
        (lambda: (CPU(1), owned(CPU(1, dtype=DType.Int8))), RuntimeError, "as secondary: it is owned"),
        (lambda: (FileBacked(), CPU(3, dtype=DType.Int8)), TypeError, "Float32 into Int8"),
        (lambda: (FileBacked(), CPU(3, mutable=False)), TypeError, "its storage is a file"),
        (lambda: (CheckpointFile((), dtype=DType.Float32), CPU(3)), TypeError, "its storage is a file"),
        (lambda: (CPU(0), CPU(3, mutable=False)), RuntimeError, "it is not mutable"),
        (lambda: (CPU(0), CPU(3)), ValueError, "as primary: it is empty"),
        (lambda: (CPU(3), CPU(2)), ValueError, "it has 2 slots and primary has 3"),
    )

    @pytest.mark.parametrize(("make", "error", "words"), CASES, ids=[words for *_, words in CASES])
    def test_refused_tiers_are_left_as_they_were(
        self, make: Callable[[], tuple[object, object]], error: type[Exception], words: str
    ) -> None:
        tiers = make()
        before = [t.is_owned() for t in tiers if isinstance(t, Carrier)]
        with pytest.raises(error, match=words):
            Evictable(*tiers)  # type: ignore[arg-type]
        assert [t.is_owned() for t in tiers if isinstance(t, Carrier)] == before

    def test_secondary_taken_at_the_last_moment_gives_primary_back(self) -> None:
        class Contested(ScriptedCarrier):
            def _claim_ownership(self) -> int:
                raise RuntimeError("already owned")

        primary = CPU(1)
        with pytest.raises(RuntimeError, match="already owned"):
            Evictable(primary, Contested())
        assert not primary.is_owned()

    def test_both_are_owned_and_the_value_is_in_primary(self) -> None:
        primary, secondary = CPU.wrap(VALUES.clone()), FileBacked(size=10)
        carrier = Evictable(primary, secondary)
        assert (carrier.primary, carrier.secondary, carrier.is_evicted()) == (primary, secondary, False)
        assert primary.is_owned()
        assert secondary.is_owned()
        assert carrier._is_dependent()
        assert (carrier.size(), carrier.dtype(), carrier.version) == (10, DType.Float32, 0)
        assert read_all(carrier).tolist() == VALUES.tolist()
        with pytest.raises(RuntimeError, match="owned"):
            primary[0] = 1.0
        carrier.release()

    def test_mutable_is_what_primary_was(self) -> None:
        carrier = Evictable(CPU.wrap(VALUES.clone(), mutable=False), CPU(0))
        assert not carrier.is_mutable()
        with pytest.raises(RuntimeError, match="not mutable"):
            carrier[0] = 1.0
        carrier.evict()
        carrier.promote()
        assert read_all(carrier).tolist() == VALUES.tolist()


TIERS: dict[str, Callable[[], tuple[Carrier, Carrier]]] = {
    "cpu over file": lambda: (CPU.wrap(VALUES.clone()), FileBacked()),
    "cpu over full file": lambda: (CPU.wrap(VALUES.clone()), FileBacked(size=10)),
    "cpu over cpu": lambda: (CPU.wrap(VALUES.clone()), CPU(0)),
    "cpu over generic": lambda: (CPU.wrap(VALUES.clone()), Generic([0.0] * 10, dtype=DType.Float32)),
    "generic over cpu": lambda: (Generic(VALUES.tolist(), dtype=DType.Float32), CPU(0)),
    "generic over file": lambda: (Generic(VALUES.tolist(), dtype=DType.Float32), FileBacked()),
    "scripted over scripted": lambda: (ScriptedCarrier(VALUES), ScriptedCarrier()),
}


@pytest.mark.parametrize("make", TIERS.values(), ids=TIERS.keys())
class TestResidency:
    def test_value_goes_there_and_back_under_one_version(self, make: Callable[[], tuple[Carrier, Carrier]]) -> None:
        carrier = Evictable(*make())
        carrier[3] = -1.0
        wanted = [*VALUES[:3].tolist(), -1.0, *VALUES[4:].tolist()]
        for _ in range(2):
            for _ in range(2):
                carrier.evict()
                assert carrier.is_evicted()
            assert (carrier.primary.size(), carrier.secondary.size(), carrier.size()) == (0, 10, 10)
            assert read_all(carrier).tolist() == read_all(carrier.secondary).tolist() == wanted
            for _ in range(2):
                carrier.promote()
                assert not carrier.is_evicted()
            assert read_all(carrier).tolist() == read_all(carrier.primary).tolist() == wanted
        assert carrier.version == 1
        carrier.release()

    def test_write_lands_where_the_value_lies(self, make: Callable[[], tuple[Carrier, Carrier]]) -> None:
        carrier = Evictable(*make())
        carrier.evict()
        carrier[0] = 5.0
        assert carrier.is_evicted()
        assert carrier.secondary[0] == 5.0
        carrier.promote()
        assert carrier[0] == 5.0
        carrier[1] = 6.0
        assert not carrier.is_evicted()
        carrier.evict()
        assert read_all(carrier).tolist() == [5.0, 6.0, *VALUES[2:].tolist()]
        assert carrier.version == 2
        carrier.release()

    def test_release_ends_both(self, make: Callable[[], tuple[Carrier, Carrier]]) -> None:
        for is_evicted in (False, True):
            primary, secondary = make()
            carrier = Evictable(primary, secondary)
            if is_evicted:
                carrier.evict()
            carrier.release()
            carrier.release()
            for tier in (primary, secondary):
                assert tier.is_released()
                assert not tier.is_owned()
            assert carrier.size() == 0
            for use in (carrier.evict, carrier.promote, lambda c=carrier: c[0], lambda c=carrier: read_all(c)[0]):
                with pytest.raises((RuntimeError, IndexError), match=r"released|out of"):
                    use()
            assert carrier.supports_storage_dtype(DType.Float32)

    def test_others_are_made_of_the_same_classes(self, make: Callable[[], tuple[Carrier, Carrier]]) -> None:
        carrier = Evictable(*make())
        classes = (type(carrier.primary), type(carrier.secondary))
        carrier.release()
        filled = carrier.new_like([1, None, 3])
        zero = carrier.allocate_like(2, dtype=DType.Int16, mutable=False)
        for made, values in ((filled, [1, 0, 3]), (zero, [0, 0])):
            assert isinstance(made, Evictable)
            assert (type(made.primary), type(made.secondary)) == classes
            assert not made.is_evicted()
            made.evict()
            assert read_all(made).tolist() == values
        assert (zero.dtype(), zero.is_mutable(), filled.version) == (DType.Int16, False, 0)
        for size in (0, -1):
            with pytest.raises(ValueError, match=r"empty|size"):
                carrier.allocate_like(size)
        filled.release()
        zero.release()


class TestStoring:
    def test_value_that_was_not_written_is_not_stored_again(self) -> None:
        secondary = ScriptedCarrier()
        carrier = Evictable(CPU.wrap(VALUES.clone()), secondary)
        carrier.evict()
        stored = secondary.writes
        assert stored == 3
        carrier.promote()
        carrier.evict()
        assert secondary.writes == stored
        carrier.promote()
        carrier[0] = 1.0
        carrier.evict()
        assert secondary.writes == 2 * stored

    def test_write_through_shared_memory_is_stored(self) -> None:
        carrier = Evictable(CPU.wrap(VALUES.clone()), FileBacked())
        carrier.evict()
        with carrier._compute_carrier() as primary:
            primary._flat().mul_(2)
        carrier.evict()
        assert read_all(carrier).tolist() == (VALUES * 2).tolist()

    def test_memory_that_was_wrapped_is_let_go_of(self) -> None:
        memory = VALUES.clone()
        carrier = Evictable(CPU.wrap(memory), FileBacked())
        memory[0] = 7.0
        carrier.evict()
        memory[1] = 7.0
        carrier.promote()
        assert [carrier[0], carrier[1]] == [7.0, 1.0]
        carrier[2] = 8.0
        assert memory[2] == 2.0

    def test_values_made_under_inference_mode_move_outside_it(self) -> None:
        with torch.inference_mode():
            carrier = Evictable(CPU(4), CPU(4))
            carrier[1] = 3.0
        carrier.evict()
        carrier.promote()
        assert carrier[1] == 3.0
        carrier[1] = 4.0  # fresh memory, which inference mode did not make
        with torch.inference_mode():
            carrier.evict()
        assert carrier[1] == 4.0

    def test_tier_versions_show_that_their_values_changed(self) -> None:
        primary, secondary = CPU(4), FileBacked(size=4)
        carrier = Evictable(primary, secondary)
        carrier[0] = 1.0
        assert (primary.version, secondary.version) == (1, 0)
        carrier.evict()
        assert secondary.version == 1


class TestFailures:
    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    @pytest.mark.parametrize("is_full", [False, True])
    def test_evict_that_fails_leaves_the_value_in_primary(self, ordinal: int, is_full: bool) -> None:
        secondary = ScriptedCarrier(torch.full((10,), -1.0) if is_full else None)
        carrier = Evictable(CPU.wrap(VALUES.clone()), secondary)
        carrier[0] = 9.0
        secondary.fail_write(ordinal, NO_SPACE, torn=True)
        with pytest.raises(OSError, match="No space") as caught:
            carrier.evict()
        assert caught.value is NO_SPACE
        assert (carrier.is_evicted(), carrier.version, secondary.size()) == (False, 1, 10 if is_full else 0)
        assert read_all(carrier).tolist() == [9.0, *VALUES[1:].tolist()]
        carrier.evict()
        assert read_all(carrier).tolist() == [9.0, *VALUES[1:].tolist()]

    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    def test_evict_that_tears_a_stored_copy_stores_it_whole_the_next_time(self, ordinal: int) -> None:
        secondary = ScriptedCarrier()
        carrier = Evictable(CPU.wrap(VALUES.clone()), secondary)
        carrier.evict()
        carrier.promote()
        with carrier._compute_carrier() as primary:
            flat = primary._flat()
            flat.add_(1)
        secondary.fail_write(ordinal, NO_SPACE, torn=True)
        with pytest.raises(OSError, match="No space"):
            carrier.evict()
        flat.sub_(1)
        carrier.evict()
        assert read_all(secondary).tolist() == VALUES.tolist()

    def test_evict_without_room_changes_nothing(self) -> None:
        class Full(ScriptedCarrier):
            def _allocate(self, size: int) -> None:
                raise NO_SPACE

        carrier = Evictable(CPU.wrap(VALUES.clone()), Full())
        with pytest.raises(OSError, match="No space"):
            carrier.evict()
        assert (carrier.is_evicted(), carrier.secondary.size(), carrier.secondary.version) == (False, 0, 0)
        assert read_all(carrier).tolist() == VALUES.tolist()

    @pytest.mark.parametrize("ordinal", [1, 2, 3])
    def test_promote_that_fails_leaves_the_value_in_secondary(self, ordinal: int) -> None:
        secondary = ScriptedCarrier()
        carrier = Evictable(CPU.wrap(VALUES.clone()), secondary)
        carrier.evict()
        secondary.fail_read(ordinal, NO_SPACE)
        with pytest.raises(OSError, match="No space"):
            carrier.promote()
        assert (carrier.is_evicted(), carrier.primary.size(), carrier.version) == (True, 0, 0)
        assert read_all(carrier).tolist() == VALUES.tolist()
        carrier.promote()
        assert read_all(carrier).tolist() == VALUES.tolist()

    def test_write_that_fails_leaves_the_version_alone(self) -> None:
        secondary = ScriptedCarrier()
        carrier = Evictable(CPU.wrap(VALUES.clone()), secondary)
        carrier.evict()
        secondary.fail_write(1, NO_SPACE)
        with pytest.raises(OSError, match="No space"):
            carrier[0] = 5.0
        assert carrier.version == 0
        assert carrier[0] == 0.0

    @pytest.mark.parametrize("side", ["read", "wrote"])
    def test_tier_that_moves_fewer_bytes_in_silence_fails(self, side: str) -> None:
        class Short(ScriptedCarrier):
            short = 0

            def _read_runs(self, runs):  # type: ignore[no-untyped-def]
                return super()._read_runs(runs) - (self.short if side == "read" else 0)

            def _write_runs(self, runs):  # type: ignore[no-untyped-def]
                return super()._write_runs(runs) - (self.short if side == "wrote" else 0)

        secondary = Short()
        carrier = Evictable(CPU.wrap(VALUES.clone()), secondary)
        if side == "read":
            carrier.evict()
        secondary.short = 4
        with pytest.raises(RuntimeError, match=f"{side} 12 of 16 bytes"):
            (carrier.promote if side == "read" else carrier.evict)()
        assert carrier.is_evicted() is (side == "read")
        secondary.short = 0
        assert read_all(carrier).tolist() == VALUES.tolist()

    def test_release_ends_the_second_tier_though_the_first_fails_to(self) -> None:
        class Sticky(ScriptedCarrier):
            def _free(self) -> None:
                raise NO_SPACE

        for make in (lambda: (Sticky(VALUES), CPU(0)), lambda: (CPU(1), Sticky())):
            carrier = Evictable(*make())
            with pytest.raises(OSError, match="No space"):
                carrier.release()
            assert carrier.primary.is_released()
            assert carrier.secondary.is_released()


class TestUse:
    def test_compute_carrier_is_primary_with_the_value_in_it(self) -> None:
        carrier = Evictable(CPU.wrap(VALUES.clone()), FileBacked())
        carrier.evict()
        with carrier._compute_carrier() as compute:
            assert compute is carrier.primary
            assert not carrier.is_evicted()
            assert compute._flat().tolist() == VALUES.tolist()
        assert not carrier.is_evicted()
        carrier.release()
        with pytest.raises(RuntimeError, match="released"), carrier._compute_carrier():
            pass

    def test_value_in_use_stays(self) -> None:
        carrier = Evictable(CPU.wrap(VALUES.clone()), FileBacked())
        with carrier._compute_carrier(), carrier._compute_carrier():
            for request in (carrier.evict, carrier.release):
                with pytest.raises(RuntimeError, match="2 operations use its value"):
                    request()
            carrier.promote()
        with pytest.raises(ZeroDivisionError), carrier._compute_carrier():
            raise ZeroDivisionError
        carrier.evict()
        assert carrier.is_evicted()
        carrier.release()

    def test_it_cannot_be_seen_as_memory_nor_allocated(self) -> None:
        carrier = Evictable(CPU(1), CPU(0))
        with pytest.raises(BufferError, match="materialize"):
            carrier._flat()
        with pytest.raises(NotImplementedError, match="extent is that of its primary"):
            carrier._allocate(1)

    def test_dtype_is_supported_when_both_tiers_store_it(self) -> None:
        class Narrow(ScriptedCarrier):
            accepted_dtypes = (DType.Float32, DType.Int8)

        for tiers in ((CPU(1), Narrow()), (Narrow(torch.ones(1)), CPU(0))):
            carrier = Evictable(*tiers)
            assert {d for d in DType.registered() if carrier.supports_storage_dtype(d)} == set(Narrow.accepted_dtypes)
            with pytest.raises(TypeError, match="storage dtype must be a DType"):
                carrier.supports_storage_dtype("Int8")  # type: ignore[arg-type]

    def test_repr_names_state_and_tiers(self) -> None:
        carrier = Evictable(CPU(2), FileBacked())
        assert repr(carrier) == "<Evictable of 2 x Float32: CPU over FileBacked>"
        carrier.evict()
        assert repr(carrier) == "<Evictable of 2 x Float32, evicted: CPU over FileBacked>"
        carrier.release()

    def test_readers_see_the_value_while_it_comes_and_goes(self) -> None:
        carrier = Evictable(CPU.wrap(VALUES.clone()), FileBacked())
        seen: set[tuple[float, ...]] = set()
        errors: list[BaseException] = []
        done = threading.Event()

        def read() -> None:
            try:
                while not done.is_set():
                    seen.add(tuple(read_all(carrier).tolist()))
            except BaseException as error:
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(50):
            carrier.evict()
            carrier.promote()
        done.set()
        for reader in readers:
            reader.join()
        assert errors == []
        assert seen == {tuple(VALUES.tolist())}


class EvictableMachine(RuleBasedStateMachine):
    """Writes, transitions and failures in any order, against a list of numbers and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.tiers = (ScriptedCarrier(torch.zeros(6)), ScriptedCarrier())
        self.carrier = Evictable(*self.tiers)
        self.model = [0.0] * 6
        self.version = 0
        self.is_evicted = False

    @rule(slot=st.integers(0, 5), value=st.integers(-9, 9))
    def write(self, slot: int, value: int) -> None:
        self.carrier[slot] = float(value)
        self.model[slot] = float(value)
        self.version += 1

    @rule()
    def evict(self) -> None:
        self.carrier.evict()
        self.is_evicted = True

    @rule()
    def promote(self) -> None:
        self.carrier.promote()
        self.is_evicted = False

    @precondition(lambda self: not self.is_evicted)
    @rule(ordinal=st.integers(1, 2), is_torn=st.booleans())
    def evict_and_fail(self, ordinal: int, is_torn: bool) -> None:
        secondary = self.tiers[1]
        before = secondary.writes
        secondary.fail_write(ordinal, NO_SPACE, torn=is_torn)
        try:
            self.carrier.evict()
        except OSError:
            return
        self.is_evicted = True
        if secondary.writes < before + ordinal:  # nothing was stored, so the fault still waits: use it up
            for _ in range(ordinal - 1):
                secondary._write_runs([])
            with pytest.raises(OSError, match="No space"):
                secondary._write_runs([(0, torch.empty(0))])

    @precondition(lambda self: self.is_evicted)
    @rule(ordinal=st.integers(1, 2), tier=st.sampled_from([0, 1]))
    def promote_and_fail(self, ordinal: int, tier: int) -> None:
        if tier:
            self.tiers[1].fail_read(ordinal, NO_SPACE)
        else:
            self.tiers[0].fail_write(ordinal, NO_SPACE)
        with pytest.raises(OSError, match="No space"):
            self.carrier.promote()

    @invariant()
    def equals_the_model(self) -> None:
        assert read_all(self.carrier).tolist() == self.model
        assert (self.carrier.version, self.carrier.is_evicted()) == (self.version, self.is_evicted)
        assert self.tiers[0].size() == (0 if self.is_evicted else 6)

    def teardown(self) -> None:
        self.carrier.release()


TestEvictableMachine = EvictableMachine.TestCase
TestEvictableMachine.settings = settings(max_examples=40, stateful_step_count=25)
