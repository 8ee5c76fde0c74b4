"""Every test of this folder compiles for the card, anew, and caches nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import strideweave.inductor  # registers with Inductor when it is imported
import strideweave.spyre.device


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    import torch._inductor.config as inductor_config

    assert strideweave.inductor.register is not None
    assert strideweave.spyre.device.is_registered()
    torch._dynamo.reset()
    with inductor_config.patch(force_disable_caches=True), warnings.catch_warnings():
        # Dynamo's own: about caches that are off, and calls that it deprecates.
        warnings.filterwarnings("ignore", module=r"torch\..*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
    torch._dynamo.reset()
