"""A carrier that moves or allocates less than it was asked for is not believed."""

from __future__ import annotations

import pytest
import torch

from strideweave import Layout, Tensor
from strideweave.carriers.whole import allocate_all, read_all, write_all
from strideweave.tensor.copying import overwrite, values_of
from strideweave.testing import FaultyCarrier


def test_a_short_read_or_write_raises_and_the_next_is_whole() -> None:
    carrier, out = FaultyCarrier(torch.arange(4.0)), torch.zeros(3)
    carrier.script.shorten("read")
    with pytest.raises(OSError, match=r"cannot read 12 bytes .*: it says 8"):
        read_all(carrier, 1, out)
    read_all(carrier, 1, out)
    assert out.tolist() == [1.0, 2.0, 3.0]
    carrier.script.shorten("write")
    with pytest.raises(OSError, match="cannot write 12 bytes"):
        write_all(carrier, 0, out)
    write_all(carrier, 0, out)
    assert carrier.storage.tolist() == [1.0, 2.0, 3.0, 3.0]


def test_a_short_allocation_leaves_no_slots() -> None:
    carrier = FaultyCarrier()
    carrier.script.shorten("allocate")
    with pytest.raises(OSError, match="cannot allocate 5 slots"):
        allocate_all(carrier, 5)
    assert carrier.size() == 0
    allocate_all(carrier, 5)
    assert carrier.size() == 5


def test_copies_of_tensors_notice_what_falls_short() -> None:
    carrier = FaultyCarrier(torch.arange(4.0))
    tensor = Tensor(carrier, 0, Layout.column_major(4))
    carrier.script.shorten("read")
    with pytest.raises(OSError, match="cannot read"):
        values_of(tensor)
    carrier.script.shorten("write")
    with pytest.raises(OSError, match="cannot write"):
        overwrite(tensor, torch.ones(4))
    assert tensor.version == 0
