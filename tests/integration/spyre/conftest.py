"""The device is there for every test of this folder, and each leaves as much device memory as it found."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import strideweave.spyre.device


@pytest.fixture(autouse=True)
def nothing_stays_allocated(request: pytest.FixtureRequest) -> Iterator[None]:
    assert strideweave.spyre.device.is_registered()
    before = torch.spyre.memory_allocated()
    yield
    if torch.spyre.memory_allocated() > before:
        gc.collect()  # cycles; slow in a process of this size
    assert torch.spyre.memory_allocated() <= before
