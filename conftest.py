"""Every test and doctest runs with one torch thread, inside a cache directory of its own."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# A CI run draws the same examples every time; STRIDEWEAVE_EXAMPLES asks for a longer search.
settings.register_profile(
    "strideweave",
    deadline=None,
    max_examples=int(os.environ.get("STRIDEWEAVE_EXAMPLES", "60")),
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("strideweave")


@pytest.fixture(autouse=True)
def owned_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing that a test writes lands in the user's cache."""
    root = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STRIDEWEAVE_CACHE_DIR", str(root))
    return root


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what torch says of itself while its compiler is imported
    importlib.import_module("torch._inductor.compile_fx")
