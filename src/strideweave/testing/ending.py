"""What holds of ownership and of release: who may change a carrier, and what is left of one at its end."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from strideweave.carriers.carrier import Carrier
from strideweave.testing.reading import SIZE, ReadingContract, facts, supported
from strideweave.testing.rules import read_everything, refused, require, works


class EndingContract(ReadingContract):
    """The rules of ownership and release, with those of reading.

    >>> from strideweave.testing import CarrierContract
    >>> from strideweave.testing.ending import EndingContract
    >>> issubclass(CarrierContract, EndingContract)
    True
    """

    # -- ownership ---------------------------------------------------------------------------------------------------

    def test_ownership_is_had_by_one_and_shuts_out_the_others(self) -> None:
        """Until it is given up: then everything is as it was."""
        values = self.sample()
        carrier = self.filled(values)
        before = facts(carrier)
        with works("a live carrier that nobody owns can be claimed"):
            token = carrier._claim_ownership()
        require(carrier.is_owned(), "an owned carrier says is_owned()")
        require(not carrier.is_mutable(), "an owned carrier is not mutable for outsiders")
        with refused(RuntimeError, "owned", "an owned carrier cannot be claimed a second time"):
            carrier._claim_ownership()
        with refused(RuntimeError, "owned", "an owned carrier is not released by an outsider"):
            carrier.release()
        with refused(RuntimeError, "mutable|owned", "an owned carrier is not written by an outsider"):
            carrier[0] = values.tolist()[1]
        require(not carrier.is_released(), "a refused release releases nothing")
        require(
            read_everything(carrier) == values.tolist(), "an owned carrier can be read, and refusals change nothing"
        )
        with works("the owner gives up ownership"):
            carrier._relinquish_ownership(token)
        require(facts(carrier) == before, "giving up ownership restores every fact", (before, facts(carrier)))
        with works("a carrier that was given up can be claimed again"):
            carrier._relinquish_ownership(carrier._claim_ownership())

    def test_ownership_asked_for_by_many_threads_is_given_to_one(self) -> None:
        """Never to two at once."""
        carrier = self.filled(self.sample())
        barrier = threading.Barrier(6)

        def claim() -> int | None:
            barrier.wait(10)
            try:
                return carrier._claim_ownership()
            except RuntimeError:
                return None

        with ThreadPoolExecutor(6) as pool:
            tokens = [t for t in pool.map(lambda _: claim(), range(6)) if t is not None]
        require(len(tokens) == 1, "of several that claim a carrier at once, one gets it", tokens)
        carrier._relinquish_ownership(tokens[0])

    # -- release -----------------------------------------------------------------------------------------------------

    def test_release_ends_reading_and_writing(self) -> None:
        """It returns None, and once more is harmless."""
        carrier = self.filled(self.sample())
        with works("a carrier can be released, and again"):
            first, second = _call(carrier.release), _call(carrier.release)
        require(first is None and second is None, "release() returns None", (first, second))
        require(carrier.is_released(), "a released carrier says is_released()")
        require(not carrier.is_mutable(), "a released carrier is not mutable")
        require(not carrier.is_owned(), "a released carrier is owned by nobody")
        for index in (0, SIZE):
            with refused(RuntimeError, "released", "a released carrier is not read"):
                carrier[index]
            with refused(RuntimeError, "released", "a released carrier is not written"):
                carrier[index] = 1
        with refused(RuntimeError, "released", "a released carrier cannot be claimed"):
            carrier._claim_ownership()

    def test_release_keeps_the_facts(self) -> None:
        """Dtype, supported dtypes, and the making of others."""
        carrier = self.filled(self.sample())
        version, stored = carrier.version, supported(carrier)
        carrier.release()
        with works("a released carrier still knows its facts"):
            require(carrier.dtype() is self.dtype(), "a released carrier knows its dtype", carrier.dtype())
            require(carrier.version == version, "releasing does not count as a version", carrier.version)
            require(type(carrier.size()) is int and carrier.size() >= 0, "size() stays an int", carrier.size())
            require(supported(carrier) == stored, "supports_storage_dtype works after release", supported(carrier))
            require(type(repr(carrier)) is str, "repr works after release")
        values = self.sample(1)
        with works("a released carrier still makes others"):
            made = carrier.new_like(values.tolist())
            zero = carrier.allocate_like(SIZE)
        require(read_everything(made) == values.tolist(), "new_like after release holds its values")
        require(read_everything(zero) == [0] * SIZE, "allocate_like after release is zero", read_everything(zero))
        require(not made.is_released() and not zero.is_released(), "what a released carrier makes is live")

    def test_release_by_the_garbage_collector_leaves_nothing(self) -> None:
        """No thread, no descriptor, no file, and no reference that keeps the carrier alive."""
        self._use_and_drop()  # what is shared by all and made once is there from now on
        freeze = not gc.get_freeze_count()  # what was there before is not gone through again and again
        if freeze:
            gc.freeze()
        try:
            self._drop_and_compare()
        finally:
            if freeze:
                gc.unfreeze()

    def _drop_and_compare(self) -> None:
        before = _threads(), _descriptors(), self.leftovers()
        references = self._use_and_drop()
        gc.collect()
        alive = sum(reference() is not None for reference in references)
        require(alive == 0, "a carrier that nobody refers to is collected", f"{alive} alive")
        now = _threads(), _descriptors(), self.leftovers()
        require(now[0] <= before[0], "a carrier that is collected leaves no thread", (before[0], now[0]))
        require(now[1] <= before[1], "a carrier that is collected leaves no open descriptor", (before[1], now[1]))
        require(now[2] == before[2], "a carrier that is collected leaves nothing outside", (before[2], now[2]))

    def _use_and_drop(self) -> list[weakref.ref[Carrier]]:
        references = []
        for salt in range(5):
            carrier = self.filled(self.sample(salt))
            carrier[0]
            references.append(weakref.ref(carrier))
        return references


def _call(function: Callable[[], object]) -> object:
    return function()


def _threads() -> int:
    return threading.active_count()


def _descriptors() -> int:
    """Open descriptors of the process; 0 where the system does not list them."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
