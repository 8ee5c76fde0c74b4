"""`python -m strideweave`: the environment, for a bug report."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform

PACKAGES = ("strideweave", "torch", "transformers", "safetensors", "numpy", "accelerate")


def environment() -> dict[str, str]:
    """Versions and sizes that decide how things behave here."""
    facts = {"python": platform.python_version(), "system": platform.platform(), "cores": str(os.cpu_count())}
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts |= {name: value for name, value in os.environ.items() if name.startswith("STRIDEWEAVE_")}
    return facts


if __name__ == "__main__":
    for fact, value in environment().items():
        print(f"{fact:>14}  {value}")
