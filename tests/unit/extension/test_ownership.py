"""What an owner may do that nobody else may, and only in its own thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strideweave import CPU, DType, FileBacked, Generic
from support.defined import defined

MAKERS: list[Any] = [
    lambda: CPU(2),
    lambda: Generic([0, 0], dtype=DType.Float32),
    lambda: FileBacked(size=2),
    lambda: defined()(2, dtype=DType.Float32),
]


@pytest.mark.parametrize("make", MAKERS)
def test_owner_writes_inside_its_scope(make: Any) -> None:
    carrier = make()
    token = carrier._claim_ownership()
    assert not carrier.is_mutable()
    with pytest.raises(RuntimeError, match="owned"):
        carrier[0] = 1.0
    carrier._begin_owner_access(token)
    assert carrier._has_owner_access()
    assert carrier.is_mutable()
    assert carrier.is_owned()
    carrier[0] = 1.0
    carrier._end_owner_access(token)
    assert not carrier._has_owner_access()
    with pytest.raises(RuntimeError, match="owned"):
        carrier[0] = 2.0
    carrier._relinquish_ownership(token)
    assert (carrier[0], carrier.version, carrier.is_mutable()) == (1.0, 1, True)


def test_scope_is_of_one_thread() -> None:
    carrier = CPU(1)
    token = carrier._claim_ownership()
    carrier._begin_owner_access(token)
    seen: list[object] = []

    def elsewhere() -> None:
        seen.append(carrier._has_owner_access())
        seen.append(carrier.is_mutable())
        for use in (
            lambda: carrier.set_value(0, 1.0),
            lambda: carrier.release(),
            lambda: carrier._begin_owner_access(token),
            lambda: carrier._end_owner_access(token),
        ):
            try:
                use()
            except RuntimeError as error:
                seen.append(type(error))

    other = threading.Thread(target=elsewhere)
    other.start()
    other.join()
    assert seen == [False, False] + [RuntimeError] * 4
    carrier._end_owner_access(token)


def test_scopes_nest() -> None:
    carrier = CPU(1)
    token = carrier._claim_ownership()
    carrier._begin_owner_access(token)
    carrier._begin_owner_access(token)
    carrier._end_owner_access(token)
    assert carrier._has_owner_access()
    carrier._end_owner_access(token)
    assert not carrier._has_owner_access()
    with pytest.raises(RuntimeError, match="this thread has none"):
        carrier._end_owner_access(token)


def test_scope_of_somebody_else_is_refused() -> None:
    carrier = CPU(1)
    with pytest.raises(RuntimeError, match="not the owner's"):
        carrier._begin_owner_access(1)
    token = carrier._claim_ownership()
    with pytest.raises(RuntimeError, match="not the owner's"):
        carrier._begin_owner_access(token + 1)
    assert not carrier._has_owner_access()


def test_owner_may_release_inside_its_scope() -> None:
    carrier = CPU(1)
    token = carrier._claim_ownership()
    carrier._begin_owner_access(token)
    carrier.release()
    carrier._relinquish_ownership(token)
    assert (carrier.is_released(), carrier.is_owned(), carrier._has_owner_access()) == (True, False, False)


def test_immutable_carrier_stays_so_for_its_owner() -> None:
    carrier = CPU(1, mutable=False)
    token = carrier._claim_ownership()
    carrier._begin_owner_access(token)
    assert not carrier.is_mutable()
    with pytest.raises(RuntimeError, match="not mutable"):
        carrier[0] = 1.0


def test_version_can_be_advanced() -> None:
    carrier = CPU(1)
    carrier._increment_version()
    assert carrier.version == 1
